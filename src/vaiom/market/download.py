"""One-minute bid candles from Dukascopy: fetched by day, resumed wherever a run ended, verified by checksum.

Enters: symbols and a half-open range of UTC days. Leaves: a bar folder with its manifest, and beside it in `raw/` every
file as the server sent it, with a ledger of what is finished.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

import polars as pl

from vaiom.codec import from_json, to_json
from vaiom.errors import ConfigError, DataError
from vaiom.files import STAGING_PREFIX, canonical_json, ensure_folder, sha256_file, sha256_of, try_lock, write_bytes
from vaiom.market import folder
from vaiom.market.file_server import Body, FileServer, RateLimit, StoppedError, UnavailableError
from vaiom.market.folder import Progress
from vaiom.market.formats.dukascopy import decode_candles, price_scale_of
from vaiom.market.formats.table import drop_flat
from vaiom.market.stamps import require_ordered

DUKASCOPY_URL = "https://datafeed.dukascopy.com/datafeed"
SOURCE = "dukascopy BID 1min"
RAW_NAME = "raw"
LEDGER_NAME = "ledger.jsonl"
ONE_DAY = timedelta(days=1)
# Until a day has been over for this long, "not found" may only mean that it is not published yet.
PUBLISHED_AFTER = ONE_DAY
# So many failed days in a row mean that the server is down, not that some of its days are bad.
FAILURES_IN_A_ROW = 8
DAYS_NAMED_IN_ERROR = 10
_OTHER_INSTRUMENTS = "check the spelling; files of other instruments come in with `vaiom data import --price-scale`"


class SymbolDay(NamedTuple):
    """One UTC day of one symbol: one file of the feed."""

    symbol: str
    date: date

    @property
    def path(self) -> str:
        """Where the feed keeps the day, and where we keep it; the feed counts months from 00."""
        year, month, day = self.date.year, self.date.month - 1, self.date.day
        return f"{self.symbol}/{year}/{month:02d}/{day:02d}/BID_candles_min_1.bi5"

    def __str__(self) -> str:
        return f"{self.symbol} {self.date}"


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
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Bring the days [first, last) of every symbol into `out`; a day that is there and whole is not asked for again.

    Days that earlier runs brought stay in the bars. Returns the manifest's entries of these symbols, and how many days
    were asked for, were there already, and are unsettled: not over, not published, or doubtful, so left to a later run.
    """
    limits = {"workers": workers, "requests per second": requests_per_second, "attempts": attempts, "timeout": timeout}
    symbols = _check_request(symbols, first, last, limits)
    stop = threading.Event()
    limit = RateLimit(requests_per_second, stop)
    server = FileServer(base_url=base_url, limit=limit, attempts=attempts, timeout_s=timeout)
    _own_manifest(out, symbols)
    days = [first + number * ONE_DAY for number in range((last - first).days)]
    asked = {SymbolDay(symbol, day) for symbol in symbols for day in days}
    unfinished = {day for day in asked if day.date >= _today()}

    with Ledger(out / RAW_NAME) as ledger:
        wanted = sorted((asked - unfinished) | {day for symbol in symbols for day in ledger.lines(symbol)})
        missing = [day for day in wanted if not ledger.is_finished(day)]
        num_there = len(wanted) - len(missing)

        def advance(num_new: int, day: SymbolDay) -> None:
            if progress:
                progress(num_there + num_new, len(wanted), str(day))

        try:
            failed, num_unsettled = _take_in(ledger, _fetch_all(server, missing, workers, stop), advance)
        finally:
            stop.set()
        failing = {day.symbol for day in failed}
        entries = _publish(out, [symbol for symbol in symbols if symbol not in failing], ledger)

    if failed:
        raise _failure(f"{len(failed)} of {len(wanted)} days could not be downloaded", failed)
    if barren := [symbol for symbol in symbols if symbol not in entries]:
        raise DataError(
            "the server has no bars",
            where=f"{', '.join(barren)}, {first} to {last}",
            fix="check the symbol, the days and the address of the server",
        )
    return {
        "symbols": entries,
        "days_asked_for": len(missing),
        "days_already_there": num_there,
        "days_unsettled": len(unfinished) + num_unsettled,
    }


def _check_request(symbols: Iterable[str], first: date, last: date, limits: dict[str, float]) -> list[str]:
    """The symbols in capitals, each once."""
    for name, value in limits.items():
        if not value > 0:
            raise ConfigError(f"{name} must be positive", got=value)
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
    ledger: Ledger, answers: Iterator[tuple[SymbolDay, Body | Exception]], advance: Callable[[int, SymbolDay], None]
) -> tuple[dict[SymbolDay, str], int]:
    """Keep what is final, as it comes; returns the days that failed, and how many others are not settled."""
    failed: dict[SymbolDay, str] = {}
    held_back: dict[str, list[SymbolDay]] = {}
    proven: set[str] = set()
    num_unpublished = failures_in_a_row = 0
    for number, (day, answer) in enumerate(answers, 1):
        if isinstance(answer, UnavailableError):
            failed[day] = str(answer)
            failures_in_a_row += 1
            if failures_in_a_row >= FAILURES_IN_A_ROW:
                raise _failure("the server does not answer; the other days were not asked for", failed)
        elif isinstance(answer, Exception):
            raise answer
        else:
            failures_in_a_row = 0
            if answer[0]:
                ledger.record(day, answer)
                proven.add(day.symbol)
            elif _today() - day.date <= PUBLISHED_AFTER:
                num_unpublished += 1
            else:
                held_back.setdefault(day.symbol, []).append(day)
            # A server that has moved, or a misspelt address, also answers "not found" and must not fill the ledger:
            # an empty day is final only once the server has proven, in this run, to know the symbol.
            for empty in held_back.pop(day.symbol, []) if day.symbol in proven else []:
                ledger.record(empty, (b"", 0))
        advance(number, day)
    return failed, num_unpublished + sum(map(len, held_back.values()))


def _failure(problem: str, failed: dict[SymbolDay, str]) -> DataError:
    named = [f"{day} ({reason})" for day, reason in sorted(failed.items())[:DAYS_NAMED_IN_ERROR]]
    more = [f"and {len(failed) - len(named)} more"] if len(failed) > len(named) else []
    again = "run the same command again: it goes on from there, nothing is lost"
    return DataError(problem, where="; ".join(named + more), fix=again)


def _fetch_all(
    server: FileServer, days: Sequence[SymbolDay], workers: int, stop: threading.Event
) -> Iterator[tuple[SymbolDay, Body | Exception]]:
    """Fetch and decode in several threads; every day comes back once, with its body or with what went wrong."""
    tasks: SimpleQueue[SymbolDay] = SimpleQueue()
    answers: SimpleQueue[tuple[SymbolDay, Body | Exception]] = SimpleQueue()
    for day in days:
        tasks.put(day)

    def work() -> None:
        with suppress(Empty, StoppedError):
            while not stop.is_set():
                day = tasks.get_nowait()
                try:
                    answers.put((day, server.fetch(day.path, partial(_check, day))))
                except StoppedError:
                    raise
                except Exception as error:
                    answers.put((day, error))

    for _ in range(min(workers, len(days))):
        # Daemons, because Ctrl-C must not wait for a server that is silent; they write nothing that could be torn.
        threading.Thread(target=work, daemon=True).start()
    num_left = len(days)
    while num_left:
        # Polars' signal handler lets a waiting call sleep through Ctrl-C (its issue 21739): no wait may be long.
        with suppress(Empty):
            yield answers.get(timeout=0.2)
            num_left -= 1


def _check(day: SymbolDay, content: bytes) -> Body:
    try:
        num_rows = len(_decode(day, content))
    except DataError as error:
        raise UnavailableError(f"a damaged file: {error.problem}") from error
    return (content, num_rows) if num_rows else (b"", 0)


def _decode(day: SymbolDay, content: bytes) -> pl.DataFrame:
    start = datetime.combine(day.date, time())
    bars = decode_candles(content, start, price_scale_of(day.symbol), day)
    require_ordered(bars["Datetime"], day)
    if len(bars) and bars["Datetime"][-1] >= start + ONE_DAY:
        raise DataError("a candle lies outside its day", where=day, got=bars["Datetime"][-1])
    return bars


@dataclass(frozen=True)
class Line:
    """What the ledger says about a finished day."""

    symbol: str
    day: date
    status: Literal["bars", "empty"]
    bytes: int
    sha256: str
    rows: int


class Ledger:
    """The raw files of a download and a line for each finished day, appended and flushed; the last about a day counts.

    A run may end at any byte: a torn line, or a file without a line, is not finished. Open for one run at a time.
    """

    def __init__(self, path: Path) -> None:
        self.folder = ensure_folder(path)
        self._lines: dict[SymbolDay, Line] = {}

    def __enter__(self) -> Ledger:
        lock = try_lock(self.folder / f".{LEDGER_NAME}.lock")
        if lock is None:
            way_out = "wait until it ends, or choose another --out"
            raise DataError("another download is writing here", where=self.folder, fix=way_out)
        self._lock, path = lock, self.folder / LEDGER_NAME
        self._stream = path.open("ab")
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            self._append(b"\n")
        for text in content.splitlines():
            # Torn or damaged: the day counts as unfinished and is fetched again.
            with suppress(ValueError, RecursionError):
                line = from_json(Line, json.loads(text))
                self._lines[SymbolDay(line.symbol, line.day)] = line
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._lock.release()

    def lines(self, symbol: str) -> dict[SymbolDay, Line]:
        """The finished days of a symbol in order of time."""
        return {day: self._lines[day] for day in sorted(self._lines) if day.symbol == symbol}

    def is_finished(self, day: SymbolDay) -> bool:
        """Whether the day has a line and its file still agrees with it."""
        line, file = self._lines.get(day), self.folder / day.path
        if line is None or line.status == "empty":
            return line is not None and not file.exists()
        return file.is_file() and file.stat().st_size == line.bytes and sha256_file(file) == line.sha256

    def record(self, day: SymbolDay, body: Body) -> None:
        """Keep a day for good: first its file, then its line. No content means that the server has no such day."""
        file = self.folder / day.path
        for leftover in file.parent.glob(f"{STAGING_PREFIX}*"):
            leftover.unlink()
        content, num_rows = body
        if content:
            write_bytes(file, content)
        else:
            file.unlink(missing_ok=True)
        status: Literal["bars", "empty"] = "bars" if content else "empty"
        line = Line(day.symbol, day.date, status, len(content), sha256_of(content), num_rows)
        self._append(canonical_json(to_json(line)) + b"\n")
        self._lines[day] = line

    def _append(self, text: bytes) -> None:
        self._stream.write(text)
        self._stream.flush()
        os.fsync(self._stream.fileno())


def _publish(out: Path, symbols: Iterable[str], ledger: Ledger) -> dict[str, Any]:
    """Write bars and manifest of the symbols whose days are all finished; returns the entries of those with bars."""
    entries: dict[str, Any] = {}
    for symbol in symbols:
        lines = ledger.lines(symbol)
        full = [day for day, line in lines.items() if line.status == "bars"]
        days = (_decode(day, (ledger.folder / day.path).read_bytes()) for day in full)
        candles = pl.concat([pl.DataFrame(schema=folder.BAR_SCHEMA), *days])
        bars = drop_flat(candles)
        if bars.is_empty():
            continue
        raw = {
            "name": f"{RAW_NAME}/{LEDGER_NAME}",
            # One checksum for all raw data of a symbol, whatever the order in which its days arrived.
            "sha256": sha256_of(b"\n".join(canonical_json(to_json(line)) for line in lines.values())),
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
            raise DataError(
                "these bars came from elsewhere and are not overwritten",
                where=out / f"{symbol}.parquet",
                fix="choose another --out, or remove the file",
            )
    return manifest


def _today() -> date:
    return datetime.now(UTC).date()
