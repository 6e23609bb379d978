"""The exact distribution of a simulated market's next close given the observable past, and its
predictions.

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
"""A close further than this from the last good one, in log units, is a faulty print: the price is
unchanged.
"""

_ROW_ARRAYS = ("timestamps", "ticks", "pull", "scale", "weights")
UNIT_VARIANCE = sqrt(0.5)  # a Student t with four degrees of freedom has variance two


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """How a price moves: hidden states, and a variance that follows the observed, de-seasonalised
    returns.
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
    pull: float = 1e-4  # towards the first close: it keeps long histories at sensible prices
    variance_bounds: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        states, chances, (low, high) = len(self.spread), self.transition, self.variance_bounds
        weights, weighted = (self.shock_weight, self.memory), "shock_weight and memory"
        valid = [
            len(row) == states and min(row) >= 0 and abs(sum(row) - 1) <= 1e-12 for row in chances
        ]
        for met, demand in (
            (
                len(self.drift) == len(chances) == states,
                "spread, drift and transition must have one entry per state",
            ),
            (
                all(valid),
                "each row of transition must hold one probability per hidden state, summing to one",
            ),
            (min(self.spread) > 0, "spread must be positive"),
            (
                min(weights) >= 0 and sum(weights) < 1,
                f"{weighted} must be non-negative and sum to less than one",
            ),
            (0 <= self.pull < 1, "pull must lie in [0, 1)"),
            (0 < low <= 1 <= high, "variance_bounds must be positive and enclose one"),
        ):
            if not met:
                raise ValueError(demand)

    def stationary(self) -> FloatArray:
        """(K,) the stationary distribution of the hidden states."""
        states = len(self.spread)
        balance = np.vstack([np.array(self.transition).T - np.eye(states), np.ones(states)])
        return np.asarray(np.linalg.lstsq(balance, np.append(np.zeros(states), 1.0), rcond=None)[0])

    def next_variance(self, variance: float, shock: float) -> float:
        """The variance of the next bar from this bar's and its return divided by the calendar
        profile.
        """
        low, high = self.variance_bounds
        weight, memory = self.shock_weight, self.memory
        following = 1.0 - weight - memory + weight * shock * shock + memory * variance
        return low if following < low else high if following > high else following


def student_mass(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """P(lower < e <= upper), accurate in both tails."""
    # Mirroring upper-tail intervals avoids differences of numbers near one.
    mirrored = lower > 0
    return _student_cdf(np.where(mirrored, -lower, upper)) - _student_cdf(
        np.where(mirrored, -upper, lower)
    )


def _student_cdf(x: FloatArray) -> FloatArray:
    """F(t) = (1 + s)^2 (2 - s) / 4 with s = t / sqrt(4 + t^2), and 1 + s rewritten where s is near
    -1.
    """
    t = np.clip(x / UNIT_VARIANCE, -1e100, 1e100)
    s = t / np.sqrt(4.0 + t * t)
    one_plus_s = np.where(t < 0, 4.0 / ((4.0 + t * t) * (1.0 - s)), 1.0 + s)
    return one_plus_s * one_plus_s * (2.0 - s) / 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """Per row, the parameters of the distribution of the next close; rows are the asset's bars in
    order.
    """

    timestamps: NDArray[np.datetime64]  # (N,) left edges, microseconds
    ticks: IntArray  # (N,) the last good close, in ticks
    pull: FloatArray  # (N,) part of the next move that every state shares
    scale: FloatArray  # (N,) of the rest of the next move
    weights: FloatArray  # (N, K) probability of each hidden state at the next bar
    spread: FloatArray  # (K,)
    drift: FloatArray  # (K,)

    def mass(self, rows: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """P(lower < next close <= upper), bounds in ticks (n, J), infinities allowed."""
        return np.asarray(
            np.einsum("njk,nk->nj", self.mass_by_state(rows, lower, upper), self.weights[rows])
        )

    def mass_by_state(self, rows: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """As `mass`, given each hidden state at the next bar, shape (n, J, K)."""
        origin = self.ticks[rows, None].astype(np.float64)
        scale = self.scale[rows, None, None]
        centre = self.pull[rows, None, None] + scale * self.drift

        def hidden(bound: FloatArray) -> FloatArray:
            """The noise at which the rounded price moves to the next tick; no price is below one
            tick.
            """
            ticks = np.floor(bound)
            move = np.log1p((np.maximum(ticks, 1.0) + 0.5 - origin) / origin)
            return np.asarray(
                (np.where(ticks < 1.0, -np.inf, move)[:, :, None] - centre) / (scale * self.spread)
            )

        return student_mass(hidden(lower), hidden(upper))

    def rows(self, chosen: slice) -> Truth:
        return replace(self, **{name: getattr(self, name)[chosen] for name in _ROW_ARRAYS})

    @classmethod
    def joined(cls, parts: Sequence[Truth]) -> Truth:
        arrays = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROW_ARRAYS
        }
        return replace(parts[0], **arrays)

    @classmethod
    def load(cls, path: Path) -> Truth:
        try:
            arrays = read_arrays(path)
            chosen = {one.name: arrays[one.name] for one in fields(cls)}
        except BAD_ARRAYS as error:
            fix = "make the market again"
            raise DataError(
                "not readable as a truth file", where=path, got=error, fix=fix
            ) from error
        return cls(**{**chosen, "timestamps": chosen["timestamps"].astype("datetime64[us]")})


def save_truth(path: Path, parts: Iterable[Truth]) -> None:
    """Save the rows of all parts, holding one in memory, as `numpy.savez` would save them
    joined.
    """
    with staging_folder(path.parent) as staging, atomic_file(path) as staged:
        rows = 0
        for part in parts:
            rows += len(part.ticks)
            arrays = {
                one.name: np.ascontiguousarray(getattr(part, one.name)) for one in fields(part)
            }
            arrays["timestamps"] = arrays["timestamps"].view(np.int64)
            for name, array in arrays.items():
                with (staging / name).open("ab" if name in _ROW_ARRAYS else "wb") as stream:
                    stream.write(array.data)
        with zipfile.ZipFile(staged, "w") as archive:
            for name, array in arrays.items():
                header = npy.header_data_from_array_1_0(array)
                header |= {"shape": (rows, *array.shape[1:])} if name in _ROW_ARRAYS else {}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    with (staging / name).open("rb") as stream:
                        shutil.copyfileobj(stream, member)


class Filter:
    """Filters the hidden state of an asset from its closes."""

    def __init__(self, ticks_per_unit: int, dynamics: Dynamics) -> None:
        self.ticks_per_unit, self.dynamics = ticks_per_unit, dynamics
        self._price, self._variance, self._first = 0.0, 1.0, 0
        self._last: list[Truth] = []  # its last row, where there is one

    def observe(
        self, timestamps: NDArray[np.datetime64], close: FloatArray, profile: FloatArray
    ) -> Truth:
        """The truth at the next closes (N,), NaN if missing; `profile` (N + 1,) is the calendar
        scale, plus one bar.
        """
        # The last good close in ticks, which rows are good, and each row's scale of the next bar,
        # from the past alone.
        dynamics, price, variance, calendar = (
            self.dynamics,
            self._price,
            self._variance,
            profile.tolist(),
        )
        before = int(self._last[0].ticks[0]) if self._last else 0
        ticks, good, deviation = [], [], []
        for row, printed in enumerate(close.tolist()):
            usable = isfinite(printed) and (
                price == 0.0 or abs(log(printed / price)) <= FAULT_LIMIT
            )
            if usable:
                price = printed
                now = round(price * self.ticks_per_unit)
                if before:
                    variance = dynamics.next_variance(variance, log(now / before) / calendar[row])
                before = now
            ticks.append(before)
            good.append(usable)
            deviation.append(sqrt(variance))
        self._price, self._variance, self._first = price, variance, self._first or ticks[0]
        part = Truth(
            timestamps=timestamps,
            ticks=np.array(ticks),
            pull=dynamics.pull * np.log(self._first / np.array(ticks)),
            scale=profile[1:] * np.array(deviation),
            weights=np.empty((len(close), len(dynamics.spread))),
            spread=np.array(dynamics.spread),
            drift=np.array(dynamics.drift),
        )
        truth = Truth.joined([*self._last, part])
        first, predicted, transition = (
            not self._last,
            truth.weights[0],
            np.array(dynamics.transition),
        )
        if first:  # before the first move the state has its stationary distribution
            predicted[:] = dynamics.stationary()
        reached = truth.ticks[1:, None].astype(np.float64)
        likelihood = truth.mass_by_state(np.arange(len(reached)), reached - 1.0, reached)[:, 0]
        ones = np.ones(len(transition))
        # Dot products of short vectors are faster than sums.
        for usable, of_states, weights in zip(
            good[first:], likelihood, truth.weights[1:], strict=True
        ):
            if usable:
                predicted = predicted * of_states
                predicted /= predicted.dot(ones)
            predicted = predicted.dot(transition, weights)
        self._last = [truth.rows(slice(-1, None))]
        return truth if first else truth.rows(slice(1, None))


@dataclass(frozen=True, eq=False)
class Oracle:
    """Predicts like a baseline, but with the true distribution."""

    truths: Mapping[str, Truth]
    name = "oracle"

    @classmethod
    def load(cls, bars_folder: Path) -> Self:
        """Load the oracle of a folder written by `vaiom data simulate`."""
        truths = {
            path.stem: Truth.load(path)
            for path in sorted((bars_folder / TRUTH_FOLDER).glob("*.npz"))
        }
        if not truths:
            expected = f"<SYMBOL>.npz files in its folder {TRUTH_FOLDER}"
            fix = "only `vaiom data simulate` knows the distribution of its bars"
            raise DataError(
                "these bars have no known distribution",
                where=bars_folder,
                expected=expected,
                fix=fix,
            )
        return cls(truths)

    def predict_proba(self, corpus: Any, rows: NDArray[np.integer]) -> FloatArray:
        """Probabilities (n, K) of the next return bucket of each row of a `Corpus`."""
        edges = corpus.edges["return"]
        probs = np.empty((len(rows), len(edges) - 1))
        for symbol, inside in corpus.asset_slices.items():
            chosen = (rows >= inside.start) & (rows < inside.stop)
            if not chosen.any():
                continue
            truth = self.truths.get(symbol)
            if truth is None:
                known = ", ".join(sorted(self.truths))
                raise DataError(
                    "this market's truth knows no such asset", expected=known, got=symbol
                )
            if not np.array_equal(truth.timestamps, corpus.timestamps[inside]):
                problem = "the corpus was not built from the bars of this truth"
                expected = (
                    f"{len(truth.ticks)} rows from {truth.timestamps[0]} to {truth.timestamps[-1]}"
                )
                fix = "build the corpus again from the simulated bar folder"
                raise DataError(problem, where=symbol, expected=expected, fix=fix)
            own = rows[chosen].astype(np.int64)
            probs[chosen] = bucket_probabilities(
                truth, own - inside.start, edges, corpus.target_scale[own]
            )
        return probs


def bucket_probabilities(
    truth: Truth, rows: IntArray, edges: FloatArray, sigma: FloatArray
) -> FloatArray:
    """P(bucket | observed past, valid target), shape (n, K); `edges` (K + 1,) with infinities, in
    units of `sigma`.
    """
    origin = truth.ticks[rows, None].astype(np.float64)
    returns = np.clip(edges * sigma[:, None], -FAULT_LIMIT, FAULT_LIMIT)
    bounds = np.floor(origin * np.exp(returns))
    mass = truth.mass(rows, bounds[:, :-1], bounds[:, 1:])
    # An unchanged price is no target: its bucket keeps the mass below and above it.
    zero = int(np.searchsorted(edges, 0.0, side="left")) - 1
    lower, upper = bounds[:, [zero]], bounds[:, [zero + 1]]
    below = truth.mass(rows, lower, np.maximum(origin - 1.0, lower))
    above = truth.mass(rows, origin, np.maximum(upper, origin))
    mass[:, [zero]] = below + above
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))
