"""The `vaiom` command: one module per group, and the one place that maps errors to exits."""

from __future__ import annotations

import errno
import sys

import typer

from vaiom.cli import (
    audit,
    baselines,
    bench,
    corpus,
    data,
    demo,
    evaluate,
    experiments,
    export,
    predict,
    refit,
    report,
    reproduce,
    serve,
    train,
)

# A disk that is full, a place that may not be written to or a name that no file can have is nobody's bug.
_USERS_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)

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
app.command()(reproduce.reproduce)
app.command()(report.report)
app.command()(audit.audit)
app.command()(predict.predict)
app.command()(export.export)
app.command()(serve.serve)
app.command()(bench.bench)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from vaiom import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line: a user's error is one message on stderr and exit 2, ours a traceback and exit 1."""
    from vaiom.errors import UserError

    try:
        app(prog_name="vaiom")
    except UserError as error:
        print(f"vaiom: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _USERS_ERRNOS:
            raise
        print(f"vaiom: {error.strerror}\n  where:    {error.filename or 'while writing'}", file=sys.stderr)
        raise SystemExit(2) from None
