"""Bars that would shut out the real ones are refused, and what is stored can be looked at, cut and
rebuilt.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from serve_runs import (
    SYMBOLS,
    TinyRun,
    bar_row,
    config_of,
    live_assets,
    reading_others,
    served,
)
from test_service_refusals import refusal

from forecast.streams import assert_same_streams
from strategies import random_bars
from vaiom.cli.main import main
from vaiom.errors import DataError
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import ForecastLedger, Removal, read_ledger
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.serve.bar_store import Store
from vaiom.serve.refusals import RefusalError
from vaiom.serve.service import Service
from vaiom.serve.state import LiveAssets

WINDOWED = {"positions": "rotary", "attention_window": 8}


def moved(bar: dict[str, Any], stamp: datetime) -> dict[str, Any]:
    return {**bar, "datetime": stamp.isoformat()}


def test_bars_of_the_future_and_between_the_stamps_are_refused(
    tiny: TinyRun, tmp_path: Path
) -> None:
    first, second = tiny.later["EURUSD"][:2]
    at = datetime.fromisoformat(second["datetime"])

    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, service):
        before = service.live.online
        for wrong, words, ahead in (
            ([moved(first, datetime(2099, 1, 1))], "future", 0.0),
            ([first, second], "future", 15.1),
            ([moved(first, at + timedelta(minutes=30))], "between", 0.0),
            ([first, moved(second, at + timedelta(minutes=59))], "between", 0.0),
        ):
            service.live.clock = lambda: at - timedelta(hours=ahead)  # noqa: B023
            error = refusal(client.send("EURUSD", *wrong), 422)
            assert words in error["problem"]
            assert error["got"] == wrong[-1]["datetime"]
            assert error["expected"]
            assert error["fix"]
            assert f"row {len(wrong)}" in error["where"]
            assert service.live.online is before
        # A clock of a zone that is ahead of UTC.
        service.live.clock = lambda: at - timedelta(hours=14)
        client.push("EURUSD", first, second)


HALF_PAST = [(datetime(2024, 3, 4, 9, 30), 30)]
TWO_PHASES = [(datetime(2024, 3, 4, 9, 15), 40), (datetime(2024, 3, 6, 10), 3)]
NEW_YORK = [(datetime(2024, 3, 4, 2), 30)]


@pytest.mark.parametrize(
    ("timeframe", "parts", "stamp", "is_taken"),
    [
        ("1h", HALF_PAST, datetime(2024, 3, 8, 9, 30), True),
        ("1h", HALF_PAST, datetime(2024, 3, 8, 9), False),
        ("1h", TWO_PHASES, datetime(2024, 3, 6, 14, 15), True),
        ("1h", TWO_PHASES, datetime(2024, 3, 6, 14, 45), False),
        *(("4h", NEW_YORK, datetime(2024, 3, 10, 22 + late), True) for late in (-1, 0, 1)),
        ("4h", NEW_YORK, datetime(2024, 3, 10, 20), False),
    ],
)
def test_bars_stay_on_the_grid_of_their_asset(
    tiny: TinyRun,
    tmp_path: Path,
    timeframe: str,
    parts: list[tuple[datetime, int]],
    stamp: datetime,
    is_taken: bool,
) -> None:
    """US equity hours begin at half past; a folder may hold stamps of two phases; four-hour bars
    that follow New York's clock are an hour off after one of its changes.
    """
    trained, file = load_checkpoint(tiny.run / "best.safetensors"), tmp_path / "model.safetensors"
    tokenizer = replace(trained.tokenizer, timeframe=timeframe)
    save_checkpoint(file, trained.model, tokenizer, trained.provenance)
    step = timedelta(hours=int(timeframe[0]))
    frames = [random_bars(count, start=start, step=step) for start, count in parts]
    write_symbol(tmp_path / "bars", "EURUSD", pl.concat(frames))
    live = live_assets(tiny, tmp_path / "state", run=file, folder=tmp_path / "bars")
    bar = bar_row(**moved(tiny.later["EURUSD"][0], stamp))
    with nullcontext() if is_taken else pytest.raises(DataError, match="between the stamps"):
        live.push("EURUSD", [bar])
    live.store.close()


def test_a_folder_with_bars_of_the_future_is_refused(tiny: TinyRun, tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(60, start=datetime(2098, 1, 1)))
    with pytest.raises(DataError, match="future") as refused:
        Service(config_of(tiny, tmp_path / "state", bars=tmp_path / "bars"))
    assert "EURUSD" in str(refused.value.where)


def test_the_metrics_of_removed_bars_are_gone(tiny: TinyRun, tmp_path: Path) -> None:

    config = config_of(tiny, tmp_path, bars=tiny.bars, api_keys=("secret",))
    with served(config) as (client, _):
        client.push("EURUSD", *tiny.later["EURUSD"][:1])
        assert 'last_bar_seconds{asset="EURUSD"}' in client.get("/metrics").text
        path = "/v1/assets/EURUSD/bars?after=1999-01-01T00:00:00"
        assert client.delete(path).status_code == 200
        told = client.get("/metrics").text
        assert 'vaiom_last_bar_seconds{asset="XAUUSD"}' in told
        # What was counted since the start is not taken back.
        assert [line.split("{")[0] for line in told.splitlines() if "EURUSD" in line] == [
            "vaiom_bars_total"
        ]


@pytest.mark.parametrize("after", [-1, 6, 8])
@pytest.mark.parametrize("changes", [None, {}, WINDOWED], ids=["alone", "reads others", "windowed"])
def test_what_is_left_is_as_if_removed_bars_had_never_come(
    tiny: TinyRun, tmp_path: Path, after: int, changes: dict[str, Any] | None
) -> None:
    """Also of bars that a folder brought, and after a restart."""
    run = tiny.run if changes is None else reading_others(tiny, tmp_path, changes)
    bars = {each: [bar_row(**bar) for bar in tiny.later[each][:12]] for each in SYMBOLS}
    stamp = bars["EURUSD"][after].datetime
    if after < 0:
        stamp = tiny.history["EURUSD"]["Datetime"][after - 5]

    def live(state: str, number: int, **options: Any) -> LiveAssets:
        assets = live_assets(tiny, tmp_path / state, run=run, **options)
        for at in range(12):
            if at < number:
                assets.push("EURUSD", bars["EURUSD"][at : at + 1])
            assets.push("XAUUSD", bars["XAUUSD"][at : at + 1])
        return assets

    cut = live("cut", 12, folder=tiny.bars)
    assert cut.cut("EURUSD", stamp) == (11 - after if after >= 0 else 12 + 5)
    if after < 0:
        whole_folder = tmp_path / "bars"
        for symbol, frame in tiny.history.items():
            kept = frame.filter(pl.col("Datetime") <= stamp) if symbol == "EURUSD" else frame
            write_symbol(whole_folder, symbol, kept)
    whole = live("whole", after + 1, folder=tiny.bars if after >= 0 else tmp_path / "bars")
    for _ in range(2):
        assert_same_streams(cut.online, whole.online)
        assert cut.bars == whole.bars
        assert cut.settled["EURUSD"] == whole.settled.get("EURUSD", ())
        for symbol in SYMBOLS:
            ours, theirs = (each.newest(symbol) for each in (cut, whole))
            assert ours is not None
            assert theirs is not None
            np.testing.assert_allclose(ours.probs, theirs.probs, atol=1e-6)
        cut.store.close()
        cut = live_assets(tiny, tmp_path / "cut", run=run)
    cut.store.close()
    whole.store.close()


def test_bars_are_removed_over_http(tiny: TinyRun, tmp_path: Path) -> None:
    bars = tiny.later["EURUSD"]
    number = len(tiny.history["EURUSD"])
    path = "/v1/assets/EURUSD/bars?after="

    config = config_of(tiny, tmp_path, bars=tiny.bars, api_keys=("secret",))
    with served(config) as (client, _):
        client.push("EURUSD", *bars[:4])
        refusal(client.delete(path + bars[1]["datetime"], headers={"X-API-Key": ""}), 401)
        unknown = "/v1/assets/GBPUSD/bars?after=2024-01-01T00:00:00"
        refusal(client.delete(unknown), 404)
        refusal(client.delete(path + "yesterday"), 422)
        answer = client.delete(path + bars[1]["datetime"])
        told = {"symbol": "EURUSD", "removed": 2, "num_bars": number + 2}
        assert answer.json() == {**told, "as_of": bars[1]["datetime"]}
        answer = client.delete(path + "1970-01-01T00:00:00")
        told = {"symbol": "EURUSD", "removed": number + 2, "num_bars": 0, "as_of": None}
        assert answer.json() == told


def test_without_keys_nobody_removes_bars(tiny: TinyRun, tmp_path: Path) -> None:

    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, service):
        before = service.live.online
        path = "/v1/assets/EURUSD/bars?after=2024-01-01T00:00:00"
        error = refusal(client.delete(path), 401)
        assert "vaiom state" in error["fix"]
        assert service.live.online is before


def test_an_asset_that_was_forgotten_begins_again(tiny: TinyRun, tmp_path: Path) -> None:
    """With the bars that are pushed then, or with those of the folder at the next start."""
    assets = live_assets(tiny, tmp_path, folder=tiny.bars)
    number = len(tiny.history["EURUSD"])
    assert assets.cut("EURUSD", datetime(1970, 1, 1)) == number
    assert [*assets.online.streams] == ["XAUUSD"]
    assert assets.newest("EURUSD") is None
    assets.push("EURUSD", [bar_row(**each) for each in tiny.later["EURUSD"][:3]])
    assert assets.online.streams["EURUSD"].num_bars == 3
    assets.cut("EURUSD", datetime(1970, 1, 1))
    assets.store.close()
    again = live_assets(tiny, tmp_path, folder=tiny.bars)
    assert again.online.streams["EURUSD"].num_bars == number
    again.store.close()


def test_a_kill_while_a_folder_is_brought_in_leaves_a_state_as_if_undisturbed(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """Before and after every transaction of the start the files are set aside, and a service goes
    on from there.
    """
    forecaster, state = Forecaster.load(tiny.run), tmp_path / "whole"
    store, aside = Store(state, forecaster.card.sha256), list[Path]()

    def keep(statement: str) -> None:
        if statement.startswith(("BEGIN", "COMMIT")):
            aside.append(Path(shutil.copytree(state, tmp_path / str(len(aside)))))

    store._db.set_trace_callback(keep)
    whole = LiveAssets(forecaster, store, 0.0, folder=tiny.bars)
    assert len(aside) >= 4
    for each in aside:
        again = live_assets(tiny, each, folder=tiny.bars)
        assert_same_streams(again.online, whole.online)
        again.store.close()
    store.close()


def test_a_cut_that_fails_removes_nothing(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk fails only when what is left is read again."""
    assets = live_assets(tiny, tmp_path, folder=tiny.bars)
    assets.push("EURUSD", [bar_row(**each) for each in tiny.later["EURUSD"][:3]])
    before, online = assets.store.last_bars("EURUSD", 9_999), assets.online

    def fails(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "bars", fails)
        with pytest.raises(RefusalError, match="nothing was removed"):
            assets.cut("EURUSD", before[-3].datetime)
    assert assets.store.last_bars("EURUSD", 9_999) == before
    assert assets.online is online
    assert assets.cut("EURUSD", before[-3].datetime) == 2
    assert assets.store.last_bars("EURUSD", 9_999) == before[:-2]
    assets.store.close()


def test_nothing_is_removed_without_a_record_of_it(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forecasts that followed a wrong bar could not be told from false ones."""
    bars = tiny.later["EURUSD"][:2]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    options = {"bars": tiny.bars, "ledger": tmp_path / "ledger.jsonl", "api_keys": ("secret",)}
    with served(config_of(tiny, tmp_path / "state", **options)) as (client, service):
        client.push("EURUSD", *bars)
        with monkeypatch.context() as patch:
            patch.setattr("vaiom.forecast.ledger.ForecastLedger._append", full)
            url = f"/v1/assets/EURUSD/bars?after={bars[0]['datetime']}"
            error = refusal(client.delete(url), 503)
            assert error["problem"] == "the removal could not be put on record"
            assert service.live.online.streams["EURUSD"].last.isoformat() == bars[1]["datetime"]
            number = len(tiny.history["EURUSD"])
            assert len(service.store.last_bars("EURUSD", 9_999)) == number + 2
        answer = client.delete(url)
        assert (answer.status_code, answer.json()["removed"]) == (200, 1)
        removal = [
            each for _, each in read_ledger(tmp_path / "ledger.jsonl") if isinstance(each, Removal)
        ]
        assert removal == [
            Removal(symbol="EURUSD", after=datetime.fromisoformat(bars[0]["datetime"]))
        ]


def test_forecasts_of_the_past_are_not_kept_of_what_was_forgotten_meanwhile(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """Also where bars have come again since."""
    assets = live_assets(tiny, tmp_path, folder=tiny.bars, backfill=4)
    past = {symbol: assets.past_forecasts(symbol) for symbol in SYMBOLS}
    assets.cut("XAUUSD", datetime(1970, 1, 1))
    assets.push("XAUUSD", [bar_row(**each) for each in tiny.later["XAUUSD"][:3]])
    for symbol, made in past.items():
        assets.settle_past(symbol, *made)
    assert len(assets.settled["EURUSD"]) == 4
    assert not assets.settled["XAUUSD"]
    assets.store.close()


def test_the_command_looks_cuts_and_rebuilds(
    tiny: TinyRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def vaiom(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["vaiom", "state", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    def shown() -> Any:
        return json.loads(vaiom(state, "--json")[1])["assets"]

    state, bars = tmp_path / "state", [bar_row(**each) for each in tiny.later["EURUSD"][:4]]
    assert "no such state" in vaiom(state)[2]
    assert not state.exists()
    assets = live_assets(tiny, state, folder=tiny.bars)
    assets.push("EURUSD", bars[:2])
    whole = assets.online
    assets.push("EURUSD", bars[2:])
    code, _, said = vaiom(state)
    assert (code, "one service holds" in said) == (2, True)
    assets.store.close()
    eurusd, xauusd = shown()
    numbers = {symbol: len(frame) for symbol, frame in tiny.history.items()}
    first = tiny.history["EURUSD"]["Datetime"][0].isoformat()
    last, after = (bars[at].datetime.isoformat() for at in (3, 1))
    stored = {"symbol": "EURUSD", "bars": numbers["EURUSD"] + 4, "first": first, "last": last}
    assert eurusd == {**stored, "settled": 2}
    assert xauusd["bars"] == numbers["XAUUSD"]
    assert json.loads(vaiom(state, "--json")[1])["removed"] == 0
    code, _, said = vaiom(state)
    assert (code, said) == (0, "")
    assert "no such asset is stored" in vaiom(state, "--symbol", "GBPUSD")[2]
    record = ForecastLedger(tmp_path / "ledger.jsonl", "")
    # The service still writes the ledger.
    code, _, said = vaiom(state, "--after", after, "--ledger", record.file)
    assert (code, "another process is writing" in said, shown()) == (2, True, [eurusd, xauusd])
    record.close()
    code, _, said = vaiom(state, "--after", after, "--ledger", record.file)
    assert (code, said) == (0, "2 bars removed\n")
    removals = [Removal(symbol=symbol, after=bars[1].datetime) for symbol in SYMBOLS]
    assert [entry for _, entry in read_ledger(record.file)] == removals
    left = {**eurusd, "bars": numbers["EURUSD"] + 2, "last": after, "settled": 1}
    assert shown() == [left, xauusd]
    assert vaiom(state, "--rebuild")[0] == 0
    again = live_assets(tiny, state)
    assert_same_streams(again.online, whole)
    again.store.close()
