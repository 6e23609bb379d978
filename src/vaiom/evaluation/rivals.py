"""Many models at once: the Diebold-Mariano test, the model confidence set, and seeds apart from samples.

The losses of all assets at one target time are averaged first, so that both tests see one series in the order of time
and assets of one hour never count as independent. Diebold and Mariano ask whether the mean difference is zero, with a
variance that allows for autocorrelation (Newey and West). The model confidence set of Hansen, Lunde and Nason holds,
with its stated confidence, the best of the models: whatever is not in it has been beaten. Several seeds of one
experiment differ by chance of training; that spread is reported apart from the chance of the sample.

Enters: bits per event of each model on the same events and their target times. Leaves: statistics and p-values.
Paper: three seeds beside each other ("Paired Test Uncertainty", last sentence); the two tests are additions.
NumPy alone, but for the model confidence set, which uses `arch`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.evaluation.bootstrap import REPLICATES, SEED, BlockInference, block_inference
from vaiom.evaluation.likelihood import Floats, paired_gain

CONFIDENCE_SET_SIZE = 0.10
CONFIDENCE_SET_REPLICATES = 1_000


@dataclass(frozen=True, kw_only=True)
class DieboldMariano:
    """Positive statistics favour the model; None where the difference never varies."""

    mean_gain_bits: float
    statistic: float | None
    p_value: float | None
    num_times: int
    num_lags: int


@dataclass(frozen=True, kw_only=True)
class ConfidenceSet:
    """The models that were not beaten at `size`, and the size at which each would leave the set."""

    included: list[str]
    p_values: dict[str, float]
    size: float
    block_size: int


@dataclass(frozen=True, kw_only=True)
class SeedSummary:
    """Runs that differ in their seed alone, beside one baseline."""

    bits: dict[str, float]
    mean_bits: float
    seed_sd_bits: float
    """Sample standard deviation of the runs' mean bits: the chance of training."""
    mean_gain_bits: float
    sampling_error_bits: float
    """Standard error of the runs' average gain over asset-months: the chance of the sample, training held fixed."""
    seeds_that_win: int
    average: BlockInference
    """Bootstrap of the gain averaged over the runs event by event."""


def by_time(losses: Floats, target_times: npt.NDArray[np.datetime64]) -> Floats:
    """Mean loss over the assets at each target time, earliest first."""
    _, time_of = np.unique(target_times, return_inverse=True)
    means: Floats = np.bincount(time_of, weights=losses) / np.bincount(time_of)
    return means


def newey_west_variance(values: Floats, num_lags: int) -> float:
    """Long-run variance with Bartlett weights; (T,) in the order of time."""
    centred = values - values.mean()
    total = float(centred @ centred)
    for lag in range(1, num_lags + 1):
        total += 2.0 * (1.0 - lag / (num_lags + 1)) * float(centred[lag:] @ centred[:-lag])
    return total / len(values)


def default_lags(num_times: int) -> int:
    """Newey and West's rule of thumb for the Bartlett kernel."""
    return min(int(4 * (num_times / 100) ** (2 / 9)), num_times - 1)


def diebold_mariano(
    model_bits: Floats,
    baseline_bits: Floats,
    target_times: npt.NDArray[np.datetime64],
    num_lags: int | None = None,
) -> DieboldMariano:
    """Test that model and baseline have the same expected loss, two-sided."""
    gains = by_time(baseline_bits - model_bits, target_times)
    lags = default_lags(len(gains)) if num_lags is None else num_lags
    variance = newey_west_variance(gains, lags)
    statistic = float(gains.mean()) / math.sqrt(variance / len(gains)) if variance > 0 else None
    return DieboldMariano(
        mean_gain_bits=float(gains.mean()),
        statistic=statistic,
        p_value=None if statistic is None else math.erfc(abs(statistic) / math.sqrt(2)),
        num_times=len(gains),
        num_lags=lags,
    )


def confidence_set(
    bits: Mapping[str, Floats],
    target_times: npt.NDArray[np.datetime64],
    *,
    size: float = CONFIDENCE_SET_SIZE,
    replicates: int = CONFIDENCE_SET_REPLICATES,
    seed: int = SEED,
) -> ConfidenceSet | None:
    """The models not beaten by another; None where `arch` is not installed or there are too few times or models."""
    series = {name: by_time(losses, target_times) for name, losses in bits.items()}
    # Equal losses have no variance to test with: such models share one place in the test and its answer.
    same = {name: next(other for other in series if np.array_equal(series[other], series[name])) for name in series}
    series = {name: series[name] for name in dict.fromkeys(same.values())}
    num_times = len(next(iter(series.values())))
    block_size = max(1, round(num_times ** (1 / 3)))
    arch = _arch_bootstrap()
    if arch is None or len(series) < 2 or num_times < 2 * block_size:
        return None
    names = list(series)
    # Columns without names are numbered by `arch`.
    test = arch.MCS(
        np.stack([series[name] for name in names], axis=1),
        size=size,
        reps=replicates,
        block_size=block_size,
        method="max",
        bootstrap="stationary",
        seed=seed,
    )
    test.compute()
    p_values = {names[int(index)]: float(value) for index, value in test.pvalues["Pvalue"].items()}
    return ConfidenceSet(
        included=[name for name in same if names.index(same[name]) in {int(index) for index in test.included}],
        p_values={name: p_values[same[name]] for name in same},
        size=size,
        block_size=block_size,
    )


def across_seeds(model_bits: Mapping[str, Floats], baseline_bits: Floats, blocks: npt.NDArray[np.int64]) -> SeedSummary:
    """Several runs of one experiment on the same events; `blocks` (n,) numbers the asset-months."""
    sizes = {name: len(losses) for name, losses in model_bits.items()}
    if len(sizes) < 2:
        raise DataError("a spread over seeds needs at least two runs", got=len(sizes))
    if set(sizes.values()) != {len(baseline_bits)}:
        raise DataError("the runs were not scored on the same events", expected=len(baseline_bits), got=sizes)
    means = {name: float(losses.mean()) for name, losses in model_bits.items()}
    average = np.mean(list(model_bits.values()), axis=0)
    gain = paired_gain(average, baseline_bits, blocks)
    baseline = float(baseline_bits.mean())
    return SeedSummary(
        bits=means,
        mean_bits=float(np.mean(list(means.values()))),
        seed_sd_bits=float(np.std(list(means.values()), ddof=1)),
        mean_gain_bits=gain.gain_bits,
        sampling_error_bits=gain.standard_error,
        seeds_that_win=sum(mean < baseline for mean in means.values()),
        average=block_inference(baseline_bits - average, blocks, replicates=REPLICATES),
    )


def _arch_bootstrap() -> Any:
    try:
        import arch.bootstrap
    except ImportError:
        return None
    return arch.bootstrap
