"""The rows of any file as bars: stamps and numbers are parsed, ticks become minutes, invalid prices
are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import (
    BAR_COLUMNS,
    PRICE_COLUMNS,
    STAMP,
    Place,
    require_calendar,
    require_ordered,
)
from vaiom.market.symbols import find_pair

ROW = "source row"
"""Column with the row of the source file (from 1) that a bar came from."""
REPAIR = "pass --repair to {}, or correct the file"
SORT_FIX = REPAIR.format("sort rows and keep the last of repeated stamps")
_DROP_FIX = REPAIR.format("drop such rows")

Roles = dict[str, str]
"""{role: column name}, with the roles of `_ALIASES`."""

# What pandas calls an index without a name: after `reset_index`, in Parquet and in CSV.
_INDEX = ("index", "indexlevel0", "")
# In order of preference: MetaTrader has both TICKVOL and VOL, and the second is mostly zero.
_ALIASES = {
    "Datetime": (
        "datetime",
        "timestamp",
        "gmttime",
        "localtime",
        "opentime",
        "time",
        "date",
        "tsevent",
        "ts",
        *_INDEX,
    ),
    "Date": ("date",),
    "Time": ("time",),
    "Open": ("open", "o"),
    "High": ("high", "h"),
    "Low": ("low", "l"),
    "Close": ("close", "c"),
    "Volume": ("tickvol", "tickvolume", "volume", "vol", "v"),
    "Symbol": ("symbol", "ticker", "pair", "instrument"),
    "Bid": ("bid", "bidprice"),
    "BidVolume": ("bidvolume",),
}
_LAYOUTS = (
    "2019-02-04 12:30[:00], 2019.02.04 12:30, 04.02.2019 12:30, 20190204 123000, or a Unix "
    "time in s, ms, us, ns"
)
_TEXT = re.compile(
    r"(?P<date>\d{4}(?P<dash>[-./])\d{1,2}(?P=dash)\d{1,2}|\d{1,2}(?P<mark>[./])\d{1,2}(?P=mark)\d{4}|\d{8})"
    r"(?:(?P<gap>[ T]?)(?P<time>\d{1,2}:\d{2}:\d{2}|\d{1,2}:\d{2}|\d{6}|\d{4})(?P<fraction>\.\d+)?"
    r"(?P<half> ?[AaPp][Mm])?)?"
    r"(?P<zone> ?(?:Z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}:?\d{2}))?"
)
_SLASHES = "%d/%m/%Y"
_UNIX_TIMES = {
    r"^\d{9,10}(?:\.\d+)?$": 1_000_000,
    # Twelve digits that begin like a year are YYYYMMDDHHMM.
    r"^(?:\d{11}|[03-9]\d{11}|1[0-8]\d{10}|2[1-9]\d{10}|\d{13})(?:\.0+)?$": 1_000,
    r"^\d{16}$": 1,
    r"^\d{19}$": 1 / 1_000,
}
"""Patterns of Unix times, and how many microseconds their unit has."""
_SIDE = re.compile(r"(?<![A-Za-z])(bid|ask)(?![A-Za-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to read files, as far as they do not say it themselves."""

    format: str = "auto"
    shift: timedelta = timedelta(0)
    symbol: str | None = None
    start: datetime | None = None
    utc: bool = False
    columns: Mapping[str, str] | None = None
    price_scale: float | None = None
    repair: bool = False
    whole_lines: bool = False
    """Ignore a last line without a newline: another program is still writing it."""


@dataclass(frozen=True, kw_only=True)
class Origin:
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
        return (Path(self.member).name, self.path.name) if self.member else (self.path.name,)

    @property
    def symbol(self) -> str | None:
        return next((pair for name in self.names if (pair := find_pair(name))), None)

    @property
    def side(self) -> str | None:
        """BID or ASK, if a name says so."""
        found = {match.upper() for name in self.names for match in _SIDE.findall(name)}
        return found.pop() if len(found) == 1 else None

    def at(self, row: int) -> str:
        return f"{self.label}, {self.unit} {row}"

    def error(self, problem: str, *, row: int | None = None, **details: Any) -> DataError:
        """An error in the file, or in one of its rows."""
        return DataError(problem, where=self.label if row is None else self.at(row), **details)


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """The rows of a file as texts or numbers (and `ROW`), and the roles of its columns."""

    file: Origin
    format: str
    frame: pl.DataFrame
    roles: Roles
    symbol: str | None = None
    fixed_point: float | None = None
    """Prices are divided by it if none has a decimal point."""


@dataclass(frozen=True, kw_only=True)
class FileBars:
    """The bars of one file (`BAR_COLUMNS` and `ROW`, in file order), counts of changes, and its
    manifest record.
    """

    file: Origin
    symbol: str | None
    bars: pl.DataFrame
    changes: Counter[str]
    record: dict[str, Any] = field(default_factory=dict)


def guess_roles(names: Sequence[str], chosen: Roles | None = None) -> Roles:
    """Roles as chosen, or by the usual names; a date and a time make the stamp, unless one column
    holds both.
    """
    columns, chosen = Roles(), chosen or {}
    for name in (name for name in names if name not in chosen.values()):
        # Without case, punctuation, the zone in JForex's `Time (UTC)` or the number in Alpha
        # Vantage's `1. open`.
        plain = re.sub(r"\([^)]*\)$|^\d+\. ", "", name.strip())
        columns.setdefault(re.sub(r"[^a-z0-9]", "", plain.lower()), name)
    # Of several aliases the first wins, because it comes last here.
    roles = {
        role: columns[a]
        for role, aliases in _ALIASES.items()
        for a in reversed(aliases)
        if a in columns
    } | chosen
    two_columns = "Date" in chosen or (
        "Date" in roles and roles.get("Datetime") == roles.get("Time")
    )
    unused = ("Datetime",) if two_columns else ("Date", "Time")
    return {role: name for role, name in roles.items() if role not in unused}


def assign_roles(names: Sequence[str], columns: Mapping[str, str] | None, file: Origin) -> Roles:
    """Roles by the user's column map, or by the usual names; all columns of bars must be there."""
    by_lower_case = {role.lower(): role for role in _ALIASES}
    present, chosen = ", ".join(names) or "no columns", {}
    for key, name in (columns or {}).items():
        role = by_lower_case.get(key.lower())
        if role is None:
            raise ConfigError("not a column of bars", expected=", ".join(_ALIASES), got=repr(key))
        if name not in names:
            raise file.error(f"column {name!r}, mapped to {role}, is missing", got=present)
        chosen[role] = name
    if ("Date" in chosen) != ("Time" in chosen):
        fix = "map a whole stamp to Datetime"
        raise ConfigError("Date and Time are mapped together or not at all", got=columns, fix=fix)
    roles = guess_roles(names, chosen)
    for name in ("Date" if "Date" in roles else "Datetime", *PRICE_COLUMNS):
        if name not in roles:
            fix = f"name it with `vaiom data import --column {name}=<column of the file>`"
            raise file.error(
                f"column {name!r} is missing", expected=", ".join(BAR_COLUMNS), got=present, fix=fix
            )
    return roles


def prices_in(roles: Roles) -> tuple[str, ...]:
    """The price columns of bars, or else of ticks; none without stamps."""
    kinds = (PRICE_COLUMNS, ("Bid",)) if {"Datetime", "Date"} & {*roles} else ()
    return next((names for names in kinds if {*names} <= {*roles}), ())


def parse_bars(raw: RawTable, options: Options) -> FileBars:
    """Parse stamps and numbers, and keep rows with usable prices; Dukascopy's flat bars are
    dropped.
    """
    file, roles = raw.file, raw.roles
    symbol, frame = _one_symbol(raw, options)
    rows, prices = frame[ROW], prices_in(roles)
    ticks = prices != PRICE_COLUMNS
    parts = ("Datetime",) if "Datetime" in roles else ("Date", "Time")
    both = pl.concat_str((pl.col(roles[name]).cast(pl.String) for name in parts), separator=" ")
    stamps = frame[roles["Datetime"]] if len(parts) == 1 else frame.select(both).to_series()
    stamps = parse_stamps(stamps, lambda row: file.at(rows[row]), utc=options.utc)
    volume = (
        frame[roles[name]]
        if (name := "BidVolume" if ticks else "Volume") in roles
        else pl.lit(None, pl.Float64)
    )
    cells = frame.select(
        *(pl.col(roles[name]).alias(name) for name in prices), volume.alias("Volume")
    )
    numbers = _parse_numbers(_with_points(cells, prices), rows, file, repair=options.repair)
    numbers = numbers.with_columns(pl.col("Volume").fill_nan(None))
    if raw.fixed_point and not any(
        frame[roles[name]].str.contains(".", literal=True).any() for name in prices
    ):
        numbers = numbers.with_columns(pl.col(prices) / raw.fixed_point)
    bars = numbers.select(stamps.alias("Datetime"), pl.all(), rows)
    traded = drop_flat(bars) if raw.format == "dukascopy" and not ticks else bars
    usable = _drop_unusable(traded, prices, file, repair=options.repair)
    changes = Counter(
        volumes_blanked=numbers["Volume"].null_count() - cells["Volume"].null_count(),
        flat_dropped=len(bars) - len(traded),
        unusable_rows_dropped=len(traded) - len(usable),
    )
    if ticks and options.repair:
        changes["rows_reordered"] = count_out_of_place(usable["Datetime"])
        usable = usable.sort("Datetime", maintain_order=True)
    elif ticks:
        require_ordered(
            usable["Datetime"], lambda row: file.at(usable[ROW][row]), repeats=True, fix=SORT_FIX
        )
    return FileBars(
        file=file, symbol=symbol, bars=_minute_bars(usable) if ticks else usable, changes=changes
    )


def drop_flat(bars: pl.DataFrame) -> pl.DataFrame:
    """Drop the bars that Dukascopy sends for closed hours: constant prices and no volume."""
    first, *rest = (pl.col(name) for name in PRICE_COLUMNS)
    flat = pl.all_horizontal(price == first for price in rest) & (pl.col("Volume") == 0)
    return bars.filter(~flat.fill_null(value=False))


def count_out_of_place(stamps: pl.Series) -> int:
    """How many rows lie behind a row with a later stamp."""
    physical = stamps.to_physical()
    return int((physical < physical.cum_max()).sum())


def _with_points(cells: pl.DataFrame, prices: Sequence[str]) -> pl.DataFrame:
    """Texts without thousands separators, and with decimal points if all prices have decimal
    commas.
    """
    texts = pl.concat(
        [
            pl.Series(dtype=pl.String),
            *(one.alias("") for one in cells[prices] if one.dtype == pl.String),
        ]
    )
    if not texts.str.contains(",", literal=True).any():
        return cells
    # Separators are removed only before a decimal mark: with decimal points, 1,100 may be either.
    separator, number = (",", r"^\d+(,\d{3})+\.\d+$")
    if not texts.str.contains(r"\.[^,]*$").any():
        separator, number = (".", r"^\d+(\.\d{3})*(,\d+)?$")
    text = pl.col(pl.String)
    plain = text.str.replace_all(separator, "", literal=True).str.replace(",", ".", literal=True)
    return cells.with_columns(pl.when(text.str.contains(number)).then(plain).otherwise(text))


def _parse_numbers(
    cells: pl.DataFrame, rows: pl.Series, file: Origin, *, repair: bool
) -> pl.DataFrame:
    """Parse columns of texts or numbers; anything else is an error, or null with repair."""
    numbers = cells.cast(pl.Float64, strict=False)
    for column in () if repair else cells:
        bad = numbers[column.name].is_null() & column.is_not_null()
        if bad.any():
            first, problem = int(bad.arg_max() or 0), f"not a number in column {column.name}"
            got, expected = (
                repr(column[first]),
                "a number with a decimal point, or a comma in all prices",
            )
            raise file.error(problem, row=rows[first], expected=expected, got=got, fix=_DROP_FIX)
    return numbers


def _drop_unusable(
    frame: pl.DataFrame, prices: Sequence[str], file: Origin, *, repair: bool
) -> pl.DataFrame:
    """Keep the rows whose prices are all finite and positive; without repair there may be no
    others.
    """
    price = pl.col(*prices)
    usable = frame.select(
        pl.all_horizontal((price.is_finite() & (price > 0)).fill_null(value=False))
    ).to_series()
    if not repair and not usable.all():
        row = frame.row(int((~usable).arg_max() or 0), named=True)
        expected = f"positive numbers in {', '.join(prices)}"
        got = ", ".join(f"{name} {row[name]}" for name in prices)
        raise file.error(
            "a row has no usable price", row=row[ROW], expected=expected, got=got, fix=_DROP_FIX
        )
    return frame.filter(usable)


def _minute_bars(ticks: pl.DataFrame) -> pl.DataFrame:
    """One-minute bid bars of ordered ticks; `ROW` is that of the minute's first tick."""
    bid, volume = pl.col("Bid"), pl.col("Volume")
    return ticks.group_by(pl.col("Datetime").dt.truncate("1m"), maintain_order=True).agg(
        bid.first().alias("Open"),
        bid.max().alias("High"),
        bid.min().alias("Low"),
        bid.last().alias("Close"),
        pl.when(volume.count() > 0).then(volume.sum()).alias("Volume"),
        pl.col(ROW).first(),
    )


def _one_symbol(raw: RawTable, options: Options) -> tuple[str | None, pl.DataFrame]:
    """The symbol by the path, a column or the file name, and its rows."""
    if "Symbol" not in raw.roles:
        return raw.symbol or raw.file.symbol, raw.frame
    cells = raw.frame[raw.roles["Symbol"]].cast(pl.String)
    symbol_of = {cell: find_pair(cell) or cell for cell in cells.unique().drop_nulls().to_list()}
    symbols = sorted(set(symbol_of.values()))
    if options.symbol is None and len(symbols) == 1 and not cells.null_count():
        return symbols[0], raw.frame
    wanted = [cell for cell, symbol in symbol_of.items() if options.symbol in (cell, symbol)]
    if wanted:
        return options.symbol, raw.frame.filter(cells.is_in(wanted))
    raise several_symbols(raw.file, symbols, options.symbol)


def several_symbols(file: Origin, symbols: Sequence[str], wanted: str | None) -> DataError:
    """The error for a table with other symbols than the one wanted."""
    problem = (
        "a table mixes several symbols" if wanted is None else f"the table has no rows of {wanted}"
    )
    got = ", ".join(symbols[:8]) + (", ..." if len(symbols) > 8 else "")
    return file.error(problem, got=got or "no symbols", fix="pick one with --symbol")


def parse_stamps(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Naive stamps as stored; stamps with an offset are converted to UTC if `utc`, else refused."""
    zone = values.dtype.time_zone if isinstance(values.dtype, pl.Datetime) else None
    if zone is not None:
        if not utc and len(values):
            raise _zoned(place(0), zone)
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if values.dtype.is_float():
        values = values.cast(pl.Int64, strict=False)
    is_stamp = values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime)
    parsed = (
        values.cast(STAMP) if is_stamp else _parse_texts(values.cast(pl.String), place, utc=utc)
    )
    if parsed.null_count():
        first = int(parsed.is_null().arg_max() or 0)
        text = values[first : first + 1].cast(pl.String)[0]
        got, fix = "nothing" if text is None else repr(text), "correct or remove the row"
        if re.match(r"\d{1,2}/\d{1,2}/\d{4}", text or ""):
            fix = (
                "write dates as 2019-02-04: without a day above 12, 04/02/2019 may be in "
                "February or in April"
            )
        raise DataError(
            "a stamp cannot be read", where=place(first), expected=_LAYOUTS, got=got, fix=fix
        )
    return require_calendar(parsed, place)


def _parse_texts(values: pl.Series, place: Place, *, utc: bool) -> pl.Series:
    """Parse all texts with the layout of the first one, then those left with the layout of their
    first one.
    """
    parsed = pl.Series(values.name, [None], dtype=STAMP).new_from_index(0, len(values))
    while (waiting := parsed.is_null()).any():
        first = int(waiting.arg_max() or 0)
        layout, zoned = _layout_of(values[first])
        if layout and layout.startswith(_SLASHES):
            layout = layout.replace(_SLASHES, _order_of_slashes(values) or "no order")
        if zoned and not utc:
            raise _zoned(place(first), values[first])
        if layout is None:
            break
        if layout in _UNIX_TIMES:
            others = ~values.str.contains(layout).fill_null(value=False)
            # A double holds microseconds exactly until the year 2255.
            numbers = values.set(others, None).cast(pl.Float64, strict=False)
            stamps = (numbers * _UNIX_TIMES[layout]).round().cast(pl.Int64).cast(STAMP)
        elif "%H" in layout or "%I" in layout:
            stamps = values.str.to_datetime(
                layout, time_unit="us", strict=False
            ).dt.replace_time_zone(None)
        else:
            stamps = values.str.to_date(layout, strict=False).cast(STAMP)
        parsed = stamps.zip_with(waiting, parsed)
        if parsed[first] is None:
            break
    return parsed


def _layout_of(text: str | None) -> tuple[str | None, bool]:
    """The pattern of a Unix time or the format of a date and time, if it is one; and whether it has
    an offset.
    """
    if text is None:
        return None, False
    for pattern in _UNIX_TIMES:
        if re.match(pattern, text):
            return pattern, False
    match = _TEXT.fullmatch(text)
    if not match or (match["zone"] and not match["time"]):
        return None, False
    dash, mark, time, zone = match["dash"], match["mark"], match["time"], match["zone"] or ""
    layout = f"%Y{dash}%m{dash}%d" if dash else f"%d{mark}%m{mark}%Y" if mark else "%Y%m%d"
    if time:
        hours = "%H:%M:%S%.f" if time.count(":") == 2 else "%H:%M" if ":" in time else "%H%M%S%.f"
        layout += match["gap"] + ("%H%M" if time.isdigit() and len(time) == 4 else hours)
    if match["half"]:
        layout = layout.replace("%H", "%I") + match["half"][:-2] + "%p"
    return layout + re.sub(r"[+-]\d{2}:?\d{2}", "%z", zone), bool(zone)


def _order_of_slashes(texts: pl.Series) -> str | None:
    """Whether day or month comes first in 13/02/2019; None where no date of the column tells, or
    they contradict.
    """
    first, second = (
        texts.str.extract(r"^(\d{1,2})/(\d{1,2})/", n).cast(pl.Int64) > 12 for n in (1, 2)
    )
    if bool(first.any()) == bool(second.any()):
        return None
    return _SLASHES if first.any() else "%m/%d/%Y"


def _zoned(where: object, got: str) -> DataError:
    expected = "stamps without a zone, kept as stored"
    fix = "pass --utc to take them as UTC (and --shift to move them further)"
    return DataError("stamps carry an offset", where=where, expected=expected, got=got, fix=fix)
