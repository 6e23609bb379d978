"""The ledger of a download: one line per finished day, appended and flushed; the last line about a day counts.

Enters: the body of a day as the server sent it. Leaves: raw files beside a ledger that knows their checksums, and for
each day whether it is finished. A run may end at any byte: a torn line, or a file without a line, is not finished.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from vaiom.errors import DataError
from vaiom.files import STAGING_PREFIX, canonical_json, ensure_folder, sha256_file, sha256_of, write_bytes

LEDGER_NAME = "ledger.jsonl"


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


@dataclass(frozen=True, kw_only=True)
class Line:
    """What the ledger says about a finished day."""

    symbol: str
    day: str
    status: Literal["bars", "empty"]
    bytes: int
    sha256: str
    rows: int

    def __post_init__(self) -> None:
        date.fromisoformat(self.day)
        if self.status not in ("bars", "empty"):
            raise ValueError(f"status {self.status!r}")


class Ledger:
    """The raw files of a download and the lines that vouch for them; open for one run at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = ensure_folder(folder)
        self._path = folder / LEDGER_NAME
        self._lines: dict[SymbolDay, Line] = {}

    def __enter__(self) -> Ledger:
        self._stream = self._path.open("ab")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise DataError(
                "another download is writing here", where=self.folder, fix="wait until it ends, or choose another --out"
            ) from error
        content = self._path.read_bytes()
        if content and not content.endswith(b"\n"):
            self._append(b"\n")
        for text in content.splitlines():
            try:
                line = Line(**json.loads(text))
            except (ValueError, TypeError, RecursionError):
                continue  # torn or damaged: the day counts as unfinished and is fetched again
            self._lines[SymbolDay(line.symbol, date.fromisoformat(line.day))] = line
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def lines(self, symbol: str) -> dict[SymbolDay, Line]:
        """The finished days of a symbol in order of time."""
        return {day: self._lines[day] for day in sorted(self._lines) if day.symbol == symbol}

    def is_finished(self, day: SymbolDay) -> bool:
        """Whether the day has a line and its file still agrees with it."""
        line, file = self._lines.get(day), self.folder / day.path
        if line is None or line.status == "empty":
            return line is not None and not file.exists()
        return file.is_file() and file.stat().st_size == line.bytes and sha256_file(file) == line.sha256

    def record(self, day: SymbolDay, body: bytes, num_rows: int) -> None:
        """Keep a day for good: first its file, then its line. No body means that the server has no such day."""
        file = self.folder / day.path
        for leftover in file.parent.glob(f"{STAGING_PREFIX}*"):
            leftover.unlink()
        if body:
            write_bytes(file, body)
        else:
            file.unlink(missing_ok=True)
        line = Line(
            symbol=day.symbol,
            day=day.date.isoformat(),
            status="bars" if body else "empty",
            bytes=len(body),
            sha256=sha256_of(body),
            rows=num_rows,
        )
        self._append(canonical_json(asdict(line)) + b"\n")
        self._lines[day] = line

    def body(self, day: SymbolDay) -> bytes:
        return (self.folder / day.path).read_bytes()

    def digest(self, symbol: str) -> str:
        """One checksum for all raw data of a symbol, whatever the order in which its days arrived."""
        return sha256_of(b"\n".join(canonical_json(asdict(line)) for line in self.lines(symbol).values()))

    def _append(self, text: bytes) -> None:
        self._stream.write(text)
        self._stream.flush()
        os.fsync(self._stream.fileno())
