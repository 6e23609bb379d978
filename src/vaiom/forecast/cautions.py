"""Reasons to trust a forecast less, in the words that users read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from vaiom.features.fields import (
    ANY_MASK,
    MASK_BITS,
    MIN_CLEAN_RETURNS,
    has_flag,
    lacks_range,
)
from vaiom.features.typing import Columns, Ints
from vaiom.forecast.bars import CLOCK_ALLOWANCE
from vaiom.market.gaps import MAX_MISSING_SHARE, missing_share
from vaiom.market.symbols import find_pair, usual_symbol

CHECKED_ROWS = 240
"""The newest rows by which it is told what a series lacks."""
MISSING_ROWS = 1024
"""The newest rows among which missing bars are counted."""
MIN_SHARE_WITHOUT = 0.95
"""A series has no ranges, or no volume, if so many of its moving bars have none."""

_MASK_WORDS = {
    "missing": "a price of the last bar is missing",
    "stale": "the last close repeats the one before",
    "bad_data": "the last bar moved absurdly far",
    "insufficient_history": "too few moving closes before the last bar",
    "scale_zero": "prices hardly moved before the last bar",
}


def mask_notes(flags: int) -> list[str]:
    """A note for each mask of the last row."""
    return [
        f"masked: {words}" for name, words in _MASK_WORDS.items() if flags & int(MASK_BITS[name])
    ]


def input_notes(columns: Columns, fields: Sequence[str], step: int, context: int) -> list[str]:
    """Notes on what the bars lack: ranges or volumes, if a model reads these fields, and bars."""
    return [
        *_absence_notes(columns, fields),
        *_missing_notes(columns["timestamp"][-context:], step),
    ]


def _absence_notes(columns: Columns, fields: Sequence[str]) -> list[str]:
    """Notes on what the newest moving bars have no value of."""
    read = [name for name in ("range_z", "activity") if name in fields]
    newest = {name: columns[name][-CHECKED_ROWS:] for name in ("flags", "ret_z", *read)}
    moving = ~has_flag(newest["flags"], ANY_MASK)
    num_moving = int(moving.sum())
    if num_moving < MIN_CLEAN_RETURNS:
        return []
    lacks = {}
    if "range_z" in read:
        lacks["no ranges: they are estimated from returns in"] = lacks_range(newest)
    if "activity" in read:
        lacks["no volume: it is absent, zero or constant in"] = newest["activity"] == 0
    notes = []
    for words, is_without in lacks.items():
        num_without = int((is_without & moving).sum())
        if num_without >= MIN_SHARE_WITHOUT * num_moving:
            note = f"{words} {num_without} of the last {num_moving} moving bars"
            notes.append(f"{note}; the forecast is worse for it")
    return notes


def _missing_notes(seconds: Ints, step: int) -> list[str]:
    """A note if many bars are missing between the stamps of a window."""
    share = missing_share(seconds[-MISSING_ROWS:], step)
    if share <= MAX_MISSING_SHARE:
        return []
    return [f"missing bars: {share:.0%} of those expected lately are not there"]


def context_notes(
    missing_assets: Sequence[str], as_of: datetime, num_bars: int, context: int
) -> list[str]:
    """Notes on other assets without a bar at the last stamp, and on a short history."""
    notes = []
    if missing_assets:
        notes.append(f"without other assets: no bar at {as_of} of {', '.join(missing_assets)}")
    if num_bars < context:
        notes.append(f"short context: {num_bars} bars where the model can use {context}")
    return notes


def clock_notes(
    as_of: datetime, next_bar: datetime, timeframe: timedelta, now: datetime
) -> list[str]:
    """Notes on a last bar that is too old, not finished, or ahead of time."""
    notes = []
    stale_since = next_bar + timeframe
    if now > stale_since:
        notes.append(f"stale since {stale_since}: no bar of {next_bar} has arrived")
    # The stamp of the last bar itself, given as `now`, stands for the bar's close.
    if as_of > now + CLOCK_ALLOWANCE:
        notes.append(f"ahead of time: the last bar is of {as_of}, and it is {now:%Y-%m-%d %H:%M}")
    elif now != as_of and as_of + timeframe > now:
        end = f"ends after {now:%Y-%m-%d %H:%M}, or has another clock"
        notes.append(f"unfinished: the bar of {as_of} {end}")
    return notes


def unknown_asset_note(symbol: str, known: Sequence[str]) -> str:
    """A note on an asset that the model was not trained on."""
    note = "unknown asset: the model never saw it and treats it as an average one"
    meant = usual_symbol(symbol, known)
    meant = meant if meant in known else find_pair(symbol) or symbol
    return f"{note}; did you mean {meant}, which it knows?" if meant in known else note
