"""`vaiom baselines`: fit what a model must beat on Train, and score it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note, print_json, progress_bar


def baselines(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus folder.")],
    out: Annotated[Path, typer.Option(help="Where fits and per-event losses are kept; later runs add to it.")],
    only: Annotated[str | None, typer.Option(metavar="A,B", help="Some of them instead of all.")] = None,
    split: Annotated[str, typer.Option(help="Which events are scored; a test split only when it is named.")] = (
        "validation"
    ),
    context: Annotated[
        int, typer.Option(help="Rows of history an event must have, as the model it is held beside.")
    ] = (512),
    unseal: Annotated[str | None, typer.Option(help="Must say `sealed` for --split sealed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Fit the baselines on Train and score them in bits per event."""
    from vaiom.baselines.registry import BASELINES, require_known, usual_baselines
    from vaiom.cli.tables import show, table
    from vaiom.evaluation.baseline_scores import score_baselines
    from vaiom.events.corpus import open_corpus

    names = require_known([name.strip() for name in only.split(",")] if only is not None else usual_baselines())
    left_out = [name for name in BASELINES if only is None and name not in names]
    if left_out:
        note(f"No GPU here: {', '.join(left_out)} left out; --only {','.join(left_out)} trains them all the same.")
    opened = open_corpus(corpus)
    bits = score_baselines(opened, names, out, split, context, progress_bar, unseal=unseal)
    events = len(opened.endpoints(split, context, unseal=unseal is not None))
    if json:
        print_json({"split": split, "events": events, "bits": bits})
        return
    best = min(bits.values())
    body = [[name, f"{value:.4f}", f"{value - best:+.4f}"] for name, value in bits.items()]
    show(table(f"{split}: {events:,} events, fitted on Train alone", ["baseline", "bits/event", "behind best"], body))
    note(f"\nFits and per-event losses are in {out}.")
