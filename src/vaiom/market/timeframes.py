"""Timeframes and other spans of time by name: `15min`, `1h`, `1d`.

Plain Python, for machines without a dataframe library.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import cache

from vaiom.errors import ConfigError

DAY = timedelta(days=1)
WEEK = timedelta(weeks=1)

_UNITS = {
    "w": WEEK,
    "d": DAY,
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}
_NAME = re.compile(r"(\d{1,4})(min|h|d|w)")


@cache
def timeframe_of(name: str) -> timedelta:
    """The length of a named timeframe: any whole minutes that divide a day, or a week."""
    match = _NAME.fullmatch(name.lower())
    span = int(match[1]) * _UNITS[match[2]] if match else timedelta(0)
    if span and (span == WEEK or not DAY % span):
        return span
    expected = "1min to 1d, if they divide a day, as in 15min, 1h or 4h; or 1w"
    raise ConfigError("unknown timeframe", expected=expected, got=repr(name))


def step_seconds(name: str) -> int:
    """The length of a named timeframe in seconds."""
    return timeframe_of(name) // _UNITS["s"]


def format_span(span: timedelta) -> str:
    """A span in its largest whole unit: 2h, -30min, 1d."""
    for unit, size in _UNITS.items():
        if span and not span % size:
            return f"{span // size}{unit}"
    return f"{span.total_seconds()}s" if span else "0min"
