"""What fails inside a service, and what goes on all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_runs import SYMBOLS, TinyRun, as_json, config_of, in_process, served
from test_service_refusals import refusal

from vaiom.errors import DataError
from vaiom.serve.follow import Follower
from vaiom.serve.refusals import RefusalError
from vaiom.serve.server import serve
from vaiom.serve.service import Service


def failing(real: Callable[..., Any], times: int, error: Exception) -> Callable[..., Any]:
    """Fails at first, then works."""
    left = times

    def call(*values: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error
        return real(*values)

    return call


@pytest.mark.parametrize("where", ["model", "disk"])
def test_backfill_goes_on_when_the_service_was_too_busy(
    tiny: TinyRun, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where fewer forecasts may wait than the model takes together."""
    busy, waits = RefusalError(503, "too busy", retry_after=7), list[float]()
    real = Service.start

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("vaiom.serve.service.asyncio.sleep", wait)

    def start(self: Service) -> None:
        real(self)
        if where == "disk":
            self.live.settle_past = failing(self.live.settle_past, 3, busy)  # type: ignore[method-assign]
        else:
            make, left = self._in_model_thread, 12

            async def run(*values: Any) -> Any:
                nonlocal left
                left -= self.is_ready
                if self.is_ready and left >= 0:
                    raise busy
                return await make(*values)

            self._in_model_thread = run  # type: ignore[assignment,method-assign]

    monkeypatch.setattr(Service, "start", start)

    async def run() -> int:
        config = config_of(tiny, tmp_path, bars=tiny.bars, backfill=20, max_waiting=3)
        async with in_process(config) as (client, service):
            assert not service.live.replays
            history = await client.get("/v1/assets/EURUSD/history")
            return len(history.json()["forecasts"])

    assert asyncio.run(run()) == 20
    assert waits == [7] * (3 if where == "disk" else 12)


def test_a_service_that_stops_waits_for_no_forecasts_of_the_past(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """Only for what is being stored; it then takes no more."""

    async def run() -> None:
        service, tried = Service(config_of(tiny, tmp_path, bars=tiny.bars)), asyncio.Event()
        loop = asyncio.get_running_loop()

        def fails(*_: Any) -> None:
            loop.call_soon_threadsafe(tried.set)
            raise RefusalError(503, "the disk is full", retry_after=3_600)

        service.live.settle_past = fails  # type: ignore[method-assign]
        service.start()
        await tried.wait()
        assert service.is_ready
        await service.stop()
        assert not service.is_ready
        for executor in (service._state, service._model):
            with pytest.raises(RuntimeError, match="after shutdown"):
                executor.submit(print)
        Service(config_of(tiny, tmp_path)).store.close()

    asyncio.run(run())


def test_forecasts_of_the_past_that_cannot_be_made_cost_no_others(
    tiny: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[int]:
        service = Service(config_of(tiny, tmp_path, bars=tiny.bars, backfill=20))
        service.start()
        settle = failing(service.live.settle_past, 1, RuntimeError("a bug"))
        service.live.settle_past = settle  # type: ignore[method-assign]
        await service._warming_up
        made = [len(service.live.settled.get(symbol, ())) for symbol in SYMBOLS]
        await service.stop()
        return made

    assert sorted(asyncio.run(run())) == [0, 20]
    assert "forecasts of past bars failed" in caplog.text


def test_an_asset_without_a_first_forecast_keeps_no_other_from_serving(
    tiny: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        service = Service(config_of(tiny, tmp_path, bars=tiny.bars, backfill=0))
        service.start()
        service.live.newest = failing(service.live.newest, 1, DataError("no scale"))  # type: ignore[method-assign]
        await service._warming_up
        assert service.is_ready
        assert "no forecast of EURUSD: no scale" in caplog.text
        await service.stop()

    asyncio.run(run())


def test_a_service_that_stops_follows_no_more(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()
    monkeypatch.setattr("vaiom.serve.follow.Follower.step", lambda self: 3_600.0)
    real = Follower.run
    monkeypatch.setattr(Follower, "run", lambda self: (real(self), stopped.set()))
    (tmp_path / "bars").mkdir()

    config = config_of(
        tiny, tmp_path / "state", follow=str(tmp_path / "bars"), utc_offset=timedelta(hours=2)
    )
    with served(config) as (client, service):
        assert service.follower
        assert service.follower.utc_offset == timedelta(hours=2)
        feeds = client.read("/readyz")["feeds"]
        health = {
            "lag_seconds": None,
            "failures": 0,
            "problem": None,
            "corrections": 0,
            "clock_drift_seconds": 0.0,
        }
        assert feeds == dict.fromkeys(SYMBOLS, health)
        assert not stopped.is_set()
        [thread] = [each for each in threading.enumerate() if each.name == "follow"]
        assert thread.daemon  # a source that does not answer keeps no process
    assert service.follower.stop.is_set()
    stopped.wait()


def test_a_model_that_cannot_forecast_ends_the_service(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any, windows: Any, *__: Any, **___: Any) -> Any:
        if list(windows):
            raise RuntimeError("a broken model")
        return []

    monkeypatch.setattr("vaiom.forecast.forecaster.Forecaster.forecast", broken)
    with pytest.raises(RuntimeError, match="a broken model"):
        serve(config_of(tiny, tmp_path, bars=tiny.bars), "127.0.0.1", 0, lambda address: None)
    assert "first forecasts failed" in caplog.text


def test_unknown_symbols_leave_nothing_behind(tiny: TinyRun, tmp_path: Path) -> None:

    keys = {"X-API-Key": "secret"}
    with served(config_of(tiny, tmp_path, api_keys=("secret",))) as (client, service):
        for number in range(5):
            path = f"/v1/assets/X{number}"
            answers: list[httpx.Response] = [
                client.get(f"{path}/forecast", headers=keys),
                client.get(f"{path}/history", headers=keys),
                client.post(f"{path}/bars", json={"bars": tiny.later["EURUSD"][:1]}, headers=keys),
                client.delete(f"{path}/bars?after=2024-01-01T00:00:00", headers=keys),
            ]
            for answer in answers:
                refusal(answer, 404)
            bars = as_json(tiny.history["EURUSD"].tail(40))
            body = {"symbol": f"X{number}", "bars": bars}
            assert client.post("/v1/forecast", json=body, headers=keys).status_code == 200
        assert not service._locks
        assert "X0" not in service.forecaster._metas
        assert b'asset="X' not in client.get("/metrics", headers=keys).content
