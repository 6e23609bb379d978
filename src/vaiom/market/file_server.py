"""Dukascopy's files over HTTP: requested at an even rate, checked to be whole, decoded to bars."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import HTTPErrorProcessor, OpenerDirector, Request, build_opener

import polars as pl

from vaiom import __version__
from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import BAR_COLUMNS, BAR_SCHEMA, require_ordered
from vaiom.market.formats.dukascopy import decode_candles, price_scale_of
from vaiom.market.formats.read import read_source
from vaiom.market.formats.source import Options, SourceFile

DUKASCOPY_URL = "https://datafeed.dukascopy.com/datafeed"
ONE_DAY = timedelta(days=1)
MAX_PAUSE_S = 30.0
MAX_BODY_BYTES = 1 << 20
EMPTY_ANSWERS = 2
"""The feed now and then sends an empty body for a day that it has, but not twice."""
POLL_S = 0.2
"""Polars' signal handler lets a long wait sleep through Ctrl-C (its issue 21739)."""
TRY_LATER = (408, 425, 429)
"""Refusals by HTTP that end by themselves, as server errors do."""

_URL = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?(/\S*)?")


class FeedFile(NamedTuple):
    """One file of the feed: the candles of a symbol's UTC day, or the ticks of an hour of it."""

    symbol: str
    date: date
    hour: int | None = None

    @property
    def path(self) -> str:
        """The path below the feed's address; the feed counts months from 00."""
        day = f"{self.date.year}/{self.date.month - 1:02d}/{self.date.day:02d}"
        name = "BID_candles_min_1" if self.hour is None else f"{self.hour:02d}h_ticks"
        return f"{self.symbol}/{day}/{name}.bi5"

    def __str__(self) -> str:
        day = f"{self.symbol} {self.date}"
        return day if self.hour is None else f"{day} {self.hour:02d}:00"

    def decode(self, content: bytes) -> pl.DataFrame:
        """The one-minute candles of a complete file; raises `UnavailableError` if it is damaged."""
        start = datetime.combine(self.date, time())
        try:
            if self.hour is not None:
                [ticks] = read_source(SourceFile(path=Path(self.path)), content, Options())
                return ticks.bars.select(BAR_COLUMNS)
            bars = decode_candles(content, start, price_scale_of(self.symbol), self)
            require_ordered(bars["Datetime"], self)
        except DataError as error:
            raise UnavailableError(f"a damaged file: {error.problem}") from error
        if len(bars) and bars["Datetime"][-1] >= start + ONE_DAY:
            raise UnavailableError("a candle lies outside its day")
        return bars


class Fetched(NamedTuple):
    """The content of a file and its candles, both empty if the server has none."""

    content: bytes = b""
    bars: pl.DataFrame = pl.DataFrame(schema=BAR_SCHEMA)


Answer = tuple[FeedFile, Fetched | Exception]


class UnavailableError(Exception):
    """No usable answer this time; asking again later may help."""


@dataclass
class FileServer:
    """Files below one address, requested at an even rate; safe to share among threads."""

    base_url: str
    per_second: float
    attempts: int
    timeout_s: float
    first_pause_s: float = 0.5
    """Before the second attempt; it doubles with each further one."""
    max_retry_after_s: float = 120.0
    """What the server may ask for at most by `Retry-After`."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the run ends: all waits end."""
    date: str | None = None
    """The `Date` header of the last response."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next_start: float = 0.0
    _opener: OpenerDirector = field(default_factory=lambda: build_opener(_RawResponses))

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        if not _URL.fullmatch(self.base_url):
            problem = "not an address to download from"
            expected = "http://... or https://..."
            raise ConfigError(problem, expected=expected, got=repr(self.base_url))

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

    def fetch_all(self, files: Sequence[FeedFile], workers: int) -> Generator[Answer, None, None]:
        """Fetch and decode in several threads; yields each file once, or the error that it gave."""
        pending = iter(files)
        answers = SimpleQueue[Answer]()

        def work() -> None:
            for file in pending:
                if self.stop.is_set():
                    return
                try:
                    answers.put((file, self.fetch(file)))
                except Exception as error:
                    answers.put((file, error))

        for _ in range(min(workers, len(files))):
            # Daemons, because Ctrl-C must not wait for a silent server; they write no files.
            threading.Thread(target=work, daemon=True).start()
        num_left = len(files)
        try:
            while num_left:
                with suppress(Empty):
                    yield answers.get(timeout=POLL_S)
                    num_left -= 1
        finally:
            self.stop.set()

    def fetch(self, file: FeedFile) -> Fetched:
        """A complete file; an empty one if the server has none, or one without candles."""
        reason = ""
        num_empty = 0
        for attempt in range(self.attempts):
            if attempt:
                pause_s = min(MAX_PAUSE_S, self.first_pause_s * 2.0 ** (attempt - 1))
                # Jitter keeps threads that failed together from returning together.
                self.stop.wait(pause_s * random.uniform(0.5, 1.0))
            self.wait()
            if self.stop.is_set():
                break
            try:
                content = self._get(f"{self.base_url}/{file.path}")
                if content:
                    bars = file.decode(content)
                    return Fetched(content, bars) if len(bars) else Fetched()
            except UnavailableError as error:
                reason = str(error)
                continue
            num_empty += 1
            if content is None or num_empty >= min(EMPTY_ANSWERS, self.attempts):
                return Fetched()
            reason = "an empty body that did not come twice"
        raise UnavailableError(reason)

    def _get(self, url: str) -> bytes | None:
        """The complete body of a response, or None if there is no such file."""
        headers = {"User-Agent": f"vaiom/{__version__}", "Accept-Encoding": "identity"}
        try:
            request = Request(url, headers=headers)
            with self._opener.open(request, timeout=self.timeout_s) as response:
                body: bytes = response.read(MAX_BODY_BYTES + 1)
        except (OSError, HTTPException, OverflowError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            raise UnavailableError(str(cause) or type(cause).__name__) from error
        self.date = response.headers.get("Date")
        if response.status == 404:
            return None
        self._require_success(response, url)
        _require_whole(body, response.headers)
        return body

    def _require_success(self, response: HTTPResponse, url: str) -> None:
        """Raise `UnavailableError` if asking again may help, and an error for users if not."""
        status = response.status
        if status == 200:
            return
        if status in TRY_LATER or status >= 500:
            retry_after = response.headers.get("Retry-After", "")
            seconds = float(retry_after) if retry_after.isdecimal() else 0.0
            self.pause(min(seconds, self.max_retry_after_s))
            raise UnavailableError(f"HTTP {status}")
        moved = response.headers.get("Location")
        raise DataError(
            "the server refuses the download",
            where=url,
            expected="HTTP 200 or 404",
            got=f"HTTP {status} {response.reason}" + (f", moved to {moved}" if moved else ""),
            fix="open the address in a browser to see why; days that were fetched are kept",
        )


def _require_whole(body: bytes, headers: Message) -> None:
    """Compare a body with its announced length: a bounded read does not notice a closed line."""
    if len(body) > MAX_BODY_BYTES:
        raise UnavailableError(f"a body of more than {MAX_BODY_BYTES} bytes")
    announced = headers.get("Content-Length", str(len(body)))
    if announced != str(len(body)):
        raise UnavailableError(f"a truncated body: {len(body)} of {announced} bytes")


class _RawResponses(HTTPErrorProcessor):
    """Responses of any status are returned, and no redirect is followed to another address."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        del request
        return response

    https_response = http_response
