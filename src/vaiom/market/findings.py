"""One thing that is wrong, or worth knowing, about the prices of an asset, and what all checks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
HOUR = 3_600
DAY = 24 * HOUR
WEEK = 7 * DAY
Rows = NDArray[np.bool_]
"""One flag per row of the frame that was checked, True = points at it."""
Numbers = NDArray[np.int64]


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


def finding(kind: str, severity: Severity, count: int, summary: str, examples: Iterable[str]) -> list[Finding]:
    """One finding, or none where no row is concerned: checks return lists, so that they add up."""
    few = tuple(islice(examples, NUM_EXAMPLES)) if count else ()
    return [Finding(kind=kind, severity=severity, count=count, summary=summary, examples=few)] if count else []


def row_findings(bars: pl.DataFrame, *checks: tuple[str, Severity, str, pl.Expr | Rows]) -> list[Finding]:
    """Findings on single rows, each check (kind, severity, summary, which rows), shown with their prices."""
    found = []
    for kind, severity, summary, which in checks:
        rows = pl.Series(which) if isinstance(which, np.ndarray) else bars.select(which.fill_null(False)).to_series()
        examples = map(_show, bars.filter(rows).head(NUM_EXAMPLES).iter_rows(named=True))
        found += finding(kind, severity, int(rows.sum()), summary, examples)
    return found


def run_findings(
    bars: pl.DataFrame, kind: str, summary: str, first: Numbers, last: Numbers, detail: Callable[[int, int], str]
) -> list[Finding]:
    """A finding on stretches of rows, each from its first through its last; `detail` says what they are."""
    stamps = bars["Datetime"]
    examples = (
        f"{show_stamp(stamps[a])} to {show_stamp(stamps[b])}{detail(a, b)}"
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    )
    return finding(kind, Severity.WARNING, int((last - first + 1).sum()), summary, examples)


def find_runs(flags: Rows) -> tuple[Numbers, Numbers]:
    """First and last index of each run of True."""
    edge = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1


def epoch_seconds(stamps: pl.Series) -> NDArray[np.int64]:
    return stamps.dt.epoch("us").to_numpy().astype(np.int64) // 1_000_000


def show_stamp(stamp: datetime) -> str:
    """A stamp as people write it: seconds only where there are any."""
    return f"{stamp:%Y-%m-%d %H:%M:%S}" if stamp.second else f"{stamp:%Y-%m-%d %H:%M}"


def _show(row: dict[str, Any]) -> str:
    """A bar in one line: stamp, prices, volume."""
    stamp = show_stamp(row["Datetime"]) if row["Datetime"] else "no stamp"
    numbers = {name[0]: row[name] for name in (*PRICE_COLUMNS, "Volume")}
    shown = (f"{name} {'null' if value is None else format(value, '.10g')}" for name, value in numbers.items())
    return f"{stamp}: {' '.join(shown)}"
