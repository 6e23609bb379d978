"""Rows that cannot be prices are refused, or under repair dropped and counted; order is demanded, or under repair made.

Enters: bars with their source rows. Leaves: the same bars, cleaned; else a `DataError` naming file, row and way out.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from vaiom.errors import DataError
from vaiom.market.sources.piece import ROW, Origin, Piece

REPAIR = "pass --repair to {}, or correct the file"


def parse_numbers(column: pl.Series, rows: pl.Series, file: Origin, *, repair: bool) -> pl.Series:
    """Numbers of a text or number column; what is not a number is an error, or null under repair."""
    if column.dtype != pl.String:
        return column.cast(pl.Float64)
    numbers = column.cast(pl.Float64, strict=False)
    bad = numbers.is_null() & column.is_not_null()
    if not repair and bad.any():
        first = int(bad.arg_max() or 0)
        raise DataError(
            f"not a number in column {column.name}",
            where=file.at(rows[first]),
            expected="a number with a decimal point",
            got=repr(column[first]),
            fix=REPAIR.format("drop such rows"),
        )
    return numbers


def drop_unusable(frame: pl.DataFrame, prices: Sequence[str], file: Origin, *, repair: bool) -> pl.DataFrame:
    """Keep the rows whose prices are all finite and positive; without repair there may be no others."""
    usable = frame.select(
        pl.all_horizontal((pl.col(name).is_finite() & (pl.col(name) > 0)).fill_null(value=False) for name in prices)
    ).to_series()
    if usable.all():
        return frame
    if not repair:
        row = frame.row(int((~usable).arg_max() or 0), named=True)
        raise DataError(
            "a row has no usable price",
            where=file.at(row[ROW]),
            expected="positive numbers in " + ", ".join(prices),
            got=", ".join(f"{name} {row[name]}" for name in prices),
            fix=REPAIR.format("drop such rows"),
        )
    return frame.filter(usable)


def require_order(frame: pl.DataFrame, file: Origin, *, repeats: bool = False) -> None:
    """Stamps must increase in file order; `repeats` allows equal neighbours, as between ticks."""
    step = frame["Datetime"].diff().dt.total_microseconds()
    bad = (step < 0) if repeats else (step <= 0)
    if bad.any():
        first = int(bad.arg_max() or 0)
        before, after = frame["Datetime"][first - 1], frame["Datetime"][first]
        raise DataError(
            "a stamp is repeated" if before == after else "a stamp goes back in time",
            where=file.at(frame[ROW][first]),
            expected=f"a stamp after {before}",
            got=after,
            fix=REPAIR.format("sort rows and keep the last of repeated stamps"),
        )


def require_disjoint(earlier: Piece, later: Piece) -> None:
    """Two files of one symbol, each in order, must not overlap."""
    last, first = earlier.bars["Datetime"][-1], later.bars["Datetime"][0]
    if first <= last:
        raise DataError(
            "two files overlap in time",
            where=later.file.at(later.bars[ROW][0]),
            expected=f"a stamp after {last}, the last of {earlier.file.label}",
            got=first,
            fix=REPAIR.format("keep the row of the later file where stamps repeat"),
        )


def num_out_of_place(stamps: pl.Series) -> int:
    """How many rows lie behind a row with a later stamp."""
    physical = stamps.to_physical()
    return int((physical < physical.cum_max()).sum())


def put_in_order(bars: pl.DataFrame) -> pl.DataFrame:
    """Sorted by stamp, the last of repeated stamps kept."""
    return bars.sort("Datetime", maintain_order=True).unique("Datetime", keep="last", maintain_order=True)
