"""Bad requests: the right status, words that help, and a service that goes on as if nothing had
happened.
"""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import re
import shlex
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_runs import TinyRun, as_json, config_of, failing_disk, in_process, served

import vaiom
from forecast.streams import assert_same_streams
from vaiom.errors import ConfigError
from vaiom.serve.app import make_app
from vaiom.serve.metrics import Metrics
from vaiom.serve.middleware import LimitMiddleware, RateLimit
from vaiom.serve.refusals import RefusalError
from vaiom.serve.server import ServeConfig, default_state, parse_rate, read_keys
from vaiom.serve.service import Service


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert "Traceback" not in answer.text
    error = answer.json()["error"]
    assert set(error) == {"problem", "expected", "got", "where", "fix"}
    return dict(error)


JSON = {"content-type": "application/json"}


def test_bad_bars_are_refused_and_change_nothing(tiny: TinyRun, tmp_path: Path) -> None:
    bars = as_json(tiny.history["EURUSD"].tail(60))
    first, second = tiny.later["EURUSD"][:2]
    last = bars[-1]
    zoned = [*bars[:-1], {**last, "datetime": last["datetime"] + "+02:00"}]
    wrong_day = [*bars[:-1], {**last, "datetime": "2024-02-31T00:00:00"}]
    soon = {**second, "datetime": first["datetime"][:14] + "30:00"}
    long = "x" * 500
    posted = [
        ({"bars": bars[:5]}, "expected", "22"),
        ({"bars": bars[::-1]}, "where", "row 2"),
        ({"bars": [*bars, last]}, "problem", "repeated"),
        ({"bars": bars[::2]}, "problem", "timeframe"),
        ({"symbol": "../etc"}, "where", "symbol"),
        ({"bars": [{**bars[0], "close": "1.1"}, *bars[1:]]}, "where", "close"),
        ({"bars": [{**bars[0], "datetime": 17}, *bars[1:]]}, "where", "datetime"),
        ({"bars": [{**bars[0], "extra": 1}, *bars[1:]]}, "where", "extra"),
        ({"bars": zoned}, "expected", "without a zone"),
        ({"bars": wrong_day}, "where", "row 60"),
        ({"symbol": long}, "got", repr(long)[:200]),
    ]
    pushed = [
        ("EURUSD%0A", [first], 422, "pattern"),
        ("NOPE", [first], 404, "no such live asset"),
        ("EURUSD", [last], 409, "already"),
        ("EURUSD", [bars[-2]], 409, "back in time"),
        ("EURUSD", [first, first], 409, "already"),
        ("EURUSD", [first, soon], 422, "between the stamps"),
    ]
    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, service):
        state = service.live.online
        for changes, part, words in posted:
            body = {"symbol": "EURUSD", "bars": bars, **changes}
            assert words in refusal(client.post("/v1/forecast", json=body), 422)[part]
        for symbol, wrong, status, words in pushed:
            error = refusal(client.send(symbol, *wrong), status)
            assert words in error["problem"]
            assert len(wrong) == 1 or "row 2" in error["where"]
        assert service.live.online is state
        accepted = client.push("EURUSD", first, {**second, "close": None})
        assert accepted["forecast"]["stale"]


def test_bodies_that_cannot_be_read_are_refused(tiny: TinyRun, tmp_path: Path) -> None:
    bars = as_json(tiny.history["EURUSD"].tail(60))
    text = json.dumps({"symbol": "EURUSD", "bars": bars})
    push = json.dumps({"bars": tiny.later["EURUSD"][:1]})
    close = str(bars[0]["close"])
    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, _):

        def post(path: str, content: str | bytes, headers: dict[str, str]) -> httpx.Response:
            return client.post(path, content=content, headers=headers)

        for number in ("NaN", "Infinity", "1e999", "1" + "0" * 400):
            refusal(post("/v1/forecast", text.replace(close, number, 1), JSON), 422)
        for number in ("NaN", "-Infinity"):
            refusal(client.get(f"/v1/assets/EURUSD/forecast?beyond={number}"), 422)
            amounts = f'{{"positions": {{"EURUSD": {number}}}}}'
            error = refusal(post("/v1/portfolio", amounts, JSON), 422)
            assert error["where"] == "body, positions, EURUSD"
        assert refusal(post("/v1/forecast", b"{", JSON), 400)["where"] == "body, character 2"
        for broken in (b"\xff", b"[" * 100_000, b'"', b"", b"1" * 10_000):
            refusal(post("/v1/forecast", broken, JSON), 400)
        for unusable in (b"1", b"[]", b"null", b"{}"):
            refusal(post("/v1/forecast", unusable, JSON), 422)
        packed = {**JSON, "content-encoding": "gzip"}
        error = refusal(post("/v1/forecast", gzip.compress(b"{}"), packed), 400)
        assert error["problem"] == "the body is no JSON in UTF-8; it must not be compressed"
        # A page of another site may send a body without a type, or of these, and not as JSON.
        for kind in ("", "text/plain", "multipart/form-data; boundary=x"):
            headers = {"content-type": kind} if kind else {}
            answer = post("/v1/assets/EURUSD/bars", push, headers)
            assert "application/json" in refusal(answer, 400)["expected"]


def test_unknown_paths_and_methods_are_refused(tiny: TinyRun, tmp_path: Path) -> None:
    with served(config_of(tiny, tmp_path)) as (client, _):
        for path in ("/v1/assets/NOPE/forecast", "/v1/assets/NOPE/history"):
            refusal(client.get(path), 404)
        for path in ("/nothing", "/v1/assets/", "/healthz/"):
            assert refusal(client.get(path), 404)["where"] == path
        answer = client.put("/v1/forecast")
        assert refusal(answer, 405)["where"] == "/v1/forecast"
        assert answer.headers["allow"] == "POST"


def test_nothing_is_forecast_taken_or_removed_until_the_service_is_ready(
    tiny: TinyRun, tmp_path: Path
) -> None:
    bars = as_json(tiny.history["EURUSD"].tail(60))
    with served(config_of(tiny, tmp_path, bars=tiny.bars, api_keys=("secret",))) as (
        client,
        service,
    ):
        service.is_ready = False
        before = service.live.online
        for method, path, body in (
            ("POST", "/v1/forecast", {"symbol": "EURUSD", "bars": bars}),
            ("GET", "/v1/forecast", None),
            ("POST", "/v1/assets/EURUSD/bars", {"bars": tiny.later["EURUSD"][:1]}),
            ("DELETE", "/v1/assets/EURUSD/bars?after=1970-01-01T00:00:00", None),
            ("GET", "/v1/assets/EURUSD/forecast", None),
            ("POST", "/v1/portfolio", {"positions": {"EURUSD": 1.0}}),
            ("GET", "/readyz", None),
        ):
            answer = client.request(method, path, json=body)
            assert "starting" in refusal(answer, 503)["problem"], path
            assert answer.headers["retry-after"] == "1"
        assert service.live.online is before
        for path in ("/healthz", "/v1/model", "/v1/assets", "/v1/assets/EURUSD/history", "/"):
            assert client.get(path).status_code == 200, path
        assert "vaiom_ready 0.0" in client.get("/metrics").text


def test_the_openapi_page_says_which_routes_there_are_their_refusals_and_limits(
    tiny: TinyRun, tmp_path: Path
) -> None:
    service = Service(config_of(tiny, tmp_path))
    page = make_app(service).openapi()
    service.store.close()
    write, read = {400, 401, 408, 413, 422, 429, 503}, {401, 404, 422, 429, 503}
    told = {
        (method, path): {*map(int, operation["responses"])} - {200}
        for path, operations in page["paths"].items()
        for method, operation in operations.items()
    }
    assert told == {
        ("post", "/v1/forecast"): write,
        ("get", "/v1/forecast"): read,
        ("post", "/v1/assets/{symbol}/bars"): write | {404, 409},
        ("delete", "/v1/assets/{symbol}/bars"): read,
        ("get", "/v1/assets/{symbol}/forecast"): read,
        ("get", "/v1/assets"): {401, 429},
        ("get", "/v1/assets/{symbol}/history"): read,
        ("post", "/v1/portfolio"): write | {404},
        ("get", "/v1/model"): {401, 429},
        ("get", "/healthz"): set(),
        ("get", "/readyz"): {503},
        ("get", "/metrics"): {401, 429},
    }


def test_the_docs_page_has_a_command_for_every_route(tiny: TinyRun, tmp_path: Path) -> None:
    with served(config_of(tiny, tmp_path, bars=tiny.bars, api_keys=("secret",))) as (client, _):
        page = client.get("/docs", headers={"X-API-Key": ""})
        assert page.headers["content-type"].startswith("text/html")
        commands = re.findall("<pre><code>(.*?)</code></pre>", page.text)
        routes = client.read("/openapi.json")["paths"]
        assert len(commands) == sum(map(len, routes.values()))
        assert not re.findall("(?:src|href)=.(?!/)", page.text)
        for command in commands:
            program, address, *options = shlex.split(html.unescape(command))
            assert program == "curl"
            method = options[options.index("-X") + 1] if "-X" in options else "GET"
            body = options[options.index("-d") + 1] if "-d" in options else None
            answer = client.request(method, address, content=body, headers=JSON)
            assert answer.status_code not in (400, 404, 405, 500), command


def test_a_live_asset_needs_enough_bars(tiny: TinyRun, tmp_path: Path) -> None:

    with served(config_of(tiny, tmp_path)) as (client, service):
        assert "22" in refusal(client.get("/v1/assets/EURUSD/forecast"), 422)["expected"]
        answer = client.send("EURUSD", *tiny.later["EURUSD"][:21])
        assert answer.json()["forecast"] is None
        refusal(client.get("/v1/assets/EURUSD/forecast"), 422)
        answer = client.send("EURUSD", *tiny.later["EURUSD"][21:22])
        assert answer.json()["forecast"]["context"] == 22
        assert client.read("/v1/assets")["frequency"] == "shares of the scored bars"
        assert service.live.frequency.counts.sum() == 0
        for bar in tiny.later["EURUSD"][22:25]:
            client.send("EURUSD", bar)
        scored = client.read("/v1/assets")["assets"][0]["drift"]["scored"]
        assert service.live.frequency.counts.sum() == scored > 0


def test_bars_that_cannot_be_stored_are_not_taken(tiny: TinyRun, tmp_path: Path) -> None:

    with served(config_of(tiny, tmp_path, bars=tiny.bars)) as (client, service):
        state = service.live.online.copy()
        body = {"bars": tiny.later["EURUSD"][:1]}
        with failing_disk(service.store):
            refusal(client.post("/v1/assets/EURUSD/bars", json=body), 503)
        assert_same_streams(service.live.online, state)
        assert client.post("/v1/assets/EURUSD/bars", json=body).status_code == 200


def test_a_fault_of_ours_is_answered_like_every_refusal(
    tiny: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:

    with served(config_of(tiny, tmp_path)) as (client, service):
        frequency = vars(service.live).pop("frequency")
        assert "logged" in refusal(client.get("/v1/assets"), 500)["problem"]
        assert "a request failed: GET /v1/assets" in caplog.text
        assert 'route="/v1/assets",status="500"} 1' in client.get("/metrics").text
        service.live.frequency = frequency
        body, taken = {"bars": tiny.later["EURUSD"][:1]}, service.live.push_all
        for fails, status in ((True, 500), (False, 200)):
            service.live.push_all = None if fails else taken  # type: ignore[assignment,method-assign]
            assert (client.post("/v1/assets/EURUSD/bars", json=body)).status_code == status


def test_the_dashboards_files_are_as_they_lie_in_the_package(tiny: TinyRun, tmp_path: Path) -> None:
    kinds = {
        ".html": "text/html",
        ".css": "text/css",
        ".svg": "image/svg+xml",
        ".js": "text/javascript",
    }
    package = Path(vaiom.__file__).parent
    own = [file for file in (package / "serve" / "dashboard").iterdir() if file.is_file()]
    shared = [package / "report" / "assets" / name for name in ("theme.css", "theme.js")]

    with served(config_of(tiny, tmp_path)) as (client, _):
        for file in (*own, *shared):
            for path in (file.name, "") if file.name == "index.html" else (file.name,):
                answer = client.get(f"/{path}")
                assert answer.content == file.read_bytes(), path
                assert answer.headers["content-type"].partition(";")[0] == kinds[file.suffix]


def test_keys_rates_and_sizes(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaiom.serve.middleware.RateLimit", partial(RateLimit, clock=lambda: 0.0))
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsecret-one\n\nsecret-two\n")

    async def run() -> None:
        config = config_of(
            tiny, tmp_path / "state", api_keys=read_keys(keys), rate_limit=50, max_body=10_000
        )
        async with in_process(config) as (client, _):
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/")).status_code == 200
            for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Basic secret-one"}):
                answer = await client.get("/v1/model", headers=headers)
                refusal(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
            refusal(await client.get("/metrics"), 401)
            big = b" " * 10_001
            one, two = {"Authorization": "Bearer secret-one"}, {"X-API-Key": "secret-two"}
            refusal(await client.post("/v1/forecast", content=big, headers=one), 413)

            async def chunks() -> Any:
                for _ in range(20):
                    yield b" " * 1_000

            refusal(await client.post("/v1/forecast", content=chunks(), headers=one), 413)
            refusal(
                await client.post(
                    "/v1/forecast", content=b"", headers={**one, "Content-Length": "9" * 5_000}
                ),
                413,
            )
            statuses = [(await client.get("/v1/model", headers=one)).status_code for _ in range(5)]
            assert statuses == [200, 200, 429, 429, 429]
            answer = await client.get("/v1/model", headers=two)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]

    asyncio.run(run())


def test_requests_that_name_another_host_are_refused(tiny: TinyRun, tmp_path: Path) -> None:
    """A stranger's name that leads to this address (DNS rebinding) opens nothing, not even the
    dashboard.
    """
    ours = (
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]:80",
        "10.1.2.3",
        "localhost:80",
        "LOCALHOST",
        "api.example:443",
        gethostname(),
    )
    others = (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::1",
        "@localhost:80",
    )

    with served(config_of(tiny, tmp_path, hosts=("Api.Example",))) as (client, _):
        for host in ours:
            assert client.get("/v1/model", headers={"Host": host}).status_code == 200, host
        for host in others:
            for path in ("/v1/model", "/", "/healthz", "/openapi.json"):
                error = refusal(client.get(path, headers={"Host": host}), 421)
            assert error["got"] == host
            assert "--allow-host" in error["fix"]
        both = [("Host", "localhost"), ("Host", "evil.example")]
        for hosts in (both, both[::-1], both[:1] * 2):
            refusal(client.get("/v1/model", headers=hosts), 400)


def test_wrong_keys_are_refused_sooner_and_lock_no_right_one_out(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy a stranger has the address of everybody. Asking without a key is no guess."""
    now = 0.0
    monkeypatch.setattr("vaiom.serve.middleware.RateLimit", partial(RateLimit, clock=lambda: now))

    with served(config_of(tiny, tmp_path, api_keys=("secret",))) as (client, _):

        def ask(key: str) -> httpx.Response:
            return client.get("/v1/model", headers={"X-API-Key": key})

        assert [ask("").status_code for _ in range(20)] == [401] * 20
        guesses = [ask(str(number)).status_code for number in range(20)]
        assert guesses == [401] * 6 + [429] * 14
        answer = ask("one more")
        error = refusal(answer, 429)
        assert (error["problem"], error["expected"]) == ("too many wrong keys", "60 a minute")
        assert "a valid one" in error["fix"]
        assert [ask("secret").status_code for _ in range(20)] == [200] * 20
        now = float(answer.headers["retry-after"])
        assert ask("one more").status_code == 401


def test_a_model_is_given_the_threads(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", given.append)
    for number, threads in enumerate((3, None)):
        Service(config_of(tiny, tmp_path / str(number), threads=threads)).store.close()
    assert given == [3]


@pytest.mark.parametrize("chunks", [1, 20])
def test_a_body_that_does_not_arrive_is_not_waited_for(
    tiny: TinyRun, tmp_path: Path, chunks: int
) -> None:
    """Also where each chunk comes in time, and all of them together do not."""

    async def trickle() -> Any:
        for _ in range(chunks):
            yield b" "
            await asyncio.sleep(0.01)
        await asyncio.Event().wait()

    with served(config_of(tiny, tmp_path, body_seconds=0.05)) as (client, _):
        answer = client.post("/v1/forecast", content=trickle())
        assert "0.05 s" in refusal(answer, 408)["expected"]


@given(st.integers(1, 600), st.lists(st.floats(0, 30), max_size=60))
def test_no_more_requests_pass_than_the_rate_allows(per_minute: int, waits: list[float]) -> None:
    now = 0.0
    limit = RateLimit(per_minute, clock=lambda: now)

    def wait_told() -> int:
        """0 where a request passes, else the seconds that the client is told to wait."""
        try:
            limit.take("client")
        except RefusalError as refused:
            return refused.retry_after or -1
        return 0

    for wait in waits:
        now += wait
        told = wait_told()
        assert told >= 0
        if told:
            now += told
            assert wait_told() == 0
    assert len(waits) <= max(1, per_minute / 10) + now * per_minute / 60 + 1e-6


@pytest.mark.parametrize(
    ("per_minute", "asked_at", "told"), [(60, 0.5, 1), (60, 0.0, 2), (30, 1.0, 2), (5, 0.0, 13)]
)
def test_nobody_waits_longer_than_until_the_next_whole_second(
    per_minute: int, asked_at: float, told: int
) -> None:
    now = 0.0
    limit = RateLimit(per_minute, clock=lambda: now)
    for _ in range(max(1, per_minute // 10)):
        limit.take("client")
    now = asked_at
    with pytest.raises(RefusalError, match=f"{per_minute} a minute") as refused:
        limit.take("client")
    assert refused.value.retry_after == told


def test_a_body_ends_with_the_first_part_that_announces_no_more() -> None:
    """Also where that part leaves out what it may leave out."""
    config = ServeConfig(run=Path("run"), state=Path("state"), max_body=3)
    said: list[Any] = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request"},
    ]

    async def receive() -> Any:
        return said.pop(0) if said else {"type": "http.disconnect"}

    async def ask() -> list[Any]:
        whole = await LimitMiddleware(None, config, Metrics())._receive_body(
            {"headers": []}, receive
        )  # type: ignore[arg-type]
        return [await whole(), await whole()]

    body, after = asyncio.run(ask())
    assert (body["body"], after) == (b"ab", {"type": "http.disconnect"})
    said = [{"type": "http.request", "body": b"abc"}]
    assert asyncio.run(ask())[0]["body"] == b"abc"


def test_the_clients_that_were_silent_for_longest_are_forgotten() -> None:
    limit = RateLimit(60, clock=lambda: 0.0)
    for number in range(10_002):
        limit.take(str(number))
        limit.take("0") if number == 5 else None
    assert len(limit.clients) == 10_000
    assert {"0", "1", "2", "3"} & limit.clients.keys() == {"0", "3"}


def test_options_are_checked(tmp_path: Path) -> None:
    assert parse_rate("600/min") == 600
    for wrong in ("600", "0/min", "600/h", ""):
        with pytest.raises(ConfigError, match="rate"):
            parse_rate(wrong)
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(ConfigError, match="no API key"):
        read_keys(tmp_path / "empty")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "absent")
    for key in ("schlüssel", "tab\tbed"):
        (tmp_path / "odd").write_text(f"fine\n{key}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="printable ASCII"):
            read_keys(tmp_path / "odd")
    assert parse_rate(" 5 / min ") == 5
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="positive"):
            ServeConfig(run=tmp_path, state=tmp_path, body_seconds=seconds)
    for proxy in ("*", "proxy.example", "10.0.0.5/8", ""):
        with pytest.raises(ConfigError, match="not the address of a proxy"):
            ServeConfig(run=tmp_path, state=tmp_path, proxies=("10.0.0.0/8", proxy))
    assert default_state(tmp_path) == tmp_path / "live"
    assert default_state(tmp_path / "model.onnx") == tmp_path / "model-live"
