"""The dependence of assets over time: what each stamp adds, and what follows for the next one."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import SHAPE, dist, random_covariance
from scipy.stats import norm

from vaiom.codec import to_json
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import LEAST_TAIL, correlation_of, pit_of, scores_of
from vaiom.distribution.dependence import (
    Dependence,
    ReferenceCopula,
    ScoreSeries,
    score_series,
    update_ewma,
    with_variances,
)
from vaiom.errors import DataError
from vaiom.features.fields import BAD_RETURN, MASK_BITS
from vaiom.files import write_json


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
    names = np.array(["A0", "A1", "A2", "NEW"])
    rng = np.random.default_rng(3)
    state = other = fit(3).initial_state()
    for stamp in range(40):
        scores, scales = rng.standard_normal(4), rng.uniform(0.5, 2, 4)
        there = np.array([0, 1, 2] if stamp < 20 else [1, 2, 3])
        state = state.updated(names[there], scores[there], scales[there])
        there = there[::-1]
        other = other.updated(names[there], scores[there], scales[there])
    scales = np.array([1.0, 2.0, 0.5, 1.5])
    found = state.correlation(names, scales)
    backwards = other.correlation(names[::-1], scales[::-1])
    np.testing.assert_allclose(found, backwards[::-1, ::-1], atol=1e-9)
    assert np.linalg.eigvalsh(found)[0] > 0
    assert (state.symbols, state.counts.tolist()) == (tuple(names), [20, 40, 40, 20])


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("positive definite", {"covariance": np.ones((3, 3))}),
        ("positive definite", {"covariance": -np.eye(3)}),
        ("positive definite", {"covariance": np.eye(3) + np.eye(3, k=1) / 1_000}),
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
    ],
)
def test_what_no_fit_can_be_is_refused(words: str, wrong: dict[str, object]) -> None:
    fit(3, shrinkage=1.0)
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
    same_class = np.kron(np.eye(2), np.ones((2, 2)))
    correlation = level / 2 * (1 + same_class)
    np.fill_diagonal(correlation, 1.0)
    scales = np.array([1.0, 2.0, 0.5, 1.5])
    covariance = correlation * np.outer(scales, scales)
    state = fit(4, covariance=covariance, classes=("FX", "FX", "SPOT", "SPOT")).initial_state()
    for new, means in (("GBPUSD", [2, 2, 1, 1]), ("XAGUSD", [1, 1, 2, 2])):
        wanted = np.array(means) * level / 2
        explained = wanted @ np.linalg.inv(correlation) @ wanted
        found = state.correlation([*state.symbols, new], np.append(scales, 3.0))
        np.testing.assert_allclose(found[:4, :4], correlation, rtol=1e-9)
        limit = min(1, math.sqrt(0.5 / explained))
        np.testing.assert_allclose(found[4, :4], limit * wanted, rtol=1e-9)
    assert (explained > 0.5) == (level == 0.95)
    # A class that Train did not have is independent; two new assets of a class are not.
    assert not state.correlation(["A0", "BTCUSDT"], np.ones(2))[0, 1]
    assert state.correlation(["GBPUSD", "EURGBP"], np.array([3.0, 4.0]))[0, 1] > 0


def test_the_correlation_is_shrunk_to_that_of_train() -> None:
    start = fit(3, shrinkage=0.3)
    state = replace(start.initial_state(), covariance=random_covariance(3, 9))
    mixed = 0.7 * state.covariance + 0.3 * start.covariance
    found = state.correlation(["A2", "A0"], np.sqrt(np.diag(mixed))[[2, 0]])
    np.testing.assert_allclose(found, correlation_of(mixed[np.ix_([2, 0], [2, 0])]), rtol=1e-6)


def test_series_with_holes_run_stamp_by_stamp() -> None:
    rng = np.random.default_rng(6)
    state = fit(3).initial_state()
    stamps = np.array([1, 2, 3, 4, 6])
    scores, scales = rng.standard_normal((5, 3)), rng.uniform(1, 2, (5, 3))
    scores[[3, 0, 4, 1, 3], [0, 1, 1, 2, 2]] = np.nan
    series = {}
    for asset, symbol in enumerate(state.symbols):
        own = np.isfinite(scores[:, asset])
        series[symbol] = ScoreSeries(stamps[own], scores[own, asset], scales[own, asset])
    *before, last = state.states(state.symbols, scores, scales)
    assert len(before) == 5
    after = state.updated_through(series)
    np.testing.assert_array_equal(after.covariance, last.covariance)
    assert after.counts.tolist() == [4, 2, 3]


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
    sigma = np.linspace(0.01, 0.02, 7)
    probs = np.random.default_rng(0).dirichlet(np.full(16, 5.0), 7)
    dists = BucketDistribution(probs=probs, sigma=sigma, shape=SHAPE)
    flags = [0, 0, 0, BAD_RETURN, *(MASK_BITS[name] for name in ("missing", "stale", "bad_data"))]
    columns = {
        "timestamp": np.arange(7),
        "log_ret": np.array([0.01, 0.02, np.nan, 0.0, -0.01, 0.03, 1.5]),
        "flags": np.array(flags),
        "sigma20": sigma,
    }
    stamps, scores, scales = score_series(dists, 0.1, columns)
    assert stamps.tolist() == [1, 3, 5]
    for row, score, scale in zip(stamps, scores, scales, strict=True):
        before = replace(dists, probs=probs[row - 1], sigma=sigma[row - 1])
        assert score == pytest.approx(norm.ppf(pit_of(before, 0.1, columns["log_ret"][row])))
        low, high = before.quantile(norm.cdf([-1, 1]))
        assert scale == pytest.approx((high - low) / 2, rel=1e-5)
    columns["sigma20"] = np.where(np.arange(7) == 2, 0.0, sigma)
    assert score_series(dists, 0.1, columns).stamps.tolist() == [1, 5]


def test_no_return_has_an_infinite_score() -> None:
    ends = scores_of(np.array([pit_of(dist(1), 0.0, x) for x in (-9.0, 9.0)]))
    np.testing.assert_allclose(ends, norm.ppf([LEAST_TAIL, 1 - LEAST_TAIL]))
