"""Bid ticks become one-minute bid bars.

Enters: ticks (Datetime, Bid, Volume, `ROW`) in file order. Leaves: a `Piece` of one-minute bars.
Paper: "Market Data, Price Convention and Bar Construction" (bid prices, left edges, nothing filled).
"""

from __future__ import annotations

import polars as pl

from vaiom.market.sources.clean import drop_unusable, num_out_of_place, require_order
from vaiom.market.sources.piece import ROW, Options, Origin, Piece


def minute_bars(ticks: pl.DataFrame) -> pl.DataFrame:
    """Bars of ordered ticks; `ROW` is that of the minute's first tick."""
    bid, volume = pl.col("Bid"), pl.col("Volume")
    return ticks.group_by(pl.col("Datetime").dt.truncate("1m"), maintain_order=True).agg(
        bid.first().alias("Open"),
        bid.max().alias("High"),
        bid.min().alias("Low"),
        bid.last().alias("Close"),
        pl.when(volume.count() > 0).then(volume.sum()).alias("Volume"),
        pl.col(ROW).first(),
    )


def tick_piece(file: Origin, format: str, symbol: str | None, ticks: pl.DataFrame, options: Options) -> Piece:
    usable = drop_unusable(ticks, ["Bid"], file, repair=options.repair)
    reordered = 0
    if options.repair:
        reordered = num_out_of_place(usable["Datetime"])
        usable = usable.sort("Datetime", maintain_order=True)
    else:
        require_order(usable, file, repeats=True)
    return Piece(
        file=file,
        format=format,
        symbol=symbol,
        bars=minute_bars(usable),
        rows_read=len(ticks),
        unusable_dropped=len(ticks) - len(usable),
        reordered=reordered,
    )
