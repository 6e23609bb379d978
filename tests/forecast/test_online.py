"""A live stream gives what a batch gives: inputs to the bit, probabilities within tolerance, after
a restart too.
"""

from __future__ import annotations

import json
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

from strategies import frame_of, price_pairs, random_bars
from vaiom.corpus.rows import bars_of, meta_of
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import inputs_of
from vaiom.forecast import stream as online_module
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_file


@pytest.fixture(scope="module", params=["learned positions", "an attention window"])
def forecaster(request: pytest.FixtureRequest, tiny: TinyRun) -> Forecaster:
    if request.param == "learned positions":
        return Forecaster.load(tiny.run)
    return untrained(tiny.corpus, positions="rotary", attention_window=8, num_layers=3)


def test_five_thousand_real_bars_one_by_one(forecaster: Forecaster, shared_data: Path) -> None:
    bars = read_file(shared_data / "bars_1h" / "EURUSD.parquet").slice(90_000, 5_000)
    columns, _ = forecaster.rows(bars_of(bars))
    meta = meta_of(forecaster.tokenizer, "EURUSD")
    batch_inputs = inputs_of(forecaster.config, columns, meta)
    history = forecaster.predict_all(bars, "EURUSD")
    online, worst = forecaster.online(), 0.0
    for number, bar in enumerate(bars.iter_rows(named=True)):
        dist = online.push("EURUSD", bar)
        if dist is None:
            assert number < MIN_BARS - 1
            continue
        if number == 2_500:  # a restart in the middle
            state = json.loads(json.dumps(online.to_json(), allow_nan=False))
            online = forecaster.online()
            online.restore(state)
        at = number - MIN_BARS + 1
        worst = max(worst, float(np.abs(dist.probs - history.probs[at]).max()))
        assert dist.sigma == history.sigma[at]
        assert np.datetime64(dist.as_of, "s") == history.as_of[at]
        window = online.window("EURUSD").columns
        first = max(0, number + 1 - forecaster.context)
        np.testing.assert_array_equal(
            inputs_of(forecaster.config, window, meta), batch_inputs[first : number + 1]
        )
    assert worst <= TOLERANCE


@settings(max_examples=40)
@given(price_pairs(min_rows=2, max_rows=100), st.data())
def test_pieces_of_any_size_leave_the_state_of_one_piece(
    forecaster: Forecaster, prices: Any, data: st.DataObject
) -> None:
    bars = frame_of(*prices)
    whole, pieces = forecaster.online(), forecaster.online()
    whole.extend("EURUSD", bars)
    cut = data.draw(st.integers(1, len(bars) - 1))
    pieces.extend("EURUSD", bars.head(cut))
    restarted = forecaster.online()
    restarted.restore(json.loads(json.dumps(pieces.to_json(), allow_nan=False)))
    for bar in bars.tail(-cut).iter_rows(named=True):
        restarted.push("EURUSD", bar, forecast=False)
    assert restarted.to_json() == whole.to_json()


def test_many_assets_keep_apart(forecaster: Forecaster) -> None:
    online = forecaster.online()
    frames = {
        "EURUSD": random_bars(90, 1),
        "XAUUSD": random_bars(70, 2),
        "NEWONE": random_bars(50, 3),
    }
    for row in range(90):
        for symbol, bars in frames.items():
            if row < len(bars):
                online.push(symbol, bars.row(row, named=True), forecast=False)
    together = forecaster.forecast([online.window(symbol) for symbol in frames])
    for dist, (symbol, bars) in zip(together, frames.items(), strict=True):
        np.testing.assert_allclose(
            dist.probs, forecaster.predict(bars, symbol).probs, atol=TOLERANCE
        )
    assert together[2].unknown_asset
    now = frames["XAUUSD"]["Datetime"][-1] + timedelta(days=1)
    assert online.forecast("XAUUSD", now=now).stale


def good_bar(hours: int = 0) -> dict[str, Any]:
    return {
        "datetime": datetime(2024, 1, 1) + timedelta(hours=hours),
        "open": 1,
        "high": 1.2,
        "low": 1,
        "close": 1.1,
    }


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
    online = forecaster.online()
    online.push("EURUSD", good_bar())
    before = online.to_json()
    with pytest.raises(DataError, match=words):
        online.push("EURUSD", good_bar(1) | changes)
    assert online.to_json() == before
    online.push("EURUSD", good_bar(1) | {"close": None})  # missing is no crime


def test_a_stream_takes_what_a_frame_takes_for_missing(forecaster: Forecaster) -> None:
    """pandas' own missing value, and a volume that is infinite, which no field reads."""
    bars, pushed = random_bars(60), forecaster.online()
    odd = bars.with_row_index().with_columns(
        Close=pl.when(pl.col("index") != 40).then("Close"),
        Volume=pl.when(pl.col("index") != 50).then("Volume").otherwise(math.inf),
    )
    for bar in odd.drop("index").iter_rows(named=True):
        dist = pushed.push("EURUSD", bar | ({"Close": pd.NA} if bar["Close"] is None else {}))
    whole = forecaster.online()
    whole.extend("EURUSD", odd.drop("index"))
    assert pushed.to_json() == whole.to_json()
    assert dist is not None
    np.testing.assert_allclose(
        dist.probs, forecaster.predict(odd.drop("index"), "EURUSD").probs, atol=1e-6
    )


def test_a_bar_may_call_its_stamp_as_files_do_and_carry_utc(forecaster: Forecaster) -> None:
    plain, other = forecaster.online(), forecaster.online()
    for hour in range(3):
        bar = good_bar(hour)
        plain.push("EURUSD", bar)
        stamp = bar.pop("datetime").replace(tzinfo=UTC)
        other.push("EURUSD", {("timestamp", "Time", "date")[hour]: stamp, **bar})
    assert other.to_json() == plain.to_json()


def test_the_moment_may_carry_utc_and_a_wrong_one_takes_no_bar(forecaster: Forecaster) -> None:
    bars = random_bars(60)
    online = forecaster.online()
    online.extend("EURUSD", bars.head(59))
    before, last = online.to_json(), bars.row(59, named=True)
    for wrong in ("2024-01-01", datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))):
        for push in (
            lambda now: online.push("EURUSD", last, now=now),
            lambda now: online.forecast("EURUSD", now=now),
        ):
            with pytest.raises(ConfigError, match="in UTC"):
                push(wrong)
        assert online.to_json() == before
    now = last["Datetime"] + timedelta(hours=3)
    dist = online.push("EURUSD", last, now=now.replace(tzinfo=UTC))
    assert dist is not None
    assert dist.stale
    for again in (online.forecast("EURUSD", now=now), forecaster.predict(bars, "EURUSD", now=now)):
        assert again.notes == dist.notes


def test_what_a_user_does_with_a_forecast_leaves_the_model_alone(forecaster: Forecaster) -> None:
    bars = random_bars(60)
    online = forecaster.online()
    online.extend("EURUSD", bars)
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
    with pytest.raises(DataError, match="'Low' is missing"):
        online.push("EURUSD", {name: value for name, value in good_bar().items() if name != "low"})
    with pytest.raises(DataError, match="'Datetime' is missing"):
        online.push(
            "EURUSD", {name: value for name, value in good_bar().items() if name != "datetime"}
        )
    with pytest.raises(DataError, match="another timeframe"):
        online.extend("XAUUSD", random_bars(3, step=timedelta(minutes=10)))
    assert (
        online.extend("XAUUSD", random_bars(3, step=timedelta(days=3))) == 3
    )  # long weekends, for all one knows
    flat = frame_of(np.ones(60), np.ones(60))
    online.extend("EURUSD", flat)
    assert (
        online.push(
            "EURUSD",
            {**flat.row(-1, named=True), "Datetime": flat["Datetime"][-1] + timedelta(hours=1)},
        )
        is None
    )
    state = online.to_json()
    with pytest.raises(DataError, match="another model"):
        online.restore(state | {"tokenizer_sha256": "0"})


def test_extend_takes_only_what_follows(forecaster: Forecaster) -> None:
    bars = random_bars(60)
    online = forecaster.online()
    assert online.extend("EURUSD", bars.head(40)) == 40
    with pytest.raises(DataError, match="back in time"):
        online.extend("EURUSD", bars)
    assert online.extend("EURUSD", bars.filter(pl.col("Datetime") > bars["Datetime"][39])) == 20


def test_copies_that_part_do_not_meet_again(
    forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows lie in common columns as long as only one goes on; what was handed out stays what it
    was.
    """
    monkeypatch.setattr(online_module, "_ROOM", 3)
    bars = random_bars(60)
    other = bars.with_columns(pl.col("Close") * 1.001)
    one = forecaster.online()
    one.extend("EURUSD", bars.head(40))
    for number in range(40, 60):
        window = one.window("EURUSD")
        expected = {name: column.copy() for name, column in window.columns.items()}
        two = one.copy()
        two.push("EURUSD", other.row(number, named=True))
        one.push("EURUSD", bars.row(number, named=True))
        for online, last in ((one, bars[number : number + 1]), (two, other[number : number + 1])):
            alone = forecaster.online()
            alone.extend("EURUSD", pl.concat([bars.head(number), last]))
            for name, column in alone.window("EURUSD").columns.items():
                np.testing.assert_array_equal(
                    online.window("EURUSD").columns[name], column, err_msg=name
                )
        for name, column in window.columns.items():
            np.testing.assert_array_equal(column, expected[name], err_msg=name)
