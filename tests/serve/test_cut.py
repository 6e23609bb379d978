"""Bars that would shut out the real ones are refused, and what is stored can be looked at, cut and
rebuilt.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_runs import CONTEXT, TinyRun, as_json, bar_row, config_of, in_process
from test_service_refusals import refusal

from strategies import random_bars
from vaiom.cli.main import main
from vaiom.errors import DataError
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import ForecastLedger, Removal, read_ledger
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.serve.app import Service
from vaiom.serve.schemas import RefusalError
from vaiom.serve.state import LiveAssets
from vaiom.serve.store import Store

KEY = {"X-API-Key": "secret"}


def moved(bar: dict[str, Any], stamp: datetime) -> dict[str, Any]:
    return {**bar, "datetime": stamp.isoformat()}


async def push(
    client: httpx.AsyncClient, *bars: dict[str, Any], symbol: str = "EURUSD"
) -> httpx.Response:
    return await client.post(f"/v1/assets/{symbol}/bars", json={"bars": list(bars)}, headers=KEY)


def stored(service: Service) -> str:
    return json.dumps(
        [service.live.online.to_json(), service.store.last_bars("EURUSD", 9_999)], default=str
    )


def test_bars_of_the_future_and_between_the_stamps_are_refused(
    tiny: TinyRun, tmp_path: Path
) -> None:
    first, second = tiny.later["EURUSD"][:2]
    at = datetime.fromisoformat(second["datetime"])

    async def run() -> None:
        async with in_process(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, service):
            before = stored(service)
            for wrong, words, ahead in (
                ([moved(first, datetime(2099, 1, 1))], "future", 0.0),
                ([first, second], "future", 15.1),
                ([moved(first, at + timedelta(minutes=30))], "between", 0.0),
                ([first, moved(second, at + timedelta(minutes=59))], "between", 0.0),
            ):
                service.live.clock = lambda: at - timedelta(hours=ahead)  # noqa: B023
                error = refusal(await push(client, *wrong), 422)
                assert words in error["problem"]
                assert error["got"] == wrong[-1]["datetime"]
                assert error["expected"]
                assert error["fix"]
                assert f"row {len(wrong)}" in error["where"]
                assert (stored(service) == before) is True
            # A clock of a zone that is ahead of UTC.
            service.live.clock = lambda: at - timedelta(hours=14)
            assert (await push(client, first, second)).status_code == 200

    asyncio.run(run())


def test_the_grid_is_the_assets_own(tiny: TinyRun, tmp_path: Path) -> None:
    """US equity hours begin at half past; an asset's first bar says where its own begin."""
    bars = as_json(random_bars(40, start=datetime(2024, 3, 4, 9, 30)))

    async def run() -> None:
        async with in_process(config_of(tiny, tmp_path)) as (client, _):
            assert (await push(client, *bars[:30])).status_code == 200
            assert (
                "between"
                in refusal(await push(client, moved(bars[30], datetime(2024, 3, 8, 9))), 422)[
                    "problem"
                ]
            )
            assert (await push(client, *bars[30:])).status_code == 200

    asyncio.run(run())


def test_an_asset_goes_on_at_any_phase_that_it_had(tiny: TinyRun, tmp_path: Path) -> None:
    """A folder may hold stamps of two phases: the older one is no other grid."""
    quarter, full = (
        random_bars(40, start=datetime(2024, 3, 4, 9, 15)),
        random_bars(3, start=datetime(2024, 3, 6, 10)),
    )
    write_symbol(tmp_path / "bars", "EURUSD", quarter.vstack(full))
    bars = as_json(random_bars(1, start=datetime(2024, 3, 6, 14, 15)))

    async def run() -> None:
        async with in_process(config_of(tiny, tmp_path / "state", bars=tmp_path / "bars")) as (
            client,
            _,
        ):
            refusal(await push(client, moved(bars[0], datetime(2024, 3, 6, 14, 45))), 422)
            assert (await push(client, *bars)).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(("later", "code"), [(48, 200), (47, 200), (49, 200), (46, 422)])
def test_longer_bars_may_move_with_summer_time(
    tiny: TinyRun, tmp_path: Path, later: int, code: int
) -> None:
    """Four-hour bars that follow New York's clock are an hour off after one of its changes."""
    trained, file = load_checkpoint(tiny.run / "best.safetensors"), tmp_path / "model.safetensors"
    save_checkpoint(
        file, trained.model, replace(trained.tokenizer, timeframe="4h"), trained.provenance
    )
    bars = as_json(random_bars(31, start=datetime(2024, 3, 4, 2), step=timedelta(hours=4)))
    stamp = datetime.fromisoformat(bars[29]["datetime"]) + timedelta(hours=later)

    async def run() -> None:
        async with in_process(config_of(tiny, tmp_path / "state", run=file)) as (client, _):
            assert (await push(client, *bars[:30])).status_code == 200
            assert (await push(client, moved(bars[30], stamp))).status_code == code

    asyncio.run(run())


def test_a_folder_with_bars_of_the_future_is_refused(tiny: TinyRun, tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(60, start=datetime(2098, 1, 1)))
    with pytest.raises(DataError, match="future") as refused:
        Service(config_of(tiny, tmp_path / "state", bars=tmp_path / "bars"))
    assert "EURUSD" in str(refused.value.where)


def test_the_metrics_of_removed_bars_are_gone(tiny: TinyRun, tmp_path: Path) -> None:
    async def run() -> None:
        config = config_of(tiny, tmp_path, bars=tiny.bars, api_keys=("secret",))
        async with in_process(config) as (client, _):
            await push(client, *tiny.later["EURUSD"][:1])
            assert (
                'last_bar_seconds{asset="EURUSD"}'
                in (await client.get("/metrics", headers=KEY)).text
            )
            path = "/v1/assets/EURUSD/bars?after=1999-01-01T00:00:00"
            assert (await client.delete(path, headers=KEY)).status_code == 200
            told = (await client.get("/metrics", headers=KEY)).text
            assert 'vaiom_last_bar_seconds{asset="XAUUSD"}' in told
            # What was counted since the start is not taken back.
            assert [line.split("{")[0] for line in told.splitlines() if "EURUSD" in line] == [
                "vaiom_bars_total"
            ]

    asyncio.run(run())


@pytest.mark.parametrize("restarted", [False, True])
def test_bars_are_cut_and_what_is_left_is_as_if_they_had_never_come(
    tiny: TinyRun, tmp_path: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaiom.serve.state.SNAPSHOT_EVERY", 3)
    bars, after = tiny.later["EURUSD"][:12], tiny.later["EURUSD"][6]["datetime"]

    async def run(state: str, number: int, cut: bool) -> tuple[str, Any, Any]:
        config = config_of(tiny, tmp_path / state, bars=tiny.bars, api_keys=("secret",))
        async with in_process(config) as (client, _):
            for each in bars[:number]:
                assert (await push(client, each)).status_code == 200
            if not restarted and cut:
                await remove(client)
        async with in_process(config) as (client, service):
            if restarted and cut:
                await remove(client)
            history = (await client.get("/v1/assets/EURUSD/history", headers=KEY)).json()
            forecast = (await client.get("/v1/assets/EURUSD/forecast", headers=KEY)).json()
            left = json.dumps(service.live.online.to_json())
            forgotten = await client.delete(
                "/v1/assets/EURUSD/bars?after=1970-01-01T00:00:00", headers=KEY
            )
            stored = {"symbol": "EURUSD", "removed": CONTEXT + 7, "num_bars": 0, "as_of": None}
            assert forgotten.json() == stored
            return left, history, forecast

    async def remove(client: httpx.AsyncClient) -> None:
        url = f"/v1/assets/EURUSD/bars?after={after}"
        refusal(await client.delete(url), 401)
        answer = await client.delete(url, headers=KEY)
        assert answer.json() == {
            "symbol": "EURUSD",
            "removed": 5,
            "num_bars": 1580 + 7,
            "as_of": after,
        }
        refusal(
            await client.delete("/v1/assets/GBPUSD/bars?after=2024-01-01T00:00:00", headers=KEY),
            404,
        )
        refusal(await client.delete("/v1/assets/EURUSD/bars?after=yesterday", headers=KEY), 422)

    cut, whole = asyncio.run(run("cut", 12, True)), asyncio.run(run("whole", 7, False))
    assert (cut[0] == whole[0]) is True
    assert cut[1]["bars"] == whole[1]["bars"]
    assert len(cut[1]["forecasts"]) == len(whole[1]["forecasts"]) == 11
    assert cut[2]["probs"] == pytest.approx(whole[2]["probs"], abs=1e-6)


def test_without_keys_nobody_removes_bars(tiny: TinyRun, tmp_path: Path) -> None:
    async def run() -> None:
        async with in_process(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, service):
            before = stored(service)
            error = refusal(
                await client.delete("/v1/assets/EURUSD/bars?after=2024-01-01T00:00:00"), 401
            )
            assert "vaiom state" in error["fix"]
            assert (stored(service) == before) is True

    asyncio.run(run())


def live(tiny: TinyRun, state: Path) -> LiveAssets:
    """What a service has, without the service."""
    forecaster = Forecaster.load(tiny.run)
    return LiveAssets(forecaster, Store(state, forecaster.card.sha256), 0.0)


def test_a_history_that_is_not_stored_is_not_cut_but_can_be_forgotten(
    tiny: TinyRun, tmp_path: Path
) -> None:
    bars, tmp_path = tmp_path / "bars", tmp_path / "state"
    write_symbol(bars, "EURUSD", tiny.history["EURUSD"])
    write_symbol(bars, "XAUUSD", tiny.history["XAUUSD"][:-5])
    assets = live(tiny, tmp_path)
    assets.load_folder(bars, 0)
    last, sooner = (
        stream.last for stream in (assets.online.streams[symbol] for symbol in ("EURUSD", "XAUUSD"))
    )
    for after in (last - timedelta(hours=1), sooner):
        with pytest.raises(RefusalError, match="no longer stored") as refused:
            assets.cut("EURUSD", after)
        assert refused.value.where == "EURUSD"
    assert assets.online.streams["EURUSD"].last == last
    assert assets.cut("EURUSD", last) == assets.cut("XAUUSD", sooner) == 0
    assert assets.cut("EURUSD", datetime(1970, 1, 1)) == CONTEXT
    assert [*assets.online.streams] == ["XAUUSD"]
    assets.store.close()
    again = live(tiny, tmp_path)
    assert [*again.online.streams] == ["XAUUSD"]
    again.load_folder(bars, 0)
    assert again.online.streams["EURUSD"].num_bars == len(tiny.history["EURUSD"])
    again.store.close()


def test_what_comes_after_an_asset_was_forgotten_is_kept(tiny: TinyRun, tmp_path: Path) -> None:
    """Also where the bars that were removed had been the last to arrive."""
    assets = live(tiny, tmp_path)
    assets.load_folder(tiny.bars, 0)
    assets.cut("XAUUSD", datetime(1970, 1, 1))
    bars = [bar_row(**each) for each in tiny.later["EURUSD"][:3]]
    assets.push("EURUSD", bars)
    assert assets.store.num_since_snapshot == 3
    assets.cut("EURUSD", bars[1].datetime)
    assert assets.online.streams["EURUSD"].num_bars == len(tiny.history["EURUSD"]) + 2
    assert assets.store.num_since_snapshot == 0  # the next start computes nothing again
    assets.store.close()


def test_a_kill_while_a_folder_is_brought_in_leaves_a_state_as_if_undisturbed(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """Before and after every transaction of the start the file is set aside, and a service goes on
    from there.
    """
    whole, aside = live(tiny, tmp_path / "whole"), []

    def keep(statement: str) -> None:
        if statement.startswith(("BEGIN", "COMMIT")):
            aside.append(shutil.copytree(tmp_path / "whole", tmp_path / str(len(aside))))

    whole.store._db.set_trace_callback(keep)
    whole.load_folder(tiny.bars, 0)
    assert len(aside) >= 4
    for state in aside:
        again = live(tiny, state)
        again.load_folder(tiny.bars, 0)
        assert (
            again.online.to_json() == whole.online.to_json()
        ) is True  # not shown: they are long
        again.store.close()
    whole.store.close()


def test_a_cut_that_fails_removes_nothing(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk fails only when what is left is read again."""
    assets = live(tiny, tmp_path)
    assets.load_folder(tiny.bars, 0)
    assets.push("EURUSD", [bar_row(**each) for each in tiny.later["EURUSD"][:3]])
    before = assets.store.last_bars("EURUSD", 9_999)

    def fails(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("vaiom.serve.store.Store._bar", fails)
        with pytest.raises(RefusalError, match="nothing was removed"):
            assets.cut("EURUSD", before[-3].datetime)
    assert assets.store.last_bars("EURUSD", 9_999) == before
    assert assets.online.streams["EURUSD"].last == before[-1].datetime
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

    async def run() -> None:
        options = {"bars": tiny.bars, "ledger": tmp_path / "ledger.jsonl", "api_keys": ("secret",)}
        async with in_process(config_of(tiny, tmp_path / "state", **options)) as (client, service):
            assert (await push(client, *bars)).status_code == 200
            with monkeypatch.context() as patch:
                patch.setattr("vaiom.forecast.ledger.ForecastLedger._append", full)
                url = f"/v1/assets/EURUSD/bars?after={bars[0]['datetime']}"
                error = refusal(await client.delete(url, headers=KEY), 503)
                assert error["problem"] == "the removal could not be put on record"
                assert service.live.online.streams["EURUSD"].last.isoformat() == bars[1]["datetime"]
                assert len(service.store.last_bars("EURUSD", 9_999)) == CONTEXT + 2
            answer = await client.delete(url, headers=KEY)
            assert (answer.status_code, answer.json()["removed"]) == (200, 1)
            removal = [
                each
                for _, each in read_ledger(tmp_path / "ledger.jsonl")
                if isinstance(each, Removal)
            ]
            assert removal == [
                Removal(symbol="EURUSD", after=datetime.fromisoformat(bars[0]["datetime"]))
            ]

    asyncio.run(run())


def test_forecasts_of_the_past_are_not_kept_of_what_was_forgotten_meanwhile(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """Also where bars have come again since."""
    assets = live(tiny, tmp_path)
    replays = assets.load_folder(tiny.bars, 4)
    assets.cut("XAUUSD", datetime(1970, 1, 1))
    assets.push("XAUUSD", [bar_row(**each) for each in tiny.later["XAUUSD"][:3]])
    assets.settle_replays(
        replays, assets.forecaster.forecast_consecutive([window for window, _ in replays])
    )
    assert {symbol: len(settled) for symbol, settled in assets.settled.items() if settled} == {
        "EURUSD": 4
    }
    assets.store.close()


def test_a_disk_that_cannot_be_read_is_told_in_words(tiny: TinyRun, tmp_path: Path) -> None:
    assets = live(tiny, tmp_path)
    assets.store._db.close()
    with pytest.raises(RefusalError, match="could not be read"):
        assets.store.last_bars("EURUSD", 1)


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
    assets = live(tiny, state)
    assets.load_folder(tiny.bars, 0)
    assets.push("EURUSD", bars[:2])
    whole = assets.online.to_json()
    assets.push("EURUSD", bars[2:])
    code, _, said = vaiom(state)
    assert (code, "one service holds" in said) == (2, True)
    assets.try_snapshot()
    assets.store.close()
    eurusd, xauusd = shown()
    folder_end, after = (
        each.isoformat() for each in (tiny.history["EURUSD"]["Datetime"][-1], bars[1].datetime)
    )
    assert (eurusd["bars"], xauusd["bars"]) == (CONTEXT + 4, CONTEXT)
    assert (eurusd["last"], eurusd["seeded_to"]) == (bars[3].datetime.isoformat(), folder_end)
    code, _, said = vaiom(state, "--after", folder_end[:10], "--symbol", "EURUSD")
    assert (code, "no longer stored" in said, shown()) == (2, True, [eurusd, xauusd])
    unasked = json.loads(vaiom(state, "--json")[1])
    assert unasked["removed"] == 0
    code, _, said = vaiom(state)
    assert (code, said) == (0, "")
    assert "no such asset is stored" in vaiom(state, "--symbol", "GBPUSD")[2]
    record = ForecastLedger(tmp_path / "ledger.jsonl", "")
    code, _, said = vaiom(
        state, "--after", after, "--ledger", record.file
    )  # the service still writes it
    assert (code, "another process is writing" in said, shown()) == (2, True, [eurusd, xauusd])
    record.close()
    code, _, said = vaiom(state, "--after", after, "--ledger", record.file)
    assert (code, said) == (0, "2 bars removed\n")
    removals = [Removal(symbol=symbol, after=bars[1].datetime) for symbol in ("EURUSD", "XAUUSD")]
    assert [entry for _, entry in read_ledger(record.file)] == removals
    assert shown() == [{**eurusd, "bars": CONTEXT + 2, "last": after, "scored": 1}, xauusd]
    again = live(tiny, state)
    again.try_snapshot()
    assert again.store.num_since_snapshot == 0
    again.store.close()
    assert vaiom(state, "--rebuild")[0] == 0
    again = live(tiny, state)
    assert again.store.num_since_snapshot == 2
    assert (again.online.to_json() == whole) is True
    again.store.close()
