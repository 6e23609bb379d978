"""Which column of a file is which: by the user's map, or by the names that are usual."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vaiom.errors import ConfigError
from vaiom.market.folder import BAR_COLUMNS, PRICE_COLUMNS
from vaiom.market.formats.source import Roles, SourceFile

ALIASES = {
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
        # What pandas calls an index without a name: after `reset_index`, in Parquet and in CSV.
        "index",
        "indexlevel0",
        "",
    ),
    "Date": ("date",),
    "Time": ("time",),
    "Open": ("open", "o"),
    "High": ("high", "h"),
    "Low": ("low", "l"),
    "Close": ("close", "c"),
    # MetaTrader has both TICKVOL and VOL, and the second is mostly zero.
    "Volume": ("tickvol", "tickvolume", "volume", "vol", "v"),
    "Symbol": ("symbol", "ticker", "pair", "instrument"),
    "Bid": ("bid", "bidprice"),
    "BidVolume": ("bidvolume",),
}
"""Usual names of each role in lower case, without punctuation; the first that is there is taken."""


def guess_roles(names: Sequence[str], chosen: Roles | None = None) -> Roles:
    """Roles as chosen, and the others by the usual names.

    A date and a time make the stamp, unless one column holds both. A Close alone stands for all
    prices.
    """
    chosen = chosen or {}
    columns: dict[str, str] = {}
    for name in names:
        if name not in chosen.values():
            columns.setdefault(_plain(name), name)
    roles = Roles()
    for role, aliases in ALIASES.items():
        present = [columns[alias] for alias in aliases if alias in columns]
        if present:
            roles[role] = present[0]
    roles |= chosen
    # Beside a date, a column `time` is the time of day.
    is_split = "Date" in chosen
    if not is_split and "Date" in roles:
        is_split = roles.get("Datetime") == roles.get("Time")
    for role in ("Datetime",) if is_split else ("Date", "Time"):
        roles.pop(role, None)
    if "Bid" not in roles and {"Close"} == {*PRICE_COLUMNS} & {*roles}:
        roles |= dict.fromkeys(PRICE_COLUMNS, roles["Close"])
    return roles


def _plain(name: str) -> str:
    """A name without case, punctuation, a zone as in `Time (UTC)` or a number as in `1. open`."""
    shortened = re.sub(r"\([^)]*\)$|^\d+\. ", "", name.strip())
    return re.sub(r"[^a-z0-9]", "", shortened.lower())


def assign_roles(
    names: Sequence[str], columns: Mapping[str, str] | None, file: SourceFile
) -> Roles:
    """Roles by the user's column map, or by the usual names; all columns of bars must be there.

    `columns` maps roles, in any case, to names of the file. What is missing is named together with
    the columns that the file has and the option that maps them.
    """
    role_of = {role.lower(): role for role in ALIASES}
    present = ", ".join(names) or "no columns"
    chosen = Roles()
    for key, name in (columns or {}).items():
        role = role_of.get(key.lower())
        if role is None:
            raise ConfigError("not a column of bars", expected=", ".join(ALIASES), got=repr(key))
        if name not in names:
            raise file.error(f"column {name!r}, mapped to {role}, is missing", got=present)
        chosen[role] = name
    if ("Date" in chosen) != ("Time" in chosen):
        problem = "Date and Time are mapped together or not at all"
        raise ConfigError(problem, got=columns, fix="map a whole stamp to Datetime")
    roles = guess_roles(names, chosen)
    for role in ("Date" if "Date" in roles else "Datetime", *PRICE_COLUMNS):
        if role not in roles:
            raise file.error(
                f"column {role!r} is missing",
                expected=", ".join(BAR_COLUMNS),
                got=present,
                fix=f"name it with `vaiom data import --column {role}=<column of the file>`",
            )
    return roles


def prices_in(roles: Roles) -> tuple[str, ...]:
    """The price columns of bars, or else the bid of ticks; none without stamps."""
    if "Datetime" not in roles and "Date" not in roles:
        return ()
    for prices in (PRICE_COLUMNS, ("Bid",)):
        if {*prices} <= {*roles}:
            return prices
    return ()
