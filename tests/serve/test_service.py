"""The routes on a service in this process: answers equal the library's, batches change nothing,
state survives.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from concurrent.futures import wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serve_runs import (
    CONTEXT,
    SYMBOLS,
    TinyRun,
    as_json,
    bar_row,
    config_of,
    failing_disk,
    in_process,
    live_assets,
    reading_others,
    served,
)

from forecast.streams import assert_same_streams
from training.tiny_runs import SPLITS
from vaiom.baselines.counts import Frequency
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.stream import OnlineForecaster
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.serve.follow import BarRow
from vaiom.serve.refusals import RefusalError
from vaiom.serve.schemas import PushRequest
from vaiom.serve.server import WINDOW, ServeConfig


def near(one: list[float], other: list[float]) -> bool:
    return bool(np.abs(np.array(one) - np.array(other)).max() <= TOLERANCE)


def test_posted_bars_are_forecast_as_the_library_does(tiny: TinyRun, tmp_path: Path) -> None:
    frame = tiny.history["EURUSD"].tail(100)
    ours = Forecaster.load(tiny.run).predict(frame, "EURUSD")
    body = {"symbol": "EURUSD", "bars": as_json(frame), "beyond": 0.001}
    with served(config_of(tiny, tmp_path)) as (client, _):
        answer = client.post("/v1/forecast", json=body).json()
        fresh, late = (
            client.post("/v1/forecast", json={**body, "now": now}).json()
            for now in (ours.target_time.isoformat(), "2099-01-01T00:00:00")
        )
        # Bodies are read in two ways, by their type and the query.
        kind = {"content-type": "application/json; charset=utf-8"}
        again = client.post("/v1/forecast", content=json.dumps(body), headers=kind)
        assert again.json() == client.post("/v1/forecast?horizon=1", json=body).json() == answer
    assert [each["stale"] for each in (answer, fresh, late)] == [True, False, True]
    assert near(answer["probs"], ours.probs.tolist())
    assert answer["sigma"] == ours.sigma
    assert answer["prob_beyond"] == pytest.approx(ours.prob_beyond(0.001), abs=1e-6)
    assert answer["as_of"] == ours.as_of.isoformat()


def test_the_whole_distribution_is_told_on_request(tiny: TinyRun, tmp_path: Path) -> None:
    ours = Forecaster.load(tiny.run).predict(tiny.history["EURUSD"], "EURUSD")

    with served(config_of(tiny, tmp_path, bars=tiny.bars, backfill=0)) as (client, _):
        route, moments = (
            "/v1/assets/EURUSD/forecast",
            (ours.target_time.isoformat(), "2099-01-01T00:00:00"),
        )
        asked = ("", "?law=true", *(f"?now={moment}" for moment in moments))
        short, whole, fresh, late = [client.read(route + words) for words in asked]
    assert [fresh["stale"], late["stale"]] == [False, True]
    assert f"stale since {ours.stale_since}" in late["notes"][0]
    assert short["law"] is None
    law = whole["law"]
    x = np.linspace(law["knots"][0], law["knots"][-1], 99)
    np.testing.assert_allclose(
        np.interp(x, law["knots"], law["cumulative"]), ours.cdf(x), atol=1e-5
    )
    shape, in_scales = law["lower"]["shape"], 2 * ours.sigma / law["lower"]["scale"]
    share = (1 + shape * in_scales) ** (-1 / shape) if shape else math.exp(-in_scales)
    assert law["cumulative"][0] * share == pytest.approx(
        ours.cdf(law["knots"][0] - 2 * ours.sigma), abs=1e-5
    )


def test_a_live_forecast_has_the_cautions_of_its_moment(tiny: TinyRun, tmp_path: Path) -> None:
    """On the clock of the bars, which may be ahead of UTC or behind it."""
    forecaster, bars = Forecaster.load(tiny.run), as_json(tiny.history["EURUSD"])[-100:]
    last = datetime.fromisoformat(bars[-1]["datetime"])

    async def ask(ahead: timedelta) -> None:
        config = config_of(
            tiny, tmp_path / str(ahead), bars=tiny.bars, backfill=0, utc_offset=ahead
        )
        async with in_process(config) as (client, service):
            for minutes in (-16 * 60, -1, 0, 1, 59, 60, 90, 120, 121):
                now = last + timedelta(minutes=minutes)
                service.live.clock = lambda: now - ahead  # noqa: B023
                ours = forecaster.predict(tiny.history["EURUSD"], "EURUSD", now=now)
                for query in ({}, {"now": now.isoformat()}):
                    live = (await client.get("/v1/assets/EURUSD/forecast", params=query)).json()
                    assert (live["notes"], live["stale"]) == (list(ours.notes), ours.stale)
                posted = (
                    await client.post("/v1/forecast", json={"symbol": "EURUSD", "bars": bars})
                ).json()
                assert posted["stale"] is ours.stale
            assert (await client.get("/v1/assets")).json()[
                "utc_offset_seconds"
            ] == ahead.total_seconds()

    for hours in (0, -5, 9):
        asyncio.run(ask(timedelta(hours=hours)))


def test_concurrent_requests_get_their_own_answers_up_to_those_that_may_wait(
    tiny: TinyRun, tmp_path: Path
) -> None:
    bodies = [
        {
            "symbol": SYMBOLS[n % 2],
            "bars": as_json(tiny.history[SYMBOLS[n % 2]].slice(n * 7, 40 + 5 * (n % 3))),
        }
        for n in range(5)
    ]
    flat = {
        "symbol": "EURUSD",
        "bars": [{**bar, "open": 1.0, "close": 1.0} for bar in bodies[0]["bars"]],
    }

    async def ask() -> None:
        async with in_process(config_of(tiny, tmp_path, max_waiting=6)) as (client, service):
            alone = [await client.post("/v1/forecast", json=body) for body in bodies]
            go_on = threading.Event()
            service._model.submit(go_on.wait)
            asked = [
                asyncio.create_task(client.post("/v1/forecast", json=body))
                for body in [*bodies, flat]
            ]
            while service._num_waiting < len(asked):
                await asyncio.sleep(0)
            assert "vaiom_waiting_forecasts 6.0" in (await client.get("/metrics")).text
            turned_away = await client.post("/v1/forecast", json=flat)
            assert (turned_away.status_code, turned_away.headers["Retry-After"]) == (503, "1")
            go_on.set()
            *together, refused = await asyncio.gather(*asked)
            assert refused.status_code == 422
            assert "no scale" in refused.json()["error"]["problem"]
            for one, other in zip(alone, together, strict=True):
                assert near(one.json()["probs"], other.json()["probs"])
                assert one.json()["quantiles"] == pytest.approx(other.json()["quantiles"], rel=1e-3)

    asyncio.run(ask())


def test_the_live_assets_and_the_model_do_one_thing_at_a_time(
    tiny: TinyRun, tmp_path: Path
) -> None:

    with served(config_of(tiny, tmp_path)) as (_, service):
        for executor in (service._state, service._model):
            go_on = threading.Event()
            executor.submit(go_on.wait)
            second = executor.submit(int)
            too_soon = wait([second], 0.05).done
            go_on.set()
            assert (too_soon, second.result()) == (set(), 0)


def test_bars_of_a_client_that_went_away_before_their_turn_are_not_taken(
    tiny: TinyRun, tmp_path: Path
) -> None:
    first, gone = (
        PushRequest.model_validate({"bars": [tiny.later["EURUSD"][at]]}) for at in (0, 1)
    )

    async def ask() -> None:
        config = config_of(tiny, tmp_path, bars=tiny.bars, backfill=0)
        async with in_process(config) as (_, service):
            # A reader holds the live assets until both pushes wait.
            go_on = threading.Event()
            reading = asyncio.create_task(service._in_state_thread(go_on.wait))
            pushes = []
            for symbol, body in (("XAUUSD", first), ("EURUSD", gone), ("EURUSD", first)):
                pushes.append(asyncio.create_task(service.push(symbol, body)))
                await asyncio.sleep(0.01)
                if body is gone:
                    pushes.pop().cancel()
            go_on.set()
            for answer in await asyncio.gather(*pushes):
                assert answer.num_bars == len(tiny.history[answer.symbol]) + 1
                assert re.fullmatch(
                    r"bar;dur=[\d.]+, model;dur=[\d.]+, disk;dur=[\d.]+", answer.timing
                )
            await reading
            assert service.live.online.streams["EURUSD"].last == first.bars[0].datetime

    asyncio.run(ask())


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "rotary", "attention_window": 8}], ids=["learned", "windowed"]
)
def test_bars_of_several_assets_are_taken_together(
    tiny: TinyRun, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """In one commit; one that cannot be taken costs the others nothing; answers are those that each
    has alone.
    """
    run = reading_others(tiny, tmp_path, changes)

    def pushes(number: int) -> list[tuple[str, list[BarRow]]]:
        return [(symbol, [bar_row(**tiny.later[symbol][number])]) for symbol in SYMBOLS]

    one, other = (
        live_assets(tiny, tmp_path / name, run=run, folder=tiny.bars) for name in ("one", "other")
    )
    for number in range(3):
        both = [one.push_all([each])[0] for each in pushes(number)]
        together = other.push_all(pushes(number))
    for ours, theirs in zip(both, together, strict=True):
        assert ours.scored.as_of == theirs.scored.as_of
        assert ours.scored.pit == pytest.approx(theirs.scored.pit, abs=1e-6)
    # The second of a stamp has read the first either way.
    assert near(both[-1].forecast.probs, together[-1].forecast.probs)
    assert together[0].forecast.missing_assets == []
    assert both[0].forecast.missing_assets == ["XAUUSD"]
    late, taken = other.push_all([pushes(2)[0], pushes(3)[1]])
    assert isinstance(late, RefusalError)
    assert (late.status, taken.symbol) == (409, "XAUUSD")
    before = other.online
    with failing_disk(other.store):
        refused = other.push_all(pushes(9))
    assert [each.status for each in refused] == [503, 503]
    assert other.online is before
    for each in (one, other):
        each.store.close()


def test_every_asset_has_its_chance_of_a_rise_after_bars_of_others(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """Where assets read each other, a bar of one changes the forecasts of all."""
    run = reading_others(tiny, tmp_path, {"positions": "rotary", "attention_window": 8})

    with served(config_of(tiny, tmp_path / "state", run=run, bars=tiny.bars)) as (
        client,
        _,
    ):
        for symbol in SYMBOLS:
            client.push(symbol, tiny.later[symbol][0])
        shown = {each["symbol"]: each["prob_up"] for each in client.read("/v1/assets")["assets"]}
        forecasts = client.read("/v1/forecast")["forecasts"]
        assert shown == {each["symbol"]: each["prob_up"] for each in forecasts}


def test_live_bars_are_scored_and_forecast(tiny: TinyRun, tmp_path: Path) -> None:
    """Bits, PIT and forecasts of pushed bars against a batch forecaster that is given everything at
    once.
    """
    bars = tiny.later["EURUSD"][:30]

    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, _):
        answers = [client.push("EURUSD", bar) for bar in bars]
        answers, history = answers, client.read("/v1/assets/EURUSD/history")
    forecaster = Forecaster.load(tiny.run)
    shown = open_corpus(tiny.run.parent / "corpus")
    frequency = Frequency().fit(shown, shown.endpoints("train", CONTEXT)).probs_
    from polars import DataFrame, col

    later = DataFrame(bars).rename({name: name.capitalize() for name in bars[0]})
    every = tiny.history["EURUSD"].vstack(
        later.with_columns(
            col("Datetime").str.to_datetime(time_unit="us"), col("Volume").cast(float)
        ).select(tiny.history["EURUSD"].columns)
    )
    start = len(tiny.history["EURUSD"])
    for n, answer in enumerate(answers):
        before = forecaster.predict(every[: start + n], "EURUSD")
        after = forecaster.predict(every[: start + n + 1], "EURUSD")
        assert near(answer["forecast"]["probs"], after.probs.tolist())
        move = math.log(every["Close"][start + n] / every["Close"][start + n - 1])
        scored = answer["scored"]
        if move == 0 or before.masked:
            assert scored["model_bits"] is None
            continue
        bucket = int(np.searchsorted(before.edges[1:-1], move / before.sigma)) + 1
        assert scored["bucket"] == bucket
        assert scored["model_bits"] == pytest.approx(-math.log2(before.probs[bucket - 1]), abs=1e-4)
        assert scored["frequency_bits"] == pytest.approx(
            -math.log2(frequency[bucket - 1]), rel=1e-12
        )
        assert scored["pit"] == pytest.approx(before.cdf(move), abs=1e-5)
    settled = history["forecasts"]
    assert [each["replayed"] for each in settled] == [True] * 4 + [False] * 30
    pits = [each["pit"] for each in settled if each["pit"] is not None]
    assert (
        history["calibration"]["scored"] == len(pits) == sum(history["calibration"]["pit_counts"])
    )
    assert history["calibration"]["coverage"]["0.5"] == pytest.approx(
        np.mean([0.25 <= p <= 0.75 for p in pits])
    )


def test_a_bar_may_be_posted_alone(tiny: TinyRun, tmp_path: Path) -> None:
    first, second = tiny.later["EURUSD"][:2]
    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, _):
        alone = client.post("/v1/assets/EURUSD/bars", json=first)
        assert alone.status_code == 200, alone.text
        assert (alone.json()["accepted"], alone.json()["as_of"]) == (1, first["datetime"])
        refused = client.post("/v1/assets/EURUSD/bars", json={**second, "open": "x"})
        assert refused.status_code == 422
        assert refused.json()["error"]["where"] == "body, bars, row 1, open"
        client.push("EURUSD", second)


def test_a_fresh_service_has_scored_enough_to_tell_a_gain(tiny: TinyRun, tmp_path: Path) -> None:
    """As many bars as drift is shown of, or all since the cutoff."""
    config = ServeConfig(run=tiny.run, state=tmp_path, bars=tiny.bars, threads=1)
    with served(config) as (client, service):
        for asset in client.read("/v1/assets")["assets"]:
            stamps = tiny.history[asset["symbol"]]["Datetime"]
            since = (stamps.dt.epoch("s") >= service.live.train_end).sum()
            assert since > 96
            assert asset["drift"]["scored"] > 0.9 * min(since, 500)


def test_a_restart_goes_on_to_the_bit(tiny: TinyRun, tmp_path: Path) -> None:
    """Stopped and started again after every few bars, against one that never stops."""
    bars = tiny.later["XAUUSD"][:17]

    def serve(state: str, part: list[dict[str, Any]]) -> tuple[OnlineForecaster, Any]:
        with served(config_of(tiny, tmp_path / state, bars=tiny.bars)) as (client, service):
            for bar in part:
                client.push("XAUUSD", bar)
            return service.live.online, client.read("/v1/assets/XAUUSD/history")

    whole, shown = serve("whole", bars)
    for start in range(0, len(bars), 4):
        pieces, again = serve("pieces", bars[start : start + 4])
    assert_same_streams(pieces, whole)
    assert again["bars"] == shown["bars"]
    approximate = ("model_bits", "pit", "quantiles")
    for one, other in zip(again["forecasts"], shown["forecasts"], strict=True):
        near = {name: pytest.approx(other[name], abs=1e-4) for name in approximate}
        assert one == {**other, **near}


def test_train_shares_are_those_of_the_stored_bars(tiny: TinyRun, tmp_path: Path) -> None:
    """Also of bars that were pushed; those of a removed asset are gone."""
    frame = tiny.history["EURUSD"].head(CONTEXT + 30)
    write_symbol(tmp_path / "bars", "EURUSD", frame.head(CONTEXT + 4))
    live = live_assets(tiny, tmp_path / "state", folder=tmp_path / "bars")
    counts = live.frequency.counts
    assert (len(counts), counts.sum(), counts[-1]) == (16, 4, 0)
    live.push("EURUSD", [*map(BarRow._make, frame[CONTEXT + 4 : CONTEXT + 20].iter_rows())])
    live.push("EURUSD", [*map(BarRow._make, frame[CONTEXT + 20 : CONTEXT + 21].iter_rows())])
    assert live.frequency.counts.sum() == 21
    live.store.close()
    again = live_assets(tiny, tmp_path / "state")
    np.testing.assert_array_equal(again.frequency.counts, live.frequency.counts)
    assert again.frequency.name == "Train shares"
    again.cut("EURUSD", datetime(1970, 1, 1))
    assert again.frequency.name == "shares of the scored bars"
    again.store.close()


@pytest.mark.parametrize("scored_from_train", [False, True])
def test_the_last_bars_of_a_folder_are_scored_but_for_those_that_were_learned_from(
    tiny: TinyRun, tmp_path: Path, scored_from_train: bool
) -> None:
    """Of each asset, also of one whose bars end long before the others'."""
    history = {"EURUSD": tiny.history["EURUSD"], "XAUUSD": tiny.history["XAUUSD"][:-60]}
    for symbol, frame in history.items():
        write_symbol(tmp_path / "bars", symbol, frame)
    held_out = int((history["EURUSD"]["Datetime"] >= SPLITS.train_end).sum())
    number = held_out + 30 if scored_from_train else 5
    live = live_assets(tiny, tmp_path / "state", folder=tmp_path / "bars", backfill=number)
    for symbol, frame in history.items():
        live.settle_past(symbol, *live.past_forecasts(symbol))
        stamps = frame.filter(pl.col("Datetime") >= SPLITS.train_end)["Datetime"].to_list()
        assert [each.target_time for each in live.settled[symbol]] == stamps[-min(number, WINDOW) :]
    assert not live.replays
    undisturbed = live.forecaster.online()
    undisturbed.extend_many(history)
    assert_same_streams(live.online, undisturbed)
    live.store.close()


def test_a_state_serves_any_model_of_its_timeframe(tiny: TinyRun, tmp_path: Path) -> None:
    """The other starts from the same bars, without the scores of the first."""
    live_assets(tiny, tmp_path, folder=tiny.bars).store.close()
    trained = load_checkpoint(tiny.run / "best.safetensors")
    files = {timeframe: tmp_path / f"{timeframe}.safetensors" for timeframe in ("1h", "4h")}
    for timeframe, file in files.items():
        tokenizer = replace(trained.tokenizer, timeframe=timeframe)
        save_checkpoint(file, trained.model, tokenizer, replace(trained.provenance, seed=99))
    other = live_assets(tiny, tmp_path, run=files["1h"])
    assert other.online.streams["EURUSD"].num_bars == len(tiny.history["EURUSD"])
    other.store.close()
    with pytest.raises(DataError, match="another timeframe") as refused:
        live_assets(tiny, tmp_path, run=files["4h"])
    assert (refused.value.expected, refused.value.got) == ("4h", "1h")


def test_the_folder_brings_the_bars_that_a_state_lacks(tiny: TinyRun, tmp_path: Path) -> None:

    with served(config_of(tiny, tmp_path / "state", bars=tiny.bars)) as (
        client,
        service,
    ):
        counts = service.live.frequency.counts
        assert counts.sum() > len(tiny.history["EURUSD"])
    grown = tmp_path / "bars"
    frame = tiny.history["EURUSD"]
    more = frame.tail(3).with_columns(
        Datetime=frame.tail(3)["Datetime"] + (frame["Datetime"][-1] - frame["Datetime"][-4])
    )
    write_symbol(grown, "EURUSD", frame.vstack(more))
    with served(config_of(tiny, tmp_path / "state", bars=grown)) as (client, service):
        np.testing.assert_array_equal(service.live.frequency.counts, counts)
        answer = client.read("/v1/assets")
        assets, about = (
            answer["assets"],
            (answer["timeframe"], answer["frequency"], answer["window"]),
        )
        assert about == ("1h", "Train shares", 500)
        assert assets[0]["num_bars"] == len(frame) + 3
        assert assets[0]["as_of"] == more["Datetime"][-1].isoformat()
        assert assets[1]["num_bars"] == len(tiny.history["XAUUSD"])


def test_a_folder_with_other_prices_is_said_to_be(
    tiny: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is stored stays; bars without a price are equal to themselves."""
    frame = tiny.history["EURUSD"]
    gap, last = pl.int_range(pl.len()) == pl.len() - 5, pl.int_range(pl.len()) >= pl.len() - 2
    frame = frame.with_columns(pl.when(~gap).then("Open").alias("Open"))
    other = frame.with_columns(pl.when(last).then(1.5).otherwise("Close").alias("Close"))
    for number, bars in enumerate((frame, frame, other)):
        write_symbol(tmp_path / "bars", "EURUSD", bars)
        live = live_assets(tiny, tmp_path / "state", folder=tmp_path / "bars")
        assert [bar.close for bar in live.bars["EURUSD"]][-2:] == frame["Close"][-2:].to_list()
        live.store.close()
        said = f"EURUSD: 2 bars of {tmp_path / 'bars'} differ from the stored ones, which stay"
        assert [each.message.startswith(said) for each in caplog.records] == [True] * (number == 2)


def test_drift_raises_an_alert(tiny: TinyRun, tmp_path: Path) -> None:
    """Any model is worse than Frequency by more than minus infinity; the alert waits until that
    says something.
    """

    with served(config_of(tiny, tmp_path, bars=tiny.bars, alert_bits=-9.0)) as (
        client,
        _,
    ):
        alerts = []
        for bar in tiny.later["EURUSD"][:60]:
            client.push("EURUSD", bar)
            drift = client.read("/v1/assets")["assets"][0]["drift"]
            alerts.append((drift["scored"] >= 50, drift["alert"]))
        assert all(enough == alert for enough, alert in alerts)
        assert alerts[-1] == (True, True)
        page = client.get("/metrics").text
        assert 'vaiom_drift_alert{asset="EURUSD"} 1' in page
        assert 'vaiom_bars_total{asset="EURUSD"} 60' in page
        assert 'route="/v1/assets/{symbol}/bars",status="200"} 60' in page


@pytest.mark.parametrize("wrong", ["missing", "unchanged"])
def test_a_forecast_after_a_masked_bar_is_not_scored(
    tiny: TinyRun, tmp_path: Path, wrong: str
) -> None:
    """The bar after a close that repeats the one before has a return of its own; its forecast was
    made blindly.
    """
    first, masked, last = tiny.later["EURUSD"][:3]
    masked = {**masked, "close": None if wrong == "missing" else first["close"]}

    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, _):
        _, blind, after = [client.push("EURUSD", bar) for bar in (first, masked, last)]
    assert blind["forecast"]["stale"]
    assert (after["scored"]["log_return"] is None) == (wrong == "missing")
    for answer in (blind, after):
        assert answer["scored"]["bucket"] == 0
        assert answer["scored"]["model_bits"] is answer["scored"]["pit"] is None


def test_the_metrics_are_what_prometheus_reads(tiny: TinyRun, tmp_path: Path) -> None:
    with served(config_of(tiny, tmp_path, bars=tiny.bars, backfill=1)) as (client, service):
        client.push("EURUSD", tiny.later["EURUSD"][0])
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(answer.text)
        for each in family.samples
    }
    last = {
        "EURUSD": datetime.fromisoformat(tiny.later["EURUSD"][0]["datetime"]),
        "XAUUSD": tiny.history["XAUUSD"]["Datetime"][-1],
    }
    for symbol, scored in (("EURUSD", 2), ("XAUUSD", 1)):
        assert samples["vaiom_scored_bars", symbol] == scored
        stamp = last[symbol].replace(tzinfo=UTC).timestamp()
        assert samples["vaiom_last_bar_seconds", symbol] == stamp
    card = service.model_card
    assert samples["vaiom_model_info", card.experiment, card.sha256] == 1
    assert samples["vaiom_ready",] == samples["vaiom_batch_windows_count",] == 1
    assert samples["vaiom_request_seconds_sum", "/v1/assets/{symbol}/bars"] > 0


def test_the_card_says_where_the_model_comes_from(tiny: TinyRun, tmp_path: Path) -> None:
    with served(config_of(tiny, tmp_path)) as (client, service):
        card = client.read("/v1/model")
    assert card["sha256"] == service.forecaster.card.sha256
    assert card["train_end"] == "2023-12-10T00:00:00"
    assert card["versions"]["vaiom"]
    assert (card["horizons"], card["has_joint"]) == ([1], False)
    assert any("2023-12-10" in line for line in card["limits"])
