"""One live bar, number by number, gives the bits of the columns that build a corpus."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forecast_runs import WORLDLY_FIELDS, TinyRun, untrained
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.full_bars import full_bars
from strategies import random_bars
from vaiom.features.rows import BarFeatures, bars_of
from vaiom.forecast.bars import parse_bar
from vaiom.market.folder import read_file


def assert_same_bits(maker: BarFeatures, bars: pl.DataFrame) -> None:
    wanted, after = maker(bars_of(bars))
    state, last, rows = maker.start(), None, []
    for bar in bars.iter_rows(named=True):
        row, state = maker(parse_bar(bar, "EURUSD"), state, last)
        rows.append(row)
        last = int(row["timestamp"][-1])
    for name, column in wanted.items():
        made = np.concatenate([row[name] for row in rows])
        assert made.dtype == column.dtype, name
        np.testing.assert_array_equal(made, column, err_msg=name)
    assert rows[0].keys() == wanted.keys()
    assert json.dumps(state.to_json(), allow_nan=False) == json.dumps(
        after.to_json(), allow_nan=False
    )


@pytest.mark.parametrize("fields", [(), WORLDLY_FIELDS, ("ret_z", "log_wait")])
def test_wild_bars(tiny: TinyRun, fields: tuple[str, ...]) -> None:
    maker = untrained(tiny.corpus, fields=fields).rows

    @settings(max_examples=40)
    @given(full_bars(max_rows=150))
    def check(bars: pl.DataFrame) -> None:
        assert_same_bits(maker, bars)

    check()


def test_pieces_make_the_rows_of_the_whole(tiny: TinyRun) -> None:
    maker = untrained(tiny.corpus, fields=WORLDLY_FIELDS).rows

    @settings(max_examples=40)
    @given(full_bars(max_rows=60), st.data())
    def check(bars: pl.DataFrame, data: st.DataObject) -> None:
        cut = data.draw(st.integers(0, len(bars)))
        whole, _ = maker(bars_of(bars))
        first, between = maker(bars_of(bars.head(cut)))
        last = int(first["timestamp"][-1]) if cut else None
        second, _ = maker(bars_of(bars.tail(len(bars) - cut)), between, last)
        for name, column in whole.items():
            np.testing.assert_array_equal(
                np.concatenate([first[name], second[name]]), column, err_msg=name
            )

    check()


@pytest.mark.parametrize("symbol", ["EURUSD", "XAGUSD"])
def test_real_bars_with_holes(tiny: TinyRun, shared_data: Path, symbol: str) -> None:
    maker = untrained(tiny.corpus, fields=WORLDLY_FIELDS).rows
    bars = read_file(shared_data / "bars_1h" / f"{symbol}.parquet").slice(70_000, 6_000)
    draw = np.random.default_rng(0)
    columns = {
        name: pl.Series(
            name, np.where(draw.random(len(bars)) < 0.01, np.nan, bars[name].to_numpy())
        )
        for name in ("Open", "High", "Low", "Close", "Volume")
    }
    gone = (draw.random(len(bars)) < 0.02).tolist()
    assert_same_bits(maker, bars.with_columns(**columns).filter(~pl.Series(gone)))


def test_slots_of_finer_bars(tiny: TinyRun) -> None:
    forecaster = untrained(tiny.corpus, fields=WORLDLY_FIELDS)
    maker = BarFeatures(forecaster.config.input_fields, forecaster.tokenizer.edges, "10min")
    assert_same_bits(maker, random_bars(3_000, step=timedelta(minutes=10)))
