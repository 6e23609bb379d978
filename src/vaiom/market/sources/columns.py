"""Which column of a foreign table plays which role, and the bars that follow from it.

Enters: a frame of texts or numbers whose rows are numbered, and its column names. Leaves: a `Piece`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import BAR_COLUMNS, PRICE_COLUMNS
from vaiom.market.sources.clean import drop_unusable, parse_numbers
from vaiom.market.sources.dukascopy import drop_flat
from vaiom.market.sources.piece import ROW, Options, Origin, Piece, pair_in, symbol_in_names
from vaiom.market.sources.stamps import parse_stamps
from vaiom.market.sources.ticks import tick_piece

Roles = dict[str, str]
"""{role: column name}, with the roles of `_ALIASES`."""

# In order of preference: MetaTrader has both TICKVOL and VOL, and the second is mostly zero.
_ALIASES = {
    "Datetime": ("datetime", "timestamp", "gmttime", "localtime", "opentime", "time", "date", "ts", ""),
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
_ZONE_IN_NAME = re.compile(r"\([^)]*\)$")


def plain(name: str) -> str:
    """A column name without case, punctuation, or the zone that JForex puts behind it: `Time (UTC)` -> `time`."""
    return re.sub(r"[^a-z0-9]", "", _ZONE_IN_NAME.sub("", name.strip()).lower())


def guess_roles(names: Sequence[str]) -> Roles:
    """Roles by the usual names; a date and a time beside each other make the stamp, unless one column holds both."""
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(plain(name), name)
    roles = {
        role: known[alias]
        for role, aliases in _ALIASES.items()
        if (alias := next((a for a in aliases if a in known), None)) is not None
    }
    two_columns = "Date" in roles and roles.get("Datetime") == roles.get("Time")
    for role in ("Datetime",) if two_columns else ("Date", "Time"):
        roles.pop(role, None)
    return roles


def mapped_roles(names: Sequence[str], columns: Mapping[str, str], file: Origin) -> Roles:
    """The user's column map over what the names suggest."""
    by_plain_role = {role.lower(): role for role in _ALIASES}
    chosen: Roles = {}
    for key, name in columns.items():
        role = by_plain_role.get(key.lower())
        if role is None:
            raise ConfigError("not a column of bars", expected=", ".join(_ALIASES), got=repr(key))
        if name not in names:
            raise DataError(
                f"column {name!r}, mapped to {role}, is missing", where=file.label, got=", ".join(names) or "no columns"
            )
        chosen[role] = name
    if ("Date" in chosen) != ("Time" in chosen):
        raise ConfigError(
            "Date and Time are mapped together or not at all", got=dict(columns), fix="map a whole stamp to Datetime"
        )
    roles = {role: name for role, name in guess_roles(names).items() if name not in chosen.values()} | chosen
    for role in ("Date", "Time") if "Datetime" in chosen else ("Datetime",) if "Date" in chosen else ():
        roles.pop(role, None)
    return roles


def has_bars(roles: Roles) -> bool:
    return set(PRICE_COLUMNS) <= set(roles) and ("Datetime" in roles or "Date" in roles)


def has_ticks(roles: Roles) -> bool:
    return "Bid" in roles and "Open" not in roles and ("Datetime" in roles or "Date" in roles)


def require_bars(roles: Roles, names: Sequence[str], file: Origin) -> None:
    missing = [name for name in ("Datetime", *PRICE_COLUMNS) if name not in roles]
    if "Date" in roles and "Datetime" in missing:
        missing.remove("Datetime")
    if missing:
        raise DataError(
            f"column {missing[0]!r} is missing",
            where=file.label,
            expected=", ".join(BAR_COLUMNS),
            got=", ".join(names) or "no columns",
            fix=f"name it with --column {missing[0]}=<column of the file>",
        )


def bars_from(frame: pl.DataFrame, roles: Roles, file: Origin, format: str, options: Options) -> Piece:
    """The piece of a table whose columns are known; flat bars are dropped where the format is Dukascopy's."""
    rows_read = len(frame)
    symbol, frame = _one_symbol(frame, roles, file, options)
    numbers = ("Bid",) if has_ticks(roles) else PRICE_COLUMNS
    volume = roles.get("BidVolume" if has_ticks(roles) else "Volume")
    rows = frame[ROW]
    columns = [_stamps(frame, roles, file, options)]
    columns += [parse_numbers(frame[roles[name]], rows, file, repair=options.repair).alias(name) for name in numbers]
    if volume is None:
        volumes = pl.Series("Volume", [None], dtype=pl.Float64).new_from_index(0, len(frame))
        blanked = 0
    else:
        volumes = parse_numbers(frame[volume], rows, file, repair=options.repair).fill_nan(None).alias("Volume")
        blanked = volumes.null_count() - frame[volume].null_count()
    bars = pl.DataFrame([*columns, volumes, rows])
    if has_ticks(roles):
        piece = tick_piece(file, format, symbol, bars, options)
        return replace(piece, rows_read=rows_read, volumes_blanked=blanked)
    traded = drop_flat(bars) if format == "dukascopy" else bars
    usable = drop_unusable(traded, PRICE_COLUMNS, file, repair=options.repair)
    return Piece(
        file=file,
        format=format,
        symbol=symbol,
        bars=usable,
        rows_read=rows_read,
        flat_dropped=len(bars) - len(traded),
        unusable_dropped=len(traded) - len(usable),
        volumes_blanked=blanked,
    )


def _stamps(frame: pl.DataFrame, roles: Roles, file: Origin, options: Options) -> pl.Series:
    if "Datetime" in roles:
        values = frame[roles["Datetime"]]
    else:
        date, time = pl.col(roles["Date"]), pl.col(roles["Time"])
        values = frame.select(pl.concat_str(date.cast(pl.String), time.cast(pl.String), separator=" ")).to_series()
    return parse_stamps(values, frame[ROW], file, utc=options.utc).alias("Datetime")


def _one_symbol(frame: pl.DataFrame, roles: Roles, file: Origin, options: Options) -> tuple[str | None, pl.DataFrame]:
    """The symbol that the table or its name says, and its rows."""
    if "Symbol" not in roles:
        return symbol_in_names(file), frame
    cells = frame[roles["Symbol"]].cast(pl.String)
    spelled = {cell: pair_in(cell) or cell for cell in cells.unique().drop_nulls().to_list()}
    symbols = sorted(set(spelled.values()))
    if options.symbol is None:
        if len(symbols) == 1 and not cells.null_count():
            return symbols[0], frame
        raise _mixed("a table mixes several symbols", symbols, file)
    wanted = [cell for cell, symbol in spelled.items() if options.symbol in (cell, symbol)]
    if not wanted:
        raise _mixed(f"the table has no rows of {options.symbol}", symbols, file)
    return options.symbol, frame.filter(cells.is_in(wanted))


def _mixed(problem: str, symbols: list[str], file: Origin) -> DataError:
    shown = ", ".join(symbols[:8]) + (", ..." if len(symbols) > 8 else "")
    return DataError(problem, where=file.label, got=shown or "no symbols", fix="pick one with --symbol")
