"""The averages and the state that they leave: against a plain loop, in pieces, value by value and
at once.
"""

from __future__ import annotations

import math
from dataclasses import astuple
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from reference.ewma_loop import ewma_loop
from vaiom.errors import DataError
from vaiom.features.asset_state import AssetState
from vaiom.features.quantities import BarArrays, BarQuantities
from vaiom.features.recursions import Ewma, average, floored_root

values = st.lists(st.one_of(st.just(math.nan), st.floats(0, 1e-4), st.just(1e-6)), max_size=80)


def series_of(
    open_: np.ndarray, close: np.ndarray, state: AssetState | None = None
) -> BarQuantities:
    nothing = np.full(len(close), math.nan)
    with np.errstate(invalid="ignore"):
        return BarQuantities(
            BarArrays(np.arange(len(close)), open_, nothing, nothing, close, nothing),
            state or AssetState.empty(None),
        )


@given(values, st.sampled_from([20, 120]))
def test_the_average_equals_a_plain_loop(series: list[float], span: int) -> None:
    ours, _ = average(np.array(series, float), span, Ewma())
    assert_allclose(ours[1:], ewma_loop(series, span), rtol=1e-12, atol=1e-300)
    assert math.isnan(ours[0])


def test_the_scale_is_past_only_where_it_divides() -> None:
    close = np.array([1.0, 1.1, 1.21, 0.9])
    series = series_of(close, close)
    assert_array_equal(series.sigma20_prev[1:], series.sigma20[:-1])


def test_a_non_positive_price_is_a_missing_one() -> None:
    good = np.array([1.0, 1.1, 1.2, 1.3])
    for bad in (0.0, -1.0, math.nan):
        close = good.copy()
        close[2] = bad
        series = series_of(good, close)
        assert series.missing.tolist() == [False, False, True, False]
        assert np.isnan(series.log_ret[2:]).all()
        assert np.isfinite(series.sigma20[1:]).all()


@given(
    st.lists(st.one_of(st.floats(1e-12, 1.0), st.just(math.nan)), max_size=60),
    st.sampled_from([20, 120, 2400]),
    st.one_of(st.none(), st.tuples(st.floats(1e-12, 1.0), st.integers(0, 30))),
)
def test_few_values_and_many_go_through_the_same_bits(
    values: list[float], span: int, before: tuple[float, int] | None
) -> None:
    """Short series run value by value, long ones in Polars; a live value is one NumPy scalar."""
    state = Ewma(*before) if before else Ewma()
    few, after_few = average(np.array(values), span, state)
    many, after_many = average(np.array(values), span, state, long_series=-1)
    assert_array_equal(few, many)
    assert_array_equal(astuple(after_few), astuple(after_many))
    for value in np.array(values):
        _, state = average(value, span, state)
    assert_array_equal(astuple(state), astuple(after_many))


def test_a_state_survives_json_and_is_refused_when_damaged() -> None:
    state = AssetState.empty(timedelta(hours=4)).to_json()
    again = AssetState.from_json(state)
    assert again.to_json() == state
    assert again.slots is not None
    assert again.slots.step == 4 * 3600
    assert again.slots.level.shape == (3, 42)
    short = [[0] * 41] * 3
    damaged: list[dict[str, Any]] = [
        {"slots": {**state["slots"], "level": short}},
        {"slots": {**state["slots"], "count": short}},
        {"slots": {**state["slots"], "last_week": short}},
        {"slots": {**state["slots"], "level": "x"}},
        {"slots": {name: [] for name in state["slots"]}},
        {"scales": {**state["scales"], "ret20": {"mean": 1e-6, "num_missing": -1}}},
        {"scales": {**state["scales"], "ret20": {"mean": 1e-6, "num_missing": 10_000_000}}},
        {"scales": {}},
        {"close": "x"},
        {"num_clean": None},
        {"means": {}},
    ]
    for change in damaged:
        with pytest.raises(DataError, match="not the state of an asset"):
            AssetState.from_json({**state, **change})


def test_no_bars_leave_the_state_as_it_was() -> None:
    state = series_of(np.ones(3), np.array([1.0, 1.1, 1.2])).after
    assert series_of(np.empty(0), np.empty(0), state).after is state


def test_one_number_and_many_have_the_same_floor() -> None:
    many = np.array([math.nan, 0.0, 1e-20, 1e-16, 4e-6])
    expected = [math.nan, 1e-8, 1e-8, 1e-8, 2e-3]
    assert_allclose(floored_root(many), expected, rtol=1e-15)
    assert_allclose([floored_root(each) for each in many], expected, rtol=1e-15)
