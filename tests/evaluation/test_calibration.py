"""The transform and its test: right levels when calibrated, rejections when not."""

from __future__ import annotations

import numpy as np
import pytest

from vaiom.evaluation.calibration import randomised_pit, uniformity_test


def test_transform_lies_inside_the_share_of_its_outcome() -> None:
    probs = np.array([[0.2, 0.5, 0.3]] * 3)
    pit = randomised_pit(probs, np.array([1, 2, 3]), seed=4)
    assert 0 <= pit[0] <= 0.2 <= pit[1] <= 0.7 <= pit[2] <= 1
    np.testing.assert_array_equal(pit, randomised_pit(probs, np.array([1, 2, 3]), seed=4))
    assert not np.array_equal(pit, randomised_pit(probs, np.array([1, 2, 3]), seed=5))


def test_rejection_rates_of_uniform_values_are_the_nominal_ones() -> None:
    rng = np.random.default_rng(2)
    p_values = np.array([uniformity_test(rng.random(200)).p_value for _ in range(4_000)])
    for level in (0.5, 0.1, 0.01):
        error = (level * (1 - level) / len(p_values)) ** 0.5
        assert abs(np.mean(p_values < level) - level) < 5 * error


def test_outcomes_drawn_from_the_prediction_pass_and_others_fail() -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(16, 5.0), 5_000)
    buckets = 1 + (rng.random((5_000, 1)) > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)
    assert uniformity_test(randomised_pit(probs, buckets, seed=0)).p_value > 0.01
    centre = np.abs(np.arange(16) - 7.5)
    for tilt in (np.exp(-0.1 * centre), np.exp(0.1 * centre), np.exp(0.05 * np.arange(16))):
        wrong = probs * tilt
        wrong /= wrong.sum(axis=1, keepdims=True)
        assert uniformity_test(randomised_pit(wrong, buckets, seed=0)).p_value < 1e-3


def test_statistic_is_the_largest_excess_plus_the_largest_deficit() -> None:
    # Both values lie in the lower half: the empirical distribution runs ahead by 0.6 and lags by 0.2.
    assert uniformity_test(np.array([0.2, 0.4])).statistic == pytest.approx(0.6 + 0.2)
    assert uniformity_test(np.linspace(0.005, 0.995, 100)).p_value == 1.0
    with pytest.raises(ValueError, match="at least one event"):
        uniformity_test(np.array([]))
