"""The figures of the report, one function each.

The splits of a run enter, a `Drawing` leaves. Blue-green favours the model and red the baseline
throughout; the strongest baseline of a split is set apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vaiom.evaluation.calibration import Reliability
from vaiom.evaluation.inference import PairedGain
from vaiom.evaluation.scores import MODEL
from vaiom.report.contents import Split
from vaiom.report.drawing import (
    ACCENT,
    COLOUR_OF_SIDE,
    INK,
    MUTED,
    RULE,
    Drawing,
    draw_cells,
    fold_name,
    in_style,
    label_ends,
    label_rows,
    new_figure,
    whole,
)
from vaiom.report.tables import (
    bits,
    count,
    interval,
    p_value,
    percent,
    percent2,
    side_of_zero,
    signed,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NORMAL_95 = 1.96
"""Standard errors on either side within which 95% of normal values lie."""
MANY_COLUMNS = 12
"""With more columns than this their names are turned, or they would cover each other."""

Floats = npt.NDArray[np.float64]


@in_style()
def forest(splits: Sequence[Split]) -> Drawing:
    """Mean gain over each baseline with both its intervals, a panel per split.

    The dot is the mean in bits per event, the thick bar its interval over asset-months, which is
    the paper's, and the thin line that over whole months, which lets assets of a month move
    together. Intervals that include zero are grey.
    """
    compared = [each.baseline for split in splits for each in split.evaluation.against]
    names = list(dict.fromkeys(compared))
    height = 0.95 + 0.3 * len(names)
    figure, axes = new_figure(height, ncols=len(splits), squeeze=False, sharey=True)
    described = []
    for axis, split in zip(axes[0], splits, strict=True):
        axis.axvline(0, color=MUTED, linewidth=0.8)
        for each in split.evaluation.against:
            gain = each.gain
            row = names.index(each.baseline)
            _draw_gain(axis, gain, row)
            mean = signed(gain.gain_bits)
            ends = interval(gain.asset_months.interval)
            described.append(f"{split.period}, {each.baseline}: {mean} {ends}")
        axis.set_title(split.title)
        label_rows(axis, names)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.margins(x=0.08)
        axis.locator_params(axis="x", nbins=4)
    what = "gain in bits per event: right of zero favours the model"
    figure.supxlabel(what, fontsize=9, color=INK)
    details = "; ".join(described)
    alt = f"Mean gain of the model over each baseline with 95% intervals. {details}."
    return Drawing("gains-figure", alt, figure)


def _draw_gain(axis: Axes, gain: PairedGain, height: float) -> None:
    """A gain as a dot on its two intervals, in the colour of the side of the narrower one."""
    side = side_of_zero(gain.asset_months.interval)
    colour = COLOUR_OF_SIDE[side]
    for blocks, width, alpha in ((gain.months, 1.1, 1.0), (gain.asset_months, 6.0, 0.35)):
        if blocks.interval is not None:
            ends = (height, height)
            axis.plot(blocks.interval, ends, color=colour, linewidth=width, alpha=alpha)
    axis.plot(gain.gain_bits, height, "o", color=colour, markersize=4.5)


@in_style()
def heat_maps(split: Split) -> Drawing:
    """Gain by asset and baseline, and by asset and month against the strongest baseline.

    Cells show thousandths of a bit per event on one scale of tints; asset-months without events
    are empty.
    """
    events = split.events
    names = split.baselines
    strongest = split.strongest
    symbols = np.unique(events.symbols).tolist()
    month_of = events.target_times.astype("datetime64[M]")
    months = np.unique(month_of)
    by_baseline = np.empty((len(symbols), len(names)))
    by_month = np.empty((len(symbols), len(months)))
    for row, symbol in enumerate(symbols):
        is_own = events.symbols == symbol
        for column, name in enumerate(names):
            by_baseline[row, column] = _mean_gain(split, name, is_own)
        for column, month in enumerate(months):
            is_own_month = is_own & (month_of == month)
            by_month[row, column] = _mean_gain(split, strongest, is_own_month)
    ratios = [len(names), len(months)]
    turned = 90 if sum(ratios) > MANY_COLUMNS else 0
    margins = 1.75 if turned else 1.35
    height = margins + 0.27 * len(symbols)
    figure, (left, right) = new_figure(height, ncols=2, width_ratios=ratios, sharey=True)
    sizes = np.abs([*by_baseline.flat, *by_month.flat])
    limit = float(np.nanmax(sizes)) or 1.0
    draw_cells(left, by_baseline, [fold_name(name) for name in names], limit, turned)
    draw_cells(right, by_month, [str(month) for month in months], limit, turned)
    label_rows(left, symbols)
    left.set_title("by baseline")
    right.set_title(f"by month, against {strongest}")
    right.tick_params(axis="y", labelleft=False)

    def describe(place: np.intp) -> str:
        row, column = np.unravel_index(place, by_baseline.shape)
        gain = signed(by_baseline[row, column])
        return f"{symbols[row]} over {names[column]}, {gain}"

    largest = describe(by_baseline.argmax())
    smallest = describe(by_baseline.argmin())
    num_won = np.count_nonzero(by_month > 0)
    num_months = np.count_nonzero(np.isfinite(by_month))
    alt = (
        f"{split.title}: gain in bits per event by asset. "
        f"Largest: {largest}; smallest: {smallest}. "
        f"Against {strongest} the model wins {num_won} of {num_months} asset-months."
    )
    return Drawing(f"assets-{split.name}", alt, figure)


def _mean_gain(split: Split, baseline: str, rows: npt.NDArray[np.bool_]) -> float:
    """In bits per event over these events; not a number where there are none."""
    if not rows.any():
        return float("nan")
    gains = _gains_over(split, baseline)
    return float(gains[rows].mean())


def _gains_over(split: Split, baseline: str) -> Floats:
    """(events,) the bits that the model saves over a baseline at each event."""
    bits_of = split.events.bits
    return bits_of[baseline] - bits_of[MODEL]


@in_style()
def cumulative(split: Split) -> Drawing:
    """The gain in bits added up day by day over all events, a line per baseline.

    A rising line is a model that keeps winning, a step one that won once.
    """
    strongest = split.strongest
    target_days = split.events.target_times.astype("datetime64[D]")
    days, day_of = np.unique(target_days, return_inverse=True)
    dates = days.astype(object)
    figure, axis = new_figure(2.9)
    # The strongest baseline is drawn last, on top of the others.
    order = sorted(split.baselines, key=lambda name: name == strongest)
    ends = {}
    for name in order:
        of_day = np.bincount(day_of, weights=_gains_over(split, name))
        total = np.cumsum(of_day)
        colour = MUTED
        width = 0.9
        if name == strongest:
            colour = ACCENT
            width = 1.8
        axis.plot(dates, total, color=colour, linewidth=width)
        ends[name] = float(total[-1])
    lowest = float(total.min())
    axis.axhline(0, color=MUTED, linewidth=0.8)
    label_ends(axis, ends, strongest)
    axis.set_ylabel("bits gained since the start")
    if len(days) > 1:
        axis.set_xlim(dates[0], dates[-1])
    shown = "; ".join(f"{name} {whole(value)}" for name, value in ends.items())
    alt = (
        f"{split.title}: cumulative gain of the model in bits, all assets together. At the end "
        f"{shown}. Against {strongest}, the strongest, the lowest point was {whole(lowest)}."
    )
    return Drawing(f"cumulative-{split.name}", alt, figure)


@in_style()
def calibration(split: Split) -> Drawing:
    """The PIT histogram, and reliability of buckets and of cumulative probabilities.

    True forecasts give a flat histogram (Diebold, Gunther and Tay 1998), and dots on the diagonal.
    """
    measured = split.evaluation.calibration
    figure, (left, middle, right) = new_figure(3.0, ncols=3)
    heights = np.array(measured.pit_histogram, np.float64)
    heights /= heights.mean()
    _draw_pit(left, heights, measured.pit.num_events)
    _draw_reliability(middle, measured.buckets, "buckets")
    _draw_reliability(right, measured.cumulative, "up to an edge")
    lowest = heights.min()
    highest = heights.max()
    kuiper = p_value(measured.pit.p_value)
    worst = max(measured.buckets, key=lambda each: each.error)
    forecast = percent(worst.predicted)
    observed = percent(worst.observed)
    error = percent2(worst.error)
    alt = (
        f"{split.title}: calibration. The PIT histogram lies between {lowest:.2f} and "
        f"{highest:.2f} where 1 is even (Kuiper p {kuiper}). The least reliable bucket is "
        f"{worst.outcome}: forecast {forecast}, observed {observed}, mean error {error}."
    )
    return Drawing(f"calibration-{split.name}", alt, figure)


def _draw_pit(axis: Axes, heights: Floats, num_events: int) -> None:
    """A histogram (bars,) with mean 1, on the band that holds 95% of the bars of true forecasts."""
    num_bars = len(heights)
    variance = (num_bars - 1) / num_events
    spread = NORMAL_95 * np.sqrt(variance)
    axis.axhspan(1 - spread, 1 + spread, color=RULE, linewidth=0)
    edges = np.linspace(0, 1, num_bars + 1)
    axis.stairs(heights, edges, baseline=None, color=ACCENT, linewidth=1.2)
    axis.set_title("PIT")
    top = float(heights.max()) * 1.1
    axis.set_ylim(0, max(1.5, top))
    axis.set_xlabel("forecast probability of less")
    axis.set_ylabel("share of events, 1 is even")


def _draw_reliability(axis: Axes, outcomes: Sequence[Reliability], title: str) -> None:
    """Groups of events by forecast: on the diagonal, what was forecast is what happened.

    Each outcome, a bucket or everything up to an edge, has its own groups.
    """
    groups = [group for outcome in outcomes for group in outcome.bins]
    forecast, observed, _ = np.array(groups).T
    largest = float(max(forecast.max(), observed.max()))
    span = (0, largest * 1.05)
    axis.plot(span, span, color=MUTED, linewidth=0.8)
    [dots] = axis.plot(forecast, observed, "o", color=ACCENT, markersize=2.6, alpha=0.55)
    dots.set_markeredgewidth(0)
    axis.set(title=title, xlabel="forecast", ylabel="observed", xlim=span, ylim=span)


@in_style()
def portfolios(split: Split) -> Drawing:
    """How often portfolios lost more than their value at risk, a panel per level.

    95% of right forecasts lie within the band.
    """
    assert split.evaluation.joint is not None
    backtests = split.evaluation.joint.portfolios
    levels = sorted({each.level for each in backtests})
    names = list(dict.fromkeys(each.portfolio for each in backtests))
    panels = max(1, len(levels))
    height = 0.9 + 0.22 * len(names)
    figure, axes = new_figure(height, ncols=panels, squeeze=False, sharey=True)
    described = []
    for axis, level in zip(axes[0], levels, strict=False):
        tests = [each for each in backtests if each.level == level]
        rates = [each.exceedance_rate for each in tests]
        expected = 1 - level
        variance = level * expected / tests[0].num_stamps
        spread = NORMAL_95 * np.sqrt(variance)
        axis.axvspan(expected - spread, expected + spread, color=RULE, linewidth=0)
        axis.plot(rates, range(len(rates)), "o", color=ACCENT, markersize=4.5)
        axis.set_title(f"{level:.0%} value at risk")
        axis.set_xlabel("share of stamps")
        axis.set_xlim(left=0)
        label_rows(axis, names)
        for each in tests:
            rate = percent2(each.exceedance_rate)
            described.append(f"{each.portfolio} {rate} at {level:.0%}")
    details = "; ".join(described)
    alt = f"{split.title}: share of stamps with a loss beyond the value at risk. {details}."
    return Drawing(f"portfolios-{split.name}", alt, figure)


@in_style()
def fan(split: Split) -> Drawing:
    """The median event's forecast quantiles at each horizon, in units of its sigma20.

    Bands hold the probability between a quantile and its mirror image, such as 90% and 50%.
    """
    scores = split.evaluation.horizons or []
    levels = list(scores[0].quantiles)
    bars = [0, *(each.bars for each in scores)]
    lines = []
    for level in levels:
        quantiles = [each.quantiles[level] for each in scores]
        lines.append([0.0, *quantiles])
    figure, axis = new_figure(2.7)
    middle = len(levels) // 2
    for low, high in zip(lines[:middle], reversed(lines), strict=False):
        axis.fill_between(bars, low, high, color=ACCENT, alpha=0.25, linewidth=0)
    axis.plot(bars, lines[middle], "o-", color=INK, linewidth=1.1, markersize=3)
    axis.set(xlabel="bars ahead", ylabel="log return / sigma20", xticks=bars)
    spans = []
    for each in scores:
        lowest = each.quantiles[levels[0]]
        highest = each.quantiles[levels[-1]]
        spans.append(f"{each.bars} bars {lowest:.2f} to {highest:.2f}")
    details = "; ".join(spans)
    what = "central 90% of the median event's forecast, in units of sigma20"
    alt = f"{split.title}: {what}: {details}."
    return Drawing(f"fan-{split.name}", alt, figure)


@in_style()
def training_curve(metrics: Sequence[dict[str, Any]], best_step: int) -> Drawing:
    """Training loss and Validation bits by step, the chosen checkpoint marked.

    `metrics` is the training log, a dictionary per line; lines without a Validation have a loss
    alone.
    """
    losses = _by_step(metrics, "loss_nats")
    scores = _by_step(metrics, "validation_bits")
    figure, (loss_axis, score_axis) = new_figure(2.7, ncols=2)
    loss_axis.plot(losses.keys(), losses.values(), color=MUTED, linewidth=1.1)
    loss_axis.set_title("training loss of the return (nats)")
    score_axis.plot(scores.keys(), scores.values(), "o-", color=INK, linewidth=1.1, markersize=2.5)
    score_axis.set_title("Validation (bits per event)")
    num_steps = count(metrics[-1]["step"])
    alt = f"Training over {num_steps} steps, {len(scores)} Validations."
    if best_step in scores:
        value = scores[best_step]
        score_axis.plot(best_step, value, "o", color=ACCENT, markersize=7)
        score_axis.annotate(
            f"chosen: {bits(value)}",
            (best_step, value),
            xytext=(0, 12),
            textcoords="offset points",
            ha="center",
            color=ACCENT,
        )
        alt += f" The chosen checkpoint, step {count(best_step)}, has {bits(value)} bits per event."
    for axis in (loss_axis, score_axis):
        axis.set_xlabel("step")
        axis.margins(y=0.15)
    if scores:
        *_, last = scores.values()
        alt += f" The last one has {bits(last)}."
    return Drawing("training-figure", alt, figure)


def _by_step(metrics: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    """One number of the training log by step, where a line has it."""
    return {entry["step"]: entry[name] for entry in metrics if name in entry}
