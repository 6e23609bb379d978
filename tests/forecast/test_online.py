"""A live stream gives what a batch gives: inputs to the bit, probabilities within tolerance, after
a restart too.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from forecast_runs import TinyRun, untrained
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import assert_same_streams

from strategies import frame_of, price_pairs, random_bars
from vaiom.errors import ConfigError, DataError
from vaiom.features.inputs import inputs_of
from vaiom.features.rows import bars_of
from vaiom.forecast.asset_stream import SPARE_ROWS
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.stream import OnlineForecaster
from vaiom.market.folder import read_file


@pytest.fixture(scope="module", params=["learned positions", "an attention window"])
def forecaster(request: pytest.FixtureRequest, tiny: TinyRun) -> Forecaster:
    if request.param == "learned positions":
        return Forecaster.load(tiny.run)
    return untrained(tiny.corpus, positions="rotary", attention_window=8, num_layers=3)


def after(forecaster: Forecaster, bars: pl.DataFrame, symbol: str = "EURUSD") -> OnlineForecaster:
    """A stream that has taken these bars at once."""
    online = forecaster.online()
    online.extend(symbol, bars)
    return online


def test_five_thousand_real_bars_one_by_one(forecaster: Forecaster, shared_data: Path) -> None:
    bars = read_file(shared_data / "bars_1h" / "EURUSD.parquet").slice(90_000, 5_000)
    columns, _ = forecaster.rows(bars_of(bars))
    meta = forecaster.tokenizer.meta("EURUSD")
    inputs = inputs_of(forecaster.config, columns, meta)
    history = forecaster.predict_all(bars, "EURUSD")
    online = forecaster.online()
    worst = 0.0
    for number, bar in enumerate(bars.iter_rows(named=True)):
        dist = online.push("EURUSD", bar)
        if dist is None:
            assert number < MIN_BARS - 1
            continue
        if number == 2_500:  # a restart in the middle
            online = after(forecaster, bars.head(number + 1))
        at = number - MIN_BARS + 1
        worst = max(worst, float(np.abs(dist.probs - history.probs[at]).max()))
        assert dist.sigma == history.sigma[at]
        assert np.datetime64(dist.as_of, "s") == history.as_of[at]
        window = inputs_of(forecaster.config, online.window("EURUSD").columns, meta)
        first = max(0, number + 1 - forecaster.context)
        np.testing.assert_array_equal(window, inputs[first : number + 1])
    assert worst <= TOLERANCE


@settings(max_examples=40)
@given(price_pairs(min_rows=2, max_rows=100), st.data())
def test_pieces_of_any_size_leave_the_state_of_one_piece(
    forecaster: Forecaster, prices: Any, data: st.DataObject
) -> None:
    bars = frame_of(*prices)
    cut = data.draw(st.integers(1, len(bars) - 1))
    pieces = after(forecaster, bars.head(cut))
    for bar in bars.tail(-cut).iter_rows(named=True):
        pieces.push("EURUSD", bar, forecast=False)
    assert_same_streams(pieces, after(forecaster, bars))


def test_many_assets_keep_apart(forecaster: Forecaster) -> None:
    online = forecaster.online()
    sizes = {"EURUSD": 90, "XAUUSD": 70, "NEWONE": 50}
    frames = {symbol: random_bars(size, size) for symbol, size in sizes.items()}
    for row in range(90):
        for symbol, bars in frames.items():
            if row < len(bars):
                online.push(symbol, bars.row(row, named=True), forecast=False)
    together = online.forecast_many([*frames])
    for symbol, dist in together.items():
        expected = forecaster.predict(frames[symbol], symbol)
        np.testing.assert_allclose(dist.probs, expected.probs, atol=TOLERANCE)
    assert together["NEWONE"].unknown_asset
    now = frames["XAUUSD"]["Datetime"][-1] + timedelta(days=1)
    assert online.forecast("XAUUSD", now=now).stale


def test_forecasts_of_the_past_are_those_that_were_made(forecaster: Forecaster) -> None:
    """Also where the stream has fewer bars than are asked for."""
    bars = random_bars(90)
    for number, keep, size in ((20, 19, 90), (1, 0, 90), (500, 500, 60)):
        online = OnlineForecaster(forecaster, keep=keep)
        online.extend("EURUSD", bars.head(size))
        dists, rows = online.past("EURUSD", number)
        count = min(number, size)
        assert len(dists.probs) == len(rows["timestamp"]) == count
        for back in {1, min(count, size - MIN_BARS)}:
            expected = forecaster.predict(bars.head(size - back + 1), "EURUSD")
            np.testing.assert_allclose(dists.probs[-back], expected.probs, atol=TOLERANCE)
            assert rows["sigma20"][-back] == expected.sigma


def good_bar(hours: int = 0) -> dict[str, Any]:
    stamp = datetime(2024, 1, 1) + timedelta(hours=hours)
    return {"datetime": stamp, "open": 1, "high": 1.2, "low": 1, "close": 1.1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"datetime": datetime(2024, 1, 1)}, "repeated"),
        ({"datetime": datetime(2023, 1, 1)}, "back in time"),
        ({"datetime": datetime(2024, 1, 1, 0, 10)}, "another timeframe"),
        ({"datetime": "2024-01-01"}, "without a zone"),
        (
            {"datetime": datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))},
            "without a zone",
        ),
        ({"datetime": datetime(2024, 1, 1, 1, 0, 0, 1)}, "cannot be stored"),
        ({"datetime": datetime(2107, 1, 1)}, "cannot be stored"),
        ({"close": "1.1"}, "finite number"),
        ({"close": float("inf")}, "finite number"),
        ({"open": True}, "finite number"),
    ],
)
def test_a_bar_that_is_refused_changes_nothing(
    forecaster: Forecaster, changes: dict[str, Any], words: str
) -> None:
    online, undisturbed = forecaster.online(), forecaster.online()
    for each in (online, undisturbed):
        each.push("EURUSD", good_bar())
    with pytest.raises(DataError, match=words):
        online.push("EURUSD", good_bar(1) | changes)
    for each in (online, undisturbed):
        each.push("EURUSD", good_bar(1) | {"close": None})  # a missing price is allowed
    assert_same_streams(online, undisturbed)


def test_a_stream_takes_what_a_frame_takes_for_missing(forecaster: Forecaster) -> None:
    """pandas' own missing value, and a volume that is infinite, which no field reads."""
    number = pl.int_range(pl.len())
    bars = random_bars(60).with_columns(
        Close=pl.when(number != 40).then("Close"),
        Volume=pl.when(number != 50).then("Volume").otherwise(math.inf),
    )
    pushed = forecaster.online()
    for bar in bars.iter_rows(named=True):
        dist = pushed.push("EURUSD", bar | ({"Close": pd.NA} if bar["Close"] is None else {}))
    assert_same_streams(pushed, after(forecaster, bars))
    assert dist is not None
    np.testing.assert_allclose(dist.probs, forecaster.predict(bars, "EURUSD").probs, atol=1e-6)


def test_a_bar_may_call_its_stamp_as_files_do_and_carry_utc(forecaster: Forecaster) -> None:
    plain, other = forecaster.online(), forecaster.online()
    for hour, name in enumerate(("timestamp", "Time", "date")):
        bar = good_bar(hour)
        plain.push("EURUSD", bar)
        stamp = bar.pop("datetime").replace(tzinfo=UTC)
        other.push("EURUSD", {name: stamp, **bar})
    assert_same_streams(other, plain)


def test_the_moment_may_carry_utc_and_a_wrong_one_takes_no_bar(forecaster: Forecaster) -> None:
    bars = random_bars(60)
    online = after(forecaster, bars.head(59))
    last = bars.row(59, named=True)
    for wrong in ("2024-01-01", datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))):
        with pytest.raises(ConfigError, match="in UTC"):
            online.push("EURUSD", last, now=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="in UTC"):
            online.forecast("EURUSD", now=wrong)  # type: ignore[arg-type]
    now = last["Datetime"] + timedelta(hours=3)
    dist = online.push("EURUSD", last, now=now.replace(tzinfo=UTC))
    assert dist is not None
    assert dist.stale
    for again in (online.forecast("EURUSD", now=now), forecaster.predict(bars, "EURUSD", now=now)):
        assert again.notes == dist.notes


def test_what_a_user_does_with_a_forecast_leaves_the_model_alone(forecaster: Forecaster) -> None:
    online = after(forecaster, random_bars(60))
    dist = online.forecast("EURUSD")
    for array in (dist.probs, dist.edges, dist.shape.knots, forecaster.tokenizer.edges["gap"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.5
    again = online.forecast("EURUSD")
    np.testing.assert_array_equal(again.probs, dist.probs)
    assert again.edges[0] == -np.inf


def test_what_a_stream_cannot_do_yet(forecaster: Forecaster) -> None:
    online = forecaster.online()
    with pytest.raises(DataError, match="too few bars"):
        online.forecast("EURUSD")
    for name, words in (("low", "'Low' is missing"), ("datetime", "'Datetime' is missing")):
        bar = {each: value for each, value in good_bar().items() if each != name}
        with pytest.raises(DataError, match=words):
            online.push("EURUSD", bar)
    with pytest.raises(DataError, match="another timeframe"):
        online.extend("XAUUSD", random_bars(3, step=timedelta(minutes=10)))
    # Three bars may be days apart: long weekends, for all one knows.
    assert online.extend("XAUUSD", random_bars(3, step=timedelta(days=3))) == 3
    flat = frame_of(np.ones(60), np.ones(60))
    online.extend("EURUSD", flat)
    later = {"Datetime": flat["Datetime"][-1] + timedelta(hours=1)}
    assert online.push("EURUSD", flat.row(-1, named=True) | later) is None


def test_extend_takes_only_what_follows(forecaster: Forecaster) -> None:
    bars = random_bars(60)
    online = forecaster.online()
    assert online.extend("EURUSD", bars.head(40)) == 40
    with pytest.raises(DataError, match="back in time"):
        online.extend("EURUSD", bars)
    assert online.extend("EURUSD", bars.filter(pl.col("Datetime") > bars["Datetime"][39])) == 20


def test_copies_that_part_do_not_meet_again(forecaster: Forecaster) -> None:
    """Also where the rows that they share are copied; what was handed out stays what it was."""
    bars = random_bars(60 + SPARE_ROWS)
    other = bars.with_columns(pl.col("Close") * 1.001)
    one = after(forecaster, bars.head(40))
    for number in (*range(40, 45), *range(38 + SPARE_ROWS, 43 + SPARE_ROWS)):
        so_far = one.streams["EURUSD"].num_bars
        if number > so_far:
            one.extend("EURUSD", bars[so_far:number])
        window = one.window("EURUSD")
        expected = {name: column.copy() for name, column in window.columns.items()}
        two = one.copy()
        two.push("EURUSD", other.row(number, named=True))
        one.push("EURUSD", bars.row(number, named=True))
        for online, last in ((one, bars[number : number + 1]), (two, other[number : number + 1])):
            alone = after(forecaster, pl.concat([bars.head(number), last]))
            assert_same_streams(online, alone)
        for name, column in window.columns.items():
            np.testing.assert_array_equal(column, expected[name], err_msg=name)
