"""Bits per event and their means against plain recomputations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.evaluation.scores import (
    MIN_PROBABILITY,
    bits_by_group,
    class_ids,
    event_bits,
    tail_masks,
)

weights = st.lists(st.floats(0, 1), min_size=16, max_size=16).filter(
    lambda values: sum(values) > 1e-3
)


@given(rows=st.lists(st.tuples(weights, st.integers(1, 16)), min_size=1, max_size=5))
def test_event_bits_equal_the_definition(rows: list[tuple[list[float], int]]) -> None:
    probs = np.array([np.array(values) / sum(values) for values, _ in rows])
    got = event_bits(probs, np.array([bucket for _, bucket in rows], np.uint8))
    for loss, row, (_, bucket) in zip(got, probs, rows, strict=True):
        raised = [max(MIN_PROBABILITY, p) for p in row]
        assert loss == pytest.approx(
            -math.log2(raised[bucket - 1] / sum(raised)), rel=1e-12, abs=1e-12
        )


def test_a_uniform_guess_costs_log2_of_the_buckets_and_an_impossible_bucket_is_finite() -> None:
    np.testing.assert_allclose(event_bits(np.full((1, 16), 1 / 16), np.array([3])), 4.0)
    assert event_bits(np.eye(16)[:1], np.array([2]))[0] == pytest.approx(
        -math.log2(MIN_PROBABILITY), rel=1e-9
    )


@pytest.mark.parametrize("bucket", [0, 17])
def test_an_event_without_a_bucket_is_refused(bucket: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.16"):
        class_ids(np.array([5, bucket]), 16)


def test_probabilities_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        event_bits(np.full((1, 16), np.nan), np.array([1]))


@given(
    events=st.lists(
        st.tuples(st.floats(0, 8), st.floats(0, 8), st.integers(1, 5)), min_size=1, max_size=30
    )
)
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
