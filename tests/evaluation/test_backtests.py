"""Quantiles and shortfalls of the bucketed law against brute force; the tests' levels under the true law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.evaluation.backtests import (
    OuterMoments,
    chi_square_tail,
    christoffersen,
    kupiec,
    outer_moments,
    tail_forecast,
    tail_tests,
    tail_tests_by_group,
)

EDGES = np.array([-np.inf, -8, -5, -3, -2, -1, -0.6, -0.25, 0, 0.25, 0.6, 1, 2, 3, 5, 8, np.inf])
OUTER = OuterMoments(low=(-9.0, 81.75), high=(-9.0, 81.75))  # uniform between 7.5 and 10.5
FLOOR = np.array([-10.5, *EDGES[1:-1], 10.5])


def forecasts(rng: np.random.Generator, count: int) -> np.ndarray:
    shape = np.array([1, 2, 6, 15, 60, 60, 80, 80, 80, 80, 60, 60, 15, 6, 2, 1.0])
    return rng.dirichlet(shape, count)


def draw(rng: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    """Returns from the law that the backtests take for the forecast; the outermost buckets have mean 9, width 3."""
    bucket = (rng.random((len(probs), 1)) > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)
    low, high = FLOOR[bucket].copy(), FLOOR[bucket + 1].copy()
    low[bucket == 15], high[bucket == 0] = 7.5, -7.5
    return low + rng.random(len(probs)) * (high - low)


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=16, max_size=16), level=st.floats(0.001, 0.4, allow_subnormal=False)
)
def test_quantile_and_moments_equal_numerical_integration(weights: list[float], level: float) -> None:
    probs = np.array([weights]) / sum(weights)
    got = tail_forecast(probs, EDGES, level, OUTER.low)
    assert got.defined[0] == (probs[0, 0] < level)
    if not got.defined[0]:
        return
    grid = np.linspace(-8, 8, 400_001)
    width = np.diff(EDGES[1:-1])
    density = np.repeat(probs[0, 1:-1] / width, 1)[np.searchsorted(EDGES[1:-1], grid[:-1], side="right") - 1]
    steps = density * np.diff(grid)
    middle = (grid[:-1] + grid[1:]) / 2
    inside = middle < got.quantile[0]
    assert probs[0, 0] + steps[inside].sum() == pytest.approx(level, abs=2e-4)
    assert got.partial_mean[0] == pytest.approx(probs[0, 0] * -9 + (steps * middle)[inside].sum(), abs=2e-3)
    assert got.partial_square[0] == pytest.approx(probs[0, 0] * 81.75 + (steps * middle**2)[inside].sum(), abs=1e-2)


def test_kupiec_and_chi_square_tails_equal_their_formulas() -> None:
    stats = pytest.importorskip("scipy.stats")
    exceeded = np.arange(250) < 7
    ratio = -2 * (stats.binom.logpmf(7, 250, 0.01) - stats.binom.logpmf(7, 250, 7 / 250))
    assert kupiec(exceeded, 0.01) == pytest.approx(ratio)
    for degrees in (1, 2):
        assert chi_square_tail(ratio, degrees) == pytest.approx(stats.chi2.sf(ratio, degrees))
    assert kupiec(np.zeros(100, bool), 0.05) == pytest.approx(-200 * math.log(0.95))


def test_christoffersen_counts_transitions_within_an_asset_alone() -> None:
    exceeded = np.array([0, 1, 1, 0, 0, 1, 0, 0, 1, 1], bool)
    assets = np.array(list("aaaaabbbbb"))
    pairs = [(exceeded[i], exceeded[i + 1]) for i in range(9) if i != 4]
    counts = {key: sum((bool(a), bool(b)) == key for a, b in pairs) for key in ((0, 0), (0, 1), (1, 0), (1, 1))}
    calm, hit = counts[0, 0] + counts[0, 1], counts[1, 0] + counts[1, 1]

    def log_likelihood(hits: int, of: int, rate: float) -> float:
        return hits * math.log(rate) + (of - hits) * math.log(1 - rate)

    rate = (counts[0, 1] + counts[1, 1]) / 8
    memory = log_likelihood(counts[0, 1], calm, counts[0, 1] / calm) + log_likelihood(
        counts[1, 1], hit, counts[1, 1] / hit
    )
    got = christoffersen(exceeded, assets)
    assert got == pytest.approx(-2 * (log_likelihood(counts[0, 1] + counts[1, 1], 8, rate) - memory))
    assert christoffersen(np.zeros(5, bool), assets[:5]) is None


def test_the_true_law_passes_and_is_rejected_as_rarely_as_the_levels_say() -> None:
    rng = np.random.default_rng(0)
    names = ("kupiec_p", "independence_p", "conditional_coverage_p", "shortfall_p")
    rejected = dict.fromkeys(names, 0)
    trials = 150
    for _ in range(trials):
        probs = forecasts(rng, 1_500)
        results = tail_tests(probs, EDGES, draw(rng, probs), np.repeat(["a", "b"], 750), OUTER)
        assert [(test.side, test.level) for test in results] == [
            ("long", 0.01),
            ("short", 0.01),
            ("long", 0.05),
            ("short", 0.05),
        ]
        for name in names:
            rejected[name] += (getattr(results[3], name) or 1.0) < 0.05
    assert all(count / trials < 0.12 for count in rejected.values()), rejected
    assert results[2].undefined_share < 0.01


def test_tails_that_are_heavier_than_forecast_are_found() -> None:
    rng = np.random.default_rng(1)
    probs = forecasts(rng, 4_000)
    outcome = 1.6 * draw(rng, probs)
    for test in tail_tests(probs, EDGES, outcome, np.full(4_000, "a"), OUTER):
        assert test.kupiec_p is not None
        assert test.kupiec_p < 1e-3
        assert test.shortfall_z2 is not None
        assert test.shortfall_z2 > 0.2
        assert test.shortfall_p is not None
        assert test.shortfall_p < 1e-3


def test_the_short_side_is_the_long_side_of_mirrored_returns() -> None:
    rng = np.random.default_rng(2)
    probs = forecasts(rng, 500)
    outcome = draw(rng, probs)
    assets = np.full(500, "a")
    plain = tail_tests(probs, EDGES, outcome, assets, OUTER)
    mirrored = tail_tests(probs[:, ::-1], -EDGES[::-1], -outcome, assets, OUTER)
    assert [vars(test) | {"side": ""} for test in plain[::2]] == [vars(test) | {"side": ""} for test in mirrored[1::2]]


def test_where_no_quantile_is_defined_there_is_no_figure_and_groups_are_separate() -> None:
    probs = np.tile(np.r_[0.5, np.full(15, 0.5 / 15)], (6, 1))
    groups = np.array([1, 1, 1, 2, 2, 2])
    results = tail_tests_by_group(probs, EDGES, np.zeros(6), np.full(6, "a"), OUTER, groups)
    assert [test.group for test in results] == ["1"] * 4 + ["2"] * 4
    assert (results[0].num_events, results[0].undefined_share, results[0].kupiec_p) == (0, 1.0, None)
    assert results[3].num_events == 3


def test_moments_beyond_the_outer_edges_are_those_of_the_returns_there() -> None:
    got = outer_moments(np.array([-9.0, -11.0, 0.5, 10.0]), EDGES)
    assert got == OuterMoments(low=(-10.0, 101.0), high=(-10.0, 100.0))
    assert outer_moments(np.zeros(3), EDGES) == OuterMoments(low=(-8.0, 64.0), high=(-8.0, 64.0))
