"""Paired inference: block bootstrap, Diebold-Mariano test, model confidence set, spread over seeds.

Enters: losses of predictors on the same events. Leaves: gains with intervals. `docs/evaluation.md`
defines each figure. Paper: Methods, "Paired Test Uncertainty"; Appendix, "Asset-Month Block
Bootstrap"; the two tests are additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats
from vaiom.errors import DataError
from vaiom.evaluation.scores import MODEL, Labels, ScoredEvents, Times, tail_masks

REPLICATES = 10_000
SEED = 17
LEVEL = 0.95
"""Of every interval."""
CONFIDENCE_SET_SIZE = 0.10
CONFIDENCE_SET_REPLICATES = 1_000

_DRAWS_AT_ONCE = 4_000_000
"""Drawn blocks that are held in memory."""

Interval = tuple[float, float]
Blocks = npt.NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class BlockBootstrap:
    """Gain and win-rate over one kind of blocks, with percentile intervals.

    A single block leaves nothing to resample, and no interval.
    """

    num_blocks: int
    block_wins: int
    """Blocks with a positive gain."""
    win_rate: float
    interval: Interval | None
    """Of the mean gain per event."""
    win_rate_interval: Interval | None

    @property
    def wins(self) -> tuple[int, int]:
        """Blocks won, of all blocks."""
        return self.block_wins, self.num_blocks


@dataclass(frozen=True, kw_only=True)
class TailMean:
    """The mean gain over the events that ended in a tail; None where none did."""

    num_events: int | None
    """None in records that counted both tails together alone."""
    gain_bits: float | None


@dataclass(frozen=True, kw_only=True)
class PairedGain:
    """Loss of a baseline less that of the model in bits per event: positive favours the model."""

    num_events: int
    gain_bits: float
    asset_months: BlockBootstrap
    months: BlockBootstrap
    tails: dict[str, TailMean]


@dataclass(frozen=True, kw_only=True)
class DieboldMariano:
    """The test of equal expected losses (Diebold and Mariano 1995).

    Positive statistics favour the model; None where the difference never varies.
    """

    mean_gain_bits: float
    statistic: float | None
    p_value: float | None
    num_times: int
    num_lags: int


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """The model and one baseline on the same events."""

    baseline: str
    gain: PairedGain
    diebold_mariano: DieboldMariano


@dataclass(frozen=True, kw_only=True)
class ConfidenceSet:
    """The model confidence set (Hansen, Lunde and Nason 2011): the models that no other has beaten
    at `size`, and the size at which each would leave the set.
    """

    included: list[str]
    p_values: dict[str, float]
    size: float
    block_size: int

    @classmethod
    def of(cls, bits: Mapping[str, Floats], target_times: Times) -> Self | None:
        """The set of the models with these losses (n,), averaged over the assets of each time.

        None where `arch` is not installed or there are too few times or models.
        """
        try:
            from arch.bootstrap import MCS
        except ImportError:
            return None
        series = {name: mean_by_time(values, target_times) for name, values in bits.items()}
        # Equal losses have no variance to test with: such models share the place of the first.
        first_alike = {
            name: next(other for other in series if np.array_equal(series[other], losses))
            for name, losses in series.items()
        }
        names = list(dict.fromkeys(first_alike.values()))
        num_times = len(series[names[0]])
        block_size = max(1, round(num_times ** (1 / 3)))
        if len(names) < 2 or num_times < 2 * block_size:
            return None
        # Columns without names are numbered by `arch`.
        losses = np.stack([series[name] for name in names], axis=1)
        test = MCS(
            losses,
            CONFIDENCE_SET_SIZE,
            CONFIDENCE_SET_REPLICATES,
            block_size,
            method="max",
            bootstrap="stationary",
            seed=SEED,
        )
        test.compute()
        included = {names[int(str(index))] for index in test.included}
        p_values = {
            names[int(index)]: float(value) for index, value in test.pvalues["Pvalue"].items()
        }
        return cls(
            included=[name for name, first in first_alike.items() if first in included],
            p_values={name: p_values[first] for name, first in first_alike.items()},
            size=CONFIDENCE_SET_SIZE,
            block_size=block_size,
        )


@dataclass(frozen=True, kw_only=True)
class SeedSummary:
    """Runs that differ in their seed alone, compared with one baseline."""

    bits: dict[str, float]
    mean_bits: float
    seed_sd_bits: float
    """Sample standard deviation of the runs' mean bits: the chance of training."""
    mean_gain_bits: float
    sampling_error_bits: float
    """Standard error of the runs' average gain over asset-months: the chance of the sample,
    training held fixed.
    """
    seeds_that_win: int
    average: BlockBootstrap
    """Of the gain averaged over the runs event by event."""


def compare(events: ScoredEvents) -> list[PairedComparison]:
    """Compare the model with every baseline on the events."""
    comparisons = []
    for name, losses in events.bits.items():
        if name != MODEL:
            test = diebold_mariano(events.bits[MODEL], losses, events.target_times)
            gain = paired_gain(events, name)
            comparisons.append(PairedComparison(baseline=name, gain=gain, diebold_mariano=test))
    return comparisons


def paired_gain(events: ScoredEvents, baseline: str) -> PairedGain:
    """The paper's figures for a model and one baseline, and month-clustered intervals."""
    if not len(events):
        expected = "at least one scored event"
        raise DataError("there is no event to compare on", expected=expected)
    gains = events.bits[baseline] - events.bits[MODEL]
    months = events.target_times.astype("datetime64[M]").astype(np.int64)
    tails = {}
    for name, mask in tail_masks(events.buckets).items():
        gain = float(gains[mask].mean()) if mask.any() else None
        tails[name] = TailMean(num_events=int(mask.sum()), gain_bits=gain)
    return PairedGain(
        num_events=len(gains),
        gain_bits=float(gains.mean()),
        asset_months=bootstrap_blocks(gains, asset_months(events.symbols, events.target_times)),
        months=bootstrap_blocks(gains, months),
        tails=tails,
    )


def asset_months(assets: Labels, target_times: Times) -> Blocks:
    """A number for the asset and the calendar month of each event's target, (n,): months first,
    then assets.
    """
    months = target_times.astype("datetime64[M]").astype(np.int64)
    names, asset = np.unique(assets, return_inverse=True)
    return np.asarray(months * len(names) + asset)


def bootstrap_blocks(
    gains: Floats, blocks: Blocks, *, replicates: int = REPLICATES, seed: int = SEED
) -> BlockBootstrap:
    """Percentile intervals of the event-weighted mean of `gains` and of the win-rate over `blocks`,
    both (n,).
    """
    sums, sizes = block_sums(gains, blocks)
    wins = sums > 0
    interval = None
    win_rate_interval = None
    if len(sums) > 1:
        mean_gains, win_rates = resample(sums, sizes, replicates, seed)
        interval = _percentile_interval(mean_gains)
        win_rate_interval = _percentile_interval(win_rates)
    return BlockBootstrap(
        num_blocks=len(sums),
        block_wins=int(wins.sum()),
        win_rate=float(wins.mean()),
        interval=interval,
        win_rate_interval=win_rate_interval,
    )


def _percentile_interval(resampled: Floats) -> Interval:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


def block_sums(gains: Floats, blocks: Blocks) -> tuple[Floats, Floats]:
    """Total gain and number of events of each block, in the order of the block numbers."""
    _, block_of = np.unique(blocks, return_inverse=True)
    sums = np.bincount(block_of, weights=gains)
    sizes = np.bincount(block_of)
    return sums.astype(np.float64), sizes.astype(np.float64)


def resample(
    sums: Floats, sizes: Floats, replicates: int = REPLICATES, seed: int = SEED
) -> tuple[Floats, Floats]:
    """Resampled mean gains and win-rates, (R,) each; of a drawn block only its sum and size are
    needed.
    """
    count = len(sums)
    rng = np.random.default_rng(seed)
    wins = (sums > 0).astype(np.float64)
    gains = np.empty(replicates)
    win_rates = np.empty(replicates)
    at_once = max(_DRAWS_AT_ONCE // count, 1)
    for start in range(0, replicates, at_once):
        part = slice(start, min(start + at_once, replicates))
        draws = rng.integers(0, count, (part.stop - start, count))
        gains[part] = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
        win_rates[part] = wins[draws].mean(axis=1)
    return gains, win_rates


def standard_error(gains: Floats, clusters: Blocks) -> float:
    """Standard error of the mean of `gains` (n,), where events of one cluster may be dependent.

    With G clusters and their sums s of deviations, it is sqrt(G / (G - 1) sum(s^2)) / n.
    """
    sums, _ = block_sums(gains - gains.mean(), clusters)
    if len(sums) < 2:
        raise ValueError("a standard error needs at least two clusters")
    variance = len(sums) / (len(sums) - 1) * float(np.sum(sums**2)) / len(gains) ** 2
    return float(variance**0.5)


def mean_by_time(losses: Floats, target_times: Times) -> Floats:
    """Mean loss over the assets at each target time, earliest first."""
    _, time_of = np.unique(target_times, return_inverse=True)
    return np.asarray(np.bincount(time_of, weights=losses) / np.bincount(time_of))


def newey_west_variance(values: Floats, num_lags: int) -> float:
    """Long-run variance of values (T,) in time order: Bartlett weights (Newey and West 1987)."""
    centred = values - values.mean()
    total = float(centred @ centred)
    for lag in range(1, num_lags + 1):
        total += 2.0 * (1.0 - lag / (num_lags + 1)) * float(centred[lag:] @ centred[:-lag])
    return total / len(values)


def diebold_mariano(
    model_bits: Floats, baseline_bits: Floats, target_times: Times
) -> DieboldMariano:
    """Test that model and baseline have the same expected loss, two-sided.

    The statistic is of the mean loss of each target time, which averages over assets.
    """
    gains = mean_by_time(baseline_bits - model_bits, target_times)
    # The rule of thumb of Newey and West (1994).
    lags = min(int(4 * (len(gains) / 100) ** (2 / 9)), len(gains) - 1)
    variance = newey_west_variance(gains, lags)
    statistic = float(gains.mean()) / math.sqrt(variance / len(gains)) if variance > 0 else None
    return DieboldMariano(
        mean_gain_bits=float(gains.mean()),
        statistic=statistic,
        p_value=None if statistic is None else math.erfc(abs(statistic) / math.sqrt(2)),
        num_times=len(gains),
        num_lags=lags,
    )


def compare_seeds(events: ScoredEvents, runs: dict[str, Floats]) -> dict[str, SeedSummary] | None:
    """Compare several runs with each baseline on the same events; `runs` has the model's bits in
    each.
    """
    blocks = asset_months(events.symbols, events.target_times)
    if len(np.unique(blocks)) < 2:
        return None
    mean_bits = {name: float(losses.mean()) for name, losses in runs.items()}
    means = np.array(list(mean_bits.values()))
    average = np.mean(list(runs.values()), axis=0)
    summaries = {}
    for name, losses in events.bits.items():
        if name == MODEL:
            continue
        gains = losses - average
        summaries[name] = SeedSummary(
            bits=mean_bits,
            mean_bits=float(means.mean()),
            seed_sd_bits=float(means.std(ddof=1)),
            mean_gain_bits=float(gains.mean()),
            sampling_error_bits=standard_error(gains, blocks),
            seeds_that_win=int((means < losses.mean()).sum()),
            average=bootstrap_blocks(gains, blocks),
        )
    return summaries
