"""The downloader against a real HTTP server on loopback: whatever happens on the way, the same
bytes arrive.
"""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import feed_server
import pytest
from feed_server import FeedServer, made_up_feed, path_of
from hypothesis import given, settings
from hypothesis import strategies as st

from vaiom.errors import ConfigError, DataError
from vaiom.files import STAGING_PREFIX
from vaiom.market.download import download
from vaiom.market.file_server import FeedFile, FileServer, UnavailableError
from vaiom.market.folder import read_bars
from vaiom.market.imports import import_files

FIRST = date(2019, 2, 4)
RATE = {"workers": 3, "requests_per_second": 25.0}
# No answer is waited for in vain but where a test says so, however busy the machine is.
FAST = {"requests_per_second": 1000.0, "timeout": 3_600.0, "first_pause_s": 0.01}

_addresses: list[object] | None = None


def _note_address(event: str, arguments: tuple[object, ...]) -> None:
    if _addresses is not None and event in ("socket.connect", "socket.getaddrinfo"):
        address = arguments[1] if event == "socket.connect" else arguments[0]
        _addresses.append(address[0] if isinstance(address, tuple) else address)


sys.addaudithook(_note_address)


@pytest.fixture(autouse=True)
def _loopback_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test of this file: no address but loopback is ever looked up or connected to; pauses
    are short.
    """
    global _addresses
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    _addresses = []
    yield
    contacted, _addresses = _addresses, None
    assert set(contacted) <= {"127.0.0.1"}


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with feed_server.running() as running:
        yield running


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def fetch(
    server: FeedServer, out: Path, end: int, *symbols: str, first: int = 0, **options: Any
) -> dict[str, Any]:
    """Download the days from one number to another, of EURUSD unless told."""
    options = {**FAST, "base_url": server.url, **options}
    return download(symbols or ["EURUSD"], day(first), day(end), out, **options)


def path(number: int, symbol: str = "EURUSD") -> str:
    return path_of(symbol, day(number))


def result_of(out: Path) -> dict[str, bytes]:
    """Every file of a download; the ledger by its last line about each day, because days may finish
    in any order.
    """
    files = {
        str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()
    }
    last_lines = {}
    for line in files.pop("raw/ledger.jsonl").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        last_lines[f"ledger {entry['symbol']} {entry['day']}"] = line
    return files | last_lines


def ledger_of(out: Path) -> dict[str, str]:
    """{day: status}"""
    lines = (out / "raw" / "ledger.jsonl").read_text().splitlines()
    return {entry["day"]: entry["status"] for entry in map(json.loads, lines)}


def days_of(report: dict[str, int]) -> tuple[int, int, int]:
    return report["days_asked_for"], report["days_already_there"], report["days_unsettled"]


def reference_bars(content: bytes, start: date, scale: float) -> list[tuple[object, ...]]:
    """Decoded record by record, flat candles left out."""
    midnight = datetime.combine(start, datetime.min.time())
    return [
        (
            midnight + timedelta(seconds=second),
            o / scale,
            high / scale,
            low / scale,
            c / scale,
            volume,
        )
        for second, o, c, low, high, volume in feed_server.unpack(content)
        if not (o == high == low == c and volume == 0)
    ]


def test_real_files_become_the_bars_they_hold(
    server: FeedServer, shared_data: Path, tmp_path: Path
) -> None:
    for number in (0, 1):
        name = f"dukascopy_EURUSD_2019_01_{day(number).day:02d}_BID_candles_min_1.bi5"
        server.files[path(number)] = (shared_data / "raw" / name).read_bytes()
    report = fetch(server, tmp_path, 2)
    expected = [
        row
        for number in (0, 1)
        for row in reference_bars(server.files[path(number)], day(number), 1e5)
    ]
    assert read_bars(tmp_path)["EURUSD"].rows() == expected
    assert report["symbols"]["EURUSD"]["rows"] == len(expected) > 2800
    for number in (0, 1):
        assert (tmp_path / "raw" / path(number)[1:]).read_bytes() == server.files[path(number)]


def test_several_symbols_weekends_and_months_counted_from_zero(
    server: FeedServer, tmp_path: Path
) -> None:
    first = date(2020, 12, 30)
    server.files = made_up_feed("EURUSD", first, 4) | made_up_feed("XAUUSD", first, 4)
    del server.files["/EURUSD/2021/00/01/BID_candles_min_1.bi5"]
    seen: list[tuple[int, int, str]] = []
    report = download(
        ["eurusd", "XAUUSD", "EURUSD"],
        first,
        date(2021, 1, 3),
        tmp_path,
        base_url=server.url + "/",
        progress=lambda *call: seen.append(call),
        **FAST,
    )
    assert [call[:2] for call in seen] == [(done, 8) for done in range(1, 9)]
    assert days_of(report) == (8, 0, 0)
    entry = report["symbols"]["EURUSD"]
    assert (entry["days"], entry["empty_days"], entry["rows"], entry["flat_dropped"]) == (
        4,
        1,
        3 * 32,
        3 * 8,
    )
    assert json.loads((tmp_path / "manifest.json").read_bytes())["symbols"] == report["symbols"]
    bars = read_bars(tmp_path)
    assert bars["EURUSD"]["Datetime"][-1] == datetime(2021, 1, 2, 0, 39)
    assert 110 < bars["XAUUSD"]["Close"][0] < 111
    assert 1.10 < bars["EURUSD"]["Close"][0] < 1.11


FAULTS = [
    *("drop", "cut", "cut unannounced", "half a record", "another day", "page", "flood", "empty"),
    *(
        "500",
        "502",
        "503",
        "503 Retry-After: 0",
        "429 Retry-After: 0",
        "429 Retry-After: soon",
        "408",
    ),
    "429 Retry-After: Wed, 21 Oct 2015 07:28:00 GMT",
]


def test_faults_leave_no_trace(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, len(FAULTS))
    del server.files[path(3)]
    fetch(server, tmp_path / "calm", len(FAULTS))
    calm_requests = len(server.seen)
    for number, fault in enumerate(FAULTS):
        server.faults[path(number)] = [fault]
    fetch(server, tmp_path / "rough", len(FAULTS), workers=8)
    assert not any(server.faults.values())
    assert len(server.seen) == 2 * calm_requests + len(FAULTS)
    assert result_of(tmp_path / "rough") == result_of(tmp_path / "calm")


def test_a_request_without_an_answer_is_made_again(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 1)
    server.faults[path(0)] = ["hang"]
    download(
        ["EURUSD"], day(0), day(1), tmp_path, base_url=server.url, timeout=0.5, first_pause_s=0.01
    )
    assert len(server.seen) >= 2
    assert len(read_bars(tmp_path)["EURUSD"]) == 32


def test_a_body_that_was_lost_on_the_way_is_not_an_empty_day(
    server: FeedServer, tmp_path: Path
) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 2)
    server.faults[path(1)] = ["cut to nothing", "cut to nothing", "empty"]
    report = fetch(server, tmp_path, 2)
    assert report["symbols"]["EURUSD"]["empty_days"] == 0


def test_a_finished_download_asks_for_nothing(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 5)
    del server.files[path(2)]
    server.faults[path(3)] = ["empty", "empty"]
    fetch(server, tmp_path, 5)
    assert ledger_of(tmp_path)[str(day(2))] == ledger_of(tmp_path)[str(day(3))] == "empty"
    before = result_of(tmp_path)
    server.seen.clear()
    report = fetch(server, tmp_path, 5)
    assert server.seen == []
    assert days_of(report) == (0, 5, 0)
    assert result_of(tmp_path) == before


def test_a_changed_or_missing_file_is_fetched_again(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 5)
    del server.files[path(4)]
    fetch(server, tmp_path, 5)
    before = result_of(tmp_path)
    raw = tmp_path / "raw"
    changed = bytearray((raw / path(1)[1:]).read_bytes())
    changed[40] ^= 1
    (raw / path(1)[1:]).write_bytes(changed)
    (raw / path(2)[1:]).rename(
        (raw / path(2)[1:]).parent / f"{STAGING_PREFIX}left by a run that was killed"
    )
    (raw / path(4)[1:]).parent.mkdir(parents=True)
    (raw / path(4)[1:]).write_bytes(server.files[path(0)])
    server.seen.clear()
    fetch(server, tmp_path, 1)
    assert sorted(server.paths_seen) == [path(1), path(2), path(4)]
    assert result_of(tmp_path) == before


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_day_that_is_lost_here_and_there_costs_no_bars(
    server: FeedServer, tmp_path: Path, damage: str
) -> None:
    """The bars stay as they are, until the server has the day again."""
    server.files = made_up_feed("EURUSD", FIRST, 3)
    fetch(server, tmp_path, 3)
    before, raw = result_of(tmp_path), tmp_path / "raw" / path(1)[1:]
    raw.unlink() if damage == "missing" else raw.write_bytes(raw.read_bytes()[:-1] + b"?")
    content = server.files.pop(path(1))
    with pytest.raises(
        DataError,
        match=f"1 of 3 days could not be downloaded[\\s\\S]*EURUSD {day(1)}.*no longer there",
    ):
        fetch(server, tmp_path, 3)
    now = result_of(tmp_path)
    assert {file for file in before if now.get(file) != before[file]} == {f"raw/{path(1)[1:]}"}
    server.files[path(1)] = content
    fetch(server, tmp_path, 3)
    assert result_of(tmp_path) == before


def test_a_later_range_is_added_to_the_earlier(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 6) | made_up_feed("GBPUSD", FIRST, 1)
    fetch(server, tmp_path / "whole", 6)
    fetch(server, tmp_path / "parts", 6, first=3)
    fetch(server, tmp_path / "parts", 3)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")
    fetch(server, tmp_path / "parts", 1, "GBPUSD")
    assert set(json.loads((tmp_path / "parts" / "manifest.json").read_bytes())["symbols"]) == {
        "EURUSD",
        "GBPUSD",
    }


@given(data=st.data())
@settings(max_examples=12)
def test_resumes_from_a_ledger_and_files_cut_at_any_byte(data: st.DataObject) -> None:
    with feed_server.running() as server, tempfile.TemporaryDirectory() as folder:
        server.files = made_up_feed("EURUSD", FIRST, 4)
        del server.files[path(2)]
        out = Path(folder)
        fetch(server, out, 4)
        before = result_of(out)
        for file in (out / "raw").rglob("*.*"):
            content = file.read_bytes()
            file.write_bytes(content[: data.draw(st.integers(0, len(content)), file.name)])
        fetch(server, out, 4)
        assert result_of(out) == before


SCRIPT = """
import sys
from datetime import date
from pathlib import Path
from vaiom.market.download import download
url, out, last = sys.argv[1:]
download(["EURUSD"], date(2019, 2, 4), date.fromisoformat(last), Path(out), base_url=url, workers=2,
         requests_per_second=100.0, timeout=3600.0)
"""


def start(server: FeedServer, out: Path, num_days: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SCRIPT, server.url, str(out), str(day(num_days))]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def wait_for_lines(out: Path, count: int) -> None:
    """Until the ledger holds so many; only a downloader that fails to write them makes it
    give up.
    """
    deadline = time.monotonic() + feed_server.GIVE_UP_S
    while (out / "raw" / "ledger.jsonl").read_bytes().count(
        b"\n"
    ) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_killed_at_any_moment_it_goes_on_from_there(server: FeedServer, tmp_path: Path) -> None:
    num_days = 30
    server.files = made_up_feed("EURUSD", FIRST, num_days)
    del server.files[path(7)]
    fetch(server, tmp_path / "calm", num_days)
    moments = random.Random(17)
    for attempt in range(3):
        server.silent_from = len(server.seen) + moments.randrange(
            4, 7
        )  # so that it cannot end before it is killed
        process = start(server, tmp_path / "rough", num_days)
        assert server.wait_for_requests(server.silent_from + 1)
        if attempt == 0:
            wait_for_lines(tmp_path / "rough", 4)
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    server.silent_from = math.inf
    num_seen = len(server.seen)
    process = start(server, tmp_path / "rough", num_days)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    assert len(server.seen) - num_seen < num_days, "the killed runs left nothing to go on from"
    assert result_of(tmp_path / "rough") == result_of(tmp_path / "calm")


def test_ctrl_c_does_not_wait_for_a_silent_server(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 6)
    server.faults |= {path(4): ["hang"], path(5): ["hang"]}
    process = start(server, tmp_path, 6)
    assert server.wait_for_requests(6)
    wait_for_lines(tmp_path, 4)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=feed_server.GIVE_UP_S)[
        1
    ]  # the server stays silent for longer
    assert b"KeyboardInterrupt" in stderr
    assert set(ledger_of(tmp_path)) == {str(day(number)) for number in range(4)}
    server.seen.clear()
    fetch(server, tmp_path, 6)
    assert sorted(server.paths_seen) == [path(4), path(5)]


def test_two_downloads_do_not_write_in_one_folder(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 2)
    server.faults |= {path(0): ["hang"], path(1): ["hang"]}
    process = start(server, tmp_path, 2)
    assert server.wait_for_requests(2)
    with pytest.raises(DataError, match="another process is writing"):
        fetch(server, tmp_path, 1, "GBPUSD")
    process.kill()
    process.communicate()
    fetch(server, tmp_path, 2)


def test_the_server_sees_no_more_at_once_and_no_faster_than_allowed(
    server: FeedServer, tmp_path: Path
) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 8)
    server.together, server.linger_s = 3, 0.2
    began = time.monotonic()
    fetch(server, tmp_path, 8, **FAST | RATE)
    assert server.most_at_once == RATE["workers"]
    for number, (_, arrived) in enumerate(server.seen):
        assert arrived - began >= number / RATE["requests_per_second"]


def test_retry_after_holds_every_thread_back_within_bounds(
    server: FeedServer, tmp_path: Path
) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 2)
    server.faults[path(0)] = ["429 Retry-After: 3600"]
    one_by_one = FAST | {"workers": 1, "max_retry_after_s": 0.4}
    fetch(server, tmp_path, 2, **one_by_one)
    assert server.paths_seen == [path(0), path(0), path(1)]
    assert server.seen[1][1] - server.seen[0][1] >= 0.4

    limit = FileServer("http://127.0.0.1:9", per_second=1000.0, attempts=1, timeout_s=1.0)
    began = time.monotonic()
    limit.pause(0.3)
    threads = [threading.Thread(target=limit.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.3
    limit.pause(3_600)
    limit.stop.set()
    limit.wait()  # not for an hour


def test_pauses_between_attempts_double_up_to_a_limit(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    limit = FileServer(server.url, per_second=math.inf, attempts=9, timeout_s=3_600.0)
    monkeypatch.setattr(limit.stop, "wait", waited.append)
    monkeypatch.setattr("random.uniform", lambda _, most: most)
    server.faults[path(0)] = 9 * ["500"]
    with pytest.raises(UnavailableError):
        limit.fetch(FeedFile("EURUSD", day(0)))
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_days_that_fail_are_named_and_the_others_stay(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 5) | made_up_feed("GBPUSD", FIRST, 5)
    server.faults |= {path(1): ["503", "drop"], path(3): ["cut", "page"]}
    with pytest.raises(DataError) as caught:
        fetch(server, tmp_path, 5, "EURUSD", "GBPUSD", attempts=2)
    message = str(caught.value)
    assert "2 of 10 days" in message
    assert f"EURUSD {day(1)}" in message
    assert f"EURUSD {day(3)}" in message
    assert "again" in message
    assert list(read_bars(tmp_path)) == ["GBPUSD"]
    server.seen.clear()
    fetch(server, tmp_path, 5, "EURUSD", "GBPUSD")
    assert sorted(server.paths_seen) == [path(1), path(3)]
    assert sorted(read_bars(tmp_path)) == ["EURUSD", "GBPUSD"]


def test_a_server_that_is_down_is_not_asked_for_every_day(
    server: FeedServer, tmp_path: Path
) -> None:
    for number in range(40):
        server.faults[path(number)] = ["503"] * 9
    server.silent_from = 12  # so that no thread runs far ahead of the one that counts failures
    with pytest.raises(DataError, match="does not answer"):
        fetch(server, tmp_path, 40, attempts=1)
    assert len(server.seen) < 20


def test_failures_with_answers_between_them_do_not_mean_that_the_server_is_down(
    server: FeedServer, tmp_path: Path
) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 20)
    server.faults |= {path(number): ["503"] for number in range(0, 20, 2)}
    with pytest.raises(DataError, match="10 of 20 days"):
        fetch(server, tmp_path, 20, attempts=1, workers=1)


@pytest.mark.parametrize(
    "answer", ["400", "401", "403", "202", "302 Location: http://192.0.2.1/elsewhere"]
)
def test_a_refusal_ends_the_run_at_once(server: FeedServer, tmp_path: Path, answer: str) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 3)
    server.faults[path(1)] = [answer]
    with pytest.raises(DataError, match=f"HTTP {answer[:3]}"):
        fetch(server, tmp_path, 3, workers=1)
    assert server.paths_seen.count(path(1)) == 1
    assert ledger_of(tmp_path) == {str(day(0)): "bars"}
    assert not list(tmp_path.glob("*.parquet"))


def test_not_found_everywhere_is_not_believed(server: FeedServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no bars"):
        fetch(server, tmp_path, 2)
    server.files = made_up_feed("EURUSD", FIRST, 2)
    fetch(server, tmp_path, 2)
    report = fetch(server, tmp_path, 4)
    assert days_of(report) == (2, 2, 2)
    server.files = made_up_feed("EURUSD", FIRST, 4)
    del server.files[path(2)]
    report = fetch(server, tmp_path, 4)
    assert days_of(report) == (2, 2, 0)
    assert report["symbols"]["EURUSD"]["empty_days"] == 1


def test_days_not_over_or_not_published_are_left_for_later(
    server: FeedServer, tmp_path: Path
) -> None:
    today = date(2019, 2, 7)
    options = FAST | {"base_url": server.url, "today": today}
    first = today - timedelta(days=3)
    server.files = made_up_feed("EURUSD", first, 5)
    late = path_of("EURUSD", today - timedelta(days=1))
    content = server.files.pop(late)
    report = download(["EURUSD"], first, today + timedelta(days=2), tmp_path, **options)
    assert days_of(report) == (3, 0, 3)
    assert sorted(ledger_of(tmp_path)) == [str(first), str(first + timedelta(days=1))]
    assert path_of("EURUSD", today) not in server.paths_seen
    server.files[late] = content
    report = download(["EURUSD"], first, today + timedelta(days=2), tmp_path, **options)
    assert days_of(report) == (1, 2, 2)
    assert report["symbols"]["EURUSD"]["days"] == 3


def test_bars_from_elsewhere_are_not_overwritten(server: FeedServer, tmp_path: Path) -> None:
    server.files = made_up_feed("EURUSD", FIRST, 1) | made_up_feed("GBPUSD", FIRST, 1)
    raw = tmp_path / "EURUSD_2019_01_04_BID_candles_min_1.bi5"
    raw.write_bytes(server.files[path(0)])
    import_files([raw], tmp_path / "out")
    before = (tmp_path / "out" / "EURUSD.parquet").read_bytes()
    with pytest.raises(DataError, match="not overwritten"):
        fetch(server, tmp_path / "out", 1)
    assert server.seen == []
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "EURUSD.parquet",
        "manifest.json",
    ]
    fetch(server, tmp_path / "out", 1, "GBPUSD")
    with pytest.raises(DataError, match="not overwritten"):
        fetch(server, tmp_path / "out", 1)
    assert (tmp_path / "out" / "EURUSD.parquet").read_bytes() == before
    entries = json.loads((tmp_path / "out" / "manifest.json").read_bytes())["symbols"]
    shared = {"rows", "first", "last", "timeframe", "clock", "flat_dropped", "sources"}
    assert shared <= set(entries["EURUSD"]) & set(entries["GBPUSD"])
    assert entries["EURUSD"]["first"] == entries["GBPUSD"]["first"]


@pytest.mark.parametrize("content", ["[]", '{"symbols": 1}', "{"])
def test_a_foreign_manifest_is_left_alone(server: FeedServer, tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="manifest"):
        fetch(server, tmp_path, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"symbols": []}, "no symbol"),
        ({"symbols": ["EUR/USD"]}, "symbol"),
        ({"symbols": ["EURUDS"]}, "price scale"),
        ({"last": FIRST}, "no day"),
        ({"first": date(2999, 1, 1), "last": date(2999, 1, 2)}, "not over"),
        ({"workers": 0}, "workers"),
        ({"requests_per_second": 0.0}, "requests per second"),
        ({"attempts": 0}, "attempts"),
        ({"base_url": "file:///etc"}, "address"),
        ({"base_url": "http://[oops"}, "address"),
    ],
)
def test_senseless_requests_are_refused_before_anything_happens(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    asked = {
        "symbols": ["EURUSD"],
        "first": FIRST,
        "last": day(1),
        "base_url": "http://127.0.0.1:9",
    } | changed
    with pytest.raises((ConfigError, DataError), match=message):
        download(out=tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(server: FeedServer, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(DataError, match="cannot write"):
        fetch(server, tmp_path / "out", 1)
    assert server.seen == []


def test_what_dukascopy_does_not_have_is_said_to_be_its(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Dukascopy[\s\S]*data import"):
        download(["BTCUSDT"], date(2024, 1, 1), date(2024, 1, 2), tmp_path / "out")
    assert not (tmp_path / "out").exists()
