"""The distribution of the next log return, given that it is not zero: one forecast, or many events
at once.

Inside a bucket the distribution function is linear between knots of equal mass; beyond the
outermost edges the excess is generalised Pareto. The paper (Methods, "Return Bucket Construction")
leaves both open. All figures are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from vaiom.errors import ConfigError

PIECES = 8
"""Intervals of equal mass in a bucket."""
TAIL_SHAPES = (0.0, 0.45)
"""Bounds of the tail index: below the first tails are bounded, up to the second the variance is
finite.
"""
SIDES = ("long", "short")

Floats = npt.NDArray[np.float64]
Value = TypeVar("Value", float, Floats)


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The excess over an outermost edge, in sigmas: generalised Pareto, exponential where `shape`
    is 0.
    """

    scale: float
    shape: float

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf and TAIL_SHAPES[0] <= self.shape <= TAIL_SHAPES[1]):
            raise ValueError("a tail without sense")

    def survival(self, excess: Floats) -> Floats:
        """The probability of a larger excess."""
        if self.shape == 0:
            return np.exp(-excess / self.scale)
        return np.exp(-np.log1p(self.shape * excess / self.scale) / self.shape)

    def density(self, excess: Floats) -> Floats:
        """The density of the excess."""
        return self.survival(excess) / (
            self.scale + self.shape * excess if self.shape else self.scale
        )

    def excess(self, survival: Floats) -> Floats:
        """The excess exceeded with this probability; infinite for 0."""
        with np.errstate(divide="ignore"):
            nats = -np.log(survival)
        return (
            self.scale * nats
            if self.shape == 0
            else self.scale * np.expm1(self.shape * nats) / self.shape
        )

    def moment_beyond(
        self, excess: Floats | float, edge: float = 0.0, power: int = 1
    ) -> Floats | float:
        """The mean of (edge + X) ** power over the excesses X above this one; power is 1 or 2."""
        # Excesses above a threshold follow the same family with a larger scale.
        scale = self.scale + self.shape * excess
        mean = scale / (1 - self.shape)
        if power == 1:
            return edge + (excess + mean)
        base = edge + excess
        return base * base + 2 * base * mean + 2 * scale * mean / (1 - 2 * self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReturnShape:
    """Knots in sigmas from the first inner edge to the last, `PIECES` pieces a bucket, and the two
    tails.
    """

    knots: Floats
    lower: Tail
    upper: Tail

    def __post_init__(self) -> None:
        # Equal knots would divide the density by zero.
        if (
            self.knots.ndim != 1
            or not np.isfinite(self.knots).all()
            or not (np.diff(self.knots) > 0).all()
        ):
            raise ValueError("knots must increase")
        self.knots.flags.writeable = False  # all forecasts share them


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pieces:
    """N distributions in sigmas: `cumulative` (N, J) at the knots (J,); the rest of the mass lies
    in the tails.
    """

    knots: Floats
    cumulative: Floats
    lower: Tail
    upper: Tail

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        return np.arange(len(self.cumulative))[:, None]

    @cached_property
    def _masses(self) -> tuple[Floats, Floats]:
        """(N, 1) below the first knot and above the last."""
        return self.cumulative[:, :1], 1 - self.cumulative[:, -1:]

    @cached_property
    def mirrored(self) -> _Pieces:
        """The distributions of -Z."""
        flipped = np.ascontiguousarray(1 - self.cumulative[:, ::-1])
        return _Pieces(
            knots=-self.knots[::-1], cumulative=flipped, lower=self.upper, upper=self.lower
        )

    def cdf(self, z: Floats) -> Floats:
        """P(Z <= z) for z (N, M)."""
        inner = np.minimum(np.maximum(z, self.knots[0]), self.knots[-1])
        at = np.minimum(np.searchsorted(self.knots, inner, side="right"), len(self.knots) - 1)
        low, high = self.cumulative[self._rows, at - 1], self.cumulative[self._rows, at]
        slope = (high - low) / (self.knots[at] - self.knots[at - 1])
        inside = np.where(inner == self.knots[-1], high, slope * (inner - self.knots[at - 1]) + low)
        return self._with_tails(
            inside,
            (
                z < self.knots[0],
                lambda: self._masses[0] * self.lower.survival(np.maximum(self.knots[0] - z, 0)),
            ),
            (
                z > self.knots[-1],
                lambda: (
                    1 - self._masses[1] * self.upper.survival(np.maximum(z - self.knots[-1], 0))
                ),
            ),
        )

    def density(self, z: Floats) -> Floats:
        """The derivative of `cdf`; at a knot that of the piece below it."""
        at = np.minimum(
            np.maximum(np.searchsorted(self.knots, z, side="left"), 1), len(self.knots) - 1
        )
        mass = self.cumulative[self._rows, at] - self.cumulative[self._rows, at - 1]
        return self._with_tails(
            mass / (self.knots[at] - self.knots[at - 1]),
            (
                z <= self.knots[0],
                lambda: self._masses[0] * self.lower.density(np.maximum(self.knots[0] - z, 0)),
            ),
            (
                z > self.knots[-1],
                lambda: self._masses[1] * self.upper.density(np.maximum(z - self.knots[-1], 0)),
            ),
            (np.isnan(z), lambda: z),
        )

    def quantile(self, level: Floats) -> Floats:
        """The least z with P(Z <= z) >= level, (N, M); infinite at 0 and 1."""
        if len(self.cumulative) == 1:
            at = np.searchsorted(self.cumulative[0], level, side="left")
        else:
            below = [(self.cumulative < each[:, None]).sum(axis=1) for each in level.T]
            at = np.array(below, np.int64).reshape(level.shape[::-1]).T
        at = np.minimum(np.maximum(at, 1), len(self.knots) - 1)
        left, low = self.knots[at - 1], self.cumulative[self._rows, at - 1]
        mass = self.cumulative[self._rows, at] - low
        # A piece without mass is never selected, except at the first knot.
        share = np.where(mass > 0, (level - low) / np.where(mass > 0, mass, 1), 0)
        lower, upper = self._masses
        return self._with_tails(
            left + np.minimum(np.maximum(share, 0), 1) * (self.knots[at] - left),
            (level < lower, lambda: self.knots[0] - self.lower.excess(_share(level, lower))),
            (
                level > self.cumulative[:, -1:],
                lambda: self.knots[-1] + self.upper.excess(_share(1 - level, upper)),
            ),
        )

    @staticmethod
    def _with_tails(
        inside: Floats, *tails: tuple[npt.NDArray[np.bool_], Callable[[], Floats]]
    ) -> Floats:
        """The values inside, replaced in each tail where its mask is set; a tail without any is not
        computed.
        """
        for mask, values in tails:
            if mask.any():
                inside = np.where(mask, values(), inside)
        return inside

    def moment_below(self, levels: Floats, power: int = 1) -> Floats:
        """(N, M) means of Z ** power over the lowest outcomes of total probability `levels` (M,),
        each in (0, 1].
        """
        # The power of the quantile function, integrated: lower tail, whole pieces, the cut piece,
        # upper tail.
        first, last = self.knots[0], self.knots[-1]
        lower, upper = self._masses
        every, sign = np.ones_like(lower) * levels, (-1) ** power

        def within_lower() -> Floats:
            cut = self.lower.excess(_share(every, lower))
            return np.asarray(every * (sign * self.lower.moment_beyond(cut, -first, power)))

        if (every <= lower).all():  # most risk figures
            return within_lower() / every
        whole = bool((levels == 1).all())  # a mean, which cuts no piece
        tops = self.knots if whole else np.minimum(self.knots, self.quantile(every)[:, :, None])
        a, b = tops[..., :-1], tops[..., 1:]
        means = (a + b) / 2 if power == 1 else (a * a + a * b + b * b) / 3
        below = np.minimum(self.cumulative[:, None], levels[:, None])
        inside = ((below[..., 1:] - below[..., :-1]) * means).sum(axis=-1)
        total = lower * (sign * self.lower.moment_beyond(0.0, -first, power)) + inside

        def with_upper() -> Floats:
            rest, beyond = (
                1 - every,
                np.asarray(total + upper * self.upper.moment_beyond(0.0, last, power)),
            )
            if whole:
                return beyond
            cut = self.upper.excess(_share(np.where(rest > 0, rest, 1), upper))
            return np.asarray(beyond - rest * self.upper.moment_beyond(cut, last, power))

        above = every > self.cumulative[:, -1:]
        return self._with_tails(total, (above, with_upper), (every <= lower, within_lower)) / every


def _share(mass: Floats, of: Floats) -> Floats:
    """Mass as a share of another, in [0, 1]; 1 if that is 0."""
    return np.where(of > 0, np.minimum(np.maximum(mass / np.where(of > 0, of, 1), 0), 1), 1.0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BucketDistribution(Generic[Value]):
    """One distribution, or many with a leading axis of events; methods named as in scipy.stats
    beside its own.

    A scalar value is evaluated for every distribution, an array has the events as its first axis;
    levels are evaluated for every distribution, and their axes come last.
    """

    probs: Floats
    """(..., 16) probabilities of the return buckets."""
    sigma: Value
    """The scale through the last bar: a log return is an edge times this."""
    shape: ReturnShape
    """Where returns lie inside the buckets and beyond the outermost edges."""

    @cached_property
    def cumulative(self) -> Floats:
        """(..., J) the distribution function at the knots of `shape`."""
        inside = np.cumsum(np.repeat(self.probs[..., 1:-1] / PIECES, PIECES, axis=-1), axis=-1)
        first = self.probs[..., :1]
        return np.asarray(np.minimum(np.concatenate([first, first + inside], axis=-1), 1.0))

    def cdf(self, x: npt.ArrayLike) -> Any:
        """P(return <= x), x in log returns; at realised returns this is the PIT."""
        return self._at(x, lambda z: self._pieces.cdf(z))

    def sf(self, x: npt.ArrayLike) -> Any:
        """P(return > x), x in log returns."""
        return 1 - self.cdf(x)

    def pdf(self, x: npt.ArrayLike) -> Any:
        """The density at x, per unit of log return."""
        return self._at(x, lambda z: self._pieces.density(z) / self._sigma)

    def logpdf(self, x: npt.ArrayLike) -> Any:
        """The natural logarithm of the density at x; minus infinity where it is 0."""
        with np.errstate(divide="ignore"):
            return self._at(x, lambda z: np.log(self._pieces.density(z) / self._sigma))

    def quantile(self, q: npt.ArrayLike) -> Any:
        """The quantile of the log return at level q."""
        levels = np.asarray(q, np.float64)
        if not ((levels >= 0) & (levels <= 1)).all():
            raise ConfigError("a quantile's level is a probability", expected="0 to 1", got=q)
        every = np.ones_like(self._sigma) * levels.ravel()
        return self._shaped(self._pieces.quantile(every) * self._sigma, levels.shape)

    def interval(self, level: float) -> tuple[Value, Value]:
        """The central interval of log returns with this probability."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def rvs(self, size: int | tuple[int, ...] = 1, seed: int | None = None) -> Floats:
        """Draw `size` log returns from each distribution, never zero ones."""
        shape = (size,) if isinstance(size, int | np.integer) else tuple(size)
        levels = np.random.default_rng(seed).random((len(self._sigma), math.prod(shape)))
        return np.asarray(self._shaped(self._pieces.quantile(levels) * self._sigma, shape))

    ppf, density, sample = quantile, pdf, rvs

    @property
    def prob_up(self) -> Value:
        """P(return > 0)."""
        return self._shaped(1 - self._pieces.cdf(0.0 / self._sigma))

    def prob_beyond(self, x: npt.ArrayLike) -> Any:
        """P(|return| > x), x a log return of either sign."""
        return self._at(x, lambda z: 1 - self._pieces.cdf(np.abs(z)) + self._pieces.cdf(-np.abs(z)))

    def mean(self) -> Value:
        """The mean log return."""
        return self._shaped(self._pieces.moment_below(np.ones(1)) * self._sigma)

    def median(self) -> Any:
        """The median log return."""
        return self.quantile(0.5)

    def var(self) -> Any:
        """The variance of the log return."""
        return np.square(self.std())

    def std(self) -> Value:
        """The standard deviation of the log return."""
        mean, square = (self._pieces.moment_below(np.ones(1), power) for power in (1, 2))
        return self._shaped(np.sqrt(square - mean * mean) * self._sigma)

    def value_at_risk(self, level: npt.ArrayLike = 0.99, side: str = "long") -> Any:
        """The quantile of the loss at `level`; positive is a loss, in log returns."""
        levels = np.asarray(level, np.float64)
        quantiles = self._losses(levels, side).quantile(
            np.ones_like(self._sigma) * (1 - levels.ravel())
        )
        return self._shaped(-quantiles * self._sigma, levels.shape)

    def expected_shortfall(
        self, level: npt.ArrayLike = 0.99, side: str = "long", power: int = 1
    ) -> Any:
        """The mean loss, or squared loss (power 2), over the worst 1 - level; positive is a loss,
        in log returns.
        """
        levels = np.asarray(level, np.float64)
        moments = self._losses(levels, side).moment_below(1 - levels.ravel(), power)
        return self._shaped(moments * (-self._sigma) ** power, levels.shape)

    @cached_property
    def _sigma(self) -> Floats:
        """(N, 1)."""
        return np.ravel(np.asarray(self.sigma, np.float64))[:, None]

    @cached_property
    def _pieces(self) -> _Pieces:
        rows = self.cumulative.reshape(len(self._sigma), len(self.shape.knots))
        return _Pieces(
            knots=self.shape.knots, cumulative=rows, lower=self.shape.lower, upper=self.shape.upper
        )

    def _losses(self, levels: Floats, side: str) -> _Pieces:
        """The distributions whose lower tail is the loss of that side."""
        if side not in SIDES:
            raise ConfigError("unknown side", expected=" or ".join(SIDES), got=repr(side))
        if not ((levels > 0) & (levels < 1)).all():
            raise ConfigError(
                "a risk level is a probability", expected="between 0 and 1, as in 0.99", got=levels
            )
        return self._pieces if side == "long" else self._pieces.mirrored

    def _at(self, x: npt.ArrayLike, function: Callable[[Floats], Floats]) -> Any:
        """Evaluate at values: a number, or an array whose first axis is that of the events, if
        there is one.
        """
        values, events = np.asarray(x, np.float64), self.probs.shape[:-1]
        if values.ndim == 0:
            values = np.broadcast_to(values, events)
        if values.shape[: len(events)] != events:
            raise ConfigError(
                "values belong to the events of the distributions",
                expected=events,
                got=values.shape,
            )
        axes = values.shape[len(events) :]
        return self._shaped(
            function(values.reshape(len(self._sigma), math.prod(axes)) / self._sigma), axes
        )

    def _shaped(self, values: Floats, axes: tuple[int, ...] = ()) -> Value:
        """(N, M) values reshaped to the axes of events and arguments; a plain number if there are
        none.
        """
        shaped: Any = values.reshape(self.probs.shape[:-1] + axes)
        return shaped if shaped.ndim else float(shaped)  # type: ignore[return-value]


class ReturnDistributions(BucketDistribution[Floats]):
    """The distributions of many events: probs (N, 16), sigma (N,)."""

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        return f"<ReturnDistributions of {len(self):,} events>"
