"""`vaiom serve` as a process: killed under load, asked by slow clients, started with what cannot
work.
"""

from __future__ import annotations

import gc
import select
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import httpx
import polars as pl
import pytest
import uvicorn
from serve_runs import SYMBOLS, HttpClient, TinyRun, as_json, config_of, subprocess_server

from forecast.streams import assert_same_streams
from vaiom.cli.main import main
from vaiom.errors import ConfigError
from vaiom.forecast.forecaster import Forecaster
from vaiom.serve.follow import Follower
from vaiom.serve.protocol import BoundedProtocol
from vaiom.serve.server import open_state
from vaiom.serve.server import serve as serve_on
from vaiom.serve.service import Service


def test_a_kill_under_load_loses_no_acknowledged_bar(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bars are pushed to two assets while others forecast; the process is killed; all that was
    acknowledged is there, and the state equals that of a stream that was never interrupted. What
    the next one follows brings the rest.
    """
    acknowledged: dict[str, int] = dict.fromkeys(SYMBOLS, 0)
    stop = threading.Event()

    def pusher(address: str, symbol: str) -> None:
        with HttpClient(address) as client:
            for number, bar in enumerate(tiny.later[symbol]):
                if (
                    number == 100
                ):  # some are left when the process dies, however slow the other asset is
                    stop.wait()
                try:
                    answer = client.post(f"/v1/assets/{symbol}/bars", json={"bars": [bar]})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                acknowledged[symbol] += 1

    def asker(address: str) -> None:
        body = {"symbol": "EURUSD", "bars": as_json(tiny.history["EURUSD"].tail(60))}
        with HttpClient(address) as client:
            while not stop.is_set():
                try:
                    assert client.post("/v1/forecast", json=body).status_code == 200
                except httpx.TransportError:
                    return

    with subprocess_server(tiny, tmp_path / "state", "--bars", str(tiny.bars)) as (
        address,
        process,
    ):
        threads = [threading.Thread(target=pusher, args=(address, symbol)) for symbol in SYMBOLS]
        threads.append(threading.Thread(target=asker, args=(address,)))
        for thread in threads:
            thread.start()
        while min(acknowledged.values()) < 20:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stop.set()
        for thread in threads:
            thread.join()
    assert all(0 < count < len(tiny.later[symbol]) for symbol, count in acknowledged.items())

    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    restarted = Service(config_of(tiny, tmp_path / "copy"))
    plain = Forecaster.load(tiny.run).online()
    for symbol, count in acknowledged.items():
        kept = restarted.live.online.streams[symbol].num_bars - len(tiny.history[symbol])
        # A bar may be on the disk before its client hears of it, never the other way round.
        assert count <= kept <= count + 1
        plain.extend(symbol, tiny.history[symbol])
        for bar in tiny.later[symbol][:kept]:
            stored = {**bar, "datetime": datetime.fromisoformat(bar["datetime"])}
            plain.push(symbol, stored, forecast=False)
    assert_same_streams(restarted.live.online, plain)
    restarted.store.close()

    for symbol, bars in tiny.later.items():
        pl.DataFrame(bars).write_csv(tmp_path / f"{symbol}.csv")
    followed, pushed = SYMBOLS
    keys, own_key = tmp_path / "keys", tmp_path / "key"
    keys.write_text("secret\n")
    own_key.write_text("secret\nof-another-service\n")
    options = ("--api-key-file", str(keys), "--follow", str(tmp_path / f"{followed}.csv"))
    with subprocess_server(tiny, tmp_path / "state", *options) as (address, process):
        client = HttpClient(address, headers={"X-API-Key": "secret"})
        bar = tiny.later[pushed][acknowledged[pushed] - 1]
        assert client.post(f"/v1/assets/{pushed}/bars", json={"bars": [bar]}).status_code == 409
        monkeypatch.setattr(Follower, "run", lambda self: self.step())
        words = [
            "follow",
            str(tmp_path / f"{pushed}.csv"),
            "--url",
            address,
            "--api-key-file",
            str(own_key),
        ]
        monkeypatch.setattr("sys.argv", ["vaiom", *words])
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code == 0
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        last = {symbol: bars[-1]["datetime"] for symbol, bars in tiny.later.items()}
        while {
            each["symbol"]: each["as_of"] for each in client.read("/v1/assets")["assets"]
        } != last:
            time.sleep(0.05)
        while client.read("/readyz")["feeds"][followed]["lag_seconds"] is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (0, -signal.SIGTERM)
        assert process.stderr
        assert "Traceback" not in process.stderr.read()


def test_slow_clients_and_huge_bodies_do_not_slow_the_others(tiny: TinyRun, tmp_path: Path) -> None:
    options = ("--body-seconds", "3600", "--max-body", "20000", "--bars", str(tiny.bars))
    with subprocess_server(tiny, tmp_path, *options) as (address, process):
        port = int(address.rsplit(":", 1)[1])
        head = (
            b"POST /v1/forecast HTTP/1.1\r\nHost: [::1]\r\nContent-Type: "
            b"application/json\r\nContent-Length: %d\r\n\r\n"
        )
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for connection in slow:
            connection.sendall(head % 500 + b'{"symbol":')
        with HttpClient(address) as client:
            for _ in range(5):
                assert client.get("/v1/assets/EURUSD/forecast").status_code == 200
        huge = socket.create_connection(("127.0.0.1", port))
        huge.sendall(head % 10**12)
        assert b" 413 " in huge.recv(1000)
        # They were answered while the slow ones were still being waited for.
        assert select.select(slow, [], [], 0)[0] == []
        chunked = (
            b"POST /v1/forecast HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        )
        for start in (b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n", chunked):
            endless = socket.create_connection(("127.0.0.1", port), timeout=60)
            with endless, suppress(ConnectionError):
                endless.sendall(start)
                for number in range(400):
                    endless.sendall(b"X%d: " % number * (b"\n" in start[-1:]) + b"a" * 10_000)
                    endless.sendall(b"\r\n" * (b"\n" in start[-1:]))
                assert b" 400 " in endless.recv(1_000)  # what was sent may wait in buffers
        for connection in (*slow, huge):
            connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, -signal.SIGINT, 130)


def test_a_service_listens_before_its_model_is_there_and_runs_as_it_should(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, before = list[str](), sys.getswitchinterval()

    def announce(address: str) -> None:
        said.append(address)
        socket.create_connection(
            ("127.0.0.1", int(address.rpartition(":")[2]))
        ).close()  # it waits, not refused

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        config, [listening] = server.config, sockets
        assert said == [f"http://127.0.0.1:{listening.getsockname()[1]}"]
        assert (config.access_log, config.server_header, config.timeout_graceful_shutdown) == (
            False,
            False,
            10,
        )
        assert (config.http, config.log_level) == (BoundedProtocol, "warning")
        assert listening.proto == socket.IPPROTO_TCP
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert sys.getswitchinterval() == pytest.approx(2e-4)
        assert gc.get_freeze_count() > 0
        listening.close()
        config.app.user_middleware[0].kwargs["metrics"].ready.set(1)
        said.append("ran")

    monkeypatch.setattr("uvicorn.Server.run", run)
    try:
        serve_on(config_of(tiny, tmp_path), "127.0.0.1", 0, announce)
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
    assert said[1:] == ["ran"]


def test_a_service_needs_its_libraries(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.errors.find_spec", lambda library: None if library == "prometheus_client" else True
    )
    for use in (
        lambda: serve_on(config_of(tiny, tmp_path), "127.0.0.1", 0, print),
        lambda: open_state(tmp_path),
    ):
        with pytest.raises(ConfigError, match="this needs prometheus_client") as refused:
            use()
        assert refused.value.fix == "pip install 'vaiom[serve]'"


def test_one_service_holds_a_state(tiny: TinyRun, tmp_path: Path) -> None:
    holder = Service(config_of(tiny, tmp_path))
    with pytest.raises(ConfigError, match="one service holds a state folder"):
        Service(config_of(tiny, tmp_path))
    holder.store.close()
    Service(config_of(tiny, tmp_path)).store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate-limit", "fast"], "not a rate"),
        (["--api-key-file", "absent"], "cannot be read"),
        (["--bars", "absent"], "no such bar folder"),
        (["--host", "203.0.113.1"], "cannot listen"),
        (["--follow", "absent"], "no such source"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    tiny: TinyRun,
    tmp_path: Path,
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["vaiom", "serve", str(tiny.run), "--state", str(tmp_path), "--port", "0", *options]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err


@pytest.mark.parametrize("proxy", [None, "127.0.0.1"])
def test_forwarded_addresses_count_from_named_proxies_alone(
    tiny: TinyRun, tmp_path: Path, proxy: str | None
) -> None:
    """Anybody can write the header: made-up addresses must not each get a limit of their own."""
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    named = ["--proxy", proxy] if proxy else []

    with (
        subprocess_server(tiny, tmp_path / "state", "--api-key-file", str(keys), *named) as (
            address,
            _,
        ),
        HttpClient(address) as client,
    ):

        def ask(number: int, key: str) -> int:
            headers = {"X-Forwarded-For": f"192.0.2.{number}", "X-API-Key": key}
            return client.get("/v1/model", headers=headers).status_code

        guesses = {ask(number, "wrong") for number in range(100)}
        assert guesses == ({401} if proxy else {401, 429})
        assert ask(1, "secret") == 200


def test_a_key_that_may_be_guessed_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    said = []
    for key in ("secret", "x" * 16):
        keys.write_text(key)
        command = ["vaiom", "serve", str(tmp_path / "absent"), "--api-key-file", str(keys)]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        said.append("fewer than 16 characters" in capsys.readouterr().err)
    assert said == [True, False]
