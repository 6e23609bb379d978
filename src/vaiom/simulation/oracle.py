"""The exact distribution of a simulated market's next close given the past, and its predictions.

The next move is `pull + scale * (drift[s] + spread[s] * e)`, with hidden state s and e Student-t
with four degrees of freedom and unit variance. Prices are rounded to ticks, so probabilities are
differences of the distribution function, and the states are filtered with those same probabilities.
Paper: "Return Bucket Construction" and "Serialized row and target validity rules".
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite, log, sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vaiom.errors import DataError
from vaiom.files import BAD_ARRAYS, atomic_file, read_arrays, staging_folder

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TRUTH_FOLDER = "truth"
FAULT_LIMIT = 1.0
"""A close further than this from the last good one, in log units, is a faulty print."""

_ROW_ARRAYS = ("timestamps", "ticks", "pull", "scale", "weights")
UNIT_VARIANCE = sqrt(0.5)
"""A Student t with four degrees of freedom has variance two."""


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """How a price moves: hidden states, and a variance that follows observed returns.

    Returns are divided by the calendar scale of their hour before the variance follows them.
    """

    spread: tuple[float, ...] = (0.65, 0.97, 1.35)
    drift: tuple[float, ...] = (0.02, 0.0, -0.03)
    transition: tuple[tuple[float, ...], ...] = (
        (0.98, 0.02, 0.0),
        (0.015, 0.97, 0.015),
        (0.0, 0.03, 0.97),
    )
    shock_weight: float = 0.05
    memory: float = 0.93
    pull: float = 1e-4
    """Towards the first close: it keeps long histories at sensible prices."""
    variance_bounds: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        num_states = len(self.spread)
        if not len(self.drift) == len(self.transition) == num_states:
            raise ValueError("spread, drift and transition must have one entry per state")
        for row in self.transition:
            excess = abs(sum(row) - 1)
            if len(row) != num_states or min(row) < 0 or excess > 1e-12:
                raise ValueError(
                    "each row of transition must hold one probability per hidden state, summing to "
                    "one"
                )
        if min(self.spread) <= 0:
            raise ValueError("spread must be positive")
        persistence = self.shock_weight + self.memory
        if min(self.shock_weight, self.memory) < 0 or persistence >= 1:
            raise ValueError(
                "shock_weight and memory must be non-negative and sum to less than one"
            )
        if not 0 <= self.pull < 1:
            raise ValueError("pull must lie in [0, 1)")
        low, high = self.variance_bounds
        if not 0 < low <= 1 <= high:
            raise ValueError("variance_bounds must be positive and enclose one")

    def stationary(self) -> FloatArray:
        """(K,) the stationary distribution of the hidden states, the left eigenvector of 1."""
        num_states = len(self.spread)
        balance = np.array(self.transition).T - np.eye(num_states)
        equations = np.vstack([balance, np.ones(num_states)])
        total = np.append(np.zeros(num_states), 1.0)
        solution, *_ = np.linalg.lstsq(equations, total, rcond=None)
        return np.asarray(solution)

    def next_variance(self, variance: float, shock: float) -> float:
        """The variance of the next bar, a GARCH(1, 1) of mean one within bounds.

        `shock` is this bar's return divided by its calendar scale.
        """
        low, high = self.variance_bounds
        weight = self.shock_weight
        memory = self.memory
        usual = 1.0 - weight - memory
        following = usual + weight * shock * shock + memory * variance
        # Called for every bar: comparisons are faster than min and max.
        if following < low:
            return low
        if following > high:
            return high
        return following


def student_mass(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """P(lower < e <= upper) of Student-t noise of unit variance, accurate in both tails."""
    # Mirroring upper-tail intervals avoids differences of numbers near one.
    is_upper = lower > 0
    end = np.where(is_upper, -lower, upper)
    start = np.where(is_upper, -upper, lower)
    return _student_cdf(end) - _student_cdf(start)


def _student_cdf(x: FloatArray) -> FloatArray:
    """F(t) = (1 + s)^2 (2 - s) / 4 with s = t / sqrt(4 + t^2), four degrees of freedom.

    1 + s is rewritten where s is near -1.
    """
    t = x / UNIT_VARIANCE
    t = np.clip(t, -1e100, 1e100)
    square = 4.0 + t * t
    s = t / np.sqrt(square)
    near_minus_one = 4.0 / (square * (1.0 - s))
    one_plus_s = np.where(t < 0, near_minus_one, 1.0 + s)
    return one_plus_s * one_plus_s * (2.0 - s) / 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """Per row, the distribution of the next close; rows are the asset's bars in order."""

    timestamps: NDArray[np.datetime64]
    """(N,) left edges, in microseconds."""
    ticks: IntArray
    """(N,) the last good close, in ticks."""
    pull: FloatArray
    """(N,) the part of the next move that every state shares."""
    scale: FloatArray
    """(N,) of the rest of the next move."""
    weights: FloatArray
    """(N, K) probability of each hidden state at the next bar."""
    spread: FloatArray
    """(K,) scale of each state."""
    drift: FloatArray
    """(K,) mean of each state, in units of its row's scale."""

    def mass(self, rows: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """P(lower < next close <= upper), bounds in ticks (n, J), infinities allowed."""
        by_state = self.mass_by_state(rows, lower, upper)
        weights = self.weights[rows]
        return np.asarray(np.einsum("njk,nk->nj", by_state, weights))

    def mass_by_state(self, rows: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """As `mass`, given each hidden state at the next bar, shape (n, J, K)."""
        origin = self.ticks[rows, None].astype(np.float64)
        scale = self.scale[rows, None, None]
        pull = self.pull[rows, None, None]
        centre = pull + scale * self.drift
        deviation = scale * self.spread

        def noise_at(bound: FloatArray) -> FloatArray:
            """The noise at which the rounded price moves to the next tick; the lowest is one."""
            ticks = np.floor(bound)
            edge = np.maximum(ticks, 1.0) + 0.5
            change = (edge - origin) / origin
            move = np.where(ticks < 1.0, -np.inf, np.log1p(change))
            surprise = move[:, :, None] - centre
            return np.asarray(surprise / deviation)

        return student_mass(noise_at(lower), noise_at(upper))

    def rows(self, chosen: slice) -> Truth:
        """The truth of some of the rows, in their order."""
        arrays = {name: getattr(self, name)[chosen] for name in _ROW_ARRAYS}
        return replace(self, **arrays)

    @classmethod
    def joined(cls, parts: Sequence[Truth]) -> Truth:
        """The rows of all parts of one asset, in the order of the parts."""
        arrays = {}
        for name in _ROW_ARRAYS:
            of_parts = [getattr(part, name) for part in parts]
            arrays[name] = np.concatenate(of_parts)
        return replace(parts[0], **arrays)

    @classmethod
    def load(cls, path: Path) -> Truth:
        """Read what `save_truth` wrote; a damaged file is an error for users."""
        try:
            stored = read_arrays(path)
            arrays = {field.name: stored[field.name] for field in fields(cls)}
        except BAD_ARRAYS as error:
            problem = "not readable as a truth file"
            raise DataError(problem, where=path, got=error, fix="make the market again") from error
        arrays["timestamps"] = arrays["timestamps"].astype("datetime64[us]")
        return cls(**arrays)


def save_truth(path: Path, parts: Iterable[Truth]) -> None:
    """Save the rows of all parts as `numpy.savez` would save them joined, with one in memory."""
    with staging_folder(path.parent) as staging, atomic_file(path) as staged:
        num_rows = 0
        arrays: dict[str, NDArray[Any]] = {}
        for part in parts:
            num_rows += len(part.ticks)
            for field in fields(part):
                values = getattr(part, field.name)
                arrays[field.name] = np.ascontiguousarray(values)
            arrays["timestamps"] = arrays["timestamps"].view(np.int64)
            for name, array in arrays.items():
                mode = "ab" if name in _ROW_ARRAYS else "wb"
                with (staging / name).open(mode) as stream:
                    stream.write(array.data)
        with zipfile.ZipFile(staged, "w") as archive:
            for name, array in arrays.items():
                header = npy.header_data_from_array_1_0(array)
                if name in _ROW_ARRAYS:
                    header["shape"] = (num_rows, *array.shape[1:])
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    with (staging / name).open("rb") as stream:
                        shutil.copyfileobj(stream, member)


class Filter:
    """Filters the hidden state of an asset from its closes (Hamilton, 1989).

    It uses the same likelihood of rounded prices that forecasts use, so that its weights are the
    exact posterior of the state given the past. Calls continue each other.
    """

    def __init__(self, ticks_per_unit: int, dynamics: Dynamics) -> None:
        self.ticks_per_unit = ticks_per_unit
        self.dynamics = dynamics
        self._price = 0.0
        self._variance = 1.0
        self._first = 0  # close in ticks
        self._last: Truth | None = None  # the last row

    def observe(
        self, timestamps: NDArray[np.datetime64], close: FloatArray, profile: FloatArray
    ) -> Truth:
        """The truth at the next closes (N,), NaN if missing.

        `profile` (N + 1,) is the calendar scale of these bars and of the one after them.
        """
        ticks, is_good, deviation = self._read_closes(close, profile)
        dynamics = self.dynamics
        self._first = self._first or int(ticks[0])
        way_back = np.log(self._first / ticks)
        shape = (len(close), len(dynamics.spread))
        part = Truth(
            timestamps=timestamps,
            ticks=ticks,
            pull=dynamics.pull * way_back,
            scale=profile[1:] * deviation,
            weights=np.empty(shape),
            spread=np.array(dynamics.spread),
            drift=np.array(dynamics.drift),
        )
        if self._last is None:
            # Before the first move the state has its stationary distribution.
            part.weights[0] = dynamics.stationary()
            truth = part
            num_before = 0
        else:
            truth = Truth.joined([self._last, part])
            num_before = 1
        self._filter_states(truth, is_good[1 - num_before :])
        self._last = truth.rows(slice(-1, None))
        return truth.rows(slice(num_before, None))

    def _read_closes(
        self, close: FloatArray, profile: FloatArray
    ) -> tuple[IntArray, list[bool], FloatArray]:
        """The last good close in ticks (N,), which rows are good, and the root of each row's
        variance of the next bar (N,).
        """
        price = self._price
        variance = self._variance
        calendar = profile.tolist()
        before = int(self._last.ticks[0]) if self._last else 0
        ticks = []
        is_good = []
        deviation = []
        for row, printed in enumerate(close.tolist()):
            good = isfinite(printed)
            if good and price != 0.0:
                move = log(printed / price)
                good = abs(move) <= FAULT_LIMIT
            if good:
                price = printed
                now = round(price * self.ticks_per_unit)
                if before:
                    log_ret = log(now / before)
                    shock = log_ret / calendar[row]
                    variance = self.dynamics.next_variance(variance, shock)
                before = now
            ticks.append(before)
            is_good.append(good)
            deviation.append(sqrt(variance))
        self._price = price
        self._variance = variance
        return np.array(ticks), is_good, np.array(deviation)

    def _filter_states(self, truth: Truth, is_good: list[bool]) -> None:
        """Fill the weights of all rows but the first, whose weights are there."""
        transition = np.array(self.dynamics.transition)
        reached = truth.ticks[1:, None].astype(np.float64)
        rows = np.arange(len(reached))
        mass = truth.mass_by_state(rows, reached - 1.0, reached)
        likelihood = mass[:, 0]
        ones = np.ones(len(transition))
        predicted = truth.weights[0]
        # Dot products of short vectors are faster than sums.
        for good, of_states, weights in zip(is_good, likelihood, truth.weights[1:], strict=True):
            if good:
                predicted = predicted * of_states
                predicted /= predicted.dot(ones)
            predicted = predicted.dot(transition, weights)


@dataclass(frozen=True, eq=False)
class Oracle:
    """Predicts like a baseline, but with the true distribution, which no model can beat."""

    truths: Mapping[str, Truth]
    """By symbol."""
    name = "oracle"

    @classmethod
    def load(cls, bars_folder: Path) -> Self:
        """Load the oracle of a folder written by `vaiom data simulate`."""
        folder = bars_folder / TRUTH_FOLDER
        files = sorted(folder.glob("*.npz"))
        if not files:
            raise DataError(
                "these bars have no known distribution",
                where=bars_folder,
                expected=f"<SYMBOL>.npz files in its folder {TRUTH_FOLDER}",
                fix="only `vaiom data simulate` knows the distribution of its bars",
            )
        return cls({file.stem: Truth.load(file) for file in files})

    def predict_proba(self, corpus: Any, rows: NDArray[np.integer]) -> FloatArray:
        """Probabilities (n, K) of the next return bucket of each row of a `Corpus`."""
        edges = corpus.edges["return"]
        probs = np.empty((len(rows), len(edges) - 1))
        for symbol, inside in corpus.asset_slices.items():
            is_own = (rows >= inside.start) & (rows < inside.stop)
            if not is_own.any():
                continue
            truth = self._truth_of(symbol, corpus.timestamps[inside])
            own = rows[is_own].astype(np.int64)
            sigma = corpus.sigma20[own]
            places = own - inside.start
            probs[is_own] = bucket_probabilities(truth, places, edges, sigma)
        return probs

    def _truth_of(self, symbol: str, timestamps: NDArray[np.datetime64]) -> Truth:
        """The truth of an asset, whose rows must be those of the corpus."""
        truth = self.truths.get(symbol)
        if truth is None:
            known = ", ".join(sorted(self.truths))
            raise DataError("this market's truth knows no such asset", expected=known, got=symbol)
        if not np.array_equal(truth.timestamps, timestamps):
            first, last = truth.timestamps[[0, -1]]
            raise DataError(
                "the corpus was not built from the bars of this truth",
                where=symbol,
                expected=f"{len(truth.ticks)} rows from {first} to {last}",
                fix="build the corpus again from the simulated bar folder",
            )
        return truth


def bucket_probabilities(
    truth: Truth, rows: IntArray, edges: FloatArray, sigma: FloatArray
) -> FloatArray:
    """P(bucket | observed past, valid target), shape (n, K).

    `edges` (K + 1,) with infinities are in units of `sigma` (n,).
    """
    origin = truth.ticks[rows, None].astype(np.float64)
    returns = np.clip(edges * sigma[:, None], -FAULT_LIMIT, FAULT_LIMIT)
    prices = origin * np.exp(returns)
    bounds = np.floor(prices)
    lower_bounds = bounds[:, :-1]
    upper_bounds = bounds[:, 1:]
    mass = truth.mass(rows, lower_bounds, upper_bounds)
    # An unchanged price is no target: its bucket keeps the mass below and above it.
    zero = int(np.searchsorted(edges, 0.0)) - 1
    lower = lower_bounds[:, [zero]]
    upper = upper_bounds[:, [zero]]
    one_tick_down = np.maximum(origin - 1.0, lower)
    below = truth.mass(rows, lower, one_tick_down)
    above = truth.mass(rows, origin, np.maximum(upper, origin))
    mass[:, [zero]] = below + above
    total = mass.sum(axis=1, keepdims=True)
    return np.asarray(mass / total)
