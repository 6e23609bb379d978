"""What every reader of files takes and gives: options, a file, its rows, its bars."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import DataError
from vaiom.market.symbols import find_pair

ROW = "source row"
"""Column with the row of the source file (from 1) that a bar came from."""
REPAIR = "pass --repair to {}, or correct the file"
SORT_FIX = REPAIR.format("sort rows and keep the last of repeated stamps")
DROP_FIX = REPAIR.format("drop such rows")

Roles = dict[str, str]
"""Names of a file's columns by role: Datetime, or Date and Time; Open, High, Low, Close, Volume;
Symbol; Bid and BidVolume of ticks.
"""

_SIDE = re.compile(r"(?<![A-Za-z])(bid|ask)(?![A-Za-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to read files, as far as they do not say it themselves."""

    format: str = "auto"
    shift: timedelta = timedelta(0)
    """Added to all stamps."""
    symbol: str | None = None
    start: datetime | None = None
    """When a `.bi5` file begins whose path does not say it."""
    utc: bool = False
    """Convert stamps with an offset to UTC, instead of refusing them."""
    columns: Mapping[str, str] | None = None
    """Names of columns by role."""
    price_scale: float | None = None
    """What the integers of a `.bi5` file are divided by."""
    repair: bool = False
    """Sort rows, and drop repeated and unusable ones."""
    whole_lines: bool = False
    """Ignore a last line without a newline: another program is still writing it."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file, or the member of an archive that holds bars, and what errors call its rows."""

    path: Path
    member: str | None = None
    unit: str = "line"

    @property
    def label(self) -> str:
        return f"{self.path}!{self.member}" if self.member else str(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """File names that may contain symbol and side, that of the member first."""
        if self.member is None:
            return (self.path.name,)
        return (Path(self.member).name, self.path.name)

    @property
    def symbol(self) -> str | None:
        """The currency pair in a name, if there is one."""
        pairs = map(find_pair, self.names)
        return next(filter(None, pairs), None)

    @property
    def side(self) -> str | None:
        """BID or ASK, if a name says so."""
        sides = {match.upper() for name in self.names for match in _SIDE.findall(name)}
        return sides.pop() if len(sides) == 1 else None

    def at(self, row: int) -> str:
        """The place of a row, for errors."""
        return f"{self.label}, {self.unit} {row}"

    def error(self, problem: str, *, row: int | None = None, **details: Any) -> DataError:
        """An error in the file, or in one of its rows."""
        where = self.label if row is None else self.at(row)
        return DataError(problem, where=where, **details)


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """The rows of a file as texts or numbers (and `ROW`), and the roles of its columns."""

    file: SourceFile
    format: str
    frame: pl.DataFrame
    roles: Roles
    symbol: str | None = None
    fixed_point: float | None = None
    """Prices are divided by it if none has a decimal point."""


@dataclass(frozen=True, kw_only=True)
class FileBars:
    """The bars of one file (`BAR_COLUMNS` and `ROW`, in file order) and its manifest record."""

    file: SourceFile
    symbol: str | None
    bars: pl.DataFrame
    changes: Counter[str]
    """How many rows were dropped or changed, by reason."""
    record: dict[str, Any] = field(default_factory=dict)


def several_symbols(file: SourceFile, symbols: list[str], wanted: str | None) -> DataError:
    """The error for a table with other symbols than the one wanted."""
    problem = "a table mixes several symbols"
    if wanted is not None:
        problem = f"the table has no rows of {wanted}"
    got = ", ".join(symbols[:8]) + (", ..." if len(symbols) > 8 else "")
    return file.error(problem, got=got or "no symbols", fix="pick one with --symbol")


def damaged(problem: str, where: object, **details: Any) -> DataError:
    """The error for a file that was not stored whole."""
    fix = "fetch the file again: it is damaged"
    return DataError(problem, where=where, fix=fix, **details)
