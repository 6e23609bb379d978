"""The test of the PIT: right levels when calibrated, rejections when not; scores against plain
loops.
"""

from __future__ import annotations

import numpy as np
import pytest
from simulated_market import randomised_pit

from vaiom.evaluation.calibration import (
    calibrate,
    kuiper_test,
    measure_reliability,
)


def test_rejection_rates_of_uniform_values_are_the_nominal_ones() -> None:
    rng = np.random.default_rng(2)
    p_values = np.array([kuiper_test(rng.random(200)).p_value for _ in range(4_000)])
    for level in (0.5, 0.1, 0.01):
        error = (level * (1 - level) / len(p_values)) ** 0.5
        assert abs(np.mean(p_values < level) - level) < 5 * error


def test_outcomes_drawn_from_the_prediction_pass_and_others_fail() -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(16, 5.0), 5_000)
    buckets = 1 + (rng.random((5_000, 1)) > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)
    assert kuiper_test(randomised_pit(probs, buckets, seed=0)).p_value > 0.01
    centre = np.abs(np.arange(16) - 7.5)
    for tilt in (np.exp(-0.1 * centre), np.exp(0.1 * centre), np.exp(0.05 * np.arange(16))):
        wrong = probs * tilt
        wrong /= wrong.sum(axis=1, keepdims=True)
        assert kuiper_test(randomised_pit(wrong, buckets, seed=0)).p_value < 1e-3


def test_statistic_is_the_largest_excess_plus_the_largest_deficit() -> None:
    # Both values lie in the lower half: the empirical distribution runs ahead by 0.6 and lags by
    # 0.2.
    assert kuiper_test(np.array([0.2, 0.4])).statistic == pytest.approx(0.6 + 0.2)
    assert kuiper_test(np.linspace(0.005, 0.995, 100)).p_value == 1.0
    with pytest.raises(ValueError, match="at least one event"):
        kuiper_test(np.array([]))


def drawn(rng: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    return 1 + (rng.random((len(probs), 1)) > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)


def test_reliability_groups_events_by_forecast() -> None:
    predicted = np.repeat([0.1, 0.6], 50)
    came = np.concatenate([np.arange(50) < 10, np.arange(50) < 30]).astype(float)
    got = measure_reliability("1", predicted, came)
    assert (got.predicted, got.observed) == pytest.approx((0.35, 0.4))
    assert sum(size for _, _, size in got.bins) == 100
    assert [forecast for forecast, _, _ in got.bins] == pytest.approx([0.1] * 5 + [0.6] * 5)
    assert got.error == pytest.approx(sum(size * abs(p - o) for p, o, size in got.bins) / 100)


def test_a_true_law_is_reliable_everywhere_and_a_sharpened_one_is_not() -> None:
    rng = np.random.default_rng(6)
    probs = rng.dirichlet(np.full(16, 3.0), 20_000)
    buckets = drawn(rng, probs)
    got = calibrate(probs, buckets, randomised_pit(probs, buckets, seed=0))
    assert [item.outcome for item in got.tails] == ["negative", "positive", "both"]
    assert (len(got.buckets), len(got.cumulative), sum(got.pit_histogram)) == (16, 15, 20_000)
    for item in (*got.buckets, *got.cumulative, *got.tails):
        assert item.observed == pytest.approx(item.predicted, abs=0.015)
        assert item.error < 0.02
    sharp = probs**2 / (probs**2).sum(axis=1, keepdims=True)
    worse = calibrate(sharp, buckets, randomised_pit(sharp, buckets, seed=0))
    assert (
        max(item.error for item in got.buckets)
        < 0.01
        < 0.02
        < min(item.error for item in worse.buckets)
    )
    assert worse.overall.entropy_bits < got.overall.entropy_bits
    assert worse.overall.brier > got.overall.brier
    assert worse.overall.ranked_probability_score > got.overall.ranked_probability_score
