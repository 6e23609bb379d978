"""`vaiom refit`: a run's configuration trained through the newest bars, for use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note, parse_date, print_json
from vaiom.cli.train import summarise, training_report


def refit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a selected model.")],
    corpus: Annotated[Path, typer.Option(help="The corpus with the newest bars.")],
    out: Annotated[Path, typer.Option(help="The run folder to write.")],
    until: Annotated[str | None, typer.Option(help="Use only bars before this date; else all.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the refit stopped.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Train a run's configuration again on all bars; the last half-year selects and no test is left.

    The result is a model for use, not for evidence: judge the configuration by the run that it comes from.
    """
    from vaiom.events.corpus import open_corpus
    from vaiom.experiments.refit import refit as run_refit
    from vaiom.training.distributed import is_leader

    moment = None if until is None else parse_date(until)
    with training_report("refitting", out) as report:
        result = run_refit(run, open_corpus(corpus), out, until=moment, device=device, resume=resume, report=report)
    if not is_leader():
        return
    if json:
        print_json(vars(result))
        return
    summarise(result)
    note("It has learned from all bars but the last half-year's, which selected it: for use, not for evidence.")
