"""Forecasts of others that were scored against a run, scored again as they were given.

A `Workspace` and a folder of `vaiom score --save` enter; findings go into a proof. These forecasts
cannot be made again: those of a test must be in the ledger, and everything else that the folder
says must follow from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vaiom.auditing.compare import Figures, compare_figures, compare_losses
from vaiom.auditing.rounding import SAME_BITS
from vaiom.auditing.workspace import Workspace, unseal_of
from vaiom.baselines.base import Rows
from vaiom.codec import to_json
from vaiom.evaluation.access_ledger import is_recorded, model_accesses
from vaiom.evaluation.record import FORMS, RUN_PREFIX, ForecastScore, caveat_of_missing
from vaiom.evaluation.scores import MODEL, ScoredEvents, find_rows, read_events
from vaiom.files import read_json
from vaiom.run import Run

GIVEN = ("corpus", "baselines", "looks", "corpus_sha256", "num_unused")
"""Parts that say where inputs lay or what was in a table that is not kept, and looks."""
QUOTED = 80
"""Characters of an unknown form that are quoted."""


def compare_forecasts_of_others(work: Workspace, folder: Run, split: str) -> None:
    """Score the forecasts of a folder on a split again, and compare its events and figures."""
    proof = work.proof
    where = f"{folder.path.name}, {split}"
    stored = to_json(ForecastScore.read(folder.path, split))
    events = read_events(folder.path, split)
    rows = _rows_inside(work, split, events)
    problem = f"{where}: events without forecasts, or that the run does not have"
    if not proof.check(rows is not None, problem) or rows is None:
        return
    again = _score_again(work, folder, split, rows, events, stored)
    now = read_events(again.path, split)
    for name in now.bits.keys() & events.bits.keys():
        off = now.bits[name] - events.bits[name]
        compare_losses(proof, f"{where}: {name}", off, SAME_BITS)
    ours = read_json(again.evaluation(split))
    form = stored["form"]
    known = f"{where}: forecasts of an unknown form, {form[:QUOTED]}"
    if proof.check(form in FORMS, known):
        ours["form"] = form
    num_events = len(work.rows_of(split))
    missing = num_events - len(rows)
    caveat = caveat_of_missing(missing, num_events, stored["num_unused"], form)
    ours["caveats"][0] = caveat
    numbers = _accesses(work, split, ours["checkpoint_sha256"])
    problem = f"{where}: the ledger has no such look at these forecasts"
    proof.check(stored["looks"] in numbers, problem)
    ours |= {name: stored[name] for name in GIVEN}
    compare_figures(proof, ours, stored, where)
    proof.note(f"{where}: forecasts of others, taken as they were given")


def _rows_inside(work: Workspace, split: str, events: ScoredEvents) -> Rows | None:
    """The rows of events, if the run was scored on all of them, each is there once, and there are
    forecasts.
    """
    stamps = work.corpus.target_timestamps
    rows = find_rows(work.corpus, stamps, events.symbols, events.target_times)
    judged = Run(work.out).evaluation(split).is_file()
    once = len(np.unique(rows)) == len(rows)
    inside = judged and once and bool(np.isin(rows, work.rows_of(split)).all())
    return rows if inside and events.probs is not None else None


def _accesses(work: Workspace, split: str, digest: str) -> list[int | None]:
    """The numbers of the accesses to a split by forecasts with this hash; None where they are not
    recorded.
    """
    if not is_recorded(work.corpus, split):
        return [None]
    accesses = enumerate(model_accesses(work.run.corpus, split), start=1)
    return [number for number, each in accesses if each.checkpoint_sha256 == digest]


def _score_again(
    work: Workspace, folder: Run, split: str, rows: Rows, events: ScoredEvents, stored: Figures
) -> Run:
    """Score the stored forecasts as a table of probabilities; returns the folder of the result."""
    from vaiom.evaluation.forecasts import score  # which needs a dataframe library

    assert events.probs is not None
    name = folder.path.name
    runs = [each for each in events.bits if each.startswith(RUN_PREFIX)]
    where = f"{name}, {split}"
    without = {MODEL, *runs}
    losses = work.store_losses(where, split, rows, events, stored["baselines"], without)
    against = work.out
    if runs:
        # The run may have had another name when they were scored.
        against = work.out.with_name(runs[0].removeprefix(RUN_PREFIX))
        if not against.exists():
            against.symlink_to(work.out, target_is_directory=True)
    table: dict[str, Any] = {"symbol": events.symbols, "target_time": events.target_times}
    for bucket, column in enumerate(events.probs.T, start=1):
        table[f"p{bucket}"] = column
    score(
        table,
        work.corpus,
        split,
        name=name,
        against=against,
        baselines=losses,
        unseal=unseal_of(split),
        save=True,
    )
    return Run(Run(work.out).forecasts / name)
