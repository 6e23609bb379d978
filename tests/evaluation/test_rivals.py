"""Tests between models against plain sums, and their levels where the truth is known."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from vaiom.errors import DataError
from vaiom.evaluation.rivals import across_seeds, by_time, confidence_set, diebold_mariano, newey_west_variance


def hours(count: int) -> np.ndarray:
    return np.datetime64("2025-01-01T00", "s") + np.arange(count) * np.timedelta64(1, "h")


def autoregression(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    values = rng.standard_normal(count)
    for index in range(1, count):
        values[index] += phi * values[index - 1]
    return values


def test_losses_of_one_time_are_averaged_in_the_order_of_time() -> None:
    times = hours(3)[[2, 0, 2, 1]]
    np.testing.assert_array_equal(by_time(np.array([1.0, 5.0, 3.0, 7.0]), times), [5.0, 7.0, 2.0])


def test_newey_west_equals_the_double_sum() -> None:
    values = np.random.default_rng(0).standard_normal(40).cumsum()
    centred, lags = values - values.mean(), 5
    total = sum(
        (1 - abs(i - j) / (lags + 1)) * centred[i] * centred[j]
        for i in range(40)
        for j in range(40)
        if abs(i - j) <= lags
    )
    assert newey_west_variance(values, lags) == pytest.approx(total / 40)


def test_diebold_mariano_rejects_about_as_often_as_it_says_and_names_the_better() -> None:
    rng = np.random.default_rng(1)
    rejected = 0
    for _ in range(300):
        gains = autoregression(rng, 400, 0.3)
        rejected += (diebold_mariano(np.zeros(400), gains, hours(400)).p_value or 0) < 0.05
    assert 0.03 <= rejected / 300 <= 0.12
    better = diebold_mariano(np.zeros(400), 0.3 + rng.standard_normal(400), hours(400))
    assert better.statistic is not None
    assert better.statistic > 3
    assert better.p_value == pytest.approx(math.erfc(better.statistic / math.sqrt(2)))


def test_models_that_never_differ_have_no_statistic() -> None:
    same = diebold_mariano(np.ones(50), np.ones(50), hours(50))
    assert (same.statistic, same.p_value, same.mean_gain_bits) == (None, None, 0.0)


def test_the_confidence_set_keeps_the_best_and_drops_the_worst() -> None:
    pytest.importorskip("arch")
    rng = np.random.default_rng(2)
    base = 3 + rng.standard_normal(600)
    bits = {
        "worst": base + 0.3 + 0.1 * rng.standard_normal(600),
        "good": base + 0.1 * rng.standard_normal(600),
        "as good": base + 0.1 * rng.standard_normal(600),
    }
    got = confidence_set(bits, hours(600), replicates=200)
    assert got is not None
    assert got.included == ["good", "as good"]
    assert list(got.p_values) == ["worst", "good", "as good"]
    assert got.p_values["worst"] < got.size < max(got.p_values.values()) == 1.0
    assert confidence_set({"alone": base}, hours(600)) is None


def test_models_with_equal_losses_share_one_answer() -> None:
    rng = np.random.default_rng(5)
    base = rng.normal(3.2, 0.5, 600)
    bits = {"a": base, "worse": base + 0.5 + rng.normal(0, 0.1, 600), "twin": base.copy(), "also": base + 0.0}
    got = confidence_set(bits, hours(600), replicates=200)
    assert got is not None
    assert got.included == ["a", "twin", "also"]
    assert got.p_values["a"] == got.p_values["twin"] == got.p_values["also"]
    assert list(got.p_values) == list(bits)
    assert confidence_set({"a": base, "twin": base}, hours(600)) is None


def test_without_its_library_there_is_no_confidence_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arch", None)
    monkeypatch.setitem(sys.modules, "arch.bootstrap", None)
    assert confidence_set({"a": np.ones(90), "b": np.zeros(90)}, hours(90)) is None


def test_seeds_are_summarised_apart_from_the_sample() -> None:
    rng = np.random.default_rng(3)
    blocks = np.repeat(np.arange(9), 20)
    baseline = 3.3 + rng.standard_normal(180)
    runs = {
        name: baseline - gain + 0.1 * rng.standard_normal(180) for name, gain in (("a", 0.2), ("b", 0.3), ("c", -1))
    }
    got = across_seeds(runs, baseline, blocks)
    means = [float(losses.mean()) for losses in runs.values()]
    assert got.seed_sd_bits == pytest.approx(np.std(means, ddof=1))
    assert got.mean_gain_bits == pytest.approx(baseline.mean() - np.mean(means))
    gains = baseline - (runs["a"] + runs["b"] + runs["c"]) / 3
    sums = [(gains - gains.mean())[blocks == block].sum() for block in range(9)]
    assert got.sampling_error_bits == pytest.approx(math.sqrt(9 / 8 * sum(s * s for s in sums)) / 180)
    assert got.seeds_that_win == 2
    assert got.average.num_blocks == 9
    with pytest.raises(DataError, match="two runs"):
        across_seeds({"a": baseline}, baseline, blocks)
    with pytest.raises(DataError, match="same events"):
        across_seeds({"a": baseline, "b": baseline[1:]}, baseline, blocks)
