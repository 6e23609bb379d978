"""One-minute bid candles from Dukascopy: fetched by day, resumed wherever a run ended, verified.

Enters: symbols and a half-open range of UTC days. Leaves: a bar folder with its manifest, and in
its folder `raw` every file as the server sent it, with a ledger of finished days.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from vaiom import files
from vaiom.errors import ConfigError, DataError
from vaiom.market import folder
from vaiom.market.day_ledger import BARS, LEDGER_NAME, DayLedger, line_of
from vaiom.market.file_server import (
    DUKASCOPY_URL,
    ONE_DAY,
    FeedFile,
    Fetched,
    FileServer,
    UnavailableError,
)
from vaiom.market.formats.dukascopy import price_scale_of
from vaiom.market.formats.table import drop_flat

SOURCE = "dukascopy BID 1min"
RAW_NAME = "raw"
MAX_FAILURES_IN_A_ROW = 8
"""After so many the server is down, rather than some of its days damaged."""


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
    today: date | None = None,
    progress: files.Progress | None = None,
    **server_options: Any,
) -> dict[str, Any]:
    """Download the days [first, last) of every symbol into `out`, one-minute bid candles.

    Finished days are not requested again, and days of earlier runs stay in the bars. Further
    options are those of `FileServer`.

    Returns the manifest's entries of these symbols, and how many days were requested, were there
    already, and are left to a later run: not over, not published, or doubtful.
    """
    today = today or datetime.now(UTC).date()
    if min(workers, requests_per_second, attempts, timeout) <= 0:
        problem = "workers, requests per second, attempts and timeout must be positive"
        raise ConfigError(problem, got=(workers, requests_per_second, attempts, timeout))
    symbols = _check_request(symbols, first, last, today)
    server = FileServer(base_url, requests_per_second, attempts, timeout, **server_options)
    _own_manifest(out, symbols)
    days = [first + number * ONE_DAY for number in range((last - first).days)]
    requested = {FeedFile(symbol, day) for symbol in symbols for day in days}
    not_over = {day for day in requested if day.date >= today}
    with files.hold_folder(files.ensure_folder(out / RAW_NAME)):
        ledger = DayLedger(out / RAW_NAME)
        known = {day for symbol in symbols for day in ledger.records(symbol)}
        wanted = sorted((requested - not_over) | known)
        missing = [day for day in wanted if not ledger.is_finished(day)]
        num_present = len(wanted) - len(missing)
        recorder = _Recorder(ledger, today)
        with closing(server.fetch_all(missing, workers)) as answers:
            for num_done, (day, answer) in enumerate(answers, num_present + 1):
                recorder.take(day, answer)
                if progress:
                    progress(num_done, len(wanted), str(day))
        lost = {day for day in missing if day in known and not ledger.is_finished(day)}
        failed = {**dict.fromkeys(lost, "it is no longer there"), **recorder.failed}
        failed_symbols = {day.symbol for day in failed}
        whole = [symbol for symbol in symbols if symbol not in failed_symbols]
        entries = dict(_publish(out, whole, ledger))
    if failed:
        raise _failure(f"{len(failed)} of {len(wanted)} days could not be downloaded", failed)
    empty = [symbol for symbol in symbols if symbol not in entries]
    if empty:
        raise DataError(
            "the server has no bars",
            where=f"{', '.join(empty)}, {first} to {last}",
            fix="check the symbol, the days and the address",
        )
    return {
        "symbols": entries,
        "days_asked_for": len(missing),
        "days_already_there": num_present,
        "days_unsettled": len(not_over) + recorder.num_unsettled,
    }


def _check_request(symbols: Iterable[str], first: date, last: date, today: date) -> list[str]:
    """Refuse what cannot be downloaded; returns the symbols in capitals, each once.

    A symbol must be one whose price scale is known, because the files hold integers.
    """
    if first >= last:
        expected = "--from before --to, which is not included"
        raise ConfigError("no day to download", expected=expected, got=f"{first} to {last}")
    if first >= today:
        expected = f"a day before {today}, in UTC"
        raise ConfigError("the first day is not over yet", expected=expected, got=first)
    unique = list(dict.fromkeys(folder.check_symbol(symbol).upper() for symbol in symbols))
    if not unique:
        expected = "one symbol or more, as in EURUSD XAUUSD"
        raise ConfigError("no symbol to download", expected=expected)
    for symbol in unique:
        price_scale_of(
            symbol,
            fix="Dukascopy has currency pairs and metals, and this downloads no others: check the "
            "spelling, or bring in files of other sources with `vaiom data import`",
        )
    return unique


class _Recorder:
    """Records days in the ledger as their answers arrive.

    A server that has moved, or a misspelt address, also answers "not found": an empty day is
    recorded only once the server has sent bars of the symbol in this run.
    """

    def __init__(self, ledger: DayLedger, today: date) -> None:
        self.failed: dict[FeedFile, str] = {}
        """Days without a usable answer, and why."""
        self._ledger = ledger
        self._today = today
        self._num_unpublished = 0
        self._failures_in_a_row = 0
        self._symbols_with_bars: set[str] = set()
        self._doubtful: set[FeedFile] = set()

    @property
    def num_unsettled(self) -> int:
        """Days that are not published yet, or empty without proof."""
        return self._num_unpublished + len(self._doubtful)

    def take(self, day: FeedFile, answer: Fetched | Exception) -> None:
        """Record one answer; an error that is no matter of this day alone is raised."""
        if isinstance(answer, UnavailableError):
            self.failed[day] = str(answer)
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                problem = "the server does not answer; the other days were not requested"
                raise _failure(problem, self.failed)
            return
        if isinstance(answer, Exception):
            raise answer
        self._failures_in_a_row = 0
        if answer.content:
            self._ledger.record(day, answer)
            self._symbols_with_bars.add(day.symbol)
        elif self._today - day.date <= ONE_DAY:  # it may only mean that it is not published yet
            self._num_unpublished += 1
        else:
            self._doubtful.add(day)
        for empty in sorted(self._doubtful):
            if empty.symbol in self._symbols_with_bars:
                self._ledger.record(empty, Fetched())
                self._doubtful.remove(empty)


def _failure(problem: str, failed: dict[FeedFile, str]) -> DataError:
    """The error for days without a usable answer; it names ten of them with their reasons."""
    named = [f"{day} ({reason})" for day, reason in sorted(failed.items())[:10]]
    if len(failed) > len(named):
        named.append(f"and {len(failed) - len(named)} more")
    fix = "run the same command again: it goes on from there, nothing is lost"
    return DataError(problem, where="; ".join(named), fix=fix)


def _publish(
    out: Path, symbols: Iterable[str], ledger: DayLedger
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Write bars and manifest of symbols whose days are all finished; yields those with bars.

    Bars are decoded again from the raw files, so they are what the ledger's checksums stand for.
    """
    for symbol in symbols:
        records = ledger.records(symbol)
        full = [day for day, record in records.items() if record.status == BARS]
        days = (day.decode((ledger.folder / day.path).read_bytes()) for day in full)
        candles = pl.concat([pl.DataFrame(schema=folder.BAR_SCHEMA), *days])
        bars = drop_flat(candles)
        if bars.is_empty():
            continue
        lines = [line_of(record) for record in records.values()]
        raw = {
            "name": f"{RAW_NAME}/{LEDGER_NAME}",
            # One checksum for all days, whatever the order in which they arrived.
            "sha256": files.sha256_of(b"\n".join(lines)),
            "bytes": sum(record.bytes for record in records.values()),
            "format": "dukascopy",
            "rows": sum(record.rows for record in records.values()),
        }
        entry = {
            **folder.describe(bars),
            "timeframe": "1min",
            "clock": {"shift": "0min", "utc": False},
            "flat_dropped": len(candles) - len(bars),
            "days": len(records),
            "empty_days": len(records) - len(full),
            "source": SOURCE,
            "sources": [raw],
        }
        # Read only now: a download takes hours, and other symbols may have been added meanwhile.
        manifest = _own_manifest(out, [symbol])
        folder.write_symbol(out, symbol, bars)
        manifest["symbols"] = dict(sorted({**manifest["symbols"], symbol: entry}.items()))
        files.write_json(out / folder.MANIFEST_NAME, manifest)
        yield symbol, entry


def _own_manifest(out: Path, symbols: Iterable[str]) -> dict[str, Any]:
    """The manifest to extend; refuses to overwrite bars of another source.

    Bars are ours if the folder has a ledger and the symbol's entry, if there is one, names this
    source.
    """
    manifest = folder.open_manifest(out)
    has_ledger = (out / RAW_NAME / LEDGER_NAME).exists()
    for symbol in symbols:
        # Bars of ours without an entry are there if a run was killed between bars and manifest.
        entry = manifest["symbols"].get(symbol, {"source": SOURCE})
        is_ours = has_ledger and entry.get("source") == SOURCE
        file = out / f"{symbol}.parquet"
        if file.exists() and not is_ours:
            problem = "these bars came from elsewhere and are not overwritten"
            raise DataError(problem, where=file, fix="choose another --out, or remove the file")
    return manifest
