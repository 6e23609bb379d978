"""Stamps of every layout seen in price files become naive datetimes on the clock they were stored in.

Enters: a column of texts, numbers, dates or datetimes. Leaves: datetimes without zone, or a `DataError` naming the row.
Paper: "Market Data, Price Convention and Bar Construction" (timestamps are consumed as stored).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from vaiom.errors import DataError
from vaiom.market.folder import require_calendar
from vaiom.market.sources.piece import Origin

NAIVE = pl.Datetime("us")
EXPECTED = "2019-02-04 12:30[:00], 2019.02.04 12:30, 04.02.2019 12:30, 20190204 123000, or a Unix time in s or ms"

# Day and month are only told apart by a dot or a leading year: 04/02/2019 could be either, and is refused.
_TEXT = re.compile(
    r"(?P<date>\d{4}(?P<dash>[-./])\d{1,2}(?P=dash)\d{1,2}|\d{1,2}\.\d{1,2}\.\d{4}|\d{8})"
    r"(?:(?P<gap>[ T]?)(?P<time>\d{1,2}:\d{2}:\d{2}|\d{1,2}:\d{2}|\d{6}|\d{4})(?P<fraction>\.\d+)?)?"
    r"(?P<zone> ?(?:Z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}:?\d{2}))?"
)
_SECONDS = r"^\d{9,10}(?:\.\d+)?$"
# Twelve digits that begin like a year are YYYYMMDDHHMM.
_MILLISECONDS = r"^(?:\d{11}|[03-9]\d{11}|1[0-8]\d{10}|2[1-9]\d{10}|\d{13})(?:\.0+)?$"


@dataclass(frozen=True)
class _Layout:
    convert: Callable[[pl.Series], pl.Series]
    zoned: bool = False


def parse_stamps(values: pl.Series, rows: pl.Series, file: Origin, *, utc: bool) -> pl.Series:
    """Naive stamps as stored; zoned ones are taken as UTC where `utc` allows it."""
    return require_calendar(_parsed(values, rows, file, utc=utc), lambda row: file.at(rows[row]))


def _parsed(values: pl.Series, rows: pl.Series, file: Origin, *, utc: bool) -> pl.Series:
    dtype = values.dtype
    if isinstance(dtype, pl.Datetime):
        if dtype.time_zone is not None:
            if not utc:
                raise _zoned(file.label, dtype.time_zone)
            values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        parsed = values.cast(NAIVE)
    elif dtype == pl.Date:
        parsed = values.cast(NAIVE)
    else:
        if dtype.is_float():
            values = values.cast(pl.Int64, strict=False)
        return _parse_texts(values.cast(pl.String), rows, file, utc=utc)
    if parsed.null_count():
        raise _unreadable(file.at(rows[int(parsed.is_null().arg_max() or 0)]), None)
    return parsed


def _parse_texts(values: pl.Series, rows: pl.Series, file: Origin, *, utc: bool) -> pl.Series:
    """Take the layout of the first text still waiting, parse all that follow it, and repeat until none waits."""
    parsed = pl.Series(values.name, [None], dtype=NAIVE).new_from_index(0, len(values))
    while (waiting := parsed.is_null()).any():
        first = int(waiting.arg_max() or 0)
        layout = _layout_of(values[first])
        where = file.at(rows[first])
        if layout is None:
            raise _unreadable(where, values[first])
        if layout.zoned and not utc:
            raise _zoned(where, values[first])
        parsed = layout.convert(values).zip_with(waiting, parsed)
        if parsed[first] is None:
            raise _unreadable(where, values[first])
    return parsed


def _layout_of(text: str | None) -> _Layout | None:
    if text is None:
        return None
    if re.match(_SECONDS, text):
        return _Layout(lambda texts: _from_epoch(texts, _SECONDS, 1_000_000))
    if re.match(_MILLISECONDS, text):
        return _Layout(lambda texts: _from_epoch(texts, _MILLISECONDS, 1_000))
    match = _TEXT.fullmatch(text)
    if not match:
        return None
    pattern = _date_pattern(match["date"], match["dash"])
    if not match["time"]:
        return None if match["zone"] else _Layout(lambda texts: texts.str.to_date(pattern, strict=False).cast(NAIVE))
    pattern += match["gap"] + _time_pattern(match["time"])
    zone = match["zone"] or ""
    pattern += re.sub(r"[+-]\d{2}:?\d{2}", "%z", zone)
    return _Layout(lambda texts: _from_text(texts, pattern), zoned=bool(zone))


def _date_pattern(date: str, dash: str | None) -> str:
    if dash:
        return f"%Y{dash}%m{dash}%d"
    return "%d.%m.%Y" if "." in date else "%Y%m%d"


def _time_pattern(time: str) -> str:
    if ":" in time:
        return "%H:%M:%S%.f" if time.count(":") == 2 else "%H:%M"
    return "%H%M%S%.f" if len(time) == 6 else "%H%M"


def _from_text(texts: pl.Series, pattern: str) -> pl.Series:
    parsed = texts.str.to_datetime(pattern, time_unit="us", strict=False)
    return parsed.dt.replace_time_zone(None) if parsed.dtype != NAIVE else parsed


def _from_epoch(texts: pl.Series, pattern: str, microseconds: int) -> pl.Series:
    numbers = texts.set(~texts.str.contains(pattern).fill_null(value=False), None).cast(pl.Float64, strict=False)
    # A double holds microseconds exactly until the year 2255.
    return (numbers * microseconds).round().cast(pl.Int64).cast(NAIVE)


def _unreadable(where: str, got: str | None) -> DataError:
    return DataError(
        "a stamp cannot be read",
        where=where,
        expected=EXPECTED,
        got="nothing" if got is None else repr(got),
        fix="correct or remove the row",
    )


def _zoned(where: str, got: str) -> DataError:
    return DataError(
        "stamps carry an offset",
        where=where,
        expected="stamps without a zone, kept as stored",
        got=got,
        fix="pass --utc to take them as UTC (and --shift to move them further)",
    )
