"""What the formulas of the fields read: returns, gaps, ranges and volumes, and their means.

Enters: bars of one asset, many or a single one, and the asset's state before them. Leaves: one
value per bar, known when the bar closes, and the state after the last bar. Paper: Methods,
"Continuous dynamic features"; ranges, volumes and slots are ours.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from vaiom.features.asset_state import (
    LONG_SPAN,
    MEANS,
    SCALES,
    SHORT_SPAN,
    SLOT_QUANTITIES,
    AssetState,
)
from vaiom.features.recursions import (
    Ewma,
    Mean,
    Slots,
    average,
    floored_root,
    run_slots,
    running_mean,
    where,
)
from vaiom.features.typing import Bools, Floats, Ints

MAX_LOG_MOVE = 1.0
"""Larger moves between two bars are bad data."""
SLOT_LIMIT = 25.0
"""Values are clipped to this many times the week's mean, so that one outlier does not dominate its
slot for a year.
"""
PARKINSON = 4 * math.log(2)
"""The squared log range of a driftless walk, in units of its variance (Parkinson, 1980)."""

MIN_RANGE_SHARE = 0.05
"""A series of closes alone: of its moving bars so far, a smaller share has a range."""
MIN_MOVES_WITHOUT_RANGE = SHORT_SPAN
"""Moving bars by which a series can be known as one of closes alone."""


class BarArrays(NamedTuple):
    """Consecutive bars of one asset, or NumPy scalars of a single one; NaN where a price or the
    volume is missing.
    """

    seconds: Ints
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats


class BarQuantities:
    """One value per bar (N,), NaN where undefined; names with `_prev` are through the bar before.

    The scales are floored roots of EWMAs of squares, and the `_prev` form divides the bar's own
    return: ret_z = log_ret / sigma20_prev.
    """

    def __init__(self, bars: BarArrays, state: AssetState) -> None:
        self.bars = bars
        # A non-positive price counts as missing: it never makes an infinite return.
        close = where(bars.close > 0, bars.close, math.nan)
        open_ = where(bars.open > 0, bars.open, math.nan)
        is_array = isinstance(close, np.ndarray)
        if is_array:
            close_prev = np.concatenate([[state.close], close])[:-1]
        else:
            close_prev = np.asarray(state.close)[()]
        # np.isnan is ten times slower for one bar.
        self.missing = (open_ != open_) | (close != close)
        self.log_ret = np.log(close / close_prev)
        self.log_gap = np.log(open_ / close_prev)
        is_move = (self.log_ret != 0) & (abs(self.log_ret) <= MAX_LOG_MOVE)
        self.clean = ~self.missing & is_move
        self.clean_gap = ~self.missing & (abs(self.log_gap) <= MAX_LOG_MOVE)
        self.clean_ret = where(self.clean, self.log_ret, math.nan)
        new_clean = np.cumsum(self.clean) if is_array else self.clean
        num_clean = state.num_clean + new_clean
        self.num_clean_prev = num_clean - self.clean
        scales = self._run_scales(state.scales, is_array)
        self.means: dict[str, Floats] = {}
        self.means_prev: dict[str, Floats] = {}
        means = state.means
        slots = state.slots
        if slots is not None:
            means = self._run_means(means)
            slots = self._run_slots(slots)
        self.after = state
        if np.size(close):
            self.after = AssetState(
                close=close.item(-1),
                num_clean=num_clean.item(-1),
                scales=scales,
                means=means,
                slots=slots,
            )

    def _run_scales(self, state: dict[str, Ewma], is_array: bool) -> dict[str, Ewma]:
        """Run the paper's scales; return their states after the last bar."""
        clean_gap = where(self.clean_gap, self.log_gap, math.nan)
        # A product, not **2: a scalar's power rounds differently.
        self._squared_ret = self.clean_ret * self.clean_ret
        squares = {"ret": self._squared_ret, "gap": clean_gap * clean_gap}
        after = {}
        sigma: dict[str, Any] = {}
        sigma_prev: dict[str, Any] = {}
        for key, (name, span) in SCALES.items():
            mean_squares, after[key] = average(squares[name], span, state[key])
            if is_array:
                roots = floored_root(mean_squares)
                sigma_prev[key] = roots[:-1]
                sigma[key] = roots[1:]
            else:
                before, own = mean_squares
                sigma_prev[key] = floored_root(before)
                sigma[key] = floored_root(own)
        self.sigma20: Floats = sigma["ret20"]
        self.sigma20_prev: Floats = sigma_prev["ret20"]
        self.sigma120: Floats = sigma["ret120"]
        self.sigma_gap20_prev: Floats = sigma_prev["gap20"]
        return after

    def _run_means(self, state: dict[str, Mean]) -> dict[str, Mean]:
        """Run the means beyond the paper's; return their states after the last bar."""
        # A bar without range is no estimate, just as an exact zero is no return.
        ranges = where(self.log_range > 0, self.log_range, math.nan)
        self._sources = {
            "ret": self._squared_ret,
            "range": ranges * ranges / PARKINSON,
            "volume": self.volume,
        }
        after = {}
        for key, (name, span) in MEANS.items():
            means = running_mean(self._sources[name], span, state[key])
            self.means[key], self.means_prev[key], after[key] = means
        self.has_ranges = self._find_ranges(ranges, state["range120"].num_values)
        return after

    def _find_ranges(self, ranges: Floats, num_before: int) -> Bools:
        """Whether the series has ranges, from the bars so far: False in one of closes alone."""
        is_range = ranges == ranges
        new_ranges = np.cumsum(is_range) if isinstance(is_range, np.ndarray) else is_range
        num_ranges = num_before + new_ranges
        num_moves = self.num_clean_prev + self.clean
        is_new = num_moves < MIN_MOVES_WITHOUT_RANGE
        return cast(Bools, is_new | (num_ranges >= MIN_RANGE_SHARE * num_moves))

    def _run_slots(self, state: Slots) -> Slots:
        """Run the means by slot of the week; return their state after the last bar."""
        # Slots hold ratios to the current level: levels drift within months, the shape of the week
        # hardly does.
        ratios = np.array(
            [
                self._sources[name] / self.means_prev[f"{name}{LONG_SPAN}"]
                for name in SLOT_QUANTITIES
            ]
        )
        limited = np.minimum(ratios, SLOT_LIMIT)
        following, own_prev, after = run_slots(self.bars.seconds, limited, state)
        self.next_slot = dict(zip(SLOT_QUANTITIES, following, strict=True))
        self.own_slot_prev = dict(zip(SLOT_QUANTITIES, own_prev, strict=True))
        return after

    @cached_property
    def log_sigma20(self) -> Floats:
        """ln of the volatility through the bar."""
        return np.log(self.sigma20)

    @cached_property
    def log_range(self) -> Floats:
        """ln(High/Low) where both are positive, enclose Open and Close and are no further apart
        than a valid return.
        """
        _, open_, high, low, close, _ = self.bars
        log_range = np.log(high / low)
        holds_open = (low <= open_) & (open_ <= high)
        holds_close = (low <= close) & (close <= high)
        is_believable = (low > 0) & (log_range <= MAX_LOG_MOVE)
        return where(holds_open & holds_close & is_believable, log_range, math.nan)

    @cached_property
    def range_z(self) -> Floats:
        """The log range over `sigma20_prev`; without ranges, what the return lets expect."""
        ret_z = self.log_ret / self.sigma20_prev
        return either(self.has_ranges, self.log_range / self.sigma20_prev, expected_range_z(ret_z))

    @cached_property
    def close_location(self) -> Floats:
        """Position of the close in the bar's range, from -1 at the Low to 1 at the High; 0 if the
        range is 0. Without ranges, what the return lets expect.
        """
        _, _, high, low, close, _ = self.bars
        twice_above_middle = 2 * close - high - low
        location = where(high > low, twice_above_middle / (high - low), 0.0)
        known = where(self.log_range == self.log_range, location, math.nan)
        ret_z = self.log_ret / self.sigma20_prev
        return either(self.has_ranges, known, ret_z / expected_range_z(ret_z))

    @cached_property
    def long_range(self) -> Floats:
        """The mean range variance over 480 bars; without ranges, the long variance of returns."""
        return either(self.has_ranges, self.means["range480"], self.means["ret2400"])

    @cached_property
    def next_slot_ret(self) -> Floats:
        """The squared return that past weeks predict for the coming slot."""
        predicted: Floats = self.next_slot["ret"] * self.means["ret120"]
        return predicted

    @cached_property
    def next_slot_range(self) -> Floats:
        """The range variance that they predict; without ranges, the squared return."""
        predicted = self.next_slot["range"] * self.means["range120"]
        return either(self.has_ranges, predicted, self.next_slot_ret)

    @cached_property
    def volume(self) -> Floats:
        """The bar's volume where it is positive and finite."""
        volume = self.bars.volume
        is_known = (volume > 0) & (volume < math.inf)
        return where(is_known, volume, math.nan)

    @cached_property
    def activity(self) -> Floats:
        """The bar's volume divided by the mean volume of earlier bars."""
        return self.volume / self.means_prev["volume120"]


def either(condition: Bools, values: Floats, others: Floats) -> Floats:
    """`np.where` of two arrays, or of the scalars of one bar."""
    if isinstance(condition, np.ndarray):
        return cast(Floats, np.where(condition, values, others))
    return values if condition else others


def expected_range_z(ret_z: Floats) -> Floats:
    """The mean range of a driftless walk of volatility 1 that ends at `ret_z`.

    It is |z| + m(|z|) with the Mills ratio m of the normal distribution, here by its bound
    2 / (z + sqrt(z^2 + 8 / pi)), exact at 0. On average the walk goes as far beyond one end as
    beyond the other, so that it closes at z / range.
    """
    distance = abs(ret_z)
    beyond_ends = 2 / (distance + np.sqrt(distance * distance + 8 / math.pi))
    return distance + beyond_ends
