"""Stamps of every layout seen in price files become naive datetimes on the clock they were stored in."""

from __future__ import annotations

import re

import polars as pl

from vaiom.errors import DataError
from vaiom.market.stamps import STAMP, Place, require_calendar

EXPECTED = "2019-02-04 12:30[:00], 2019.02.04 12:30, 04.02.2019 12:30, 20190204 123000, or a Unix time in s or ms"

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
}
"""Patterns of Unix times, and how many microseconds their unit has."""


def parse_stamps(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Naive stamps as stored; zoned ones are taken as UTC where `utc` allows it."""
    zone = values.dtype.time_zone if isinstance(values.dtype, pl.Datetime) else None
    if zone is not None:
        if not utc and len(values):
            raise _zoned(place(0), zone)
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if values.dtype.is_float():
        values = values.cast(pl.Int64, strict=False)
    if values.dtype != pl.Date and not isinstance(values.dtype, pl.Datetime):
        return require_calendar(_parse_texts(values.cast(pl.String), place, utc=utc), place)
    if values.null_count():
        raise _unreadable(place(int(values.is_null().arg_max() or 0)), None)
    return require_calendar(values.cast(STAMP), place)


def _parse_texts(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Take the layout of the first text still waiting, parse all that follow it, and repeat until none waits."""
    parsed = pl.Series(values.name, [None], dtype=STAMP).new_from_index(0, len(values))
    while (waiting := parsed.is_null()).any():
        first = int(waiting.arg_max() or 0)
        layout, zoned = _layout_of(values[first])
        if zoned and not utc:
            raise _zoned(place(first), values[first])
        if layout is not None:
            parsed = _convert(values, layout).zip_with(waiting, parsed)
        if parsed[first] is None:
            raise _unreadable(place(first), values[first])
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


def _unreadable(where: object, got: str | None) -> DataError:
    return DataError(
        "a stamp cannot be read",
        where=where,
        expected=EXPECTED,
        got="nothing" if got is None else repr(got),
        fix="correct or remove the row",
    )


def _zoned(where: object, got: str) -> DataError:
    return DataError(
        "stamps carry an offset",
        where=where,
        expected="stamps without a zone, kept as stored",
        got=got,
        fix="pass --utc to take them as UTC (and --shift to move them further)",
    )
