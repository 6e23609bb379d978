"""The extra fields of an asset's own bars: against the plain reference, in pieces, bounded, and
without a range.
"""

from __future__ import annotations

import json
from datetime import timedelta
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
from vaiom.features.rows import RowColumns, bars_of, rows_of
from vaiom.market.folder import read_bars
from vaiom.simulation.market import MarketConfig, simulate

HOUR = timedelta(hours=1)
RANGE_FIELDS = ("range_z", "close_location", "range_vol20", "range_vol480", "next_slot_range")


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


def test_real_bars(shared_data: Path) -> None:
    for symbol, bars in read_bars(shared_data / "bars_1h").items():
        if symbol in ("EURUSD", "XAUUSD", "GBPJPY"):
            require_reference(bars.tail(6000))


@settings(max_examples=60)
@given(full_bars(max_rows=200), st.data())
def test_a_history_in_pieces_gives_the_same_bits(bars: pl.DataFrame, data: st.DataObject) -> None:
    whole, end = rows_of(bars_of(bars), AssetState.empty(HOUR))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(bars)), max_size=6)))
    state, pieces = AssetState.empty(HOUR), []
    for start, stop in zip([0, *cuts], [*cuts, len(bars)], strict=True):
        state = AssetState.from_json(
            json.loads(json.dumps(state.to_json()))
        )  # as a corpus keeps it
        piece, state = rows_of(bars_of(bars[start:stop]), state)
        assert len(piece["timestamp"]) == stop - start
        pieces.append(piece)
    for name in whole:
        assert_array_equal(np.concatenate([piece[name] for piece in pieces]), whole[name], name)
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
    "no High": ("High", pl.lit(None, pl.Float64)),
    "no Low": ("Low", pl.lit(None, pl.Float64)),
    "High below Low": ("High", pl.col("Low") * 0.999),
    "High below Close": ("High", pl.max_horizontal("Open", "Close") * 0.9999),
    "Low above Open": ("Low", pl.min_horizontal("Open", "Close") * 1.0001),
    "Low of zero": ("Low", pl.lit(0.0)),
    "range beyond any return": ("High", pl.col("Low") * 2.8),
}


@pytest.mark.parametrize("why", ABSURD)
def test_a_range_that_is_not_believed_feeds_nothing(why: str) -> None:
    bars = (
        random_bars(400)
        .with_columns(pl.col("High") * 1.001, pl.col("Low") * 0.999)
        .with_row_index("row")
    )
    bad = (pl.col("row") % 7 == 3) & (pl.col("row") > 30)
    column, value = ABSURD[why]
    spoiled = bars.with_columns(pl.when(bad).then(value).otherwise(column).alias(column))
    nothing = bars.with_columns(
        pl.when(bad).then(None).otherwise(name).alias(name) for name in ("High", "Low")
    )
    ours, expected, kind = (fields_of(frame.drop("row")) for frame in (spoiled, nothing, bars))
    rows = np.flatnonzero(bars.select(bad.alias("bad"))["bad"].to_numpy())
    for name in OWN_FIELDS:
        assert_array_equal(ours[name], expected[name], name)
    assert not ours["range_z"][rows].any()
    assert not ours["close_location"][rows].any()
    assert kind["range_z"][rows].all()


def test_bars_without_ranges_or_volumes_lack_those_fields_alone() -> None:
    bars = random_bars(3000)
    bare = bars.with_columns(
        pl.lit(None, pl.Float64).alias(name) for name in ("High", "Low", "Volume")
    )
    ours, kind = fields_of(bare), fields_of(bars)
    for name in OWN_FIELDS:
        if name in (*RANGE_FIELDS, "activity", "slot_activity"):
            assert not ours[name].any(), name
        else:
            assert_array_equal(ours[name], kind[name], name)
