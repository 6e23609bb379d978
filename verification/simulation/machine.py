"""The machine that a simulated service runs on: a clock, threads and a disk, of which nothing
happens but by the seed.

Enters: a source of chance. Leaves: an event loop whose time passes only while everybody waits,
executors that run their jobs in the one real thread after a while, and a folder whose files are
written through hooks: SQL statements, commits, and what the ledger writes, truncates and flushes.
At each hook the disk may fail or be full for a while, or the machine may die. A kill leaves files
as they are; a power cut what was flushed, and of the rest any blocks, in any order.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path, PosixPath
from typing import Any

from vaiom.serve.bar_store import FILE_NAME

WAL_NAME = FILE_NAME + "-wal"
LEDGER_NAME = "ledger.jsonl"
BLOCK = 512
FULL, NORMAL = 2, 1
TROUBLES = {errno.EIO: "disk I/O error", errno.ENOSPC: "database or disk is full"}


class KilledError(BaseException):
    """The machine is dead: nothing after this is seen by anybody."""


class ViolationError(AssertionError):
    """What must never happen."""


class Loop(asyncio.BaseEventLoop):
    """An event loop without a network, whose time passes only while everybody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self._selector = 0.0, self
        self.set_exception_handler(
            lambda *_: None
        )  # what nobody asked for is checked by who waits for it

    def time(self) -> float:
        return self.seconds

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise ViolationError("everybody waits for ever")
        self.seconds += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class Executor:
    """A thread of the service: jobs run in their order, each after a while."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.jobs, self.ended = (
            chance,
            deque[tuple[Future[Any], Callable[[], Any]]](),
            False,
        )

    def submit(self, call: Callable[..., Any], *values: Any) -> Future[Any]:
        if self.ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self.jobs.append((future, partial(call, *values)))
        asyncio.get_running_loop().call_later(self.chance.expovariate(100), self._run_next)
        return future

    def shutdown(self) -> None:
        self.ended = True
        while self.jobs:
            self._run_next()

    def _run_next(self) -> None:
        future, job = self.jobs.popleft() if self.jobs else (None, None)
        if future is None or job is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)


class Machine:
    """One life of it: what is on the disk at its end is what the next begins with."""

    def __init__(
        self, folder: Path, chance: random.Random, start: datetime, dies_at: int, trouble: float
    ) -> None:
        self.folder, self.chance, self.start = folder, chance, start
        self.dies_at, self.trouble = dies_at, trouble
        self.clock_error = timedelta()
        self.loop = Loop()
        self.flushed = self.files()
        self.named = {*self.flushed}
        """Files whose names a power cut keeps."""
        self.survivors: dict[str, bytes] | None = None
        self.died = self.loop.create_future()
        self.death = ""
        self.troubled = False
        self.closing: list[Callable[[], object]] = []
        """What the end of a process does."""
        self.on_record: set[tuple[str, str]] = set()
        """Assets and moments of the forecasts that are flushed."""
        self.followed: set[tuple[str, int]] = set()
        """Assets and stamps of bars when others were stored after them without a forecast on
        record.
        """
        self.last_bars: dict[str, int] = {}
        self.look: Callable[[], None] = lambda: None
        """What another thread does now and then while one waits for the disk."""
        self.wal_pages = chance.choice([4, 40, 1_000])
        self._hooks, self._trouble_left, self._error = 0, 0, 0
        self._read_ledger()

    @property
    def dead(self) -> bool:
        return self.survivors is not None

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.loop.time()) + self.clock_error

    def files(self) -> dict[str, bytes]:
        return {
            path.name: path.read_bytes() for path in sorted(self.folder.iterdir()) if path.is_file()
        }

    def hook(
        self, *, writes: bool = True, before_death: Callable[[], object] = lambda: None
    ) -> int:
        """Something is about to happen to the disk: 0, or the number of the error that it
        ends in.
        """
        self._hooks += 1
        if self.dead or self._hooks == self.dies_at:
            if not self.dead:
                before_death()
                self.survivors = self._what_is_left()
                self.died.set_result(None)
            raise KilledError
        if self.chance.random() < 0.02:
            self.look()
        if self._trouble_left:
            self._trouble_left -= 1
        elif self.chance.random() < self.trouble:
            self._trouble_left, self._error = (
                self.chance.randint(0, 6),
                self.chance.choice([*TROUBLES]),
            )
        else:
            return 0
        error = self._error if writes or self._error == errno.EIO else 0
        self.troubled |= bool(error)
        return error

    def heal(self) -> None:
        self.trouble, self._trouble_left, self.dies_at, self.clock_error = 0, 0, 0, timedelta()

    def run_sql(self, connection: Connection, call: Callable[[], Any], sql: str) -> Any:
        """A statement, flushed at its end if it ends a transaction and the connection flushes."""
        if error := self.hook(writes=not sql.lstrip().startswith(("SELECT", "PRAGMA"))):
            raise sqlite3.OperationalError(TROUBLES[error])
        result = call()
        if not connection.in_transaction and not sql.startswith("SELECT"):
            self.hook()  # dies before it is flushed; trouble comes later
            self._flush_database(connection)
        return result

    def fsync(self, descriptor: int) -> None:
        """In place of `os.fsync`."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if error := self.hook():
            raise OSError(error, os.strerror(error), str(path))
        if path.is_dir():
            self.named |= {each.name for each in path.iterdir()}
        else:
            self.flushed[path.name] = path.read_bytes()
            self._read_ledger()

    def end(self) -> None:
        for close in self.closing:
            close()

    def _read_ledger(self) -> None:
        for line in self.flushed.get(LEDGER_NAME, b"").splitlines():
            try:
                value = json.loads(line)
                self.on_record |= (
                    {(value["symbol"], value["as_of"])} if value["kind"] == "forecast" else set()
                )
            except (ValueError, KeyError, TypeError):  # of a line that was torn
                continue

    def _flush_database(self, connection: Connection) -> None:
        plain = connection.plain
        [(level,)] = plain("PRAGMA synchronous")
        now = {name: data for name, data in self.files().items() if name.startswith(FILE_NAME)}
        if level >= FULL or (level == NORMAL and now.get(FILE_NAME) != self.flushed.get(FILE_NAME)):
            self.flushed = {
                name: data for name, data in self.flushed.items() if not name.startswith(FILE_NAME)
            } | now
            self.named |= {*now}
        if plain("SELECT 1 FROM sqlite_master WHERE name = 'bars'"):
            last = dict(plain("SELECT symbol, max(stamp) FROM bars GROUP BY symbol"))
            for symbol, before in self.last_bars.items():
                moment = (datetime(1970, 1, 1) + timedelta(seconds=before)).isoformat()
                if last.get(symbol, 0) > before and (symbol, moment) not in self.on_record:
                    self.followed.add((symbol, before))
            self.last_bars = last

    def _what_is_left(self) -> dict[str, bytes]:
        now = self.files()
        self.death = self.chance.choice(["killed", "cut off from power"])
        if self.death == "killed":  # what was written is there
            return now
        left = {
            name: self.flushed.get(name, now.get(name, b""))
            for name in sorted({*now, *self.flushed})
        }
        if self.flushed.get(FILE_NAME) != now.get(FILE_NAME):
            # A checkpoint writes pages that the log has, which is on the disk by then; or the file
            # is made.
            if WAL_NAME in left:
                left[WAL_NAME] = now.get(WAL_NAME, left[WAL_NAME])
                left[FILE_NAME] = self._mixed(left[FILE_NAME], now[FILE_NAME])
            else:
                left = {
                    name: data
                    for name, data in now.items()
                    if self.chance.random() < 0.5 or name != FILE_NAME
                }
        elif WAL_NAME in now:
            # The header of a log that begins anew is flushed before anything else of it.
            left[WAL_NAME] = now[WAL_NAME][:32] + self._mixed(left[WAL_NAME], now[WAL_NAME])[32:]
        if LEDGER_NAME in now:
            left[LEDGER_NAME] = self._mixed(self.flushed.get(LEDGER_NAME, b""), now[LEDGER_NAME])
        return {
            name: data
            for name, data in left.items()
            if name in self.named or self.chance.random() < 0.5
        }

    def _mixed(self, old: bytes, new: bytes) -> bytes:
        """Any blocks of the new contents, the others as they were, or zeros where there was
        nothing.
        """
        if self.chance.random() < 0.2:
            return self.chance.choice([old, new])
        size = self.chance.choice(
            [len(old), len(new), self.chance.randint(*sorted((len(old), len(new))))]
        )
        mixed = bytearray(old[:size].ljust(size, b"\0"))
        for at in range(0, size, BLOCK):
            if self.chance.random() < 0.5:
                mixed[at : at + BLOCK] = new[at : min(at + BLOCK, size)].ljust(
                    min(BLOCK, size - at), b"\0"
                )
        return bytes(mixed)


class Connection(sqlite3.Connection):
    """The store's connection on a simulated disk."""

    machine: Machine

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.machine.closing.append(super().close)
        super().execute(f"PRAGMA wal_autocheckpoint={self.machine.wal_pages}")

    def plain(self, sql: str) -> list[Any]:
        """What a query finds, without the disk's having a say."""
        return super().execute(sql).fetchall()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self.machine.run_sql(self, partial(super().execute, sql, *values), sql)  # type: ignore[no-any-return]

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self.machine.run_sql(self, partial(super().executemany, sql, *values), sql)  # type: ignore[no-any-return]

    def executescript(self, sql: str) -> sqlite3.Cursor:
        for statement in filter(str.strip, sql.split(";")):
            self.execute(statement)
        return self.cursor()

    def close(self) -> None:
        self.machine.hook()
        super().close()
        self.machine.hook()
        self.machine.flushed = self.machine.files()

    def commit(self) -> None:
        self.machine.run_sql(self, super().commit, "COMMIT")

    def __exit__(self, *error: Any) -> Any:
        if error[0] is not None:
            return super().__exit__(*error)
        try:
            return self.machine.run_sql(self, partial(super().__exit__, *error), "COMMIT")
        except sqlite3.Error:
            self.rollback()
            raise


class LedgerFile:
    """What the ledger opened."""

    def __init__(self, machine: Machine, file: Any) -> None:
        self.machine, self.file = machine, file
        machine.closing.append(file.close)

    def write(self, data: bytes) -> int:
        part = self.machine.chance.randrange(len(data))
        error = self.machine.hook(before_death=lambda: self.file.write(data[:part]))
        if error == errno.EIO:
            raise OSError(error, os.strerror(error))
        return int(self.file.write(data[:part] if error else data))

    def truncate(self, size: int) -> None:
        if error := self.machine.hook(writes=False):
            raise OSError(error, os.strerror(error))
        self.file.truncate(size)

    def fileno(self) -> int:
        return int(self.file.fileno())

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class LedgerPath(PosixPath):
    """Where the ledger lies."""

    machine: Machine

    def open(self, mode: str = "r", *values: Any, **options: Any) -> Any:
        file = super().open(mode, *values, **options)
        return LedgerFile(self.machine, file) if mode == "ab" else file
