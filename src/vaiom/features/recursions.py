"""Exponentially weighted means that run over a history, new bars or one live bar.

Each takes arrays of many bars, or the NumPy scalars of one, and gives the same bits; one bar as
scalars costs a tenth of arrays. A state enters and the state after the last bar leaves. Paper:
Methods, "Return Bucket Construction" (scales); means by slot of the week are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar, cast

import numpy as np

from vaiom.codec import Stored
from vaiom.features.typing import AnyArray, Bools, Floats, Ints
from vaiom.market.sessions import (
    WEEK,
    next_open,
    next_open_around,
    open_slots,
    place_in_week,
    slots_per_week,
)

SCALE_FLOOR = 1e-8
"""A volatility is never smaller: quiet prices must not divide by zero."""
SLOT_WEEKS = 52
"""Span of the means by slot of the week, in weeks."""
LONG_SERIES = 500
"""Longer series are averaged by Polars, with the same bits; its start-up costs as much as a loop of
this length.
"""

NULL_IF_UNDEFINED = Stored(
    encode=lambda value: None if math.isnan(value) else value,
    decode=lambda value: math.nan if value is None else value,
)
"""JSON has no NaN."""

_MOST_MISSING = 10_000_000  # more rows than any history has: the past ages in a loop over them
_SLOT_ALPHA = 2 / (SLOT_WEEKS + 1)
_NO_WEEK = -(10**6)  # long before any week that can be stored

Numbers = TypeVar("Numbers", bound=AnyArray)


@dataclass(frozen=True, slots=True)
class Ewma:
    """The state of an EWMA whose past ages in rows without a value."""

    mean: Annotated[float, NULL_IF_UNDEFINED] = math.nan
    """NaN before the first value."""
    num_missing: int = 0
    """Rows without a value since the last one."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_missing < _MOST_MISSING:
            raise ValueError(f"{self.num_missing} rows without a value")


@dataclass(frozen=True, slots=True)
class Mean:
    """The state of an EWMA that rows without a value leave unchanged, started at 0."""

    level: float = 0.0
    num_values: int = 0
    """It gives the total weight of the values, by which the level is divided."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """The state of means by slot of the week, (quantities, slots) each, started at 0."""

    level: Floats
    count: Ints
    """Updates of each mean, which give the total weight of its values."""
    last_week: Ints
    """The number of the week that updated it last."""

    def __post_init__(self) -> None:
        shape = self.level.shape
        if len(shape) != 2 or not shape == self.count.shape == self.last_week.shape:
            raise ValueError("the tables of the slots have other shapes")

    @classmethod
    def empty(cls, num_quantities: int, step: int) -> Slots:
        """The state before the first row, for bars of `step` seconds."""
        shape = (num_quantities, slots_per_week(step))
        count = np.zeros(shape, np.int64)
        return cls(level=np.zeros(shape), count=count, last_week=np.full(shape, _NO_WEEK))

    def copy(self) -> Slots:
        """A state that may be changed in place."""
        last_week = self.last_week.copy()
        return Slots(level=self.level.copy(), count=self.count.copy(), last_week=last_week)

    @property
    def step(self) -> int:
        """Seconds of a slot."""
        return WEEK // int(self.level.shape[1])


def floored_root(mean_square: Floats) -> Floats:
    """A volatility from its square; NaN stays NaN."""
    if _is_array(mean_square):
        return np.maximum(SCALE_FLOOR, np.sqrt(mean_square))
    if not mean_square >= 0:
        return cast(Floats, np.float64(math.nan))
    root = math.sqrt(mean_square)
    return cast(Floats, np.float64(max(SCALE_FLOOR, root)))


def where(condition: Bools, values: Numbers, otherwise: float) -> Numbers:
    """`np.where`, much faster for one bar."""
    if _is_array(condition):
        return cast(Numbers, np.where(condition, values, otherwise))
    return values if condition else cast(Numbers, values.dtype.type(otherwise))


def average(
    values: Floats, span: int, state: Ewma, long_series: int = LONG_SERIES
) -> tuple[Any, Ewma]:
    """pandas' `ewm(span, adjust=False).mean()`, before the first row and through each (N + 1,).

    m = m + (x - m) w, with w = alpha = 2 / (span + 1) after a row with a value. NaN values only
    age the past: after n of them w = alpha / ((1 - alpha)^(n + 1) + alpha). Series longer than
    `long_series` are averaged by Polars.
    """
    if not _is_array(values):
        return _average_in_loop([float(values)], span, state)
    if len(values) > long_series:
        return _average_by_polars(values, span, state)
    out, after = _average_in_loop(values.tolist(), span, state)
    return np.array(out), after


def _average_in_loop(values: list[float], span: int, state: Ewma) -> tuple[list[float], Ewma]:
    mean = state.mean
    num_missing = state.num_missing
    alpha = 2 / (span + 1)
    usual_weight = _weight(alpha, 0)
    out = [mean]
    for value in values:
        is_value = value == value
        if is_value and mean != mean:
            mean = value
            num_missing = 0
        elif is_value:
            weight = _weight(alpha, num_missing) if num_missing else usual_weight
            mean += (value - mean) * weight
            num_missing = 0
        elif mean == mean:
            num_missing += 1
        out.append(mean)
    return out, Ewma(mean, num_missing)


def _average_by_polars(values: Floats, span: int, state: Ewma) -> tuple[Floats, Ewma]:
    import polars as pl

    replay = [state.mean, *[math.nan] * state.num_missing]
    replayed = np.concatenate([replay, values])
    series = pl.Series(replayed, nan_to_null=True)
    means = series.ewm_mean(span=span, adjust=False, ignore_nulls=False).to_numpy()
    num_missing = 0
    if series.null_count():
        # Polars leaves a gap where the value is missing, pandas carries the mean on.
        numbers = np.arange(len(means))
        known = np.where(means == means, numbers, 0)
        source = np.maximum.accumulate(known)
        means = means[source]
        if means[-1] == means[-1]:
            num_missing = int(numbers[-1] - source[-1])
    after = Ewma(float(means[-1]), num_missing)
    return means[len(replay) - 1 :], after


@lru_cache(maxsize=1024)
def _weight(alpha: float, num_missing: int) -> float:
    """Weight of a value after this many rows without one, during which the past has aged."""
    old = 1.0
    for _ in range(num_missing + 1):
        old *= 1 - alpha
    return alpha / (old + alpha)


def running_mean(values: Floats, span: int, state: Mean) -> tuple[Floats, Floats, Mean]:
    """pandas' `ewm(span, ignore_na=True).mean()` through each row and before it; NaN values leave
    it unchanged.
    """
    is_value: Bools = values == values
    start = Ewma(state.level)
    if not _is_array(values):
        (before, level), _ = average(values, span, start)
        count = state.num_values + int(is_value)
        mean = level / _known_weight(count, span)
        mean_prev = before / _known_weight(state.num_values, span)
        return mean, mean_prev, Mean(level, count)
    levels, _ = average(values[is_value], span, start)
    counts = state.num_values + np.arange(len(levels))
    means = levels / _total_weight(counts, span)
    place = np.cumsum(is_value)
    place_prev: Ints = place - is_value
    after = Mean(float(levels[-1]), int(counts[-1]))
    return means[place], means[place_prev], after


def _total_weight(counts: Ints, span: int) -> Floats:
    """Total weight of this many values in an EWMA started at 0."""
    log_decay = math.log1p(-2 / (span + 1))
    return cast(Floats, -np.expm1(counts * log_decay))


_known_weight = lru_cache(maxsize=1024)(_total_weight)


def run_slots(seconds: Ints, values: Floats, state: Slots) -> tuple[Floats, Floats, Slots]:
    """Means of `values` (quantities, N) by slot of the week, an EWMA over the weeks with a value.

    Leaves the mean of the next slot after each row, that of the row's own slot before the row
    (quantities, N), and the state. The next slot is the first later one, in weekly order, that was
    updated lately: after Friday's last bar it is Sunday's first, also in the weeks after a
    daylight-saving change has moved both.
    """
    week, slot = place_in_week(seconds, state.step)
    if not _is_array(seconds):
        return _run_bar(int(week), int(slot), values, state)
    mean_next = np.empty_like(values)
    own_prev = np.empty_like(values)
    # A sweep is a run of rows through increasing slots of one week, so that each slot is updated at
    # most once.
    is_new_week = np.diff(week, prepend=-1) != 0
    is_earlier_slot = np.diff(slot, prepend=-1) <= 0
    starts = np.flatnonzero(is_new_week | is_earlier_slot)
    ends = np.append(starts, len(seconds))
    for start, stop in pairwise(ends.tolist()):
        rows = slice(start, stop)
        own_week = int(week[start])
        following, before, state = _run_sweep(own_week, slot[rows], values[:, rows], state)
        mean_next[:, rows] = following
        own_prev[:, rows] = before
    return mean_next, own_prev, state


def _run_sweep(week: int, slot: Ints, values: Floats, state: Slots) -> tuple[Floats, Floats, Slots]:
    level = state.level[:, slot]
    count = state.count[:, slot]
    own_prev = level / _total_weight(count, SLOT_WEEKS)
    is_value = values == values
    quantity, row = np.nonzero(is_value)
    fed = (quantity, slot[row])
    after = state.copy()
    updated = level + _SLOT_ALPHA * (values - level)
    after.level[fed] = updated[is_value]
    after.count[fed] += 1
    fed_before = after.last_week[fed]
    after.last_week[fed] = np.maximum(fed_before, week)
    # The next slot is searched in this week, with the table before the sweep, then in the next week
    # up to the row's own slot, with the table after it.
    levels = np.concatenate([state.level, after.level], axis=1)
    counts = np.concatenate([state.count, after.count], axis=1)
    last_weeks = np.concatenate([state.last_week, after.last_week], axis=1)
    is_open = open_slots(last_weeks, week)
    following = next_open(is_open, slot)
    num_slots = state.level.shape[1]
    place = np.minimum(following, 2 * num_slots - 1)
    level_next = np.take_along_axis(levels, place, axis=1)
    count_next = np.take_along_axis(counts, place, axis=1)
    mean_next = level_next / _total_weight(count_next, SLOT_WEEKS)
    is_within_a_week = following <= slot + num_slots
    mean_next = np.where(is_within_a_week, mean_next, math.nan)
    return mean_next, own_prev, after


def _run_bar(week: int, slot: int, values: Floats, state: Slots) -> tuple[Any, Any, Slots]:
    """The sweep of one bar, which changes the bar's own slot alone."""
    after = state.copy()
    means = []
    own_prev = []
    tables = zip(values.tolist(), after.level, after.count, after.last_week, strict=True)
    for value, level, count, last_week in tables:
        weight = _known_weight(int(count[slot]), SLOT_WEEKS)
        own_prev.append(level[slot] / weight)
        if value == value:
            level[slot] += _SLOT_ALPHA * (value - level[slot])
            count[slot] += 1
            last_week[slot] = max(last_week[slot], week)
        is_open = open_slots(last_week, week)
        following = next_open_around(is_open, slot)
        if following is None:
            means.append(math.nan)
        else:
            weight = _known_weight(int(count[following]), SLOT_WEEKS)
            means.append(level[following] / weight)
    return means, own_prev, after


def _is_array(values: Any) -> bool:
    return isinstance(values, np.ndarray)
