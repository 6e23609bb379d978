"""Stamps of any usual layout, as texts, numbers or dates, become naive datetimes."""

from __future__ import annotations

import re

import polars as pl

from vaiom.errors import DataError
from vaiom.market.folder import STAMP, Place, require_calendar

LAYOUTS = (
    "2019-02-04 12:30[:00], 2019.02.04 12:30, 04.02.2019 12:30, 20190204 123000, or a Unix "
    "time in s, ms, us, ns"
)
_DATE = (
    r"(?P<date>\d{4}(?P<dash>[-./])\d{1,2}(?P=dash)\d{1,2}"
    r"|\d{1,2}(?P<mark>[./])\d{1,2}(?P=mark)\d{4}|\d{8})"
)
_TIME = (
    r"(?P<gap>[ T]?)(?P<time>\d{1,2}:\d{2}:\d{2}|\d{1,2}:\d{2}|\d{6}|\d{4})(?P<fraction>\.\d+)?"
    r"(?P<half> ?[AaPp][Mm])?"
)
_ZONE = r"(?P<zone> ?(?:Z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}:?\d{2}))"
_TEXT = re.compile(f"{_DATE}(?:{_TIME})?{_ZONE}?")
_DAY_FIRST, _MONTH_FIRST = "%d/%m/%Y", "%m/%d/%Y"
_UNIX_TIMES = {
    r"^\d{9,10}(?:\.\d+)?$": 1_000_000,
    # Twelve digits that begin like a year are YYYYMMDDHHMM.
    r"^(?:\d{11}|[03-9]\d{11}|1[0-8]\d{10}|2[1-9]\d{10}|\d{13})(?:\.0+)?$": 1_000,
    r"^\d{16}$": 1,
    r"^\d{19}$": 1 / 1_000,
}
"""Patterns of Unix times, and how many microseconds their unit has."""


def parse_stamps(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Naive stamps as stored; those with an offset are converted to UTC if `utc`, else refused.

    Layouts may change within a column: all texts are parsed with that of the first, then those left
    with that of their first, and so on. Days and months of 04/02/2019 are told apart by the whole
    column.

    Parameters
    ----------
    values : texts, numbers (Unix times), dates or datetimes
    place : names a row, counted from 0, in errors
    utc : convert stamps with an offset
    """
    zone = getattr(values.dtype, "time_zone", None)
    if zone is not None:
        if not utc and len(values):
            raise _zoned(place(0), zone)
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if values.dtype.is_float():
        values = values.cast(pl.Int64, strict=False)
    if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        parsed = values.cast(STAMP)
    else:
        parsed = _parse_texts(values.cast(pl.String), place, utc=utc)
    if parsed.null_count():
        row = int(parsed.is_null().arg_max() or 0)
        text = values[row : row + 1].cast(pl.String)[0]
        raise _unreadable(text, place(row))
    return require_calendar(parsed, place)


def _parse_texts(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Parse with the layout of the first text, then what is left with that of its first, ..."""
    parsed = pl.Series(values.name, [None], dtype=STAMP).new_from_index(0, len(values))
    while parsed.null_count():
        missing = parsed.is_null()
        row = int(missing.arg_max() or 0)
        text = values[row]
        layout, has_offset = _layout_of(text)
        if layout and layout.startswith(_DAY_FIRST):
            layout = _with_order(layout, values)
        if has_offset and not utc:
            raise _zoned(place(row), text)
        if layout is None:
            break
        parsed = _read(values, layout).zip_with(missing, parsed)
        if parsed[row] is None:
            break
    return parsed


def _read(values: pl.Series, layout: str) -> pl.Series:
    """The texts that have a layout as stamps, the others as nulls."""
    if layout in _UNIX_TIMES:
        others = ~values.str.contains(layout).fill_null(value=False)
        # A double holds microseconds exactly until the year 2255.
        numbers = values.set(others, None).cast(pl.Float64, strict=False)
        return (numbers * _UNIX_TIMES[layout]).round().cast(pl.Int64).cast(STAMP)
    if "%H" in layout or "%I" in layout:
        stamps = values.str.to_datetime(layout, time_unit="us", strict=False)
        return stamps.dt.replace_time_zone(None)
    return values.str.to_date(layout, strict=False).cast(STAMP)


def _layout_of(text: str | None) -> tuple[str | None, bool]:
    """The pattern of a Unix time or the format of a date; and whether the text has an offset."""
    if text is None:
        return None, False
    for pattern in _UNIX_TIMES:
        if re.match(pattern, text):
            return pattern, False
    match = _TEXT.fullmatch(text)
    if not match:
        return None, False
    dash, mark, time = match["dash"], match["mark"], match["time"]
    zone = match["zone"] or ""
    if zone and not time:
        return None, False
    if dash:
        layout = f"%Y{dash}%m{dash}%d"
    elif mark:
        layout = f"%d{mark}%m{mark}%Y"
    else:
        layout = "%Y%m%d"
    if time:
        layout += match["gap"] + _layout_of_time(time)
    if match["half"]:
        layout = layout.replace("%H", "%I") + match["half"][:-2] + "%p"
    return layout + re.sub(r"[+-]\d{2}:?\d{2}", "%z", zone), bool(zone)


def _layout_of_time(time: str) -> str:
    """The format of a time of day, with seconds or without, with colons or without."""
    if ":" in time:
        return "%H:%M:%S%.f" if time.count(":") == 2 else "%H:%M"
    return "%H%M" if len(time) == 4 else "%H%M%S%.f"


def _with_order(layout: str, texts: pl.Series) -> str | None:
    """The layout with day or month first; None if no date of the column tells, or they differ."""

    def any_above_12(place: int) -> bool:
        parts = texts.str.extract(r"^(\d{1,2})/(\d{1,2})/", place).cast(pl.Int64)
        return bool((parts > 12).any())

    day_is_first = any_above_12(1)
    if day_is_first == any_above_12(2):
        return None
    return layout if day_is_first else layout.replace(_DAY_FIRST, _MONTH_FIRST)


def _unreadable(text: str | None, where: object) -> DataError:
    """The error for a text that is no stamp, with a way out for dates of unknown order."""
    fix = "correct or remove the row"
    if re.match(r"\d{1,2}/\d{1,2}/\d{4}", text or ""):
        fix = (
            "write dates as 2019-02-04: without a day above 12, 04/02/2019 may be in February or "
            "in April"
        )
    got = "nothing" if text is None else repr(text)
    return DataError("a stamp cannot be read", where=where, expected=LAYOUTS, got=got, fix=fix)


def _zoned(where: object, got: str) -> DataError:
    """The error for a stamp with an offset that nobody asked to convert."""
    return DataError(
        "stamps carry an offset",
        where=where,
        expected="stamps without a zone, kept as stored",
        got=got,
        fix="pass --utc to take them as UTC (and --shift to move them further)",
    )
