"""How returns spread inside the buckets and beyond the outermost edges.

The paper (Methods, "Return Bucket Construction") leaves both open. Here the inner edges and knots
of equal mass between them bound pieces in which returns are uniform. The piece below the first
knot and the piece above the last are generalised Pareto tails. A value z, a return in sigmas, has
a place: the number of its piece, and the share of the piece's mass that lies below it. Within a
piece the distribution function is linear in that share, whatever the probabilities of the buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

PIECES = 8
"""Pieces of equal mass in a bucket."""
TAIL_SHAPES = (0.0, 0.45)
"""Bounds of the tail index: at 0 a tail is exponential, and below 0.5 the variance is finite."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The excess X of a return over an outermost edge, in sigmas.

    It is generalised Pareto, P(X > x) = (1 + shape x / scale) ** (-1 / shape), and exponential
    where `shape` is 0 (Pickands 1975, "Statistical Inference Using Extreme Order Statistics").
    """

    scale: float
    shape: float

    def __post_init__(self) -> None:
        least, most = TAIL_SHAPES
        if not (0 < self.scale < math.inf and least <= self.shape <= most):
            raise ValueError(f"a tail has a positive scale and a shape from {least} to {most}")

    def survival(self, excess: Floats) -> Floats:
        """P(X > excess); 1 for a negative excess."""
        scaled = np.maximum(excess, 0) / self.scale
        if self.shape == 0:
            return np.exp(-scaled)
        log_growth = np.log1p(self.shape * scaled)
        return np.exp(-log_growth / self.shape)

    def density(self, excess: Floats) -> Floats:
        """The density of X at an excess of 0 or more."""
        scale = self.scale + self.shape * excess if self.shape else self.scale
        return self.survival(excess) / scale

    def excess(self, survival: Floats) -> Floats:
        """The excess that is exceeded with this probability; infinite for 0."""
        with np.errstate(divide="ignore"):
            exponential = -np.log(survival)
        if self.shape == 0:
            return self.scale * exponential
        growth = np.expm1(self.shape * exponential)
        return self.scale * growth / self.shape

    def moment_beyond(self, excess: Floats, edge: float | Floats = 0.0, power: int = 1) -> Floats:
        """The mean of (edge + X) ** power given that X is above `excess`; power is 1 or 2.

        What exceeds a higher threshold is generalised Pareto again, with the scale
        `scale + shape * excess`.
        """
        threshold = edge + excess
        scale = self.scale + self.shape * excess
        mean = scale / (1 - self.shape)
        if power == 1:
            return threshold + mean
        mean_square = 2 * scale * mean / (1 - 2 * self.shape)
        return threshold**2 + 2 * threshold * mean + mean_square


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnShape:
    """The pieces between J knots, numbered from 1, and the tails: piece 0 and piece J."""

    knots: Floats
    """(J,) in sigmas, from the first inner edge to the last, `PIECES` pieces a bucket."""
    lower: Tail
    upper: Tail

    def __post_init__(self) -> None:
        gaps = np.diff(self.knots)
        rises = (gaps > 0) & (gaps < math.inf)
        if self.knots.ndim != 1 or not rises.all():
            raise ValueError("knots must increase, from one finite number to the next")
        self.knots.flags.writeable = False  # all forecasts share them

    @cached_property
    def mirrored(self) -> ReturnShape:
        """The shape of the returns with their signs changed."""
        return ReturnShape(knots=-self.knots[::-1], lower=self.upper, upper=self.lower)

    @cached_property
    def _starts(self) -> Floats:
        """(J + 1,) the lower knot of each piece; of the lower tail its only one."""
        return np.concatenate([self.knots[:1], self.knots])

    @cached_property
    def _widths(self) -> Floats:
        """(J + 1,) how wide each piece is; 1 for the tails, which have no width."""
        return np.pad(np.diff(self.knots), 1, constant_values=1.0)

    def locate(self, z: Floats) -> tuple[Ints, Floats]:
        """The places of values: numbers of pieces, and shares of their mass below the values.

        A knot belongs to the piece that it ends. Shares of values that are not numbers are NaN.
        """
        piece = np.searchsorted(self.knots, z, side="left")
        offset = z - self._starts[piece]
        inside = offset / self._widths[piece]
        below = self.lower.survival(-offset)
        above = 1 - self.upper.survival(offset)
        return piece, self._by_piece(piece, below, inside, above)

    def value(self, piece: Ints, share: Floats) -> Floats:
        """The values at places; infinite at the ends of the tails."""
        start = self._starts[piece]
        inside = start + share * self._widths[piece]
        below = start - self.lower.excess(share)
        above = start + self.upper.excess(1 - share)
        return self._by_piece(piece, below, inside, above)

    def density(self, piece: Ints, z: Floats) -> Floats:
        """The density at values in these pieces, for a mass of 1 in each piece."""
        excess = np.abs(z - self._starts[piece])
        inside = 1 / self._widths[piece]
        below = self.lower.density(excess)
        above = self.upper.density(excess)
        return self._by_piece(piece, below, inside, above)

    @cached_property
    def moments(self) -> dict[int, Floats]:
        """(J + 1,) the mean of z ** power in each piece, for power 1 and 2."""
        piece = np.arange(len(self.knots) + 1)
        whole = np.ones(piece.shape)
        return {power: self.moments_below(piece, whole, power) for power in (1, 2)}

    def moments_below(self, piece: Ints, share: Floats, power: int) -> Floats:
        """The mean of z ** power over the lowest share of each of these pieces; power is 1 or 2."""
        low = self._starts[piece]
        high = low + share * self._widths[piece]
        inside = (low + high) / 2
        if power == 2:
            inside = (low**2 + low * high + high**2) / 3
        lower_cut = self.lower.excess(share)
        mirrored = self.lower.moment_beyond(lower_cut, -low, power)
        below = (-1) ** power * mirrored
        # In the upper tail the lowest share is all but the rest.
        rest = np.where(piece == len(self.knots), 1 - share, 0)
        survival = np.where(rest > 0, rest, 1)
        upper_cut = self.upper.excess(survival)
        whole_tail = self.upper.moment_beyond(np.zeros(()), low, power)
        beyond_cut = self.upper.moment_beyond(upper_cut, low, power)
        above = (whole_tail - rest * beyond_cut) / share
        return self._by_piece(piece, below, inside, above)

    def _by_piece(self, piece: Ints, below: Floats, inside: Floats, above: Floats) -> Floats:
        """Of each element, the value for the lower tail, the pieces inside or the upper tail."""
        upwards = np.where(piece == len(self.knots), above, inside)
        return np.where(piece == 0, below, upwards)
