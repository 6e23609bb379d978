"""What the tests of this folder share: bars as JSON, a service in this process, a service in
another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import torch

from training.tiny_runs import TINY
from vaiom.features.fields import CROSS_FIELDS
from vaiom.forecast.forecaster import Forecaster
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.model.vaiom import Vaiom
from vaiom.serve.app import make_app
from vaiom.serve.bar_store import Store
from vaiom.serve.follow import BarRow
from vaiom.serve.server import ServeConfig
from vaiom.serve.service import Service
from vaiom.serve.state import LiveAssets

CONTEXT = 32
BACKFILL = 24
"""Bars whose forecasts a service in another process makes again."""
SYMBOLS = ("EURUSD", "XAUUSD")


@dataclass(frozen=True)
class TinyRun:
    bars: Path
    """A bar folder that ends before `later` begins."""
    run: Path
    later: dict[str, list[dict[str, Any]]]
    """Bars that follow the folder's, as JSON."""
    history: dict[str, pl.DataFrame]


def as_json(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            name.lower(): value.isoformat() if name == "Datetime" else value
            for name, value in bar.items()
        }
        for bar in frame.iter_rows(named=True)
    ]


def bar_row(**bar: Any) -> BarRow:
    """A bar as the service has it after it was checked."""
    return BarRow(**{"volume": None, **bar, "datetime": datetime.fromisoformat(bar["datetime"])})


def config_of(tiny: TinyRun, state: Path, **changes: Any) -> ServeConfig:
    return ServeConfig(**{"run": tiny.run, "state": state, "backfill": 4, "threads": 1, **changes})


@asynccontextmanager
async def in_process(config: ServeConfig) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    """A started service and a client that talks to it without a network."""
    service = Service(config)
    transport = httpx.ASGITransport(app=make_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/readyz")).status_code == 503
        service.start()
        await service._warming_up
        yield client, service
    await service.stop()


class HttpClient(httpx.Client):
    """A client of a service in another process, which is as patient as a test must be."""

    def __init__(self, address: str = "", **options: Any) -> None:
        super().__init__(base_url=address, timeout=None, **options)

    def read(self, path: str, **options: Any) -> Any:
        """The JSON of a GET that is answered."""
        return self.get(path, **options).raise_for_status().json()

    def push(self, path: str, *bars: dict[str, Any]) -> None:
        """Bars that are taken."""
        self.post(path, json={"bars": bars}).raise_for_status()


class Client:
    """A client of a service in this process, for tests that do one thing at a time."""

    def __init__(self, runner: asyncio.Runner, client: httpx.AsyncClient) -> None:
        self.runner = runner
        self.client = client

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.request("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)

    def send(self, symbol: str, *bars: dict[str, Any]) -> httpx.Response:
        """The answer to a push."""
        return self.post(f"/v1/assets/{symbol}/bars", json={"bars": bars})

    def push(self, symbol: str, *bars: dict[str, Any]) -> dict[str, Any]:
        """A push that is taken."""
        answer = self.send(symbol, *bars)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def read(self, path: str, **options: Any) -> Any:
        """The JSON of a GET that is answered."""
        answer = self.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def served(config: ServeConfig) -> Iterator[tuple[Client, Service]]:
    """A started service, and a client that waits for each answer."""
    with asyncio.Runner() as runner:
        opened = in_process(config)
        client, service = runner.run(opened.__aenter__())
        try:
            if config.api_keys:
                client.headers["X-API-Key"] = config.api_keys[0]
            yield Client(runner, client), service
        finally:
            runner.run(opened.__aexit__(None, None, None))


def live_assets(tiny: TinyRun, state: Path, **options: Any) -> LiveAssets:
    """What a service has, without the service."""
    forecaster = Forecaster.load(options.pop("run", tiny.run))
    with ExitStack() as opened:
        store = opened.enter_context(closing(Store(state, forecaster.card.sha256)))
        live = LiveAssets(forecaster, store, 0.0, **options)
        opened.pop_all()
    return live


@contextmanager
def failing_disk(store: Store) -> Iterator[None]:
    """A disk that takes no writes for a while."""
    store._db.execute("PRAGMA query_only=ON")
    yield
    store._db.execute("PRAGMA query_only=OFF")


@contextmanager
def subprocess_server(
    tiny: TinyRun, state: Path, *options: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`vaiom serve` as a user starts it, on a port that is free; killed at the end unless it has
    ended.
    """
    command = [
        sys.executable,
        "-m",
        "vaiom",
        "serve",
        str(tiny.run),
        "--state",
        str(state),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--threads", "1", "--backfill", str(BACKFILL), *options],
        text=True,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        address = announced_address(process)
        while httpx.get(f"{address}/readyz", timeout=None).status_code != 200:
            time.sleep(0.05)
        yield address, process
    finally:
        process.kill()
        process.communicate()


def announced_address(process: subprocess.Popen[str]) -> str:
    """Where a service listens, as it says on stderr; whoever connects from then on is answered."""
    assert process.stderr
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(said)


def reading_others(tiny: TinyRun, folder: Path, changes: dict[str, Any]) -> Path:
    """An untrained model that reads other assets, with the tokenizer of the tiny run."""
    trained = load_checkpoint(tiny.run / "best.safetensors")
    config = TINY.with_changes(context=CONTEXT, fields=("ret_z", *CROSS_FIELDS), **changes).model
    torch.manual_seed(0)
    file = folder / "model.safetensors"
    save_checkpoint(
        file,
        Vaiom(config, trained.tokenizer.vocabulary_sizes),
        trained.tokenizer,
        trained.provenance,
    )
    return file
