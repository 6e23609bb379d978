"""The continuous law of a scaled return: probabilities of buckets spread by the Train-fitted shape.

Enters: 16 probabilities, the fitted `ReturnShape`. Leaves: distribution function, quantiles, density and partial means,
all exact: linear pieces between knots, a generalised Pareto law beyond the outermost edges. Units are sigmas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.events.shape import PIECES, ReturnShape, Tail

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PiecewiseLaw:
    """`cumulative` is the distribution function at the knots; the rest of the mass lies in the two tails."""

    knots: Floats
    cumulative: Floats
    lower: Tail
    upper: Tail

    @property
    def _lower_mass(self) -> float:
        return float(self.cumulative[0])

    @property
    def _upper_mass(self) -> float:
        return float(1 - self.cumulative[-1])

    def cdf(self, z: Floats) -> Floats:
        """P(Z <= z)."""
        inside = np.interp(z, self.knots, self.cumulative)
        below = self._lower_mass * self.lower.survival(np.maximum(self.knots[0] - z, 0))
        above = 1 - self._upper_mass * self.upper.survival(np.maximum(z - self.knots[-1], 0))
        return np.where(z < self.knots[0], below, np.where(z > self.knots[-1], above, inside))

    def density(self, z: Floats) -> Floats:
        """The derivative of `cdf`; at a knot that of the piece below it."""
        heights = np.diff(self.cumulative) / np.diff(self.knots)
        piece = np.clip(np.searchsorted(self.knots, z, side="left") - 1, 0, len(heights) - 1)
        below = self._lower_mass * _tail_density(self.lower, np.maximum(self.knots[0] - z, 0))
        above = self._upper_mass * _tail_density(self.upper, np.maximum(z - self.knots[-1], 0))
        return np.where(z <= self.knots[0], below, np.where(z > self.knots[-1], above, heights[piece]))

    def quantile(self, level: Floats) -> Floats:
        """The least z with P(Z <= z) >= level; infinite at 0 and 1."""
        right = np.clip(np.searchsorted(self.cumulative, level, side="left"), 1, len(self.knots) - 1)
        left = right - 1
        mass = self.cumulative[right] - self.cumulative[left]
        # A piece without mass is never the one asked for, except at the very first knot.
        share = np.where(mass > 0, (level - self.cumulative[left]) / np.where(mass > 0, mass, 1), 0)
        inside = self.knots[left] + np.clip(share, 0, 1) * (self.knots[right] - self.knots[left])
        lower_share, upper_share = _share(level, self._lower_mass), _share(1 - level, self._upper_mass)
        below = self.knots[0] - self.lower.excess(lower_share)
        above = self.knots[-1] + self.upper.excess(upper_share)
        return np.where(level < self.cumulative[0], below, np.where(level > self.cumulative[-1], above, inside))

    def mean_below(self, level: float) -> float:
        """The mean of Z over its lowest outcomes of total probability `level`, in (0, 1]."""
        return self._integral(level) / level

    def reflected(self) -> PiecewiseLaw:
        """The law of -Z."""
        return PiecewiseLaw(
            knots=-self.knots[::-1], cumulative=1 - self.cumulative[::-1], lower=self.upper, upper=self.lower
        )

    def _integral(self, level: float) -> float:
        """The quantile function integrated from 0 to `level`: tail, whole pieces, the cut piece, the other tail."""
        first, last = self.knots[0], self.knots[-1]
        if level <= self._lower_mass:
            excess = float(self.lower.excess(np.array(level / self._lower_mass)))
            return level * float(first - self.lower.mean_beyond(excess))
        total = self._lower_mass * float(first - self.lower.mean_beyond(0))
        ends = np.minimum(self.cumulative, level)
        tops = np.minimum(self.knots, self.quantile(np.array(level)))
        total += float((np.diff(ends) * (tops[:-1] + tops[1:]) / 2).sum())
        if level > self.cumulative[-1]:
            rest = 1 - level
            total += self._upper_mass * float(last + self.upper.mean_beyond(0))
            if rest > 0:
                excess = float(self.upper.excess(np.array(min(rest / self._upper_mass, 1.0))))
                total -= rest * float(last + self.upper.mean_beyond(excess))
        return total


def law_of(probs: Floats, shape: ReturnShape) -> PiecewiseLaw:
    """Spread the probabilities of all buckets, the two tails included."""
    inside = np.repeat(probs[1:-1] / PIECES, PIECES)
    cumulative = np.minimum(probs[0] + np.concatenate([[0.0], np.cumsum(inside)]), 1.0)
    return PiecewiseLaw(knots=shape.knots, cumulative=cumulative, lower=shape.lower, upper=shape.upper)


def _tail_density(tail: Tail, excess: Floats) -> Floats:
    return tail.survival(excess) / (tail.scale + tail.shape * excess)


def _share(mass: Floats, of: float) -> Floats:
    return np.clip(mass / of, 0, 1) if of > 0 else np.ones_like(mass)
