"""The walk-forward as a table and as a picture: gain per test year with its interval.

Enters: records. Leaves: a table with a note; SVG text, the same bytes for the same records, in colours that suit light
and dark.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from vaiom.evaluation.events_file import MODEL
from vaiom.experiments.records import YEAR, Record, Records
from vaiom.report.cells import bits_cell, columns_of, count_cell, signed_cell
from vaiom.report.numbers import interval, share_of
from vaiom.report.svg import in_style
from vaiom.report.tables import Table, words

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


def walk_forward_table(records: Records) -> list[tuple[Table, str]]:
    walked = records.walk_forward()
    if not walked:
        return []
    names = rivals_of(walked)
    strongest = names[-1]
    columns = columns_of(
        "year",
        "events",
        MODEL,
        *names,
        f"gain over {strongest}",
        "95% interval",
        "block wins",
        "months won",
        words=("year",),
    )
    gains = {year: record.scored[YEAR].gains[strongest] for year, record in walked.items()}
    rows = [
        [
            words(str(year)),
            count_cell(gain.num_events),
            *(bits_cell(walked[year].scored[YEAR].bits[name]) for name in (MODEL, *names)),
            signed_cell(gain.gain_bits),
            words(interval(gain.interval)),
            words(share_of(gain.block_wins, gain.num_blocks)),
            words(share_of(gain.months_won, gain.num_months)),
        ]
        for year, gain in gains.items()
    ]
    won = sum(gain.gain_bits > 0 for gain in gains.values())
    sure = sum(gain.interval is not None and gain.interval[0] > 0 for gain in gains.values())
    shortened = "; ".join(dict.fromkeys(record.shortened for record in walked.values() if record.shortened))
    note = (
        f"Not in the paper: the protocol shifted year by year, everything fitted anew. The model is ahead of "
        f"{strongest} in {won} of {len(walked)} years, in {sure} with an interval above zero."
        + (f" Shortened: {shortened}." if shortened else "")
    )
    return [(Table(caption="Walk-forward", columns=columns, rows=rows), note)]


def rivals_of(walked: Mapping[int, Record]) -> list[str]:
    """The baselines that every year has, in their order."""
    years = [record.scored[YEAR].gains for record in walked.values()]
    return [name for name in years[0] if all(name in gains for gains in years)]


@in_style
def walk_forward_figure(walked: Mapping[int, Record]) -> str:
    """Every baseline of every year; an interval that crosses the line is no win."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    years = sorted(walked)
    names = rivals_of(walked)
    with mpl.rc_context(_COLOURS):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        axis = figure.add_subplot()
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for number, name in enumerate(names):
            gains = [walked[year].scored[YEAR].gains[name] for year in years]
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
