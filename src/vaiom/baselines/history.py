"""Features of what an asset did up to a row, for baselines that read one row. Not in the paper.

Enters: columns of one asset, in time order. Leaves: columns (n,) of features, each known at its
row; NaN is a row without a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

# Lags and windows are in rows.
RETURN_LAGS = (0, 1, 2, 3, 4, 5, 11, 22, 23, 24)
SIZE_WINDOWS = (3, 6, 12, 24, 48, 120, 480, 2_400)
DRIFT_WINDOWS = (3, 12, 24, 120)
MAX_WINDOW = 24
VOLATILITY_LAGS = (1, 3, 6, 12, 24, 120)
GAP_LAGS = (1, 2, 3)
TIME_LAGS = (1, 6, 24, 120)
SLOT_COUNTS = (1, 5, 20, 60)
"""How many earlier days, or weeks, a mean over the next slot takes."""
SEASON_WINDOWS = (3, 12, 48)

Ints = npt.NDArray[np.int64]
Features = Iterator[tuple[str, Floats]]
"""Name and column (n,) of each feature."""


def history_features(
    columns: Mapping[str, npt.NDArray[Any]], returns: Floats, unit: Floats, step: int
) -> Features:
    """Name and column (n,) of each feature, from all rows (n,) of an asset.

    `returns` are NaN where not clean, `unit` is one over the row's `sigma20`, bars are `step`
    seconds apart. Numbers in the names are rows.
    """
    size = np.abs(returns)
    abs_z = np.where(np.isfinite(returns), np.abs(columns["ret_z"]), np.nan)
    yield from _return_features(returns, size, unit)
    yield from _state_features(columns)
    seconds = columns["timestamp"].astype(np.int64)
    slots = {}
    for cycle, length in CYCLES.items():
        own = slot_of_cycle(seconds, length, step)
        # The next slot by the clock: that of the target if no bar is skipped.
        following = slot_of_cycle(seconds + step, length, step)
        slots[cycle] = own, following
    for cycle, (own, following) in slots.items():
        for count in SLOT_COUNTS:
            usual = recent_mean(size, own, following, count)
            yield f"next_slot_of_{cycle}_{count}", usual * unit
    for cycle, (own, following) in slots.items():
        usual = recent_mean(abs_z, own, following, SEASON_COUNT)
        yield f"next_slot_of_{cycle}_z", usual
    for cycle, (own, following) in slots.items():
        for window in SEASON_WINDOWS:
            forecast = seasonal_forecast(size, own, following, window)
            yield f"season_of_{cycle}_{window}", forecast * unit
    for cycle, (own, _) in slots.items():
        yield f"slot_of_{cycle}", own.astype(np.float64)


def _return_features(returns: Floats, size: Floats, unit: Floats) -> Features:
    """Past returns and means of them and of their sizes, in units of `sigma20`."""
    for lag in RETURN_LAGS:
        past = lagged(returns, lag)
        yield f"return_lag_{lag}", past * unit
    for window in SIZE_WINDOWS:
        mean_size = rolling_mean(size, window)
        yield f"abs_return_mean_{window}", mean_size * unit
    for window in DRIFT_WINDOWS:
        mean = rolling_mean(returns, window)
        yield f"return_mean_{window}", mean * unit
    largest = rolling_max(size, MAX_WINDOW)
    yield f"abs_return_max_{MAX_WINDOW}", largest * unit


def _state_features(columns: Mapping[str, npt.NDArray[Any]]) -> Features:
    """Past volatilities and gaps, and the time since past rows."""
    volatility = columns["relative_log_vol"].astype(np.float64)
    for lag in VOLATILITY_LAGS:
        yield f"relative_log_vol_lag_{lag}", lagged(volatility, lag)
    gaps = columns["gap_z"].astype(np.float64)
    for lag in GAP_LAGS:
        yield f"gap_z_lag_{lag}", lagged(gaps, lag)
    seconds = columns["timestamp"].astype(np.int64).astype(np.float64)
    for lag in TIME_LAGS:
        yield f"seconds_since_lag_{lag}", seconds - lagged(seconds, lag)


def slot_of_cycle(seconds: Ints, length: int, step: int) -> Ints:
    """The slot of `step` seconds in a day or week of `length` seconds."""
    return (seconds - FIRST_MONDAY) % length // step


def seasonal_forecast(size: Floats, own_slot: Ints, target_slot: Ints, window: int) -> Floats:
    """The usual size of the target slot, times the mean ratio of the sizes of the last `window`
    rows to what is usual in their slots.
    """
    own_usual = recent_mean(size, own_slot, own_slot, SEASON_COUNT)
    target_usual = recent_mean(size, own_slot, target_slot, SEASON_COUNT)
    recent_ratio = rolling_mean(size / own_usual, window)
    return target_usual * recent_ratio


def lagged(values: Floats, lag: int) -> Floats:
    """The value `lag` rows earlier, NaN before the first."""
    before = np.full(lag, np.nan)
    return np.append(before, values)[: len(values)]


def rolling_mean(values: Floats, window: int) -> Floats:
    """Mean of the finite values among the last `window` rows, NaN where there is none."""
    end = np.arange(1, len(values) + 1)
    return _mean_before(values, end, window)


def rolling_max(values: Floats, window: int) -> Floats:
    """Largest finite value among the last `window` rows, NaN where there is none."""
    finite = np.where(np.isfinite(values), values, -np.inf)
    before = np.full(window - 1, -np.inf)
    padded = np.append(before, finite)
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)
    largest = windows.max(axis=1)
    return np.where(np.isfinite(largest), largest, np.nan)


def recent_mean(values: Floats, own_slot: Ints, target_slot: Ints, count: int) -> Floats:
    """For each row, the mean of the finite values of the last `count` rows in its target slot.

    Rows up to itself count; NaN where none of them is in that slot.
    """
    out = np.full(len(values), np.nan)
    last_slot = max(own_slot.max(), target_slot.max())
    num_slots = int(last_slot) + 1
    rows_of = _by_slot(own_slot, num_slots)
    targets_of = _by_slot(target_slot, num_slots)
    for rows, targets in zip(rows_of, targets_of, strict=True):
        end = np.searchsorted(rows, targets, side="right")
        out[targets] = _mean_before(values[rows], end, count)
    return out


def _by_slot(slots: Ints, num_slots: int) -> list[Ints]:
    """The rows of each slot in order."""
    order = np.argsort(slots, kind="stable")
    later_slots = np.arange(1, num_slots)
    starts = np.searchsorted(slots[order], later_slots)
    return np.split(order, starts)


def _mean_before(values: Floats, end: Ints, count: int) -> Floats:
    """Means of the finite ones among the last `count` values before each position `end`."""
    start = np.maximum(end - count, 0)
    finite = np.isfinite(values)
    filled = np.where(finite, values, 0.0)
    sums = np.append(0.0, np.cumsum(filled))
    counts = np.append(0, np.cumsum(finite))
    total = sums[end] - sums[start]
    number = counts[end] - counts[start]
    mean = total / np.maximum(number, 1)
    return np.where(number > 0, mean, np.nan)
