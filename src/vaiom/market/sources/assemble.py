"""The pieces of one symbol become one table in order, with a record of where it came from and what was done to it.

Enters: the pieces of all files of a symbol. Leaves: bars that a bar folder accepts, and their entry in its manifest.
Paper: "Market Data, Price Convention and Bar Construction" (one ordered table per asset, nothing filled).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import polars as pl

from vaiom.errors import DataError
from vaiom.market.folder import BAR_COLUMNS, require_calendar
from vaiom.market.sources.clean import num_out_of_place, put_in_order, require_disjoint, require_order
from vaiom.market.sources.piece import Piece

# A handful of steps around a weekend or a hole says nothing about the timeframe.
FEWEST_STEPS = 10

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1), "s": timedelta(seconds=1)}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A piece and the identity of the file that it was read from."""

    piece: Piece
    sha256: str
    num_bytes: int

    @property
    def first(self) -> datetime | None:
        stamp = self.piece.bars["Datetime"].min()
        return stamp if isinstance(stamp, datetime) else None

    def entry(self) -> dict[str, Any]:
        file = self.piece.file
        return {
            "name": file.path.name,
            **({"member": file.member} if file.member else {}),
            "sha256": self.sha256,
            "bytes": self.num_bytes,
            "format": self.piece.format,
            "rows": self.piece.rows_read,
        }


def assemble(
    symbol: str, sources: Sequence[Source], *, shift: timedelta, utc: bool, repair: bool
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The bars of a symbol and its manifest entry."""
    sources = sorted(sources, key=lambda source: source.first or datetime.max)
    everything = [source.piece for source in sources]
    pieces = [piece for piece in everything if len(piece.bars)]
    if not pieces:
        names = ", ".join(source.piece.file.path.name for source in sources[:8])
        raise DataError(f"no bars of {symbol} in all its files", where=names, expected="at least one bar")
    shared_timeframe = _one_timeframe(pieces)
    _require_one_side(pieces)
    if not repair:
        for piece in pieces:
            require_order(piece.bars, piece.file)
        for earlier, later in pairwise(pieces):
            require_disjoint(earlier, later)
    together = pl.concat([piece.bars.select(BAR_COLUMNS) for piece in pieces])
    ordered = put_in_order(together)
    timeframe = shared_timeframe or timeframe_of(ordered["Datetime"])
    bars = ordered.with_columns(pl.col("Datetime") + shift)
    require_calendar(bars["Datetime"], lambda row: f"{symbol}, bar {row + 1}, moved by {span_label(shift)}")
    record = {
        "rows": len(bars),
        "first": bars["Datetime"][0].isoformat(),
        "last": bars["Datetime"][-1].isoformat(),
        "timeframe": span_label(timeframe) if timeframe else None,
        "clock": {"shift": span_label(shift), "utc": utc},
        "flat_dropped": sum(piece.flat_dropped for piece in everything),
        "repairs": {
            "rows_reordered": sum(piece.reordered for piece in everything) + num_out_of_place(together["Datetime"]),
            "repeated_stamps_dropped": len(together) - len(ordered),
            "unusable_rows_dropped": sum(piece.unusable_dropped for piece in everything),
            "volumes_blanked": sum(piece.volumes_blanked for piece in everything),
        },
        "sources": [source.entry() for source in sources],
    }
    return bars, record


def span_label(span: timedelta) -> str:
    """A span in its largest whole unit, as the command line takes it: 2h, -30min, 1d."""
    if not span:
        return "0min"
    for unit, size in _UNITS.items():
        if not span % size:
            return f"{span // size}{unit}"
    return f"{span.total_seconds()}s"


def timeframe_of(stamps: pl.Series) -> timedelta | None:
    """The step that most rows keep; nothing where there are too few rows, or too many holes, to tell."""
    steps = stamps.sort().diff().drop_nulls()
    if len(steps) < FEWEST_STEPS:
        return None
    step, count = steps.value_counts(sort=True).row(0)
    return step if step and 2 * count > len(steps) else None


def _one_timeframe(pieces: Sequence[Piece]) -> timedelta | None:
    """The timeframe that all pieces share: bars of several in one table would hide among each other."""
    first: tuple[timedelta, Piece] | None = None
    for piece in pieces:
        found = timeframe_of(piece.bars["Datetime"])
        if found is None:
            continue
        if first is None:
            first = (found, piece)
        elif found != first[0]:
            raise DataError(
                "files of one symbol have different timeframes",
                where=f"{first[1].file.label} and {piece.file.label}",
                expected=f"{span_label(first[0])} in both",
                got=span_label(found),
                fix="import each timeframe into a folder of its own",
            )
    return first[0] if first else None


def _require_one_side(pieces: Sequence[Piece]) -> None:
    sides = {piece.side: piece for piece in pieces if piece.side}
    if len(sides) > 1:
        raise DataError(
            "files of one symbol mix bid and ask prices",
            where=" and ".join(piece.file.label for piece in sides.values()),
            fix="import one side only",
        )
