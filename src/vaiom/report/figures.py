"""The figures of the report, each with what is to be seen in words.

Enters: the splits of a run with their evaluations and scored events, its training log. Leaves: `Figure`s as inline SVG.
Blue-green favours the model and red the baseline throughout; the strongest baseline of a split is set apart.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaiom.evaluation.calibration import Reliability
from vaiom.evaluation.events_file import MODEL, ScoredEvents
from vaiom.evaluation.inference import LEVEL
from vaiom.report.contents import Split
from vaiom.report.svg import ACCENT, BAD, GOOD, INK, MUTED, RULE, drawing, in_style, to_svg
from vaiom.report.tables import MINUS, bits, count, interval, p_value, percent, side_of_zero, signed

_WIDTH = 8.4
_LONG_NAME = 8
_COLOURS = {1: GOOD, 0: MUTED, -1: BAD}
"""By the side of zero on which an interval lies."""


@dataclass(frozen=True)
class Picture:
    """A drawing with what stands below it; the drawing itself says in words what it shows."""

    svg: str
    caption: str

    def __html__(self) -> str:
        return (
            f'<figure><div class="scroll" tabindex="0" role="region" aria-label="Figure">{self.svg}</div>'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


def strongest(split: Split) -> str:
    """The baseline with the fewest bits."""
    bits_of = split.evaluation.bits
    return min((name for name in bits_of if name != MODEL), key=lambda name: bits_of[name])


@in_style
def forest(splits: Sequence[Split]) -> Picture:
    """Mean gains with their intervals, a panel per split."""
    names = list(dict.fromkeys(each.baseline for split in splits for each in split.evaluation.against))
    figure, axes = drawing(_WIDTH, 0.95 + 0.3 * len(names), nrows=1, ncols=len(splits), squeeze=False, sharey=True)
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
                f"{split.period}, {each.baseline}: {signed(gain.gain_bits)} {interval(gain.asset_months.interval)}"
            )
        axis.set_title(_title(split))
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.margins(x=0.08)
        axis.locator_params(axis="x", nbins=4)
    figure.supxlabel("gain in bits per event: right of zero favours the model", fontsize=9, color=INK)
    alt = "Mean gain of the model over each baseline with 95% intervals. " + "; ".join(described) + "."
    caption = (
        f"Gain over each baseline. Dot: mean; thick bar: {LEVEL:.0%} interval over asset-months, the paper's; thin "
        "line: over whole months, which lets assets of a month move together. Grey intervals include zero."
    )
    return Picture(to_svg(figure, "gains-figure", alt), caption)


@in_style
def heat_maps(split: Split) -> Picture:
    """Gain by asset and baseline, and by asset and month against the strongest baseline."""
    events, best_baseline = split.events, strongest(split)
    symbols = sorted(set(events.symbols.tolist()))
    baselines = [name for name in events.bits if name != MODEL]
    months = np.unique(events.target_times.astype("datetime64[M]"))
    by_baseline = np.array([[_mean_gain(events, name, events.symbols == s) for name in baselines] for s in symbols])
    month_of = events.target_times.astype("datetime64[M]")
    by_month = np.array(
        [[_mean_gain(events, best_baseline, (events.symbols == s) & (month_of == m)) for m in months] for s in symbols]
    )
    figure, axes = drawing(
        _WIDTH, 1.35 + 0.27 * len(symbols), nrows=1, ncols=2, width_ratios=[len(baselines), len(months)], sharey=True
    )
    limit = float(np.nanmax(np.abs(np.concatenate([by_baseline.ravel(), by_month.ravel()])))) or 1.0
    _cells(axes[0], by_baseline, [_folded(name) for name in baselines], symbols, limit)
    _cells(axes[1], by_month, [str(month) for month in months], symbols, limit)
    axes[0].set_title("by baseline")
    axes[1].set_title(f"by month, against {best_baseline}")
    axes[1].tick_params(axis="y", labelleft=False)
    worst, best = (np.unravel_index(at, by_baseline.shape) for at in (by_baseline.argmin(), by_baseline.argmax()))
    wins = int(np.nansum(by_month > 0))
    alt = (
        f"{_title(split)}: gain in bits per event by asset. Largest: {symbols[best[0]]} over {baselines[best[1]]}, "
        f"{signed(by_baseline[best])}; smallest: {symbols[worst[0]]} over {baselines[worst[1]]}, "
        f"{signed(by_baseline[worst])}. "
        f"Against {best_baseline} the model wins {wins} of {int(np.isfinite(by_month).sum())} asset-months."
    )
    caption = (
        f"{_title(split)}. Gain in thousandths of a bit per event, by asset and baseline and, against the strongest "
        "baseline, by asset and month."
    )
    return Picture(to_svg(figure, f"assets-{split.name}", alt), caption)


@in_style
def cumulative(split: Split) -> Picture:
    """The gain added up over time, a line per baseline."""
    events, best = split.events, strongest(split)
    days, day_of = np.unique(events.target_times.astype("datetime64[D]"), return_inverse=True)
    figure, axis = drawing(_WIDTH, 2.9)
    ends: dict[str, float] = {}
    low_point = 0.0
    for name in sorted((n for n in events.bits if n != MODEL), key=lambda n: n == best):
        total = np.cumsum(np.bincount(day_of, weights=events.bits[name] - events.bits[MODEL]))
        colour, width = (ACCENT, 1.8) if name == best else (MUTED, 0.9)
        axis.plot(days.astype(object), total, color=colour, linewidth=width)
        ends[name] = float(total[-1])
        if name == best:
            low_point = float(total.min())
    axis.axhline(0, color=MUTED, linewidth=0.8)
    _label_ends(axis, ends, best)
    axis.set_ylabel("bits gained since the start")
    if len(days) > 1:
        axis.set_xlim(days[0].astype(object), days[-1].astype(object))
    alt = (
        f"{_title(split)}: cumulative gain of the model in bits, all assets together. At the end "
        + "; ".join(f"{name} {_whole(value)}" for name, value in ends.items())
        + f". Against {best}, the strongest, the lowest point was {_whole(low_point)}."
    )
    caption = (
        f"{_title(split)}. Cumulative gain over all events; a rising line is a model that keeps winning. "
        f"Set apart: {best}, the strongest baseline."
    )
    return Picture(to_svg(figure, f"cumulative-{split.name}", alt), caption)


@in_style
def calibration(split: Split) -> Picture:
    """The PIT histogram, and reliability of buckets and of cumulative probabilities."""
    found = split.evaluation.calibration
    figure, axes = drawing(_WIDTH, 3.0, nrows=1, ncols=3)
    heights = np.array(found.pit_histogram, np.float64)
    heights /= heights.mean()
    spread = 1.96 * np.sqrt((1 - 1 / len(heights)) * len(heights) / found.pit.num_events)
    edges = np.linspace(0, 1, len(heights) + 1)
    axes[0].axhspan(1 - spread, 1 + spread, color=RULE, linewidth=0)
    axes[0].stairs(heights, edges, baseline=None, color=ACCENT, linewidth=1.2)
    axes[0].set_ylim(0, max(1.5, float(heights.max()) * 1.1))
    axes[0].set_title("randomised PIT")
    axes[0].set_xlabel("forecast probability of less")
    axes[0].set_ylabel("share of events, 1 is even")
    _reliability(axes[1], found.buckets, "buckets")
    _reliability(axes[2], found.cumulative, "up to an edge")
    worst = max(found.buckets, key=lambda each: each.error)
    alt = (
        f"{_title(split)}: calibration. The PIT histogram lies between {heights.min():.2f} and "
        f"{heights.max():.2f} where 1 is even (Kuiper p {p_value(found.pit.p_value)}). The least reliable bucket is "
        f"{worst.outcome}: forecast {percent(worst.predicted)}, observed {percent(worst.observed)}, mean error "
        f"{percent(worst.error, 2)}."
    )
    caption = (
        f"{_title(split)}. Left: true forecasts give a flat histogram, and 95% of its bars lie within the band. "
        "Middle and right: events in groups by forecast; on the diagonal, what was forecast is what happened."
    )
    return Picture(to_svg(figure, f"calibration-{split.name}", alt), caption)


@in_style
def training_curve(metrics: Sequence[dict[str, Any]], best_step: int) -> Picture:
    """Training loss and Validation bits by step, the chosen checkpoint marked."""
    checked = [entry for entry in metrics if "validation_bits" in entry]
    figure, axes = drawing(_WIDTH, 2.7, nrows=1, ncols=2)
    axes[0].plot([e["step"] for e in metrics], [e["loss_nats"] for e in metrics], color=MUTED, linewidth=1.1)
    axes[0].set_title("training loss of the return (nats)")
    scores = [e["step"] for e in checked], [e["validation_bits"] for e in checked]
    axes[1].plot(*scores, "o-", color=INK, linewidth=1.1, markersize=2.5)
    axes[1].set_title("Validation (bits per event)")
    chosen = next((entry for entry in checked if entry["step"] == best_step), None)
    described = ""
    if chosen is not None:
        value = chosen["validation_bits"]
        axes[1].plot(best_step, value, "o", color=ACCENT, markersize=7)
        axes[1].annotate(
            f"chosen: {bits(value)}", (best_step, value), (0, 12), textcoords="offset points", ha="center", color=ACCENT
        )
        described = f" The chosen checkpoint, step {count(best_step)}, has {bits(value)} bits per event."
    for axis in axes:
        axis.set_xlabel("step")
        axis.margins(y=0.15)
    last = f" The last one has {bits(checked[-1]['validation_bits'])}." if checked else ""
    alt = f"Training over {count(metrics[-1]['step'])} steps, {len(checked)} Validations.{described}{last}"
    caption = (
        "Loss and Validation score by step. The checkpoint with the fewest Validation bits is the one judged here."
    )
    return Picture(to_svg(figure, "training-figure", alt), caption)


def _title(split: Split) -> str:
    return f"{split.name}, {split.period}" if len(split.period) < 12 else split.name


def _folded(name: str) -> str:
    """A long name on two lines, broken after the underscore nearest to its middle."""
    breaks = [index + 1 for index, character in enumerate(name) if character == "_"]
    if len(name) <= _LONG_NAME or not breaks:
        return name
    middle = min(breaks, key=lambda index: abs(2 * index - len(name)))
    return f"{name[:middle]}\n{name[middle:]}"


def _whole(value: float) -> str:
    return f"{value:+,.0f}".replace("-", MINUS)


def _mean_gain(events: ScoredEvents, name: str, chosen: Any) -> float:
    return float((events.bits[name] - events.bits[MODEL])[chosen].mean()) if chosen.any() else float("nan")


def _cells(axis: Any, values: Any, columns: list[str], rows: list[str], limit: float) -> None:
    """A heat map as tinted cells with their numbers: strength of the tint is the size of the gain."""
    from matplotlib.patches import Rectangle

    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        tint = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=GOOD if value > 0 else BAD, edgecolor="none")
        tint.set_alpha(0.08 + 0.62 * min(abs(value) / limit, 1.0))
        axis.add_patch(tint)
        axis.text(column, row, _whole(1000 * value), ha="center", va="center", fontsize=8)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks(range(len(columns)), columns, fontsize=8)
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
        axis.annotate(
            f"{name} {_whole(value)}",
            (1.01, placed),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=ACCENT if name == best else INK,
            annotation_clip=False,
        )


def _reliability(axis: Any, kinds: Sequence[Reliability], title: str) -> None:
    points = np.array([(predicted, observed) for kind in kinds for predicted, observed, _ in kind.bins])
    top = float(points.max()) * 1.05
    axis.plot((0, top), (0, top), color=MUTED, linewidth=0.8)
    axis.plot(points[:, 0], points[:, 1], "o", color=ACCENT, markersize=2.6, alpha=0.55, markeredgewidth=0)
    axis.set_title(title)
    axis.set_xlabel("forecast")
    axis.set_ylabel("observed")
    axis.set_xlim(0, top)
    axis.set_ylim(0, max(top, float(points[:, 1].max()) * 1.05))
