"""The picture of the walk-forward: gain per test year with its interval, as an SVG file of its own.

Enters: records by year. Leaves: SVG text, the same bytes for the same records; its colours suit light and dark.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from vaiom.experiments.records import Record
from vaiom.report.svg import in_style

_GREY, _BLUES = "#7a7a7a", ("#9ab8d8", "#5a8fc4", "#1f5f9f")
_COLOURS: Any = {
    "text.color": _GREY,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": _GREY,
    "ytick.labelcolor": _GREY,
}


@in_style
def walk_forward_figure(walked: Mapping[int, Record]) -> str:
    """Every baseline of every year; an interval that crosses the line is no win."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    years = sorted(walked)
    names = list(walked[years[0]].scored["year"].gains)
    with mpl.rc_context(_COLOURS):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        axis = figure.add_subplot()
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for number, name in enumerate(names):
            gains = [walked[year].scored["year"].gains[name] for year in years]
            places = [year + 0.2 * (number - (len(names) - 1) / 2) for year in years]
            colour = _BLUES[number % len(_BLUES)]
            axis.plot(places, [gain.gain_bits for gain in gains], "o", color=colour, markersize=4, label=name)
            for place, gain in zip(places, gains, strict=True):
                if gain.interval:
                    axis.plot([place, place], gain.interval, color=colour, linewidth=1.5)
        axis.set_xticks(years)
        axis.set_ylabel("gain, bits/event")
        axis.set_title("Baseline minus model by test year, 95% asset-month intervals", color=_GREY)
        axis.legend(frameon=False, ncols=len(names))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
