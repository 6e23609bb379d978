"""histdata.com's ASCII one-minute bars: `20230601 000000;1.068700;1.068710;1.068530;1.068530;0`, no header.

Enters: a text table. Leaves: the roles of its columns. The clock is histdata's own and is kept as stored.
"""

from __future__ import annotations

import re

from vaiom.market.sources.columns import Roles
from vaiom.market.sources.text import TextTable

EXPECTED = "YYYYMMDD HHMMSS;open;high;low;close;volume without a header"

_STAMP = re.compile(r"\d{8} \d{6}")


def roles_of(table: TextTable) -> Roles | None:
    """The roles of a histdata table, or nothing where it is none."""
    if table.has_header or table.delimiter != ";" or len(table.names) != 6 or not _STAMP.fullmatch(table.sample[0]):
        return None
    return dict(zip(("Datetime", "Open", "High", "Low", "Close", "Volume"), table.names, strict=True))
