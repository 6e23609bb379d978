"""The simulated market's exact distribution of the next close, given what anyone can observe. NumPy alone.

The next move is `pull + scale * (drift[s] + spread[s] * e)`, with s the hidden state and e a Student t of four degrees
of freedom and unit variance; the weak pull towards the first close keeps long histories at sensible prices. The price
is rounded to its tick, so the probability of a range of next closes is a sum of differences of the distribution
function. The states are filtered with those same probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite, log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vaiom.errors import DataError
from vaiom.files import BAD_ARRAYS, atomic_file, read_arrays

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TRUTH_FOLDER = "truth"
FAULT_LIMIT = 1.0
"""A close further than this from the last good one, in log units, is a faulty print: the price did not move."""

_UNIT_VARIANCE = sqrt(0.5)  # a Student t with four degrees of freedom has variance two


def require(*demands: tuple[bool, str]) -> None:
    """Raise a ValueError with the message of the first demand that is not met."""
    for met, message in demands:
        if not met:
            raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """How a price moves: hidden states, and a variance that follows the observed, de-seasonalised returns."""

    spread: tuple[float, ...] = (0.65, 0.97, 1.35)
    drift: tuple[float, ...] = (0.02, 0.0, -0.03)
    transition: tuple[tuple[float, ...], ...] = ((0.98, 0.02, 0.0), (0.015, 0.97, 0.015), (0.0, 0.03, 0.97))
    shock_weight: float = 0.05
    memory: float = 0.93
    pull: float = 1e-4
    variance_bounds: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        states, chances = len(self.spread), self.transition
        weights, (low, high) = (self.shock_weight, self.memory), self.variance_bounds
        of_chances = [len(row) == states and min(row) >= 0 and abs(sum(row) - 1) <= 1e-12 for row in chances]
        require(
            (len(self.drift) == len(chances) == states, "spread, drift and transition must have one entry per state"),
            (all(of_chances), "each row of transition must hold one probability per hidden state, summing to one"),
            (min(self.spread) > 0, "spread must be positive"),
            (
                min(weights) >= 0 and sum(weights) < 1,
                "shock_weight and memory must be non-negative and sum to less than one",
            ),
            (0 <= self.pull < 1, "pull must lie in [0, 1)"),
            (0 < low <= 1 <= high, "variance_bounds must be positive and enclose one"),
        )

    def stationary(self) -> FloatArray:
        """The long-run share of each hidden state, shape (K,)."""
        states = len(self.spread)
        balance = np.vstack([np.array(self.transition).T - np.eye(states), np.ones(states)])
        solution: FloatArray = np.linalg.lstsq(balance, np.append(np.zeros(states), 1.0), rcond=None)[0]
        return solution

    def next_variance(self, variance: float, shock: float) -> float:
        """The variance of the next bar from this bar's and its return divided by the calendar profile."""
        low, high = self.variance_bounds
        mean_reverting = 1.0 - self.shock_weight - self.memory
        return min(max(mean_reverting + self.shock_weight * shock * shock + self.memory * variance, low), high)


def draw_noise(rng: np.random.Generator, count: int) -> FloatArray:
    """Independent draws of a Student t with four degrees of freedom, scaled to unit variance."""
    return _UNIT_VARIANCE * rng.standard_t(4, count)


def student_mass(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """P(lower < e <= upper) of the distribution that `draw_noise` draws from, to full digits in both tails."""
    # Mirroring an interval of the upper tail into the lower one avoids differences of numbers near one.
    mirrored = lower > 0
    below = np.where(mirrored, -upper, lower)
    above = np.where(mirrored, -lower, upper)
    return _student_cdf(above) - _student_cdf(below)


def _student_cdf(x: FloatArray) -> FloatArray:
    """F(t) = (1 + s)^2 (2 - s) / 4 with s = t / sqrt(4 + t^2), and 1 + s rewritten where s is near -1."""
    t = np.clip(x / _UNIT_VARIANCE, -1e100, 1e100)
    s = t / np.sqrt(4.0 + t * t)
    one_plus_s = np.where(t < 0, 4.0 / ((4.0 + t * t) * (1.0 - s)), 1.0 + s)
    return one_plus_s * one_plus_s * (2.0 - s) / 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """What the distribution of the next close needs, per row; rows are the asset's bars in order."""

    timestamps: NDArray[np.datetime64]  # (N,) left edges, microseconds
    ticks: IntArray  # (N,) the last good close, in ticks
    pull: FloatArray  # (N,) part of the next move that every state shares
    scale: FloatArray  # (N,) of the rest of the next move
    weights: FloatArray  # (N, K) probability of each hidden state at the next bar
    spread: FloatArray  # (K,)
    drift: FloatArray  # (K,)

    def __len__(self) -> int:
        return len(self.ticks)

    def mass(self, rows: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """P(lower < next close <= upper), bounds in ticks (n, J), infinities allowed."""
        by_state = self.mass_by_state(rows, lower, upper)
        total: FloatArray = np.einsum("njk,nk->nj", by_state, self.weights[rows])
        return total

    def mass_by_state(self, rows: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """As `mass`, given each hidden state at the next bar, shape (n, J, K)."""
        origin = self.ticks[rows, None].astype(np.float64)
        scale = self.scale[rows, None, None]
        centre = self.pull[rows, None, None] + scale * self.drift
        below = (_half_tick_above(np.floor(lower), origin)[:, :, None] - centre) / (scale * self.spread)
        above = (_half_tick_above(np.floor(upper), origin)[:, :, None] - centre) / (scale * self.spread)
        return student_mass(below, above)

    def save(self, path: Path) -> None:
        arrays = {one.name: getattr(self, one.name) for one in fields(self)}
        arrays["timestamps"] = self.timestamps.astype("datetime64[us]").astype(np.int64)
        with atomic_file(path) as staged, staged.open("wb") as stream:
            np.savez_compressed(stream, **arrays)

    @classmethod
    def load(cls, path: Path) -> Truth:
        try:
            arrays = read_arrays(path)
            chosen = {one.name: arrays[one.name] for one in fields(cls)}
        except FileNotFoundError as error:
            raise DataError("no such truth file", where=path, fix="make the market again") from error
        except BAD_ARRAYS as error:
            raise DataError(
                "not readable as a truth file", where=path, got=error, fix="make the market again"
            ) from error
        return cls(**{**chosen, "timestamps": chosen["timestamps"].astype("datetime64[us]")})


def read_truth(bars_folder: Path) -> dict[str, Truth]:
    """The truth beside the bars of a simulated market: {symbol: Truth}."""
    paths = sorted((bars_folder / TRUTH_FOLDER).glob("*.npz"))
    if not paths:
        raise DataError(
            "these bars have no known distribution",
            where=bars_folder,
            expected=f"<SYMBOL>.npz files in its folder {TRUTH_FOLDER}",
            fix="only `vaiom data simulate` knows the distribution of its bars",
        )
    return {path.stem: Truth.load(path) for path in paths}


def observe(
    timestamps: NDArray[np.datetime64], close: FloatArray, profile: FloatArray, ticks_per_unit: int, dynamics: Dynamics
) -> Truth:
    """Filter one asset's closes (N,), NaN where missing; `profile` (N + 1,) is the calendar scale through the next bar.

    It reads nothing but public information: the hidden states that made the closes never enter.
    """
    # The last good close in ticks, which rows are good, and the scale of each row's next bar from the past alone.
    ticks, good, scale = np.empty(len(close), np.int64), np.zeros(len(close), bool), np.empty(len(close))
    last, variance, calendar = 0.0, 1.0, profile.tolist()
    for row, price in enumerate(close.tolist()):
        good[row] = isfinite(price) and (last == 0.0 or abs(log(price / last)) <= FAULT_LIMIT)
        last = price if good[row] else last
        ticks[row] = round(last * ticks_per_unit)
        if row and good[row]:
            shock = log(int(ticks[row]) / int(ticks[row - 1])) / calendar[row]
            variance = dynamics.next_variance(variance, shock)
        scale[row] = calendar[row + 1] * sqrt(variance)
    truth = Truth(
        timestamps=timestamps,
        ticks=ticks,
        pull=dynamics.pull * np.log(ticks[0] / ticks),
        scale=scale,
        weights=np.empty((len(close), len(dynamics.spread))),
        spread=np.array(dynamics.spread),
        drift=np.array(dynamics.drift),
    )
    now = ticks[1:, None].astype(np.float64)
    likelihood = truth.mass_by_state(np.arange(len(close) - 1), now - 1.0, now)[:, 0]
    transition = np.array(dynamics.transition)
    # Before the first move nothing is known of the state but its long-run shares.
    predicted = dynamics.stationary()
    truth.weights[0] = predicted
    for row in range(1, len(close)):
        joint = predicted * likelihood[row - 1] if good[row] else predicted
        predicted = (joint / joint.sum() if good[row] else joint) @ transition
        truth.weights[row] = predicted
    return truth


def _half_tick_above(ticks: FloatArray, origin: FloatArray) -> FloatArray:
    """The hidden log return at which rounding passes from `ticks` to the next tick; no price is below one tick."""
    bound = np.log1p((np.maximum(ticks, 1.0) + 0.5 - origin) / origin)
    return np.where(ticks < 1.0, -np.inf, bound)
