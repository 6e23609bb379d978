"""Tables of pandas and Polars, in many spellings, hold the same bars."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from strategies import random_bars
from vaiom import Forecaster
from vaiom.errors import ConfigError, DataError

BARS = random_bars(200)
TABLE = pd.DataFrame({name: BARS[name].to_numpy() for name in BARS.columns})
INDEXED = TABLE.set_index("Datetime")
ZONED = INDEXED.tz_localize("UTC")
ARROW = ZONED.reset_index().convert_dtypes(dtype_backend="pyarrow")
IN_TOKYO = ARROW.assign(Datetime=ARROW["Datetime"].dt.tz_convert("Asia/Tokyo"))
SHORT_NAMES = dict(zip(BARS.columns, ("open_time", "o", "h", "l", "c", "v"), strict=True))
PRICES = INDEXED.rename_axis("Date")
YFINANCE = pd.concat(
    {"EURUSD=X": PRICES, "GBPUSD=X": 2 * PRICES}, axis=1, names=["Ticker", "Price"]
)


@pytest.mark.parametrize(
    "frame",
    [
        TABLE,
        TABLE.rename(columns=str.lower),
        INDEXED.drop(columns="Volume"),
        TABLE.astype({"Close": "Float64"}),
        ZONED,
        ARROW,
        BARS.rename(str.upper),
        BARS.lazy(),
        BARS.with_columns(pl.col("Datetime").dt.replace_time_zone("UTC"), other=1),
        *(BARS.rename({"Datetime": name}) for name in ("timestamp", "Time", "date")),
        BARS.rename(SHORT_NAMES),
        YFINANCE,
        YFINANCE.swaplevel(axis=1),
        YFINANCE[["EURUSD=X"]].tz_localize("GMT"),
    ],
)
def test_any_spelling_gives_the_same(forecaster: Forecaster, frame: object) -> None:
    wanted = forecaster.predict(BARS, "EURUSD").probs
    np.testing.assert_array_equal(forecaster.predict(frame, "EURUSD").probs, wanted)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (YFINANCE, r"several assets[\s\S]*EURUSD, GBPUSD"),
        (pd.concat({"a": pd.concat({"AUDUSD": TABLE}, axis=1)}, axis=1), "too many levels"),
        (IN_TOKYO, "the zone Asia/Tokyo"),
        (IN_TOKYO.set_index("Datetime"), "the zone Asia/Tokyo"),
        (ZONED.tz_convert("Asia/Tokyo"), "naive"),
        (TABLE.astype({"Datetime": str}), "to_datetime"),
        (TABLE.astype({"Open": str}), "numeric"),
        (pd.concat([TABLE, TABLE[["Close"]]], axis=1), "there twice"),
    ],
)
def test_what_is_no_table_of_one_asset_is_refused(
    forecaster: Forecaster, frame: pd.DataFrame, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        forecaster.predict(frame, "AUDUSD")


def test_a_missing_moment_of_pandas_is_refused(forecaster: Forecaster) -> None:
    with pytest.raises(ConfigError, match="moment"):
        forecaster.predict(BARS, "EURUSD", now=pd.NaT)
    with pytest.raises(DataError, match="stamp"):
        forecaster.online().push("EURUSD", {**BARS.row(0, named=True), "Datetime": pd.NaT})


PARTS = {symbol: random_bars(60, seed) for seed, symbol in enumerate(("XAUUSD", "EURUSD", "NEW"))}
LONG = pl.concat(
    frame.with_columns(item=pl.lit(symbol)).rename({"Datetime": "time"})
    for symbol, frame in PARTS.items()
).sort("time", maintain_order=True)
LONG_PANDAS = pd.DataFrame({name: LONG[name].to_numpy() for name in LONG.columns})
NAMES = {"id_column": "item", "timestamp_column": "time"}


def test_a_long_frame_gives_a_row_per_asset(forecaster: Forecaster) -> None:
    alone = forecaster.predict(PARTS)
    for bars in (LONG, LONG.lazy(), LONG.rename(str.lower)):
        made = forecaster.predict_df(bars, **NAMES, quantile_levels=[0.1, 0.9])
        assert made.columns == ["item", "time", "target_name", "predictions", "0.1", "0.9", "notes"]
        assert made["item"].to_list() == list(PARTS)
        for line in made.iter_rows(named=True):
            dist = alone[line["item"]]
            assert (line["time"], line["notes"]) == (dist.target_time, "; ".join(dist.notes))
            found = [line["0.1"], line["predictions"], line["0.9"]]
            np.testing.assert_allclose(found, dist.quantile([0.1, 0.5, 0.9]), rtol=1e-4)
    default = forecaster.predict_df(LONG.rename({"item": "symbol", "time": "Datetime"}))
    assert default.columns[4:-1] == ["0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"]
    assert forecaster.predict_df(LONG.head(0), **NAMES).columns == [
        "item",
        "time",
        *default.columns[2:],
    ]


def test_a_long_frame_of_pandas_gives_one_of_pandas(forecaster: Forecaster) -> None:
    wanted = forecaster.predict_df(LONG, **NAMES).to_dicts()
    with_unused = pd.Categorical(LONG_PANDAS["item"], categories=["GBPUSD", *PARTS])
    for bars in (
        LONG_PANDAS,
        LONG_PANDAS.set_index("time"),
        LONG_PANDAS.set_index("time", drop=False),
        LONG_PANDAS.assign(item=with_unused),
    ):
        with warnings.catch_warnings(action="error"):
            made = forecaster.predict_df(bars, **NAMES)
        assert isinstance(made, pd.DataFrame)
        assert made.to_dict("records") == wanted
    empty = forecaster.predict_df(LONG_PANDAS.head(0), **NAMES)
    assert (len(empty), list(empty.columns)) == (0, list(made.columns))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (LONG.drop("item"), "'item' is missing"),
        (LONG.with_columns(Datetime="time"), "'Datetime' is there twice"),
        (LONG.with_columns(item=pl.lit("a/b")), "not usable as a symbol"),
        (LONG.with_columns(item=pl.lit(None, pl.String)), "a symbol is missing"),
        (LONG.reverse(), "goes back in time"),
        (LONG_PANDAS.drop(columns="time"), "'time' is missing"),
        (LONG_PANDAS.assign(Datetime=LONG_PANDAS["time"]), "'Datetime' is there twice"),
        (pd.concat([LONG_PANDAS, LONG_PANDAS[["item"]]], axis=1), "'item' is there twice"),
        (LONG_PANDAS.assign(item=LONG_PANDAS["item"].mask(LONG_PANDAS.index == 5)), "is missing"),
        (LONG_PANDAS.assign(item=None), "a symbol is missing"),
        ([1], "not a table"),
    ],
)
def test_a_long_frame_without_sense_is_refused(
    forecaster: Forecaster, frame: object, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        forecaster.predict_df(frame, **NAMES)
