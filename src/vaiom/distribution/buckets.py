"""The distribution of a log return over buckets, given that the return is not zero.

Enters: probabilities of the 16 return buckets, a scale sigma, and how returns spread inside the
buckets and in the tails. Leaves: probabilities, densities, quantiles, moments and risk, of one
forecast or of many events at once. All figures are exact up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vaiom.distribution.shape import PIECES, Floats, Ints, ReturnShape
from vaiom.errors import ConfigError

SIDES = ("long", "short")
"""A long position loses where returns are negative, a short one where they are positive."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BucketDistribution:
    """The distribution of one log return, or of many with a leading axis of N events.

    Methods have the names of `scipy.stats`. A single value is evaluated for every event, and an
    array of values has the events as its first axis. Levels are evaluated for every event, and
    their axes come last. One distribution gives plain numbers.
    """

    probs: Floats
    """(16,) or (N, 16) probabilities of the return buckets."""
    sigma: Any
    """A number or (N,), the scale through the last bar: a log return is sigma times an edge."""
    shape: ReturnShape

    def __repr__(self) -> str:
        return f"<BucketDistribution of {len(self._sigma):,} events>"

    @property
    def cumulative(self) -> Floats:
        """(..., J) the distribution function at the knots of `shape`."""
        at_knots = self._bounds[:, 1:-1]
        return at_knots.reshape((*np.shape(self.sigma), -1))

    def cdf(self, x: ArrayLike) -> Any:
        """P(return <= x), x in log returns; at the realised return it is the PIT."""
        return self._evaluate(self._cdf, x)

    def sf(self, x: ArrayLike) -> Any:
        """P(return > x), x in log returns."""
        return 1 - self.cdf(x)

    def pdf(self, x: ArrayLike) -> Any:
        """The density at x, per unit of log return."""
        return self._evaluate(self._density, x)

    def logpdf(self, x: ArrayLike) -> Any:
        """The natural logarithm of the density at x; minus infinity where the density is 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.pdf(x))

    def quantile(self, q: ArrayLike) -> Any:
        """The least log return r with P(return <= r) >= q, for levels q from 0 to 1."""
        levels = np.asarray(q, np.float64)
        in_range = (levels >= 0) & (levels <= 1)
        if not in_range.all():
            raise ConfigError("a quantile's level is a probability", expected="0 to 1", got=q)
        quantiles = self._quantile(self._for_every_event(levels))
        return self._shaped(quantiles, levels.shape)

    ppf = quantile

    def interval(self, level: float) -> tuple[Any, Any]:
        """The central interval of log returns that has this probability."""
        tail = (1 - level) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def rvs(
        self,
        size: int | tuple[int, ...] = 1,
        seed: int | None = None,
        *,
        random_state: int | np.random.Generator | None = None,
    ) -> Floats:
        """Draw (..., *size) log returns, `size` from each distribution; none of them is zero.

        `random_state` is SciPy's name of `seed`, and may be a generator that goes on.
        """
        if seed is not None and random_state is not None:
            problem = "seed and random_state are two names of one thing"
            raise ConfigError(problem, expected="one of them", got="both")
        shape = (size,) if isinstance(size, int | np.integer) else tuple(size)
        rng = np.random.default_rng(seed if random_state is None else random_state)
        levels = rng.random((len(self._sigma), math.prod(shape)))
        return np.asarray(self._shaped(self._quantile(levels), shape))

    @property
    def prob_up(self) -> Any:
        """P(return > 0)."""
        return self.sf(0.0)

    def prob_beyond(self, x: ArrayLike) -> Any:
        """P(|return| > |x|), x in log returns."""
        size = np.abs(x)
        return self.sf(size) + self.cdf(-size)

    def mean(self) -> Any:
        """The mean log return."""
        return self._shaped(self._moment(1) * self._sigma)

    def median(self) -> Any:
        """The median log return."""
        return self.quantile(0.5)

    def std(self) -> Any:
        """The standard deviation of the log return."""
        mean = self._moment(1)
        variance = self._moment(2) - mean**2
        deviation = np.sqrt(variance)
        return self._shaped(deviation * self._sigma)

    def var(self) -> Any:
        """The variance of the log return."""
        return self.std() ** 2

    def value_at_risk(self, level: ArrayLike = 0.99, side: str = "long") -> Any:
        """The loss that is exceeded with probability 1 - level, in log returns; a gain is negative.

        `side` is "long" or "short". Levels are between 0 and 1.
        """
        levels = _risk_levels(level, side)
        if side == "long":
            return 0.0 - self.quantile(1 - levels)  # no loss is 0, not -0
        return self.quantile(levels)

    def expected_shortfall(
        self, level: ArrayLike = 0.99, side: str = "long", power: int = 1
    ) -> Any:
        """The mean loss over the worst outcomes of probability 1 - level, in log returns.

        It is the mean of what exceeds the value at risk (Acerbi and Tasche 2002). With `power` 2 it
        is the mean squared loss.
        """
        levels = _risk_levels(level, side)
        losing_low = self if side == "long" else self._mirrored
        worst = self._for_every_event(1 - levels)
        moments = losing_low._moment_below(worst, power)
        unit = (-self._sigma) ** power
        return self._shaped(moments * unit, levels.shape)

    # Below, arrays have the shape (N, M), M values of each of N events; z is a return in sigmas.

    @cached_property
    def _sigma(self) -> Floats:
        """(N, 1)."""
        sigma = np.asarray(self.sigma, np.float64)
        return sigma.reshape(-1, 1)

    @cached_property
    def _bounds(self) -> Floats:
        """(N, J + 2) the distribution function at both ends of each piece: 0, at the knots, 1."""
        num_buckets = self.probs.shape[-1]
        probs = self.probs.reshape(-1, num_buckets)
        lowest = probs[:, :1]
        inner = probs[:, 1:-1] / PIECES
        pieces = np.repeat(inner, PIECES, axis=1)
        masses = np.concatenate([lowest, pieces], axis=1)
        at_knots = np.cumsum(masses, axis=1)
        num_knots = len(self.shape.knots)
        bounds = np.ones((len(probs), num_knots + 2))
        bounds[:, 0] = 0.0
        bounds[:, 1:-1] = np.minimum(at_knots, 1.0)
        return bounds

    @cached_property
    def _mirrored(self) -> BucketDistribution:
        """The distribution of the returns with their signs changed."""
        flipped = self.probs[..., ::-1]
        return BucketDistribution(probs=flipped, sigma=self.sigma, shape=self.shape.mirrored)

    def _bounds_of(self, piece: Ints) -> tuple[Floats, Floats]:
        """(N, M) the distribution function at both ends of these pieces (N, M)."""
        events = np.arange(len(piece))[:, None]
        low = self._bounds[events, piece]
        high = self._bounds[events, piece + 1]
        return low, high

    def _cdf(self, z: Floats) -> Floats:
        piece, share = self.shape.locate(z)
        low, high = self._bounds_of(piece)
        return low * (1 - share) + high * share

    def _density(self, z: Floats) -> Floats:
        piece, _ = self.shape.locate(z)
        low, high = self._bounds_of(piece)
        mass = high - low
        within_piece = self.shape.density(piece, z)
        return mass * within_piece / self._sigma

    def _locate(self, levels: Floats) -> tuple[Ints, Floats]:
        """The places at which the distribution function reaches levels (N, M)."""
        at_knots = self._bounds[:, 1:-1]
        if len(levels) == 1:
            piece = np.searchsorted(at_knots[0], levels, side="left")
        else:
            piece = np.empty(levels.shape, np.int64)
            for column, level in enumerate(levels.T):
                is_below = at_knots < level[:, None]
                piece[:, column] = is_below.sum(axis=1)
        low, high = self._bounds_of(piece)
        mass = high - low
        # Only the lower tail can be reached without having mass: level 0 is then its end.
        share = np.ones(levels.shape)
        np.divide(levels - low, mass, out=share, where=mass > 0)
        return piece, share

    def _for_every_event(self, levels: Floats) -> Floats:
        """(N, M) the same levels for each event."""
        return np.ones_like(self._sigma) * levels.ravel()

    def _quantile(self, levels: Floats) -> Floats:
        """Log returns at levels (N, M); infinite at 0 and 1 where a tail has mass."""
        piece, share = self._locate(levels)
        z = self.shape.value(piece, share)
        return z * self._sigma

    def _moments_of_pieces(self, power: int) -> Floats:
        """(N, J + 1) what each piece adds to the mean of Z ** power."""
        masses = np.diff(self._bounds)
        return masses * self.shape.moments[power]

    def _moment(self, power: int) -> Floats:
        """(N, 1) the mean of Z ** power."""
        moments = self._moments_of_pieces(power)
        return np.asarray(moments.sum(axis=1, keepdims=True))

    def _moment_below(self, levels: Floats, power: int) -> Floats:
        """(N, M) means of Z ** power over the lowest outcomes of these total probabilities.

        They are between 0 and 1. The power of the quantile function is integrated over the whole
        pieces below the level, and over the piece in which the level lies.
        """
        piece, share = self._locate(levels)
        cut_piece = self.shape.moments_below(piece, share, power)
        if not piece.any():  # all in the lower tail, as most risk figures are
            return cut_piece
        moments = self._moments_of_pieces(power)
        below_knots = np.cumsum(moments, axis=1) - moments
        whole_pieces = np.take_along_axis(below_knots, piece, axis=1)
        low, _ = self._bounds_of(piece)
        cut_mass = levels - low
        total = whole_pieces + cut_mass * cut_piece
        return np.where(piece == 0, cut_piece, total / levels)

    def _evaluate(self, function: Callable[[Floats], Floats], x: ArrayLike) -> Any:
        """A function of z at log returns: one for every event, or an array of the events' own."""
        values = np.asarray(x, np.float64)
        events = np.shape(self.sigma)
        if values.ndim == 0:
            values = np.broadcast_to(values, events)
        if values.shape[: len(events)] != events:
            problem = "values belong to the events of the distributions"
            raise ConfigError(problem, expected=events, got=values.shape)
        axes = values.shape[len(events) :]
        rows = values.reshape(len(self._sigma), math.prod(axes))
        with np.errstate(over="ignore"):  # beyond the largest number is as good as infinite
            z = rows / self._sigma
        return self._shaped(function(z), axes)

    def _shaped(self, values: Floats, axes: tuple[int, ...] = ()) -> Any:
        """Results (N, M) with the axes of events and arguments; a plain number without any."""
        shaped = values.reshape(np.shape(self.sigma) + axes)
        if shaped.ndim == 0:
            return float(shaped)
        return shaped


def _risk_levels(level: ArrayLike, side: str) -> Floats:
    """Levels of a risk figure as an array, once they and the side make sense."""
    levels = np.asarray(level, np.float64)
    if side not in SIDES:
        raise ConfigError("unknown side", expected=" or ".join(SIDES), got=repr(side))
    in_range = (levels > 0) & (levels < 1)
    if not in_range.all():
        expected = "between 0 and 1, as in 0.99"
        raise ConfigError("a risk level is a probability", expected=expected, got=levels)
    return levels
