"""Reasons to trust a forecast less, in the words that users read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from vaiom.features.fields import MASK_BITS
from vaiom.forecast.bars import CLOCK_ALLOWANCE
from vaiom.market.symbols import find_pair, usual_symbol

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
