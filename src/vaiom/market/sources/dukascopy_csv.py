"""CSV exports of Dukascopy data: JForex (`Gmt time`, `Local time`, `Time (UTC)`) and dukascopy-node, bars or ticks.

Enters: a text table. Leaves: the roles of its columns. Stamps keep the clock that the export was made with.
"""

from __future__ import annotations

import re

from vaiom.market.sources.columns import Roles, guess_roles, has_bars, has_ticks
from vaiom.market.sources.text import TextTable

EXPECTED = "a header with Gmt time, Local time, Time (ZONE) or timestamp, then open, high, low, close or ask, bid"

_JFOREX_STAMP = re.compile(r"gmt time|local time|time \([a-z0-9+:-]+\)", re.IGNORECASE)
# What JavaScript prints: milliseconds since 1970, or ISO 8601 with exactly three decimals and a Z.
_NODE_STAMP = re.compile(r"\d{11,13}|\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")
_NODE_HEADERS = (
    ("timestamp", "open", "high", "low", "close", "volume"),
    ("timestamp", "open", "high", "low", "close"),
    ("timestamp", "askPrice", "bidPrice", "askVolume", "bidVolume"),
    ("timestamp", "askPrice", "bidPrice"),
)


def roles_of(table: TextTable) -> Roles | None:
    """The roles of a table that only Dukascopy tools write, or nothing."""
    is_jforex = bool(_JFOREX_STAMP.fullmatch(table.names[0]))
    is_node = table.names in _NODE_HEADERS and bool(_NODE_STAMP.fullmatch(table.sample[0]))
    return named_roles_of(table) if is_jforex or is_node else None


def named_roles_of(table: TextTable) -> Roles | None:
    """The roles of any table with named columns of bars or ticks, for files that the user says are Dukascopy's."""
    roles = guess_roles(table.names)
    return roles if table.has_header and (has_bars(roles) or has_ticks(roles)) else None
