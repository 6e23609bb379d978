"""How sure a paired gain is: whole blocks of events are resampled, because events of one block depend on each other.

A replicate draws as many blocks as there are, with replacement, and takes the mean of baseline minus model bits over
all events of the drawn blocks. The interval is cut from the replicates at equal shares on both sides. The win-rate is
the share of blocks, whatever their size, in which the mean gain is positive; the same draws give its interval. The
paper's block is one asset in one calendar month of the target; with whole months as blocks, all assets of a month are
drawn together, which also allows for what they have in common.

Enters: bits of the baseline and of the model on the same events, a block number for each. Leaves: a `PairedGain`.
Paper: Methods, "Paired Test Uncertainty"; Appendix, "Asset-Month Block Bootstrap". NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.evaluation.likelihood import Buckets, Floats, tail_masks

REPLICATES = 10_000
SEED = 17
LEVEL = 0.95

_DRAWS_AT_ONCE = 4_000_000

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class BlockInference:
    """Gain and win-rate over one kind of blocks; a single block leaves nothing to resample, and no interval."""

    num_blocks: int
    block_wins: int
    win_rate: float
    interval: Interval | None
    win_rate_interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class TailGain:
    """The mean gain over events that ended in a tail; None where none did."""

    num_events: int
    gain_bits: float | None


@dataclass(frozen=True, kw_only=True)
class PairedGain:
    """Baseline minus model in bits per event: positive favours the model."""

    num_events: int
    gain_bits: float
    asset_months: BlockInference
    months: BlockInference
    tails: dict[str, TailGain]


@dataclass(frozen=True, eq=False)
class Replicates:
    """The resampled statistics, (R,) each."""

    gain_bits: Floats
    win_rate: Floats


def paired_inference(
    model_bits: Floats,
    baseline_bits: Floats,
    buckets: Buckets,
    symbols: npt.NDArray[Any],
    target_times: npt.NDArray[np.datetime64],
) -> PairedGain:
    """Everything that the paper says of one model beside one baseline, and month-clustered intervals; all (n,)."""
    sizes = {len(values) for values in (model_bits, baseline_bits, buckets, symbols, target_times)}
    if len(sizes) != 1:
        raise DataError(
            "the losses are not of the same events", expected="one loss per event", got=f"{sorted(sizes)} events"
        )
    if not len(model_bits):
        raise DataError("there is no event to compare on", expected="at least one scored event")
    gains = baseline_bits - model_bits
    months = target_times.astype("datetime64[M]").astype(np.int64)
    _, asset = np.unique(symbols, return_inverse=True)
    return PairedGain(
        num_events=len(gains),
        gain_bits=float(gains.mean()),
        asset_months=block_inference(gains, months * (int(asset.max()) + 1) + asset),
        months=block_inference(gains, months),
        tails={
            name: TailGain(num_events=int(mask.sum()), gain_bits=float(gains[mask].mean()) if mask.any() else None)
            for name, mask in tail_masks(buckets).items()
        },
    )


def block_inference(
    gains: Floats,
    blocks: npt.NDArray[np.integer],
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    level: float = LEVEL,
) -> BlockInference:
    """Percentile intervals of the event-weighted mean of `gains` and of the win-rate over `blocks`, both (n,)."""
    sums, sizes = block_sums(gains, blocks)
    wins = sums > 0
    several = len(sums) > 1
    drawn = resample(sums, sizes, replicates, seed) if several else None
    return BlockInference(
        num_blocks=len(sums),
        block_wins=int(wins.sum()),
        win_rate=float(wins.mean()),
        interval=_percentiles(drawn.gain_bits, level) if drawn else None,
        win_rate_interval=_percentiles(drawn.win_rate, level) if drawn else None,
    )


def block_sums(gains: Floats, blocks: npt.NDArray[np.integer]) -> tuple[Floats, Floats]:
    """Total gain and number of events of each block, in the order of the block numbers."""
    _, block_of = np.unique(blocks, return_inverse=True)
    return np.bincount(block_of, weights=gains).astype(np.float64), np.bincount(block_of).astype(np.float64)


def resample(sums: Floats, sizes: Floats, replicates: int = REPLICATES, seed: int = SEED) -> Replicates:
    """Draw blocks and add up: a block's sum and size are all that a replicate needs of it."""
    count = len(sums)
    rng = np.random.default_rng(seed)
    wins = (sums > 0).astype(np.float64)
    gain_bits, win_rate = np.empty(replicates), np.empty(replicates)
    at_once = max(_DRAWS_AT_ONCE // count, 1)
    for start in range(0, replicates, at_once):
        part = slice(start, min(start + at_once, replicates))
        draws = rng.integers(0, count, (part.stop - start, count))
        gain_bits[part] = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
        win_rate[part] = wins[draws].mean(axis=1)
    return Replicates(gain_bits=gain_bits, win_rate=win_rate)


def _percentiles(values: Floats, level: float) -> Interval:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
