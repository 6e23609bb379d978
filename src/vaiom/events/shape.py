"""Where returns lie inside their buckets and beyond the outermost edges, fitted on Train.

Enters: bucket edges and the scaled Train returns they were fitted on. Leaves: a `ReturnShape`, which turns
probabilities of buckets into a continuous law. The paper forecasts buckets and says nothing of their inside: the rule
is ours.

Inside a bucket with two edges the distribution function is linear between knots that carry equal shares of the
bucket's mass: pooled Train quantiles. Beyond an outermost edge the excess follows a generalised Pareto law, by
probability-weighted moments (Hosking and Wallis 1987). Both are held up by a little made-up data, so that a bucket or
a tail that Train hardly met still has a density and a mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.buckets import Edges

PIECES = 8
"""Pieces of equal mass in a bucket."""

# A bucket counts this many returns more than it has, spread evenly: knots never coincide.
_EVEN_RETURNS = PIECES
# A tail counts this many excesses of this size (in sigmas) more than it has.
_MADE_UP_EXCESSES = 5
_MADE_UP_EXCESS = 2.0
# One wrong tick must not make the tail.
_MAX_EXCESS = 50.0
# Fewer excesses tell nothing of the tail's shape: it is exponential.
_MIN_EXCESSES = 50
# Bounded tails (below the first) are not believed, and up to the second the variance is finite.
_SHAPES = (0.0, 0.45)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The excess over an outermost edge, in sigmas: generalised Pareto, exponential where `shape` is 0."""

    scale: float
    shape: float

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf and _SHAPES[0] <= self.shape <= _SHAPES[1]):
            raise ValueError("a tail without sense")

    def survival(self, excess: Floats) -> Floats:
        """The probability of a larger excess."""
        if self.shape == 0:
            return np.exp(-excess / self.scale)
        return np.exp(-np.log1p(self.shape * excess / self.scale) / self.shape)

    def excess(self, survival: Floats) -> Floats:
        """The excess that is passed with this probability; infinite for 0."""
        with np.errstate(divide="ignore"):
            nats = -np.log(survival)
        return self.scale * nats if self.shape == 0 else self.scale * np.expm1(self.shape * nats) / self.shape

    def mean_beyond(self, excess: float) -> float:
        """The mean of the excesses that pass this one."""
        return excess + (self.scale + self.shape * excess) / (1 - self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnShape:
    """Knots in sigmas from the first inner edge to the last, `PIECES` pieces a bucket, and the two tails."""

    knots: Floats
    lower: Tail
    upper: Tail

    def to_json(self) -> dict[str, Any]:
        tails = {name: {"scale": tail.scale, "shape": tail.shape} for name, tail in self._tails.items()}
        return {"knots": self.knots.tolist(), **tails}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ReturnShape:
        knots = np.array(value["knots"], np.float64)
        if knots.ndim != 1 or not (np.diff(knots) >= 0).all() or not np.isfinite(knots).all():
            raise ValueError("knots must increase")
        return cls(knots=knots, lower=Tail(**value["lower"]), upper=Tail(**value["upper"]))

    @property
    def _tails(self) -> dict[str, Tail]:
        return {"lower": self.lower, "upper": self.upper}


def fit_shape(edges: Edges, values: Floats) -> ReturnShape:
    """Fit the knots of every bucket with two edges and the tails beyond the outermost."""
    inner = edges[1:-1]
    ordered = np.sort(values)
    # A bucket holds its upper edge and not its lower one.
    cuts = np.searchsorted(ordered, inner, side="right")
    buckets = (ordered[a:b] for a, b in pairwise(cuts))
    pieces = [_inner_knots(*pair) for pair in zip(inner[:-1], inner[1:], buckets, strict=True)]
    return ReturnShape(
        knots=np.concatenate([*pieces, inner[-1:]]),
        lower=_fit_tail(inner[0] - ordered[: cuts[0]]),
        upper=_fit_tail(ordered[cuts[-1] :] - inner[-1]),
    )


def even_shape(edges: Edges) -> ReturnShape:
    """The shape that knows nothing: returns spread evenly in a bucket, tails made up."""
    return fit_shape(edges, np.empty(0))


def _inner_knots(low: float, high: float, values: Floats) -> Floats:
    """The lower edge and the knots up to, not including, the upper one."""
    levels = np.arange(PIECES) / PIECES
    even = low + (high - low) * levels
    if not len(values):
        return even
    share = _EVEN_RETURNS / (len(values) + _EVEN_RETURNS)
    knots: Floats = share * even + (1 - share) * np.quantile(values, levels)
    knots[0] = low
    return knots


def _fit_tail(excesses: Floats) -> Tail:
    excesses = np.minimum(excesses, _MAX_EXCESS)
    count = len(excesses) + _MADE_UP_EXCESSES
    mean = (float(excesses.sum()) + _MADE_UP_EXCESSES * _MADE_UP_EXCESS) / count
    shape = 0.0
    if len(excesses) >= _MIN_EXCESSES:
        ordered = np.sort(excesses)
        above = 1 - (np.arange(len(ordered)) + 0.65) / len(ordered)  # their plotting positions
        first, second = float(ordered.mean()), float((above * ordered).mean())
        if first > 2 * second:
            shape = min(max(2 - first / (first - 2 * second), _SHAPES[0]), _SHAPES[1])
    # The mean is kept whatever the shape: scale / (1 - shape).
    return Tail(scale=mean * (1 - shape), shape=shape)
