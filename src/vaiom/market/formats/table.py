"""The rows of any file become bars: numbers are parsed, ticks become minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from vaiom.market.folder import PRICE_COLUMNS, require_ordered
from vaiom.market.formats.columns import prices_in
from vaiom.market.formats.source import (
    DROP_FIX,
    ROW,
    SORT_FIX,
    FileBars,
    Options,
    RawTable,
    SourceFile,
    several_symbols,
)
from vaiom.market.formats.stamps import parse_stamps
from vaiom.market.symbols import find_pair


def parse_bars(raw: RawTable, options: Options) -> FileBars:
    """Parse stamps and numbers, and keep rows with usable prices.

    Ticks become one-minute bars of their bids. Dukascopy's flat bars of closed hours are dropped.
    Without `options.repair`, a text that is no number, a row without usable prices and ticks out of
    order are errors that name their row; with it, such rows are dropped or sorted, and counted.
    """
    file = raw.file
    roles = raw.roles
    frame = raw.frame
    rows = frame[ROW]
    prices = prices_in(roles)
    is_ticks = prices != PRICE_COLUMNS

    stamp_parts = [roles[name] for name in ("Datetime", "Date", "Time") if name in roles]
    stamps = frame[stamp_parts[0]]
    if len(stamp_parts) > 1:
        texts = pl.concat_str(pl.col(stamp_parts).cast(pl.String), separator=" ")
        stamps = frame.select(texts).to_series()
    stamps = parse_stamps(stamps, lambda row: file.at(rows[row]), utc=options.utc)

    volume = roles.get("BidVolume" if is_ticks else "Volume")
    cells = frame.select(
        *(pl.col(roles[name]).alias(name) for name in prices),
        (pl.col(volume) if volume else pl.lit(None, pl.Float64)).alias("Volume"),
    )
    numbers = _parse_numbers(_with_points(cells, prices), rows, file, repair=options.repair)
    numbers = numbers.with_columns(pl.col("Volume").fill_nan(None))
    if raw.fixed_point and not _any_contains(cells.select(prices), "."):
        numbers = numbers.with_columns(pl.col(prices) / raw.fixed_point)

    bars = numbers.select(stamps.alias("Datetime"), pl.all(), rows)
    traded = drop_flat(bars) if raw.format == "dukascopy" and not is_ticks else bars
    usable = _drop_unusable(traded, prices, file, repair=options.repair)
    changes = Counter(
        volumes_blanked=numbers["Volume"].null_count() - cells["Volume"].null_count(),
        flat_dropped=len(bars) - len(traded),
        unusable_rows_dropped=len(traded) - len(usable),
        filled_from_close=0 if is_ticks or roles["High"] != roles["Close"] else len(usable),
    )
    if is_ticks:
        if options.repair:
            changes["rows_reordered"] = count_out_of_place(usable["Datetime"])
            usable = usable.sort("Datetime", maintain_order=True)
        else:
            place = usable[ROW]
            stamps = usable["Datetime"]
            require_ordered(stamps, lambda row: file.at(place[row]), repeats=True, fix=SORT_FIX)
        usable = _minute_bars(usable)
    symbol = raw.symbol or file.symbol
    return FileBars(file=file, symbol=symbol, bars=usable, changes=changes)


def drop_flat(bars: pl.DataFrame) -> pl.DataFrame:
    """Drop the bars that Dukascopy sends for closed hours: constant prices and no volume.

    A quiet minute that traded has a volume, and stays.
    """
    first, *others = map(pl.col, PRICE_COLUMNS)
    is_flat = pl.all_horizontal(price == first for price in others) & (pl.col("Volume") == 0)
    return bars.filter(~is_flat.fill_null(value=False))


def count_out_of_place(stamps: pl.Series) -> int:
    """How many rows lie behind a row with a later stamp."""
    physical = stamps.to_physical()
    return int((physical < physical.cum_max()).sum())


def _any_contains(cells: pl.DataFrame, mark: str) -> bool:
    """Whether any text of a frame has a mark."""
    texts = cells.select(pl.col(pl.String))
    return any(column.str.contains(mark, literal=True).any() for column in texts)


def _with_points(cells: pl.DataFrame, prices: Sequence[str]) -> pl.DataFrame:
    """Texts without separators of thousands, and with points if all prices have decimal commas.

    In 1,234.5 the comma separates thousands; in 1.234,5 the point does. What a comma alone means is
    decided by all prices together, and 1,100 stays as it is where that is open, which makes it an
    error later.
    """
    texts = cells.select(pl.col(prices)).select(pl.col(pl.String))
    if not _any_contains(texts, ","):
        return cells
    # Separators are removed only before a decimal mark: with decimal points, 1,100 may be either.
    separator, number = ".", r"^\d+(\.\d{3})*(,\d+)?$"
    if any(column.str.contains(r"\.[^,]*$").any() for column in texts):
        separator, number = ",", r"^\d+(,\d{3})+\.\d+$"
    text = pl.col(pl.String)
    plain = text.str.replace_all(separator, "", literal=True).str.replace(",", ".", literal=True)
    return cells.with_columns(pl.when(text.str.contains(number)).then(plain).otherwise(text))


def _parse_numbers(
    cells: pl.DataFrame, rows: pl.Series, file: SourceFile, *, repair: bool
) -> pl.DataFrame:
    """Parse columns of texts or numbers; anything else is an error, or null with repair."""
    numbers = cells.cast(pl.Float64, strict=False)
    if repair:
        return numbers
    for column in cells:
        is_bad = numbers[column.name].is_null() & column.is_not_null()
        if is_bad.any():
            first = int(is_bad.arg_max() or 0)
            raise file.error(
                f"not a number in column {column.name}",
                row=rows[first],
                expected="a number with a decimal point, or a comma in all prices",
                got=repr(column[first]),
                fix=DROP_FIX,
            )
    return numbers


def _drop_unusable(
    frame: pl.DataFrame, prices: Sequence[str], file: SourceFile, *, repair: bool
) -> pl.DataFrame:
    """Keep rows whose prices are all finite and positive; without repair there may be no others."""
    price = pl.col(*prices)
    is_usable = pl.all_horizontal((price.is_finite() & (price > 0)).fill_null(value=False))
    usable = frame.filter(is_usable)
    if not repair and len(usable) < len(frame):
        row = frame.filter(~is_usable).row(0, named=True)
        raise file.error(
            "a row has no usable price",
            row=row[ROW],
            expected=f"positive numbers in {', '.join(prices)}",
            got=", ".join(f"{name} {row[name]}" for name in prices),
            fix=DROP_FIX,
        )
    return usable


def _minute_bars(ticks: pl.DataFrame) -> pl.DataFrame:
    """One-minute bid bars of ordered ticks; `ROW` is that of the minute's first tick.

    The volume of a minute is the sum of those that are known, null if none is.
    """
    bid = pl.col("Bid")
    volume = pl.col("Volume")
    minutes = ticks.group_by(pl.col("Datetime").dt.truncate("1m"), maintain_order=True)
    return minutes.agg(
        bid.first().alias("Open"),
        bid.max().alias("High"),
        bid.min().alias("Low"),
        bid.last().alias("Close"),
        pl.when(volume.count() > 0).then(volume.sum()).alias("Volume"),
        pl.col(ROW).first(),
    )


def split_symbols(raw: RawTable, wanted: str | None) -> list[RawTable]:
    """The table of each symbol of a table with a column of symbols, or of the one that is wanted.

    Other tables stay as they are.
    """
    if "Symbol" not in raw.roles:
        return [raw]
    cells = raw.frame[raw.roles["Symbol"]].cast(pl.String)
    if cells.null_count() and wanted is None:
        row = raw.frame[ROW][int(cells.is_null().arg_max() or 0)]
        fix = "name its asset, remove it, or pick one asset with --symbol"
        raise raw.file.error("a row has no symbol", row=row, fix=fix)
    symbol_of = {cell: find_pair(cell) or cell for cell in cells.unique().drop_nulls().to_list()}
    symbols = sorted(set(symbol_of.values()))
    if wanted is not None:
        symbols = [symbol for cell, symbol in symbol_of.items() if wanted in (cell, symbol)][:1]
    if not symbols:
        raise several_symbols(raw.file, sorted(set(symbol_of.values())), wanted)
    named = cells.replace_strict(symbol_of, default=None, return_dtype=pl.String)
    return [
        replace(raw, symbol=wanted or symbol, frame=raw.frame.filter(named == symbol))
        for symbol in symbols
    ]
