"""Proof (d): an answer does not depend on what else is asked with it.

Enters: the events of a pipeline that predicts. Leaves: a `Proof`: the probabilities of an event alone, among its
neighbours in time and among strangers in random order agree.
"""

from __future__ import annotations

import numpy as np

from vaiom.audit.pipeline import Events, Rows
from vaiom.audit.proof import Proof, proving

NAME = "d. neighbours"
ABOUT = "probabilities of an event alone, in order and among shuffled strangers"
TOLERANCE = 1e-5
"""Largest difference of a probability: matrix products of other shapes may round FP32 sums otherwise."""

ALONE = 12
TOGETHER = 192


def prove_neighbours(events: Events, *, seed: int) -> Proof:
    assert events.predict is not None
    rng = np.random.default_rng(seed)
    with proving(NAME, ABOUT) as proof:
        rows = _some_rows(events, rng)
        reference = events.predict(rows)
        order = rng.permutation(len(rows))
        shuffled = np.empty_like(reference)
        shuffled[order] = events.predict(rows[order])
        largest = _agree(proof, reference, shuffled, "in another order")
        half = len(rows) // 2
        parted = np.concatenate([events.predict(rows[:half]), events.predict(rows[half:])])
        largest = max(largest, _agree(proof, reference, parted, "with half of its neighbours"))
        few = rng.choice(len(rows), min(ALONE, len(rows)), replace=False)
        alone = np.concatenate([events.predict(rows[[each]]) for each in few])
        largest = max(largest, _agree(proof, reference[few], alone, "alone"))
        proof.notes.append(f"largest difference of a probability {largest:.1e}, tolerance {TOLERANCE:.0e}")
    return proof


def _some_rows(events: Events, rng: np.random.Generator) -> Rows:
    """Rows of all splits and assets with their full context."""
    rows = np.concatenate(list(events.splits.values()))
    return np.sort(rng.choice(rows, min(TOGETHER, len(rows)), replace=False))


def _agree(proof: Proof, ours: np.ndarray, theirs: np.ndarray, how: str) -> float:
    difference = np.abs(ours - theirs).max(axis=1)
    # Written so that NaN contradicts.
    bad = ~(difference <= TOLERANCE)
    proof.check(not bad.any(), f"{bad.sum()} of {len(bad)} events have other probabilities {how}", len(bad))
    return float(difference.max())
