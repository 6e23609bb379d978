"""MetaTrader 4 and 5 exports: tab or comma, `<DATE>` or `DATE` or no header, with or without a time of day.

Enters: a text table. Leaves: the roles of its columns. Volume is the tick volume, the one that both versions have.
"""

from __future__ import annotations

import re

from vaiom.market.sources.columns import Roles, guess_roles, has_bars
from vaiom.market.sources.text import TextTable

EXPECTED = "DATE TIME OPEN HIGH LOW CLOSE TICKVOL ..., or 2015.01.02,00:00,open,high,low,close,volume without a header"

_DATE = re.compile(r"\d{4}\.\d{2}\.\d{2}")
_TIME = re.compile(r"\d{2}:\d{2}(:\d{2})?")
_DATE_TIME = re.compile(rf"{_DATE.pattern} {_TIME.pattern}")
_NUMBERS = ("Open", "High", "Low", "Close", "Volume")


def roles_of(table: TextTable) -> Roles | None:
    """The roles of a MetaTrader table, or nothing where it is none."""
    if table.has_header:
        first = table.names[0].upper()
        roles = guess_roles(table.names)
        return roles if first in ("DATE", "<DATE>") and _DATE.match(table.sample[0]) and has_bars(roles) else None
    stamp: tuple[str, ...]
    if _DATE.fullmatch(table.sample[0]) and len(table.sample) > 1 and _TIME.fullmatch(table.sample[1]):
        stamp = ("Date", "Time")
    elif _DATE.fullmatch(table.sample[0]) or _DATE_TIME.fullmatch(table.sample[0]):
        stamp = ("Datetime",)
    else:
        return None
    roles = dict(zip((*stamp, *_NUMBERS), table.names, strict=False))
    return roles if has_bars(roles) else None
