"""Bootstrap, errors and tests between models against plain recomputations; their levels where the
truth is known.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import bootstrap as bench
from vaiom.errors import DataError, VaiomError
from vaiom.evaluation import inference
from vaiom.evaluation.inference import (
    ConfidenceSet,
    asset_months,
    block_sums,
    bootstrap_blocks,
    compare_seeds,
    diebold_mariano,
    mean_by_time,
    newey_west_variance,
    paired_gain,
    resample,
    standard_error,
)
from vaiom.evaluation.scores import ScoredEvents

ONE_HOUR = np.full(3, np.datetime64("2025-01-05T10", "s"))

block_lists = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=7), min_size=2, max_size=6)


@settings(max_examples=30)
@given(blocks=block_lists, seed=st.integers(0, 5))
def test_intervals_equal_a_plain_recomputation(blocks: list[list[float]], seed: int) -> None:
    gains = np.concatenate(blocks)
    # The numbers of blocks need neither be dense nor in order.
    numbers = np.repeat(
        [97 - 7 * index for index in range(len(blocks))], [len(block) for block in blocks]
    )
    got = bootstrap_blocks(gains, numbers, replicates=40, seed=seed)
    rng = np.random.default_rng(seed)
    in_order = blocks[::-1]
    means, rates = [], []
    for _ in range(40):
        drawn = [in_order[index] for index in rng.integers(0, len(blocks), len(blocks))]
        events = [gain for block in drawn for gain in block]
        means.append(sum(events) / len(events))
        rates.append(
            sum(np.bincount(np.zeros(len(block), int), block)[0] > 0 for block in drawn)
            / len(drawn)
        )
    assert got.num_blocks == len(blocks)
    assert got.interval == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=1e-12)
    assert got.win_rate_interval == pytest.approx(np.percentile(rates, [2.5, 97.5]), abs=1e-12)
    assert got.win_rate == got.block_wins / len(blocks)


def test_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, sizes = np.arange(-3.0, 4.0), np.arange(1.0, 8.0)
    whole = resample(sums, sizes, 101, 17)
    monkeypatch.setattr(inference, "_DRAWS_AT_ONCE", 20)
    made: list[int] = []

    class Counted:
        def __init__(self, seed: int, make: Any = np.random.default_rng) -> None:
            self.rng = make(seed)

        def integers(self, low: int, high: int, size: tuple[int, int]) -> np.ndarray:
            made.append(size[0] * size[1])
            return self.rng.integers(low, high, size)

    monkeypatch.setattr(np.random, "default_rng", Counted)
    parts = resample(sums, sizes, 101, 17)
    np.testing.assert_array_equal(whole, parts)
    assert (max(made), sum(made)) == (14, 7 * 101)


def test_a_paired_gain_equals_its_definitions() -> None:
    rng = np.random.default_rng(1)
    count = 300
    model, baseline = rng.random(count), rng.random(count) + 0.05
    buckets = rng.integers(1, 17, count)
    symbols = rng.choice(["AAA", "BBB", "CCC"], count)
    times = np.datetime64("2024-11-20T00", "s") + rng.integers(0, 80 * 24, count) * np.timedelta64(
        1, "h"
    )
    bits = {"model": model, "markov": baseline}
    got = paired_gain(
        ScoredEvents(symbols=symbols, target_times=times, buckets=buckets, bits=bits), "markov"
    )
    gains = baseline - model
    months = np.array([str(time)[:7] for time in times])
    pairs = {(symbol, month) for symbol, month in zip(symbols, months, strict=True)}
    wins = sum(gains[(symbols == symbol) & (months == month)].mean() > 0 for symbol, month in pairs)
    assert (got.asset_months.num_blocks, got.asset_months.block_wins) == (len(pairs), wins)
    assert got.months.num_blocks == len(set(months))
    assert got.gain_bits == pytest.approx(gains.mean())
    assert got.asset_months.interval is not None
    assert got.asset_months.interval[0] < got.gain_bits < got.asset_months.interval[1]
    tails = {
        "negative": buckets <= 4,
        "positive": buckets >= 13,
        "both": (buckets <= 4) | (buckets >= 13),
    }
    for name, mask in tails.items():
        assert got.tails[name].num_events == mask.sum()
        assert got.tails[name].gain_bits == pytest.approx(gains[mask].mean())


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


@given(
    events=st.lists(st.tuples(st.floats(-8, 8), st.integers(0, 3)), min_size=2, max_size=40).filter(
        lambda events: len({cluster for _, cluster in events}) > 1
    )
)
def test_the_clustered_standard_error_equals_a_plain_loop(events: list[tuple[float, int]]) -> None:
    gains, clusters = (np.array(column) for column in zip(*events, strict=True))
    mean = sum(gain for gain, _ in events) / len(events)
    sums: dict[int, float] = {}
    for gain, cluster in events:
        sums[cluster] = sums.get(cluster, 0.0) + gain - mean
    error = math.sqrt(len(sums) / (len(sums) - 1) * sum(value**2 for value in sums.values())) / len(
        events
    )
    assert standard_error(gains, clusters) == pytest.approx(error, abs=1e-9)


def test_with_one_event_per_cluster_the_error_is_the_usual_one() -> None:
    gains = np.random.default_rng(0).standard_normal(500)
    assert standard_error(gains, np.arange(500)) == pytest.approx(
        gains.std(ddof=1) / math.sqrt(500)
    )
    with pytest.raises(ValueError, match="two clusters"):
        standard_error(np.ones(3), np.zeros(3, np.int64))


def test_asset_months_are_one_number_per_asset_and_month_of_the_target() -> None:
    rng = np.random.default_rng(1)
    symbols = rng.choice(["AAA", "BBB", "CCC"], 400)
    times = np.datetime64("2024-11-20T00", "s") + rng.integers(0, 200 * 24, 400) * np.timedelta64(
        1, "h"
    )
    months = times.astype("datetime64[M]")
    pairs = set(
        zip(symbols.tolist(), months.tolist(), asset_months(symbols, times).tolist(), strict=True)
    )
    assert (
        len(pairs) == len({number for _, _, number in pairs}) == len({pair[:2] for pair in pairs})
    )


def hours(count: int) -> np.ndarray:
    return np.datetime64("2025-01-01T00", "s") + np.arange(count) * np.timedelta64(1, "h")


def autoregression(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    values = rng.standard_normal(count)
    for index in range(1, count):
        values[index] += phi * values[index - 1]
    return values


def test_losses_of_one_time_are_averaged_in_the_order_of_time() -> None:
    times = hours(3)[[2, 0, 2, 1]]
    np.testing.assert_array_equal(
        mean_by_time(np.array([1.0, 5.0, 3.0, 7.0]), times), [5.0, 7.0, 2.0]
    )


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
    assert better.p_value == pytest.approx(math.erfc(better.statistic / math.sqrt(2)), rel=1e-9)


def test_models_that_never_differ_have_no_statistic() -> None:
    same = diebold_mariano(np.ones(50), np.ones(50), hours(50))
    assert (same.statistic, same.p_value, same.mean_gain_bits) == (None, None, 0.0)


def test_the_confidence_set_keeps_the_best_and_drops_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 200)
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


def test_models_with_equal_losses_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 200)
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


def test_seeds_are_summarised_apart_from_the_sample() -> None:
    rng = np.random.default_rng(3)
    blocks = np.repeat(np.arange(9), 20)
    baseline = 3.3 + rng.standard_normal(180)
    runs = {
        name: baseline - gain + 0.1 * rng.standard_normal(180)
        for name, gain in (("a", 0.2), ("b", 0.3), ("c", -1))
    }
    days = (np.datetime64("2024-01") + blocks).astype("datetime64[s]")
    events = ScoredEvents(
        symbols=np.full(180, "A"),
        target_times=days,
        buckets=np.ones(180, np.uint8),
        bits={"plain": baseline},
    )
    summaries = compare_seeds(events, runs)
    assert summaries is not None
    got = summaries["plain"]
    means = [float(losses.mean()) for losses in runs.values()]
    assert got.seed_sd_bits == pytest.approx(np.std(means, ddof=1))
    assert got.mean_gain_bits == pytest.approx(baseline.mean() - np.mean(means))
    gains = baseline - (runs["a"] + runs["b"] + runs["c"]) / 3
    sums = [(gains - gains.mean())[blocks == block].sum() for block in range(9)]
    assert got.sampling_error_bits == pytest.approx(
        math.sqrt(9 / 8 * sum(s * s for s in sums)) / 180
    )
    assert got.seeds_that_win == 2
    assert got.average.num_blocks == 9
