"""Forecasts and portfolios as people read them: in a terminal, a notebook and a plot.

Enters: a `ReturnDistribution` or a `Portfolio`. Leaves: text, or a drawing by matplotlib,
which is imported when it is needed. Returns are in basis points.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vaiom.distribution.buckets import SIDES
from vaiom.errors import require_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaiom.distribution.portfolio import Portfolio
    from vaiom.distribution.returns import ReturnDistribution

BASIS_POINTS = 1e4
"""Basis points in a log return of 1."""

_LEVELS = (0.05, 0.5, 0.95)
_DRAWN_LEVELS = (0.002, 0.998)
"""Where the axis of a density begins and ends."""
_DRAWN_PROFITS = (0.001, 0.999)
_HEIGHTS = "▁▂▃▄▅▆▇█"
_NUM_HEIGHTS_DRAWN = 12
_HEIGHTS_DRAWN_BETWEEN = (0.01, 0.99)
_BAR_WIDTH = 30
_MINUTE = "%Y-%m-%d %H:%M"


def summarise(dist: ReturnDistribution) -> dict[str, str]:
    """The main figures of a forecast by column name."""
    summary = {
        "asset": dist.symbol,
        "bar": dist.target_time.strftime(_MINUTE),
        "chances": _draw_heights(dist),
        "up": f"{dist.prob_up:.1%}",
    }
    for level in _LEVELS:
        summary[f"{level:.0%}"] = _signed(dist.quantile(level))
    summary["zero"] = f"{dist.prob_zero:.1%}"
    summary["caution"] = ", ".join(_cautions(dist))
    for side in SIDES:
        summary[f"VaR99 {side}"] = _unsigned(dist.value_at_risk(0.99, side))
        summary[f"ES99 {side}"] = _unsigned(dist.expected_shortfall(0.99, side))
    return summary


def _draw_heights(dist: ReturnDistribution) -> str:
    """The density between two quantiles, in cells of equal width: buckets differ in theirs."""
    first, last = dist.quantile(_HEIGHTS_DRAWN_BETWEEN)
    ends = np.linspace(first, last, _NUM_HEIGHTS_DRAWN + 1)
    masses = np.diff(dist.cdf(ends))
    highest = len(_HEIGHTS) - 1
    eighths = len(_HEIGHTS) * masses / masses.max()
    heights = np.minimum(eighths, highest).astype(int)
    return "".join(_HEIGHTS[height] for height in heights)


def short_text(dist: ReturnDistribution) -> str:
    """A forecast in one line, for `repr`."""
    low, high = dist.interval(0.9)
    subject = f"{dist.symbol}, {_span(dist)} after {dist.as_of}, given a non-zero return"
    interval = f"5% to 95% {_signed(low)} to {_signed(high)} bp"
    figures = f"{subject}: prob_up {dist.prob_up:.3f}, {interval}"
    text = "; ".join([figures, *dist.notes])
    return f"<ReturnDistribution {text}>"


def long_text(dist: ReturnDistribution) -> str:
    """A forecast with a bar per bucket and the main figures, for terminals and notebooks."""
    ranges = _bucket_ranges(dist)
    width = max(map(len, ranges))
    lengths = _BAR_WIDTH * dist.probs / dist.probs.max()
    lines = [_headline(dist)]
    for range_, length, prob in zip(ranges, lengths, dist.probs, strict=True):
        bar = "█" * round(length)
        lines.append(f"  {range_:>{width}}  {bar:<{_BAR_WIDTH}} {prob:6.1%}")
    lines += [f"  {name}: {value}" for name, value in _facts(dist)]
    return "\n".join(lines)


def plot_density(dist: ReturnDistribution, ax: Axes | None) -> Axes:
    """Draw the density of a forecast, with the median and the central 90%."""
    ax = ax or _new_axes()
    first, last = dist.quantile(_DRAWN_LEVELS)
    returns = np.linspace(first, last, 800)
    density = dist.pdf(returns) / BASIS_POINTS
    ax.fill_between(BASIS_POINTS * returns, density, alpha=0.4, step="mid")
    for level in _LEVELS:
        style = "-" if level == 0.5 else ":"
        place = BASIS_POINTS * dist.quantile(level)
        _draw_line(ax, place, style)
    ax.set_title(_headline(dist), fontsize="medium")
    ax.set_xlabel(f"log return of the next {_span(dist)}, basis points; lines at 5%, 50%, 95%")
    ax.set_ylabel("density, given a non-zero return")
    return ax


def plot_profit(portfolio: Portfolio, ax: Axes | None, level: float) -> Axes:
    """Draw the profits of a portfolio, with value at risk and expected shortfall."""
    ax = ax or _new_axes()
    low, high = np.quantile(portfolio.profit, _DRAWN_PROFITS)
    ax.hist(portfolio.profit, bins=200, range=(low, high), alpha=0.4)
    _draw_line(ax, -portfolio.value_at_risk(level), "-")
    _draw_line(ax, -portfolio.expected_shortfall(level), ":")
    symbols = ", ".join(portfolio.positions)
    ax.set_title(f"{symbols}; lines at {level:.0%} VaR and ES", fontsize="medium")
    ax.set_xlabel("profit")
    ax.set_ylabel(f"of {len(portfolio.profit):,} draws")
    return ax


def _new_axes() -> Axes:
    require_installed("matplotlib")
    from matplotlib import pyplot

    _, ax = pyplot.subplots()
    return ax


def _draw_line(ax: Axes, place: float, style: str) -> None:
    ax.axvline(place, linestyle=style, linewidth=1, color="black")


def _signed(log_return: float) -> str:
    return f"{BASIS_POINTS * log_return:+.1f}"


def _unsigned(log_return: float) -> str:
    return f"{BASIS_POINTS * log_return:.1f}"


def _cautions(dist: ReturnDistribution) -> list[str]:
    """A word for each reason to trust a forecast less."""
    cautions = {
        "stale": dist.stale,
        "unknown": dist.unknown_asset,
        "without others": bool(dist.missing_assets),
        "unfinished": any(note.startswith("unfinished") for note in dist.notes),
    }
    return [word for word, applies in cautions.items() if applies]


def _span(dist: ReturnDistribution) -> str:
    return "bar" if dist.horizon == 1 else f"{dist.horizon} bars"


def _headline(dist: ReturnDistribution) -> str:
    target = "bar of" if dist.horizon == 1 else f"{_span(dist)} through"
    target_time = dist.target_time.strftime(_MINUTE)
    as_of = dist.as_of.strftime(_MINUTE)
    known = f"from {dist.context} bars through {as_of}"
    return f"{dist.symbol}, {target} {target_time}, {known}"


def _facts(dist: ReturnDistribution) -> list[tuple[str, str]]:
    """The main figures by what they are."""
    summary = summarise(dist)
    quantiles = ", ".join(summary[f"{level:.0%}"] for level in _LEVELS)
    risks = []
    for side in SIDES:
        at_risk = summary[f"VaR99 {side}"]
        shortfall = summary[f"ES99 {side}"]
        risks.append(f"{side} {at_risk} / {shortfall}")
    mean = BASIS_POINTS * dist.mean()
    direction = f"up {summary['up']}, mean {mean:+.2f} bp"
    zero = f"{dist.prob_zero:.2%} of this asset's Train returns after a close that moved"
    return [
        ("given a non-zero return", direction),
        ("5%, 50%, 95% quantile in bp", quantiles),
        ("99% value at risk / expected shortfall in bp", ", ".join(risks)),
        ("exactly zero", zero),
        *(("note", note) for note in dist.notes),
    ]


def _bucket_ranges(dist: ReturnDistribution) -> list[str]:
    inner = [_signed(edge) for edge in dist.return_edges[1:-1]]
    between = [f"{low} to {high}" for low, high in pairwise(inner)]
    return [f"below {inner[0]}", *between, f"above {inner[-1]}"]
