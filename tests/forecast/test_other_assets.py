"""A model that reads other assets: what it reads is the corpus to the bit, whoever is missing is
named.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from forecast_runs import CONTEXT, TinyRun, assert_same_forecast, untrained
from streams import assert_same_streams

from strategies import random_bars
from vaiom.errors import DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.features.fields import CROSS_FIELDS
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_bars

Bars = dict[str, pl.DataFrame]


def cut(bars: Bars, moment: datetime) -> Bars:
    known = {symbol: frame.filter(pl.col("Datetime") <= moment) for symbol, frame in bars.items()}
    return {symbol: frame for symbol, frame in known.items() if len(frame)}


def test_inputs_and_probabilities_are_those_of_the_corpus(world: TinyRun) -> None:
    corpus, forecaster, bars = world.corpus, Forecaster.load(world.run), read_bars(world.bars)
    inputs = corpus.inputs(forecaster.config)
    histories = forecaster.predict_all(bars)
    model = ModelPredictor.load(world.run / "best.safetensors", "cpu")
    for symbol, rows in corpus.asset_slices.items():
        chosen = np.linspace(rows.start + CONTEXT, rows.stop - 1, 12).astype(np.int64)
        wanted = model.predict_proba(corpus, chosen)
        for row, probs in zip(chosen, wanted, strict=True):
            known = cut(bars, corpus.timestamps[row].astype("datetime64[us]").item())
            [window] = forecaster.windows(known, symbol)
            made = forecaster.inputs(symbol, window.columns)
            np.testing.assert_array_equal(made, inputs[row + 1 - CONTEXT : row + 1])
            dist = forecaster.predict(known, symbol)
            np.testing.assert_allclose(dist.probs, probs, atol=TOLERANCE)
            assert_same_forecast(histories[symbol][row - rows.start - MIN_BARS + 1], dist)


def test_whoever_has_no_bar_at_the_last_stamp_is_named(simulated_world: TinyRun) -> None:
    forecaster, bars = Forecaster.load(simulated_world.run), read_bars(simulated_world.bars)
    assert forecaster.reads == ("EURUSD", "GBPJPY", "USDJPY")
    assert forecaster.describe()["reads_other_assets"]
    assert forecaster.predict({}) == {}
    open_ = cut(bars, datetime(2023, 12, 27, 14))
    assert [dist.missing_assets for dist in forecaster.predict(open_).values()] == [(), (), ()]
    closed = forecaster.predict(cut(bars, datetime(2023, 12, 27, 20)))
    assert closed["EURUSD"].missing_assets == ("GBPJPY",)
    assert closed["GBPJPY"].missing_assets == ()  # its last bar is of an hour in which all traded
    assert "without other assets: no bar at 2023-12-27 20:00:00 of GBPJPY" in closed["EURUSD"].notes
    alone = forecaster.predict(open_["EURUSD"], symbol="EURUSD")
    assert alone.missing_assets == ("GBPJPY", "USDJPY")
    assert "without other assets" in repr(alone)
    whole = forecaster.predict(open_)["EURUSD"]
    assert np.abs(alone.probs - whole.probs).max() > 10 * TOLERANCE
    assert whole.sigma == alone.sigma
    # Whoever is only read may be new.
    young = forecaster.predict({**open_, "GBPJPY": open_["GBPJPY"].tail(3)}, "EURUSD")
    assert young.missing_assets == ()
    frame = forecaster.predict_all(open_, "EURUSD").to_frame()
    assert frame["num_missing_assets"].max() == 2  # late at night, before one of them began


def test_a_foreign_asset_reads_and_is_not_read(simulated_world: TinyRun) -> None:
    forecaster, bars = Forecaster.load(simulated_world.run), read_bars(simulated_world.bars)
    foreign = bars["EURUSD"].with_columns(pl.col("Close") * 1.0001)
    before = forecaster.windows(bars)
    after = forecaster.windows({**bars, "AAAUSD": foreign})
    for ours, theirs in zip(before, after, strict=False):
        for name, column in ours.columns.items():
            np.testing.assert_array_equal(column, theirs.columns[name])
    assert after[-1].columns["usd_factor"].any()
    assert after[-1].missing_assets == before[0].missing_assets
    online = forecaster.online()
    online.extend_many({**bars, "AAAUSD": foreign})
    for name, column in online.window("AAAUSD").columns.items():
        np.testing.assert_array_equal(column, after[-1].columns[name])
    lonely = forecaster.predict(foreign, "AAAUSD")
    assert lonely.unknown_asset
    assert lonely.missing_assets == forecaster.symbols


def by_stamp(bars: Bars) -> dict[datetime, dict[str, dict[str, Any]]]:
    out: dict[datetime, dict[str, dict[str, Any]]] = {}
    for symbol, frame in bars.items():
        for bar in frame.iter_rows(named=True):
            out.setdefault(bar["Datetime"], {})[symbol] = bar
    return dict(sorted(out.items()))


def test_two_thousand_real_stamps_one_by_one(real_world: TinyRun) -> None:
    forecaster = Forecaster.load(real_world.run)
    stamps = list(by_stamp(read_bars(real_world.bars)).items())[:2_000]
    histories = forecaster.predict_all(cut(read_bars(real_world.bars), stamps[-1][0]))
    online = forecaster.online()
    seen = dict.fromkeys(histories, 0)
    for number, (_, arrived) in enumerate(stamps):
        dists = online.push_many(arrived, forecast=number % 4 == 0)
        for symbol in arrived:
            seen[symbol] += 1
            is_asked = number % 4 == 0 and seen[symbol] >= MIN_BARS
            assert (symbol in dists) == is_asked
        for symbol, dist in dists.items():
            assert_same_forecast(dist, histories[symbol][seen[symbol] - MIN_BARS])
    assert min(seen.values()) > 1_800


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_arrival_leaves_what_a_batch_leaves(
    simulated_world: TinyRun, seed: int
) -> None:
    """Bars of an asset come in order, assets come in any order, some of them hours late, forecasts
    between them.
    """
    random, fields = Random(seed), ("ret_z", "log_wait", *CROSS_FIELDS)
    forecaster = untrained(
        simulated_world.corpus, fields=fields, positions="rotary", attention_window=8, num_layers=3
    )
    bars = cut(read_bars(simulated_world.bars), datetime(2023, 11, 18))
    bars = {symbol: frame.tail(120) for symbol, frame in bars.items()}
    together = forecaster.online()
    together.extend_many(bars)
    queues = {symbol: list(frame.iter_rows(named=True)) for symbol, frame in bars.items()}
    online = forecaster.online()
    while queues:
        behind = min(queues, key=lambda symbol: queues[symbol][0]["Datetime"])
        symbol = random.choice([behind, behind, *queues])
        run = queues[symbol][: random.randint(1, 9)]
        if random.random() < 0.3:
            online.extend(symbol, pl.DataFrame(run, schema=bars[symbol].schema))
        else:
            for bar in run:
                online.push(symbol, bar, forecast=random.random() < 0.5)
        queues[symbol] = queues[symbol][len(run) :]
        if random.random() < 0.05:  # a restart
            taken = {each: len(bars[each]) - len(queues.get(each, [])) for each in online.streams}
            online = forecaster.online()
            online.extend_many({each: bars[each].head(number) for each, number in taken.items()})
        if not queues[symbol]:
            del queues[symbol]
    assert_same_streams(online, together)
    for symbol, dist in forecaster.predict(bars).items():
        assert_same_forecast(online.forecast(symbol), dist)


def test_histories_may_come_one_after_another(simulated_world: TinyRun) -> None:
    """Although one asset's window reaches further back than that of another, which trades more
    hours.
    """
    forecaster, bars = Forecaster.load(simulated_world.run), read_bars(simulated_world.bars)
    online, together = forecaster.online(), forecaster.online()
    together.extend_many(bars)
    for symbol, frame in bars.items():
        online.extend(symbol, frame)
    assert_same_streams(online, together)


def test_a_forecast_sees_the_bars_of_its_stamp_that_have_arrived(simulated_world: TinyRun) -> None:
    forecaster = Forecaster.load(simulated_world.run)
    bars = cut(read_bars(simulated_world.bars), datetime(2023, 12, 27, 14))
    last = {symbol: frame.row(-1, named=True) for symbol, frame in bars.items()}
    online = forecaster.online()
    online.extend_many({symbol: frame.head(-1) for symbol, frame in bars.items()})
    other = online.copy()
    first = online.push("EURUSD", last["EURUSD"])
    assert first is not None
    assert first.missing_assets == ("GBPJPY", "USDJPY")
    handed_out = online.window("EURUSD")
    kept = {name: column.copy() for name, column in handed_out.columns.items()}
    for symbol in ("GBPJPY", "USDJPY"):
        online.push(symbol, last[symbol], forecast=False)
    now = online.forecast("EURUSD")
    assert now.missing_assets == ()
    assert_same_forecast(now, forecaster.predict(bars, "EURUSD"))
    assert np.abs(now.probs - first.probs).max() > TOLERANCE
    for name, column in kept.items():
        np.testing.assert_array_equal(handed_out.columns[name], column)
    # The copy has taken none of this, and goes its own way to the same place.
    assert other.streams["EURUSD"].last < online.streams["EURUSD"].last
    other.push_many(last)
    assert_same_streams(other, online)


def test_a_stamp_is_taken_whole_or_not_at_all(simulated_world: TinyRun) -> None:
    forecaster = Forecaster.load(simulated_world.run)
    bars = cut(read_bars(simulated_world.bars), datetime(2023, 12, 27, 14))
    online = forecaster.online()
    online.extend_many({symbol: frame.head(-1) for symbol, frame in bars.items()})
    before = online.copy()
    last = {symbol: frame.row(-1, named=True) for symbol, frame in bars.items()}
    earlier = {symbol: frame.row(-2, named=True) for symbol, frame in bars.items()}
    for wrong in (
        {**last, "USDJPY": {**last["USDJPY"], "Close": "1"}},
        {**last, "USDJPY": earlier["USDJPY"]},
        earlier,
    ):
        with pytest.raises(DataError):
            online.push_many(wrong)
        assert_same_streams(online, before)
    with pytest.raises(DataError, match="back in time"):
        online.extend_many({"NEWUSD": random_bars(30), "EURUSD": bars["EURUSD"]})
    assert_same_streams(online, before)


def test_the_exported_file_answers_the_same(simulated_world: TinyRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from vaiom.forecast.export import export_run

    made = export_run(simulated_world.run, tmp_path / "model.onnx")
    assert made.real_windows == 32
    other, ours = Forecaster.load(tmp_path), Forecaster.load(simulated_world.run)
    assert other.reads == ours.reads
    bars = read_bars(simulated_world.bars)
    answers = other.predict(bars)
    for symbol, dist in ours.predict(bars).items():
        assert_same_forecast(answers[symbol], dist)


def test_forecasts_do_not_depend_on_what_comes_later(simulated_world: TinyRun) -> None:
    forecaster, bars = Forecaster.load(simulated_world.run), read_bars(simulated_world.bars)
    moment = datetime(2023, 12, 27, 14)
    is_later = pl.col("Datetime") > moment
    later = {
        symbol: frame.with_columns(Close=pl.when(is_later).then(3.0).otherwise("Close"))
        for symbol, frame in bars.items()
    }
    ours, theirs = (forecaster.predict_all(each, "EURUSD") for each in (bars, later))
    known = ours.as_of <= np.datetime64(moment)
    np.testing.assert_array_equal(ours.probs[known], theirs.probs[known])
    assert not np.array_equal(ours.probs, theirs.probs)
