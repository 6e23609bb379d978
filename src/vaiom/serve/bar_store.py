"""Durable state in one SQLite file: every bar that came, the settled forecasts, and facts.

Enters: bars and settled forecasts, which are on disk when `append` returns. Leaves: what was
stored, from which `LiveAssets` computes everything else at each start. The file is in WAL mode
with synchronous commits and held by one process at a time.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.features.calendar import LAST_SECOND
from vaiom.features.quantities import BarArrays
from vaiom.files import FolderInUseError, ensure_folder, flush, hold_folder
from vaiom.forecast.bars import moment_of, seconds_of
from vaiom.market.folder import NUMBER_COLUMNS
from vaiom.serve.follow import BarRow
from vaiom.serve.refusals import DISK_PAUSE_SECONDS, RefusalError
from vaiom.serve.schemas import SettledForecast

FILE_NAME = "live.sqlite"
LOG_NAME = FILE_NAME + "-wal"
"""SQLite's write-ahead log, which holds the last transactions while the file is in use."""

MARK_NAME = "live.in-use"
"""An empty file that is there from an opening to the next clean end."""

_VERSION = 2
"""Version 1 kept only the last bars of each asset."""
_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bars (
    symbol TEXT, stamp INTEGER, open REAL, high REAL, low REAL, close REAL, volume REAL,
    PRIMARY KEY (symbol, stamp)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settled (
    symbol TEXT, as_of INTEGER, target INTEGER, model TEXT, replayed INTEGER, quantiles TEXT,
    log_ret REAL, bucket INTEGER, model_bits REAL, frequency_bits REAL, pit REAL,
    PRIMARY KEY (symbol, as_of)
) WITHOUT ROWID;
"""
_BAR = "stamp, open, high, low, close, volume"
_SETTLED = "as_of, target, replayed, quantiles, log_ret, bucket, model_bits, frequency_bits, pit"
_INSERT_BAR = f"INSERT INTO bars (symbol, {_BAR}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_SETTLED = f"""
    INSERT OR REPLACE INTO settled (symbol, model, {_SETTLED})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class StoredAsset(NamedTuple):
    """What is stored of an asset."""

    symbol: str
    bars: int
    first: datetime
    last: datetime
    settled: int


class Store:
    """The open file, used by several threads in turn; it returns the settled forecasts of one
    model alone.
    """

    def __init__(self, folder: Path, model: str, *, accept_loss: bool = False) -> None:
        """Open or make the file; `model` is a checkpoint's hash. A folder whose files are gone is
        refused, as acknowledged bars may be missing, unless this loss is accepted.
        """
        self.path = ensure_folder(folder) / FILE_NAME
        self.model = model
        self._lock = threading.RLock()
        self._is_inside = False
        """Whether a transaction is open."""
        self._files: dict[Path, _Seen] = {}
        self._mark = folder / MARK_NAME
        try:
            with ExitStack() as opened:
                self._open(opened, accept_loss)
                self._opened = opened.pop_all()
        except FolderInUseError as error:
            raise ConfigError(
                "one service holds a state folder at a time",
                where=folder,
                got=error.got,
                fix="stop the other service, or choose another --state",
            ) from error
        except (sqlite3.OperationalError, OSError) as error:
            raise ConfigError(
                "the state folder cannot be opened",
                where=self.path,
                got=str(error),
                fix="look at the disk, and at who else has the file open; or choose another "
                "--state",
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _open(self, opened: ExitStack, accept_loss: bool) -> None:
        """Open the file; `opened` undoes it."""
        log = self.path.with_name(LOG_NAME)
        opened.enter_context(hold_folder(self.path))
        missing = [file.name for file in (self.path, log) if not file.is_file()]
        is_lost = self._mark.exists() and bool(missing)
        if is_lost and not accept_loss:
            accept = "with `vaiom state DIR --rebuild`"
            if self.path.name in missing:
                accept = f"by removing {self._mark}"
            raise DataError(
                "the files of the last service are gone: acknowledged bars may be missing",
                where=self.path.parent,
                expected=f"{FILE_NAME} and {LOG_NAME}",
                got="no " + ", no ".join(missing),
                fix=f"put them back; or accept the loss {accept}, start the service and send the "
                "bars that it lacks again",
            )
        # Each `with self._db` is one transaction.
        self._db = sqlite3.connect(
            self.path, isolation_level="IMMEDIATE", check_same_thread=False, timeout=1.0
        )
        opened.callback(self._db.close)
        # The mark goes before the file is closed, when SQLite removes the log.
        opened.callback(self._unmark)
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript("BEGIN IMMEDIATE; COMMIT;")
        self._require_version()
        self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        self._mark.touch()
        flush(self.path.parent)
        # A process that ends by an error closes the file without `close`.
        last_resort = weakref.finalize(self, self._mark.unlink, missing_ok=True)
        opened.callback(last_resort.detach)
        self._files = {file: _Seen(file.stat()) for file in (self.path, log)}

    def close(self) -> None:
        """Close the file, which needs no log then."""
        with self._lock:
            self._opened.close()

    def _unmark(self) -> None:
        """Note that the file needs its log no longer, unless somebody took either away."""
        with suppress(OSError, _FileGoneError):  # a mark does no harm while both files stay
            self._require_files()
            self._mark.unlink(missing_ok=True)
            flush(self.path.parent)

    def fact(self, name: str) -> Any:
        """A JSON value; None if never set."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        try:
            return json.loads(rows[0][0]) if rows else None
        except (TypeError, ValueError) as error:
            raise self._damaged(f"the fact {name}: {error}") from error

    def set_fact(self, name: str, value: Any) -> None:
        """Store a JSON value under a name."""
        with self.transaction("what the service knows could not be stored"):
            row = name, json.dumps(value)
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)

    def append(
        self,
        bars: Sequence[tuple[str, BarRow]],
        settled: Sequence[tuple[str, SettledForecast]] = (),
    ) -> None:
        """Store bars and settled forecasts with their symbols, all or none, durably."""
        with self.transaction("the bars could not be stored, and none was taken"):
            self._insert((symbol, seconds_of(bar.datetime), *bar[1:]) for symbol, bar in bars)
            self._db.executemany(_INSERT_SETTLED, [self._settled_row(*each) for each in settled])

    def append_histories(self, frames: dict[str, pl.DataFrame]) -> None:
        """Store whole histories, frames of a bar folder by symbol, all or none, durably."""
        seconds = pl.col("Datetime").dt.epoch("s")
        with self.transaction("the bars of the folder could not be stored"):
            for symbol, frame in frames.items():
                rows = frame.select(pl.lit(symbol), seconds, *NUMBER_COLUMNS)
                self._insert(rows.iter_rows())

    def assets(self) -> list[StoredAsset]:
        """What is stored of each asset, by symbol."""
        query = """
            SELECT symbol, count(*), min(stamp), max(stamp),
                (SELECT count(*) FROM settled WHERE settled.symbol = bars.symbol)
            FROM bars GROUP BY symbol ORDER BY symbol
        """
        rows = self._rows(query)
        with self._reading("the stamps of bars"):
            return [
                StoredAsset(symbol, bars, moment_of(first), moment_of(last), settled)
                for symbol, bars, first, last, settled in rows
            ]

    def symbols(self) -> list[str]:
        """The assets that have bars."""
        return [symbol for (symbol,) in self._rows("SELECT DISTINCT symbol FROM bars")]

    def bars(self, symbol: str) -> BarArrays:
        """All bars of an asset, oldest first."""
        rows = self._rows(f"SELECT {_BAR} FROM bars WHERE symbol = ? ORDER BY stamp", symbol)
        with self._reading(f"the bars of {symbol}"):
            # Seconds since 1970 are exact in float64.
            seconds, *numbers = np.array(rows, np.float64).T.copy()
            if seconds[0] < 0 or seconds[-1] > LAST_SECOND:
                raise ValueError("a stamp before 1970 or after 2106")
            return BarArrays(seconds.astype(np.int64), *numbers)

    def last_bars(self, symbol: str, number: int) -> list[BarRow]:
        """The last bars of an asset, oldest first."""
        query = f"SELECT {_BAR} FROM bars WHERE symbol = ? ORDER BY stamp DESC LIMIT ?"
        rows = self._rows(query, symbol, number)
        with self._reading(f"the bars of {symbol}"):
            return [BarRow(moment_of(stamp), *numbers) for stamp, *numbers in reversed(rows)]

    def last_settled(self, symbol: str, number: int) -> list[SettledForecast]:
        """The last settled forecasts of an asset, oldest first."""
        query = f"""
            SELECT {_SETTLED} FROM settled WHERE symbol = ? AND model = ?
            ORDER BY as_of DESC LIMIT ?
        """
        rows = self._rows(query, symbol, self.model, number)
        with self._reading(f"the settled forecasts of {symbol}"):
            return [_settled_of(row) for row in reversed(rows)]

    def bucket_counts(self) -> dict[int, int]:
        """How often each bucket came among the scored bars."""
        query = """
            SELECT bucket, count(*) FROM settled
            WHERE model = ? AND model_bits IS NOT NULL GROUP BY bucket
        """
        return dict(self._rows(query, self.model))

    def cut(self, symbols: Sequence[str], after: datetime) -> int:
        """Remove assets' bars after a moment and what they settled; returns how many bars."""
        values = [(symbol, seconds_of(after)) for symbol in symbols]
        with self.transaction("nothing was removed"):
            bars = "DELETE FROM bars WHERE symbol = ? AND stamp > ?"
            removed = self._db.executemany(bars, values).rowcount
            settled = "DELETE FROM settled WHERE symbol = ? AND target > ?"
            self._db.executemany(settled, values)
        return removed

    def rebuild(self) -> None:
        """Check every page of the file and write it anew."""
        [(found,), *_] = self._rows("PRAGMA integrity_check")
        if found != "ok":
            raise self._damaged(found)
        with self._lock:
            self._db.execute("VACUUM")
            self._files = {file: _Seen(file.stat()) for file in self._files}

    @contextmanager
    def transaction(self, failure: str) -> Iterator[None]:
        """A durable transaction, or part of the enclosing one; `failure` is the problem that a
        client is told.
        """
        fix = "look at the disk of the service, then try again"
        try:
            with self._lock:
                is_outer = not self._is_inside
                self._is_inside = True
                try:
                    if is_outer:
                        self._require_files()
                    with self._db if is_outer else nullcontext():
                        yield
                finally:
                    self._is_inside = not is_outer
        except _FileGoneError as error:
            fix = "stop the service, put the files back, start it and send the bars since again"
            raise self._refused(failure, str(error), fix) from error
        except sqlite3.Error as error:
            raise self._refused(failure, str(error), fix) from error

    def _require_version(self) -> None:
        """Refuse a file of another version; a new file gets this one's number."""
        [version] = self._db.execute("PRAGMA user_version").fetchone()
        [tables] = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            self._db.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            age = "a newer" if version > _VERSION else "an older"
            fix = "choose another --state, and bring the bars in again with --bars"
            if version > _VERSION:
                fix = "install the newer vaiom, or choose another --state"
            raise DataError(f"{age} vaiom wrote this state", where=self.path, fix=fix)

    def _require_files(self) -> None:
        """Refuse to write where nobody will find it: an open file may have lost its name."""
        for file, seen in self._files.items():
            try:
                found = file.stat()
            except OSError as error:
                raise _FileGoneError(f"{file.name} is gone") from error
            if not seen.is_whole(found):
                raise _FileGoneError(f"{file.name} was replaced or cut short by somebody else")

    def _insert(self, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows of symbol, stamp, four prices and volume."""
        self._db.executemany(_INSERT_BAR, rows)

    def _settled_row(self, symbol: str, forecast: SettledForecast) -> tuple[Any, ...]:
        """A settled forecast in the order of `_INSERT_SETTLED`."""
        return (
            symbol,
            self.model,
            seconds_of(forecast.as_of),
            seconds_of(forecast.target_time),
            forecast.replayed,
            json.dumps(forecast.quantiles),
            forecast.log_return,
            forecast.bucket,
            forecast.model_bits,
            forecast.frequency_bits,
            forecast.pit,
        )

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, or an error that tells a failing disk from a damaged file."""
        try:
            with self._lock:
                return self._db.execute(query, values).fetchall()
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            fix = "look at the disk of the service, then try again"
            failure = "what is stored could not be read"
            raise self._refused(failure, str(error), fix) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Name what cannot be understood: SQLite accepts any value in any column."""
        try:
            yield
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise self._damaged(f"{what}: {error}") from error

    def _refused(self, failure: str, got: str, fix: str) -> RefusalError:
        """The answer to a client while the disk or the files fail."""
        return RefusalError(
            503, failure, where=self.path.name, got=got, retry_after=DISK_PAUSE_SECONDS, fix=fix
        )

    def _damaged(self, got: str) -> DataError:
        """The error at a start from a file that cannot be understood."""
        return DataError(
            "the stored state is damaged",
            where=self.path,
            got=got,
            fix="put a backup in its place; or remove wrong bars with `vaiom state DIR --after`; "
            "or choose another --state and bring the bars in again with --bars",
        )


class _FileGoneError(Exception):
    """A file of the open database is not what it was."""


class _Seen:
    """An open file as it was last seen: SQLite never makes it shorter."""

    def __init__(self, stat: os.stat_result) -> None:
        """Remember the file as it is now."""
        self.stat = stat

    def is_whole(self, found: os.stat_result) -> bool:
        """Whether it is the same file and has lost nothing."""
        is_same = os.path.samestat(found, self.stat) and found.st_size >= self.stat.st_size
        if is_same:
            self.stat = found
        return is_same


def _settled_of(row: Sequence[Any]) -> SettledForecast:
    """A settled forecast from the columns of `_SETTLED`."""
    as_of, target, replayed, quantiles, log_ret, bucket, *scores = row
    numbers = [None if each is None else float(each) for each in (log_ret, *scores)]
    names = ("log_return", "model_bits", "frequency_bits", "pit")
    return SettledForecast.model_construct(
        None,
        as_of=moment_of(as_of),
        target_time=moment_of(target),
        replayed=bool(replayed),
        quantiles=json.loads(quantiles),
        bucket=int(bucket),
        **dict(zip(names, numbers, strict=True)),
    )
