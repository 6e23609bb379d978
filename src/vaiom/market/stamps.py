"""Stamps of bars: which timeframes there are, which one stamps show, and that they are in order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from vaiom.errors import ConfigError, DataError

TIMEFRAMES = {
    "1min": timedelta(minutes=1),
    "10min": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "4h": timedelta(hours=4),
    "1d": timedelta(days=1),
}
STAMP = pl.Datetime("us")

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1), "s": timedelta(seconds=1)}
# Python's own calendar ends with the year 9999; what is printed of a stamp must exist there.
_YEARS = (1000, 8999)
_FIRST_TICK, _END_TICK = (
    (datetime(year, 1, 1) - datetime(1970, 1, 1)) // timedelta(microseconds=1) for year in (_YEARS[0], _YEARS[1] + 1)
)
_REPAIR = "`vaiom data import --repair` sorts rows and keeps the last of repeated stamps"

Place = Callable[[int], object]
"""Names the place of a row, counted from 0, in an error."""


def timeframe_of(name: str) -> timedelta:
    """The length of a named timeframe, in any spelling of its case."""
    try:
        return TIMEFRAMES[name.lower()]
    except KeyError:
        raise ConfigError("unknown timeframe", expected=", ".join(TIMEFRAMES), got=repr(name)) from None


def infer_timeframe(stamps: pl.Series, *, fewest_steps: int = 1, least_share: float = 0.0) -> timedelta | None:
    """The commonest step between stamps in any order, the shortest of equally common ones.

    None where there are fewer steps, or where no more than `least_share` of them equal the commonest.
    """
    ticks = stamps.drop_nulls().cast(STAMP).to_physical().to_numpy()
    steps = np.diff(ticks)
    if len(steps) and steps.min() <= 0:
        steps = np.diff(np.unique(ticks))
    if not len(steps) or len(ticks) <= fewest_steps:
        return None
    step = steps.min()
    count = np.count_nonzero(steps == step)
    # Counting every step is the costly way; a step that more than half of the rows take is the commonest.
    if 2 * count <= len(steps):
        found, counts = np.unique(steps, return_counts=True)
        step, count = found[counts.argmax()], counts.max()
    return timedelta(microseconds=int(step)) if count > least_share * len(steps) else None


def format_span(span: timedelta) -> str:
    """A span in its largest whole unit, as the command line takes it: 2h, -30min, 1d."""
    if not span:
        return "0min"
    for unit, size in _UNITS.items():
        if not span % size:
            return f"{span // size}{unit}"
    return f"{span.total_seconds()}s"


def require_ordered(stamps: pl.Series, where: object, *, repeats: bool = False, fix: str = _REPAIR) -> None:
    """Stamps must be present and increase, or with `repeats` not decrease; `where` is a name or a `Place`."""

    def place(row: int) -> object:
        return where(row) if callable(where) else f"{where}, row {row + 1}"

    if stamps.null_count():
        raise DataError("a stamp is missing", where=place(int(stamps.is_null().arg_max() or 0)), fix="remove the row")
    later, earlier = stamps.slice(1), stamps.slice(0, max(len(stamps) - 1, 0))
    bad = later < earlier if repeats else later <= earlier
    if bad.any():
        row = int(bad.arg_max() or 0) + 1
        before, after = stamps[row - 1], stamps[row]
        raise DataError(
            "a stamp is repeated" if before == after else "a stamp goes back in time",
            where=place(row),
            expected=f"a stamp after {before}",
            got=after,
            fix=fix,
        )


def require_calendar(stamps: pl.Series, where: Place) -> pl.Series:
    """Refuse stamps that no calendar holds."""
    ticks = stamps.cast(STAMP).to_physical()
    first, last = ticks.min(), ticks.max()
    if first is not None and (first < _FIRST_TICK or last >= _END_TICK):  # type: ignore[operator]
        beyond = ((ticks < _FIRST_TICK) | (ticks >= _END_TICK)).fill_null(value=False)
        raise DataError(
            "a stamp is beyond all calendars",
            where=where(int(beyond.arg_max() or 0)),
            expected=f"a year from {_YEARS[0]} to {_YEARS[1]}",
            fix="correct or remove the row",
        )
    return stamps
