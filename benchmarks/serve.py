"""Served forecasts: live ones a second, against a server that runs one pass over 512 rows for each
request.

Enters: nothing; the best and the main model with random weights, which cost the same as trained
ones, and a simulated market. Leaves: a `Measurement` of live bars of many clients, each with an
asset of its own, there and back with the forecast, against as many clients of a server of the main
model that post their windows. `extra` has the times of one client alone: of a live bar with the
disk flush, and of a posted history for the first time and again. Both servers are processes on this
machine with the same threads, asked in turns.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.load import Load, post, run_load
from benchmarks.race import Measurement
from benchmarks.serve_plain import plain_forecast
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.errors import VaiomError
from vaiom.experiments.registry import experiment
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import Provenance, save_checkpoint
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import Vaiom
from vaiom.simulation.market import MarketConfig, simulate

CLIENTS = 32
ROUNDS = 3
SECONDS = 3.0
ALONE = 100  # live bars, and posted histories, of one client alone
LATER = 600  # bars that are kept back to be pushed
MARKET = MarketConfig(assets=4, bars=20_000)
START_SECONDS = 60

_PATH = "/v1/forecast"


def run(_bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """The benchmark with `best`, beside a plain service of the main model."""
    return measure(experiment("best").model, ModelConfig())


def measure(
    config: ModelConfig,
    plain: ModelConfig,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    alone: int = ALONE,
) -> Measurement:
    """Ask our server alone, then both in turns."""
    threads = min(2, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        later = _prepare(folder, {"ours": config, "plain": plain})
        model = str(folder / "ours.safetensors")
        bars = str(folder / "bars")
        ours = ["-m", "vaiom", "serve", model, "--bars", bars, "--backfill", "0"]
        theirs = [
            "-P",
            str(Path(__file__).with_name("serve_plain.py")),
            str(folder / "plain.safetensors"),
        ]
        with _server(ours, threads) as port, _server(theirs, threads) as plain_port:
            histories = _histories(folder / "bars", config.context, alone)
            served = [
                json.loads(_ask(port, "POST", _PATH, body)[1])["probs"] for body in histories[:4]
            ]
            forecaster = Forecaster.load(model)
            equal = require_equal(
                served,
                [plain_forecast(forecaster, json.loads(body))["probs"] for body in histories[:4]],
            )
            first, again = (
                run_load(port, [(post(_PATH, each) for each in histories[4:])]) for _ in range(2)
            )
            pushes = [_pushes(symbol, frame) for symbol, frame in later.items()]
            windows = [
                post(_PATH, each) for each in _histories(folder / "bars", plain.context, CLIENTS)
            ]
            live: list[Load] = []
            posted: list[Load] = []
            for _ in range(rounds):
                live.append(run_load(port, pushes, seconds))
                posted.append(run_load(plain_port, [cycle([each]) for each in windows], seconds))
            # Last: bars of the others would be late for an asset that had gone ahead, and change
            # rows long past.
            push = run_load(port, [islice(pushes[0], alone)])
    rate, plain_rate = (
        float(np.median([each.per_second for each in loads])) for loads in (live, posted)
    )
    return Measurement(
        name="serve",
        input=f"live bars of {CLIENTS} clients, {threads} threads",
        ours_seconds=1 / rate,
        reference_seconds=1 / plain_rate,
        equal=equal,
        extra={
            "per_second": round(rate, 1),
            "plain_per_second": round(plain_rate, 1),
            **_times("push", push),
            **_times("posted", first),
            **_times("posted_again", again),
        },
    )


def _times(name: str, load: Load) -> dict[str, float]:
    """Median and 99th percentile of latencies, in milliseconds."""
    return {f"{name}_p50_ms": round(load.p50_ms, 2), f"{name}_p99_ms": round(load.p99_ms, 2)}


def require_equal(ours: Sequence[Any], plain: Sequence[Any]) -> str:
    """Both services must give the same forecasts; says how nearly they do."""
    worst = max(
        float(np.abs(np.subtract(one, other)).max()) for one, other in zip(ours, plain, strict=True)
    )
    if not worst <= TOLERANCE:
        raise VaiomError(
            f"the servers differ: {worst:.2g} in a probability, {TOLERANCE:g} is allowed"
        )
    return f"probabilities of {len(ours)} windows, to {worst:.0e}"


def _prepare(folder: Path, models: dict[str, ModelConfig]) -> dict[str, pl.DataFrame]:
    """Models and a bar folder with an asset for each client; the bars that follow are kept back."""
    market = [asset.bars for asset in simulate(MARKET).values()]
    assets = {f"SIM{number:02}": market[number % len(market)] for number in range(CLIENTS)}
    begin = market[0]["Datetime"][-LATER]
    for symbol, bars in assets.items():
        write_symbol(folder / "bars", symbol, bars.filter(pl.col("Datetime") < begin))
    corpus = CorpusConfig()
    tokenizer = corpus_in_memory(folder / "bars", corpus).tokenizer
    origin = Provenance(
        vaiom_version="",
        corpus_sha256="",
        inputs=[],
        splits=corpus.splits.to_json(),
        experiment="bench",
        train={},
        seed=0,
        step=0,
        validation_bits=None,
    )
    for name, config in models.items():
        torch.manual_seed(0)
        save_checkpoint(
            folder / f"{name}.safetensors",
            Vaiom(config, tokenizer.vocabulary_sizes),
            tokenizer,
            origin,
        )
    return {symbol: bars.filter(pl.col("Datetime") >= begin) for symbol, bars in assets.items()}


def _histories(folder: Path, length: int, number: int) -> list[bytes]:
    """Requests for a forecast, no two histories alike."""
    files = sorted(folder.glob("*.parquet"))[: MARKET.assets]
    frames = [pl.read_parquet(file) for file in files]
    requests = []
    for index in range(number):
        place = index % len(files)
        bars = _as_json(frames[place].slice(7 * index, length))
        requests.append(json.dumps({"symbol": files[place].stem, "bars": bars}).encode())
    return requests


def _pushes(symbol: str, frame: pl.DataFrame) -> Iterator[bytes]:
    """A request for each bar."""
    for bar in _as_json(frame):
        yield post(f"/v1/assets/{symbol}/bars", json.dumps({"bars": [bar]}).encode())


def _as_json(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Bars as requests have them."""
    return [
        {
            name.lower(): value.isoformat() if name == "Datetime" else value
            for name, value in bar.items()
        }
        for bar in frame.iter_rows(named=True)
    ]


@contextmanager
def _server(command: Sequence[str], threads: int) -> Iterator[int]:
    """A Python program run as a server on a free port until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port), "--threads", str(threads)],
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                assert process.stderr is not None
                raise VaiomError(f"a server did not start: {process.stderr.read().decode()[-500:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def _is_ready(port: int) -> bool:
    """Whether a service answers."""
    try:
        return _ask(port, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """The JSON answer of a request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
