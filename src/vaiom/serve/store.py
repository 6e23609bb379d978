"""What must survive a restart: acknowledged bars, the state of each asset, forecasts that a bar has settled.

Enters: bars. Leaves: the same bars, snapshots and settled forecasts after any crash. One SQLite file in WAL mode; a
commit reaches the disk before it returns, and one process holds the file at a time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaiom.errors import ConfigError, DataError
from vaiom.files import ensure_folder
from vaiom.forecast.bars import moment_of, seconds_of
from vaiom.serve.schemas import Bar, RefusalError, SettledForecast

FILE_NAME = "live.sqlite"

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bars (
    arrival INTEGER PRIMARY KEY, symbol TEXT, stamp INTEGER, open REAL, high REAL, low REAL, close REAL, volume REAL,
    UNIQUE (symbol, stamp)
);
CREATE TABLE IF NOT EXISTS snapshots (symbol TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scored (
    symbol TEXT, as_of INTEGER, target INTEGER, model TEXT, replayed INTEGER, quantiles TEXT, log_ret REAL,
    bucket INTEGER, model_bits REAL, frequency_bits REAL, pit REAL, PRIMARY KEY (symbol, as_of)
) WITHOUT ROWID;
"""
_BAR = "stamp, open, high, low, close, volume"
_SETTLED = "as_of, target, replayed, quantiles, log_ret, bucket, model_bits, frequency_bits, pit"
_INSERT_BAR = f"INSERT INTO bars (symbol, {_BAR}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_SETTLED = f"INSERT OR REPLACE INTO scored (symbol, model, {_SETTLED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Store:
    """Used by several threads, one after another; of settled forecasts it shows those of one model (its hash)."""

    def __init__(self, folder: Path, model: str) -> None:
        self.path, self.model = ensure_folder(folder) / FILE_NAME, model
        self.num_since_snapshot = 0
        self._lock = threading.Lock()
        try:
            # What is written inside `with self._db` is one transaction.
            self._db = sqlite3.connect(self.path, isolation_level="IMMEDIATE", check_same_thread=False, timeout=1.0)
            # The first write takes the file for this process; a second one is refused there.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(f"{_TABLES} BEGIN IMMEDIATE; COMMIT;")
        except sqlite3.OperationalError as error:
            fix = "one service holds a state folder at a time: stop the other, or choose another --state"
            raise ConfigError("the state folder cannot be opened", where=self.path, got=str(error), fix=fix) from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                "not a state that vaiom wrote", where=self.path, got=str(error), fix="choose another --state"
            ) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def fact(self, name: str) -> Any:
        """A JSON value; None where it was never set."""
        found = self._rows("SELECT value FROM facts WHERE name = ?", name)
        return json.loads(found[0][0]) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        with self._lock, self._db:
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def append(self, bars: Sequence[tuple[str, Bar]], settled: Sequence[tuple[str, SettledForecast]] = ()) -> None:
        """Bars and settled forecasts with their symbols, all or none; on the disk when this returns."""
        bar_rows = [(symbol, seconds_of(bar.datetime), *bar.as_row()[1:]) for symbol, bar in bars]
        settled_rows = [(symbol, self.model, *_row(each)) for symbol, each in settled]
        try:
            with self._lock, self._db:
                self._db.executemany(_INSERT_BAR, bar_rows)
                self._db.executemany(_INSERT_SETTLED, settled_rows)
        except sqlite3.Error as error:
            raise RefusalError(
                503,
                "the bars could not be stored, and none was taken",
                where=self.path.name,
                got=str(error),
                retry_after=10,
                fix="look at the disk of the service, then push them again",
            ) from error
        self.num_since_snapshot += len(bars)

    def put_snapshot(self, states: dict[str, dict[str, Any]]) -> None:
        """Record the state of every asset after the last bar that arrived."""
        rows = [(symbol, json.dumps(state, separators=(",", ":"))) for symbol, state in states.items()]
        with self._lock, self._db:
            self._db.executemany("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", rows)
            self._db.execute(
                "INSERT OR REPLACE INTO facts SELECT 'snapshot', CAST(coalesce(max(arrival), 0) AS TEXT) FROM bars"
            )
        self.num_since_snapshot = 0

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """By symbol, the state that was last recorded."""
        return {symbol: json.loads(state) for symbol, state in self._rows("SELECT symbol, state FROM snapshots")}

    def bars_since_snapshot(self) -> list[tuple[str, Bar]]:
        """Symbols and bars in the order of their arrival."""
        query = f"SELECT symbol, {_BAR} FROM bars WHERE arrival > ? ORDER BY arrival"
        found = [(symbol, _bar(row)) for symbol, *row in self._rows(query, self.fact("snapshot") or 0)]
        self.num_since_snapshot = len(found)
        return found

    def last_bars(self, symbol: str, number: int) -> list[Bar]:
        """Oldest first."""
        query = f"SELECT {_BAR} FROM bars WHERE symbol = ? ORDER BY stamp DESC LIMIT ?"
        return [_bar(row) for row in self._rows(query, symbol, number)][::-1]

    def last_settled(self, symbol: str, number: int) -> list[SettledForecast]:
        """Oldest first."""
        query = f"SELECT {_SETTLED} FROM scored WHERE symbol = ? AND model = ? ORDER BY as_of DESC LIMIT ?"
        return [_settled(row) for row in self._rows(query, symbol, self.model, number)][::-1]

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()


def _bar(row: Sequence[Any]) -> Bar:
    return Bar.of((moment_of(row[0]), *row[1:]))


def _row(each: SettledForecast) -> tuple[Any, ...]:
    as_of, target, replayed, quantiles, *rest = vars(each).values()
    return (seconds_of(as_of), seconds_of(target), replayed, json.dumps(quantiles), *rest)


def _settled(row: Sequence[Any]) -> SettledForecast:
    as_of, target, replayed, quantiles, *rest = row
    found = (moment_of(as_of), moment_of(target), bool(replayed), json.loads(quantiles), *rest)
    return SettledForecast.model_construct(None, **dict(zip(SettledForecast.model_fields, found, strict=True)))
