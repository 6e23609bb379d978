"""The block bootstrap against a plain recomputation, and its coverage where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import bootstrap as bench
from vaiom.errors import DataError, VaiomError
from vaiom.evaluation import bootstrap
from vaiom.evaluation.bootstrap import block_inference, block_sums, paired_inference, resample

block_lists = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=7), min_size=2, max_size=6)


@settings(max_examples=30)
@given(blocks=block_lists, seed=st.integers(0, 5))
def test_intervals_equal_a_plain_recomputation(blocks: list[list[float]], seed: int) -> None:
    gains = np.concatenate(blocks)
    # The numbers of blocks need neither be dense nor in order.
    numbers = np.repeat([97 - 7 * index for index in range(len(blocks))], [len(block) for block in blocks])
    got = block_inference(gains, numbers, replicates=40, seed=seed)
    rng = np.random.default_rng(seed)
    in_order = blocks[::-1]
    means, rates = [], []
    for _ in range(40):
        drawn = [in_order[index] for index in rng.integers(0, len(blocks), len(blocks))]
        events = [gain for block in drawn for gain in block]
        means.append(sum(events) / len(events))
        rates.append(sum(np.bincount(np.zeros(len(block), int), block)[0] > 0 for block in drawn) / len(drawn))
    assert got.num_blocks == len(blocks)
    assert got.interval == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=1e-12)
    assert got.win_rate_interval == pytest.approx(np.percentile(rates, [2.5, 97.5]), abs=1e-12)
    assert got.win_rate == got.block_wins / len(blocks)


def test_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, sizes = np.arange(-3.0, 4.0), np.arange(1.0, 8.0)
    whole = resample(sums, sizes, 101, 17)
    monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", 20)
    parts = resample(sums, sizes, 101, 17)
    np.testing.assert_array_equal(whole.gain_bits, parts.gain_bits)
    np.testing.assert_array_equal(whole.win_rate, parts.win_rate)


def test_paired_inference_equals_its_definitions() -> None:
    rng = np.random.default_rng(1)
    count = 300
    model, baseline = rng.random(count), rng.random(count) + 0.05
    buckets = rng.integers(1, 17, count)
    symbols = rng.choice(["AAA", "BBB", "CCC"], count)
    times = np.datetime64("2024-11-20T00", "s") + rng.integers(0, 80 * 24, count) * np.timedelta64(1, "h")
    got = paired_inference(model, baseline, buckets, symbols, times)
    gains = baseline - model
    months = np.array([str(time)[:7] for time in times])
    pairs = {(symbol, month) for symbol, month in zip(symbols, months, strict=True)}
    wins = sum(gains[(symbols == symbol) & (months == month)].mean() > 0 for symbol, month in pairs)
    assert (got.asset_months.num_blocks, got.asset_months.block_wins) == (len(pairs), wins)
    assert got.months.num_blocks == len(set(months))
    assert got.gain_bits == pytest.approx(gains.mean())
    assert got.asset_months.interval is not None
    assert got.asset_months.interval[0] < got.gain_bits < got.asset_months.interval[1]
    tails = {"negative": buckets <= 4, "positive": buckets >= 13, "both": (buckets <= 4) | (buckets >= 13)}
    for name, mask in tails.items():
        assert got.tails[name].num_events == mask.sum()
        assert got.tails[name].gain_bits == pytest.approx(gains[mask].mean())


def coverage(as_blocks: bool, trials: int = 300) -> float:
    """How often the interval holds the true mean of events with a common part in each of 66 unequal blocks."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(5, 40, 66)
    blocks = np.repeat(np.arange(66), sizes)
    covered = 0
    for trial in range(trials):
        gains = 0.03 + 0.3 * rng.standard_normal(66)[blocks] + rng.standard_normal(len(blocks))
        numbers = blocks if as_blocks else np.arange(len(blocks))
        interval = block_inference(gains, numbers, replicates=400, seed=trial).interval
        assert interval is not None
        covered += interval[0] <= 0.03 <= interval[1]
    return covered / trials


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    assert 0.90 <= coverage(as_blocks=True) <= 0.985


def test_events_taken_as_independent_would_cover_too_rarely() -> None:
    assert coverage(as_blocks=False, trials=60) < 0.85


def test_a_single_block_has_a_gain_but_no_interval() -> None:
    times = np.full(3, np.datetime64("2025-01-05T10", "s"))
    got = paired_inference(np.zeros(3), np.ones(3), np.full(3, 8), np.full(3, "EURUSD"), times)
    assert (got.gain_bits, got.asset_months.interval, got.months.win_rate_interval) == (1.0, None, None)
    assert got.tails["both"].gain_bits is None


def test_losses_of_different_events_are_refused() -> None:
    times = np.full(3, np.datetime64("2025-01-05T10", "s"))
    with pytest.raises(DataError, match="not of the same events"):
        paired_inference(np.zeros(3), np.ones(2), np.full(3, 8), np.full(3, "EURUSD"), times)
    with pytest.raises(DataError, match="no event"):
        paired_inference(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, str), times[:0])


def test_the_benchmark_compares_what_it_says() -> None:
    measured = bench.measure(num_blocks=5, num_events=60, replicates=50, repeats=1)
    assert measured.equal == "mean and win-rate of all 50 replicates, to 1e-12"
    ours = resample(*block_sums(np.arange(6.0), np.array([0, 0, 1, 1, 1, 2])), 10, 1)
    other = resample(*block_sums(np.arange(6.0), np.array([0, 0, 1, 1, 1, 2])), 10, 2)
    with pytest.raises(VaiomError, match="differs by"):
        bench.require_equal(ours, other)
