"""The `vaiom` command: one module per group, and the one place that maps errors to exits."""

from __future__ import annotations

import typer

from vaiom.cli import (
    audit,
    baselines,
    checkout,
    corpus,
    data,
    demo,
    evaluate,
    experiments,
    export,
    predict,
    refit,
    report,
    serve,
    train,
)
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
app.command()(demo.demo)
app.command()(experiments.experiments)
app.command()(train.train)
app.command()(refit.refit)
app.command()(baselines.baselines)
app.command()(evaluate.evaluate)
app.command(context_settings=checkout.FORWARD)(checkout.reproduce)
app.command()(report.report)
app.command()(audit.audit)
app.command()(predict.predict)
app.command()(export.export)
app.command()(serve.serve)
app.command(context_settings=checkout.FORWARD)(checkout.bench)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from vaiom import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    with user_errors("vaiom"):
        app(prog_name="vaiom")
