from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vaiom.errors import DataError
from vaiom.events.fit import bucket_of, fit_regime_edges, fit_signed_edges

any_float = st.floats(allow_nan=True, allow_infinity=True)


@given(arrays(float, st.integers(30, 200), elements=st.floats(-12, 12)), arrays(float, 20, elements=any_float))
def test_a_value_lies_in_its_bucket(train: np.ndarray, values: np.ndarray) -> None:
    if not (np.abs(train) < 2).any():
        return
    edges = fit_signed_edges(np.sort(train))
    assert edges[0] == -math.inf
    assert edges[-1] == math.inf
    assert (np.diff(edges) > 0).all()
    for value, bucket in zip(values, bucket_of(edges, values), strict=True):
        if math.isfinite(value):
            assert edges[bucket - 1] < value <= edges[bucket]
        else:
            assert bucket == 0


def test_edges_are_the_tails_and_the_inner_quantiles() -> None:
    values = np.linspace(-4, 4, 8001)
    inner = np.quantile(values[(values > -2) & (values < 2)], [0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9])
    expected = [-math.inf, -8, -5, -3, -2, *inner, 2, 3, 5, 8, math.inf]
    np.testing.assert_allclose(fit_signed_edges(values), expected, atol=1e-15)


def test_repeated_quantiles_collapse_as_in_the_papers_gap_map() -> None:
    values = np.concatenate([np.zeros(700), np.linspace(-1.9, 1.9, 300)])
    assert len(fit_signed_edges(np.sort(values))) - 1 < 16


def test_the_cutoffs_themselves_stay_outside_the_quantiles() -> None:
    inside = np.linspace(-1, 1, 101)
    np.testing.assert_array_equal(fit_signed_edges(np.array([-2.0, *inside, 2.0, 2.0])), fit_signed_edges(inside))


def test_regimes_are_plain_quantiles() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    np.testing.assert_array_equal(fit_regime_edges(values)[1:-1], np.quantile(values, [0.2, 0.4, 0.6, 0.8]))


def test_nothing_to_fit_on_is_an_error_with_a_way_out() -> None:
    with pytest.raises(DataError, match="--train-end"):
        fit_signed_edges(np.array([5.0]))
