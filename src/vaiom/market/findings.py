"""One thing that is wrong, or worth knowing, about the prices of an asset.

Enters: the rows a check points at. Leaves: a `Finding` that a table and a JSON file can show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.market.folder import PRICE_COLUMNS

NUM_EXAMPLES = 5
Rows = NDArray[np.bool_]
"""One flag per row of the frame that was checked, True = points at it."""


class Severity(StrEnum):
    """`error`: do not train on it. `warning`: look, then decide. `info`: how the data is, not a fault."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A kind of trouble, how many rows have it, and a few of them in words."""

    kind: str
    severity: Severity
    count: int
    summary: str
    examples: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity.value,
            "count": self.count,
            "summary": self.summary,
            "examples": list(self.examples),
        }


def finding(kind: str, severity: Severity, count: int, summary: str, examples: Iterable[str]) -> list[Finding]:
    """One finding, or none where no row is concerned: checks return lists, so that they add up."""
    if not count:
        return []
    few = tuple(islice(examples, NUM_EXAMPLES))
    return [Finding(kind=kind, severity=severity, count=count, summary=summary, examples=few)]


def row_finding(kind: str, severity: Severity, summary: str, bars: pl.DataFrame, rows: Rows) -> list[Finding]:
    """A finding on single rows, shown with their prices."""
    return finding(kind, severity, int(rows.sum()), summary, _show(bars, rows))


def runs(flags: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last index of each run of True."""
    edge = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1


def clock_time(stamp: datetime) -> str:
    """A stamp as people write it: seconds only where there are any."""
    return f"{stamp:%Y-%m-%d %H:%M:%S}" if stamp.second else f"{stamp:%Y-%m-%d %H:%M}"


def _show(bars: pl.DataFrame, rows: Rows) -> Iterable[str]:
    """The flagged rows, one line each: stamp, prices, volume."""
    for row in bars.filter(pl.Series(rows)).head(NUM_EXAMPLES).iter_rows(named=True):
        stamp = clock_time(row["Datetime"]) if row["Datetime"] else "no stamp"
        prices = " ".join(f"{name[0]} {_number(row[name])}" for name in PRICE_COLUMNS)
        yield f"{stamp}: {prices} V {_number(row['Volume'])}"


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.10g}"
