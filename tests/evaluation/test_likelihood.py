"""Bits per event and paired gains against plain recomputations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_market import Market

from vaiom.evaluation.likelihood import (
    MIN_PROBABILITY,
    asset_months,
    bits_by_group,
    class_ids,
    event_bits,
    paired_gain,
    tail_masks,
)

weights = st.lists(st.floats(0, 1), min_size=16, max_size=16).filter(lambda values: sum(values) > 1e-3)


@given(rows=st.lists(st.tuples(weights, st.integers(1, 16)), min_size=1, max_size=5))
def test_event_bits_equal_the_definition(rows: list[tuple[list[float], int]]) -> None:
    probs = np.array([np.array(values) / sum(values) for values, _ in rows])
    got = event_bits(probs, np.array([bucket for _, bucket in rows], np.uint8))
    for loss, row, (_, bucket) in zip(got, probs, rows, strict=True):
        raised = [max(MIN_PROBABILITY, p) for p in row]
        assert loss == pytest.approx(-math.log2(raised[bucket - 1] / sum(raised)), rel=1e-12, abs=1e-12)


def test_a_uniform_guess_costs_log2_of_the_buckets_and_an_impossible_bucket_is_finite() -> None:
    np.testing.assert_allclose(event_bits(np.full((1, 16), 1 / 16), np.array([3])), 4.0)
    assert event_bits(np.eye(16)[:1], np.array([2]))[0] == pytest.approx(-math.log2(MIN_PROBABILITY), rel=1e-9)


@pytest.mark.parametrize("bucket", [0, 17])
def test_an_event_without_a_bucket_is_refused(bucket: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.16"):
        class_ids(np.array([5, bucket]), 16)


def test_probabilities_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        event_bits(np.full((1, 16), np.nan), np.array([1]))


@given(
    events=st.lists(st.tuples(st.floats(0, 8), st.floats(0, 8), st.integers(0, 3)), min_size=2, max_size=40).filter(
        lambda events: len({cluster for _, _, cluster in events}) > 1
    )
)
def test_paired_gain_equals_a_plain_loop(events: list[tuple[float, float, int]]) -> None:
    model, baseline, clusters = (np.array(column) for column in zip(*events, strict=True))
    got = paired_gain(model, baseline, clusters)
    differences = [b - m for m, b, _ in events]
    mean = sum(differences) / len(events)
    sums: dict[int, float] = {}
    for difference, (_, _, cluster) in zip(differences, events, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + difference - mean
    error = math.sqrt(len(sums) / (len(sums) - 1) * sum(value**2 for value in sums.values())) / len(events)
    assert (got.num_events, got.num_clusters) == (len(events), len(sums))
    assert got.gain_bits == pytest.approx(mean, abs=1e-12)
    assert got.standard_error == pytest.approx(error, abs=1e-9)


def test_with_one_event_per_cluster_the_error_is_the_usual_one() -> None:
    gains = np.random.default_rng(0).standard_normal(500)
    got = paired_gain(np.zeros(500), gains, np.arange(500))
    assert got.standard_error == pytest.approx(gains.std(ddof=1) / math.sqrt(500))
    with pytest.raises(ValueError, match="two clusters"):
        paired_gain(np.zeros(3), np.ones(3), np.zeros(3, np.int64))


def test_asset_months_are_one_number_per_asset_and_month_of_the_target(market: Market) -> None:
    corpus, rows = market.corpus, market.rows
    months = corpus.target_timestamps[rows].astype("datetime64[M]")
    pairs = set(zip(corpus.meta[rows, 0].tolist(), months.tolist(), asset_months(corpus, rows).tolist(), strict=True))
    assert len(pairs) == len({number for _, _, number in pairs}) == len({pair[:2] for pair in pairs})


@given(events=st.lists(st.tuples(st.floats(0, 8), st.floats(0, 8), st.integers(1, 5)), min_size=1, max_size=30))
def test_means_by_group_equal_a_plain_loop(events: list[tuple[float, float, int]]) -> None:
    model, baseline, labels = (np.array(column) for column in zip(*events, strict=True))
    got = bits_by_group({"model": model, "frequency": baseline}, labels)
    assert [group.group for group in got] == [str(label) for label in sorted(set(labels.tolist()))]
    assert sum(group.num_events for group in got) == len(events)
    for group in got:
        own = [(m, b) for m, b, label in events if str(label) == group.group]
        assert group.bits["model"] == pytest.approx(sum(m for m, _ in own) / len(own))
        assert group.bits["frequency"] == pytest.approx(sum(b for _, b in own) / len(own))


def test_tails_are_the_first_and_last_four_buckets() -> None:
    masks = tail_masks(np.arange(1, 17))
    assert np.flatnonzero(masks["negative"]).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(masks["positive"]).tolist() == [12, 13, 14, 15]
    assert np.flatnonzero(masks["both"]).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
