"""Laws of the joint distribution: product, exchange, regression, profits of positions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import KNOTS, dist, random_covariance
from scipy.integrate import quad
from scipy.stats import multivariate_normal, multivariate_t, norm, t

from vaiom.distribution.copula import LEAST_TAIL, correlation_of, log_density, pit_of
from vaiom.distribution.joint import DRAWS, JointDistribution
from vaiom.distribution.shape import ReturnShape, Tail
from vaiom.errors import ConfigError


def joint(
    size: int = 3, seed: int = 0, degrees: float | None = 6.0, zero: float = 0.05
) -> JointDistribution:
    names = [f"A{each}" for each in range(size)]
    dists = {name: dist(seed + number, 0.01 * (number + 1)) for number, name in enumerate(names)}
    return JointDistribution.of(
        dists, dict.fromkeys(names, zero), correlation_of(random_covariance(size, seed)), degrees
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 99), st.sampled_from([None, 4.0, 9.5]))
def test_the_copulas_density_is_that_of_its_definition(
    size: int, seed: int, degrees: float | None
) -> None:
    matrix = correlation_of(random_covariance(size, seed))
    pit = np.random.default_rng(seed).uniform(size=size)
    own, both = norm, multivariate_normal(cov=matrix)
    if degrees is not None:
        own, both = t(degrees), multivariate_t(shape=matrix, df=degrees)
    scores = own.ppf(pit)
    plain = both.logpdf(scores) - own.logpdf(scores).sum()
    assert log_density(matrix, pit, degrees) == pytest.approx(plain, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_a_marginal_is_its_forecast_with_a_step_at_zero(degrees: float | None) -> None:
    law = joint(degrees=degrees, zero=0.2)
    for symbol, forecast in law.dists.items():
        one = law.marginal(symbol)
        for x in (-0.02, -1e-9, 0.0, 0.004):
            assert one.cdf(x) == pytest.approx(0.8 * forecast.cdf(x) + 0.2 * (x >= 0))
        below = 0.8 * forecast.cdf(0.0)
        for q in (0.01, below - 1e-3):
            assert one.quantile(q) == pytest.approx(forecast.quantile(q / 0.8), abs=1e-9)
        for q in (below + 1e-3, below + 0.2 - 1e-3):
            assert one.quantile(q) == one.ppf(q) == 0
        for q in (below + 0.2 + 1e-3, 0.99):
            assert one.quantile(q) == pytest.approx(forecast.quantile((q - 0.2) / 0.8), abs=1e-9)
        ends = np.array([LEAST_TAIL, 0.8 - LEAST_TAIL]) / 0.8
        tails = one.returns_of(np.array([-1e9, 1e9]))
        np.testing.assert_allclose(tails, forecast.quantile(ends), rtol=1e-6)


@pytest.mark.parametrize("degrees", [None, 2.5, 8.0, 50.0])
def test_a_marginal_has_two_ends(degrees: float | None) -> None:
    law = joint(degrees=degrees)
    thin = ReturnShape(
        knots=KNOTS, lower=Tail(scale=0.5, shape=0.0), upper=Tail(scale=0.5, shape=0.0)
    )
    law = replace(law, dists={name: replace(each, shape=thin) for name, each in law.dists.items()})
    for one in (law.marginal("A0"), law.given({"A1": -0.01}).marginal("A0")):
        ends = np.array([-np.inf, -1e3, -3.0, 3.0, np.inf])  # a thin tail has no mass left there
        np.testing.assert_allclose([one.cdf(x) for x in ends], [0, 0, 0, 1, 1], atol=1e-15)
        levels = [0.0, 1e-320, 1e-120, 1e-80, 1e-20, 1e-12, 0.5, 1.0]
        quantiles = [one.quantile(q) for q in levels]
        assert quantiles[0] < 0 < quantiles[-1]
        assert quantiles == sorted(quantiles)


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_draws_are_the_copulas_scores_through_the_marginals(degrees: float | None) -> None:
    law = replace(joint(degrees=degrees), location=np.array([0.1, -0.2, 0.3]))
    rng = np.random.default_rng(11)
    scores = rng.standard_normal((9, 3)) @ np.linalg.cholesky(law.scatter).T
    if degrees:
        scores = scores / np.sqrt(rng.chisquare(degrees, (9, 1)) / degrees)
    drawn = law.sample(9, seed=11)
    for number, symbol in enumerate(law.symbols):
        wanted = law.marginal(symbol).returns_of(scores[:, number] + law.location[number])
        np.testing.assert_allclose(drawn[:, number], wanted)


def test_draws_repeat_with_their_seed() -> None:
    law = joint()
    assert law.sample().shape == (DRAWS, 3)
    np.testing.assert_array_equal(law.sample(7), law.sample(7, seed=0))
    assert not np.array_equal(law.sample(7), law.sample(7, seed=1))
    with pytest.raises(ConfigError, match="number of draws"):
        law.sample(0)


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_what_is_learned_in_two_steps_is_what_is_learned_at_once(degrees: float | None) -> None:
    law = replace(joint(4, degrees=degrees), as_of=None, notes=("few bars",))
    steps, once = law.given({"A1": 0.01}).given({"A3": -0.02}), law.given({"A3": -0.02, "A1": 0.01})
    assert steps.symbols == once.symbols == ("A0", "A2")
    assert steps.degrees == once.degrees == (None if degrees is None else degrees + 2)
    np.testing.assert_allclose(steps.location, once.location, rtol=1e-9)
    np.testing.assert_allclose(steps.scatter, once.scatter, rtol=1e-9)
    assert np.array_equal(once.scatter, once.scatter.T)
    assert (once.forecast_degrees, once.notes, once.horizon) == (degrees, ("few bars",), 1)
    law.given({"A1": np.float64(1.0), "A2": -1})  # the largest moves that are believed


def test_the_chance_of_an_event_is_its_share_of_the_draws() -> None:
    law = joint()
    hits = law.sample(500, seed=4)[:, 1] < 0
    chance = law.prob(lambda r: r["A1"] < 0, 500, seed=4)
    assert chance == hits.mean()
    assert chance.standard_error == pytest.approx(math.sqrt(hits.mean() * (1 - hits.mean()) / 500))
    for wrong in (lambda r: True, lambda r: r["A1"], lambda r: np.ones(3, bool)):
        with pytest.raises(ConfigError, match="yes or no"):
            law.prob(wrong)


def test_a_portfolio_is_paid_what_prices_move_not_their_logs() -> None:
    law = replace(joint(), notes=("few bars",))
    book = law.portfolio({"A2": 100, "A0": -50}, 20, seed=5)
    drawn = law.sample(20, seed=5)
    np.testing.assert_allclose(book.profits, np.expm1(drawn[:, [2, 0]]) * [100, -50])
    assert (book.positions, book.notes) == ({"A2": 100.0, "A0": -50.0}, ("few bars",))
    drawn_first = law.portfolio({"A0": 1.0}).profits[:DRAWS]
    np.testing.assert_array_equal(drawn_first, law.portfolio({"A0": 1.0}, DRAWS, 0).profits)
    law.portfolio({"A0": 1e100}, 1)


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_as_many_are_drawn_as_half_a_percent_of_the_shortfall_needs(level: float) -> None:
    law = joint(3, degrees=5.0)
    positions = {"A0": 1e6, "A2": -5e5}
    book = law.portfolio(positions, level=level)
    shortfall = book.expected_shortfall(level)
    assert shortfall.standard_error <= 0.005 * shortfall
    assert book.to_dict(level)["notes"] == []
    other = law.portfolio(positions, level=level, seed=1).expected_shortfall(level)
    error = math.hypot(shortfall.standard_error, other.standard_error)
    assert other == pytest.approx(shortfall, abs=4 * error)

    few = law.portfolio(positions, 2_000).to_dict(0.99)
    assert few["notes"][-1].startswith("the expected shortfall of 2,000 draws has a standard error")


def test_a_portfolio_without_a_risk_needs_no_more_draws() -> None:
    book = joint().portfolio({"A0": 0.0, "A1": 0.0})
    assert len(book.profits) == DRAWS
    found = book.to_dict()
    assert found["notes"] == []
    assert "-0.0" not in str(found)
    with pytest.raises(ConfigError, match="a risk level"):
        joint().portfolio({"A0": 1.0}, level=1.0)


def test_zero_returns_have_the_middle_of_their_step() -> None:
    one = dist(1)
    for x, zeros_below in ((-0.001, 0.0), (0.0, 0.1), (0.001, 0.2)):
        assert pit_of(one, 0.2, x) == pytest.approx(0.8 * one.cdf(x) + zeros_below)


def test_independent_assets_are_a_product() -> None:
    law = JointDistribution.of({"A": dist(1), "B": dist(2)}, {"A": 0.0, "B": 0.0}, np.eye(2))
    both = law.prob(lambda r: (r["A"] < 0) & (r["B"] < 0))
    product = law.marginal("A").cdf(0.0) * law.marginal("B").cdf(0.0)
    assert both == pytest.approx(product, abs=4 * both.standard_error)
    after = law.given({"B": 0.02}).marginal("A")
    assert after.cdf(0.003) == pytest.approx(law.marginal("A").cdf(0.003))


@pytest.mark.parametrize("degrees", [None, 4.0])
def test_given_is_the_conditional_distribution_of_the_copula(degrees: float | None) -> None:
    law = joint(2, degrees=degrees, zero=0.0)
    own, both = norm, multivariate_normal(cov=law.correlation)
    if degrees is not None:
        own, both = t(degrees), multivariate_t(shape=law.correlation, df=degrees)
    score, known = (own.ppf(law.marginal(name).cdf(x)) for name, x in (("A0", 0.004), ("A1", 0.05)))
    below, _ = quad(lambda x: both.pdf([x, known]), -np.inf, score)
    found = law.given({"A1": 0.05}).marginal("A0").cdf(0.004)
    assert found == pytest.approx(below / own.pdf(known), abs=1e-6)


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
