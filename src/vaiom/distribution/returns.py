"""The forecast that users get: the distribution of the log return over the next bar or bars, origin
and cautions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vaiom.distribution.buckets import SIDES, BucketDistribution, Floats, ReturnDistributions
from vaiom.errors import ConfigError, require_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
RISK_LEVELS = (0.95, 0.99)
BASIS_POINTS = 1e4

_SHORT_LEVELS = (0.05, 0.5, 0.95)
_HEIGHTS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 30


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnDistribution(BucketDistribution[float]):
    """The distribution of ln(close `horizon` bars ahead / last close), given that the return is not
    zero.
    """

    symbol: str
    edges: Floats
    """(17,) edges in sigmas, with the infinities."""
    prob_zero: float
    """The Train share of zero returns after the asset's unmasked rows; the mean over assets if it
    is unknown.
    """
    as_of: datetime
    """Left edge of the last bar used, on the clock of the bars."""
    target_time: datetime
    """Left edge of the next bar, or of the horizon's last, if the week goes as usual."""
    stale_since: datetime
    """When the next bar has closed and a newer forecast is possible."""
    horizon: int = 1
    """Bars that the return spans."""
    context: int
    """Number of bars that the model saw."""
    stale: bool = False
    """The last row is masked, or `now` was after `stale_since`."""
    masked: bool = False
    """The last row is masked: its bar cannot be trusted."""
    unknown_asset: bool = False
    """The model was not trained on the asset and treats it as an average one."""
    missing_assets: tuple[str, ...] = ()
    """Assets that the model reads and that were missing."""
    notes: tuple[str, ...] = ()
    """Reasons for caution."""

    @property
    def return_edges(self) -> Floats:
        """(17,) edges in log returns, with the infinities."""
        return self.edges * self.sigma

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON-safe values: times in ISO format, infinite edges null."""
        return to_dicts([self])[0]

    def summary(self) -> dict[str, str]:
        """The main figures by column name, returns in basis points."""
        cautions = {
            "stale": self.stale,
            "unknown": self.unknown_asset,
            "incomplete": bool(self.missing_assets),
        }
        steps = np.minimum(len(_HEIGHTS) * self.probs / self.probs.max(), len(_HEIGHTS) - 1).astype(
            int
        )
        shown = {
            "asset": self.symbol,
            "bar": f"{self.target_time:%Y-%m-%d %H:%M}",
            "chances": "".join(_HEIGHTS[step] for step in steps),
            "caution": " ".join(word for word, true in cautions.items() if true),
            "up": f"{self.prob_up:.1%}",
            **{
                f"{level:.0%}": f"{BASIS_POINTS * self.quantile(level):+.1f}"
                for level in _SHORT_LEVELS
            },
        }
        for side in SIDES:
            shown[f"VaR99 {side}"] = f"{BASIS_POINTS * self.value_at_risk(0.99, side):.1f}"
            shown[f"ES99 {side}"] = f"{BASIS_POINTS * self.expected_shortfall(0.99, side):.1f}"
        return shown | {"zero": f"{self.prob_zero:.1%}"}

    def __repr__(self) -> str:
        low, high = (BASIS_POINTS * each for each in self.interval(0.9))
        flags = "".join(
            f", {name}"
            for name in ("masked", "unknown_asset", "missing_assets")
            if getattr(self, name)
        )
        flags += f", stale since {self.stale_since}" if self.stale and not self.masked else ""
        return (
            f"<ReturnDistribution {self.symbol}, {self._span()} after {self.as_of}, given a "
            f"non-zero return: "
            f"prob_up {self.prob_up:.3f}, 5% to 95% {low:+.1f} to {high:+.1f} bp{flags}>"
        )

    def __str__(self) -> str:
        ranges, top = self._ranges(), float(self.probs.max())
        width = max(map(len, ranges))
        bars = [
            f"  {range_:>{width}}  {'█' * round(_BAR_WIDTH * p / top):<{_BAR_WIDTH}} {p:6.1%}"
            for range_, p in zip(ranges, self.probs, strict=True)
        ]
        return "\n".join(
            [self._headline(), *bars, *(f"  {name}: {value}" for name, value in self._facts())]
        )

    def _repr_html_(self) -> str:
        top = float(self.probs.max())
        bars = "".join(
            f"<tr><td style='text-align:right;white-space:nowrap'>{escape(range_)}</td>"
            f"<td style='text-align:left;width:14em'><div style='background:#4878a8;height:0.8em;"
            f"width:{100 * p / top:.1f}%'></div></td><td style='text-align:right'>{p:.1%}</td></tr>"
            for range_, p in zip(self._ranges(), self.probs, strict=True)
        )
        facts = "".join(
            f"<div><b>{escape(name)}</b>: {escape(value)}</div>" for name, value in self._facts()
        )
        return (
            f"<div><div><b>{escape(self._headline())}</b></div><table>{bars}</table>{facts}</div>"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the density in basis points, with the median and the central 90%; needs
        matplotlib.
        """
        if ax is None:
            require_installed("matplotlib")
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        x = np.linspace(self.quantile(0.002), self.quantile(0.998), 800)
        ax.fill_between(
            BASIS_POINTS * x, np.asarray(self.pdf(x)) / BASIS_POINTS, alpha=0.4, step="mid"
        )
        for level, style in zip(_SHORT_LEVELS, (":", "-", ":"), strict=True):
            ax.axvline(
                BASIS_POINTS * self.quantile(level), linestyle=style, linewidth=1, color="black"
            )
        ax.set_title(self._headline(), fontsize="medium")
        ax.set_xlabel(f"log return of the next {self._span()}, basis points; lines at 5%, 50%, 95%")
        ax.set_ylabel("density, given a non-zero return")
        return ax

    def _headline(self) -> str:
        origin = f"from {self.context} bars through {self.as_of:%Y-%m-%d %H:%M}"
        through = "bar of" if self.horizon == 1 else f"{self._span()} through"
        return f"{self.symbol}, {through} {self.target_time:%Y-%m-%d %H:%M}, {origin}"

    def _span(self) -> str:
        return "bar" if self.horizon == 1 else f"{self.horizon} bars"

    def _facts(self) -> list[tuple[str, str]]:
        short = self.summary()
        quantiles = [short[f"{level:.0%}"] for level in _SHORT_LEVELS]
        risks = [f"{side} {short[f'VaR99 {side}']} / {short[f'ES99 {side}']}" for side in SIDES]
        return [
            (
                "given a non-zero return",
                f"up {short['up']}, mean {BASIS_POINTS * self.mean():+.2f} bp",
            ),
            ("5%, 50%, 95% quantile in bp", ", ".join(quantiles)),
            ("99% value at risk / expected shortfall in bp", ", ".join(risks)),
            (
                "exactly zero",
                f"{self.prob_zero:.2%} of this asset's Train returns after a close that moved",
            ),
            *(("note", note) for note in self.notes),
        ]

    def _ranges(self) -> list[str]:
        """The buckets in basis points."""
        inner = [f"{BASIS_POINTS * edge:+.1f}" for edge in self.return_edges[1:-1]]
        between = [f"{low} to {high}" for low, high in pairwise(inner)]
        return [f"below {inner[0]}", *between, f"above {inner[-1]}"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnPaths:
    """Paths of the log return since the last bar, given that it is not zero at any horizon.

    A path is a random walk in normal scores (a Gaussian copula of independent one-bar steps); it is
    distributed as forecast at each horizon, and in between its quantiles are interpolated in the
    root of time.
    """

    symbol: str
    as_of: datetime
    horizons: tuple[int, ...]
    """Bars at which the distribution is the forecast."""
    returns: Floats
    """(paths, bars) after each bar."""

    def __repr__(self) -> str:
        paths, bars = self.returns.shape
        return f"<ReturnPaths {self.symbol}, {paths:,} paths of {bars} bars after {self.as_of}>"

    def at(self, bars: int) -> Floats:
        """(paths,) the return over the next bars."""
        if not 1 <= bars <= self.returns.shape[1]:
            raise ConfigError(
                "the paths do not go there", expected=f"1 to {self.returns.shape[1]} bars", got=bars
            )
        return np.asarray(self.returns[:, bars - 1])

    def quantile(self, levels: Sequence[float]) -> Floats:
        """(levels, bars) quantiles after each bar."""
        return np.asarray(np.quantile(self.returns, levels, axis=0))


def stack(dists: Sequence[ReturnDistribution]) -> ReturnDistributions:
    """Stack distributions of one shape, whose figures cost little more than one's."""
    probs, sigma = (
        np.array([dist.probs for dist in dists]),
        np.array([dist.sigma for dist in dists]),
    )
    return ReturnDistributions(probs=probs, sigma=sigma, shape=dists[0].shape)


def to_dicts(dists: Sequence[ReturnDistribution]) -> list[dict[str, Any]]:
    """`to_dict` of many forecasts of one shape."""
    every, edges = stack(dists), dists[0].edges.tolist()
    risk, shown = np.array(RISK_LEVELS), len(SHOWN_LEVELS)
    means, ups = every.mean(), every.prob_up.tolist()
    # Many levels at once cost little more than one.
    quantiles = every.quantile([*SHOWN_LEVELS, *(1 - risk), *risk])
    risks = {
        "value_at_risk": {
            "long": -quantiles[:, shown : -len(risk)],
            "short": quantiles[:, -len(risk) :],
        },
        "expected_shortfall": {side: every.expected_shortfall(RISK_LEVELS, side) for side in SIDES},
    }
    return [
        {
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
            "sigma": dist.sigma,
            "probs": dist.probs.tolist(),
            "edges": [edge if math.isfinite(edge) else None for edge in edges],
            "return_edges": [edge * dist.sigma if math.isfinite(edge) else None for edge in edges],
            "prob_zero": dist.prob_zero,
            "prob_up": ups[at],
            "mean": float(means[at]),
            "quantiles": dict(
                zip(map(str, SHOWN_LEVELS), quantiles[at, :shown].tolist(), strict=True)
            ),
            **{
                measure: {
                    side: dict(zip(map(str, RISK_LEVELS), values[at].tolist(), strict=True))
                    for side, values in sides.items()
                }
                for measure, sides in risks.items()
            },
        }
        for at, dist in enumerate(dists)
    ]


def notes_of(dists: Iterable[ReturnDistribution]) -> list[str]:
    """The cautions of forecasts, each once, with the assets concerned."""
    symbols: dict[str, list[str]] = {}
    for dist in dists:
        for note in dist.notes:
            symbols.setdefault(note, []).append(dist.symbol)
    return [f"{', '.join(concerned)}: {note}" for note, concerned in symbols.items()]


def as_csv(dists: Sequence[ReturnDistribution]) -> str:
    """A header and a line per forecast, in log returns and full precision."""
    records = []
    for dist, value in zip(dists, to_dicts(dists), strict=True):
        record = {name: each for name, each in value.items() if not isinstance(each, (list, dict))}
        record["missing_assets"] = " ".join(dist.missing_assets)
        record |= {f"q{level}": each for level, each in value["quantiles"].items()}
        for name, short in (("value_at_risk", "var"), ("expected_shortfall", "es")):
            record |= {
                f"{short}{level}_{side}": x
                for side in SIDES
                for level, x in value[name][side].items()
            }
        records.append(
            record | {f"p{bucket}": p for bucket, p in enumerate(value["probs"], start=1)}
        )
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def sample_paths(dists: Sequence[ReturnDistribution], n: int, seed: int | None) -> ReturnPaths:
    """Draw `n` paths through the distributions of one asset, shortest horizon first, starting with
    the next bar.
    """
    from scipy.special import ndtr  # type: ignore[import-untyped]

    if n < 1:
        raise ConfigError("how many paths?", expected="1 at least", got=n)
    known, bars = [dist.horizon for dist in dists], np.arange(1, dists[-1].horizon + 1)
    walk = np.random.default_rng(seed).standard_normal((n, len(bars))).cumsum(axis=1)
    levels = ndtr(walk / np.sqrt(bars))
    returns = np.zeros(levels.shape)
    for place, dist in enumerate(dists):
        # Weight of this horizon at each bar: 1 at its own, 0 at its neighbours.
        weight = np.interp(np.sqrt(bars), np.sqrt(known), np.eye(len(known))[place])
        near = weight > 0
        returns[:, near] += weight[near] * np.asarray(dist.quantile(levels[:, near]))
    return ReturnPaths(
        symbol=dists[0].symbol, as_of=dists[0].as_of, horizons=tuple(known), returns=returns
    )
