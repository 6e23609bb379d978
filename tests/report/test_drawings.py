"""Figures show the numbers of the evaluation, each at its place and under its name, and say in
words what they show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from vaiom.evaluation.calibration import Reliability, calibrate
from vaiom.evaluation.inference import compare
from vaiom.evaluation.scores import ScoredEvents
from vaiom.report import figures
from vaiom.report.contents import Split
from vaiom.report.figures import (
    ACCENT,
    BAD,
    GOOD,
    INK,
    MUTED,
    RULE,
    _folded,
    _label_ends,
    _reliability,
)
from vaiom.report.tables import interval, signed

GAINS = {"frequency": 0.4, "hour_of_week": 0.002, "garch_t_seasonal": -0.3, "markov": 0.2}
ASSETS = ("EURUSD", "USDJPY", "XAUUSD")


def made_up(
    name: str = "test-h1", months: int = 3, count: int = 400, gains: dict[str, float] | None = None
) -> Split:
    """A split whose model is better or worse than each baseline by about so many bits; gold has no
    bars in March.
    """
    rng = np.random.default_rng(count)
    times = np.sort(rng.integers(0, 28 * 24, count)) * np.timedelta64(1, "h")
    times = times + np.repeat(np.arange(months), -(-count // months))[:count].astype(
        "datetime64[M]"
    ).astype("datetime64[s]")
    symbols = rng.choice(ASSETS, count)
    symbols[times.astype("datetime64[M]") == np.datetime64("1970-03")] = ASSETS[0]
    model = rng.gamma(4, 0.8, count)
    spread = rng.standard_normal((len(gains or GAINS), count)) / 10
    spread -= spread.mean(axis=1, keepdims=True)
    probs, buckets = (
        rng.dirichlet(np.full(16, 2.0), count),
        rng.integers(1, 17, count).astype(np.uint8),
    )
    baselines = {
        each: model + gain + own
        for (each, gain), own in zip((gains or GAINS).items(), spread, strict=True)
    }
    bits = {"model": model, **baselines}
    events = ScoredEvents(
        symbols=symbols, target_times=times.astype("datetime64[s]"), buckets=buckets, bits=bits
    )
    pits = rng.beta(2, 2, count)
    evaluation: Any = SimpleNamespace(
        split=name,
        bits=events.mean_bits,
        against=compare(events),
        calibration=calibrate(probs, buckets, pits),
    )
    return Split(period="1970", evaluation=evaluation, events=events, forecasts={})


class Drawn(SimpleNamespace):
    """The figure that was drawn last, its name and its description."""

    figure: Figure
    name: str
    alt: str

    @property
    def axes(self) -> list[Axes]:
        return self.figure.axes


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """What figures hand over to be written."""
    last = Drawn()

    def keep(figure: Figure, name: str, alt: str) -> str:
        last.figure, last.name, last.alt = figure, name, alt
        return name

    monkeypatch.setattr(figures, "_to_svg", keep)
    return last


def lines(axis: Axes) -> list[tuple[list[Any], list[float], str]]:
    """Horizontal and vertical places, and colour."""
    return [
        (list(each.get_xdata()), list(each.get_ydata()), to_hex(each.get_color()))
        for each in axis.get_lines()
    ]


def title(axis: Axes) -> str:
    return axis.get_title(loc="left")


def ticks(axis: Any) -> dict[float, str]:
    """Places and labels of an axis whose labels were chosen."""
    return {place: axis.get_major_formatter()(place) for place in axis.get_majorticklocs().tolist()}


def test_gains_are_drawn_with_both_intervals_in_the_colour_of_their_side(drawn: Drawn) -> None:
    splits = [made_up(), made_up("test-h2", 1, 90, {"markov": 0.2, "trees": -0.3})]
    assert figures.forest(splits) == "gains-figure"
    names, said = ["frequency", "hour_of_week", "garch_t_seasonal", "markov", "trees"], []
    colours = {
        "frequency": GOOD,
        "markov": GOOD,
        "hour_of_week": MUTED,
        "garch_t_seasonal": BAD,
        "trees": BAD,
    }
    for axis, split in zip(drawn.axes, splits, strict=True):
        expected: list[Any] = [([0, 0], [0, 1], MUTED)]
        for each in split.evaluation.against:
            y, colour = names.index(each.baseline), colours[each.baseline]
            for blocks in (each.gain.months, each.gain.asset_months):
                if blocks.interval is not None:
                    expected.append(([*blocks.interval], [y, y], colour))
            expected.append(([each.gain.gain_bits], [y], colour))
            shown = f"{signed(each.gain.gain_bits)} {interval(each.gain.asset_months.interval)}"
            said.append(f"1970, {each.baseline}: {shown}")
        assert lines(axis) == expected
        assert title(axis) == f"{split.name}, 1970"
        assert (axis.get_ylim(), ticks(axis.yaxis)) == ((4.5, -0.5), dict(enumerate(names)))
        assert len(axis.get_xticks()) <= 6
        assert axis.margins()[0] == 0.08  # no interval ends at the frame
        assert not axis.spines["left"].get_visible()
        assert {tick.tick1line.get_markersize() for tick in axis.yaxis.get_major_ticks()} == {0}
    first = drawn.axes[0].get_lines()
    assert [(each.get_linewidth(), each.get_alpha()) for each in first[1:3]] == [
        (1.1, 1.0),
        (6.0, 0.35),
    ]
    assert drawn.figure.get_supxlabel() == "gain in bits per event: right of zero favours the model"
    assert (
        drawn.alt
        == f"Mean gain of the model over each baseline with 95% intervals. {'; '.join(said)}."
    )


def cells(axis: Axes) -> dict[tuple[float, float], tuple[str, str, float]]:
    """By column and row: the number, the colour behind it and its strength."""
    tints = {(patch.get_x() + 0.5, patch.get_y() + 0.5): patch for patch in axis.patches}
    assert all((each.get_width(), each.get_height()) == (1, 1) for each in tints.values())
    found = {text.get_position(): text.get_text() for text in axis.texts}
    return {
        at: (found[at], to_hex(tint.get_facecolor()), tint.get_alpha())
        for at, tint in tints.items()
    }


def test_heat_maps_have_the_mean_gain_of_each_cell_in_thousandths(drawn: Drawn) -> None:
    split = made_up()
    assert figures.heat_maps(split) == "assets-test-h1"
    events, [by_baseline, by_month] = split.events, drawn.axes
    months = ["1970-01", "1970-02", "1970-03"]
    stamps = [str(each)[:7] for each in events.target_times]

    def gains(baseline: str, asset: str, month: str | None = None) -> list[float]:
        own = zip(events.bits[baseline] - events.bits["model"], events.symbols, stamps, strict=True)
        return [gain for gain, symbol, at in own if symbol == asset and month in (None, at)]

    columns = {
        by_baseline: {
            (x, y): gains(name, asset)
            for x, name in enumerate(GAINS)
            for y, asset in enumerate(ASSETS)
        },
        by_month: {
            (x, y): gains("garch_t_seasonal", asset, month)
            for x, month in enumerate(months)
            for y, asset in enumerate(ASSETS)
        },
    }
    means = {
        axis: {at: np.mean(own) for at, own in each.items() if own}
        for axis, each in columns.items()
    }
    assert len(means[by_month]) == 7
    limit = max(abs(mean) for each in means.values() for mean in each.values())
    for axis in (by_baseline, by_month):
        found = cells(axis)
        assert found.keys() == means[axis].keys()
        for at, mean in means[axis].items():
            number, colour, strength = found[at]
            assert number == f"{1000 * mean:+,.0f}".replace("-", "\N{MINUS SIGN}")
            assert colour == (GOOD if mean > 0 else BAD)
            assert strength == pytest.approx(0.08 + 0.62 * abs(mean) / limit)
        assert axis.get_ylim() == (2.5, -0.5)
        assert ticks(axis.yaxis) == dict(enumerate(ASSETS))
        assert not any(spine.get_visible() for spine in axis.spines.values())
        assert {tick.tick1line.get_markersize() for tick in axis.xaxis.get_major_ticks()} == {0}
    assert by_baseline.get_xlim() == (-0.5, 3.5)
    assert [*ticks(by_baseline.xaxis).values()] == [
        "frequency",
        "hour_\nof_week",
        "garch_t_\nseasonal",
        "markov",
    ]
    assert [*ticks(by_month.xaxis).values()] == months
    assert by_month.yaxis.get_tick_params()["labelleft"] is False
    assert [title(axis) for axis in drawn.axes] == [
        "by baseline",
        "by month, against garch_t_seasonal",
    ]
    (worst, low), (best, high) = (
        pick(means[by_baseline].items(), key=lambda each: each[1]) for pick in (min, max)
    )
    assert drawn.alt == (
        f"test-h1, 1970: gain in bits per event by asset. Largest: {ASSETS[best[1]]} over "
        f"frequency, {signed(high)}; "
        f"smallest: {ASSETS[worst[1]]} over garch_t_seasonal, {signed(low)}. "
        "Against garch_t_seasonal the model wins 0 of 7 asset-months."
    )


def test_heat_maps_of_a_model_that_never_differs_are_drawn(drawn: Drawn) -> None:
    split = made_up(gains={"twin": 0.0})
    same = dict.fromkeys(split.events.bits, split.events.bits["model"])
    split = replace(split, events=replace(split.events, bits=same))
    figures.heat_maps(split)
    assert {(number, strength) for number, _, strength in cells(drawn.axes[0]).values()} == {
        ("+0", 0.08)
    }
    assert "the model wins 0 of 7" in drawn.alt


def test_gains_add_up_day_by_day(drawn: Drawn) -> None:
    split = made_up()
    assert figures.cumulative(split) == "cumulative-test-h1"
    [axis], events = drawn.axes, split.events
    days = sorted({each.astype("datetime64[D]").item() for each in events.target_times})
    totals = {}
    for name in GAINS:
        gains = events.bits[name] - events.bits["model"]
        totals[name] = [
            gains[events.target_times.astype("datetime64[D]") <= np.datetime64(day)].sum()
            for day in days
        ]
    *found, (_, zero, colour) = lines(axis)
    assert (zero, colour) == ([0, 0], MUTED)
    order = ["frequency", "hour_of_week", "markov", "garch_t_seasonal"]  # the strongest on top
    for name, (xs, ys, colour) in zip(order, found, strict=True):
        assert xs == days
        assert ys == pytest.approx(totals[name])
        assert colour == (ACCENT if name == "garch_t_seasonal" else MUTED)
    widths = [line.get_linewidth() for line in axis.get_lines()]
    assert widths == [0.9, 0.9, 0.9, 1.8, 0.8]
    ends = {name: f"{totals[name][-1]:+,.0f}".replace("-", "\N{MINUS SIGN}") for name in order}
    assert {text.get_text() for text in axis.texts} == {
        f"{name} {end}" for name, end in ends.items()
    }
    assert axis.get_ylabel() == "bits gained since the start"
    assert axis.get_xlim() == tuple((day - date(1970, 1, 1)).days for day in (days[0], days[-1]))
    lowest = f"{min(totals['garch_t_seasonal']):+,.0f}".replace("-", "\N{MINUS SIGN}")
    assert drawn.alt == (
        "test-h1, 1970: cumulative gain of the model in bits, all assets together. At the end "
        + "; ".join(f"{name} {end}" for name, end in ends.items())
        + f". Against garch_t_seasonal, the strongest, the lowest point was {lowest}."
    )


def test_calibration_shows_the_pit_and_both_kinds_of_reliability(drawn: Drawn) -> None:
    split = made_up()
    found = split.evaluation.calibration
    assert figures.calibration(split) == "calibration-test-h1"
    pit, buckets, cumulative = drawn.axes
    band, stairs = pit.patches
    heights = np.array(found.pit_histogram) * len(found.pit_histogram) / found.pit.num_events
    np.testing.assert_allclose(stairs.get_data().values, heights)
    np.testing.assert_allclose(stairs.get_data().edges, np.linspace(0, 1, len(heights) + 1))
    assert band.get_y() + band.get_height() / 2 == pytest.approx(1)
    assert to_hex(band.get_facecolor()) == RULE
    assert pit.get_ylim() == (0, max(1.5, 1.1 * heights.max()))
    assert heights.max() > 1.5
    assert (pit.get_xlabel(), pit.get_ylabel()) == (
        "forecast probability of less",
        "share of events, 1 is even",
    )
    assert [title(axis) for axis in drawn.axes] == ["PIT", "buckets", "up to an edge"]
    for axis, kinds in ((buckets, found.buckets), (cumulative, found.cumulative)):
        xs, ys, _ = lines(axis)[1]
        assert [*zip(xs, ys, strict=True)] == [
            (each[0], each[1]) for kind in kinds for each in kind.bins
        ]
    worst = max(found.buckets, key=lambda each: each.error)
    assert drawn.alt == (
        f"test-h1, 1970: calibration. The PIT histogram lies between {heights.min():.2f} and "
        f"{heights.max():.2f} where "
        f"1 is even (Kuiper p <0.0001). The least reliable bucket is {worst.outcome}: forecast "
        f"{100 * worst.predicted:.1f}%, observed {100 * worst.observed:.1f}%, mean error "
        f"{100 * worst.error:.2f}%."
    )


def test_reliability_is_drawn_beside_the_diagonal() -> None:
    for observed, top in ((0.3, 0.525), (0.8, 0.84)):
        axis = Figure().subplots()
        bins = [(0.1, 0.2, 50), (0.5, observed, 50)]
        _reliability(
            axis,
            [Reliability(outcome="up", predicted=0.25, observed=0.25, error=0.1, bins=bins)],
            "buckets",
        )
        diagonal, points = (line.get_xydata().tolist() for line in axis.get_lines())
        assert diagonal == [[0, 0], pytest.approx([top, top])]
        assert points == [[0.1, 0.2], [0.5, observed]]
        assert (axis.get_xlim(), axis.get_ylim()) == (
            (0, pytest.approx(top)),
            (0, pytest.approx(top)),
        )
        assert (axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) == (
            "buckets",
            "forecast",
            "observed",
        )


def backtested(rates: dict[tuple[str, float], float]) -> Split:
    split = made_up()
    tests = [
        SimpleNamespace(portfolio=name, level=level, num_stamps=400, exceedance_rate=rate)
        for (name, level), rate in rates.items()
    ]
    split.evaluation.joint = SimpleNamespace(portfolios=tests)  # type: ignore[misc]
    return split


def test_portfolios_are_drawn_beside_the_band_of_chance(drawn: Drawn) -> None:
    rates = {
        ("equal", 0.99): 0.02,
        ("equal", 0.95): 0.06,
        ("random_1", 0.99): 0.01,
        ("random_1", 0.95): 0.04,
    }
    assert figures.portfolios(backtested(rates)) == "portfolios-test-h1"
    for axis, level in zip(drawn.axes, (0.95, 0.99), strict=True):
        own = [rates[name, level] for name in ("equal", "random_1")]
        assert lines(axis) == [(own, [0, 1], ACCENT)]
        [band] = axis.patches
        spread = 1.96 * (level * (1 - level) / 400) ** 0.5
        assert (band.get_x(), band.get_width()) == pytest.approx((1 - level - spread, 2 * spread))
        assert to_hex(band.get_facecolor()) == RULE
        assert title(axis) == f"{level:.0%} value at risk"
        assert axis.get_xlabel() == "share of stamps"
        assert axis.get_xlim()[0] == 0
        assert (axis.get_ylim(), ticks(axis.yaxis)) == ((1.5, -0.5), {0: "equal", 1: "random_1"})
    assert drawn.alt == (
        "test-h1, 1970: share of stamps with a loss beyond the value at risk. equal 6.00% at 95%; "
        "random_1 4.00% at "
        "95%; equal 2.00% at 99%; random_1 1.00% at 99%."
    )


def test_without_portfolios_the_figure_is_empty(drawn: Drawn) -> None:
    assert figures.portfolios(backtested({})) == "portfolios-test-h1"
    assert [lines(axis) for axis in drawn.axes] == [[]]


def test_the_fan_opens_from_now_with_the_horizons(drawn: Drawn) -> None:
    split = made_up()
    quantiles = {4: (-2.0, -0.5, 0.1, 0.6, 1.9), 8: (-3.0, -0.8, 0.2, 0.9, 2.5)}
    levels = ("0.05", "0.25", "0.5", "0.75", "0.95")
    split.evaluation.horizons = [  # type: ignore[misc]
        SimpleNamespace(bars=bars, quantiles=dict(zip(levels, values, strict=True)))
        for bars, values in quantiles.items()
    ]
    assert figures.fan(split) == "fan-test-h1"
    [axis] = drawn.axes
    assert lines(axis) == [([0, 4, 8], [0, 0.1, 0.2], INK)]
    outer, inner = (
        {(x, y) for x, y in band.get_paths()[0].vertices.tolist()} for band in axis.collections
    )
    assert outer == {(0, 0), (4, -2), (8, -3), (4, 1.9), (8, 2.5)}
    assert inner == {(0, 0), (4, -0.5), (8, -0.8), (4, 0.6), (8, 0.9)}
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("bars ahead", "log return / sigma20")
    assert axis.get_xticks().tolist() == [0, 4, 8]
    assert drawn.alt == (
        "test-h1, 1970: central 90% of the median event's forecast, in units of sigma20: 4 bars "
        "-2.00 to 1.90; 8 bars "
        "-3.00 to 2.50."
    )


METRICS = [
    {"step": 100, "loss_nats": 2.4, "validation_bits": 3.3},
    {"step": 150, "loss_nats": 2.3},
    {"step": 1_200, "loss_nats": 2.2, "validation_bits": 3.2},
    {"step": 1_300, "loss_nats": 2.1, "validation_bits": 3.25},
]


def test_the_training_curve_marks_the_checkpoint_that_was_chosen(drawn: Drawn) -> None:
    assert figures.training_curve(METRICS, 1_200) == "training-figure"
    loss, validation = drawn.axes
    assert lines(loss) == [([100, 150, 1_200, 1_300], [2.4, 2.3, 2.2, 2.1], MUTED)]
    assert lines(validation) == [
        ([100, 1_200, 1_300], [3.3, 3.2, 3.25], INK),
        ([1_200], [3.2], ACCENT),
    ]
    [mark] = validation.texts
    assert (mark.get_text(), mark.xy) == ("chosen: 3.2000", (1_200, 3.2))  # type: ignore[attr-defined]
    assert [title(axis) for axis in drawn.axes] == [
        "training loss of the return (nats)",
        "Validation (bits per event)",
    ]
    assert [axis.get_xlabel() for axis in drawn.axes] == ["step", "step"]
    assert [axis.margins()[1] for axis in drawn.axes] == [
        0.15,
        0.15,
    ]  # the mark stands above its point
    assert drawn.alt == (
        "Training over 1,300 steps, 3 Validations. The chosen checkpoint, step 1,200, has 3.2000 "
        "bits per event. The "
        "last one has 3.2500."
    )
    figures.training_curve(METRICS[1:2], 1_200)
    assert drawn.alt == "Training over 150 steps, 0 Validations."
    assert (lines(drawn.axes[1]), list(drawn.axes[1].texts)) == ([([], [], INK)], [])


def test_names_stand_at_the_ends_of_their_lines_and_apart_from_each_other() -> None:
    axis = Figure().subplots()
    axis.set_ylim(-50, 50)
    _label_ends(axis, {"markov": 3.0, "frequency": 1.0, "trees": -20.0, "garch": 2.0}, "garch")
    room = 6.2  # of a hundred
    found = {each.get_text(): (each.xy[1], each.get_color()) for each in axis.texts}  # type: ignore[attr-defined]
    assert found == {
        "trees \N{MINUS SIGN}20": (-20.0, INK),
        "frequency +1": (1.0, INK),
        "garch +2": (1.0 + room, ACCENT),
        "markov +3": (1.0 + room + room, INK),
    }
    for each in axis.texts:
        assert each.xy[0] > 1  # type: ignore[attr-defined]
        assert each.xycoords == ("axes fraction", "data")  # type: ignore[attr-defined]
        assert each.get_annotation_clip() is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("garch_t", "garch_t"),
        ("ewma_t_x", "ewma_t_x"),
        ("frequency", "frequency"),
        ("hour_of_week", "hour_\nof_week"),
        ("lightgbm_lags", "lightgbm_\nlags"),
        ("a_seasonal_one", "a_seasonal_\none"),
    ],
)
def test_a_long_name_is_broken_near_its_middle(name: str, folded: str) -> None:
    assert _folded(name) == folded


def real_size(name: str) -> Split:
    """As many baselines as there are, over half a year."""
    from vaiom.baselines.base import BASELINES

    return made_up(name, 6, 900, {each: 0.05 * place - 0.1 for place, each in enumerate(BASELINES)})


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.forest([real_size(name) for name in ("validation", "test-h1", "test-h2")]),
        lambda: figures.heat_maps(real_size("test-h1")),
        lambda: figures.cumulative(real_size("test-h1")),
        lambda: figures.calibration(real_size("test-h1")),
        lambda: figures.portfolios(
            backtested(
                {(f"random_{each}", level): 0.03 for each in range(12) for level in (0.95, 0.99)}
            )
        ),
        lambda: figures.training_curve(METRICS, 1_200),
    ],
    ids=["forest", "heat_maps", "cumulative", "calibration", "portfolios", "training_curve"],
)
def test_no_words_cover_each_other_or_leave_the_figure(
    drawn: Drawn, draw: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = Text.draw
    monkeypatch.setattr(
        Text, "draw", lambda text, *words: (written.append(text), write(text, *words))
    )
    with figures.in_style():
        draw()
        drawn.figure.draw_without_rendering()
        boxes = {
            each: each.get_window_extent()
            for each in written
            if each.get_visible() and each.get_text()
        }
    page = drawn.figure.bbox
    assert len(boxes) > 10
    for each, box in boxes.items():
        assert page.x0 <= box.x0 < box.x1 <= page.x1, each
        assert page.y0 <= box.y0 < box.y1 <= page.y1, each
    for (one, first), (other, second) in combinations(boxes.items(), 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (one, other)
