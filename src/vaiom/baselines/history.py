"""Features of what an asset did up to a row, for baselines that read one row. Not in the paper.

Enters: columns of one asset, in time order. Leaves: columns (n,) of features, each known at its
row; NaN is a row without a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats
from vaiom.market.sessions import DAY, FIRST_MONDAY, WEEK

CYCLES = {"day": DAY, "week": WEEK}
SEASON_COUNT = 60
"""So many earlier days, or weeks, say what is usual in a slot."""
HISTORY_COLUMNS = ("timestamp", "ret_z", "relative_log_vol", "gap_z")
"""The stored columns that the features read."""

Ints = npt.NDArray[np.int64]


def history_features(
    columns: Mapping[str, npt.NDArray[Any]], returns: Floats, unit: Floats, step: int
) -> Iterator[tuple[str, Floats]]:
    """Name and column (n,) of each feature, from all rows (n,) of an asset.

    `returns` are NaN where not clean, `unit` is one over the row's `sigma20`, bars are `step`
    seconds apart. Numbers in the names are rows.
    """
    seconds = columns["timestamp"].astype(np.int64)
    volatility = columns["relative_log_vol"].astype(np.float64)
    gaps = columns["gap_z"].astype(np.float64)
    size = np.abs(returns)
    abs_z = np.where(np.isfinite(returns), np.abs(columns["ret_z"]), np.nan)
    for lag in (0, 1, 2, 3, 4, 5, 11, 22, 23, 24):
        yield f"return_lag_{lag}", lagged(returns, lag) * unit
    for window in (3, 6, 12, 24, 48, 120, 480, 2_400):
        yield f"abs_return_mean_{window}", rolling_mean(size, window) * unit
    for window in (3, 12, 24, 120):
        yield f"return_mean_{window}", rolling_mean(returns, window) * unit
    yield "abs_return_max_24", rolling_max(size, 24) * unit
    for lag in (1, 3, 6, 12, 24, 120):
        yield f"relative_log_vol_lag_{lag}", lagged(volatility, lag)
    for lag in (1, 2, 3):
        yield f"gap_z_lag_{lag}", lagged(gaps, lag)
    for lag in (1, 6, 24, 120):
        yield f"seconds_since_lag_{lag}", seconds - lagged(seconds.astype(np.float64), lag)
    slots = {cycle: slot_of_cycle(seconds, length, step) for cycle, length in CYCLES.items()}
    # The next slot by the clock: that of the target if no bar is skipped.
    following = {
        cycle: slot_of_cycle(seconds + step, length, step) for cycle, length in CYCLES.items()
    }
    for cycle, count in product(CYCLES, (1, 5, 20, 60)):
        usual = recent_mean(size, slots[cycle], following[cycle], count)
        yield f"next_slot_of_{cycle}_{count}", usual * unit
    for cycle in CYCLES:
        usual = recent_mean(abs_z, slots[cycle], following[cycle], SEASON_COUNT)
        yield f"next_slot_of_{cycle}_z", usual
    for cycle, window in product(CYCLES, (3, 12, 48)):
        forecast = seasonal_forecast(size, slots[cycle], following[cycle], window)
        yield f"season_of_{cycle}_{window}", forecast * unit
    for cycle in CYCLES:
        yield f"slot_of_{cycle}", slots[cycle].astype(np.float64)


def slot_of_cycle(seconds: Ints, length: int, step: int) -> Ints:
    """The slot of `step` seconds in a day or week of `length` seconds."""
    return (seconds - FIRST_MONDAY) % length // step


def seasonal_forecast(size: Floats, own_slot: Ints, target_slot: Ints, window: int) -> Floats:
    """The usual size of the target slot, times the mean ratio of the sizes of the last `window`
    rows to what is usual in their slots.
    """
    own_usual = recent_mean(size, own_slot, own_slot, SEASON_COUNT)
    target_usual = recent_mean(size, own_slot, target_slot, SEASON_COUNT)
    return target_usual * rolling_mean(size / own_usual, window)


def lagged(values: Floats, lag: int) -> Floats:
    """The value `lag` rows earlier, NaN before the first."""
    out = np.full(len(values), np.nan)
    out[lag:] = values[: max(len(values) - lag, 0)]
    return out


def rolling_mean(values: Floats, window: int) -> Floats:
    """Mean of the finite values among the last `window` rows, NaN where there is none."""
    end = np.arange(1, len(values) + 1)
    return _mean_between(values, np.maximum(end - window, 0), end)


def rolling_max(values: Floats, window: int) -> Floats:
    """Largest finite value among the last `window` rows, NaN where there is none."""
    finite = np.where(np.isfinite(values), values, -np.inf)
    padded = np.append(np.full(window - 1, -np.inf), finite)
    largest = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return np.where(np.isfinite(largest), largest, np.nan)


def recent_mean(values: Floats, own_slot: Ints, target_slot: Ints, count: int) -> Floats:
    """For each row, the mean of the finite values of the last `count` rows in its target slot.

    Rows up to itself count; NaN where none of them is in that slot.
    """
    out = np.full(len(values), np.nan)
    num_slots = int(max(own_slot.max(), target_slot.max())) + 1
    rows_of = _by_slot(own_slot, num_slots)
    targets_of = _by_slot(target_slot, num_slots)
    for rows, targets in zip(rows_of, targets_of, strict=True):
        end = np.searchsorted(rows, targets, side="right")
        out[targets] = _mean_between(values[rows], np.maximum(end - count, 0), end)
    return out


def _by_slot(slots: Ints, num_slots: int) -> list[Ints]:
    """The rows of each slot in order."""
    order = np.argsort(slots, kind="stable")
    return np.split(order, np.searchsorted(slots[order], np.arange(1, num_slots)))


def _mean_between(values: Floats, start: Ints, end: Ints) -> Floats:
    """Means of the finite values at positions start..end-1."""
    finite = np.isfinite(values)
    sums = np.append(0.0, np.cumsum(np.where(finite, values, 0.0)))
    counts = np.append(0, np.cumsum(finite))
    number = counts[end] - counts[start]
    return np.where(number > 0, (sums[end] - sums[start]) / np.maximum(number, 1), np.nan)
