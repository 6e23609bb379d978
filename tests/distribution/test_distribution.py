"""What holds of every distribution, whatever its probabilities and shape; many at once answer as
each alone.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from datetime import datetime, timedelta
from html import unescape
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.corpus.tokenizer import fit_shape
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.returns import ReturnDistribution, as_csv, notes_of

EDGES = np.array([-np.inf, -8, -5, -3, -2, -1, -0.6, -0.3, 0.01, 0.3, 0.6, 1, 2, 3, 5, 8, np.inf])
MOMENT = datetime(2025, 3, 3, 10)
SHAPE = fit_shape(EDGES, np.random.default_rng(0).standard_t(3, 20_000) / 1.3)


def distribution(probs: np.ndarray, sigma: float = 8e-4, heavy: bool = True) -> ReturnDistribution:
    return ReturnDistribution(
        symbol="EURUSD",
        probs=probs / probs.sum(),
        edges=EDGES,
        sigma=sigma,
        shape=SHAPE if heavy else fit_shape(EDGES, np.empty(0)),
        prob_zero=0.02,
        as_of=MOMENT,
        target_time=MOMENT + timedelta(hours=1),
        stale_since=MOMENT + timedelta(hours=2),
        context=512,
    )


@st.composite
def distributions(draw: st.DrawFn) -> ReturnDistribution:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    probs = rng.dirichlet(np.full(16, draw(st.sampled_from([0.05, 0.5, 5.0]))))
    if draw(st.booleans()):
        probs[rng.integers(0, 16, 6)] = 0.0  # a probability may underflow
    probs[rng.integers(0, 16)] += 0.01
    return distribution(
        probs, sigma=draw(st.sampled_from([1e-5, 8e-4, 0.3])), heavy=draw(st.booleans())
    )


levels = st.floats(0.001, 0.999)


@given(distributions())
def test_the_distribution_function_rises_from_0_to_1_and_gives_each_bucket_its_mass(
    dist: ReturnDistribution,
) -> None:
    x = np.concatenate([np.linspace(-30, 30, 2001), EDGES[1:-1]]) * dist.sigma
    values = np.asarray(dist.cdf(np.sort(x)))
    assert (np.diff(values) >= -1e-15).all()
    assert values.min() >= 0
    assert values.max() <= 1
    assert dist.cdf(-np.inf) == 0
    assert dist.cdf(np.inf) == 1
    np.testing.assert_allclose(
        np.diff(np.asarray(dist.cdf(dist.return_edges))), dist.probs, atol=1e-12
    )


@given(distributions(), st.lists(levels, min_size=1, max_size=20))
def test_quantiles_invert_the_distribution_function(
    dist: ReturnDistribution, q: list[float]
) -> None:
    x = np.asarray(dist.quantile(q))
    np.testing.assert_allclose(dist.cdf(x), q, atol=1e-10)
    # Back again, where there is mass to tell neighbours apart.
    again = np.asarray(dist.quantile(np.asarray(dist.cdf(x))))
    steep = np.asarray(dist.pdf(x)) * dist.sigma > 1e-4
    np.testing.assert_allclose(again[steep], x[steep], rtol=1e-6, atol=1e-8 * dist.sigma)
    assert dist.quantile(q[0]) == x[0]


@given(distributions())
def test_what_is_no_number_has_no_probability(dist: ReturnDistribution) -> None:
    x = np.array([np.nan, 0.5, np.nan]) * dist.sigma
    for name in ("cdf", "sf", "pdf", "logpdf", "prob_beyond"):
        assert np.isnan(getattr(dist, name)(np.nan))
        np.testing.assert_array_equal(
            np.isnan(getattr(dist, name)(x)), [True, False, True], err_msg=name
        )


@given(st.lists(distributions(), min_size=2, max_size=9), levels)
def test_many_at_once_answer_as_each_alone_to_the_bit(
    some: list[ReturnDistribution], level: float
) -> None:
    """Also where buckets have no mass."""
    alone = [dataclasses.replace(dist, shape=some[0].shape) for dist in some]
    many = BucketDistribution(
        probs=np.stack([dist.probs for dist in alone]),
        sigma=np.array([dist.sigma for dist in alone]),
        shape=some[0].shape,
    )
    asked = np.array([0.0, level, 0.999])
    x = many.quantile(asked)
    np.testing.assert_array_equal(x, [dist.quantile(asked) for dist in alone])
    for name in ("cdf", "pdf"):
        each = [getattr(dist, name)(row) for dist, row in zip(alone, x, strict=True)]
        np.testing.assert_array_equal(getattr(many, name)(x), each)
    shortfalls = [dist.expected_shortfall(level, "short") for dist in alone]
    np.testing.assert_array_equal(many.expected_shortfall(level, "short"), shortfalls)


def test_no_events_and_no_questions_have_no_answers() -> None:
    none = BucketDistribution(probs=np.empty((0, 16)), sigma=np.empty(0), shape=SHAPE)
    answers = (none.cdf(np.empty(0)), none.quantile(0.5), none.value_at_risk(0.99), none.mean())
    assert [answer.shape for answer in answers] == [(0,)] * 4
    assert none.quantile([0.1, 0.9]).shape == (0, 2)
    two = BucketDistribution(probs=np.full((2, 16), 1 / 16), sigma=np.ones(2), shape=SHAPE)
    nothing = (two.rvs(0), two.quantile([]), two.value_at_risk([]), two.expected_shortfall([]))
    assert [answer.shape for answer in nothing] == [(2, 0)] * 4


PLAIN = distribution(np.arange(1.0, 17), sigma=4e-4)
NOTED = dataclasses.replace(
    PLAIN,
    symbol="USDJPY",
    probs=PLAIN.probs[::-1],
    sigma=8e-4,
    horizon=4,
    stale=True,
    missing_assets=("GBPUSD", "XAUUSD"),
    notes=("masked: x", "old"),
)


def test_json_holds_every_figure() -> None:
    for dist in (PLAIN, NOTED):
        found = json.loads(json.dumps(dist.to_dict(), allow_nan=False))
        for measure in ("value_at_risk", "expected_shortfall"):
            for side in ("long", "short"):
                shown = found[measure].pop(side)
                assert list(shown) == ["0.95", "0.99"]
                for level, value in shown.items():
                    assert value == getattr(dist, measure)(float(level), side)
            assert found.pop(measure) == {}
        quantiles = found.pop("quantiles")
        assert list(quantiles) == ["0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"]
        assert list(quantiles.values()) == [dist.quantile(float(level)) for level in quantiles]
        assert found == {
            "symbol": dist.symbol,
            "as_of": "2025-03-03T10:00:00",
            "target_time": "2025-03-03T11:00:00",
            "horizon": dist.horizon,
            "context": 512,
            "stale": dist.stale,
            "stale_since": "2025-03-03T12:00:00",
            "unknown_asset": False,
            "missing_assets": list(dist.missing_assets),
            "notes": list(dist.notes),
            "sigma": dist.sigma,
            "probs": dist.probs.tolist(),
            "edges": [None, *EDGES[1:-1].tolist(), None],
            "return_edges": [None, *(EDGES[1:-1] * dist.sigma).tolist(), None],
            "prob_zero": 0.02,
            "prob_up": dist.prob_up,
            "mean": dist.mean(),
        }


def test_csv_holds_the_figures_of_json_in_a_line_each() -> None:
    text = as_csv([PLAIN, NOTED])
    for dist, line in zip((PLAIN, NOTED), csv.DictReader(io.StringIO(text)), strict=True):
        wanted = dist.to_dict()
        figures = {f"q{level}": value for level, value in wanted.pop("quantiles").items()}
        for name, short in (("value_at_risk", "var"), ("expected_shortfall", "es")):
            for side, values in wanted.pop(name).items():
                figures |= {f"{short}{level}_{side}": value for level, value in values.items()}
        figures |= {f"p{bucket}": p for bucket, p in enumerate(wanted.pop("probs"), start=1)}
        figures["missing_assets"] = " ".join(wanted.pop("missing_assets"))
        for name in ("edges", "return_edges", "notes"):
            del wanted[name]
        assert line == {name: str(value) for name, value in (wanted | figures).items()}
    assert as_csv([NOTED]).splitlines() == text.splitlines()[::2]


def test_notes_are_said_once_with_all_whom_they_concern() -> None:
    other = dataclasses.replace(NOTED, symbol="EURJPY", notes=("old",))
    assert notes_of([PLAIN, NOTED, other]) == ["USDJPY: masked: x", "USDJPY, EURJPY: old"]
    assert repr(NOTED).endswith("bp; masked: x; old>")


def test_the_picture_in_text_has_a_bar_per_bucket_to_scale() -> None:
    probs = np.full(16, 2.0)
    probs[[0, 8, 15]] = 1.0, 4.0, 0.5
    dist = dataclasses.replace(distribution(probs), notes=("a caution",))
    headline, *lines = str(dist).splitlines()
    assert headline == "EURUSD, bar of 2025-03-03 11:00, from 512 bars through 2025-03-03 10:00"
    ends = [f"{8 * edge:+.1f}" for edge in EDGES[1:-1]]
    ranges = [f"below {ends[0]}", *(f"{a} to {b}" for a, b in pairwise(ends)), f"above {ends[-1]}"]
    lengths = [8, *[15] * 7, 30, *[15] * 6, 4]
    for line, range_, length, p in zip(lines, ranges, lengths, dist.probs, strict=False):
        assert line == f"  {range_:>14}  {'█' * length:<30} {p:6.1%}"
    assert (
        lines[16]
        == f"  given a non-zero return: up {dist.prob_up:.1%}, mean {1e4 * dist.mean():+.2f} bp"
    )
    assert [line.partition(":")[0] for line in lines[17:]] == [
        "  5%, 50%, 95% quantile in bp",
        "  99% value at risk / expected shortfall in bp",
        "  exactly zero",
        "  note",
    ]
    assert lines[-2:] == [
        "  exactly zero: 2.00% of this asset's Train returns after a close that moved",
        "  note: a caution",
    ]
    longer = str(dataclasses.replace(dist, horizon=4)).splitlines()[0]
    assert longer.startswith("EURUSD, 4 bars through 2025-03-03 11:00, from")
    assert (dist.summary()["zero"], dist.summary()["bar"]) == ("2.0%", "2025-03-03 11:00")
    told = dataclasses.replace(dist, stale=True, unknown_asset=True, missing_assets=("XAUUSD",))
    assert [each.summary()["caution"] for each in (dist, told)] == [
        "",
        "stale, unknown, without others",
    ]


def test_chances_draw_the_density_whatever_the_width_of_the_buckets() -> None:
    widths = np.diff(EDGES[1:-1])
    middles = (EDGES[1:-2] + EDGES[2:-1]) / 2
    hill = np.concatenate([[1e-5], widths * np.exp(-np.abs(middles)), [1e-5]])
    drawn = distribution(hill, heavy=False).summary()["chances"]
    heights = ["▁▂▃▄▅▆▇█".index(each) for each in drawn]
    top = heights.index(7)
    assert heights[: top + 1] == sorted(heights[: top + 1])
    assert heights[top:] == sorted(heights[top:], reverse=True)
    by_bucket = hill[1:-1]  # the masses themselves have two hills beside a narrow bucket
    assert len(set(np.sign(np.diff(by_bucket)))) > 1
    unfinished = dataclasses.replace(distribution(hill), notes=("unfinished: the bar of 10:00",))
    assert unfinished.summary()["caution"] == "unfinished"


def test_the_summary_gives_each_side_its_own_risks_in_basis_points() -> None:
    summary = PLAIN.summary()
    exact = {"5%": PLAIN.quantile(0.05), "95%": PLAIN.quantile(0.95)}
    for side in ("long", "short"):
        exact[f"VaR99 {side}"] = PLAIN.value_at_risk(0.99, side)
        exact[f"ES99 {side}"] = PLAIN.expected_shortfall(0.99, side)
    for name, value in exact.items():
        assert float(summary[name]) == pytest.approx(1e4 * value, abs=0.051)
    assert len({round(1e4 * value) for value in exact.values()}) == 6  # none stands for another
    assert f"short {summary['VaR99 short']} / {summary['ES99 short']}" in str(PLAIN)
    assert unescape(PLAIN._repr_html_()) == f"<pre>{PLAIN}</pre>"


def test_a_forecast_draws_itself() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    dist = distribution(np.arange(1.0, 17))
    ax = dist.plot()
    assert dist.plot(ax) is ax
    ax.clear()
    dist.plot(ax)
    [filled] = ax.collections
    (left, bottom), (right, top) = filled.get_datalim(ax.transData).get_points()
    ends = [1e4 * dist.quantile(level) for level in (0.002, 0.998)]
    assert [left, right] == pytest.approx(ends)
    x = np.linspace(left, right, 800) / 1e4
    assert [bottom, top] == pytest.approx([0, np.max(dist.pdf(x)) / 1e4])
    assert [line.get_xdata()[0] for line in ax.lines] == [
        1e4 * dist.quantile(level) for level in (0.05, 0.5, 0.95)
    ]
    assert ax.get_xlabel().startswith("log return of the next bar, basis points")
    assert ax.get_title().startswith("EURUSD, bar of 2025-03-03 11:00")
    assert "non-zero" in ax.get_ylabel()
    assert [line.get_linestyle() for line in ax.lines] == [":", "-", ":"]
