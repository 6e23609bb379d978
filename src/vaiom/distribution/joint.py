"""The joint distribution of several assets' next returns, zero returns included.

Enters: the forecast of each asset, its probability of a zero return, and the correlation of their
scores (`vaiom.distribution.dependence`). Leaves: draws, probabilities of events, conditional
distributions and portfolios. The forecasts are joined by a Gaussian or Student-t copula. Figures
from draws have a seed, and carry their standard errors. Not in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Self

import numpy as np

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import (
    correlation_of,
    inside,
    levels_of,
    pit_of,
    scores_of,
    symmetric,
)
from vaiom.distribution.portfolio import Estimate, Portfolio, finite_numbers, num_draws_needed
from vaiom.distribution.shape import Floats
from vaiom.errors import ConfigError
from vaiom.features.quantities import MAX_LOG_MOVE

DRAWS = 20_000
"""Draws behind a figure, unless another number is asked for."""

_DRAWS_AT_ONCE = 1 << 17
"""A million draws of many assets at once would take gigabytes."""
_MOST_PROFITS = 1 << 24
"""Profits of a portfolio, draws times positions: 128 MiB."""
_LARGEST_AMOUNT = 1e100
"""Profits of larger amounts of money would overflow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Marginal:
    """The distribution of one asset's log return, zero returns included.

    A score (x - location) / scale follows Student's t with `degrees` of freedom. Before other
    returns were given, x itself did, with `forecast_degrees`; the level of x there is the level of
    the log return in the forecast.
    """

    forecast: BucketDistribution
    """The forecast, given that the return is not zero."""
    prob_zero: float
    forecast_degrees: float | None
    degrees: float | None
    location: float
    scale: float

    def cdf(self, x: float) -> float:
        """P(log return <= x)."""
        level = (1 - self.prob_zero) * self.forecast.cdf(float(x))
        if x >= 0:
            level += self.prob_zero
        score = scores_of(np.array(level), self.forecast_degrees)
        standardised = (score - self.location) / self.scale
        return float(levels_of(standardised, self.degrees))

    def quantile(self, q: float) -> float:
        """The quantile of the log return at level q."""
        score = scores_of(np.array(q), self.degrees)
        return float(self.returns_of(self.location + self.scale * score))

    ppf = quantile

    def returns_of(self, scores: Floats) -> Floats:
        """Log returns from scores x, of any shape: the forecast's quantiles at their levels."""
        levels = inside(levels_of(np.ravel(scores), self.forecast_degrees))
        knot_levels, knot_returns = self._quantile_knots
        returns = np.interp(levels, knot_levels, knot_returns)
        shape = self.forecast.shape
        sigma = self.forecast.sigma
        first, last = knot_levels[[0, -1]]
        below = levels < first
        survival = levels[below] / first
        excess = shape.lower.excess(survival)
        returns[below] = knot_returns[0] - excess * sigma
        above = levels > last
        survival = (1 - levels[above]) / (1 - last)
        excess = shape.upper.excess(survival)
        returns[above] = knot_returns[-1] + excess * sigma
        return returns.reshape(np.shape(scores))

    @cached_property
    def _quantile_knots(self) -> tuple[Floats, Floats]:
        """Levels and log returns between which the quantile function is linear; flat at zero."""
        knots = self.forecast.shape.knots
        zero = int(np.searchsorted(knots, 0.0))
        places = np.insert(knots, zero, [0.0, 0.0])
        cumulative = np.interp(places, knots, self.forecast.cumulative)
        levels = cumulative * (1 - self.prob_zero)
        levels[zero + 1 :] += self.prob_zero
        return levels, places * self.forecast.sigma


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JointDistribution:
    """Log returns of n assets. Matrices and draws are in the order of `symbols`.

    The scores have a multivariate Student-t distribution, or a normal one where `degrees` is None.
    """

    dists: Mapping[str, BucketDistribution]
    """Forecasts by symbol, given that the return is not zero."""
    prob_zero: Mapping[str, float]
    scatter: Floats
    """(n, n) of the scores: their covariance up to a factor."""
    location: Floats
    """(n,) of the scores."""
    degrees: float | None
    forecast_degrees: float | None
    """Degrees of freedom before returns of other assets were given."""
    horizon: int = 1
    as_of: datetime | None = None
    notes: tuple[str, ...] = ()
    """Reasons for caution."""

    @classmethod
    def of(
        cls,
        dists: Mapping[str, BucketDistribution],
        prob_zero: Mapping[str, float],
        correlation: Floats,
        degrees: float | None = None,
        **about: Any,
    ) -> Self:
        """Join forecasts by the copula with this correlation (n, n).

        `about` are `horizon`, `as_of` and `notes`.
        """
        return cls(
            dists=dists,
            prob_zero=prob_zero,
            scatter=correlation,
            location=np.zeros(len(dists)),
            degrees=degrees,
            forecast_degrees=degrees,
            **about,
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """The assets, in the order of matrices and draws."""
        return tuple(self.dists)

    @property
    def correlation(self) -> Floats:
        """(n, n) correlation of the scores."""
        return correlation_of(self.scatter)

    def __repr__(self) -> str:
        copula = "Gaussian"
        if self.degrees is not None:
            copula = f"Student-t with {self.degrees:g} degrees of freedom"
        about = f"horizon {self.horizon} after {self.as_of}, {copula}"
        return f"<JointDistribution of {', '.join(self.symbols)}, {about}>"

    def marginal(self, symbol: str) -> Marginal:
        """The distribution of one asset."""
        [place] = self._places([symbol])
        return Marginal(
            forecast=self.dists[symbol],
            prob_zero=self.prob_zero[symbol],
            forecast_degrees=self.forecast_degrees,
            degrees=self.degrees,
            location=float(self.location[place]),
            scale=math.sqrt(self.scatter[place, place]),
        )

    def sample(self, n: int = DRAWS, seed: int = 0) -> Floats:
        """Draw log returns, (n, assets)."""
        return self._draw(np.random.default_rng(seed), n, self.symbols)

    def _draw(self, rng: np.random.Generator, n: int, symbols: Sequence[str]) -> Floats:
        """Draw log returns of some assets, (n, symbols); the other assets cost no quantiles."""
        if n < 1:
            raise ConfigError("a number of draws is positive", got=n)
        normal = rng.standard_normal((n, len(self.dists)))
        scores = normal @ np.linalg.cholesky(self.scatter).T
        if self.degrees is not None:
            scores /= np.sqrt(rng.chisquare(self.degrees, (n, 1)) / self.degrees)
        scores += self.location
        own_scores = scores.T[self._places(list(symbols))]
        returns = [
            self.marginal(symbol).returns_of(own)
            for symbol, own in zip(symbols, own_scores, strict=True)
        ]
        return np.stack(returns, axis=1)

    def prob(
        self, event: Callable[[dict[str, Floats]], Any], n: int = DRAWS, seed: int = 0
    ) -> Estimate:
        """The probability of an event, such as `lambda r: r["EURUSD"] < r["GBPUSD"]`.

        The event gets the drawn log returns (n,) by symbol, and says of each draw whether it
        happened.
        """
        returns = dict(zip(self.symbols, self.sample(n, seed).T, strict=True))
        happened = np.asarray(event(returns))
        if happened.shape != (n,) or happened.dtype != np.bool_:
            expected = f"{n} truth values"
            got = f"{happened.dtype} of shape {happened.shape}"
            raise ConfigError("an event says yes or no to each draw", expected=expected, got=got)
        share = float(happened.mean())
        return Estimate(share, math.sqrt(share * (1 - share) / n))

    def given(self, returns: Mapping[str, float]) -> JointDistribution:
        """The distribution of the other assets if these log returns happen.

        The scores keep a Student-t distribution, with more degrees of freedom and a scatter that
        grows with the given scores' distance from the centre (Ding 2016, "On the Conditional
        Distribution of the Multivariate t Distribution").
        """
        values = finite_numbers(returns, "a log return", MAX_LOG_MOVE)
        known = self._places(list(values))
        others = {symbol: dist for symbol, dist in self.dists.items() if symbol not in values}
        if not others:
            expected = "a return of some of the assets, not of all"
            raise ConfigError("nothing is left to forecast", expected=expected)
        pit = []
        for symbol, value in values.items():
            own_pit = pit_of(self.dists[symbol], self.prob_zero[symbol], value)
            pit.append(own_pit)
        scores = scores_of(np.array(pit), self.forecast_degrees) - self.location[known]
        rest = self._places(list(others))
        own = self.scatter[np.ix_(known, known)]
        across = self.scatter[np.ix_(rest, known)]
        slopes = np.linalg.solve(own, across.T).T
        scatter = self.scatter[np.ix_(rest, rest)] - slopes @ across.T
        degrees = self.degrees
        if degrees is not None:
            distance = float(scores @ np.linalg.solve(own, scores))
            scatter *= (degrees + distance) / (degrees + len(known))
            degrees += len(known)
        return replace(
            self,
            dists=others,
            scatter=symmetric(scatter),
            location=self.location[rest] + slopes @ scores,
            degrees=degrees,
        )

    def portfolio(
        self,
        positions: Mapping[str, float],
        n: int | None = None,
        seed: int = 0,
        level: float = 0.99,
    ) -> Portfolio:
        """The profit and loss of amounts of money in some of the assets, negative if short.

        Without a number of draws `n`, there are as many as a standard error of half a percent of
        the expected shortfall at `level` needs, as far as memory allows.
        """
        amounts = finite_numbers(positions, "an amount of money", _LARGEST_AMOUNT)
        self._places(list(amounts))
        rng = np.random.default_rng(seed)
        profits = self._profits(rng, DRAWS if n is None else n, amounts)
        book = Portfolio(positions=amounts, profits=profits, notes=self.notes)
        if n is not None:
            return book
        most = max(_MOST_PROFITS // len(amounts), DRAWS)
        while True:
            needed = min(num_draws_needed(book, level), most)
            missing = needed - len(book.profits)
            if missing <= 0:
                return book
            parts = [book.profits]
            for first in range(0, missing, _DRAWS_AT_ONCE):
                part = self._profits(rng, min(_DRAWS_AT_ONCE, missing - first), amounts)
                parts.append(part)
            book = replace(book, profits=np.concatenate(parts))

    def _profits(self, rng: np.random.Generator, n: int, amounts: Mapping[str, float]) -> Floats:
        """Draw the profit of each position, (n, positions)."""
        simple_returns = np.expm1(self._draw(rng, n, list(amounts)))
        money = np.array(list(amounts.values()))
        profits: Floats = money * simple_returns
        return profits + 0.0  # no profit is 0, not -0

    def _places(self, symbols: list[str]) -> list[int]:
        """The places of assets in matrices and draws."""
        unknown = [symbol for symbol in symbols if symbol not in self.dists]
        if unknown:
            raise ConfigError(
                "no forecast of these assets",
                expected=", ".join(self.symbols),
                got=", ".join(unknown),
                fix="bring in their bars, or leave them out",
            )
        return [self.symbols.index(symbol) for symbol in symbols]
