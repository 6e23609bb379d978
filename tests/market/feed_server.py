"""A Dukascopy-like file server on loopback: it keeps a log, and misbehaves on request."""

from __future__ import annotations

import lzma
import math
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GIVE_UP_S = 300.0
Candle = tuple[int, int, int, int, int, float]
"""Seconds of the day, open, close, low, high as integers, volume: the order of the file."""


def pack(candles: list[Candle]) -> bytes:
    return lzma.compress(
        b"".join(struct.pack(">IIIIIf", *candle) for candle in candles), format=lzma.FORMAT_ALONE
    )


def unpack(content: bytes) -> list[Candle]:
    return list(struct.iter_unpack(">IIIIIf", lzma.decompress(content)))


def path_of(symbol: str, day: date, name: str = "BID_candles_min_1") -> str:
    return f"/{symbol}/{day.year}/{day.month - 1:02d}/{day.day:02d}/{name}.bi5"


def pack_ticks(bids: dict[int, int]) -> bytes:
    """An hour of ticks: milliseconds and bids as integers."""
    ticks = (struct.pack(">IIIff", ms, bid + 1, bid, 1.0, 1.0) for ms, bid in bids.items())
    return lzma.compress(b"".join(ticks), format=lzma.FORMAT_ALONE)


def made_up_day(day: date, num_candles: int = 40) -> bytes:
    """A day of candles that differ from day to day; every fifth is flat, as in closed hours."""
    candles: list[Candle] = []
    for minute in range(num_candles):
        price = 110_000 + (day.toordinal() * 31 + minute * 7) % 500
        flat = minute % 5 == 0
        candles.append(
            (60 * minute, price, price, price, price, 0.0) if flat else _moving(minute, price)
        )
    return pack(candles)


def _moving(minute: int, price: int) -> Candle:
    return (60 * minute, price, price + 3, price - 4, price + 9, 1.5 + minute)


def made_up_feed(symbol: str, first: date, num_days: int) -> dict[str, bytes]:
    days = (first + timedelta(days=number) for number in range(num_days))
    return {path_of(symbol, day): made_up_day(day) for day in days}


class FeedServer(ThreadingHTTPServer):
    """`files` are served; the answers named in `faults[path]` come first, each of them once.

    Requests from number `silent_from` on are not answered, and none before `together` have come.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.linger_s = 0.0
        self.together = 0
        self.silent_from = math.inf
        self.clock: Callable[[], datetime] | None = None
        """What the `Date` of its answers is taken from, in UTC."""
        self.closed = threading.Event()
        self.seen: list[tuple[str, float]] = []
        self.most_at_once = 0
        self._at_once = 0
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def paths_seen(self) -> list[str]:
        return [path for path, _ in self.seen]

    def wait_for_requests(self, count: int) -> bool:
        """Whether so many came; only a downloader that fails to send them makes it give up."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.seen) >= count, GIVE_UP_S)

    def take(self, path: str) -> str:
        """The fault to answer with; the request is no longer counted as running when this
        returns.
        """
        with self._changed:
            number = len(self.seen)
            self.seen.append((path, time.monotonic()))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = self.faults[path].pop(0) if self.faults[path] else ""
            self._changed.notify_all()
        self.wait_for_requests(self.together)
        self.closed.wait(self.linger_s)
        if number >= self.silent_from or fault == "hang":
            self.closed.wait()
        # Before the answer goes out: whoever has it may ask again before this thread runs on.
        with self._changed:
            self._at_once -= 1
        return fault

    def handle_error(self, *_: object) -> None:
        """A client that was killed, or hung up, is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: FeedServer

    def do_GET(self) -> None:
        fault = self.server.take(self.path)
        content = self.server.files.get(self.path)
        body = content or b""
        answers = {
            "": lambda: self._answer(404 if content is None else 200, body),
            "drop": lambda: self.connection.shutdown(socket.SHUT_RDWR),
            "hang": lambda: None,
            "cut": lambda: self._answer(200, body[:50], announced=len(body)),
            "cut to nothing": lambda: self._answer(200, b"", announced=len(body)),
            "cut unannounced": lambda: self._answer(200, body[:50], announced=None),
            "half a record": lambda: self._answer(
                200, lzma.compress(bytes(35), format=lzma.FORMAT_ALONE)
            ),
            "another day": lambda: self._answer(200, pack([(90_000, 1, 1, 1, 1, 1.0)])),
            "page": lambda: self._answer(200, b"<html>busy</html>"),
            "flood": lambda: self._answer(200, bytes(2 << 20)),
            "empty": lambda: self._answer(200, b""),
        }
        if fault in answers:
            answers[fault]()
        else:
            status, _, header = fault.partition(" ")
            name, _, value = header.partition(": ")
            self._answer(int(status), b"", **({name: value} if name else {}))

    def _answer(
        self, status: int, content: bytes, announced: int | None = -1, **headers: str
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if announced is not None:
            self.send_header("Content-Length", str(len(content) if announced == -1 else announced))
        self.end_headers()
        self.wfile.write(content)

    def date_time_string(self, timestamp: float | None = None) -> str:
        clock = self.server.clock
        return super().date_time_string(
            clock().replace(tzinfo=UTC).timestamp() if clock else timestamp
        )

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(server: FeedServer | None = None) -> Iterator[FeedServer]:
    server = server or FeedServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
