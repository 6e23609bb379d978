"""Stamps of bars: read from every layout seen in price files, kept on the clock they were stored in; their timeframe
and their order."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from vaiom.errors import DataError

STAMP = pl.Datetime("us")

# Python's own calendar ends with the year 9999; what is printed of a stamp must exist there.
_YEARS = (1000, 8999)
_FIRST_TICK, _END_TICK = (
    (datetime(year, 1, 1) - datetime(1970, 1, 1)) // timedelta(microseconds=1) for year in (_YEARS[0], _YEARS[1] + 1)
)
_REPAIR = "`vaiom data import --repair` sorts rows and keeps the last of repeated stamps"

_LAYOUTS = "2019-02-04 12:30[:00], 2019.02.04 12:30, 04.02.2019 12:30, 20190204 123000, or a Unix time in s, ms, us, ns"

# Day and month are only told apart by a dot or a leading year: 04/02/2019 could be either, and is refused.
_TEXT = re.compile(
    r"(?P<date>\d{4}(?P<dash>[-./])\d{1,2}(?P=dash)\d{1,2}|\d{1,2}\.\d{1,2}\.\d{4}|\d{8})"
    r"(?:(?P<gap>[ T]?)(?P<time>\d{1,2}:\d{2}:\d{2}|\d{1,2}:\d{2}|\d{6}|\d{4})(?P<fraction>\.\d+)?)?"
    r"(?P<zone> ?(?:Z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}:?\d{2}))?"
)
_UNIX_TIMES = {
    r"^\d{9,10}(?:\.\d+)?$": 1_000_000,
    # Twelve digits that begin like a year are YYYYMMDDHHMM.
    r"^(?:\d{11}|[03-9]\d{11}|1[0-8]\d{10}|2[1-9]\d{10}|\d{13})(?:\.0+)?$": 1_000,
    r"^\d{16}$": 1,
    r"^\d{19}$": 1 / 1_000,
}
"""Patterns of Unix times, and how many microseconds their unit has."""

Place = Callable[[int], object]
"""Names the place of a row, counted from 0, in an error."""


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
        problem = "a stamp is repeated" if before == after else "a stamp goes back in time"
        raise DataError(problem, where=place(row), expected=f"a stamp after {before}", got=after, fix=fix)


def require_calendar(stamps: pl.Series, where: Place) -> pl.Series:
    """Refuse stamps that no calendar holds."""
    inside = stamps.cast(STAMP).to_physical().is_between(_FIRST_TICK, _END_TICK, closed="left")
    beyond = ~inside.fill_null(value=True)
    if beyond.any():
        raise DataError(
            "a stamp is beyond all calendars",
            where=where(int(beyond.arg_max() or 0)),
            expected=f"a year from {_YEARS[0]} to {_YEARS[1]}",
            fix="correct or remove the row",
        )
    return stamps


def parse_stamps(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Naive stamps as stored; zoned ones are taken as UTC where `utc` allows it."""
    zone = values.dtype.time_zone if isinstance(values.dtype, pl.Datetime) else None
    if zone is not None:
        if not utc and len(values):
            raise _zoned(place(0), zone)
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if values.dtype.is_float():
        values = values.cast(pl.Int64, strict=False)
    is_stamp = values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime)
    parsed = values.cast(STAMP) if is_stamp else _parse_texts(values.cast(pl.String), place, utc=utc)
    if parsed.null_count():
        first = int(parsed.is_null().arg_max() or 0)
        text = values[first : first + 1].cast(pl.String)[0]
        got = "nothing" if text is None else repr(text)
        fix = "correct or remove the row"
        raise DataError("a stamp cannot be read", where=place(first), expected=_LAYOUTS, got=got, fix=fix)
    return require_calendar(parsed, place)


def _parse_texts(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Take the layout of the first text still waiting, parse all that follow it, and go on until one cannot be read."""
    parsed = pl.Series(values.name, [None], dtype=STAMP).new_from_index(0, len(values))
    while (waiting := parsed.is_null()).any():
        first = int(waiting.arg_max() or 0)
        layout, zoned = _layout_of(values[first])
        if zoned and not utc:
            raise _zoned(place(first), values[first])
        if layout is not None:
            parsed = _convert(values, layout).zip_with(waiting, parsed)
        if parsed[first] is None:
            break
    return parsed


def _layout_of(text: str | None) -> tuple[str | None, bool]:
    """The pattern of a Unix time or of a date and time, None where it has neither; and whether it carries an offset."""
    if text is None:
        return None, False
    for pattern in _UNIX_TIMES:
        if re.match(pattern, text):
            return pattern, False
    match = _TEXT.fullmatch(text)
    if not match or (match["zone"] and not match["time"]):
        return None, False
    date, dash, time, zone = match["date"], match["dash"], match["time"], match["zone"] or ""
    layout = f"%Y{dash}%m{dash}%d" if dash else "%d.%m.%Y" if "." in date else "%Y%m%d"
    if time:
        hours = "%H:%M:%S%.f" if time.count(":") == 2 else "%H:%M" if ":" in time else "%H%M%S%.f"
        layout += match["gap"] + ("%H%M" if time.isdigit() and len(time) == 4 else hours)
    return layout + re.sub(r"[+-]\d{2}:?\d{2}", "%z", zone), bool(zone)


def _convert(texts: pl.Series, layout: str) -> pl.Series:
    """The stamps of the texts that have this layout, null elsewhere."""
    if layout in _UNIX_TIMES:
        others = ~texts.str.contains(layout).fill_null(value=False)
        # A double holds microseconds exactly until the year 2255.
        numbers = texts.set(others, None).cast(pl.Float64, strict=False)
        return (numbers * _UNIX_TIMES[layout]).round().cast(pl.Int64).cast(STAMP)
    if "%H" not in layout:
        return texts.str.to_date(layout, strict=False).cast(STAMP)
    parsed = texts.str.to_datetime(layout, time_unit="us", strict=False)
    return parsed.dt.replace_time_zone(None) if parsed.dtype != STAMP else parsed


def _zoned(where: object, got: str) -> DataError:
    return DataError(
        "stamps carry an offset",
        where=where,
        expected="stamps without a zone, kept as stored",
        got=got,
        fix="pass --utc to take them as UTC (and --shift to move them further)",
    )
