"""The extra fields of an asset's own bars: against the plain reference, in pieces, bounded, and
without a range.
"""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from corpus.full_bars import full_bars
from reference import extra_fields as reference
from strategies import random_bars
from vaiom.features.asset_state import AssetState
from vaiom.features.fields import EXTRA_LIMIT, OWN_FIELDS
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import RowColumns, bars_of, rows_of
from vaiom.market.folder import read_bars
from vaiom.simulation.market import MarketConfig, simulate

HOUR = timedelta(hours=1)


def fields_of(bars: pl.DataFrame, step: timedelta = HOUR) -> RowColumns:
    rows, _ = rows_of(bars_of(bars), AssetState.empty(step))
    return {name: rows[name] for name in OWN_FIELDS}


def require_reference(bars: pl.DataFrame, step: timedelta = HOUR) -> None:
    """Equal to what float16 resolves."""
    ours, theirs = fields_of(bars, step), reference.own_fields(bars.to_pandas(), pd.Timedelta(step))
    assert tuple(ours) == tuple(theirs.columns) == OWN_FIELDS
    for name, values in ours.items():
        assert values.dtype == np.float16
        assert_allclose(values.astype(float), theirs[name], rtol=6e-4, atol=1e-6, err_msg=name)


@settings(max_examples=40)
@given(full_bars())
def test_any_bars_give_what_the_reference_gives(bars: pl.DataFrame) -> None:
    require_reference(bars)


@pytest.mark.parametrize("step", [timedelta(minutes=10), timedelta(hours=4), timedelta(days=1)])
def test_other_timeframes(step: timedelta) -> None:
    require_reference(random_bars(1500, step=step), step)


def test_simulated_bars() -> None:
    for asset in simulate(MarketConfig(bars=4000)).values():
        require_reference(asset.bars)


CLOSES = {
    "all prices the Close": [pl.col("Close").alias(name) for name in ("Open", "High", "Low")],
    "no High and Low": [pl.lit(None, pl.Float64).alias(name) for name in ("High", "Low")],
}


@pytest.mark.parametrize("kind", CLOSES)
def test_closes_alone_have_the_ranges_that_their_returns_let_expect(kind: str) -> None:
    bars = random_bars(1500, step=HOUR)
    closes = bars.with_columns(CLOSES[kind])
    require_reference(closes)
    # From bars with ranges to bars of closes alone and back: a row knows the bars so far alone.
    require_reference(pl.concat([bars[:400], closes[400:]]))
    require_reference(pl.concat([closes[:400], bars[400:]]))


@pytest.mark.parametrize("kind", CLOSES)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_closes_alone_in_pieces_give_the_same_bits(kind: str, data: st.DataObject) -> None:
    bars = bars_of(random_bars(300).with_columns(CLOSES[kind]))
    whole, _ = rows_of(bars, AssetState.empty(HOUR))
    cut = data.draw(st.integers(15, 60))
    head, state = rows_of(BarArrays._make(x[:cut] for x in bars), AssetState.empty(HOUR))
    for name, values in head.items():
        assert_array_equal(values, whole[name][:cut], name)
    for row in range(cut, cut + 10):
        one, state = rows_of(BarArrays._make(x[row] for x in bars), state)
        for name, value in one.items():
            assert_array_equal(value, whole[name][row], name)


def test_real_bars(shared_data: Path) -> None:
    for symbol, bars in read_bars(shared_data / "bars_1h").items():
        if symbol in ("EURUSD", "XAUUSD", "GBPJPY"):
            require_reference(bars.tail(6000))


@settings(max_examples=60)
@given(full_bars(max_rows=200), st.data())
def test_a_history_in_pieces_gives_the_same_bits(bars: pl.DataFrame, data: st.DataObject) -> None:
    whole, end = rows_of(bars_of(bars), AssetState.empty(HOUR))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(bars)), max_size=6)))
    state = AssetState.empty(HOUR)
    pieces = []
    for start, stop in pairwise([0, *cuts, len(bars)]):
        stored = json.loads(json.dumps(state.to_json()))  # as a corpus keeps it
        piece, state = rows_of(bars_of(bars[start:stop]), AssetState.from_json(stored))
        pieces.append(piece)
    for name, values in whole.items():
        assert_array_equal(np.concatenate([piece[name] for piece in pieces]), values, name)
    assert state.to_json() == end.to_json()


def test_a_block_border_leaves_no_trace() -> None:
    bars = bars_of(random_bars(2000))
    whole, end = rows_of(bars, AssetState.empty(HOUR))
    in_blocks, after = rows_of(bars, AssetState.empty(HOUR), block_rows=77)
    for name, values in in_blocks.items():
        assert_array_equal(values, whole[name], name)
    assert after.to_json() == end.to_json()


@given(full_bars(max_rows=120), st.sampled_from([1e-300, 1e-12, 1e12, 1e250]))
def test_every_value_is_finite_and_bounded(bars: pl.DataFrame, factor: float) -> None:
    for scaled in (
        bars,
        bars.with_columns(pl.col("Volume") * factor),
        bars.with_columns(pl.col("High") * factor),
    ):
        for name, values in fields_of(scaled).items():
            assert np.isfinite(values).all(), name
            assert (np.abs(values) <= EXTRA_LIMIT).all(), name


ABSURD = {
    "no High": pl.lit(None, pl.Float64).alias("High"),
    "no Low": pl.lit(None, pl.Float64).alias("Low"),
    "High below Low": (pl.col("Low") * 0.999).alias("High"),
    "High below Close": (pl.max_horizontal("Open", "Close") * 0.9999).alias("High"),
    "Low above Open": (pl.min_horizontal("Open", "Close") * 1.0001).alias("Low"),
    "Low of zero": pl.lit(0.0).alias("Low"),
    "range beyond any return": (pl.col("Low") * 2.8).alias("High"),
}


@pytest.mark.parametrize("why", ABSURD)
def test_a_range_that_is_not_believed_feeds_nothing(why: str) -> None:
    bars = random_bars(400).with_columns(pl.col("High") * 1.001, pl.col("Low") * 0.999)
    rows = np.arange(31, 400, 7)
    is_bad = pl.Series(np.isin(np.arange(400), rows))
    value = ABSURD[why]
    name = value.meta.output_name()
    spoiled = bars.with_columns(pl.when(is_bad).then(value).otherwise(name).alias(name))
    without = [pl.when(is_bad).then(None).otherwise(name).alias(name) for name in ("High", "Low")]
    ours = fields_of(spoiled)
    for name, expected in fields_of(bars.with_columns(without)).items():
        assert_array_equal(ours[name], expected, name)
    assert not ours["range_z"][rows].any()
    assert not ours["close_location"][rows].any()
    assert fields_of(bars)["range_z"][rows].all()
