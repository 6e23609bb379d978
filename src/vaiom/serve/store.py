"""Durable state in one SQLite file: acknowledged bars, snapshots of each asset's state, settled
forecasts.

WAL mode with synchronous commits, held by one process at a time. For assets loaded from a bar
folder the state after it, the seed, is kept too, so that all later bars can be replayed.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from vaiom.errors import ConfigError, DataError
from vaiom.files import ensure_folder
from vaiom.forecast.bars import moment_of, seconds_of
from vaiom.serve.follow import BarRow
from vaiom.serve.schemas import RefusalError, SettledForecast

FILE_NAME = "live.sqlite"

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bars (
    arrival INTEGER PRIMARY KEY, symbol TEXT, stamp INTEGER,
    open REAL, high REAL, low REAL, close REAL, volume REAL,
    UNIQUE (symbol, stamp)
);
CREATE TABLE IF NOT EXISTS snapshots (symbol TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seeds (symbol TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scored (
    symbol TEXT, as_of INTEGER, target INTEGER, model TEXT, replayed INTEGER,
    quantiles TEXT, log_ret REAL,
    bucket INTEGER, model_bits REAL, frequency_bits REAL, pit REAL, PRIMARY KEY (symbol, as_of)
) WITHOUT ROWID;
"""
# In older files the last snapshot is the seed: bars before a folder's end were not kept.
_VERSION = 1
_SEED_OLD_FILE = f"""
BEGIN IMMEDIATE;
INSERT OR IGNORE INTO seeds SELECT * FROM snapshots;
INSERT OR IGNORE INTO facts SELECT 'seed', value FROM facts WHERE name = 'snapshot';
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_LAST_ARRIVAL = "(SELECT CAST(coalesce(max(arrival), 0) AS TEXT) FROM bars)"
_SEED_ARRIVAL = "coalesce((SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'seed'), 0)"
_BAR = "stamp, open, high, low, close, volume"
_SETTLED = "as_of, target, replayed, quantiles, log_ret, bucket, model_bits, frequency_bits, pit"
_INSERT_BAR = f"INSERT INTO bars (symbol, {_BAR}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_SETTLED = (
    f"INSERT OR REPLACE INTO scored (symbol, model, {_SETTLED}) VALUES (?, ?, ?, ?, "
    f"?, ?, ?, ?, ?, ?, ?)"
)


class StoredAsset(NamedTuple):
    """The stored facts of an asset."""

    symbol: str
    bars: int
    first: datetime
    last: datetime
    seeded_to: datetime | None
    """The last bar of the folder it came from; None if all its bars are stored."""
    scored: int


class Store:
    """Used by several threads in turn; returns settled forecasts of one model (its hash) alone."""

    def __init__(self, folder: Path, model: str) -> None:
        self.path, self.model = ensure_folder(folder) / FILE_NAME, model
        self.num_since_snapshot = 0
        self._lock, self._inside = threading.RLock(), False
        try:
            # Each `with self._db` is one transaction.
            self._db = sqlite3.connect(
                self.path, isolation_level="IMMEDIATE", check_same_thread=False, timeout=1.0
            )
            # The first write locks the file for this process; a second process is refused here.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(f"{_TABLES} BEGIN IMMEDIATE; COMMIT;")
            [version] = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.executescript(_SEED_OLD_FILE)
            elif version > _VERSION:
                self._db.close()
                fix = "install the newer vaiom, or choose another --state"
                raise DataError("a newer vaiom wrote this state", where=self.path, fix=fix)
        except sqlite3.OperationalError as error:
            fix = (
                "one service holds a state folder at a time: stop the other, or choose another "
                "--state"
            )
            raise ConfigError(
                "the state folder cannot be opened", where=self.path, got=str(error), fix=fix
            ) from error
        except sqlite3.DatabaseError as error:
            got, fix = str(error), "choose another --state"
            raise DataError(
                "not a state that vaiom wrote", where=self.path, got=got, fix=fix
            ) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def fact(self, name: str) -> Any:
        """A JSON value; None if never set."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        return json.loads(rows[0][0]) if rows else None

    def set_fact(self, name: str, value: Any) -> None:
        with self.transaction("what the service knows could not be stored"):
            self._db.execute(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value))
            )

    def append(
        self,
        bars: Sequence[tuple[str, BarRow]],
        settled: Sequence[tuple[str, SettledForecast]] = (),
    ) -> None:
        """Store bars and settled forecasts with their symbols, all or none, durably."""
        settled_rows = []
        for symbol, forecast in settled:
            as_of, target, replayed, quantiles, *scores = vars(forecast).values()
            times = seconds_of(as_of), seconds_of(target)
            settled_rows.append(
                (symbol, self.model, *times, replayed, json.dumps(quantiles), *scores)
            )
        with self.transaction("the bars could not be stored, and none was taken"):
            self._insert(bars)
            self._db.executemany(_INSERT_SETTLED, settled_rows)
        self.num_since_snapshot += len(bars)

    def put_snapshot(
        self, states: dict[str, dict[str, Any]], imported: Sequence[tuple[str, BarRow]] = ()
    ) -> None:
        """Store every asset's state after its last bar; with the last bars imported from a folder,
        as the seed.
        """
        rows = [
            (symbol, json.dumps(state, separators=(",", ":"))) for symbol, state in states.items()
        ]
        with self.transaction("where the assets stand could not be stored"):
            self._insert(imported)
            for table, fact in (("snapshots", "snapshot"), ("seeds", "seed"))[: 1 + bool(imported)]:
                self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)
                self._db.execute(f"INSERT OR REPLACE INTO facts VALUES ('{fact}', {_LAST_ARRIVAL})")
        self.num_since_snapshot = 0

    def assets(self) -> list[StoredAsset]:
        query = f"""
            SELECT symbol, count(*), min(stamp), max(stamp),
                max(CASE WHEN arrival <= {_SEED_ARRIVAL}
                    AND symbol IN (SELECT symbol FROM seeds) THEN stamp END),
                (SELECT count(*) FROM scored WHERE scored.symbol = bars.symbol)
            FROM bars GROUP BY symbol ORDER BY symbol
        """
        return [
            StoredAsset(
                symbol,
                bars,
                moment_of(first),
                moment_of(last),
                moment_of(seed) if seed else None,
                scored,
            )
            for symbol, bars, first, last, seed, scored in self._rows(query)
        ]

    def cut(self, symbols: Sequence[str], after: datetime) -> int:
        """Remove assets' bars after a moment and what they settled, reset all assets to the seed;
        returns a count.
        """
        for each in self.assets():
            if each.symbol in symbols and each.seeded_to and each.first <= after < each.seeded_to:
                problem, got = (
                    "the bars that the asset would go on from are no longer stored",
                    after.isoformat(),
                )
                expected = (
                    f"{each.seeded_to.isoformat()} or later, or before "
                    f"{each.first.isoformat()} to forget it"
                )
                fix = (
                    "forget the asset and start the service with --bars of a folder that ends there"
                )
                raise RefusalError(
                    422, problem, where=each.symbol, expected=expected, got=got, fix=fix
                )
        values = [(symbol, seconds_of(after)) for symbol in symbols]
        with self.transaction("nothing was removed"):
            removed = self._db.executemany(
                "DELETE FROM bars WHERE symbol = ? AND stamp > ?", values
            ).rowcount
            self._db.executemany("DELETE FROM scored WHERE symbol = ? AND target > ?", values)
            self._db.execute("DELETE FROM seeds WHERE symbol NOT IN (SELECT symbol FROM bars)")
            self.rewind()
        return removed

    def rewind(self) -> None:
        """Make the next start replay every bar since the seed."""
        # Arrival numbers continue from the last one left.
        last = f"SELECT CAST(min({_SEED_ARRIVAL}, coalesce(max(arrival), 0)) AS TEXT) FROM bars"
        with self.transaction("nothing was changed"):
            self._db.execute("DELETE FROM snapshots")
            self._db.execute("INSERT INTO snapshots SELECT * FROM seeds")
            for fact in ("seed", "snapshot"):
                self._db.execute(f"INSERT OR REPLACE INTO facts VALUES ('{fact}', ({last}))")

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """The last stored state by symbol."""
        return {
            symbol: json.loads(state)
            for symbol, state in self._rows("SELECT symbol, state FROM snapshots")
        }

    def bars_since_snapshot(self) -> list[tuple[str, BarRow]]:
        """Symbols and bars in order of arrival."""
        query = f"SELECT symbol, {_BAR} FROM bars WHERE arrival > ? ORDER BY arrival"
        bars = [
            (symbol, self._bar(symbol, row))
            for symbol, *row in self._rows(query, self.fact("snapshot") or 0)
        ]
        self.num_since_snapshot = len(bars)
        return bars

    def last_bars(self, symbol: str, number: int) -> list[BarRow]:
        """Oldest first."""
        query = f"SELECT {_BAR} FROM bars WHERE symbol = ? ORDER BY stamp DESC LIMIT ?"
        return [self._bar(symbol, row) for row in self._rows(query, symbol, number)][::-1]

    def last_settled(self, symbol: str, number: int) -> list[SettledForecast]:
        """Oldest first."""
        query = (
            f"SELECT {_SETTLED} FROM scored WHERE symbol = ? AND model = ? ORDER BY as_of "
            f"DESC LIMIT ?"
        )
        settled = []
        for as_of, target, replayed, quantiles, *scores in self._rows(
            query, symbol, self.model, number
        ):
            first = moment_of(as_of), moment_of(target), bool(replayed), json.loads(quantiles)
            fields = zip(
                SettledForecast.model_fields, (*first, *self._numbers(symbol, scores)), strict=True
            )
            settled.append(SettledForecast.model_construct(None, **dict(fields)))
        return settled[::-1]

    def _insert(self, bars: Sequence[tuple[str, BarRow]]) -> None:
        rows = [(symbol, seconds_of(bar.datetime), *bar[1:]) for symbol, bar in bars]
        self._db.executemany(_INSERT_BAR, rows)

    @contextmanager
    def transaction(self, failure: str) -> Iterator[None]:
        """A durable transaction, or part of the enclosing one."""
        try:
            with self._lock:
                outer, self._inside = self._inside, True
                try:
                    with nullcontext() if outer else self._db:
                        yield
                finally:
                    self._inside = outer
        except sqlite3.Error as error:
            fix = "look at the disk of the service, then try again"
            raise RefusalError(
                503, failure, where=self.path.name, got=str(error), retry_after=10, fix=fix
            ) from error

    def _bar(self, symbol: str, row: Sequence[Any]) -> BarRow:
        seconds, *prices = self._numbers(symbol, row)
        return BarRow(moment_of(seconds), *prices)

    def _numbers(self, symbol: str, row: Sequence[Any]) -> Sequence[Any]:
        """Check columns of numbers, where SQLite accepts any text."""
        wrong = [value for value in row if isinstance(value, (str, bytes))]
        if wrong:
            expected, got, where = (
                "a number, or nothing",
                repr(wrong[0]),
                f"{self.path}, what is stored of {symbol}",
            )
            fix = (
                f"remove its bars from there on (vaiom state {self.path.parent}), or choose "
                f"another --state"
            )
            raise DataError(
                "the stored bars are damaged", where=where, expected=expected, got=got, fix=fix
            )
        return row

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.transaction("what is stored could not be read"):
            return self._db.execute(query, values).fetchall()
