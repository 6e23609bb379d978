"""Laws of the joint distribution: product, exchange, regression, sums of contributions; the
covariance it rests on.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import multivariate_normal, multivariate_t, norm, t

from vaiom.codec import from_json, to_json
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import (
    LEAST_TAIL,
    correlation_of,
    log_density,
    pit_of,
    scores_of,
)
from vaiom.distribution.dependence import (
    Dependence,
    ReferenceCopula,
    ScoreSeries,
    scale_of,
    score_series,
    update_ewma,
    with_variances,
)
from vaiom.distribution.joint import DRAWS, JointDistribution
from vaiom.distribution.portfolio import SHOWN_LEVELS, Estimate, Portfolio
from vaiom.distribution.shape import PIECES, ReturnShape, Tail
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import BAD_RETURN, MASK_BITS
from vaiom.files import write_json

KNOTS = np.linspace(-3, 3, 14 * PIECES + 1)
SHAPE = ReturnShape(knots=KNOTS, lower=Tail(scale=0.5, shape=0.1), upper=Tail(scale=0.5, shape=0.1))


def dist(seed: int, sigma: float = 0.01) -> BucketDistribution:
    return BucketDistribution(
        probs=np.random.default_rng(seed).dirichlet(np.full(16, 5.0)), sigma=sigma, shape=SHAPE
    )


def repickled(value: object, protocol: int) -> object:
    return pickle.loads(pickle.dumps(value, protocol))


def random_covariance(size: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((size, size + 2))
    return drawn @ drawn.T / size


def joint(
    size: int = 3, seed: int = 0, degrees: float | None = 6.0, zero: float = 0.05
) -> JointDistribution:
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
def test_the_copulas_density_is_that_of_its_definition(
    size: int, seed: int, degrees: float | None
) -> None:
    matrix, pit = (
        correlation_of(random_covariance(size, seed)),
        np.random.default_rng(seed).uniform(size=size),
    )
    if degrees is None:
        scores = norm.ppf(pit)
        plain = multivariate_normal(cov=matrix).logpdf(scores) - norm.logpdf(scores).sum()
    else:
        scores = t.ppf(pit, degrees)
        plain = (
            multivariate_t(shape=matrix, df=degrees).logpdf(scores)
            - t.logpdf(scores, degrees).sum()
        )
    assert log_density(matrix, pit, degrees) == pytest.approx(plain, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    ("size", "spread"), [(2, 0.3), (11, 2.0), (11, 4.0), (60, 2.0), (300, 1.6)]
)
def test_forecast_variances_are_met_and_the_inverse_changes_on_its_diagonal_alone(
    size: int, spread: float
) -> None:
    """Also where some assets are ten times as volatile as they were, and others calm."""
    rng = np.random.default_rng(17)
    factors = rng.standard_normal((size, 3))
    matrix = correlation_of(factors @ factors.T + np.diag(rng.uniform(0.1, 2, size)))
    variances = np.exp(spread * rng.standard_normal(size))
    found = with_variances(matrix, variances)
    np.testing.assert_allclose(np.diag(found), variances, rtol=1e-5)
    assert np.linalg.eigvalsh(correlation_of(found))[0] > 0
    added = np.linalg.inv(found) - np.linalg.inv(matrix)
    apart = (added - np.diag(np.diag(added))) * np.sqrt(np.outer(variances, variances))
    np.testing.assert_allclose(apart, 0, atol=1e-6 * np.abs(np.linalg.inv(found)).max())
    np.testing.assert_allclose(with_variances(matrix, np.diag(matrix)), matrix, atol=1e-9)


def test_variances_that_no_iteration_reaches_leave_the_correlation_as_it_is() -> None:
    rng = np.random.default_rng(17)
    matrix = correlation_of(random_covariance(60, 17))
    variances = np.exp(12 * rng.standard_normal(60))
    found = with_variances(matrix, variances)
    np.testing.assert_allclose(np.diag(found), variances, rtol=1e-5)
    assert np.linalg.eigvalsh(correlation_of(found))[0] > 0


def test_a_relation_between_assets_survives_other_volatilities() -> None:
    """C = A + B however volatile A and B are: the correlation of a stamp follows the forecast
    scales.
    """
    rng = np.random.default_rng(0)
    start = fit(3, covariance=random_covariance(3, 1) + np.eye(3), shrinkage=1e-3, decay=0.99)
    state = start.initial_state()

    def moves(scales: list[float]) -> np.ndarray:
        a, b = scales * rng.standard_normal(2)
        return np.array([a, b, a + b + 0.02 * rng.standard_normal()])

    for _ in range(600):
        own = np.exp(rng.normal(0, 0.4, 2)).tolist()
        scales = np.array([*own, math.hypot(*own)])
        state = state.updated(start.symbols, moves(own) / scales, scales)
    for a, b in ((1.0, 1.0), (2.0, 0.5)):
        found = state.correlation(start.symbols, np.array([a, b, math.hypot(a, b)]))
        assert found[0, 2] == pytest.approx(a / math.hypot(a, b), abs=0.1)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 6), st.integers(0, 99), st.floats(0.5, 0.999))
def test_an_average_with_absent_assets_stays_positive_definite(
    size: int, seed: int, decay: float
) -> None:
    rng, matrix = np.random.default_rng(seed), random_covariance(size, seed)
    for _ in range(50):
        values = rng.standard_normal(size)
        values[rng.random(size) < 0.4] = np.nan
        matrix = update_ewma(matrix, values, decay)
        assert np.linalg.eigvalsh(matrix)[0] > 0
    assert update_ewma(matrix, np.full(size, np.nan), decay) == pytest.approx(matrix)


def test_assets_are_exchangeable_and_may_be_absent_or_new() -> None:
    names, rng = ["A0", "A1", "A2", "NEW"], np.random.default_rng(3)
    state = other = fit(3).initial_state()
    for stamp in range(40):
        scores, scales = rng.standard_normal(4), rng.uniform(0.5, 2, 4)
        there = [0, 1, 2] if stamp < 20 else [1, 2, 3]
        state = state.updated([names[i] for i in there], scores[there], scales[there])
        other = other.updated(
            [names[i] for i in there[::-1]], scores[there][::-1], scales[there][::-1]
        )
    scales = np.array([1.0, 2.0, 0.5, 1.5])
    found = state.correlation(names, scales)
    assert found == pytest.approx(
        other.correlation(names[::-1], scales[::-1])[::-1, ::-1], abs=1e-9
    )
    assert np.linalg.eigvalsh(found)[0] > 0
    assert dict(zip(state.symbols, state.counts.tolist(), strict=True)) == {
        "A0": 20,
        "A1": 40,
        "A2": 40,
        "NEW": 20,
    }


def test_a_fit_survives_json_and_what_makes_no_sense_is_refused() -> None:
    one = fit(3)
    again = from_json(Dependence, to_json(one))
    assert np.array_equal(again.covariance, one.covariance)
    assert again.degrees == one.degrees
    fit(3, shrinkage=1.0)
    lopsided = random_covariance(3, 1) + np.triu(np.full((3, 3), 1e-3))
    for words, wrong in (
        ("positive definite", {"covariance": np.ones((3, 3))}),
        ("positive definite", {"covariance": -np.eye(3)}),
        ("positive definite", {"covariance": lopsided}),
        ("positive definite", {"correlation": np.ones((3, 3))}),
        ("size", {"classes": ("FX",)}),
        ("size", {"symbols": ("A0", "A1", "A1")}),
        ("size", {"covariance": np.eye(4)}),
        ("size", {"covariance": np.ones((3, 3, 3))}),
        ("size", {"correlation": np.eye(2)}),
        ("weights", {"decay": 0.0}),
        ("weights", {"decay": 1.0}),
        ("weights", {"shrinkage": 0.0}),
        ("weights", {"shrinkage": 1.1}),
        ("one bar", {"degrees": {"4": 8.0}}),
    ):
        with pytest.raises(ValueError, match=words):
            fit(3, **wrong)


def test_a_fit_is_read_for_its_own_checkpoint_alone(tmp_path: Path) -> None:
    file = tmp_path / "dependence.json"
    write_json(file, to_json(fit(3)))
    assert to_json(Dependence.read(file, "a")) == to_json(fit(3))
    with pytest.raises(DataError, match=r"another checkpoint[\s\S]*vaiom dependence"):
        Dependence.read(file, "b")


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
def test_memory_ends_where_a_weight_falls_below_a_hundredth(decay: float) -> None:
    memory = fit(2, decay=decay).memory
    assert decay**memory < 0.01 <= decay ** (memory - 1)


def test_a_stamp_with_all_assets_enters_the_average_in_the_fitted_unit() -> None:
    start, rng = fit(3), np.random.default_rng(4)
    scores, scales = rng.standard_normal(3), rng.uniform(0.5, 2, 3)
    own = np.sqrt(np.diag(start.covariance))
    moves = scores * scales / np.exp(np.log(scales / own).mean())
    plain = 0.9 * start.covariance + 0.1 * np.outer(moves, moves)
    after = start.initial_state().updated(start.symbols, scores, scales)
    unit = math.exp(np.log(np.diag(start.covariance) / np.diag(plain)).mean())
    np.testing.assert_allclose(after.covariance, unit * plain, rtol=1e-12)
    assert after.counts.tolist() == [1, 1, 1]
    louder = start.initial_state().updated(start.symbols, scores, 7 * scales)
    np.testing.assert_allclose(louder.covariance, after.covariance, rtol=1e-12)
    # Alone an asset says nothing about dependence.
    assert after.updated(["A1"], scores[:1], scales[:1]).counts.tolist() == [1, 1, 1]


def test_absent_assets_have_the_moments_that_the_present_ones_imply() -> None:
    matrix, values = random_covariance(4, 8), np.array([0.5, np.nan, -1.2, np.nan])
    here, gone = [0, 2], [1, 3]
    cross = matrix[np.ix_(gone, here)] @ np.linalg.inv(matrix[np.ix_(here, here)])
    filled = values.copy()
    filled[gone] = cross @ values[here]
    moments = np.outer(filled, filled)
    moments[np.ix_(gone, gone)] += matrix[np.ix_(gone, gone)] - cross @ matrix[np.ix_(here, gone)]
    np.testing.assert_allclose(
        update_ewma(matrix, values, 0.8), 0.8 * matrix + 0.2 * moments, rtol=1e-12
    )
    whole = np.array([1.0, -2.0, 0.5, 0.1])
    np.testing.assert_allclose(
        update_ewma(matrix, whole, 0.8), 0.8 * matrix + 0.2 * np.outer(whole, whole)
    )


@pytest.mark.parametrize("level", [0.2, 0.95])
def test_a_new_asset_is_as_correlated_as_its_class_within_limits(level: float) -> None:
    """Pairs of a class as the mean of such pairs; at most half of the variance is explained."""
    matrix = np.full((4, 4), level) + (1 - level) * np.eye(4)
    matrix[:2, 2:] = matrix[2:, :2] = level / 2
    scales = np.array([1.0, 2.0, 0.5, 1.5])
    start = fit(
        4, covariance=matrix * np.outer(scales, scales), classes=("FX", "FX", "SPOT", "SPOT")
    )
    for new, means in (
        ("GBPUSD", [level, level, level / 2, level / 2]),
        ("XAGUSD", [level / 2, level / 2, level, level]),
    ):
        explained = np.array(means) @ np.linalg.inv(matrix) @ means
        expected = np.array(means) * min(1, math.sqrt(0.5 / explained))
        found = start.initial_state().correlation([*start.symbols, new], np.append(scales, 3.0))
        np.testing.assert_allclose(found[:4, :4], matrix, rtol=1e-9)
        np.testing.assert_allclose(found[4, :4], expected, rtol=1e-9)
    assert (explained > 0.5) == (level == 0.95)
    # A class that Train did not have is independent.
    assert not start.initial_state().correlation(["A0", "BTCUSDT"], np.ones(2))[0, 1]
    assert start.initial_state().correlation(["GBPUSD", "EURGBP"], np.array([3.0, 4.0]))[0, 1] > 0


def test_the_correlation_is_shrunk_to_that_of_train() -> None:
    start = fit(3, shrinkage=0.3)
    state = replace(start.initial_state(), covariance=random_covariance(3, 9))
    mixed = 0.7 * state.covariance + 0.3 * start.covariance
    found = state.correlation(["A2", "A0"], np.sqrt(np.diag(mixed))[[2, 0]])
    np.testing.assert_allclose(found, correlation_of(mixed[np.ix_([2, 0], [2, 0])]), rtol=1e-6)


def test_series_with_holes_run_stamp_by_stamp() -> None:
    start, rng = fit(3), np.random.default_rng(6)
    stamps = {"A0": [1, 2, 3, 6], "A1": [2, 3, 4], "A2": [1, 3, 6]}
    series = {
        name: ScoreSeries(np.array(own), rng.standard_normal(len(own)), rng.uniform(1, 2, len(own)))
        for name, own in stamps.items()
    }
    step, table = start.initial_state(), np.full((2, 7, 3), np.nan)
    for asset, (own, *values) in enumerate(series.values()):
        table[:, own, asset] = values
    for scores, scales in table[:, [1, 2, 3, 4, 6]].swapaxes(0, 1):
        there = np.flatnonzero(~np.isnan(scores))
        step = step.updated([f"A{asset}" for asset in there], scores[there], scales[there])
    after = start.initial_state().updated_through(series)
    np.testing.assert_array_equal(after.covariance, step.covariance)
    assert after.counts.tolist() == [4, 2, 3]
    assert len(list(start.initial_state().states(start.symbols, *table[:, 1:4]))) == 4


def test_a_correlation_has_ones_on_its_diagonal_to_the_bit() -> None:
    for seed in range(20):
        assert (np.diag(correlation_of(random_covariance(5, seed))) == 1).all()


def test_a_reference_copula_mixes_what_it_says() -> None:
    average_, start = (
        correlation_of(random_covariance(3, 1)),
        correlation_of(random_covariance(3, 2)),
    )
    mixed = ReferenceCopula(weight=0.25).correlation(average_, start)
    np.testing.assert_allclose(mixed, correlation_of(0.25 * average_ + 0.75 * start))
    assert asdict(ReferenceCopula()) == {"weight": 0.0, "decay": 0.99, "degrees": None}


def test_scores_and_scales_of_bars_come_from_the_forecast_before_them() -> None:
    probs, sigma = (
        np.random.default_rng(0).dirichlet(np.full(16, 5.0), 7),
        np.linspace(0.01, 0.02, 7),
    )
    dists = BucketDistribution(probs=probs, sigma=sigma, shape=SHAPE)
    columns = {
        "timestamp": np.arange(7) * 3600,
        "log_ret": np.array([0.01, 0.02, np.nan, 0.0, -0.01, 0.03, 1.5]),
        "flags": np.array(
            [0, 0, 0, BAD_RETURN, MASK_BITS["missing"], MASK_BITS["stale"], MASK_BITS["bad_data"]]
        ),
        "sigma20": sigma,
    }
    stamps, scores, scales = score_series(dists, 0.1, columns)
    assert (stamps // 3600).tolist() == [1, 3, 5]
    for row, score, scale in zip((1, 3, 5), scores, scales, strict=True):
        before = BucketDistribution(probs=probs[row - 1], sigma=float(sigma[row - 1]), shape=SHAPE)
        assert score == pytest.approx(norm.ppf(float(pit_of(before, 0.1, columns["log_ret"][row]))))
        assert scale == pytest.approx(
            (before.quantile(norm.cdf(1)) - before.quantile(norm.cdf(-1))) / 2, rel=1e-5
        )
        assert scale == scale_of(before)
    undefined = score_series(
        dists, 0.1, {**columns, "sigma20": np.where(np.arange(7) == 2, 0.0, sigma)}
    )
    assert (undefined[0] // 3600).tolist() == [1, 5]
    extremes = scores_of(pit_of(dists, 0.0, np.repeat([-9.0, 9.0], [3, 4])))
    np.testing.assert_allclose(extremes, norm.ppf(np.repeat([LEAST_TAIL, 1 - LEAST_TAIL], [3, 4])))


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_a_marginal_is_its_forecast_with_a_step_at_zero(degrees: float | None) -> None:
    law, zero = joint(degrees=degrees, zero=0.2), 0.2
    for symbol in law.symbols:
        one, dist_ = law.marginal(symbol), law.dists[symbol]
        for x in (-0.02, -1e-9, 0.0, 0.004):
            assert one.cdf(x) == pytest.approx(0.8 * dist_.cdf(x) + (zero if x >= 0 else 0))
        below = 0.8 * dist_.cdf(0.0)
        for q in (0.01, below - 1e-3):
            assert one.quantile(q) == one.ppf(q) == pytest.approx(dist_.quantile(q / 0.8), abs=1e-9)
        assert one.quantile(below + 1e-3) == one.quantile(below + zero - 1e-3) == 0
        for q in (below + zero + 1e-3, 0.99):
            assert one.quantile(q) == pytest.approx(dist_.quantile((q - zero) / 0.8), abs=1e-9)
        tails = one.returns_of(np.array([-1e9, 1e9]))
        assert tails == pytest.approx(
            [dist_.quantile(LEAST_TAIL / 0.8), dist_.quantile(1 - LEAST_TAIL / 0.8)], rel=1e-6
        )


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


def test_draws_are_the_copulas_scores_through_the_marginals() -> None:
    for degrees in (None, 5.0):
        law = replace(joint(degrees=degrees), location=np.array([0.1, -0.2, 0.3]))
        rng = np.random.default_rng(11)
        scores = rng.standard_normal((9, 3)) @ np.linalg.cholesky(law.scatter).T
        if degrees:
            scores = scores / np.sqrt(rng.chisquare(degrees, (9, 1)) / degrees)
        expected = [
            law.marginal(name).returns_of(scores[:, at] + law.location[at])
            for at, name in enumerate(law.symbols)
        ]
        np.testing.assert_allclose(law.sample(9, seed=11), np.stack(expected, axis=1))
    assert law.sample().shape == (DRAWS, 3)
    np.testing.assert_array_equal(law.sample(7), law.sample(7, seed=0))
    assert law.sample(1).shape == (1, 3)
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


PROFITS = np.random.default_rng(12).standard_t(3, (1_000, 3)) * [1.0, -2.0, 0.0]
BOOK = Portfolio(positions={"A": 10.0, "B": -20.0, "C": 0.0}, profits=PROFITS, notes=("few bars",))


def test_the_risks_of_a_portfolio_are_those_of_its_draws() -> None:
    total, ordered = PROFITS.sum(axis=1), np.sort(PROFITS.sum(axis=1))
    np.testing.assert_array_equal(BOOK.profit, total)
    for q in (0.0, 0.0005, 0.3, 0.9999, 1.0):
        error = math.sqrt(q * (1 - q) / 1_000)
        got = BOOK.quantile(q)
        assert got == pytest.approx(np.quantile(total, q))
        low, high = np.quantile(total, [max(0, q - error), min(1, q + error)])
        assert got.standard_error == pytest.approx((high - low) / 2)
    for level, count in ((0.95, 50), (0.99, 10), (0.999, 1)):
        assert BOOK.value_at_risk(level) == -BOOK.quantile(1 - level)
        assert BOOK.value_at_risk(level).standard_error == BOOK.quantile(1 - level).standard_error
        losses = -ordered[:count]
        shortfall = BOOK.expected_shortfall(level)
        assert shortfall == pytest.approx(losses.mean())
        variance = losses.var() + level * (losses.mean() - losses.min()) ** 2
        assert shortfall.standard_error == pytest.approx(math.sqrt(variance / count))
    assert BOOK.value_at_risk() == BOOK.value_at_risk(0.99)
    assert BOOK.expected_shortfall() == BOOK.expected_shortfall(0.99)
    for wrong in (0.0, 1.0, -0.1, 0.9995):
        for figure in (BOOK.value_at_risk, BOOK.expected_shortfall):
            with pytest.raises(ConfigError, match="risk level"):
                figure(wrong)
    for wrong in (-0.01, 1.01):
        with pytest.raises(ConfigError, match="quantile's level"):
            BOOK.quantile(wrong)


@pytest.mark.parametrize(
    "again", [copy, deepcopy, *(partial(repickled, protocol=each) for each in range(6))]
)
def test_a_figure_from_draws_keeps_its_error_wherever_it_goes(
    again: Callable[[object], object],
) -> None:
    risk = BOOK.value_at_risk(0.95)
    moved = again(risk)
    assert isinstance(moved, Estimate)
    assert (moved, moved.standard_error) == (risk, risk.standard_error)


def test_a_portfolio_of_few_draws_shows_itself() -> None:
    few = Portfolio(positions={"A": 1.0}, profits=np.array([[-2.0], [1.0]]))
    assert repr(few).startswith("<Portfolio of A: 99% value at risk 1.97 +- ")


def test_contributions_are_means_of_the_draws_near_the_limit_and_beyond_it() -> None:
    order = np.argsort(PROFITS.sum(axis=1))
    near = -PROFITS[order[45:56]].mean(axis=0)  # a tenth of the 50 worst on both sides
    limits = near * BOOK.value_at_risk(0.95) / near.sum()
    shortfalls = -PROFITS[order[:50]].mean(axis=0)
    for at, (symbol, part) in enumerate(BOOK.contributions(0.95).items()):
        amount = BOOK.positions[symbol]
        assert part.amount == amount
        assert part.value_at_risk == pytest.approx(limits[at])
        assert part.expected_shortfall == pytest.approx(shortfalls[at])
        assert part.marginal_value_at_risk == pytest.approx(limits[at] / amount if amount else 0)
        assert part.marginal_expected_shortfall == pytest.approx(
            shortfalls[at] / amount if amount else 0
        )
    assert BOOK.contributions() == BOOK.contributions(0.99)
    nothing = Portfolio(positions={"A": 0.0}, profits=np.zeros((100, 1))).contributions(0.9)["A"]
    assert set(asdict(nothing).values()) == {0.0}


def test_a_portfolio_as_json_and_as_a_figure() -> None:
    shown = json.loads(json.dumps(BOOK.to_dict(), allow_nan=False))
    limit, shortfall = BOOK.value_at_risk(), BOOK.expected_shortfall()
    assert SHOWN_LEVELS == (0.01, 0.05, 0.5, 0.95, 0.99)
    assert shown == {
        "level": 0.99,
        "value_at_risk": limit,
        "expected_shortfall": shortfall,
        "standard_errors": {
            "value_at_risk": limit.standard_error,
            "expected_shortfall": shortfall.standard_error,
        },
        "quantiles": {str(each): BOOK.quantile(each) for each in SHOWN_LEVELS},
        "contributions": {symbol: asdict(each) for symbol, each in BOOK.contributions().items()},
        "notes": ["few bars"],
    }
    figure = pytest.importorskip("matplotlib.figure")
    ax = BOOK.plot(figure.Figure().subplots())
    assert ax.get_title() == "A, B, C; lines at 99% VaR and ES"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("profit", "of 1,000 draws")
    assert [line.get_xdata()[0] for line in ax.lines] == [-limit, -shortfall]
    assert [line.get_linestyle() for line in ax.lines] == ["-", ":"]
    counts = [bar.get_height() for bar in ax.patches]
    assert len(counts) == 200
    assert sum(counts) == 998  # of a thousand, one beyond each end


def test_a_portfolio_is_paid_what_prices_move_not_their_logs() -> None:
    law = replace(joint(), notes=("few bars",))
    book = law.portfolio({"A2": 100, "A0": -50}, 20, seed=5)
    drawn = law.sample(20, seed=5)
    np.testing.assert_allclose(book.profits, np.expm1(drawn[:, [2, 0]]) * [100, -50])
    assert (book.positions, book.notes) == ({"A2": 100.0, "A0": -50.0}, ("few bars",))
    np.testing.assert_array_equal(
        law.portfolio({"A0": 1.0}).profits, law.portfolio({"A0": 1.0}, DRAWS, 0).profits
    )
    law.portfolio({"A0": 1e100}, 1)


def test_zero_returns_have_the_middle_of_their_step() -> None:
    one, share = dist(1), 0.2
    assert float(pit_of(one, share, 0.0)) == pytest.approx(0.8 * one.cdf(0.0) + 0.1)
    assert float(pit_of(one, share, 0.001)) == pytest.approx(0.8 * one.cdf(0.001) + 0.2)
    assert float(pit_of(one, share, -0.001)) == pytest.approx(0.8 * one.cdf(-0.001))


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
