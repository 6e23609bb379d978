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
from matplotlib.text import Text

from vaiom.baselines.base import BASELINES
from vaiom.evaluation.calibration import Reliability, calibrate
from vaiom.evaluation.inference import compare
from vaiom.evaluation.scores import ScoredEvents
from vaiom.report import figures
from vaiom.report.contents import Split
from vaiom.report.drawing import ACCENT, BAD, GOOD, INK, MUTED, RULE, Drawing, fold_name, in_style
from vaiom.report.tables import interval, signed

GAINS = {"frequency": 0.4, "hour_of_week": 0.002, "garch_t_seasonal": -0.3, "markov": 0.2}
ASSETS = ("EURUSD", "USDJPY", "XAUUSD")
MINUS = "\N{MINUS SIGN}"


def made_up(
    name: str = "test-h1", months: int = 3, count: int = 400, gains: dict[str, float] | None = None
) -> Split:
    """A split whose model is better or worse than each baseline by about so many bits; gold has no
    bars in March.
    """
    rng = np.random.default_rng(count)
    month = np.repeat(np.arange(months), -(-count // months))[:count].astype("datetime64[M]")
    hours = np.sort(rng.integers(0, 28 * 24, count)) * np.timedelta64(1, "h")
    times = month.astype("datetime64[s]") + hours
    symbols = rng.choice(ASSETS, count)
    symbols[month == np.datetime64("1970-03")] = ASSETS[0]
    bits = {"model": rng.gamma(4, 0.8, count)}
    for baseline, gain in (gains or GAINS).items():
        noise = rng.standard_normal(count) / 10
        bits[baseline] = bits["model"] + gain + noise - noise.mean()
    buckets = rng.integers(1, 17, count).astype(np.uint8)
    events = ScoredEvents(symbols=symbols, target_times=times, buckets=buckets, bits=bits)
    probs = rng.dirichlet(np.full(16, 2.0), count)
    evaluation: Any = SimpleNamespace(
        split=name,
        bits=events.mean_bits,
        against=compare(events),
        calibration=calibrate(probs, buckets, rng.beta(2, 2, count)),
    )
    return Split(period="1970", evaluation=evaluation, events=events, forecasts={})


def with_figures(**figures: Any) -> Split:
    """The same, with further figures of the evaluation."""
    split = made_up()
    return replace(split, evaluation=SimpleNamespace(**vars(split.evaluation), **figures))


def lines(axis: Axes) -> list[tuple[list[Any], list[float], str]]:
    """Horizontal and vertical places, and colour."""
    return [
        (list(each.get_xdata()), list(each.get_ydata()), to_hex(each.get_color()))
        for each in axis.get_lines()
    ]


def titles(drawing: Drawing) -> list[str]:
    return [axis.get_title(loc="left") for axis in drawing.figure.axes]


def ticks(axis: Any) -> dict[float, str]:
    """Places and labels of an axis whose labels were chosen."""
    return {place: axis.get_major_formatter()(place) for place in axis.get_majorticklocs().tolist()}


def test_gains_are_drawn_with_both_intervals_in_the_colour_of_their_side() -> None:
    splits = [made_up(), made_up("test-h2", 1, 90, {"markov": 0.2, "trees": -0.3})]
    drawing = figures.forest(splits)
    names = ["frequency", "hour_of_week", "garch_t_seasonal", "markov", "trees"]
    colours = dict(zip(names, (GOOD, MUTED, BAD, GOOD, BAD), strict=True))
    said = []
    for axis, split in zip(drawing.figure.axes, splits, strict=True):
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
        assert (axis.get_ylim(), ticks(axis.yaxis)) == ((4.5, -0.5), dict(enumerate(names)))
    assert titles(drawing) == ["test-h1, 1970", "test-h2, 1970"]
    alt = "Mean gain of the model over each baseline with 95% intervals."
    assert drawing.alt == f"{alt} {'; '.join(said)}."


def cells(axis: Axes) -> dict[tuple[float, float], tuple[str, str, float]]:
    """By column and row: the number, the colour behind it and its strength."""
    numbers = {text.get_position(): text.get_text() for text in axis.texts}
    found = {}
    for tint in axis.patches:
        at = (tint.get_x() + 0.5, tint.get_y() + 0.5)
        found[at] = (numbers[at], to_hex(tint.get_facecolor()), tint.get_alpha())
    return found


def test_heat_maps_have_the_mean_gain_of_each_cell_in_thousandths() -> None:
    split, strongest = made_up(), "garch_t_seasonal"
    events = split.events
    drawing = figures.heat_maps(split)
    months = ["1970-01", "1970-02", "1970-03"]
    month_of = events.target_times.astype("datetime64[M]").astype(str)
    means: list[dict[tuple[int, int], float]] = [{}, {}]
    for y, asset in enumerate(ASSETS):
        own = events.symbols == asset
        for x, name in enumerate(GAINS):
            means[0][x, y] = (events.bits[name] - events.bits["model"])[own].mean()
        for x, month in enumerate(months):
            if (rows := own & (month_of == month)).any():
                means[1][x, y] = (events.bits[strongest] - events.bits["model"])[rows].mean()
    assert len(means[1]) == 7
    limit = max(abs(mean) for each in means for mean in each.values())
    for axis, expected in zip(drawing.figure.axes, means, strict=True):
        found = cells(axis)
        assert found.keys() == expected.keys()
        for at, mean in expected.items():
            number, colour, strength = found[at]
            assert number == f"{1000 * mean:+,.0f}".replace("-", MINUS)
            assert colour == (GOOD if mean > 0 else BAD)
            assert strength == pytest.approx(0.08 + 0.62 * abs(mean) / limit)
        assert ticks(axis.yaxis) == dict(enumerate(ASSETS))
        assert axis.get_ylim() == (2.5, -0.5)
    names, times = (list(ticks(axis.xaxis).values()) for axis in drawing.figure.axes)
    assert names == ["frequency", "hour_\nof_week", "garch_t_\nseasonal", "markov"]
    assert times == months
    assert titles(drawing) == ["by baseline", "by month, against garch_t_seasonal"]
    worst, best = (pick(means[0], key=means[0].__getitem__) for pick in (min, max))
    assert drawing.alt == (
        f"test-h1, 1970: gain in bits per event by asset. Largest: {ASSETS[best[1]]} over "
        f"frequency, {signed(means[0][best])}; smallest: {ASSETS[worst[1]]} over "
        f"garch_t_seasonal, {signed(means[0][worst])}. "
        "Against garch_t_seasonal the model wins 0 of 7 asset-months."
    )


def test_heat_maps_of_a_model_that_never_differs_are_drawn() -> None:
    split = made_up(gains={"twin": 0.0})
    same = dict.fromkeys(split.events.bits, split.events.bits["model"])
    drawing = figures.heat_maps(replace(split, events=replace(split.events, bits=same)))
    by_baseline = cells(drawing.figure.axes[0])
    assert {(number, strength) for number, _, strength in by_baseline.values()} == {("+0", 0.08)}
    assert "the model wins 0 of 7" in drawing.alt


def test_gains_add_up_day_by_day() -> None:
    split = made_up()
    events, drawing = split.events, figures.cumulative(split)
    [axis] = drawing.figure.axes
    day_of = events.target_times.astype("datetime64[D]")
    days = np.unique(day_of)
    *found, (_, zero, colour) = lines(axis)
    assert (zero, colour) == ([0, 0], MUTED)
    order = ["frequency", "hour_of_week", "markov", "garch_t_seasonal"]  # the strongest on top
    said = []
    for name, (xs, ys, colour) in zip(order, found, strict=True):
        gains = events.bits[name] - events.bits["model"]
        assert xs == days.tolist()
        assert ys == pytest.approx([gains[day_of <= day].sum() for day in days])
        assert colour == (ACCENT if name == "garch_t_seasonal" else MUTED)
        said.append(f"{name} {ys[-1]:+,.0f}".replace("-", MINUS))
    assert {text.get_text() for text in axis.texts} == {*said}
    assert axis.get_xlim() == tuple((day - date(1970, 1, 1)).days for day in days[[0, -1]].tolist())
    lowest = f"{min(ys):+,.0f}".replace("-", MINUS)
    assert drawing.alt == (
        "test-h1, 1970: cumulative gain of the model in bits, all assets together. At the end "
        f"{'; '.join(said)}. Against garch_t_seasonal, the strongest, the lowest point was "
        f"{lowest}."
    )
    # Ends that are near each other are pushed apart.
    heights = sorted(text.xy[1] for text in axis.texts)  # type: ignore[attr-defined]
    assert np.diff(heights).min() >= 0.06 * np.ptp(axis.get_ylim())


def test_calibration_shows_the_pit_and_both_kinds_of_reliability() -> None:
    split = made_up()
    measured = split.evaluation.calibration
    drawing = figures.calibration(split)
    pit, *reliabilities = drawing.figure.axes
    band, stairs = pit.patches
    heights = np.array(measured.pit_histogram) * len(measured.pit_histogram)
    heights = heights / measured.pit.num_events
    np.testing.assert_allclose(stairs.get_data().values, heights)
    np.testing.assert_allclose(stairs.get_data().edges, np.linspace(0, 1, len(heights) + 1))
    assert band.get_y() + band.get_height() / 2 == pytest.approx(1)
    assert pit.get_ylim() == (0, max(1.5, 1.1 * heights.max()))
    assert titles(drawing) == ["PIT", "buckets", "up to an edge"]
    outcomes = (measured.buckets, measured.cumulative)
    for axis, kinds in zip(reliabilities, outcomes, strict=True):
        diagonal, dots = axis.get_lines()
        groups = [group[:2] for kind in kinds for group in kind.bins]
        top = pytest.approx(1.05 * max(map(max, groups)))
        assert dots.get_xydata().tolist() == [[*group] for group in groups]
        assert diagonal.get_xydata().tolist() == [[0, 0], [top, top]]
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("forecast", "observed")
    worst = max(measured.buckets, key=lambda each: each.error)
    assert drawing.alt == (
        f"test-h1, 1970: calibration. The PIT histogram lies between {heights.min():.2f} and "
        f"{heights.max():.2f} where 1 is even (Kuiper p <0.0001). The least reliable bucket is "
        f"{worst.outcome}: forecast {100 * worst.predicted:.1f}%, observed "
        f"{100 * worst.observed:.1f}%, mean error {100 * worst.error:.2f}%."
    )


@pytest.mark.parametrize(("observed", "top"), [(0.3, 0.525), (0.8, 0.84)])
def test_reliability_has_room_for_forecasts_and_outcomes(observed: float, top: float) -> None:
    split = made_up()
    bins = [(0.1, 0.2, 50), (0.5, observed, 50)]
    kind = Reliability(outcome="up", predicted=0.25, observed=0.25, error=0.1, bins=bins)
    measured = replace(split.evaluation.calibration, buckets=[kind])
    other: Any = SimpleNamespace(**{**vars(split.evaluation), "calibration": measured})
    axis = figures.calibration(replace(split, evaluation=other)).figure.axes[1]
    assert axis.get_xlim() == axis.get_ylim() == (0, pytest.approx(top))


def backtested(rates: dict[tuple[str, float], float]) -> Split:
    tests = [
        SimpleNamespace(portfolio=name, level=level, num_stamps=400, exceedance_rate=rate)
        for (name, level), rate in rates.items()
    ]
    return with_figures(joint=SimpleNamespace(portfolios=tests))


def test_portfolios_are_drawn_beside_the_band_of_chance() -> None:
    rates = {("equal", 0.99): 0.02, ("equal", 0.95): 0.06}
    rates |= {("random_1", 0.99): 0.01, ("random_1", 0.95): 0.04}
    drawing = figures.portfolios(backtested(rates))
    for axis, level in zip(drawing.figure.axes, (0.95, 0.99), strict=True):
        own = [rates[name, level] for name in ("equal", "random_1")]
        assert lines(axis) == [(own, [0, 1], ACCENT)]
        [band] = axis.patches
        spread = 1.96 * (level * (1 - level) / 400) ** 0.5
        assert (band.get_x(), band.get_width()) == pytest.approx((1 - level - spread, 2 * spread))
        assert to_hex(band.get_facecolor()) == RULE
        assert (axis.get_ylim(), ticks(axis.yaxis)) == ((1.5, -0.5), {0: "equal", 1: "random_1"})
    assert titles(drawing) == ["95% value at risk", "99% value at risk"]
    assert drawing.alt == (
        "test-h1, 1970: share of stamps with a loss beyond the value at risk. equal 6.00% at 95%; "
        "random_1 4.00% at 95%; equal 2.00% at 99%; random_1 1.00% at 99%."
    )
    assert [lines(axis) for axis in figures.portfolios(backtested({})).figure.axes] == [[]]


def test_the_fan_opens_from_now_with_the_horizons() -> None:
    quantiles = {4: (-2.0, -0.5, 0.1, 0.6, 1.9), 8: (-3.0, -0.8, 0.2, 0.9, 2.5)}
    levels = ("0.05", "0.25", "0.5", "0.75", "0.95")
    horizons = [
        SimpleNamespace(bars=bars, quantiles=dict(zip(levels, values, strict=True)))
        for bars, values in quantiles.items()
    ]
    drawing = figures.fan(with_figures(horizons=horizons))
    [axis] = drawing.figure.axes
    assert lines(axis) == [([0, 4, 8], [0, 0.1, 0.2], INK)]
    outer, inner = (
        {(x, y) for x, y in band.get_paths()[0].vertices.tolist()} for band in axis.collections
    )
    assert outer == {(0, 0), (4, -2), (8, -3), (4, 1.9), (8, 2.5)}
    assert inner == {(0, 0), (4, -0.5), (8, -0.8), (4, 0.6), (8, 0.9)}
    assert drawing.alt == (
        "test-h1, 1970: central 90% of the median event's forecast, in units of sigma20: 4 bars "
        "-2.00 to 1.90; 8 bars -3.00 to 2.50."
    )


METRICS = [
    {"step": 100, "loss_nats": 2.4, "validation_bits": 3.3},
    {"step": 150, "loss_nats": 2.3},
    {"step": 1_200, "loss_nats": 2.2, "validation_bits": 3.2},
    {"step": 1_300, "loss_nats": 2.1, "validation_bits": 3.25},
]


def test_the_training_curve_marks_the_checkpoint_that_was_chosen() -> None:
    drawing = figures.training_curve(METRICS, 1_200)
    loss, validation = drawing.figure.axes
    assert lines(loss) == [([100, 150, 1_200, 1_300], [2.4, 2.3, 2.2, 2.1], MUTED)]
    scores = ([100, 1_200, 1_300], [3.3, 3.2, 3.25], INK)
    assert lines(validation) == [scores, ([1_200], [3.2], ACCENT)]
    [mark] = validation.texts
    assert (mark.get_text(), mark.xy) == ("chosen: 3.2000", (1_200, 3.2))  # type: ignore[attr-defined]
    assert drawing.alt == (
        "Training over 1,300 steps, 3 Validations. The chosen checkpoint, step 1,200, has 3.2000 "
        "bits per event. The last one has 3.2500."
    )
    without = figures.training_curve(METRICS[1:2], 1_200)
    assert without.alt == "Training over 150 steps, 0 Validations."
    assert lines(without.figure.axes[1]) == [([], [], INK)]


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("ewma_t_x", "ewma_t_x"),
        ("frequency", "frequency"),
        ("hour_of_week", "hour_\nof_week"),
        ("lightgbm_lags", "lightgbm_\nlags"),
        ("a_seasonal_one", "a_seasonal_\none"),
    ],
)
def test_a_long_name_is_broken_near_its_middle(name: str, folded: str) -> None:
    assert fold_name(name) == folded


def real_size(name: str) -> Split:
    """As many baselines as there are, over half a year."""
    gains = {baseline: 0.05 * place - 0.1 for place, baseline in enumerate(BASELINES)}
    return made_up(name, 6, 900, gains)


MANY = {(f"random_{each}", level): 0.03 for each in range(12) for level in (0.95, 0.99)}
LARGEST: dict[str, Callable[[], Drawing]] = {
    "forest": lambda: figures.forest([*map(real_size, ("validation", "test-h1", "test-h2"))]),
    "heat_maps": lambda: figures.heat_maps(real_size("test-h1")),
    "cumulative": lambda: figures.cumulative(real_size("test-h1")),
    "calibration": lambda: figures.calibration(real_size("test-h1")),
    "portfolios": lambda: figures.portfolios(backtested(MANY)),
    "training_curve": lambda: figures.training_curve(METRICS, 1_200),
}


@pytest.mark.parametrize("which", LARGEST)
def test_no_words_cover_each_other_or_leave_the_figure(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure, drawn = LARGEST[which]().figure, list[Text]()
    draw = Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, *how: (drawn.append(text), draw(text, *how)))
    with in_style():
        figure.draw_without_rendering()
        written = [each for each in dict.fromkeys(drawn) if each.get_visible() and each.get_text()]
        boxes = [(each, each.get_window_extent()) for each in written]
    page = figure.bbox
    assert len(boxes) > 10
    for each, box in boxes:
        assert page.x0 <= box.x0 < box.x1 <= page.x1, each
        assert page.y0 <= box.y0 < box.y1 <= page.y1, each
    for (one, first), (other, second) in combinations(boxes, 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (one, other)
