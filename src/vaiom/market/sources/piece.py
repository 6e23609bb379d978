"""What the readers of all formats share: where bars come from, the options, the bars that came out, symbols in names.

Enters: bytes of one file. Leaves: a `Piece`, whose bars still know their row in the file so that errors can name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from vaiom.errors import DataError

ROW = "source row"
"""Column with the row of the source file (from 1) that a bar came from."""

METALS = ("XAG", "XAU", "XPD", "XPT")
CURRENCIES = {
    *("AUD", "BRL", "CAD", "CHF", "CNH", "CNY", "CZK", "DKK", "EUR", "GBP", "HKD", "HUF", "ILS", "INR", "JPY", "KRW"),
    *("MXN", "NOK", "NZD", "PLN", "RON", "RUB", "SEK", "SGD", "THB", "TRY", "TWD", "USD", "ZAR", *METALS),
}

_PAIR = re.compile(r"(?<![A-Za-z])([A-Za-z]{3})[-_/. ]?([A-Za-z]{3})(?![A-Za-z])")
_SIDE = re.compile(r"(?<![A-Za-z])(bid|ask)(?![A-Za-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user says about files that do not say it themselves."""

    symbol: str | None = None
    start: datetime | None = None
    utc: bool = False
    columns: Mapping[str, str] | None = None
    price_scale: float | None = None
    repair: bool = False


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A file, or the one member of an archive that holds bars, and what its rows are called."""

    path: Path
    member: str | None = None
    unit: str = "line"

    @property
    def label(self) -> str:
        return f"{self.path}!{self.member}" if self.member else str(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that may tell symbol and side, the nearest to the bars first."""
        return (Path(self.member).name, self.path.name) if self.member else (self.path.name,)

    def at(self, row: int) -> str:
        return f"{self.label}, {self.unit} {row}"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The bars of one file (`BAR_COLUMNS` and `ROW`, in file order) and what was dropped on the way."""

    file: Origin
    format: str
    symbol: str | None
    bars: pl.DataFrame
    rows_read: int
    flat_dropped: int = 0
    unusable_dropped: int = 0
    reordered: int = 0
    volumes_blanked: int = 0

    @property
    def side(self) -> str | None:
        """Bid or ask, where a name says so."""
        found = {match.upper() for name in self.file.names for match in _SIDE.findall(name)}
        return found.pop() if len(found) == 1 else None


def pair_in(text: str) -> str | None:
    """The currency pair that a name or a cell spells (EURUSD, eur_usd, EUR/USD), if it spells exactly one."""
    pairs = {(a + b).upper() for a, b in _PAIR.findall(text) if {a.upper(), b.upper()} <= CURRENCIES}
    return pairs.pop() if len(pairs) == 1 else None


def symbol_in_names(file: Origin) -> str | None:
    return next((pair for name in file.names if (pair := pair_in(name))), None)


def damaged(problem: str, where: object, *, expected: object = None, got: object = None) -> DataError:
    return DataError(problem, where=where, expected=expected, got=got, fix="fetch the file again: it is damaged")
