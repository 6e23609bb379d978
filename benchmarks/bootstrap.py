"""The asset-month bootstrap, against a plain loop that gathers the events of every replicate.

Enters: nothing; the size is that of the paper's Test halves. Leaves: a `Measurement`; both ways
draw the same blocks, so each replicate's mean and win-rate must agree.
Paper: Appendix, "Asset-Month Block Bootstrap".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.race import Measurement, race
from vaiom.baselines.base import Floats
from vaiom.errors import VaiomError
from vaiom.evaluation.inference import REPLICATES, SEED, block_sums, resample

NUM_BLOCKS = 66
NUM_EVENTS = 33_000
REPEATS = 3
TOLERANCE = 1e-12

Replicates = tuple[Floats, Floats]
"""Gains and win-rates, one of each a replicate."""


def run(_bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """The benchmark at the size of an evaluation."""
    return measure(NUM_BLOCKS, NUM_EVENTS, REPLICATES, REPEATS)


def measure(num_blocks: int, num_events: int, replicates: int, repeats: int) -> Measurement:
    """Race both ways from the gains of the events to the resampled statistics."""
    rng = np.random.default_rng(SEED)
    blocks = np.sort(
        np.concatenate(
            [np.arange(num_blocks), rng.integers(0, num_blocks, num_events - num_blocks)]
        )
    )
    gains = rng.standard_normal(num_events) + 0.03

    def ours() -> Replicates:
        return resample(*block_sums(gains, blocks), replicates, SEED)

    def reference() -> Replicates:
        return plain_loop(gains, blocks, replicates, SEED)

    equal = require_equal(ours(), reference())
    ours_seconds, reference_seconds = race(ours, reference, repeats)
    return Measurement(
        name="bootstrap",
        input=f"{replicates:,} replicates of {num_blocks} blocks, {num_events:,} events",
        ours_seconds=ours_seconds,
        reference_seconds=reference_seconds,
        equal=equal,
    )


def plain_loop(
    gains: Floats, blocks: np.ndarray[tuple[int], np.dtype[np.int64]], replicates: int, seed: int
) -> Replicates:
    """One replicate after another: draw blocks, put their events together, take the mean."""
    rng = np.random.default_rng(seed)
    members = [gains[blocks == number] for number in np.unique(blocks)]
    means = []
    win_rates = []
    for _ in range(replicates):
        drawn = [members[number] for number in rng.integers(0, len(members), len(members))]
        means.append(np.concatenate(drawn).mean())
        win_rates.append(sum(block.mean() > 0 for block in drawn) / len(drawn))
    return np.array(means), np.array(win_rates)


def require_equal(ours: Replicates, reference: Replicates) -> str:
    """Say what was compared, or by how much the two ways differ."""
    distance = max(
        float(np.abs(mine - theirs).max()) for mine, theirs in zip(ours, reference, strict=True)
    )
    if not distance <= TOLERANCE:
        raise VaiomError(f"a replicate differs by {distance}")
    return f"mean and win-rate of all {len(ours[0]):,} replicates, to {TOLERANCE:g}"
