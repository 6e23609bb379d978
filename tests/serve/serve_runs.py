"""What the tests of this folder share: bars as JSON, a service in this process, a service in another one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import polars as pl

from vaiom.serve.app import Service, make_app
from vaiom.serve.run import ServeConfig

CONTEXT = 32
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
        {name.lower(): value.isoformat() if name == "Datetime" else value for name, value in bar.items()}
        for bar in frame.iter_rows(named=True)
    ]


def config_of(tiny: TinyRun, state: Path, **changes: Any) -> ServeConfig:
    return ServeConfig(**{"run": tiny.run, "state": state, "backfill": 4, "threads": 1, **changes})


@asynccontextmanager
async def in_process(config: ServeConfig) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    """A started service and a client that talks to it without a network."""
    service = Service(config)
    app = make_app(service)
    service.start()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        assert (await client.get("/readyz")).status_code == 503
        while not service.is_ready or service.replays:
            await asyncio.sleep(0.005)
        yield client, service
    await service.stop()


@contextmanager
def subprocess_server(tiny: TinyRun, state: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`vaiom serve` as a user starts it, on a free port; killed at the end unless it has ended."""
    port = free_port()
    command = [sys.executable, "-m", "vaiom", "serve", str(tiny.run), "--state", str(state), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--threads", "1", "--backfill", "24", *options], text=True, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(address, process)
        yield address, process
    finally:
        process.kill()
        process.communicate()


def wait_until_ready(address: str, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        assert process.poll() is None, process.communicate()[1]
        try:
            if httpx.get(f"{address}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the service did not become ready")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
