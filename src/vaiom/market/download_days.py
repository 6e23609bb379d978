"""Many days at once: each is fetched and decoded in a thread, and comes back to the caller's thread.

Enters: a file server and the days to ask it for. Leaves: for every day the file as sent, proven to decode, or what went
wrong with it. Nothing is written here, so that threads may be abandoned at any moment.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, time, timedelta
from queue import Empty, SimpleQueue
from typing import NamedTuple

import polars as pl

from vaiom.errors import DataError
from vaiom.market.download_http import FileServer, StoppedError, UnavailableError
from vaiom.market.download_ledger import SymbolDay
from vaiom.market.formats.dukascopy import decode_candles, price_scale_of
from vaiom.market.stamps import require_ordered

ONE_DAY = timedelta(days=1)


class Body(NamedTuple):
    """A day's file, known to decode, and the number of its candles; no bytes where the server has no such day."""

    content: bytes
    num_rows: int


Answer = tuple[SymbolDay, Body | Exception]


def answers_of(server: FileServer, days: Sequence[SymbolDay], workers: int, stop: threading.Event) -> Iterator[Answer]:
    """Fetch in several threads; every day comes back once, with its body or with what went wrong."""
    tasks: SimpleQueue[SymbolDay] = SimpleQueue()
    answers: SimpleQueue[Answer] = SimpleQueue()
    for day in days:
        tasks.put(day)

    def work() -> None:
        while not stop.is_set():
            try:
                day = tasks.get_nowait()
            except Empty:
                return
            try:
                answers.put((day, _fetch(server, day)))
            except StoppedError:
                return
            except Exception as error:
                answers.put((day, error))

    for _ in range(min(workers, len(days))):
        # Daemons, because Ctrl-C must not wait for a server that is silent; they write nothing that could be torn.
        threading.Thread(target=work, daemon=True).start()
    for _ in days:
        yield _next(answers)


def _next(answers: SimpleQueue[Answer]) -> Answer:
    while True:
        # Polars' signal handler lets a waiting call sleep through Ctrl-C (its issue 21739): no wait may be long.
        with suppress(Empty):
            return answers.get(timeout=0.2)


def _fetch(server: FileServer, day: SymbolDay) -> Body:
    def check(content: bytes) -> Body:
        try:
            num_rows = len(decode(day, content))
        except DataError as error:
            raise UnavailableError(f"a damaged file: {error.problem}") from error
        return Body(content if num_rows else b"", num_rows)

    return server.fetch(day.path, check) or Body(b"", 0)


def decode(day: SymbolDay, content: bytes) -> pl.DataFrame:
    start = datetime.combine(day.date, time())
    bars = decode_candles(content, start, price_scale_of(day.symbol), day)
    require_ordered(bars["Datetime"], day)
    if len(bars) and bars["Datetime"][-1] >= start + ONE_DAY:
        raise DataError("a candle lies outside its day", where=day, got=bars["Datetime"][-1])
    return bars
