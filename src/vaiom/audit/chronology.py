"""Proof (c): splits follow each other in time, and no window that is learned from reaches out of Train.

Enters: the events of a pipeline, the end of Train. Leaves: a `Proof` on the split's actual events and the sampler's
actual stream, step by step.
Paper: Methods, "Corpus Construction and Split Protocol" and "Supervision Scope".
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import numpy as np

from vaiom.audit.pipeline import Events, Rows
from vaiom.audit.proof import Proof, proving
from vaiom.events.splits import TRAIN

NAME = "c. chronology"
ABOUT = "splits follow each other, no event is in two, no sampled window holds a target outside Train"
STEPS = 200
"""Steps of the sampler's stream that are drawn."""


def prove_chronology(events: Events, train_end: datetime, *, steps: int = STEPS) -> Proof:
    with proving(NAME, ABOUT) as proof:
        _splits_in_order(proof, events)
        _in_one_split(proof, events)
        end = np.datetime64(train_end)
        late = events.target_timestamps[events.splits[TRAIN]] >= end
        proof.check(not late.any(), f"{late.sum()} Train events have a target at or after {train_end}", len(late))
        for step in range(1, steps + 1):
            _window_targets(proof, events, events.draw(step), end, step)
        proof.notes.append(f"{steps} steps of the sampler")
    return proof


def _splits_in_order(proof: Proof, events: Events) -> None:
    present = {name: events.target_timestamps[rows] for name, rows in events.splits.items() if len(rows)}
    for (name, times), (later, later_times) in pairwise(present.items()):
        misplaced = int((times >= later_times.min()).sum())
        proof.check(
            not misplaced, f"{misplaced} {name} events have a target at or after the first of {later}", len(times)
        )


def _in_one_split(proof: Proof, events: Events) -> None:
    """An event is an asset and a target time, whatever its row number."""
    asset = np.empty(len(events.timestamps), np.int64)
    for number, rows in enumerate(events.asset_slices.values()):
        asset[rows] = number
    chosen = np.concatenate(list(events.splits.values()))
    seconds = events.target_timestamps[chosen].astype("datetime64[s]").astype(np.int64)
    _, counts = np.unique(np.stack([asset[chosen], seconds]), axis=1, return_counts=True)
    repeated = int((counts > 1).sum())
    proof.check(not repeated, f"{repeated} events of an asset and a target time are there more than once", len(chosen))


def _window_targets(proof: Proof, events: Events, ends: Rows, end: np.datetime64, step: int) -> None:
    rows = ends[:, None] + np.arange(1 - events.context, 1)
    starts = np.array([part.start for part in events.asset_slices.values()])
    asset_start = starts[np.searchsorted(starts, ends, side="right") - 1]
    crosses = rows[:, 0] < asset_start
    proof.check(not crosses.any(), f"step {step}: {crosses.sum()} windows begin before their asset", len(ends))
    targets = events.target_timestamps[np.maximum(rows, 0)]
    outside = ~(targets < end)  # a target that is not there yet is outside too
    where = targets[outside][0] if outside.any() else ""
    proof.check(not outside.any(), f"step {step}: a window holds the target at {where}, after Train", rows.size)
