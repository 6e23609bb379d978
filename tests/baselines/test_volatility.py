"""Student-t and GARCH against numeric integration and a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaiom.baselines.base import clean_returns
from vaiom.baselines.volatility import EwmaT, Garch, GarchT, HarT, fit_garch, fit_scale, fit_student, student_buckets
from vaiom.events.corpus import Corpus

EDGES = np.array([-np.inf, -8, -5, -3, -2, -1, -0.6, -0.26, 0.01, 0.28, 0.63, 1, 2, 3, 5, 8, np.inf])


def student_density(x: np.ndarray, degrees: float) -> np.ndarray:
    log_norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    return np.exp(log_norm - (degrees + 1) / 2 * np.log1p(x**2 / degrees))


@given(degrees=st.floats(0.6, 100), scale=st.floats(0.05, 20))
@settings(max_examples=30, deadline=None)
def test_bucket_probabilities_are_areas_under_the_density(degrees: float, scale: float) -> None:
    probs = student_buckets(EDGES / scale, degrees)
    for bucket in range(1, 15):
        x = np.linspace(EDGES[bucket] / scale, EDGES[bucket + 1] / scale, 20_001)
        area = np.trapezoid(student_density(x, degrees), x)
        assert probs[bucket] == pytest.approx(area, rel=1e-5, abs=1e-9)
    assert probs.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(student_buckets(-EDGES[::-1] / scale, degrees)[::-1], probs, rtol=1e-12)


def test_the_fit_finds_the_student_that_made_the_counts() -> None:
    counts = 1e6 * student_buckets(EDGES / 0.8, 3.5)
    assert fit_student(EDGES, counts) == pytest.approx((0.8, 3.5), rel=1e-3)


def test_ewma_t_gives_each_asset_its_own_fit_and_a_new_one_the_pooled(corpus: Corpus) -> None:
    train, edges = corpus.endpoints("train"), corpus.edges["return"]
    fit = EwmaT().fit(corpus, train)
    for inside in corpus.asset_slices.values():
        own = train[(train >= inside.start) & (train < inside.stop)]
        counts = np.bincount(corpus.target_return[own], minlength=17)[1:].astype(float)
        scale, degrees = fit_student(edges, counts)
        expected = student_buckets(edges / scale, degrees)
        np.testing.assert_allclose(fit.predict_proba(corpus, own[:1])[0], expected)
    first, second = corpus.asset_slices.values()
    half = EwmaT().fit(corpus, train[train < first.stop])
    expected = student_buckets(edges / half.pooled_[0], half.pooled_[1])
    np.testing.assert_allclose(half.predict_proba(corpus, np.array([second.start + 700]))[0], expected)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 60), missing=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_variance_follows_a_plain_loop(seed: int, size: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    model = Garch(omega=1e-8, alpha=0.1, beta=0.85, degrees=4.0, start=2e-6)
    returns = np.where(rng.random(size) < missing, np.nan, rng.normal(0, 1e-3, size))
    variance, expected = model.start, []
    for value in returns:
        if not math.isnan(value):
            variance = model.omega + model.alpha * value**2 + model.beta * variance
        expected.append(variance)
    np.testing.assert_allclose(model.next_variance(returns), expected, rtol=1e-9)


def test_garch_finds_the_parameters_of_a_simulated_series() -> None:
    rng = np.random.default_rng(3)
    omega, alpha, beta, degrees = 1e-8, 0.08, 0.9, 6.0
    variance, returns = omega / (1 - alpha - beta), []
    for shock in rng.standard_t(degrees, 12_000) * math.sqrt((degrees - 2) / degrees):
        returns.append(math.sqrt(variance) * shock)
        variance = omega + alpha * returns[-1] ** 2 + beta * variance
    model = fit_garch(np.array(returns))
    assert model is not None
    assert (model.alpha, model.beta) == pytest.approx((alpha, beta), abs=0.025)
    assert model.degrees == pytest.approx(degrees, rel=0.2)
    assert model.omega == pytest.approx(omega, rel=0.6)


def test_garch_probabilities_are_areas_between_the_edges_in_log_returns(corpus: Corpus) -> None:
    fit = GarchT().fit(corpus, corpus.endpoints("train"))
    rows = corpus.endpoints("validation")[::400]
    probs = fit.predict_proba(corpus, rows)
    for row, got in zip(rows, probs, strict=True):
        symbol, inside = next((s, i) for s, i in corpus.asset_slices.items() if i.start <= row < i.stop)
        model = fit.models_[symbol]
        variance = model.next_variance(clean_returns(corpus, slice(inside.start, row + 1)))[-1]
        deviation = math.sqrt(variance)
        unit = math.sqrt(model.degrees / (model.degrees - 2)) / deviation  # from log returns to a unit-scale Student-t
        bounds = corpus.edges["return"] * corpus.sigma20[row]
        for bucket in range(1, 15):
            x = np.linspace(bounds[bucket], bounds[bucket + 1], 4_001)
            area = np.trapezoid(unit * student_density(x * unit, model.degrees), x)
            assert got[bucket] == pytest.approx(area, rel=1e-4, abs=1e-9)


def test_the_scale_that_made_returns_is_found() -> None:
    rng = np.random.default_rng(4)
    regressors = np.stack([np.ones(20_000), rng.normal(-7, 1, 20_000), rng.normal(0, 0.5, 20_000)], axis=1)
    returns = np.exp(regressors @ [-1.0, 0.7, 0.4]) * rng.standard_t(5.0, 20_000)
    *weights, degrees = fit_scale(regressors, returns)
    assert (np.abs(np.subtract(weights, [-1.0, 0.7, 0.4])) < [0.1, 0.015, 0.03]).all()
    assert degrees == pytest.approx(5.0, rel=0.1)


def test_har_reads_ranges_of_a_bar_a_day_and_a_week(corpus: Corpus) -> None:
    fit = HarT().fit(corpus, corpus.endpoints("train"))
    symbol, inside = list(corpus.asset_slices.items())[1]
    rows = corpus.endpoints("validation")
    rows = rows[(rows >= inside.start) & (rows < inside.stop)][::300]
    for row, got in zip(rows, fit._regressors(corpus, rows, symbol), strict=True):
        span = slice(row + 1 - 120, row + 1)
        ranges = corpus.columns["range_z"][span].astype(float) * corpus.columns["sigma20"][row - 120 : row]
        squares = np.where(ranges > 0, ranges**2, np.nan)
        wanted = [np.log(np.sqrt(np.nanmean(squares[-bars:]))) for bars in (1, 24, 120)]
        np.testing.assert_allclose(got[1:4], wanted, rtol=1e-6)


def test_garch_without_enough_returns_says_so_and_uses_ewma_t(corpus: Corpus) -> None:
    rows = corpus.endpoints("train", 20)[:300]
    with pytest.warns(UserWarning, match="uses ewma_t"):
        fit = GarchT().fit(corpus, rows)
    events = corpus.endpoints("validation")
    expected = EwmaT().fit(corpus, rows).predict_proba(corpus, events)
    np.testing.assert_array_equal(fit.predict_proba(corpus, events), expected)
