"""Student-t and GARCH against numeric integration and a plain loop; hours of the week against counting by hand."""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fits import with_columns

from vaiom.baselines.frequency import Frequency
from vaiom.baselines.garch import Garch, GarchT, clean_returns, fit_garch
from vaiom.baselines.hour_of_week import PRIOR_WEIGHTS, HourOfWeek, hour_of_week, log_evidence
from vaiom.baselines.student import EwmaT, fit_student, student_buckets
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


def test_the_fit_finds_the_law_that_made_the_counts() -> None:
    counts = 1e6 * student_buckets(EDGES / 0.8, 3.5)
    assert fit_student(EDGES, counts) == pytest.approx((0.8, 3.5), rel=1e-3)


def test_ewma_t_gives_each_asset_its_own_law_and_a_new_one_the_pooled(corpus: Corpus) -> None:
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
    law = Garch(omega=1e-8, alpha=0.1, beta=0.85, degrees=4.0, start=2e-6)
    returns = np.where(rng.random(size) < missing, np.nan, rng.normal(0, 1e-3, size))
    variance, expected = law.start, []
    for value in returns:
        if not math.isnan(value):
            variance = law.omega + law.alpha * value**2 + law.beta * variance
        expected.append(variance)
    np.testing.assert_allclose(law.next_variance(returns), expected, rtol=1e-9)


def test_garch_finds_the_parameters_of_a_simulated_series() -> None:
    rng = np.random.default_rng(3)
    omega, alpha, beta, degrees = 1e-8, 0.08, 0.9, 6.0
    variance, returns = omega / (1 - alpha - beta), []
    for shock in rng.standard_t(degrees, 12_000) * math.sqrt((degrees - 2) / degrees):
        returns.append(math.sqrt(variance) * shock)
        variance = omega + alpha * returns[-1] ** 2 + beta * variance
    law = fit_garch(np.array(returns))
    assert law is not None
    assert (law.alpha, law.beta) == pytest.approx((alpha, beta), abs=0.025)
    assert law.degrees == pytest.approx(degrees, rel=0.2)
    assert law.omega == pytest.approx(omega, rel=0.6)


def test_garch_probabilities_are_areas_between_the_edges_in_log_returns(corpus: Corpus) -> None:
    fit = GarchT().fit(corpus, corpus.endpoints("train"))
    rows = corpus.endpoints("validation")[::400]
    probs = fit.predict_proba(corpus, rows)
    for row, got in zip(rows, probs, strict=True):
        symbol, inside = next((s, i) for s, i in corpus.asset_slices.items() if i.start <= row < i.stop)
        law = fit.laws_[symbol]
        variance = law.next_variance(clean_returns(corpus, slice(inside.start, row + 1)))[-1]
        deviation = math.sqrt(variance)
        unit = math.sqrt(law.degrees / (law.degrees - 2)) / deviation  # from log returns to a unit-scale Student-t
        bounds = corpus.edges["return"] * corpus.sigma20[row]
        for bucket in range(1, 15):
            x = np.linspace(bounds[bucket], bounds[bucket + 1], 4_001)
            area = np.trapezoid(unit * student_density(x * unit, law.degrees), x)
            assert got[bucket] == pytest.approx(area, rel=1e-4, abs=1e-9)


def test_garch_without_enough_returns_says_so_and_keeps_the_ewma_law(corpus: Corpus) -> None:
    rows = corpus.endpoints("train", 20)[:300]
    with pytest.warns(UserWarning, match="uses ewma_t"):
        fit = GarchT().fit(corpus, rows)
    events = corpus.endpoints("validation")
    expected = EwmaT().fit(corpus, rows).predict_proba(corpus, events)
    np.testing.assert_array_equal(fit.predict_proba(corpus, events), expected)


def test_hours_of_the_week_are_counted_and_drawn_towards_frequency(corpus: Corpus) -> None:
    train = corpus.endpoints("train")
    fit = HourOfWeek().fit(corpus, train)
    centre = Frequency().fit(corpus, train).probs_

    def cell(row: int) -> tuple[int, int, int]:
        moment = corpus.timestamps[row].item()
        return int(corpus.meta[row, 0]), moment.weekday(), moment.hour

    counts = Counter((*cell(row), int(corpus.target_return[row])) for row in train)
    rows = corpus.endpoints("validation")[::157]
    for row, got in zip(rows, fit.predict_proba(corpus, rows), strict=True):
        own = np.array([counts[(*cell(row), bucket)] for bucket in range(1, 17)])
        expected = (own + fit.prior_weight_ * centre) / (own.sum() + fit.prior_weight_)
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_pair_never_seen_gets_frequency(corpus: Corpus) -> None:
    first, second = corpus.asset_slices.values()
    train = corpus.endpoints("train")
    train = train[train < first.stop]
    fit = HourOfWeek().fit(corpus, train)
    got = fit.predict_proba(corpus, np.arange(second.start, second.start + 5))
    np.testing.assert_allclose(got, np.tile(Frequency().fit(corpus, train).probs_, (5, 1)))


def test_the_prior_weight_follows_how_much_cells_differ() -> None:
    rng = np.random.default_rng(1)
    centre = np.array([0.5, 0.3, 0.2])
    alike = rng.multinomial(200, centre, size=100).astype(float)
    unlike = np.stack([rng.multinomial(200, rng.dirichlet(8 * centre)) for _ in range(100)]).astype(float)

    def best(counts: np.ndarray) -> float:
        return max(PRIOR_WEIGHTS, key=lambda weight: log_evidence(counts, weight * centre))

    assert best(unlike) in (4.0, 8.0, 16.0)
    assert best(alike) > 1_000


def test_the_evidence_of_counts_is_the_product_of_the_urns_draws() -> None:
    prior, counts = np.array([0.7, 1.5, 2.0]), np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    expected = 0.0
    for cell in counts:
        urn = prior.copy()
        for bucket, times in enumerate(cell):
            for _ in range(int(times)):
                expected += math.log(urn[bucket] / urn.sum())
                urn[bucket] += 1
    assert log_evidence(counts, prior) == pytest.approx(expected)


def test_the_clock_of_the_row_decides_its_hour(corpus: Corpus) -> None:
    rows = corpus.endpoints("validation")[:300]
    moments = [stamp.item() for stamp in corpus.timestamps[rows]]
    assert hour_of_week(corpus, rows).tolist() == [24 * moment.weekday() + moment.hour for moment in moments]
    fit = HourOfWeek().fit(corpus, corpus.endpoints("train"))
    shifted = with_columns(corpus, timestamp=corpus.columns["timestamp"] + int(timedelta(days=7).total_seconds()))
    np.testing.assert_array_equal(fit.predict_proba(shifted, rows), fit.predict_proba(corpus, rows))
