"""Bootstrap, errors and tests between models: their levels where the truth is known, and their
limits. `test_figures_again` compares every figure with a plain recomputation.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from benchmarks import bootstrap as bench
from vaiom.errors import DataError, VaiomError
from vaiom.evaluation.inference import (
    ConfidenceSet,
    block_sums,
    bootstrap_blocks,
    diebold_mariano,
    paired_gain,
    resample,
    standard_error,
)
from vaiom.evaluation.scores import ScoredEvents

ONE_HOUR = np.full(3, np.datetime64("2025-01-05T10", "s"))


def coverage(as_blocks: bool, trials: int = 300) -> float:
    """How often the interval holds the true mean of events with a common part in each of 66 unequal
    blocks.
    """
    rng = np.random.default_rng(5)
    sizes = rng.integers(5, 40, 66)
    blocks = np.repeat(np.arange(66), sizes)
    covered = 0
    for trial in range(trials):
        gains = 0.03 + 0.3 * rng.standard_normal(66)[blocks] + rng.standard_normal(len(blocks))
        numbers = blocks if as_blocks else np.arange(len(blocks))
        interval = bootstrap_blocks(gains, numbers, replicates=400, seed=trial).interval
        assert interval is not None
        covered += interval[0] <= 0.03 <= interval[1]
    return covered / trials


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    assert 0.90 <= coverage(as_blocks=True) <= 0.985


def test_events_taken_as_independent_would_cover_too_rarely() -> None:
    assert coverage(as_blocks=False, trials=60) < 0.85


def three_events(model: np.ndarray, baseline: np.ndarray) -> ScoredEvents:
    bits = {"model": model, "markov": baseline}
    return ScoredEvents(
        symbols=np.full(3, "EURUSD"), target_times=ONE_HOUR, buckets=np.full(3, 8), bits=bits
    )


def test_a_single_block_has_a_gain_but_no_interval() -> None:
    got = paired_gain(three_events(np.zeros(3), np.ones(3)), "markov")
    assert (got.gain_bits, got.asset_months.interval, got.months.win_rate_interval) == (
        1.0,
        None,
        None,
    )
    assert got.tails["both"].gain_bits is None


def test_losses_of_different_events_are_refused() -> None:
    with pytest.raises(ValueError, match="other events"):
        three_events(np.zeros(3), np.ones(2))
    none = ScoredEvents(
        symbols=np.zeros(0, str),
        target_times=ONE_HOUR[:0],
        buckets=np.zeros(0),
        bits={"model": np.zeros(0), "a": np.zeros(0)},
    )
    with pytest.raises(DataError, match="no event"):
        paired_gain(none, "a")


def test_the_benchmark_compares_what_it_says() -> None:
    measured = bench.measure(num_blocks=5, num_events=60, replicates=50, repeats=1)
    assert measured.equal == "mean and win-rate of all 50 replicates, to 1e-12"
    ours = resample(*block_sums(np.arange(6.0), np.array([0, 0, 1, 1, 1, 2])), 10, 1)
    other = resample(*block_sums(np.arange(6.0), np.array([0, 0, 1, 1, 1, 2])), 10, 2)
    with pytest.raises(VaiomError, match="differs by"):
        bench.require_equal(ours, other)


def test_with_one_event_per_cluster_the_error_is_the_usual_one() -> None:
    gains = np.random.default_rng(0).standard_normal(500)
    usual = gains.std(ddof=1) / math.sqrt(500)
    assert standard_error(gains, np.arange(500)) == pytest.approx(usual)
    with pytest.raises(ValueError, match="two clusters"):
        standard_error(np.ones(3), np.zeros(3, np.int64))


def hours(count: int) -> np.ndarray:
    return np.datetime64("2025-01-01T00", "s") + np.arange(count) * np.timedelta64(1, "h")


def autoregression(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    values = rng.standard_normal(count)
    for index in range(1, count):
        values[index] += phi * values[index - 1]
    return values


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
    assert better.p_value == pytest.approx(math.erfc(better.statistic / math.sqrt(2)), rel=1e-9)


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
    got = ConfidenceSet.of(bits, hours(600))
    assert got is not None
    assert got.included == ["good", "as good"]
    assert list(got.p_values) == ["worst", "good", "as good"]
    assert got.p_values["worst"] < got.size < max(got.p_values.values()) == 1.0
    assert ConfidenceSet.of({"alone": base}, hours(600)) is None


def test_models_with_equal_losses_share_one_answer() -> None:
    rng = np.random.default_rng(5)
    base = rng.normal(3.2, 0.5, 600)
    bits = {
        "a": base,
        "worse": base + 0.5 + rng.normal(0, 0.1, 600),
        "twin": base.copy(),
        "also": base + 0.0,
    }
    got = ConfidenceSet.of(bits, hours(600))
    assert got is not None
    assert got.included == ["a", "twin", "also"]
    assert got.p_values["a"] == got.p_values["twin"] == got.p_values["also"]
    assert list(got.p_values) == list(bits)
    assert ConfidenceSet.of({"a": base, "twin": base}, hours(600)) is None


def test_without_its_library_there_is_no_confidence_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arch", None)
    monkeypatch.setitem(sys.modules, "arch.bootstrap", None)
    assert ConfidenceSet.of({"a": np.ones(90), "b": np.zeros(90)}, hours(90)) is None
