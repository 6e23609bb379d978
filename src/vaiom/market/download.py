"""One-minute bid candles from Dukascopy: fetched by day, resumed wherever a run ended, verified by
checksum.

Enters: symbols and a half-open range of UTC days. Leaves: a bar folder with its manifest, and in
its folder `raw` every file as the server sent it, with a ledger of finished days.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
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
from vaiom.market.formats.source import Options, Origin
from vaiom.market.formats.table import drop_flat

DUKASCOPY_URL = "https://datafeed.dukascopy.com/datafeed"
SOURCE = "dukascopy BID 1min"
RAW_NAME = "raw"
LEDGER_NAME = "ledger.jsonl"
ONE_DAY = timedelta(days=1)
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S = 0.5, 30.0, 120.0
LARGEST_BODY_BYTES = 1 << 20


class FeedFile(NamedTuple):
    """One file of the feed: the candles of a symbol's UTC day, or the ticks of an hour of it."""

    symbol: str
    date: date
    hour: int | None = None

    @property
    def path(self) -> str:
        """The path below the feed's address and below our `raw`; the feed counts months from 00."""
        year, month, day = self.date.year, self.date.month - 1, self.date.day
        name = "BID_candles_min_1" if self.hour is None else f"{self.hour:02d}h_ticks"
        return f"{self.symbol}/{year}/{month:02d}/{day:02d}/{name}.bi5"

    def __str__(self) -> str:
        return f"{self.symbol} {self.date}" + ("" if self.hour is None else f" {self.hour:02d}:00")

    def decode(self, content: bytes) -> pl.DataFrame:
        """The one-minute candles of a complete file."""
        start = datetime.combine(self.date, time())
        try:
            if self.hour is not None:
                return read_source(Origin(path=Path(self.path)), content, Options()).bars.select(
                    folder.BAR_COLUMNS
                )
            bars = decode_candles(content, start, price_scale_of(self.symbol), self)
            require_ordered(bars["Datetime"], self)
        except DataError as error:
            raise UnavailableError(f"a damaged file: {error.problem}") from error
        if len(bars) and bars["Datetime"][-1] >= start + ONE_DAY:
            raise UnavailableError("a candle lies outside its day")
        return bars


Fetched = tuple[bytes, pl.DataFrame]
"""The content of a file and its candles, both empty if the server has none."""
Answer = tuple[FeedFile, Fetched | Exception]
_EMPTY: Fetched = (b"", pl.DataFrame(schema=folder.BAR_SCHEMA))


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
    """Download the days [first, last) of every symbol into `out`; finished days are not requested
    again.

    Days of earlier runs stay in the bars. Returns the manifest's entries of these symbols, and how
    many days were requested, were there already, and are left to a later run: not over, not
    published, or doubtful.
    """
    symbols = _check_request(symbols, first, last, workers, requests_per_second, attempts, timeout)
    server = FileServer(base_url.rstrip("/"), requests_per_second, attempts, timeout)
    _own_manifest(out, symbols)
    days = [first + number * ONE_DAY for number in range((last - first).days)]
    requested = {FeedFile(symbol, day) for symbol in symbols for day in days}
    not_over = {day for day in requested if day.date >= _today()}
    with files.hold_folder(files.ensure_folder(out / RAW_NAME)):
        ledger = Ledger(out / RAW_NAME)
        known = {day for symbol in symbols for day in ledger.lines(symbol)}
        wanted = sorted((requested - not_over) | known)
        missing = [day for day in wanted if not ledger.is_finished(day)]
        num_there = len(wanted) - len(missing)
        with closing(server.fetch_all(missing, workers)) as answers:
            failed, num_unsettled = _record(ledger, answers, progress, num_there, len(wanted))
        failed = {
            day: "it is no longer there"
            for day in known & {*missing}
            if not ledger.is_finished(day)
        } | failed
        failing = {day.symbol for day in failed}
        entries = _publish(out, [symbol for symbol in symbols if symbol not in failing], ledger)
    if failed:
        raise _failure(f"{len(failed)} of {len(wanted)} days could not be downloaded", failed)
    if empty := [symbol for symbol in symbols if symbol not in entries]:
        where, fix = (
            f"{', '.join(empty)}, {first} to {last}",
            "check the symbol, the days and the address",
        )
        raise DataError("the server has no bars", where=where, fix=fix)
    counts = {"days_asked_for": len(missing), "days_already_there": num_there}
    return {"symbols": entries, **counts, "days_unsettled": len(not_over) + num_unsettled}


def _check_request(symbols: Iterable[str], first: date, last: date, *limits: float) -> list[str]:
    """Refuse senseless values; returns the symbols in capitals, each once."""
    if min(limits) <= 0:
        raise ConfigError(
            "workers, requests per second, attempts and timeout must be positive", got=limits
        )
    if first >= last:
        expected = "--from before --to, which is not included"
        raise ConfigError("no day to download", expected=expected, got=f"{first} to {last}")
    if first >= _today():
        raise ConfigError(
            "the first day is not over yet", expected=f"a day before {_today()}, in UTC", got=first
        )
    unique = list(dict.fromkeys(folder.check_symbol(symbol).upper() for symbol in symbols))
    if not unique:
        raise ConfigError(
            "no symbol to download", expected="one symbol or more, as in EURUSD XAUUSD"
        )
    for symbol in unique:
        fix = (
            "check the spelling; files of other instruments come in with `vaiom data import "
            "--price-scale`"
        )
        price_scale_of(symbol, fix=fix)
    return unique


def _record(
    ledger: Ledger,
    answers: Iterator[Answer],
    progress: files.Progress | None,
    num_done: int,
    total: int,
) -> tuple[dict[FeedFile, str], int]:
    """Record days as their final answers arrive; returns the days that failed, and how many are not
    settled.
    """
    failed: dict[FeedFile, str] = {}
    doubtful: dict[str, list[FeedFile]] = {}
    known_symbols: set[str] = set()
    num_unpublished = failures_in_a_row = 0
    for number, (day, answer) in enumerate(answers, num_done + 1):
        failures_in_a_row = failures_in_a_row + 1 if isinstance(answer, UnavailableError) else 0
        if isinstance(answer, UnavailableError):
            failed[day] = str(answer)
            if failures_in_a_row >= 8:  # the server is down, rather than some of its days damaged
                raise _failure(
                    "the server does not answer; the other days were not requested", failed
                )
        elif isinstance(answer, Exception):
            raise answer
        elif answer[0]:
            ledger.record(day, *answer)
            known_symbols.add(day.symbol)
        elif _today() - day.date <= ONE_DAY:  # it may only mean that it is not published yet
            num_unpublished += 1
        else:
            doubtful.setdefault(day.symbol, []).append(day)
        # A server that has moved, or a misspelt address, also answers "not found" and must not fill
        # the ledger: an empty day is final only once the server has sent bars of the symbol in this
        # run.
        for empty in doubtful.pop(day.symbol, []) if day.symbol in known_symbols else []:
            ledger.record(empty, *_EMPTY)
        if progress:
            progress(number, total, str(day))
    return failed, num_unpublished + sum(map(len, doubtful.values()))


def _failure(problem: str, failed: dict[FeedFile, str]) -> DataError:
    named = [f"{day} ({reason})" for day, reason in sorted(failed.items())[:10]]
    more = [f"and {len(failed) - len(named)} more"] if len(failed) > len(named) else []
    fix = "run the same command again: it goes on from there, nothing is lost"
    return DataError(problem, where="; ".join(named + more), fix=fix)


class UnavailableError(Exception):
    """No usable answer this time; asking again later may help."""


@dataclass
class FileServer:
    """Files below one address, requested at an even rate; safe to share among threads."""

    base_url: str
    per_second: float
    attempts: int
    timeout_s: float
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the run ends: all waits end."""
    date: str | None = None
    """The `Date` header of the last response."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next_start: float = 0.0
    _opener: OpenerDirector = field(default_factory=lambda: build_opener(_RawResponses))

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?(/\S*)?", self.base_url):
            expected = "http://... or https://..."
            raise ConfigError(
                "not an address to download from", expected=expected, got=repr(self.base_url)
            )

    def wait(self) -> None:
        """Wait until the next request may start."""
        while not self.stop.is_set():
            with self._lock:
                now = monotonic()
                wait_s = self._next_start - now
                if wait_s <= 0:
                    self._next_start = now + 1.0 / self.per_second
                    return
            self.stop.wait(wait_s)

    def pause(self, seconds: float) -> None:
        """Delay the next request of every thread."""
        with self._lock:
            self._next_start = max(self._next_start, monotonic() + seconds)

    def fetch_all(self, days: Sequence[FeedFile], workers: int) -> Generator[Answer, None, None]:
        """Fetch and decode in several threads; yields every day once, with its file or the
        error.
        """
        pending, answers = iter(days), SimpleQueue[Answer]()

        def work() -> None:
            for day in pending:
                if self.stop.is_set():
                    return
                try:
                    answers.put((day, self.fetch(day)))
                except Exception as error:
                    answers.put((day, error))

        for _ in range(min(workers, len(days))):
            # Daemons, because Ctrl-C must not wait for a silent server; they write no files.
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
        """A complete file; an empty one if the server has none, or one without candles."""
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
                    return (content, bars) if len(bars) else _EMPTY
                empty_answers += 1
                # The feed now and then sends an empty body for a day that it has, but not twice.
                if content is None or empty_answers >= min(2, self.attempts):
                    return _EMPTY
                reason = "an empty body that did not come twice"
            except UnavailableError as error:
                reason = str(error)
        raise UnavailableError(reason)

    def _get(self, url: str) -> bytes | None:
        """The complete body of a response, or None if there is no such file."""
        request = Request(
            url, headers={"User-Agent": f"vaiom/{__version__}", "Accept-Encoding": "identity"}
        )
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
        if status in (408, 425, 429) or status >= 500:
            retry_after = headers.get("Retry-After", "")
            self.pause(
                min(float(retry_after) if retry_after.isdecimal() else 0.0, LONGEST_RETRY_AFTER_S)
            )
            raise UnavailableError(f"HTTP {status}")
        if status != 200:
            moved = headers.get("Location")
            problem, expected = "the server refuses the download", "HTTP 200 or 404"
            got = f"HTTP {status} {response.reason}" + (f", moved to {moved}" if moved else "")
            fix = "open the address in a browser to see why; days that were fetched are kept"
            raise DataError(problem, where=url, expected=expected, got=got, fix=fix)
        if len(body) > LARGEST_BODY_BYTES:
            raise UnavailableError(f"a body of more than {LARGEST_BODY_BYTES} bytes")
        # A bounded read does not notice a connection that closed early, so the count is compared
        # here.
        announced = headers.get("Content-Length")
        if announced is not None and announced != str(len(body)):
            raise UnavailableError(f"a truncated body: {len(body)} of {announced} bytes")
        return body


class _RawResponses(HTTPErrorProcessor):
    """Responses of any status are returned, and no redirect is followed: data comes from the user's
    address alone.
    """

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        return response

    https_response = http_response


@dataclass(frozen=True)
class Line:
    """A finished day in the ledger."""

    symbol: str
    day: date
    status: str
    bytes: int
    sha256: str
    rows: int


class Ledger:
    """The raw files of a download, and a file with a line per finished day; the last line of a day
    counts.

    A run may be killed at any byte: days with a torn line, or a file without a line, are not
    finished.
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
        return (
            file.is_file()
            and file.stat().st_size == line.bytes
            and files.sha256_file(file) == line.sha256
        )

    def record(self, day: FeedFile, content: bytes, bars: pl.DataFrame) -> None:
        """Store a day: first its file, then its line. No content means that the server has no such
        day.
        """
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
    """Write bars and manifest of symbols whose days are all finished; returns the entries of those
    with bars.
    """
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
            # One checksum for all raw data of a symbol, whatever the order in which its days
            # arrived.
            "sha256": files.sha256_of(
                b"\n".join(files.canonical_json(to_json(line)) for line in lines.values())
            ),
            "bytes": sum(line.bytes for line in lines.values()),
            "format": "dukascopy",
            "rows": sum(line.rows for line in lines.values()),
        }
        # Read only now: a download takes hours, and other symbols may have been added meanwhile.
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
        files.write_json(out / folder.MANIFEST_NAME, manifest)
    return entries


def _own_manifest(out: Path, symbols: Iterable[str]) -> dict[str, Any]:
    """The manifest to extend; refuses to overwrite bars of another source."""
    manifest = folder.open_manifest(out)
    for symbol in symbols:
        # A run that was killed between bars and manifest leaves bars of ours that have no entry
        # yet.
        source = manifest["symbols"].get(symbol, {"source": SOURCE}).get("source")
        is_ours = source == SOURCE and (out / RAW_NAME / LEDGER_NAME).exists()
        if (file := out / f"{symbol}.parquet").exists() and not is_ours:
            fix = "choose another --out, or remove the file"
            raise DataError(
                "these bars came from elsewhere and are not overwritten", where=file, fix=fix
            )
    return manifest


def _today() -> date:
    return datetime.now(UTC).date()
