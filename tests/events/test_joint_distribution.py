"""Laws of the joint distribution: product, exchange, regression, sums of contributions; the covariance it rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import multivariate_normal, multivariate_t, norm, t

from vaiom.codec import from_json, to_json
from vaiom.errors import ConfigError
from vaiom.events.dependence import (
    Dependence,
    average,
    correlation_of,
    log_density,
    pit_of,
    with_variances,
)
from vaiom.events.distribution import PIECES, BucketDistribution, ReturnShape, Tail
from vaiom.events.joint import JointDistribution

KNOTS = np.linspace(-3, 3, 14 * PIECES + 1)
SHAPE = ReturnShape(knots=KNOTS, lower=Tail(scale=0.5, shape=0.1), upper=Tail(scale=0.5, shape=0.1))


def dist(seed: int, sigma: float = 0.01) -> BucketDistribution[float]:
    return BucketDistribution(probs=np.random.default_rng(seed).dirichlet(np.full(16, 5.0)), sigma=sigma, shape=SHAPE)


def random_covariance(size: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((size, size + 2))
    return drawn @ drawn.T / size


def joint(size: int = 3, seed: int = 0, degrees: float | None = 6.0, zero: float = 0.05) -> JointDistribution:
    names = [f"A{each}" for each in range(size)]
    dists = {name: dist(seed + number, 0.01 * (number + 1)) for number, name in enumerate(names)}
    return JointDistribution.of(
        dists, dict.fromkeys(names, zero), correlation_of(random_covariance(size, seed)), degrees
    )


def fit(size: int = 3, **changes: object) -> Dependence:
    values = {
        "checkpoint_sha256": "a",
        "symbols": tuple(f"A{each}" for each in range(size)),
        "classes": ("FX",) * size,
        "covariance": random_covariance(size, 1),
        "correlation": correlation_of(random_covariance(size, 2)),
        "decay": 0.9,
        "shrinkage": 0.1,
        "degrees": {"1": 8.0},
        "references": {},
        "num_stamps": 9,
    }
    return Dependence(**values | changes)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 99), st.sampled_from([None, 4.0, 9.5]))
def test_the_copulas_density_is_that_of_its_definition(size: int, seed: int, degrees: float | None) -> None:
    matrix, pit = correlation_of(random_covariance(size, seed)), np.random.default_rng(seed).uniform(size=size)
    if degrees is None:
        scores = norm.ppf(pit)
        plain = multivariate_normal(cov=matrix).logpdf(scores) - norm.logpdf(scores).sum()
    else:
        scores = t.ppf(pit, degrees)
        plain = multivariate_t(shape=matrix, df=degrees).logpdf(scores) - t.logpdf(scores, degrees).sum()
    assert log_density(matrix, pit, degrees) == pytest.approx(plain, rel=1e-8, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 99))
def test_forecast_variances_are_met_and_the_inverse_changes_on_its_diagonal_alone(size: int, seed: int) -> None:
    matrix, variances = random_covariance(size, seed), np.random.default_rng(seed).uniform(0.2, 4, size)
    found = with_variances(matrix, variances)
    assert np.diag(found) == pytest.approx(variances, rel=1e-5)
    moved = np.linalg.inv(found) - np.linalg.inv(matrix)
    assert moved - np.diag(np.diag(moved)) == pytest.approx(0, abs=1e-6 * np.abs(np.linalg.inv(matrix)).max())
    assert with_variances(matrix, np.diag(matrix)) == pytest.approx(matrix, rel=1e-9)


def test_variances_of_hundreds_of_assets_are_those_that_were_asked_for() -> None:
    """A search along a line stalled there, and the correlation stayed what it was."""
    draw = np.random.default_rng(0)
    factors = 0.4 * draw.standard_normal((300, 8))
    matrix = correlation_of(factors @ factors.T + np.diag(draw.uniform(0.3, 1, 300)))
    variances = np.exp(1.6 * draw.standard_normal(300))
    found = with_variances(matrix, variances)
    assert np.diag(found) == pytest.approx(variances, rel=1e-6)
    moved = np.linalg.inv(found) - np.linalg.inv(matrix)
    assert moved - np.diag(np.diag(moved)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("size", "spread"), [(11, 1.0), (11, 2.0), (60, 1.0), (60, 6.0)])
def test_variances_far_from_what_they_were_are_met(size: int, spread: float) -> None:
    """An hour in which some assets are ten times as wild as they were, and others calm."""
    drawn = np.random.default_rng(17)
    for _ in range(5):
        factors = drawn.standard_normal((size, 3))
        matrix = correlation_of(factors @ factors.T + np.diag(drawn.uniform(0.1, 2, size)))
        variances = np.exp(2 * spread * drawn.standard_normal(size))
        found = with_variances(matrix, variances)
        assert np.diag(found) == pytest.approx(variances, rel=1e-5)
        assert np.linalg.eigvalsh(correlation_of(found))[0] > 0


def test_a_relation_between_assets_survives_other_volatilities() -> None:
    """C = A + B however volatile A and B are: the correlation of a stamp follows the forecast scales."""
    rng = np.random.default_rng(0)
    start = fit(3, covariance=random_covariance(3, 1) + np.eye(3), shrinkage=1e-3, decay=0.99)
    state = start.begin()

    def moves(scales: list[float]) -> np.ndarray:
        a, b = scales * rng.standard_normal(2)
        return np.array([a, b, a + b + 0.02 * rng.standard_normal()])

    for _ in range(600):
        own = np.exp(rng.normal(0, 0.4, 2)).tolist()
        scales = np.array([*own, math.hypot(*own)])
        state = state.after(start.symbols, moves(own) / scales, scales)
    for a, b in ((1.0, 1.0), (2.0, 0.5)):
        found = state.correlation(start.symbols, np.array([a, b, math.hypot(a, b)]))
        assert found[0, 2] == pytest.approx(a / math.hypot(a, b), abs=0.1)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 6), st.integers(0, 99), st.floats(0.5, 0.999))
def test_an_average_with_absent_assets_stays_positive_definite(size: int, seed: int, decay: float) -> None:
    rng, matrix = np.random.default_rng(seed), random_covariance(size, seed)
    for _ in range(50):
        values = rng.standard_normal(size)
        values[rng.random(size) < 0.4] = np.nan
        matrix = average(matrix, values, decay)
        assert np.linalg.eigvalsh(matrix)[0] > 0
    assert average(matrix, np.full(size, np.nan), decay) == pytest.approx(matrix)


def test_assets_are_exchangeable_and_may_be_absent_or_new() -> None:
    names, rng = ["A0", "A1", "A2", "NEW"], np.random.default_rng(3)
    state = other = fit(3).begin()
    for stamp in range(40):
        scores, scales = rng.standard_normal(4), rng.uniform(0.5, 2, 4)
        there = [0, 1, 2] if stamp < 20 else [1, 2, 3]
        state = state.after([names[i] for i in there], scores[there], scales[there])
        other = other.after([names[i] for i in there[::-1]], scores[there][::-1], scales[there][::-1])
    scales = np.array([1.0, 2.0, 0.5, 1.5])
    found = state.correlation(names, scales)
    assert found == pytest.approx(other.correlation(names[::-1], scales[::-1])[::-1, ::-1], abs=1e-9)
    assert np.linalg.eigvalsh(found)[0] > 0
    assert dict(zip(state.symbols, state.counts.tolist(), strict=True)) == {"A0": 20, "A1": 40, "A2": 40, "NEW": 20}


def test_the_state_at_a_stamp_knows_nothing_of_later_ones() -> None:
    rng, start = np.random.default_rng(5), fit(3)
    series = {name: (np.arange(30), rng.standard_normal(30), rng.uniform(1, 2, 30)) for name in start.symbols}
    cut = {name: tuple(part[:20] for part in each) for name, each in series.items()}
    plain = start.begin().after_all(cut)
    step = start.begin()
    for at in range(20):
        columns = np.array([[each[1][at], each[2][at]] for each in series.values()])
        step = step.after(start.symbols, columns[:, 0], columns[:, 1])
    assert np.array_equal(plain.covariance, step.covariance)


def test_a_fit_survives_json_and_what_makes_no_sense_is_refused() -> None:
    one = fit(3)
    again = from_json(Dependence, to_json(one))
    assert np.array_equal(again.covariance, one.covariance)
    assert again.degrees == one.degrees
    with pytest.raises(ValueError, match="positive definite"):
        fit(3, covariance=np.ones((3, 3)))
    with pytest.raises(ValueError, match="size"):
        fit(3, classes=("FX",))


def test_zero_returns_have_the_middle_of_their_step() -> None:
    one, share = dist(1), 0.2
    assert float(pit_of(one, share, 0.0)) == pytest.approx(0.8 * one.cdf(0.0) + 0.1)
    assert float(pit_of(one, share, 0.001)) == pytest.approx(0.8 * one.cdf(0.001) + 0.2)
    assert float(pit_of(one, share, -0.001)) == pytest.approx(0.8 * one.cdf(-0.001))


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_draws_have_the_marginals(degrees: float | None) -> None:
    law = joint(degrees=degrees, zero=0.1)
    drawn = law.sample(20_000, seed=3)
    for column, symbol in zip(drawn.T, law.symbols, strict=True):
        one = law.marginal(symbol)
        for x in (-0.02, -0.001, 0.0, 0.005):
            assert (column <= x).mean() == pytest.approx(one.cdf(x), abs=0.015)
        assert (column == 0).mean() == pytest.approx(0.1, abs=0.01)
        for q in (0.02, 0.3, 0.97):
            assert one.cdf(one.quantile(q)) == pytest.approx(q, abs=0.05 if one.quantile(q) == 0 else 1e-6)
    assert np.array_equal(drawn, law.sample(20_000, seed=3))


def test_independent_assets_are_a_product() -> None:
    law = JointDistribution.of({"A": dist(1), "B": dist(2)}, {"A": 0.0, "B": 0.0}, np.eye(2))
    both = law.prob(lambda r: (r["A"] < 0) & (r["B"] < 0))
    product = law.marginal("A").cdf(0.0) * law.marginal("B").cdf(0.0)
    assert both == pytest.approx(product, abs=4 * both.standard_error)
    after = law.given({"B": 0.02}).marginal("A")
    assert after.cdf(0.003) == pytest.approx(law.marginal("A").cdf(0.003))


def test_given_is_a_regression_in_the_gaussian_limit() -> None:
    law = joint(2, degrees=None, zero=0.0)
    [[_, rho], _] = law.correlation
    score = norm.ppf(law.marginal("A1").cdf(0.02))
    rest = law.given({"A1": 0.02})
    assert rest.location == pytest.approx([rho * score])
    assert rest.scatter == pytest.approx(np.array([[1 - rho**2]]))


def test_given_is_the_conditional_distribution_of_the_t_copula() -> None:
    law = joint(2, degrees=4.0, zero=0.0)
    scores = [float(t.ppf(law.marginal(name).cdf(x), 4.0)) for name, x in (("A0", 0.004), ("A1", 0.05))]
    both = multivariate_t(shape=law.correlation, df=4.0)
    below, _ = quad(lambda x: both.pdf([x, scores[1]]), -np.inf, scores[0])
    plain = below / t.pdf(scores[1], 4.0)
    assert law.given({"A1": 0.05}).marginal("A0").cdf(0.004) == pytest.approx(plain, abs=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3).filter(lambda each: max(map(abs, each)) > 1))
def test_contributions_sum_to_the_whole(amounts: list[float]) -> None:
    law = joint()
    portfolio = law.portfolio(dict(zip(law.symbols, amounts, strict=True)), 2_000)
    parts = portfolio.contributions(0.95).values()
    whole = portfolio.value_at_risk(0.95), portfolio.expected_shortfall(0.95)
    unit = abs(whole[1]) + 1e-9
    assert sum(each.value_at_risk for each in parts) == pytest.approx(whole[0], abs=1e-9 * unit)
    assert sum(each.expected_shortfall for each in parts) == pytest.approx(whole[1], abs=1e-9 * unit)
    assert whole[1] >= whole[0] - 1e-9 * unit


def test_a_single_position_has_the_risk_of_its_distribution() -> None:
    law = joint(zero=0.0)
    portfolio = law.portfolio({"A1": 1e6})
    for level in (0.95, 0.99):
        exact = -1e6 * math.expm1(law.marginal("A1").quantile(1 - level))
        estimate = portfolio.value_at_risk(level)
        assert estimate == pytest.approx(exact, abs=4 * estimate.standard_error)
    assert portfolio.value_at_risk() == portfolio.value_at_risk(0.99)
    assert portfolio.expected_shortfall() == portfolio.expected_shortfall(0.99)
    short = law.portfolio({"A1": -1e6}).value_at_risk(0.99)
    assert short == pytest.approx(1e6 * math.expm1(law.marginal("A1").quantile(0.99)), abs=4 * short.standard_error)


def test_what_nobody_can_answer_is_refused() -> None:
    law = joint()
    for wrong in ({"B9": 1.0}, {"A0": math.nan}, {"A0": math.inf}, {}, {"A0": True}):
        with pytest.raises(ConfigError):
            law.portfolio(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing is left"):
        law.given(dict.fromkeys(law.symbols, 0.0))
    for figure in (lambda: law.given({"A0": 1_000.0}), lambda: law.portfolio({"A0": -1e200})):
        with pytest.raises(ConfigError, match="must be a finite number"):
            figure()
    with pytest.raises(ConfigError, match="yes or no"):
        law.prob(lambda r: r["A0"])
    with pytest.raises(ConfigError, match="risk level"):
        law.portfolio({"A0": 1.0}, 100).value_at_risk(0.9999)
