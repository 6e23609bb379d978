"""The forecast a user holds: the distribution of the next log return of one asset.

Enters: bucket probabilities of the model, the scale of that moment, the Train-fitted shape. Leaves: a
`ReturnDistribution` in log returns, with risk figures. Everything but `prob_zero` is conditional on a non-zero return.
Paper: Methods, "Return Bucket Construction" (the buckets); the law inside them is `events.shape`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from vaiom.errors import ConfigError
from vaiom.events.shape import ReturnShape
from vaiom.forecast.law import Floats, PiecewiseLaw, law_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDES = ("long", "short")
SHOWN_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
RISK_LEVELS = (0.95, 0.99)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnDistribution:
    """The law of ln(close of the next bar / last close), given that the return is not zero."""

    symbol: str
    probs: Floats
    """(16,) probabilities of the return buckets."""
    edges: Floats
    """(17,) edges in sigmas, with the infinities."""
    sigma: float
    """The scale through the last bar: a log return is an edge times this."""
    shape: ReturnShape
    """The law inside the buckets and beyond the outermost edges."""
    prob_zero: float
    """The asset's Train share of zero returns; the mean over assets where the asset is unknown."""
    as_of: datetime
    """Left edge of the last bar used, on the clock of the bars."""
    target_time: datetime
    """Left edge of the next bar if no bar is skipped."""
    context: int
    """Bars that the model saw."""
    stale: bool = False
    """The last row is masked, or its bar too old for the `now` that was given."""
    unknown_asset: bool = False
    """The model never saw the asset and treats it as an average one."""
    missing_assets: tuple[str, ...] = ()
    """Assets that the model reads and did not get."""
    notes: tuple[str, ...] = field(default=())
    """Why the forecast deserves caution, in words."""

    @cached_property
    def law(self) -> PiecewiseLaw:
        """The same distribution in sigmas."""
        return law_of(self.probs, self.shape)

    @property
    def return_edges(self) -> Floats:
        """(17,) edges in log returns, with the infinities."""
        return self.edges * self.sigma

    @overload
    def cdf(self, x: float) -> float: ...
    @overload
    def cdf(self, x: npt.ArrayLike) -> Floats | float: ...
    def cdf(self, x: npt.ArrayLike) -> Floats | float:
        """P(return <= x), x in log returns; an array gives an array."""
        return _like(x, self.law.cdf(np.asarray(x, np.float64) / self.sigma))

    @overload
    def density(self, x: float) -> float: ...
    @overload
    def density(self, x: npt.ArrayLike) -> Floats | float: ...
    def density(self, x: npt.ArrayLike) -> Floats | float:
        """The density at x, per unit of log return."""
        return _like(x, self.law.density(np.asarray(x, np.float64) / self.sigma) / self.sigma)

    @overload
    def quantile(self, q: float) -> float: ...
    @overload
    def quantile(self, q: npt.ArrayLike) -> Floats | float: ...
    def quantile(self, q: npt.ArrayLike) -> Floats | float:
        """The log return that is not passed with probability q; an array gives an array."""
        levels = np.asarray(q, np.float64)
        if not ((levels >= 0) & (levels <= 1)).all():
            raise ConfigError("a quantile's level is a probability", expected="0 to 1", got=q)
        return _like(q, self.law.quantile(levels) * self.sigma)

    @property
    def prob_up(self) -> float:
        """P(return > 0)."""
        return 1 - self.cdf(0.0)

    @cached_property
    def mean(self) -> float:
        """The mean log return."""
        return self.law.mean_below(1.0) * self.sigma

    def prob_beyond(self, x: float) -> float:
        """P(|return| > x), x a log return of either sign."""
        return 1 - self.cdf(abs(x)) + self.cdf(-abs(x))

    def value_at_risk(self, level: float = 0.99, side: str = "long") -> float:
        """The loss that is not passed with probability `level`; positive is a loss, in log returns."""
        losing = self._losing(level, side)
        return -float(losing.quantile(np.array(1 - level))) * self.sigma

    def expected_shortfall(self, level: float = 0.99, side: str = "long") -> float:
        """The mean loss over the worst 1 - level of outcomes; positive is a loss, in log returns."""
        return -self._losing(level, side).mean_below(1 - level) * self.sigma

    def sample(self, n: int, seed: int | None = None) -> Floats:
        """Draw n log returns, never zero ones."""
        return self.law.quantile(np.random.default_rng(seed).random(n)) * self.sigma

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-safe values: times in ISO format, infinite edges null."""
        return {
            "symbol": self.symbol,
            "as_of": self.as_of.isoformat(),
            "target_time": self.target_time.isoformat(),
            "context": self.context,
            "stale": self.stale,
            "unknown_asset": self.unknown_asset,
            "missing_assets": list(self.missing_assets),
            "notes": list(self.notes),
            "sigma": self.sigma,
            "probs": self.probs.tolist(),
            "edges": [edge if np.isfinite(edge) else None for edge in self.edges.tolist()],
            "return_edges": [edge if np.isfinite(edge) else None for edge in self.return_edges.tolist()],
            "prob_zero": self.prob_zero,
            "prob_up": self.prob_up,
            "mean": self.mean,
            "quantiles": {str(level): self.quantile(level) for level in SHOWN_LEVELS},
            "value_at_risk": self._risks("value_at_risk"),
            "expected_shortfall": self._risks("expected_shortfall"),
        }

    def __repr__(self) -> str:
        low, high = 1e4 * self.quantile(0.05), 1e4 * self.quantile(0.95)
        flags = "".join(f", {name}" for name in ("stale", "unknown_asset", "missing_assets") if getattr(self, name))
        return (
            f"<ReturnDistribution {self.symbol}, bar after {self.as_of}, given a non-zero return: "
            f"prob_up {self.prob_up:.3f}, 5% to 95% {low:+.1f} to {high:+.1f} bp{flags}>"
        )

    def __str__(self) -> str:
        from vaiom.forecast.display import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from vaiom.forecast.display import as_html

        return as_html(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the density in basis points; needs matplotlib."""
        from vaiom.forecast.display import draw

        return draw(self, ax)

    def _losing(self, level: float, side: str) -> PiecewiseLaw:
        """The law whose lower tail holds the losses of a side."""
        if side not in SIDES:
            raise ConfigError("unknown side", expected=" or ".join(SIDES), got=repr(side))
        if not 0 < level < 1:
            raise ConfigError("a risk level is a probability", expected="between 0 and 1, as in 0.99", got=level)
        return self.law if side == "long" else self.law.reflected()

    def _risks(self, name: str) -> dict[str, dict[str, float]]:
        measure = getattr(self, name)
        return {side: {str(level): measure(level, side) for level in RISK_LEVELS} for side in SIDES}


def _like(asked: npt.ArrayLike, values: Floats) -> Floats | float:
    return float(values) if np.ndim(asked) == 0 else values
