"""A served forecast: time of one, and how many a second, against a server that runs one pass for each request.

Enters: nothing; the main model with random weights, which cost the same as trained ones, and a simulated market.
Leaves: a `Measurement` of throughput under concurrent clients with distinct windows. `extra` has the times of one
client alone, of a live bar there and back with its forecast, and what of that is not the model's. Both servers are
processes on this machine with the same threads, asked in turns by wrk where it is installed; their answers are equal.
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
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.load import Load, run_load
from benchmarks.race import Measurement
from vaiom.errors import VaiomError
from vaiom.events.build import CorpusConfig, corpus_in_memory
from vaiom.forecast.engine import TOLERANCE
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import Provenance, save_checkpoint
from vaiom.model.config import ModelConfig, Vocabulary
from vaiom.model.vaiom import Vaiom
from vaiom.simulate.market import MarketConfig, simulate

CLIENTS = 32
ROUNDS = 3
SECONDS = 8.0
PUSHED_BARS = 200
MARKET = MarketConfig(assets=2, bars=20_000)
START_SECONDS = 60

_PATH = "/v1/forecast"


def run(_bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    return measure(ModelConfig())


def measure(config: ModelConfig, rounds: int = ROUNDS, seconds: float = SECONDS) -> Measurement:
    """Ask both servers in turns."""
    threads = min(2, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        later = _prepare(folder, config)
        bodies = _bodies(folder / "bars", config.context)
        model, bars = str(folder / "model.safetensors"), str(folder / "bars")
        ours = ["-m", "vaiom", "serve", model, "--bars", bars, "--backfill", "0"]
        plain = ["-P", str(Path(__file__).with_name("serve_plain.py")), model]
        with _server(ours, threads) as port, _server(plain, threads) as plain_port:
            equal = require_equal(_answers(port, bodies), _answers(plain_port, bodies))
            alone: list[Load] = []
            many: dict[int, list[float]] = {port: [], plain_port: []}
            for _ in range(rounds):
                alone.append(run_load(port, _PATH, bodies, 1, seconds))
                for each, rates in many.items():
                    rates.append(run_load(each, _PATH, bodies, CLIENTS, seconds).per_second)
                    _drain(each, bodies[0])
            push = _push_ms(port, later)
    rate, plain_rate = (float(np.median(rates)) for rates in many.values())
    return Measurement(
        name="serve",
        input=f"windows of {config.context} bars, {CLIENTS} clients, {threads} threads",
        ours_seconds=1 / rate,
        reference_seconds=1 / plain_rate,
        ratio=rate / plain_rate,
        equal=equal,
        extra={
            "p50_ms": round(float(np.median([load.p50_ms for load in alone])), 2),
            "p99_ms": round(float(np.median([load.p99_ms for load in alone])), 2),
            "per_second": round(rate, 1),
            "plain_per_second": round(plain_rate, 1),
            **{name: round(taken, 3) for name, taken in push.items()},
            "client": alone[0].client,
        },
    )


def require_equal(ours: Sequence[Any], plain: Sequence[Any]) -> str:
    worst = max(float(np.abs(np.subtract(one, other)).max()) for one, other in zip(ours, plain, strict=True))
    if not worst <= TOLERANCE:
        raise VaiomError(f"the servers differ: {worst:.2g} in a probability, {TOLERANCE:g} is allowed")
    return f"probabilities of {len(ours)} windows, to {worst:.0e}"


def _prepare(folder: Path, config: ModelConfig) -> dict[str, pl.DataFrame]:
    """A model and a bar folder; the bars that follow are kept back."""
    market = {symbol: asset.bars for symbol, asset in simulate(MARKET).items()}
    for symbol, bars in market.items():
        write_symbol(folder / "bars", symbol, bars[:-PUSHED_BARS])
    corpus = CorpusConfig()
    tokenizer = corpus_in_memory(folder / "bars", corpus).tokenizer
    torch.manual_seed(0)
    origin = Provenance(
        vaiom_version="", corpus_sha256="", inputs=[], splits=corpus.splits.to_json(), experiment="bench", train={},
        seed=0, step=0, validation_bits=None,
    )  # fmt: skip
    save_checkpoint(folder / "model.safetensors", Vaiom(config, Vocabulary.of(tokenizer)), tokenizer, origin)
    return {symbol: bars[-PUSHED_BARS:] for symbol, bars in market.items()}


def _bodies(folder: Path, context: int) -> list[bytes]:
    """A request for each client, no two windows alike."""
    files = sorted(folder.glob("*.parquet"))
    frames = [pl.read_parquet(files[client % len(files)]).slice(7 * client, context) for client in range(CLIENTS)]
    symbols = [files[client % len(files)].stem for client in range(CLIENTS)]
    return [
        json.dumps({"symbol": symbol, "bars": _as_json(frame)}).encode()
        for symbol, frame in zip(symbols, frames, strict=True)
    ]


def _as_json(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {name.lower(): value.isoformat() if name == "Datetime" else value for name, value in bar.items()}
        for bar in frame.iter_rows(named=True)
    ]


@contextmanager
def _server(command: Sequence[str], threads: int) -> Iterator[int]:
    """A Python program run as a server on a free port until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port), "--threads", str(threads)], stderr=subprocess.PIPE
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
    try:
        return _ask(port, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def _answers(port: int, bodies: Sequence[bytes]) -> list[Any]:
    return [json.loads(_ask(port, "POST", _PATH, body)[1])["probs"] for body in bodies]


def _drain(port: int, body: bytes) -> None:
    """Wait for what clients of a load that has ended still had in the queue: first come is first served."""
    _ask(port, "POST", _PATH, body)


def _push_ms(port: int, later: dict[str, pl.DataFrame]) -> dict[str, float]:
    """A live bar: there and back with its forecast, and what recursion and disk took of that by the service's word."""
    symbol, frame = next(iter(later.items()))
    taken: dict[str, list[float]] = {"bar": [], "disk": [], "there_and_back": []}
    for bar in _as_json(frame):
        body = json.dumps({"bars": [bar]}).encode()
        asked = time.perf_counter()
        status, answer, timing = _ask(port, "POST", f"/v1/assets/{symbol}/bars", body)
        taken["there_and_back"].append(1e3 * (time.perf_counter() - asked))
        if status != 200:
            raise VaiomError(f"a bar was refused: {answer.decode()[:300]}")
        for part in ("bar", "disk"):
            taken[part].append(float(timing.partition(f"{part};dur=")[2].partition(",")[0]))
    parts = {f"push_{part}_ms": float(np.median(taken[part])) for part in ("bar", "disk")}
    return parts | {f"live_p{level}_ms": float(np.percentile(taken["there_and_back"], level)) for level in (50, 99)}


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Server-Timing", "")
    finally:
        connection.close()
