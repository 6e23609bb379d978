"""One-minute bid candles from Dukascopy: fetched by day, resumed wherever a run ended, verified by checksum.

Enters: symbols and a half-open range of UTC days. Leaves: a bar folder with its manifest, and beside it in `raw/` every
file as the server sent it, with a ledger of what is finished.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.market.download_days import ONE_DAY, Body, answers_of, decode
from vaiom.market.download_http import FileServer, RateLimit, UnavailableError
from vaiom.market.download_ledger import LEDGER_NAME, Ledger, SymbolDay
from vaiom.market.folder import BAR_SCHEMA, check_symbol, open_manifest, write_manifest, write_symbol
from vaiom.market.formats.dukascopy import price_scale_of
from vaiom.market.formats.table import drop_flat

DUKASCOPY_URL = "https://datafeed.dukascopy.com/datafeed"
SOURCE = "dukascopy BID 1min"
RAW_NAME = "raw"
# Until a day has been over for this long, "not found" may only mean that it is not published yet.
PUBLISHED_AFTER = ONE_DAY
# So many failed days in a row mean that the server is down, not that some of its days are bad.
FAILURES_IN_A_ROW = 8
DAYS_NAMED_IN_ERROR = 10

Progress = Callable[[int, int, str], None]


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
    _require_sense(first, last, workers=workers, rate=requests_per_second, attempts=attempts, timeout=timeout)
    symbols = _known_symbols(symbols)
    stop = threading.Event()
    limit = RateLimit(requests_per_second, stop)
    server = FileServer(base_url, limit=limit, attempts=attempts, timeout_s=timeout)
    _own_manifest(out, symbols)
    asked = {SymbolDay(symbol, day) for symbol in symbols for day in _days(first, last)}
    unfinished = {day for day in asked if day.date >= _today()}

    with Ledger(out / RAW_NAME) as ledger:
        wanted = sorted((asked - unfinished) | {day for symbol in symbols for day in ledger.lines(symbol)})
        missing = [day for day in wanted if not ledger.is_finished(day)]
        num_there = len(wanted) - len(missing)
        intake = _Intake(ledger)
        try:
            for num_done, (day, answer) in enumerate(answers_of(server, missing, workers, stop), num_there + 1):
                intake.take(day, answer)
                if progress:
                    progress(num_done, len(wanted), str(day))
        finally:
            stop.set()
        complete = [symbol for symbol in symbols if symbol not in {day.symbol for day in intake.failed}]
        entries = _publish(out, complete, ledger)

    if intake.failed:
        raise intake.failure(f"{len(intake.failed)} of {len(wanted)} days could not be downloaded")
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
        "days_unsettled": len(unfinished) + intake.num_unsettled,
    }


class _Intake:
    """Takes the answers as they come, in the caller's thread: keeps what is final, remembers what is not."""

    def __init__(self, ledger: Ledger) -> None:
        self.failed: dict[SymbolDay, str] = {}
        self._ledger = ledger
        self._num_unpublished = 0
        self._proven: set[str] = set()
        self._held_back: dict[str, list[SymbolDay]] = {}
        self._failures_in_a_row = 0

    @property
    def num_unsettled(self) -> int:
        return self._num_unpublished + sum(map(len, self._held_back.values()))

    def take(self, day: SymbolDay, answer: Body | Exception) -> None:
        if isinstance(answer, UnavailableError):
            self.failed[day] = str(answer)
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= FAILURES_IN_A_ROW:
                raise self.failure("the server does not answer; the other days were not asked for")
            return
        if isinstance(answer, Exception):
            raise answer
        self._failures_in_a_row = 0
        if answer.content:
            self._ledger.record(day, *answer)
            self._proven.add(day.symbol)
        elif _today() - day.date <= PUBLISHED_AFTER:
            self._num_unpublished += 1
        else:
            self._held_back.setdefault(day.symbol, []).append(day)
        # A server that has moved, or a misspelt address, also answers "not found" and must not fill the ledger:
        # an empty day is final only once the server has proven, in this run, to know the symbol.
        if day.symbol in self._proven:
            for empty in self._held_back.pop(day.symbol, []):
                self._ledger.record(empty, b"", 0)

    def failure(self, problem: str) -> DataError:
        named = [f"{day} ({reason})" for day, reason in sorted(self.failed.items())[:DAYS_NAMED_IN_ERROR]]
        if len(self.failed) > len(named):
            named.append(f"and {len(self.failed) - len(named)} more")
        return DataError(
            problem, where="; ".join(named), fix="run the same command again: it goes on from there, nothing is lost"
        )


def _publish(out: Path, symbols: Iterable[str], ledger: Ledger) -> dict[str, Any]:
    """Write bars and manifest of the symbols whose days are all finished; returns the entries of those with bars."""
    entries = {}
    for symbol in symbols:
        bars, flat_dropped = _bars(symbol, ledger)
        if bars.is_empty():
            continue
        # Read only now: a download takes hours, and the folder may have grown meanwhile.
        manifest = _own_manifest(out, [symbol])
        entries[symbol] = _entry(symbol, bars, flat_dropped, ledger)
        write_symbol(out, symbol, bars)
        manifest["symbols"] = dict(sorted({**manifest["symbols"], symbol: entries[symbol]}.items()))
        write_manifest(out, manifest)
    return entries


def _bars(symbol: str, ledger: Ledger) -> tuple[pl.DataFrame, int]:
    """All bars of a symbol's finished days, and how many flat ones of closed hours were left out."""
    days = [pl.DataFrame(schema=BAR_SCHEMA)]
    flat_dropped = 0
    for day, line in ledger.lines(symbol).items():
        if line.status == "bars":
            candles = decode(day, ledger.body(day))
            days.append(drop_flat(candles))
            flat_dropped += len(candles) - len(days[-1])
    return pl.concat(days), flat_dropped


def _entry(symbol: str, bars: pl.DataFrame, flat_dropped: int, ledger: Ledger) -> dict[str, Any]:
    lines = ledger.lines(symbol).values()
    return {
        "rows": len(bars),
        "first": bars["Datetime"][0].isoformat(),
        "last": bars["Datetime"][-1].isoformat(),
        "timeframe": "1min",
        "clock": {"shift": "0min", "utc": False},
        "flat_dropped": flat_dropped,
        "days": len(lines),
        "empty_days": sum(line.status == "empty" for line in lines),
        "source": SOURCE,
        "sources": [
            {
                "name": f"{RAW_NAME}/{LEDGER_NAME}",
                "sha256": ledger.digest(symbol),
                "bytes": sum(line.bytes for line in lines),
                "format": "dukascopy",
                "rows": sum(line.rows for line in lines),
            }
        ],
    }


def _own_manifest(out: Path, symbols: Iterable[str]) -> dict[str, Any]:
    """The manifest to extend; bars that came from elsewhere are not overwritten."""
    manifest = open_manifest(out)
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


def _known_symbols(symbols: Iterable[str]) -> list[str]:
    known = list(dict.fromkeys(check_symbol(symbol).upper() for symbol in symbols))
    if not known:
        raise ConfigError("no symbol to download", expected="one symbol or more, as in EURUSD XAUUSD")
    for symbol in known:
        try:
            price_scale_of(symbol)
        except DataError as error:
            raise DataError(
                error.problem,
                expected=error.expected,
                got=error.got,
                fix="check the spelling; files of other instruments come in with `vaiom data import --price-scale`",
            ) from error
    return known


def _require_sense(first: date, last: date, *, workers: int, rate: float, attempts: int, timeout: float) -> None:
    for name, value in {
        "workers": workers,
        "requests per second": rate,
        "attempts": attempts,
        "timeout": timeout,
    }.items():
        if not value > 0:
            raise ConfigError(f"{name} must be positive", got=value)
    if first >= last:
        raise ConfigError(
            "no day to download", expected="--from before --to, which is not included", got=f"{first} to {last}"
        )
    if first >= _today():
        raise ConfigError("the first day is not over yet", expected=f"a day before {_today()}, in UTC", got=first)


def _days(first: date, last: date) -> Iterator[date]:
    return (first + timedelta(days=number) for number in range((last - first).days))


def _today() -> date:
    return datetime.now(UTC).date()
