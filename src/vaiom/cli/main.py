"""The `vaiom` command: its groups and commands, in the order in which data flows."""

from __future__ import annotations

from typing import Annotated

import typer

from vaiom.cli import checkout, corpus, data, demo, evaluate, forecast, train
from vaiom.cli.console import user_errors

app = typer.Typer(
    name="vaiom",
    help="The distribution of the next return: data in, corpus, model, honest figures, forecasts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(corpus.app, name="corpus")
for command in (
    *(demo.demo, train.experiments, train.train, train.refit),
    *(evaluate.baselines, evaluate.evaluate, evaluate.report, evaluate.audit),
    *(forecast.predict, forecast.export, forecast.serve),
):
    app.command()(command)
for command in (checkout.reproduce, checkout.bench):
    app.command(context_settings=checkout.FORWARD)(command)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from vaiom import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    with user_errors("vaiom"):
        app(prog_name="vaiom")
