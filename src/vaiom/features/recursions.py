"""The inputs of the fields: returns, gaps, ranges and volumes, their EWMAs, and means by slot of
the week.

A history, new bars and one live bar run through the same code and give the same bits; one bar as
scalars costs a tenth of arrays. Paper: Methods, "Continuous dynamic features", "Return Bucket
Construction"; ranges and slots are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.market.sessions import (
    WEEK,
    next_open,
    next_open_around,
    open_slots,
    place_in_week,
    slots_per_week,
)

SHORT_SPAN = 20
LONG_SPAN = 120
SCALE_FLOOR = 1e-8
MAX_LOG_MOVE = 1.0

SCALES = {"ret20": ("ret", SHORT_SPAN), "ret120": ("ret", LONG_SPAN), "gap20": ("gap", SHORT_SPAN)}
"""The paper's EWMAs, of squared returns and gaps."""
MEANS = {"range20": ("range", 20), "range120": ("range", 120), "range480": ("range", 480)}
MEANS |= {"ret120": ("ret", 120), "ret2400": ("ret", 2400), "volume120": ("volume", 120)}
"""Running means of range variances, squared returns and volumes, for fields beyond the paper's."""
SLOT_QUANTITIES = ("ret", "range", "volume")
SLOT_LIMIT = 25.0
"""Values are clipped to this many times the week's mean, so that one outlier does not dominate its
slot for a year.
"""
SLOT_WEEKS = 52
PARKINSON = 4 * math.log(2)
"""The squared log range of a driftless walk, in units of its variance (Parkinson, 1980)."""

LONG_SERIES = 500
"""Longer series are averaged by Polars, with the same bits; its start-up costs as much as a loop of
this length.
"""

_SLOT_ALPHA = 2 / (SLOT_WEEKS + 1)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Numbers = TypeVar("Numbers", bound=npt.NDArray[Any])


class Bars(NamedTuple):
    """Consecutive bars of one asset, or NumPy scalars of a single one; NaN where a price or the
    volume is missing.
    """

    seconds: Ints
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats


class Ewma(NamedTuple):
    """State of an EWMA: its mean (NaN before the first value) and the number of rows without a
    value since the last.
    """

    mean: float = math.nan
    num_missing: int = 0


class Mean(NamedTuple):
    """An EWMA started at 0 and its number of values, which gives their total weight."""

    level: float = 0.0
    num_values: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """EWMAs by (quantity, slot of the week), started at 0, with update counts and the last week of
    each.
    """

    level: Floats
    count: Ints
    last_week: Ints

    @classmethod
    def empty(cls, num_quantities: int, step: int) -> Slots:
        """The table before the first row, for a timeframe of `step` seconds."""
        shape = (num_quantities, slots_per_week(step))
        never = np.full(shape, -(10**6))  # a week long before any that can be stored
        return cls(level=np.zeros(shape), count=np.zeros(shape, np.int64), last_week=never)

    def copy(self) -> Slots:
        return Slots(
            level=self.level.copy(), count=self.count.copy(), last_week=self.last_week.copy()
        )

    @property
    def step(self) -> int:
        """Seconds of a slot."""
        return WEEK // int(self.level.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetState:
    """The recursive state of an asset; `means` and `slots` only if fields beyond the paper's are
    needed.
    """

    close: float = math.nan
    num_clean: int = 0
    scales: Mapping[str, Ewma]
    means: Mapping[str, Mean]
    slots: Slots | None

    @classmethod
    def empty(cls, timeframe: timedelta | None) -> AssetState:
        """The state before the first bar; without a timeframe only that of the paper's fields."""
        return cls(
            scales=dict.fromkeys(SCALES, Ewma()),
            means=dict.fromkeys(MEANS, Mean()) if timeframe else {},
            slots=Slots.empty(len(SLOT_QUANTITIES), int(timeframe.total_seconds()))
            if timeframe
            else None,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit; undefined values are null."""

        def or_null(value: float) -> float | None:
            return None if math.isnan(value) else value

        value: dict[str, Any] = {"close": or_null(self.close), "num_clean": self.num_clean}
        value |= {
            name: [or_null(ewma.mean), ewma.num_missing] for name, ewma in self.scales.items()
        }
        if self.slots is None:
            return value
        means = {name: list(mean) for name, mean in self.means.items()}
        sigma20 = float(floored_root(np.float64(self.scales["ret20"].mean)))  # type: ignore[arg-type]
        tables = {name: table.tolist() for name, table in vars(self.slots).items()}
        return {**value, "extra": {"sigma20": or_null(sigma20), **means, "season": tables}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> AssetState:
        try:
            scales, means, slots = {}, {}, None
            for name in SCALES:
                mean, num_missing = value[name]
                if mean is not None and not 0 <= float(mean) < math.inf:
                    raise ValueError(f"{name} is a mean of squares")
                if not 0 <= int(num_missing) < 10_000_000:  # more than any history has
                    raise ValueError(f"{name} lacks {num_missing} values")
                scales[name] = Ewma(math.nan if mean is None else float(mean), int(num_missing))
            num_clean = int(value["num_clean"])
            if not 0 <= num_clean < 2**62:
                raise ValueError("num_clean is no count")
            if (extra := value.get("extra")) is not None:
                means = {name: Mean(float(extra[name][0]), int(extra[name][1])) for name in MEANS}
                level = np.array(extra["season"]["level"], np.float64)
                count, last_week = (
                    np.array(extra["season"][name], np.int64) for name in ("count", "last_week")
                )
                if (
                    not level.shape == count.shape == last_week.shape
                    or level.ndim != 2
                    or not level.size
                ):
                    raise ValueError("the tables of a season have one shape")
                slots = Slots(level=level, count=count, last_week=last_week)
            close = math.nan if value["close"] is None else float(value["close"])
            return cls(close=close, num_clean=num_clean, scales=scales, means=means, slots=slots)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError(
                "not the state of an asset", got=str(error), fix="build the corpus again"
            ) from error


class Series:
    """One value per bar, NaN where undefined, for formulas in `events.fields`; `_prev` is through
    the bar before.
    """

    def __init__(self, bars: Bars, state: AssetState) -> None:
        self.bars = bars
        # A non-positive price counts as missing: it never makes an infinite return.
        close = where(bars.close > 0, bars.close, math.nan)
        open_ = where(bars.open > 0, bars.open, math.nan)
        many = isinstance(close, np.ndarray)
        close_prev = (
            np.concatenate([[state.close], close])[:-1] if many else np.float64(state.close)
        )
        self.missing = (open_ != open_) | (
            close != close
        )  # np.isnan is ten times slower for one bar
        self.log_ret = np.log(close / close_prev)
        self.log_gap = np.log(open_ / close_prev)
        self.clean = ~self.missing & (self.log_ret != 0) & (abs(self.log_ret) <= MAX_LOG_MOVE)
        self.clean_gap = ~self.missing & (abs(self.log_gap) <= MAX_LOG_MOVE)
        self.clean_ret = where(self.clean, self.log_ret, math.nan)
        num_clean = state.num_clean + (np.cumsum(self.clean) if many else self.clean)
        self.num_clean_prev = num_clean - self.clean
        clean_gap = where(self.clean_gap, self.log_gap, math.nan)
        # A product, not **2: a scalar's power rounds differently.
        self._squares = {"ret": self.clean_ret * self.clean_ret, "gap": clean_gap * clean_gap}
        scales, sigma, sigma_prev = {}, dict[str, Floats](), dict[str, Floats]()
        for key, (name, span) in SCALES.items():
            levels, scales[key] = average(self._squares[name], span, state.scales[key])
            roots: Any = floored_root(levels) if many else [*map(floored_root, levels)]
            sigma_prev[key], sigma[key] = (roots[:-1], roots[1:]) if many else roots
        self.sigma20, self.sigma20_prev = sigma["ret20"], sigma_prev["ret20"]
        self.sigma120, self.sigma_gap20_prev = sigma["ret120"], sigma_prev["gap20"]
        self.means: dict[str, Floats] = {}
        self.means_prev: dict[str, Floats] = {}
        means, slots = (
            (state.means, None)
            if state.slots is None
            else self._run_extra(state.means, state.slots)
        )
        self.after = state
        if np.size(close):
            last, count = close.item(-1), num_clean.item(-1)
            self.after = AssetState(
                close=last, num_clean=count, scales=scales, means=means, slots=slots
            )

    @cached_property
    def log_sigma20(self) -> Floats:
        return np.log(self.sigma20)

    @cached_property
    def log_range(self) -> Floats:
        """ln(High/Low) where both are positive, enclose Open and Close and are no further apart
        than a valid return.
        """
        _, open_, high, low, close, _ = self.bars
        log_range = np.log(high / low)
        encloses = (low > 0) & (low <= open_) & (low <= close) & (open_ <= high) & (close <= high)
        return where(encloses & (log_range <= MAX_LOG_MOVE), log_range, math.nan)

    @cached_property
    def close_location(self) -> Floats:
        """Position of the close in the bar's range, from -1 at the Low to 1 at the High; 0 if the
        range is 0.
        """
        _, _, high, low, close, _ = self.bars
        location = where(high > low, (2 * close - high - low) / (high - low), 0.0)
        return where(self.log_range == self.log_range, location, math.nan)

    @cached_property
    def volume(self) -> Floats:
        """The bar's volume where it is positive and finite."""
        return where(
            (self.bars.volume > 0) & (self.bars.volume < math.inf), self.bars.volume, math.nan
        )

    @cached_property
    def activity(self) -> Floats:
        """The bar's volume divided by the mean volume of earlier bars."""
        return self.volume / self.means_prev["volume120"]

    def _run_extra(self, means: Mapping[str, Mean], slots: Slots) -> tuple[dict[str, Mean], Slots]:
        """Run the means, of all bars and by slot of the week; return their states after the last
        bar.
        """
        # A bar without range is no estimate, just as an exact zero is no return.
        ranges = where(self.log_range > 0, self.log_range, math.nan)
        sources = {
            "ret": self._squares["ret"],
            "range": ranges * ranges / PARKINSON,
            "volume": self.volume,
        }
        after = {}
        for key, (name, span) in MEANS.items():
            self.means[key], self.means_prev[key], after[key] = running_mean(
                sources[name], span, means[key]
            )
        # Slots hold ratios to the current level: levels drift within months, the shape of the week
        # hardly does.
        ratios = np.array(
            [sources[name] / self.means_prev[f"{name}{LONG_SPAN}"] for name in SLOT_QUANTITIES]
        )
        coming, own_prev, slots = run_slots(
            self.bars.seconds, np.minimum(ratios, SLOT_LIMIT), slots
        )
        self.next_slot = dict(zip(SLOT_QUANTITIES, coming, strict=True))
        self.own_slot_prev = dict(zip(SLOT_QUANTITIES, own_prev, strict=True))
        return after, slots


# What follows takes arrays of many bars, or the scalars of one.


def floored_root(mean_square: Floats) -> Floats:
    if _many(mean_square):
        return np.maximum(SCALE_FLOOR, np.sqrt(mean_square))  # NaN stays NaN
    return cast(
        Floats,
        np.float64(max(SCALE_FLOOR, math.sqrt(mean_square)) if mean_square >= 0 else math.nan),
    )


def _many(values: Any) -> bool:
    return isinstance(values, np.ndarray)


def where(condition: Bools, values: Numbers, otherwise: float) -> Numbers:
    """`np.where`, much faster for one bar."""
    if _many(condition):
        return cast(Numbers, np.where(condition, values, otherwise))
    return values if condition else cast(Numbers, values.dtype.type(otherwise))


def average(values: Floats, span: int, state: Ewma) -> tuple[Any, Ewma]:
    """pandas' `ewm(span, adjust=False).mean()`, before the first row and through each; NaN values
    only age the past.
    """
    mean, num_missing = state
    if _many(values) and len(values) > LONG_SERIES:
        import polars as pl

        replay = [mean, *[math.nan] * num_missing]
        series = pl.Series(np.concatenate([replay, values]), nan_to_null=True)
        smooth, num_missing = (
            series.ewm_mean(span=span, adjust=False, ignore_nulls=False).to_numpy(),
            0,
        )
        if series.null_count():
            # Polars leaves a gap where the value is missing, pandas carries the mean on.
            at = np.maximum.accumulate(np.where(smooth == smooth, np.arange(len(smooth)), 0))
            smooth = smooth[at]
            num_missing = len(at) - 1 - int(at[-1]) if smooth[-1] == smooth[-1] else 0
        return smooth[len(replay) - 1 :], Ewma(float(smooth[-1]), num_missing)
    alpha = 2 / (span + 1)
    out, usual = [mean], _weight(alpha, 0)
    for value in values.tolist() if _many(values) else [float(values)]:
        if value == value:
            weight = _weight(alpha, num_missing) if num_missing else usual
            mean = value if mean != mean else mean + (value - mean) * weight
            num_missing = 0
        elif mean == mean:
            num_missing += 1
        out.append(mean)
    return np.array(out) if _many(values) else out, Ewma(mean, num_missing)


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
    seen: Bools = values == values
    if not _many(values):
        (before, level), _ = average(values, span, Ewma(state.level))
        count = state.num_values + int(seen)
        prev = before / _known_weight(state.num_values, span)
        return level / _known_weight(count, span), prev, Mean(level, count)
    levels, _ = average(values[seen], span, Ewma(state.level))
    counts = state.num_values + np.arange(len(levels))
    mean, at = levels / _weight_of(counts, span), np.cumsum(seen)
    return mean[at], mean[at - seen], Mean(float(levels[-1]), int(counts[-1]))


def _weight_of(counts: Ints, span: int) -> Floats:
    """Total weight of this many values in an EWMA started at 0."""
    return cast(Floats, -np.expm1(counts * math.log1p(-2 / (span + 1))))


_known_weight = lru_cache(maxsize=1024)(_weight_of)


def run_slots(seconds: Ints, values: Floats, state: Slots) -> tuple[Floats, Floats, Slots]:
    """Slot means of `values` (quantities, N): of the next slot, of the row's own slot before the
    row, and the state.

    A slot is one step of the timeframe in the week of the stored clock; its mean is an EWMA over
    the weeks that updated it. The next slot is the first later one, in weekly order, that was
    updated lately: after Friday's last bar it is Sunday's first, also in the weeks after a
    daylight-saving change has moved both.
    """
    week, slot = place_in_week(seconds, state.step)
    if not _many(seconds):
        return _run_bar(int(week), int(slot), values, state)
    coming, own_prev = np.empty_like(values), np.empty_like(values)
    # A sweep is a run of rows through increasing slots of one week, so that each slot is updated at
    # most once.
    cuts = 1 + np.flatnonzero((np.diff(week) != 0) | (np.diff(slot) <= 0))
    for start, stop in pairwise([0, *cuts.tolist(), len(seconds)] if len(seconds) else []):
        rows = slice(start, stop)
        coming[:, rows], own_prev[:, rows], state = _run_sweep(
            int(week[start]), slot[rows], values[:, rows], state
        )
    return coming, own_prev, state


def _run_sweep(week: int, slot: Ints, values: Floats, state: Slots) -> tuple[Floats, Floats, Slots]:
    level, count, last_week = state.level[:, slot], state.count[:, slot], state.last_week[:, slot]
    fed = values == values
    after = state.copy()
    after.level[:, slot] = np.where(fed, level + _SLOT_ALPHA * (values - level), level)
    after.count[:, slot] = count + fed
    after.last_week[:, slot] = np.where(fed, np.maximum(last_week, week), last_week)

    # The next slot is searched in this week, with the table before the sweep, then in the next week
    # up to the row's own slot, with the table after it.
    def weeks(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(state, name), getattr(after, name)], axis=1)

    num_quantities, num_slots = state.level.shape
    none = 2 * num_slots
    coming = next_open(open_slots(weeks("last_week"), week), slot)
    at = np.arange(num_quantities)[:, None], np.minimum(coming, none - 1)
    mean = weeks("level")[at] / _weight_of(weeks("count")[at], SLOT_WEEKS)
    return (
        np.where(coming <= slot + num_slots, mean, math.nan),
        level / _weight_of(count, SLOT_WEEKS),
        after,
    )


def _run_bar(week: int, slot: int, values: Floats, state: Slots) -> tuple[Any, Any, Slots]:
    """The sweep of one bar, which changes the bar's own slot alone."""
    after = state.copy()
    coming, own_prev = [], []
    for value, level, count, last_week in zip(values.tolist(), *vars(after).values(), strict=True):
        own_prev.append(level[slot] / _known_weight(int(count[slot]), SLOT_WEEKS))
        if value == value:
            level[slot] += _SLOT_ALPHA * (value - level[slot])
            count[slot] += 1
            last_week[slot] = max(last_week[slot], week)
        following = next_open_around(open_slots(last_week, week), slot)
        known = following is not None
        coming.append(
            level[following] / _known_weight(int(count[following]), SLOT_WEEKS)
            if known
            else math.nan
        )
    return coming, own_prev, after
