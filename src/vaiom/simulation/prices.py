"""How a simulated asset is drawn, part by part: hidden states, closes, faults, and bars around.

Every part continues the random numbers, the walk and the filter of the part before, so that the
size of the parts changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.market.folder import BAR_SCHEMA, PRICE_COLUMNS
from vaiom.market.sessions import HOUR
from vaiom.simulation.hours import (
    Asset,
    BoolArray,
    calendar_profile,
    follows_closure,
    trading_stamps,
)
from vaiom.simulation.oracle import (
    UNIT_VARIANCE,
    Dynamics,
    Filter,
    FloatArray,
    IntArray,
    Truth,
)

if TYPE_CHECKING:
    from vaiom.simulation.market import MarketConfig

Draw = Callable[[int], NDArray[Any]]
"""The next random numbers of a sequence, this many."""

GAP_OF_MOVE = 0.6
"""After a closure a bar opens with this part of its move."""
GAP_OF_SCALE = 0.5
"""And with noise of this part of its scale."""
QUIET_GAP = 0.025
MAX_GAP = 0.5
WANDER = 0.8
"""Scale of the path inside a bar, in units of the bar's scale."""
FAULT_ERRORS = (np.nan, 10.0, 0.1)
"""A faulty row has no prices, or a misplaced decimal point."""


@dataclass(frozen=True, eq=False)
class SimulatedAsset:
    """All rows of an asset, or a part of them."""

    asset: Asset
    bars: pl.DataFrame
    truth: Truth


def simulate_parts(
    asset: Asset,
    config: MarketConfig,
    rng: np.random.Generator,
    factor: FloatArray,
    part_rows: int,
) -> Iterator[SimulatedAsset]:
    """The rows of one asset, in parts of `part_rows`.

    Parameters
    ----------
    rng : the asset's own random numbers, from which each quantity gets a sequence of its own
    factor : normal scores of the bars that all assets share, by the number of bars before the end;
        empty without correlation

    Yields each part with its bars, as a feed would print them, and its truth.
    """

    def draw(kind: str, *values: float) -> Draw:
        return _draw_in_parts(rng, config.bars, part_rows, kind, *values)

    faults = draw("random")
    noise = draw("standard_normal") if config.correlation else draw("standard_t", 4)
    chances = draw("random")
    around_close = [
        draw("standard_normal"),
        draw("standard_t", 3),
        draw("random"),
        draw("random"),
        draw("standard_normal"),
    ]
    slips = draw("integers", 0, len(FAULT_ERRORS))
    walk = _Walk(asset, config.dynamics)
    state_filter = Filter(asset.ticks_per_unit, config.dynamics)
    last_hour = np.datetime64(config.end, "h")
    step = np.timedelta64(config.step, "s")
    was_faulty = True
    last: Truth | None = None
    for start in range(0, config.bars, part_rows):
        count = min(part_rows, config.bars - start)
        lead = min(start, 1)  # one row before tells whether the first follows a closure
        first = start - lead
        stop = start + count + 1
        stamps = trading_stamps(asset, config.bars, config.step, config.end, first, stop)
        hourly = calendar_profile(asset, stamps)[lead:]
        profile = hourly * sqrt(config.step / HOUR)
        is_opening = follows_closure(stamps)[lead:-1]
        stamps = stamps[lead:-1]
        has_fault = faults(count) < config.faults_per_bar
        is_faulty = _alone(has_fault, was_faulty)
        was_faulty = bool(is_faulty[-1])
        shocks = noise(count)
        if config.correlation:
            bars_ago = (last_hour - stamps) // step
            shocks = _mixed(shocks, factor[bars_ago], config.correlation)
        shocks *= UNIT_VARIANCE
        ticks = walk.advance(profile, is_faulty, chances(count), shocks)
        close = ticks / asset.ticks_per_unit
        close[is_faulty] = np.nan
        timestamps = stamps.astype("datetime64[us]")
        truth = state_filter.observe(timestamps, close, profile)
        before = last or truth.rows(slice(1))
        drawn = [draw_part(count) for draw_part in around_close]
        bars = _bars_around(truth, before, asset, is_opening, drawn)
        fault = np.array(FAULT_ERRORS)[slips(count)]
        error = pl.Series(np.where(is_faulty, fault, 1.0))
        misprinted = pl.col(PRICE_COLUMNS) * error
        printed = bars.with_columns(misprinted.fill_nan(None))
        last = truth.rows(slice(-1, None))
        yield SimulatedAsset(asset, printed, truth)


def _draw_in_parts(
    rng: np.random.Generator, bars: int, part_rows: int, kind: str, *values: float
) -> Draw:
    """A sequence of the random numbers of all bars, to be drawn in parts.

    `rng` advances as if they had been drawn at once, so that what is drawn after them does not
    depend on the size of parts.
    """
    draw = getattr(deepcopy(rng), kind)
    skip = getattr(rng, kind)
    for start in range(0, bars, part_rows):
        size = min(part_rows, bars - start)
        skip(*values, size=size)
    return lambda size: draw(*values, size=size)


def _alone(is_faulty: BoolArray, was_faulty: bool) -> BoolArray:
    """Feed failures, never two in a row, which could hide each other."""
    for row in np.flatnonzero(is_faulty):
        follows_fault = is_faulty[row - 1] if row else was_faulty
        is_faulty[row] = not follows_fault
    return is_faulty


def _mixed(scores: FloatArray, factor: FloatArray, correlation: float) -> FloatArray:
    """Student-t noise of four degrees of freedom from an asset's own normal scores and the common
    factor of its bars.

    Scores are mixed by the correlation (a Gaussian copula), then become Student-t by their rank.
    """
    from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

    shared = sqrt(correlation) * factor
    own = sqrt(1 - correlation) * scores
    rank = ndtr(shared + own)
    return np.asarray(stdtrit(4, rank))


class _Walk:
    """The hidden state of an asset, its variance and its price in ticks, from bar to bar."""

    def __init__(self, asset: Asset, dynamics: Dynamics) -> None:
        self.dynamics = dynamics
        self.state = -1  # unknown before the first bar
        self.variance = 1.0
        self.start = round(asset.start * asset.ticks_per_unit)
        self.ticks = self.start

    def advance(
        self, profile: FloatArray, is_faulty: BoolArray, chances: FloatArray, noise: FloatArray
    ) -> IntArray:
        """The next closes in ticks: each move starts from the last rounded price.

        `profile` is the calendar scale of each bar, `chances` are uniform and move the hidden
        state. The very first price is given, and a faulty bar keeps the price.
        """
        dynamics = self.dynamics
        is_still = is_faulty.copy()
        is_still[0] |= self.state < 0
        states = self._draw_states(chances)
        drift = np.array(dynamics.drift)
        spread = np.array(dynamics.spread)
        moves = drift[states] + spread[states] * noise
        last = self.ticks
        variance = self.variance
        ticks = []
        rows = zip(is_still.tolist(), profile.tolist(), moves.tolist(), strict=False)
        for stays, calendar, move in rows:
            if not stays:
                pull = dynamics.pull * log(self.start / last)
                scale = calendar * sqrt(variance)
                price = last * exp(pull + scale * move)
                now = max(1, round(price))
                shock = log(now / last) / calendar
                variance = dynamics.next_variance(variance, shock)
                last = now
            ticks.append(last)
        self.ticks = last
        self.variance = variance
        return np.array(ticks)

    def _draw_states(self, chances: FloatArray) -> IntArray:
        """A path of the hidden Markov chain; the first state is drawn from the stationary one."""
        cumulative = np.cumsum(self.dynamics.transition, axis=1)
        is_passed = chances[:, None, None] >= cumulative[:, :-1]
        onward = is_passed.sum(axis=2)  # (N, K) from each state
        if self.state < 0:
            stationary = np.cumsum(self.dynamics.stationary())
            onward[0] = np.searchsorted(stationary[:-1], chances[0], side="right")
            self.state = 0
        # Most draws change no state.
        is_change = onward != np.arange(len(cumulative))
        changes = np.flatnonzero(is_change.any(axis=1))
        path = [self.state]
        for following in onward[changes].tolist():
            path.append(following[path[-1]])
        self.state = path[-1]
        durations = np.diff(changes, prepend=0, append=len(chances))
        return np.repeat(path, durations)


def _bars_around(
    truth: Truth, before: Truth, asset: Asset, is_opening: BoolArray, drawn: list[NDArray[Any]]
) -> pl.DataFrame:
    """Open, High, Low and Volume from closes and public scales alone.

    So bars tell nothing that closes do not, and the filter of `oracle` stays exact. Highs and lows
    are the extremes of a Brownian bridge from open to close, whose distribution has a closed form.
    """
    normal, student, above, below, busy = drawn
    close = truth.ticks.astype(np.float64)
    close_prev = np.append(before.ticks, close[:-1])
    move = np.log(close / close_prev)
    scale = np.append(before.scale, truth.scale[:-1])
    reopening = GAP_OF_MOVE * move + GAP_OF_SCALE * scale * normal
    quiet = QUIET_GAP * scale * student
    gap = np.where(is_opening, reopening, quiet)
    gap = np.clip(gap, -MAX_GAP, MAX_GAP)
    start = np.rint(close_prev * np.exp(gap))
    start = np.maximum(start, 1.0)
    # Extremes of a Brownian bridge between open and close; they enclose both.
    path = np.log(close / start)
    wander = -2.0 * (WANDER * scale) ** 2
    reach_above = np.sqrt(path**2 + wander * np.log(above))
    reach_below = np.sqrt(path**2 + wander * np.log(below))
    upward = (path + reach_above) / 2
    downward = (path - reach_below) / 2
    high = np.rint(start * np.exp(upward))
    low = np.rint(start * np.exp(downward))
    low = np.maximum(low, 1.0)
    activity = 0.5 * (scale + np.abs(move)) / asset.hourly_scale
    busyness = np.exp(0.3 * busy)
    volume = np.rint(1 + 3_000 * activity * busyness)
    prices = np.array([start, high, low, close]) / asset.ticks_per_unit
    columns = zip(BAR_SCHEMA, (truth.timestamps, *prices, volume), strict=True)
    return pl.DataFrame(dict(columns)).cast(BAR_SCHEMA)  # type: ignore[arg-type]
