"""The joint distribution of several assets' next returns, zero returns included, and the profit and
loss of positions.

Marginal forecasts are joined by a Student-t copula; draws are seeded, and figures from draws carry
standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from vaiom.distribution.buckets import BucketDistribution, Floats
from vaiom.distribution.dependence import LEAST_TAIL, correlation_of, pit_of, scores_of
from vaiom.errors import ConfigError
from vaiom.features.recursions import MAX_LOG_MOVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWS = 20_000
SHOWN_LEVELS = (0.01, 0.05, 0.5, 0.95, 0.99)

_MOST_TERMS = 40
"""Up to so many even degrees of freedom, the finite sum of Student's distribution is faster."""
_FARTHEST_SCORE = 1e9
"""Its level is beyond `LEAST_TAIL` for two degrees of freedom and more."""
_NEAR = 0.1
"""Draws within this share of the tail around the value at risk estimate its contributions."""


class Estimate(float):
    """A figure from draws, with its standard error."""

    standard_error: float

    def __new__(
        cls, value: float, standard_error: float = math.nan
    ) -> Self:  # a copy sets the error afterwards
        self = super().__new__(cls, value)
        self.standard_error = float(standard_error)
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class Marginal:
    """The distribution of one asset's log return, zero returns included."""

    dist: BucketDistribution[float]
    """The marginal forecast, given a non-zero return."""
    prob_zero: float
    margin: float | None
    """Degrees of freedom of the scores of the marginal forecast."""
    degrees: float | None
    """Degrees of freedom, location and scale of the scores given other assets' returns."""
    location: float
    spread: float

    def cdf(self, x: float) -> float:
        """P(log return <= x)."""
        level = (1 - self.prob_zero) * self.dist.cdf(float(x)) + self.prob_zero * (x >= 0)
        score = scores_of(np.array(level), self.margin)
        return float(_levels_of((score - self.location) / self.spread, self.degrees))

    def quantile(self, q: float) -> float:
        """The quantile of the log return at level q."""
        return float(
            self.returns_of(self.location + self.spread * scores_of(np.array(q), self.degrees))
        )

    ppf = quantile

    def returns_of(self, scores: Floats) -> Floats:
        """Log returns from scores: the quantiles at their levels."""
        shape = np.shape(scores)
        levels = np.clip(_drawn_levels(np.ravel(scores), self.margin), LEAST_TAIL, 1 - LEAST_TAIL)
        knot_levels, knot_returns = self._quantile_knots
        returns = np.interp(levels, knot_levels, knot_returns)
        tails = self.dist.shape
        below = levels < knot_levels[0]
        if below.any():
            excess = tails.lower.excess(levels[below] / knot_levels[0])
            returns[below] = knot_returns[0] - excess * self.dist.sigma
        above = levels > knot_levels[-1]
        if above.any():
            excess = tails.upper.excess((1 - levels[above]) / (1 - knot_levels[-1]))
            returns[above] = knot_returns[-1] + excess * self.dist.sigma
        return returns.reshape(shape)

    @cached_property
    def _quantile_knots(self) -> tuple[Floats, Floats]:
        """Levels and log returns between which the quantile function is linear; flat at zero."""
        knots, cumulative = self.dist.shape.knots, self.dist.cumulative
        moving = 1 - self.prob_zero
        below_zero = moving * np.interp(0.0, knots, cumulative)
        at = int(np.searchsorted(knots, 0.0))
        levels = np.concatenate(
            [
                moving * cumulative[:at],
                [below_zero, below_zero + self.prob_zero],
                moving * cumulative[at:] + self.prob_zero,
            ]
        )
        returns = np.concatenate([knots[:at], [0.0, 0.0], knots[at:]]) * self.dist.sigma
        return levels, returns


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JointDistribution:
    """Log returns of several assets; matrices and draws are in the order of `symbols`."""

    dists: Mapping[str, BucketDistribution[float]]
    prob_zero: Mapping[str, float]
    scatter: Floats
    """(n, n) scatter of the copula's scores, with location (n,) and degrees of freedom."""
    location: Floats
    degrees: float | None
    margin: float | None
    """Degrees of freedom of the marginal forecasts' scores: those before conditioning."""
    horizon: int = 1
    as_of: datetime | None = None
    notes: tuple[str, ...] = ()
    """Reasons for caution."""

    @classmethod
    def of(
        cls,
        dists: Mapping[str, BucketDistribution[float]],
        prob_zero: Mapping[str, float],
        correlation: Floats,
        degrees: float | None = None,
        **about: Any,
    ) -> Self:
        """Join the distributions of assets by a copula with this correlation."""
        copula: dict[str, Any] = {"scatter": correlation, "degrees": degrees, "margin": degrees}
        return cls(
            dists=dists, prob_zero=prob_zero, location=np.zeros(len(dists)), **copula, **about
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self.dists)

    @property
    def correlation(self) -> Floats:
        """(n, n) correlation of the copula."""
        return correlation_of(self.scatter)

    def __repr__(self) -> str:
        copula = (
            "Gaussian"
            if self.degrees is None
            else f"Student-t with {self.degrees:g} degrees of freedom"
        )
        return (
            f"<JointDistribution of {', '.join(self.symbols)}, horizon {self.horizon} after "
            f"{self.as_of}, {copula}>"
        )

    def marginal(self, symbol: str) -> Marginal:
        """The marginal distribution of one asset."""
        [at] = self._at([symbol])
        return Marginal(
            dist=self.dists[symbol],
            prob_zero=self.prob_zero[symbol],
            margin=self.margin,
            degrees=self.degrees,
            location=float(self.location[at]),
            spread=math.sqrt(self.scatter[at, at]),
        )

    def sample(self, n: int = DRAWS, seed: int = 0) -> Floats:
        """Draw log returns, (n, assets)."""
        if n < 1:
            raise ConfigError("a number of draws is positive", got=n)
        rng = np.random.default_rng(seed)
        scores = rng.standard_normal((n, len(self.dists))) @ np.linalg.cholesky(self.scatter).T
        if self.degrees is not None:
            scores /= np.sqrt(rng.chisquare(self.degrees, (n, 1)) / self.degrees)
        return self.returns_of(scores + self.location)

    def returns_of(self, scores: Floats) -> Floats:
        """Log returns from the copula's scores, (n, assets) each."""
        return np.stack(
            [self.marginal(each).returns_of(scores[:, at]) for at, each in enumerate(self.dists)],
            axis=1,
        )

    def prob(
        self, event: Callable[[dict[str, Floats]], Any], n: int = DRAWS, seed: int = 0
    ) -> Estimate:
        """The probability of an event, a condition on arrays of log returns: `lambda r: r["EURUSD"]
        < r["GBPUSD"]`.
        """
        hits = np.asarray(event(dict(zip(self.symbols, self.sample(n, seed).T, strict=True))))
        if hits.shape != (n,) or hits.dtype != np.bool_:
            got = f"{hits.dtype} of shape {hits.shape}"
            raise ConfigError(
                "an event says yes or no to each draw", expected=f"{n} truth values", got=got
            )
        share = float(hits.mean())
        return Estimate(share, math.sqrt(share * (1 - share) / n))

    def given(self, returns: Mapping[str, float]) -> JointDistribution:
        """The distribution of the other assets, conditional on these log returns."""
        values = _finite(returns, "a log return", MAX_LOG_MOVE)
        known, rest = (
            self._at(list(values)),
            [at for at, each in enumerate(self.symbols) if each not in values],
        )
        if not rest:
            raise ConfigError(
                "nothing is left to forecast", expected="a return of some of the assets, not of all"
            )
        pits = [
            float(pit_of(self.dists[each], self.prob_zero[each], value))
            for each, value in values.items()
        ]
        ahead = scores_of(np.array(pits), self.margin) - self.location[known]
        own, across = self.scatter[np.ix_(known, known)], self.scatter[np.ix_(rest, known)]
        slopes = np.linalg.solve(own, across.T).T
        scatter, degrees = self.scatter[np.ix_(rest, rest)] - slopes @ across.T, self.degrees
        if degrees is not None:
            scatter = (
                scatter
                * (degrees + float(ahead @ np.linalg.solve(own, ahead)))
                / (degrees + len(known))
            )
            degrees += len(known)
        return replace(
            self,
            dists={each: dist for each, dist in self.dists.items() if each not in values},
            scatter=(scatter + scatter.T) / 2,
            location=self.location[rest] + slopes @ ahead,
            degrees=degrees,
        )

    def portfolio(self, positions: Mapping[str, float], n: int = DRAWS, seed: int = 0) -> Portfolio:
        """Profit and loss of amounts of money in some of the assets, negative if short."""
        amounts = _finite(positions, "an amount of money", 1e100)
        profits = np.array(list(amounts.values())) * np.expm1(
            self.sample(n, seed)[:, self._at(list(amounts))]
        )
        return Portfolio(positions=amounts, profits=profits, notes=self.notes)

    def _at(self, symbols: list[str]) -> list[int]:
        unknown = [symbol for symbol in symbols if symbol not in self.dists]
        if unknown:
            problem, fix = "no forecast of these assets", "bring in their bars, or leave them out"
            raise ConfigError(
                problem, expected=", ".join(self.symbols), got=", ".join(unknown), fix=fix
            )
        return [self.symbols.index(symbol) for symbol in symbols]


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The contribution of one position to total risk, in money; `marginal` is per additional unit
    of money.
    """

    amount: float
    value_at_risk: float
    expected_shortfall: float
    marginal_value_at_risk: float
    marginal_expected_shortfall: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Portfolio:
    """The distribution of profit and loss, in money; risk figures are positive for losses."""

    positions: dict[str, float]
    profits: Floats
    """(draws, positions)."""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        symbols, worst = ", ".join(self.positions), self.quantile(0.01)
        return (
            f"<Portfolio of {symbols}: 99% value at risk {-worst:,.2f} +- "
            f"{worst.standard_error:,.2f}>"
        )

    @cached_property
    def profit(self) -> Floats:
        """(draws,) total over positions."""
        return np.asarray(self.profits.sum(axis=1))

    def quantile(self, q: float) -> Estimate:
        """The quantile of profit at level q."""
        if not 0 <= q <= 1:
            raise ConfigError("a quantile's level is a probability", expected="0 to 1", got=q)
        error = math.sqrt(q * (1 - q) / len(self.profit))
        low, value, high = np.quantile(self.profit, [max(q - error, 0), q, min(q + error, 1)])
        return Estimate(float(value), float(high - low) / 2)

    def value_at_risk(self, level: float = 0.99) -> Estimate:
        """The quantile of the loss at `level`."""
        self._worst(level)  # refuses a level that the draws do not reach
        profit = self.quantile(1 - level)
        return Estimate(-profit, profit.standard_error)

    def expected_shortfall(self, level: float = 0.99) -> Estimate:
        """The mean loss over the worst 1 - level."""
        losses = -self.profit[self._worst(level)]
        mean, beyond = float(losses.mean()), float(losses.mean() - losses.min())
        return Estimate(mean, math.sqrt((float(losses.var()) + level * beyond**2) / len(losses)))

    def contributions(self, level: float = 0.99) -> dict[str, Contribution]:
        """Risk contributions by position, which add up to the total (Euler)."""
        worst = self._worst(level)
        at, near = len(worst), max(1, round(_NEAR * (1 - level) * len(self.profit)))
        limit = -self.profits[self._order[max(0, at - near) : at + near + 1]].mean(axis=0)
        limit = limit * float(self.value_at_risk(level)) / limit.sum() if limit.sum() else limit
        shortfall = -self.profits[worst].mean(axis=0)
        parts = zip(self.positions.items(), limit.tolist(), shortfall.tolist(), strict=True)
        return {
            symbol: Contribution(
                amount=amount,
                value_at_risk=var,
                expected_shortfall=es,
                marginal_value_at_risk=var / amount if amount else 0.0,
                marginal_expected_shortfall=es / amount if amount else 0.0,
            )
            for (symbol, amount), var, es in parts
        }

    def to_dict(self, level: float = 0.99) -> dict[str, Any]:
        """All figures as JSON-safe values."""
        limit, shortfall = self.value_at_risk(level), self.expected_shortfall(level)
        return {
            "level": level,
            "value_at_risk": limit,
            "expected_shortfall": shortfall,
            "standard_errors": {
                "value_at_risk": limit.standard_error,
                "expected_shortfall": shortfall.standard_error,
            },
            "quantiles": {str(each): self.quantile(each) for each in SHOWN_LEVELS},
            "contributions": {
                symbol: asdict(each) for symbol, each in self.contributions(level).items()
            },
            "notes": list(self.notes),
        }

    def plot(self, ax: Axes, level: float = 0.99) -> Axes:
        """Plot the drawn profits, with value at risk and expected shortfall."""
        ax.hist(
            self.profit, bins=200, range=tuple(np.quantile(self.profit, [0.001, 0.999])), alpha=0.4
        )
        for name, value in (
            ("VaR", self.value_at_risk(level)),
            ("ES", self.expected_shortfall(level)),
        ):
            ax.axvline(-value, linewidth=1, color="black", linestyle="-" if name == "VaR" else ":")
        ax.set_title(
            f"{', '.join(self.positions)}; lines at {level:.0%} VaR and ES", fontsize="medium"
        )
        ax.set_xlabel("profit")
        ax.set_ylabel(f"of {len(self.profit):,} draws")
        return ax

    @cached_property
    def _order(self) -> npt.NDArray[np.int64]:
        """The draws, worst first."""
        return np.argsort(self.profit, kind="stable")

    def _worst(self, level: float) -> npt.NDArray[np.int64]:
        """The draws with the worst profits."""
        if not 0 < level < 1 or (1 - level) * len(self.profit) < 1:
            expected = (
                f"between 0 and 1, as in 0.99, with a draw beyond it among {len(self.profit):,}"
            )
            raise ConfigError("a risk level is a probability", expected=expected, got=level)
        return self._order[: round((1 - level) * len(self.profit))]


def _levels_of(scores: Floats, degrees: float | None) -> Floats:
    """The distribution function of scores: Student-t, or normal without degrees."""
    from scipy.special import ndtr, stdtr  # type: ignore[import-untyped]

    return np.asarray(ndtr(scores) if degrees is None else stdtr(degrees, scores))


def _drawn_levels(scores: Floats, degrees: float | None) -> Floats:
    """`_levels_of` to an absolute error of 1e-15, many times faster for even degrees.

    There it is a finite sum (Abramowitz and Stegun 1964, 26.7.4).
    """
    if degrees is None or degrees % 2 or degrees > _MOST_TERMS:
        return _levels_of(scores, degrees)
    finite = np.clip(scores, -_FARTHEST_SCORE, _FARTHEST_SCORE)
    squares = finite * finite + degrees
    cosines = degrees / squares  # squared, of the angle whose tangent is score / sqrt(degrees)
    total = np.ones_like(cosines)
    for power in range(int(degrees) - 2, 1, -2):
        total = 1 + total * cosines * ((power - 1) / power)
    return np.asarray(0.5 + 0.5 * finite / np.sqrt(squares) * total)


def _finite(values: Mapping[str, float], what: str, most: float) -> dict[str, float]:
    """Validate finite numbers by symbol, at least one, none larger than `most`."""
    for symbol, value in values.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | np.number)
            or not abs(value) <= most
        ):
            expected = f"from {-most:g} to {most:g}"
            raise ConfigError(
                f"{what} must be a finite number", where=symbol, expected=expected, got=value
            )
    if not values:
        raise ConfigError(f"{what} is needed", expected='{"EURUSD": number}', got="none")
    return {symbol: float(value) for symbol, value in values.items()}
