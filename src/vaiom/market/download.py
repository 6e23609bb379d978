"""One-minute bid candles from Dukascopy: fetched by day, resumed wherever a run ended, verified by checksum.

Enters: symbols and a half-open range of UTC days. Leaves: a bar folder with its manifest, and beside it in `raw/` every
file as the server sent it, with a ledger of what is finished.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import HTTPErrorProcessor, OpenerDirector, Request, build_opener

import polars as pl

from vaiom import __version__, files
from vaiom.codec import from_json, to_json
from vaiom.errors import ConfigError, DataError
from vaiom.market import folder
from vaiom.market.folder import require_ordered
from vaiom.market.formats.dukascopy import decode_candles, price_scale_of
from vaiom.market.formats.read import read_source
from vaiom.market.formats.table import Options, Origin, drop_flat

DUKASCOPY_URL = "https://datafeed.dukascopy.com/datafeed"
SOURCE = "dukascopy BID 1min"
RAW_NAME = "raw"
LEDGER_NAME = "ledger.jsonl"
ONE_DAY = timedelta(days=1)
# So many failed days in a row mean that the server is down, not that some of its days are bad.
FAILURES_IN_A_ROW = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S = 0.5, 30.0, 120.0
LARGEST_BODY_BYTES = 1 << 20
# The feed is known to send an empty body for a day that it has, now and then; two in a row are believed.
EMPTY_ANSWERS_BELIEVED = 2

_ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?(/\S*)?")
_WORTH_RETRYING = {408, 425, 429}
_OTHER_INSTRUMENTS = "check the spelling; files of other instruments come in with `vaiom data import --price-scale`"


class FeedFile(NamedTuple):
    """One file of the feed: the candles of a symbol's UTC day, or the ticks of an hour of it."""

    symbol: str
    date: date
    hour: int | None = None

    @property
    def path(self) -> str:
        """Where the feed keeps the file, and where we keep it; the feed counts months from 00."""
        year, month, day = self.date.year, self.date.month - 1, self.date.day
        name = "BID_candles_min_1" if self.hour is None else f"{self.hour:02d}h_ticks"
        return f"{self.symbol}/{year}/{month:02d}/{day:02d}/{name}.bi5"

    def __str__(self) -> str:
        return f"{self.symbol} {self.date}" + ("" if self.hour is None else f" {self.hour:02d}:00")

    def decode(self, content: bytes) -> pl.DataFrame:
        """The one-minute candles of the file, if it is whole."""
        start = datetime.combine(self.date, time())
        try:
            if self.hour is not None:
                return read_source(Origin(path=Path(self.path)), content, Options()).bars.select(folder.BAR_COLUMNS)
            bars = decode_candles(content, start, price_scale_of(self.symbol), self)
            require_ordered(bars["Datetime"], self)
        except DataError as error:
            raise UnavailableError(f"a damaged file: {error.problem}") from error
        if len(bars) and bars["Datetime"][-1] >= start + ONE_DAY:
            raise UnavailableError("a candle lies outside its day")
        return bars


Fetched = tuple[bytes, pl.DataFrame]
"""A file and its candles; neither where the server has none."""
_NOTHING: Fetched = (b"", pl.DataFrame(schema=folder.BAR_SCHEMA))


def download(
    symbols: Sequence[str],
    first: date,
    last: date,
    out: Path,
    *,
    base_url: str = DUKASCOPY_URL,
    workers: int = 4,
    requests_per_second: float = 8.0,
    attempts: int = 6,
    timeout: float = 20.0,
    progress: files.Progress | None = None,
) -> dict[str, Any]:
    """Bring the days [first, last) of every symbol into `out`; a day that is there and whole is not asked for again.

    Days that earlier runs brought stay in the bars. Returns the manifest's entries of these symbols, and how many days
    were asked for, were there already, and are unsettled: not over, not published, or doubtful, so left to a later run.
    """
    symbols = _check_request(symbols, first, last, workers, requests_per_second, attempts, timeout)
    server = FileServer(base_url.rstrip("/"), requests_per_second, attempts, timeout)
    _own_manifest(out, symbols)
    days = [first + number * ONE_DAY for number in range((last - first).days)]
    asked = {FeedFile(symbol, day) for symbol in symbols for day in days}
    unfinished = {day for day in asked if day.date >= _today()}
    with files.hold_folder(files.ensure_folder(out / RAW_NAME)):
        ledger = Ledger(out / RAW_NAME)
        wanted = sorted((asked - unfinished) | {day for symbol in symbols for day in ledger.lines(symbol)})
        missing = [day for day in wanted if not ledger.is_finished(day)]
        num_there = len(wanted) - len(missing)
        with closing(server.fetch_all(missing, workers)) as answers:
            failed, num_unsettled = _take_in(
                ledger, answers, lambda number, day: progress and progress(num_there + number, len(wanted), str(day))
            )
        failing = {day.symbol for day in failed}
        entries = _publish(out, [symbol for symbol in symbols if symbol not in failing], ledger)
    if failed:
        raise _failure(f"{len(failed)} of {len(wanted)} days could not be downloaded", failed)
    if barren := [symbol for symbol in symbols if symbol not in entries]:
        where, way_out = f"{', '.join(barren)}, {first} to {last}", "check the symbol, the days and the address"
        raise DataError("the server has no bars", where=where, fix=way_out)
    counts = {"days_asked_for": len(missing), "days_already_there": num_there}
    return {"symbols": entries, **counts, "days_unsettled": len(unfinished) + num_unsettled}


def _check_request(symbols: Iterable[str], first: date, last: date, *limits: float) -> list[str]:
    """The symbols in capitals, each once."""
    if min(limits) <= 0:
        raise ConfigError("workers, requests per second, attempts and timeout must be positive", got=limits)
    if first >= last:
        expected = "--from before --to, which is not included"
        raise ConfigError("no day to download", expected=expected, got=f"{first} to {last}")
    if first >= _today():
        raise ConfigError("the first day is not over yet", expected=f"a day before {_today()}, in UTC", got=first)
    known = list(dict.fromkeys(folder.check_symbol(symbol).upper() for symbol in symbols))
    if not known:
        raise ConfigError("no symbol to download", expected="one symbol or more, as in EURUSD XAUUSD")
    for symbol in known:
        price_scale_of(symbol, fix=_OTHER_INSTRUMENTS)
    return known


def _take_in(
    ledger: Ledger, answers: Iterator[tuple[FeedFile, Fetched | Exception]], advance: Callable[[int, FeedFile], object]
) -> tuple[dict[FeedFile, str], int]:
    """Keep what is final, as it comes; returns the days that failed, and how many others are not settled."""
    failed: dict[FeedFile, str] = {}
    held_back: dict[str, list[FeedFile]] = {}
    proven: set[str] = set()
    num_unpublished = failures_in_a_row = 0
    for number, (day, answer) in enumerate(answers, 1):
        failures_in_a_row = failures_in_a_row + 1 if isinstance(answer, UnavailableError) else 0
        if isinstance(answer, UnavailableError):
            failed[day] = str(answer)
            if failures_in_a_row >= FAILURES_IN_A_ROW:
                raise _failure("the server does not answer; the other days were not asked for", failed)
        elif isinstance(answer, Exception):
            raise answer
        elif answer[0]:
            ledger.record(day, *answer)
            proven.add(day.symbol)
        elif _today() - day.date <= ONE_DAY:  # it may only mean that it is not published yet
            num_unpublished += 1
        else:
            held_back.setdefault(day.symbol, []).append(day)
        # A server that has moved, or a misspelt address, also answers "not found" and must not fill the ledger:
        # an empty day is final only once the server has proven, in this run, to know the symbol.
        for empty in held_back.pop(day.symbol, []) if day.symbol in proven else []:
            ledger.record(empty, *_NOTHING)
        advance(number, day)
    return failed, num_unpublished + sum(map(len, held_back.values()))


def _failure(problem: str, failed: dict[FeedFile, str]) -> DataError:
    named = [f"{day} ({reason})" for day, reason in sorted(failed.items())[:10]]
    more = [f"and {len(failed) - len(named)} more"] if len(failed) > len(named) else []
    again = "run the same command again: it goes on from there, nothing is lost"
    return DataError(problem, where="; ".join(named + more), fix=again)


class UnavailableError(Exception):
    """No usable answer this time; asking again later may help."""


@dataclass
class FileServer:
    """Files below one address, asked for at an even rate; safe to share among threads."""

    base_url: str
    per_second: float
    attempts: int
    timeout_s: float
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the run ends: nothing is waited for any more."""
    date: str | None = None
    """The server's clock, as its last answer says it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next_start: float = 0.0
    _opener: OpenerDirector = field(default_factory=lambda: build_opener(_AsItIs))

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.base_url):
            expected = "http://... or https://..."
            raise ConfigError("not an address to download from", expected=expected, got=repr(self.base_url))

    def wait(self) -> None:
        """Until the next request may start."""
        while not self.stop.is_set():
            with self._lock:
                now = monotonic()
                wait_s = self._next_start - now
                if wait_s <= 0:
                    self._next_start = now + 1.0 / self.per_second
                    return
            self.stop.wait(wait_s)

    def pause(self, seconds: float) -> None:
        """Hold every thread back."""
        with self._lock:
            self._next_start = max(self._next_start, monotonic() + seconds)

    def fetch_all(
        self, days: Sequence[FeedFile], workers: int
    ) -> Generator[tuple[FeedFile, Fetched | Exception], None, None]:
        """Fetch and decode in several threads; every day comes back once, with its body or with what went wrong."""
        pending, answers = iter(days), SimpleQueue[tuple[FeedFile, Fetched | Exception]]()

        def work() -> None:
            for day in pending:
                if self.stop.is_set():
                    return
                try:
                    answers.put((day, self.fetch(day)))
                except Exception as error:
                    answers.put((day, error))

        for _ in range(min(workers, len(days))):
            # Daemons, because Ctrl-C must not wait for a server that is silent; they write nothing that could be torn.
            threading.Thread(target=work, daemon=True).start()
        num_left = len(days)
        try:
            while num_left:
                # Polars' signal handler lets a long wait sleep through Ctrl-C (its issue 21739).
                with suppress(Empty):
                    yield answers.get(timeout=0.2)
                    num_left -= 1
        finally:
            self.stop.set()

    def fetch(self, file: FeedFile) -> Fetched:
        """A file once it is whole; nothing where the server has none, or one without candles."""
        reason, empty_answers = "", 0
        for attempt in range(self.attempts):
            if attempt:
                # Doubling; the jitter keeps threads that failed together from returning together.
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (attempt - 1))
                self.stop.wait(pause_s * random.uniform(0.5, 1.0))
            self.wait()
            if self.stop.is_set():
                break
            try:
                content = self._get(f"{self.base_url}/{file.path}")
                if content:
                    bars = file.decode(content)
                    return (content, bars) if len(bars) else _NOTHING
                empty_answers += 1
                if content is None or empty_answers >= min(EMPTY_ANSWERS_BELIEVED, self.attempts):
                    return _NOTHING
                reason = "an empty body that did not come twice"
            except UnavailableError as error:
                reason = str(error)
        raise UnavailableError(reason)

    def _get(self, url: str) -> bytes | None:
        """A whole body, or None where there is no such file."""
        request = Request(url, headers={"User-Agent": f"vaiom/{__version__}", "Accept-Encoding": "identity"})
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                status, headers = response.status, response.headers
                body: bytes = response.read(LARGEST_BODY_BYTES + 1)
        except (OSError, HTTPException, OverflowError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            raise UnavailableError(str(cause) or type(cause).__name__) from error
        self.date = headers.get("Date")
        if status == 404:
            return None
        if status in _WORTH_RETRYING or status >= 500:
            asked = headers.get("Retry-After", "")
            self.pause(min(float(asked) if asked.isdecimal() else 0.0, LONGEST_RETRY_AFTER_S))
            raise UnavailableError(f"HTTP {status}")
        if status != 200:
            moved = headers.get("Location")
            got = f"HTTP {status} {response.reason}" + (f", moved to {moved}" if moved else "")
            way_out = "open the address in a browser to see why; days that were fetched are kept"
            raise DataError(
                "the server refuses the download", where=url, expected="HTTP 200 or 404", got=got, fix=way_out
            )
        if len(body) > LARGEST_BODY_BYTES:
            raise UnavailableError(f"a body of more than {LARGEST_BODY_BYTES} bytes")
        # A bounded read does not notice a connection that closed early, so the count is compared here.
        announced = headers.get("Content-Length")
        if announced is not None and announced != str(len(body)):
            raise UnavailableError(f"a truncated body: {len(body)} of {announced} bytes")
        return body


class _AsItIs(HTTPErrorProcessor):
    """No answer is an error yet, and data is taken from the address the user named and from no other."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        return response

    https_response = http_response


@dataclass(frozen=True)
class Line:
    """What the ledger says about a finished day."""

    symbol: str
    day: date
    status: str
    bytes: int
    sha256: str
    rows: int


class Ledger:
    """The raw files of a download and a line for each finished day, appended and flushed; the last about a day counts.

    A run may end at any byte: a torn line, or a file without a line, is not finished.
    """

    def __init__(self, path: Path) -> None:
        self.folder, self._file = path, path / LEDGER_NAME
        self._lines: dict[FeedFile, Line] = {}
        content = self._file.read_bytes() if self._file.exists() else b""
        self._append(b"\n" if content and not content.endswith(b"\n") else b"")
        for text in content.splitlines():
            # Torn or damaged: the day counts as unfinished and is fetched again.
            with suppress(ValueError, RecursionError):
                line = from_json(Line, files.parse_json(text))
                self._lines[FeedFile(line.symbol, line.day)] = line

    def lines(self, symbol: str) -> dict[FeedFile, Line]:
        """The finished days of a symbol in order of time."""
        return {day: self._lines[day] for day in sorted(self._lines) if day.symbol == symbol}

    def is_finished(self, day: FeedFile) -> bool:
        """Whether the day has a line and its file still agrees with it."""
        line, file = self._lines.get(day), self.folder / day.path
        if line is None or line.status == "empty":
            return line is not None and not file.exists()
        return file.is_file() and file.stat().st_size == line.bytes and files.sha256_file(file) == line.sha256

    def record(self, day: FeedFile, content: bytes, bars: pl.DataFrame) -> None:
        """Keep a day for good: first its file, then its line. No content means that the server has no such day."""
        file = self.folder / day.path
        if content:
            files.write_bytes(file, content)
        else:
            file.unlink(missing_ok=True)
        status = "bars" if content else "empty"
        line = Line(day.symbol, day.date, status, len(content), files.sha256_of(content), len(bars))
        self._append(files.canonical_json(to_json(line)) + b"\n")
        self._lines[day] = line

    def _append(self, text: bytes) -> None:
        with self._file.open("ab") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())


def _publish(out: Path, symbols: Iterable[str], ledger: Ledger) -> dict[str, Any]:
    """Write bars and manifest of the symbols whose days are all finished; returns the entries of those with bars."""
    entries: dict[str, Any] = {}
    for symbol in symbols:
        lines = ledger.lines(symbol)
        full = [day for day, line in lines.items() if line.status == "bars"]
        days = (day.decode((ledger.folder / day.path).read_bytes()) for day in full)
        candles = pl.concat([pl.DataFrame(schema=folder.BAR_SCHEMA), *days])
        bars = drop_flat(candles)
        if bars.is_empty():
            continue
        raw = {
            "name": f"{RAW_NAME}/{LEDGER_NAME}",
            # One checksum for all raw data of a symbol, whatever the order in which its days arrived.
            "sha256": files.sha256_of(b"\n".join(files.canonical_json(to_json(line)) for line in lines.values())),
            "bytes": sum(line.bytes for line in lines.values()),
            "format": "dukascopy",
            "rows": sum(line.rows for line in lines.values()),
        }
        # Read only now: a download takes hours, and the folder may have grown meanwhile.
        manifest = _own_manifest(out, [symbol])
        entries[symbol] = {
            **folder.describe(bars),
            "timeframe": "1min",
            "clock": {"shift": "0min", "utc": False},
            "flat_dropped": len(candles) - len(bars),
            "days": len(lines),
            "empty_days": len(lines) - len(full),
            "source": SOURCE,
            "sources": [raw],
        }
        folder.write_symbol(out, symbol, bars)
        manifest["symbols"] = dict(sorted({**manifest["symbols"], symbol: entries[symbol]}.items()))
        folder.write_manifest(out, manifest)
    return entries


def _own_manifest(out: Path, symbols: Iterable[str]) -> dict[str, Any]:
    """The manifest to extend; bars that came from elsewhere are not overwritten."""
    manifest = folder.open_manifest(out)
    for symbol in symbols:
        # A run that was killed between bars and manifest leaves bars of ours that have no entry yet.
        came_from = manifest["symbols"].get(symbol, {"source": SOURCE}).get("source")
        is_ours = came_from == SOURCE and (out / RAW_NAME / LEDGER_NAME).exists()
        if (out / f"{symbol}.parquet").exists() and not is_ours:
            file, way_out = out / f"{symbol}.parquet", "choose another --out, or remove the file"
            raise DataError("these bars came from elsewhere and are not overwritten", where=file, fix=way_out)
    return manifest


def _today() -> date:
    return datetime.now(UTC).date()
