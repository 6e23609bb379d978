"""The figures of the report as inline SVG with a description in words; the same numbers give the
same bytes.

Blue-green favours the model and red the baseline throughout; the strongest baseline of a split is
set apart.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np

from vaiom.evaluation.calibration import Reliability
from vaiom.evaluation.scores import MODEL
from vaiom.report.contents import Split
from vaiom.report.tables import (
    bits,
    count,
    interval,
    number,
    p_value,
    percent,
    percent2,
    side_of_zero,
    signed,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that nothing else uses: each becomes the page's variable of that name.
INK, MUTED, RULE, ACCENT, GOOD, BAD, PAPER = (f"#01020{number}" for number in range(1, 8))
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    ACCENT: "accent",
    GOOD: "good",
    BAD: "bad",
    PAPER: "paper",
}
_whole = number("+,.0f")
_COLOURS = {1: GOOD, 0: MUTED, -1: BAD}
"""By the side of zero on which an interval lies."""


@contextmanager
def in_style() -> Iterator[None]:
    """Draw with the report's style, whatever the user's own settings are."""
    import matplotlib as mpl

    asset = files("vaiom.report") / "assets" / "report.mplstyle"
    with as_file(asset) as style, mpl.rc_context(mpl.rcParamsDefault), mpl.rc_context(fname=style):
        yield


@in_style()
def forest(splits: Sequence[Split]) -> str:
    """Mean gains with their intervals, a panel per split."""
    names = list(
        dict.fromkeys(each.baseline for split in splits for each in split.evaluation.against)
    )
    figure, axes = _drawing(
        0.95 + 0.3 * len(names), nrows=1, ncols=len(splits), squeeze=False, sharey=True
    )
    described = []
    for axis, split in zip(axes[0], splits, strict=True):
        axis.axvline(0, color=MUTED, linewidth=0.8)
        for each in split.evaluation.against:
            y, gain = names.index(each.baseline), each.gain
            colour = _COLOURS[side_of_zero(gain.asset_months.interval)]
            for blocks, width, alpha in ((gain.months, 1.1, 1.0), (gain.asset_months, 6.0, 0.35)):
                if blocks.interval is not None:
                    axis.plot(blocks.interval, (y, y), color=colour, linewidth=width, alpha=alpha)
            axis.plot(gain.gain_bits, y, "o", color=colour, markersize=4.5)
            described.append(
                f"{split.period}, {each.baseline}: {signed(gain.gain_bits)} "
                f"{interval(gain.asset_months.interval)}"
            )
        axis.set(title=split.title, ylim=(len(names) - 0.5, -0.5))
        axis.set_yticks(range(len(names)), names)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.margins(x=0.08)
        axis.locator_params(axis="x", nbins=4)
    figure.supxlabel(
        "gain in bits per event: right of zero favours the model", fontsize=9, color=INK
    )
    alt = (
        "Mean gain of the model over each baseline with 95% intervals. "
        + "; ".join(described)
        + "."
    )
    return _to_svg(figure, "gains-figure", alt)


@in_style()
def heat_maps(split: Split) -> str:
    """Gain by asset and baseline, and by asset and month against the strongest baseline."""
    events, names, strongest = split.events, split.baselines, split.strongest
    gains = {name: events.bits[name] - events.bits[MODEL] for name in names}
    symbols, month_of = (
        np.unique(events.symbols).tolist(),
        events.target_times.astype("datetime64[M]"),
    )
    months, rows_of = np.unique(month_of), [events.symbols == symbol for symbol in symbols]

    def mean(name: str, rows: Any) -> float:
        return float(gains[name][rows].mean()) if rows.any() else float("nan")

    by_baseline = np.array([[mean(name, rows) for name in names] for rows in rows_of])
    by_month = np.array(
        [[mean(strongest, rows & (month_of == month)) for month in months] for rows in rows_of]
    )
    ratios = [len(names), len(months)]
    turned = 90 if sum(ratios) > 12 else 0  # names side by side would cover each other
    height = (1.75 if turned else 1.35) + 0.27 * len(symbols)
    figure, axes = _drawing(height, nrows=1, ncols=2, width_ratios=ratios, sharey=True)
    limit = float(np.nanmax(np.abs(np.concatenate([by_baseline.ravel(), by_month.ravel()])))) or 1.0
    _cells(axes[0], by_baseline, [_folded(name) for name in names], symbols, limit, turned)
    _cells(axes[1], by_month, [str(month) for month in months], symbols, limit, turned)
    axes[0].set_title("by baseline")
    axes[1].set_title(f"by month, against {strongest}")
    axes[1].tick_params(axis="y", labelleft=False)
    worst, best = (
        np.unravel_index(at, by_baseline.shape)
        for at in (by_baseline.argmin(), by_baseline.argmax())
    )
    alt = (
        f"{split.title}: gain in bits per event by asset. Largest: {symbols[best[0]]} over "
        f"{names[best[1]]}, "
        f"{signed(by_baseline[best])}; smallest: {symbols[worst[0]]} over {names[worst[1]]}, "
        f"{signed(by_baseline[worst])}. Against {strongest} the model wins "
        f"{int(np.nansum(by_month > 0))} of "
        f"{int(np.isfinite(by_month).sum())} asset-months."
    )
    return _to_svg(figure, f"assets-{split.name}", alt)


@in_style()
def cumulative(split: Split) -> str:
    """The gain added up over time, a line per baseline."""
    events, strongest = split.events, split.strongest
    days, day_of = np.unique(events.target_times.astype("datetime64[D]"), return_inverse=True)
    figure, axis = _drawing(2.9)
    totals = {
        name: np.cumsum(np.bincount(day_of, weights=events.bits[name] - events.bits[MODEL]))
        for name in sorted(split.baselines, key=lambda name: name == strongest)
    }
    for name, total in totals.items():
        colour, width = (ACCENT, 1.8) if name == strongest else (MUTED, 0.9)
        axis.plot(days.astype(object), total, color=colour, linewidth=width)
    axis.axhline(0, color=MUTED, linewidth=0.8)
    ends = {name: float(total[-1]) for name, total in totals.items()}
    _label_ends(axis, ends, strongest)
    axis.set_ylabel("bits gained since the start")
    if len(days) > 1:
        axis.set_xlim(days[0].astype(object), days[-1].astype(object))
    alt = (
        f"{split.title}: cumulative gain of the model in bits, all assets together. At the end "
        + "; ".join(f"{name} {_whole(value)}" for name, value in ends.items())
        + f". Against {strongest}, the strongest, the lowest point was "
        f"{_whole(float(totals[strongest].min()))}."
    )
    return _to_svg(figure, f"cumulative-{split.name}", alt)


@in_style()
def calibration(split: Split) -> str:
    """The PIT histogram, and reliability of buckets and of cumulative probabilities."""
    measured = split.evaluation.calibration
    figure, axes = _drawing(3.0, nrows=1, ncols=3)
    heights = np.array(measured.pit_histogram, np.float64)
    heights /= heights.mean()
    spread = 1.96 * np.sqrt((1 - 1 / len(heights)) * len(heights) / measured.pit.num_events)
    axes[0].axhspan(1 - spread, 1 + spread, color=RULE, linewidth=0)
    axes[0].stairs(
        heights, np.linspace(0, 1, len(heights) + 1), baseline=None, color=ACCENT, linewidth=1.2
    )
    axes[0].set(title="PIT", ylim=(0, max(1.5, float(heights.max()) * 1.1)))
    axes[0].set(xlabel="forecast probability of less", ylabel="share of events, 1 is even")
    _reliability(axes[1], measured.buckets, "buckets")
    _reliability(axes[2], measured.cumulative, "up to an edge")
    worst = max(measured.buckets, key=lambda each: each.error)
    alt = (
        f"{split.title}: calibration. The PIT histogram lies between {heights.min():.2f} and "
        f"{heights.max():.2f} where 1 is even (Kuiper p {p_value(measured.pit.p_value)}). The "
        f"least reliable bucket is "
        f"{worst.outcome}: forecast {percent(worst.predicted)}, observed "
        f"{percent(worst.observed)}, mean error "
        f"{percent2(worst.error)}."
    )
    return _to_svg(figure, f"calibration-{split.name}", alt)


@in_style()
def portfolios(split: Split) -> str:
    """How often portfolios lost more than their value at risk, a panel per level."""
    assert split.evaluation.joint is not None
    backtests = split.evaluation.joint.portfolios
    levels = sorted({each.level for each in backtests})
    names = list(dict.fromkeys(each.portfolio for each in backtests))
    figure, axes = _drawing(
        0.9 + 0.22 * len(names), nrows=1, ncols=max(1, len(levels)), squeeze=False, sharey=True
    )
    described = []
    for axis, level in zip(axes[0], levels, strict=False):
        rows = [each for each in backtests if each.level == level]
        spread = 1.96 * np.sqrt(level * (1 - level) / rows[0].num_stamps)
        axis.axvspan(1 - level - spread, 1 - level + spread, color=RULE, linewidth=0)
        axis.plot(
            [each.exceedance_rate for each in rows],
            range(len(rows)),
            "o",
            color=ACCENT,
            markersize=4.5,
        )
        axis.set(
            title=f"{level:.0%} value at risk",
            ylim=(len(names) - 0.5, -0.5),
            xlabel="share of stamps",
        )
        axis.set_xlim(left=0)
        axis.set_yticks(range(len(names)), names)
        described += [
            f"{each.portfolio} {percent2(each.exceedance_rate)} at {level:.0%}" for each in rows
        ]
    alt = (
        f"{split.title}: share of stamps with a loss beyond the value at risk. "
        + "; ".join(described)
        + "."
    )
    return _to_svg(figure, f"portfolios-{split.name}", alt)


@in_style()
def fan(split: Split) -> str:
    """The median event's forecast quantiles at each horizon."""
    scores = split.evaluation.horizons or []
    figure, axis = _drawing(2.7)
    bars = [0, *(each.bars for each in scores)]
    lines = {
        level: [0.0, *(each.quantiles[level] for each in scores)] for level in scores[0].quantiles
    }
    levels = list(lines)
    for low, high in zip(levels, reversed(levels), strict=True):
        if low < high:
            axis.fill_between(bars, lines[low], lines[high], color=ACCENT, alpha=0.25, linewidth=0)
    axis.plot(bars, lines[levels[len(levels) // 2]], "o-", color=INK, linewidth=1.1, markersize=3)
    axis.set(xlabel="bars ahead", ylabel="log return / sigma20", xticks=bars)
    spans = (
        f"{each.bars} bars {each.quantiles[levels[0]]:.2f} to {each.quantiles[levels[-1]]:.2f}"
        for each in scores
    )
    alt = (
        f"{split.title}: central 90% of the median event's forecast, in units of sigma20: "
        f"{'; '.join(spans)}."
    )
    return _to_svg(figure, f"fan-{split.name}", alt)


@in_style()
def training_curve(metrics: Sequence[dict[str, Any]], best_step: int) -> str:
    """Training loss and Validation bits by step, the chosen checkpoint marked."""
    scores = {
        entry["step"]: entry["validation_bits"] for entry in metrics if "validation_bits" in entry
    }
    figure, axes = _drawing(2.7, nrows=1, ncols=2)
    losses = {entry["step"]: entry["loss_nats"] for entry in metrics if "loss_nats" in entry}
    axes[0].plot(list(losses), list(losses.values()), color=MUTED, linewidth=1.1)
    axes[0].set_title("training loss of the return (nats)")
    axes[1].plot(
        list(scores), list(scores.values()), "o-", color=INK, linewidth=1.1, markersize=2.5
    )
    axes[1].set_title("Validation (bits per event)")
    alt = f"Training over {count(metrics[-1]['step'])} steps, {len(scores)} Validations."
    if best_step in scores:
        value = scores[best_step]
        axes[1].plot(best_step, value, "o", color=ACCENT, markersize=7)
        place: dict[str, Any] = {
            "xytext": (0, 12),
            "textcoords": "offset points",
            "ha": "center",
            "color": ACCENT,
        }
        axes[1].annotate(f"chosen: {bits(value)}", (best_step, value), **place)
        alt += f" The chosen checkpoint, step {count(best_step)}, has {bits(value)} bits per event."
    for axis in axes:
        axis.set_xlabel("step")
        axis.margins(y=0.15)
    if scores:
        alt += f" The last one has {bits(list(scores.values())[-1])}."
    return _to_svg(figure, "training-figure", alt)


def _drawing(height: float, **subplots: Any) -> tuple[Figure, Any]:
    """An empty figure of this height in inches, and its axes; no window, no global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, height), layout="constrained")
    return figure, figure.subplots(**subplots)


def _to_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an element; `name` keeps its parts apart from those of other figures on the
    page.
    """
    stream = io.StringIO()
    figure.savefig(
        stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    body = stream.getvalue()
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None
    inside = body[body.index(">", body.index("<svg")) + 1 :]
    inside = re.sub(r"<metadata>.*?</metadata>", "", inside, flags=re.DOTALL)
    inside = inside.replace("xlink:href", "href").replace('href="#', f'href="#{name}-')
    inside = inside.replace("url(#", f"url(#{name}-").replace('id="', f'id="{name}-')
    inside = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", inside)
    inside = re.sub(r"font-family:[^;\"]*;?", "", inside)
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, f"var(--{variable})")
    words, width = html.escape(alt), float(box[1].split()[2])
    return (
        f'<svg id="{name}" viewBox="{box[1]}" style="--natural:{width:.0f}px" role="img" '
        f'aria-label="{words}">'
        f"<title>{words}</title>{inside.rstrip()}"
    )


def _folded(name: str) -> str:
    """A long name on two lines, broken after the underscore nearest to its middle."""
    breaks = [index + 1 for index, character in enumerate(name) if character == "_"]
    if len(name) <= 8 or not breaks:
        return name
    middle = min(breaks, key=lambda index: abs(2 * index - len(name)))
    return f"{name[:middle]}\n{name[middle:]}"


def _cells(
    axis: Any, values: Any, columns: list[str], rows: list[str], limit: float, turned: int
) -> None:
    """A heat map as tinted cells with their numbers, the tint growing with the gain; names of
    columns may be turned.
    """
    from matplotlib.patches import Rectangle

    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        tint = Rectangle(
            (column - 0.5, row - 0.5), 1, 1, facecolor=GOOD if value > 0 else BAD, edgecolor="none"
        )
        tint.set_alpha(0.08 + 0.62 * min(abs(value) / limit, 1.0))
        axis.add_patch(tint)
        axis.text(column, row, _whole(1000 * value), ha="center", va="center", fontsize=8)
    axis.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axis.set_xticks(range(len(columns)), columns, fontsize=8, rotation=turned)
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _label_ends(axis: Any, ends: dict[str, float], best: str) -> None:
    """Names beside the ends of their lines, pushed apart where they would overlap."""
    low, high = axis.get_ylim()
    room = (high - low) * 0.062
    placed = None
    for name, value in sorted(ends.items(), key=lambda item: item[1]):
        placed = value if placed is None else max(value, placed + room)
        style: dict[str, Any] = {
            "va": "center",
            "fontsize": 8,
            "color": ACCENT if name == best else INK,
        }
        label, place = f"{name} {_whole(value)}", ("axes fraction", "data")
        axis.annotate(label, (1.01, placed), xycoords=place, annotation_clip=False, **style)


def _reliability(axis: Any, kinds: Sequence[Reliability], title: str) -> None:
    points = np.array(
        [(predicted, observed) for kind in kinds for predicted, observed, _ in kind.bins]
    )
    top = float(points.max()) * 1.05
    axis.plot((0, top), (0, top), color=MUTED, linewidth=0.8)
    axis.plot(
        points[:, 0], points[:, 1], "o", color=ACCENT, markersize=2.6, alpha=0.55, markeredgewidth=0
    )
    axis.set(title=title, xlabel="forecast", ylabel="observed", xlim=(0, top), ylim=(0, top))
