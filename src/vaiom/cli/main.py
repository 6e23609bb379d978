"""The `vaiom` command: its groups and commands, in the order in which data flows."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from vaiom import __version__
from vaiom.cli import data, evaluate, forecast, run, service, train
from vaiom.cli.console import user_errors
from vaiom.cli.options import option
from vaiom.errors import ConfigError

_PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
}
app = typer.Typer(
    name="vaiom",
    help="Forecast the distribution of the next return: prices, corpus, training, evaluation, "
    "forecasts, service.",
    **_PLAIN,
)
prices = typer.Typer(help="Get price bars: download, import, resample, simulate, check.", **_PLAIN)
corpora = typer.Typer(
    help="Turn bars into a corpus to train on: features, targets, buckets, splits.", **_PLAIN
)
app.add_typer(prices, name="data")
app.add_typer(corpora, name="corpus")

PRICE_COMMANDS = (data.download, data.import_, data.resample, data.simulate, data.check)
CORPUS_COMMANDS = (data.build, data.append, data.show, data.pack, data.unpack)
COMMANDS = (
    run.demo,
    run.run,
    train.experiments,
    train.train,
    train.refit,
    train.horizons,
    train.dependence,
    train.package,
    evaluate.baselines,
    evaluate.evaluate,
    evaluate.score,
    evaluate.report,
    evaluate.audit,
    forecast.forecast,
    forecast.models,
    forecast.card,
    forecast.predict,
    forecast.risk,
    forecast.export,
    service.serve,
    service.follow,
    service.state,
)
for group, commands in ((prices, PRICE_COMMANDS), (corpora, CORPUS_COMMANDS), (app, COMMANDS)):
    for command in commands:
        # Terminals break lines themselves.
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
        group.command(command.__name__.strip("_"), help=text)(command)

# These commands need a checkout: their arguments, --help included, are passed on to the program
# there.
_FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_FORWARD)
def reproduce(context: typer.Context) -> None:
    """Run the paper's experiments on your corpora; results stand beside the published ones."""
    _forward("reproduction", context)


@app.command(context_settings=_FORWARD)
def bench(context: typer.Context) -> None:
    """Measure speed and memory against plain reference code; use a quiet machine."""
    _forward("benchmarks", context)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, option("Print the version and exit.", "--version")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def _forward(package: str, context: typer.Context) -> None:
    """Run `python -m PACKAGE` of a checkout: that of this program, or else the current folder."""
    parts = (f"{package}/__main__.py", "src/vaiom/__init__.py")
    for root in (Path(__file__).parents[3], Path.cwd()):
        if all((root / part).is_file() for part in parts):
            break
    else:
        raise ConfigError(
            f"`{context.command_path}` needs a checkout of the repository",
            expected=f"a folder {package}",
            where=Path.cwd(),
            fix="git clone the repository, pip install -e it, and run the command there",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    import_module(f"{package}.__main__").main(context.args, context.command_path)


_with_place = warnings.formatwarning


def plain_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as a line; those of our own come without their place in the code."""
    if category is UserWarning:
        return f"note: {message}\n"
    return _with_place(message, category, filename, lineno, line)


def main() -> None:
    """Run the command line: errors that a user can fix exit 2, bugs exit 1 with a traceback."""
    warnings.formatwarning = plain_warning
    try:
        with user_errors("vaiom"):
            app(prog_name="vaiom")
    except SystemExit as end:
        if "WORLD_SIZE" not in os.environ:
            raise
        # Under torchrun: threads that a process group leaves may abort an interpreter that ends in
        # the usual way.
        sys.stdout.flush()
        os._exit(int(end.code or 0))
