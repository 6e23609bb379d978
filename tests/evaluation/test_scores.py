"""Bits per event and their means against plain recomputations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.evaluation.scores import (
    MIN_PROBABILITY,
    class_ids,
    event_bits,
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


@pytest.mark.parametrize("bucket", [0, 17])
def test_an_event_without_a_bucket_is_refused(bucket: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.16"):
        class_ids(np.array([5, bucket]), 16)


def test_probabilities_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        event_bits(np.full((1, 16), np.nan), np.array([1]))
