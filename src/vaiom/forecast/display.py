"""A forecast to look at: text for a terminal, HTML for a notebook, a matplotlib drawing.

Enters: a `ReturnDistribution`. Leaves: a string or axes. Returns are shown in basis points.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vaiom.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaiom.forecast.distribution import ReturnDistribution

BASIS_POINTS = 1e4

_LEVELS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 30
_DRAWN_RANGE = (0.002, 0.998)
_DRAWN_POINTS = 800


def bar_chart(probs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    """One character per bucket, as high as its probability."""
    top = float(probs.max())
    return "".join(_LEVELS[min(int(len(_LEVELS) * p / top), len(_LEVELS) - 1)] for p in probs)


def as_text(dist: ReturnDistribution) -> str:
    ranges, width = _ranges(dist), max(len(r) for r in _ranges(dist))
    top = float(dist.probs.max())
    bars = [
        f"  {range_:>{width}}  {'█' * round(_BAR_WIDTH * p / top):<{_BAR_WIDTH}} {p:6.1%}"
        for range_, p in zip(ranges, dist.probs, strict=True)
    ]
    return "\n".join([_headline(dist), *bars, *(f"  {name}: {value}" for name, value in _facts(dist))])


def as_html(dist: ReturnDistribution) -> str:
    top = float(dist.probs.max())
    bars = "".join(
        f"<tr><td style='text-align:right;white-space:nowrap'>{escape(range_)}</td>"
        f"<td style='text-align:left;width:14em'><div style='background:#4878a8;height:0.8em;"
        f"width:{100 * p / top:.1f}%'></div></td><td style='text-align:right'>{p:.1%}</td></tr>"
        for range_, p in zip(_ranges(dist), dist.probs, strict=True)
    )
    facts = "".join(f"<div><b>{escape(name)}</b>: {escape(value)}</div>" for name, value in _facts(dist))
    return f"<div><div><b>{escape(_headline(dist))}</b></div><table>{bars}</table>{facts}</div>"


def draw(dist: ReturnDistribution, ax: Axes | None) -> Axes:
    """The density in basis points, with the median and the central 90%."""
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ConfigError("plotting needs matplotlib", fix="pip install matplotlib") from error
        ax = pyplot.subplots()[1]
    low, high = (dist.quantile(level) for level in _DRAWN_RANGE)
    x = np.linspace(low, high, _DRAWN_POINTS)
    ax.fill_between(BASIS_POINTS * x, np.asarray(dist.pdf(x)) / BASIS_POINTS, alpha=0.4, step="mid")
    for level, style in ((0.05, ":"), (0.5, "-"), (0.95, ":")):
        ax.axvline(BASIS_POINTS * dist.quantile(level), linestyle=style, linewidth=1, color="black")
    ax.set_title(_headline(dist), fontsize="medium")
    ax.set_xlabel("log return of the next bar, basis points; lines at 5%, 50%, 95%")
    ax.set_ylabel("density, given a non-zero return")
    return ax


def _headline(dist: ReturnDistribution) -> str:
    made = f"from {dist.context} bars through {dist.as_of:%Y-%m-%d %H:%M}"
    return f"{dist.symbol}, bar of {dist.target_time:%Y-%m-%d %H:%M}, {made}"


def _facts(dist: ReturnDistribution) -> list[tuple[str, str]]:
    risks = [
        f"{side} {BASIS_POINTS * dist.value_at_risk(0.99, side):.1f} / "
        f"{BASIS_POINTS * dist.expected_shortfall(0.99, side):.1f}"
        for side in ("long", "short")
    ]
    quantiles = ", ".join(f"{BASIS_POINTS * dist.quantile(level):+.1f}" for level in (0.05, 0.5, 0.95))
    facts = [
        ("given a non-zero return", f"up {dist.prob_up:.1%}, mean {BASIS_POINTS * dist.mean():+.2f} bp"),
        ("5%, 50%, 95% quantile in bp", quantiles),
        ("99% value at risk / expected shortfall in bp", ", ".join(risks)),
        ("exactly zero", f"{dist.prob_zero:.2%} of this asset's Train returns"),
    ]
    return facts + [("note", note) for note in dist.notes]


def _ranges(dist: ReturnDistribution) -> list[str]:
    """The buckets in basis points."""
    inner = [f"{BASIS_POINTS * edge:+.1f}" for edge in dist.return_edges[1:-1]]
    between = [f"{low} to {high}" for low, high in pairwise(inner)]
    return [f"below {inner[0]}", *between, f"above {inner[-1]}"]
