"""What a download has finished: the raw files, and a ledger with a line for each day."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from vaiom.codec import from_json, to_json
from vaiom.files import canonical_json, parse_json, sha256_file, sha256_of, write_bytes
from vaiom.market.file_server import FeedFile, Fetched

LEDGER_NAME = "ledger.jsonl"
BARS, EMPTY = "bars", "empty"


@dataclass(frozen=True)
class DayRecord:
    """A finished day."""

    symbol: str
    day: date
    status: str
    """`bars`, or `empty` if the server has no such day."""
    bytes: int
    sha256: str
    rows: int


def line_of(record: DayRecord) -> bytes:
    """The record as a line of the ledger, without its newline."""
    return canonical_json(to_json(record))


class DayLedger:
    """The finished days of a download; the last line of a day counts.

    A run may be killed at any byte: a day with a truncated line, or a file without a line, is not
    finished and is fetched again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / LEDGER_NAME
        self._records: dict[FeedFile, DayRecord] = {}
        content = self._file.read_bytes() if self._file.exists() else b""
        self._append(b"\n" if content and not content.endswith(b"\n") else b"")
        for line in content.splitlines():
            with suppress(ValueError, RecursionError):
                record = from_json(DayRecord, parse_json(line))
                self._records[FeedFile(record.symbol, record.day)] = record

    def records(self, symbol: str) -> dict[FeedFile, DayRecord]:
        """The finished days of a symbol in order of time."""
        return {day: self._records[day] for day in sorted(self._records) if day.symbol == symbol}

    def is_finished(self, day: FeedFile) -> bool:
        """Whether the day has a line and its file still agrees with it."""
        file = self.folder / day.path
        record = self._records.get(day)
        if record is None:
            return False
        if record.status == EMPTY:
            return not file.exists()
        if not file.is_file() or file.stat().st_size != record.bytes:
            return False
        return sha256_file(file) == record.sha256

    def record(self, day: FeedFile, fetched: Fetched) -> None:
        """Store a day: first its file, then its line."""
        content, bars = fetched
        file = self.folder / day.path
        if content:
            write_bytes(file, content)
        else:
            file.unlink(missing_ok=True)
        status = BARS if content else EMPTY
        digest = sha256_of(content)
        record = DayRecord(day.symbol, day.date, status, len(content), digest, len(bars))
        self._append(line_of(record) + b"\n")
        self._records[day] = record

    def _append(self, text: bytes) -> None:
        with self._file.open("ab") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
