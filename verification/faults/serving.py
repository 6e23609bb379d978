"""`vaiom serve` killed while bars are pushed: what was acknowledged is there, and forecasts are as
if nothing had been.

Enters: a folder of inputs. Leaves: a `Tally`. An undisturbed service takes all bars first and says
what it forecasts after each; whatever a killed and restarted one keeps, it must keep all that it
acknowledged, nothing that was not sent, and forecast the same to the last digit.
"""

from __future__ import annotations

import math
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import polars as pl

from training.tiny_runs import TINY
from vaiom.corpus.store import open_corpus
from vaiom.market.folder import read_bars
from vaiom.training.loop import train
from verification.faults.commands import LONGEST_S, require_clean_end, start
from verification.faults.kills import MOST_IN_A_ROW, Tally
from verification.faults.stages import SYMBOLS

PUSHED = 150
"""Bars that are pushed to each asset, one at a time."""
STARTING_SHARE = 0.25
"""How many of the kills fall into the start: state restored, bars brought in."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model, the bars that it starts with, and those that are pushed."""

    run: Path
    bars: Path
    num_bars: dict[str, int]
    later: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """By symbol: the forecast after each number of pushed bars, and all bars at the end."""

    forecasts: dict[str, list[Any]]
    history: dict[str, Any]
    start_s: float
    push_s: float
    """Both assets' bars, all of them."""


@dataclass
class Client:
    """Who pushes the bars of one asset, and knows what was taken."""

    symbol: str
    bars: list[dict[str, Any]]
    taken: int = 0
    sent: int = 0
    refused: list[str] = field(default_factory=list)

    def push(self, address: str) -> None:
        """All that are left, until the service is gone."""
        with httpx.Client(base_url=address, timeout=LONGEST_S) as client:
            for bar in self.bars[self.taken :]:
                self.sent = self.taken + 1
                try:
                    answer = client.post(f"/v1/assets/{self.symbol}/bars", json={"bars": [bar]})
                except httpx.TransportError:
                    return
                if answer.status_code != httpx.codes.OK:
                    self.refused.append(answer.text)
                    return
                self.taken += 1


def make_served(inputs: Path) -> Served:
    """A tiny run of the inputs' corpus, and the bars that follow its own."""
    run = inputs / "run"
    train(
        open_corpus(inputs / "corpus"),
        TINY.with_changes(steps=2, validate_every=2),
        run,
        device="cpu",
    )
    bars, later = read_bars(inputs / "bars"), read_bars(inputs / "later")
    return Served(
        run=run,
        bars=inputs / "bars",
        num_bars={symbol: len(bars[symbol]) for symbol in SYMBOLS},
        later={
            symbol: _as_json(
                later[symbol].filter(pl.col("Datetime") > bars[symbol]["Datetime"][-1]).head(PUSHED)
            )
            for symbol in SYMBOLS
        },
    )


def undisturbed(served: Served, state: Path) -> Undisturbed:
    forecasts: dict[str, list[Any]] = {}
    began = time.monotonic()
    with _running(served, _emptied(state)) as (address, _):
        start_s = time.monotonic() - began
        push_s = 0.0
        with httpx.Client(base_url=address, timeout=LONGEST_S) as client:
            for symbol in SYMBOLS:
                forecasts[symbol] = [_get(client, symbol, "forecast")]
                for bar in served.later[symbol]:
                    pushing = time.monotonic()
                    client.post(
                        f"/v1/assets/{symbol}/bars", json={"bars": [bar]}
                    ).raise_for_status()
                    push_s += time.monotonic() - pushing
                    forecasts[symbol].append(_get(client, symbol, "forecast"))
            history = {symbol: _get(client, symbol, "history")["bars"] for symbol in SYMBOLS}
    return Undisturbed(forecasts=forecasts, history=history, start_s=start_s, push_s=push_s)


def torment_service(
    served: Served,
    quiet: Undisturbed,
    state: Path,
    kills: int,
    chance: random.Random,
    until: float = math.inf,
) -> Tally:
    """Kill a service some times, a few in a row, let it take the rest in peace after each row,
    until a moment.
    """
    tally = Tally()
    while tally.kills < kills and time.monotonic() < until:
        _emptied(state)
        clients = [Client(symbol, served.later[symbol]) for symbol in SYMBOLS]
        for _ in range(min(chance.randint(1, MOST_IN_A_ROW), kills - tally.kills)):
            tally.kills += _kill(served, quiet, state, clients, chance, tally)
        tally.rows += 1
        with _running(served, state) as (address, _):
            known = len(tally.failures)
            _require_kept(address, served, quiet, clients, tally)
            for client in clients:
                client.push(address)
            _require_kept(address, served, quiet, clients, tally)
            _require_history(address, quiet, tally)
            tally.finishes += len(tally.failures) == known
    return tally


def _kill(
    served: Served,
    quiet: Undisturbed,
    state: Path,
    clients: list[Client],
    chance: random.Random,
    tally: Tally,
) -> bool:
    """Start it and kill it, while it starts or while bars come."""
    if chance.random() < STARTING_SHARE:
        process = start(_arguments(served, state))
        time.sleep(chance.uniform(0, quiet.start_s))
        process.kill()
        return require_clean_end(process)
    with _running(served, state) as (address, process):
        _require_kept(address, served, quiet, clients, tally)
        pushers = [threading.Thread(target=client.push, args=(address,)) for client in clients]
        for pusher in pushers:
            pusher.start()
        time.sleep(chance.uniform(0, quiet.push_s / MOST_IN_A_ROW))
        process.kill()
        for pusher in pushers:
            pusher.join()
        tally.failures += [
            f"after {tally.kills} kills: {text}" for client in clients for text in client.refused
        ]
        return require_clean_end(process)


def _require_kept(
    address: str, served: Served, quiet: Undisturbed, clients: list[Client], tally: Tally
) -> None:
    """Every bar that was acknowledged, none that was not sent, and the forecast that belongs to
    them.
    """
    with httpx.Client(base_url=address, timeout=LONGEST_S) as http:
        assets = {
            each["symbol"]: each["num_bars"] for each in http.get("/v1/assets").json()["assets"]
        }
        for client in clients:
            kept = assets[client.symbol] - served.num_bars[client.symbol]
            if not client.taken <= kept <= max(client.sent, client.taken):
                tally.failures.append(
                    f"after {tally.kills} kills {kept} bars, {client.taken} were acknowledged"
                )
            elif _get(http, client.symbol, "forecast") != quiet.forecasts[client.symbol][kept]:
                tally.failures.append(
                    f"after {tally.kills} kills another forecast of {client.symbol}, bar {kept}"
                )
            client.taken = kept


def _require_history(address: str, quiet: Undisturbed, tally: Tally) -> None:
    with httpx.Client(base_url=address, timeout=LONGEST_S) as http:
        for symbol in SYMBOLS:
            if _get(http, symbol, "history")["bars"] != quiet.history[symbol]:
                tally.failures.append(f"after {tally.kills} kills other bars of {symbol}")


@contextmanager
def _running(served: Served, state: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A service that is ready; ended at the end, if it still runs."""
    process = start(_arguments(served, state))
    try:
        yield _address(process), process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def _arguments(served: Served, state: Path) -> list[str]:
    options = [
        "--bars",
        str(served.bars),
        "--state",
        str(state),
        "--port",
        "0",
        "--threads",
        "1",
        "--backfill",
        "8",
    ]
    return ["serve", str(served.run), *options]


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    said = process.stderr.readline()
    assert " at http://" in said, said + process.stderr.read()
    address = said.split(" at ")[1].split()[0]
    until = time.monotonic() + LONGEST_S
    while httpx.get(f"{address}/readyz", timeout=LONGEST_S).status_code != httpx.codes.OK:
        assert time.monotonic() < until, "the service did not become ready"
        time.sleep(0.02)
    return address


def _get(client: httpx.Client, symbol: str, what: str) -> Any:
    return client.get(f"/v1/assets/{symbol}/{what}").raise_for_status().json()


def _as_json(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            name.lower(): value.isoformat() if name == "Datetime" else value
            for name, value in bar.items()
        }
        for bar in frame.iter_rows(named=True)
    ]


def _emptied(state: Path) -> Path:
    shutil.rmtree(state, ignore_errors=True)
    return state
