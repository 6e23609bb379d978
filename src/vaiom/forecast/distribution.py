"""The forecast a user holds: the distribution of the next log return of one asset.

Enters: a distribution as `events.distribution` computes it, and what the forecast was made from. Leaves: a
`ReturnDistribution` with its origin, its cautions and its looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from vaiom.events.distribution import SIDES, BucketDistribution, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
RISK_LEVELS = (0.95, 0.99)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnDistribution(BucketDistribution[float]):
    """The distribution of ln(close of the next bar / last close), given that the return is not zero."""

    symbol: str
    edges: Floats
    """(17,) edges in sigmas, with the infinities."""
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

    @property
    def return_edges(self) -> Floats:
        """(17,) edges in log returns, with the infinities."""
        return self.edges * self.sigma

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
            "mean": self.mean(),
            "quantiles": dict(
                zip(map(str, SHOWN_LEVELS), np.asarray(self.quantile(SHOWN_LEVELS)).tolist(), strict=True)
            ),
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

    def _risks(self, name: str) -> dict[str, dict[str, float]]:
        measure = getattr(self, name)
        return {side: {str(level): measure(level, side) for level in RISK_LEVELS} for side in SIDES}
