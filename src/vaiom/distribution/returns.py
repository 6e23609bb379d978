"""One forecast: the distribution of the log return over the next bar or bars.

Enters: the probabilities and scale of a model, and what is known about where they come from.
Leaves: figures for Python (`ReturnDistribution`), JSON and CSV.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from vaiom.distribution import display
from vaiom.distribution.buckets import SIDES, BucketDistribution
from vaiom.distribution.shape import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Levels of the quantiles in JSON and CSV."""
RISK_LEVELS = (0.95, 0.99)
"""Levels of value at risk and expected shortfall in JSON and CSV."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnDistribution(BucketDistribution):
    """The distribution of ln(close `horizon` bars ahead / last close), given that it is not zero.

    Times are on the clock of the bars, without a zone. `stale` and the fields after it, and
    `notes`, say why a forecast deserves less trust.
    """

    symbol: str
    edges: Floats
    """(17,) edges of the buckets in sigmas, with the infinities."""
    prob_zero: float
    """The share of zero returns in Train after unmasked rows of the asset; of an unknown asset the
    mean over assets.
    """
    as_of: datetime
    """Left edge of the last bar that the model saw."""
    target_time: datetime
    """Left edge of the last bar of the return, if the market trades as it usually does."""
    stale_since: datetime
    """When the next bar has closed, so that a newer forecast is possible."""
    horizon: int = 1
    """Bars that the return spans."""
    context: int
    """Number of bars that the model saw."""
    stale: bool = False
    """The last row is masked, or the forecast was asked for after `stale_since`."""
    masked: bool = False
    """The last row is masked: its bar cannot be trusted."""
    unknown_asset: bool = False
    """The model was not trained on the asset and treats it as an average one."""
    missing_assets: tuple[str, ...] = ()
    """Other assets that the model reads and that have no bar at `as_of`."""
    notes: tuple[str, ...] = ()
    """Reasons for caution, in words."""

    @property
    def return_edges(self) -> Floats:
        """(17,) edges of the buckets in log returns, with the infinities."""
        return np.asarray(self.edges * self.sigma)

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON-safe values: times in ISO format, infinite edges null."""
        return to_dicts([self])[0]

    def summary(self) -> dict[str, str]:
        """The main figures as text by column name; returns are in basis points."""
        return display.summarise(self)

    def __repr__(self) -> str:
        return display.short_text(self)

    def __str__(self) -> str:
        return display.long_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the density in basis points, with the median and the central 90%.

        Draws into `ax`, or into a new figure; needs matplotlib.
        """
        return display.plot_density(self, ax)


def stack(dists: Sequence[ReturnDistribution]) -> BucketDistribution:
    """Forecasts of one shape as one distribution of many events, whose figures cost little more
    than those of one.
    """
    probs = np.array([dist.probs for dist in dists])
    sigma = np.array([dist.sigma for dist in dists])
    return BucketDistribution(probs=probs, sigma=sigma, shape=dists[0].shape)


def to_dicts(dists: Sequence[ReturnDistribution]) -> list[dict[str, Any]]:
    """`to_dict` of many forecasts of one shape, computed together."""
    many = stack(dists)
    mean = many.mean().tolist()
    prob_up = many.prob_up.tolist()
    # One call for all levels costs little more than a call for one.
    lowest = [1 - level for level in RISK_LEVELS]
    quantiles = many.quantile([*lowest, *RISK_LEVELS, *SHOWN_LEVELS])
    low, high, shown = np.split(quantiles, [len(lowest), 2 * len(lowest)], axis=1)
    at_risk = {"long": -low, "short": high}
    shortfall = {side: many.expected_shortfall(RISK_LEVELS, side) for side in SIDES}
    return [
        {
            **_origin(dist),
            "sigma": dist.sigma,
            "probs": dist.probs.tolist(),
            "edges": _finite_or_none(dist.edges),
            "return_edges": _finite_or_none(dist.return_edges),
            "prob_zero": dist.prob_zero,
            "prob_up": prob_up[event],
            "mean": mean[event],
            "quantiles": _by_level(SHOWN_LEVELS, shown[event]),
            "value_at_risk": _by_side(at_risk, event),
            "expected_shortfall": _by_side(shortfall, event),
        }
        for event, dist in enumerate(dists)
    ]


def _origin(dist: ReturnDistribution) -> dict[str, Any]:
    """What a forecast is about and where it comes from."""
    return {
        "symbol": dist.symbol,
        "as_of": dist.as_of.isoformat(),
        "target_time": dist.target_time.isoformat(),
        "horizon": dist.horizon,
        "context": dist.context,
        "stale": dist.stale,
        "stale_since": dist.stale_since.isoformat(),
        "unknown_asset": dist.unknown_asset,
        "missing_assets": list(dist.missing_assets),
        "notes": list(dist.notes),
    }


def _finite_or_none(edges: Floats) -> list[float | None]:
    return [edge if math.isfinite(edge) else None for edge in edges.tolist()]


def _by_level(levels: Sequence[float], values: Floats) -> dict[str, float]:
    return dict(zip(map(str, levels), values.tolist(), strict=True))


def _by_side(risks: dict[str, Floats], event: int) -> dict[str, dict[str, float]]:
    return {side: _by_level(RISK_LEVELS, values[event]) for side, values in risks.items()}


def notes_of(dists: Iterable[ReturnDistribution]) -> list[str]:
    """The notes of forecasts, each once, after the assets that it concerns."""
    concerned: dict[str, list[str]] = {}
    for dist in dists:
        for note in dist.notes:
            concerned.setdefault(note, []).append(dist.symbol)
    return [f"{', '.join(symbols)}: {note}" for note, symbols in concerned.items()]


def as_csv(dists: Sequence[ReturnDistribution]) -> str:
    """A header and a line per forecast, in log returns and full precision.

    Columns are the fields of `to_dict` that are single values, then `missing_assets`, quantiles as
    `q0.05`, risks as `var0.99_long` and `es0.99_short`, and probabilities as `p1` to `p16`.
    """
    lines = []
    for record in to_dicts(dists):
        line = {name: value for name, value in record.items() if not isinstance(value, list | dict)}
        line["missing_assets"] = " ".join(record["missing_assets"])
        for level, value in record["quantiles"].items():
            line[f"q{level}"] = value
        for risk, short in (("value_at_risk", "var"), ("expected_shortfall", "es")):
            for side, values in record[risk].items():
                for level, value in values.items():
                    line[f"{short}{level}_{side}"] = value
        for bucket, prob in enumerate(record["probs"], start=1):
            line[f"p{bucket}"] = prob
        lines.append(line)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
