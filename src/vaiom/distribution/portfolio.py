"""The profit and loss of positions: value at risk, expected shortfall, and who contributes to them.

Enters: draws of the profit of each position, from a `JointDistribution`. Leaves: figures with their
standard errors. Not in the paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vaiom.distribution import display
from vaiom.distribution.shape import Floats, Ints
from vaiom.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCURACY = 0.005
"""Standard error of an expected shortfall, as a share of it, that draws are to reach."""
_FEWEST_BEYOND = 100
"""Draws beyond the value at risk from which a standard error can be told."""
SHOWN_LEVELS = (0.01, 0.05, 0.5, 0.95, 0.99)
"""Levels of the quantiles of profit in JSON."""

_NEAR = 0.1
"""Draws on both sides of the value at risk that estimate its contributions, as a share of those
beyond it.
"""


class Estimate(float):
    """A figure from draws, with its standard error."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float = math.nan) -> Self:
        # Copying and unpickling leave the error out here and set it afterwards.
        self = super().__new__(cls, value)
        self.standard_error = float(standard_error)
        return self


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one position contributes to the risks of the whole, in money; contributions add up.

    `marginal_*` are per unit of money in the position, 0 without a position.
    """

    amount: float
    value_at_risk: float
    expected_shortfall: float
    marginal_value_at_risk: float
    marginal_expected_shortfall: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Portfolio:
    """The distribution of profit and loss, in money. Risks are positive where money is lost."""

    positions: dict[str, float]
    """Amounts of money by symbol; negative if short."""
    profits: Floats
    """(draws, positions)."""
    notes: tuple[str, ...] = ()
    """Reasons for caution."""

    def __repr__(self) -> str:
        symbols = ", ".join(self.positions)
        worst = self.quantile(0.01)
        risk = f"{-worst:,.2f} +- {worst.standard_error:,.2f}"
        return f"<Portfolio of {symbols}: 99% value at risk {risk}>"

    @cached_property
    def profit(self) -> Floats:
        """(draws,) the profit of all positions."""
        return np.asarray(self.profits.sum(axis=1))

    def quantile(self, q: float) -> Estimate:
        """The quantile of profit at level q.

        Its standard error is half the distance between the quantiles one standard error of the
        level below and above.
        """
        if not 0 <= q <= 1:
            raise ConfigError("a quantile's level is a probability", expected="0 to 1", got=q)
        error = math.sqrt(q * (1 - q) / len(self.profit))
        levels = np.clip([q - error, q, q + error], 0, 1)
        low, value, high = np.quantile(self.profit, levels).tolist()
        return Estimate(value, (high - low) / 2)

    def value_at_risk(self, level: float = 0.99) -> Estimate:
        """The loss that is exceeded with probability 1 - level."""
        self._worst(level)  # refuses a level that the draws do not reach
        profit = self.quantile(1 - level)
        return Estimate(0.0 - profit, profit.standard_error)

    def expected_shortfall(self, level: float = 0.99) -> Estimate:
        """The mean loss over the worst draws, a share 1 - level of all.

        Its variance is that of the mean loss plus that of the limit beyond which losses count
        (Chen 2008, "Nonparametric Estimation of Expected Shortfall").
        """
        losses = 0.0 - self.profit[self._worst(level)]
        mean = float(losses.mean())
        beyond_limit = mean - losses.min()
        variance = losses.var() + level * beyond_limit**2
        error = math.sqrt(variance / len(losses))
        return Estimate(mean, error)

    def contributions(self, level: float = 0.99) -> dict[str, Contribution]:
        """What each position contributes to both risks (Euler's principle, Tasche 1999).

        It is the position's mean loss in the draws beyond the value at risk, and in those near it.
        """
        worst = self._worst(level)
        shortfalls = 0.0 - self.profits[worst].mean(axis=0)
        num_beyond = (1 - level) * len(self.profit)
        near = max(1, round(_NEAR * num_beyond))
        first = max(0, len(worst) - near)
        around = self._order[first : len(worst) + near + 1]
        limits = 0.0 - self.profits[around].mean(axis=0)
        total = limits.sum()
        if total:
            limits *= self.value_at_risk(level) / total
        contributions = {}
        for number, (symbol, amount) in enumerate(self.positions.items()):
            limit = float(limits[number])
            shortfall = float(shortfalls[number])
            contributions[symbol] = Contribution(
                amount=amount,
                value_at_risk=limit,
                expected_shortfall=shortfall,
                marginal_value_at_risk=limit / amount if limit and amount else 0.0,
                marginal_expected_shortfall=shortfall / amount if shortfall and amount else 0.0,
            )
        return contributions

    def to_dict(self, level: float = 0.99) -> dict[str, Any]:
        """All figures as JSON-safe values."""
        risks = {
            "value_at_risk": self.value_at_risk(level),
            "expected_shortfall": self.expected_shortfall(level),
        }
        errors = {name: risk.standard_error for name, risk in risks.items()}
        contributions = self.contributions(level)
        notes = list(self.notes)
        shortfall = risks["expected_shortfall"]
        if shortfall.standard_error > ACCURACY * abs(shortfall):
            share = shortfall.standard_error / abs(shortfall) if shortfall else math.inf
            drawn = f"{len(self.profit):,} draws"
            notes.append(f"the expected shortfall of {drawn} has a standard error of {share:.2%}")
        return {
            "level": level,
            **risks,
            "standard_errors": errors,
            "quantiles": {str(each): self.quantile(each) for each in SHOWN_LEVELS},
            "contributions": {symbol: asdict(each) for symbol, each in contributions.items()},
            "notes": notes,
        }

    def plot(self, ax: Axes | None = None, level: float = 0.99) -> Axes:
        """Draw the profits, with value at risk and expected shortfall; needs matplotlib."""
        return display.plot_profit(self, ax, level)

    @cached_property
    def _order(self) -> Ints:
        """(draws,) numbers of the draws, worst first."""
        return np.argsort(self.profit, kind="stable")

    def _worst(self, level: float) -> Ints:
        """Numbers of the worst draws, a share 1 - level of all."""
        draws = len(self.profit)
        num_worst = (1 - level) * draws
        if not 0 < level < 1 or num_worst < 1:
            expected = f"between 0 and 1, as in 0.99, with a draw beyond it among {draws:,}"
            raise ConfigError("a risk level is a probability", expected=expected, got=level)
        return self._order[: round(num_worst)]


def num_draws_needed(book: Portfolio, level: float) -> int:
    """How many draws give the expected shortfall at a level its `ACCURACY`, judged by those made.

    Its standard error falls with the root of their number.
    """
    if not 0 < level < 1:
        raise ConfigError("a risk level is a probability", expected="as in 0.99", got=level)
    num_draws = len(book.profit)
    fewest = math.ceil(_FEWEST_BEYOND / (1 - level))
    if num_draws < fewest:
        return fewest
    shortfall = book.expected_shortfall(level)
    allowed = ACCURACY * abs(shortfall)
    if shortfall.standard_error <= allowed:
        return num_draws
    if not allowed:
        return sys.maxsize
    # A little more, so that it seldom takes another round.
    return math.ceil(1.1 * num_draws * (shortfall.standard_error / allowed) ** 2)


def finite_numbers(values: Mapping[str, float], what: str, most: float) -> dict[str, float]:
    """Numbers by symbol, at least one; `what` each is in messages, none larger than `most`."""
    if not values:
        raise ConfigError(f"{what} is needed", expected='{"EURUSD": number}', got="none")
    for symbol, value in values.items():
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not is_number or not abs(value) <= most:
            problem = f"{what} must be a finite number"
            expected = f"from {-most:g} to {most:g}"
            raise ConfigError(problem, where=symbol, expected=expected, got=value)
    return {symbol: float(value) for symbol, value in values.items()}
