"""Any file, compressed or not, becomes bars; its kind is recognised by content, not by name.

The way of a file: `packed` unpacks it, `dukascopy`, `text` or Parquet gives its rows with the roles
of columns, and `table` makes bars of them. A new format of text is a line in `text.LAYOUTS`.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import sha256_of
from vaiom.market.folder import NUMBER_COLUMNS, read_parquet
from vaiom.market.formats import dukascopy
from vaiom.market.formats.columns import assign_roles
from vaiom.market.formats.packed import unpack
from vaiom.market.formats.source import ROW, FileBars, Options, RawTable, SourceFile
from vaiom.market.formats.table import parse_bars, split_symbols
from vaiom.market.formats.text import TOOLS, read_text

_TWO_LEVELS = re.compile(r"\('(.+)', '(.+)'\)").fullmatch
FORMATS = ("auto", *TOOLS, "table")


def read_source(file: SourceFile, data: bytes, options: Options) -> list[FileBars]:
    """The bars of one file of any known kind, and its record for the manifest; of each symbol if a
    column names several.
    """
    digest = {"sha256": sha256_of(data), "bytes": len(data)}
    file, data = unpack(file, data)
    raw = _read_rows(file, data, options)
    member = {"member": raw.file.member} if raw.file.member else {}
    record = {
        "name": file.path.name,
        **member,
        **digest,
        "format": raw.format,
        "rows": len(raw.frame),
    }
    tables = split_symbols(raw, options.symbol)
    return [replace(parse_bars(table, options), record=record) for table in tables]


def _read_rows(file: SourceFile, data: bytes, options: Options) -> RawTable:
    """The rows of a `.bi5`, Parquet or text file."""
    is_bi5 = data.startswith(dukascopy.MAGIC) or (not data and file.path.suffix.lower() == ".bi5")
    is_parquet = data.startswith(b"PAR1")
    if options.price_scale is not None and not is_bi5:
        raise ConfigError("a price scale is for .bi5 files only", where=file.label)
    if not (is_bi5 or is_parquet):
        return read_text(file, data, options)
    actual = "dukascopy" if is_bi5 else "table"
    if options.format not in ("auto", actual):
        got = f"a {actual} file"
        raise file.error(f"not a {options.format} file", got=got, fix="use --format auto")
    reader = dukascopy.read_bi5 if is_bi5 else _read_parquet
    return reader(file, data, options)


def _one_level(frame: pl.DataFrame) -> pl.DataFrame:
    """A long table with a column of symbols, of one whose columns have two levels.

    yfinance makes such tables, and pandas stores the names as the texts of pairs, such as
    `('Close', 'EURUSD=X')`.
    """
    pairs = {name: match.groups() for name in frame.columns if (match := _TWO_LEVELS(name))}
    if not pairs:
        return frame
    others = [name for name in frame.columns if name not in pairs]
    ticker_level = int(any(first.lower() == "close" for first, _ in pairs.values()))
    parts = []
    for ticker in dict.fromkeys(pair[ticker_level] for pair in pairs.values()):
        own = {name: pair for name, pair in pairs.items() if pair[ticker_level] == ticker}
        fields = [pl.col(name).alias(pair[1 - ticker_level]) for name, pair in own.items()]
        part = frame.select(*others, pl.lit(ticker).alias("Symbol"), *fields)
        # Where one ticker has a bar, the others have a row too.
        numbers = pl.col(own).cast(pl.Float64, strict=False).fill_nan(None)
        is_absent = pl.all_horizontal(numbers.is_null())
        parts.append(part.filter(~frame.select(is_absent).to_series()))
    return pl.concat(parts, how="diagonal")


def _read_parquet(file: SourceFile, data: bytes, options: Options) -> RawTable:
    """The rows of a Parquet file; of its columns those that have a role."""
    file = replace(file, unit="row")
    frame = _one_level(read_parquet(io.BytesIO(data), file.label))
    roles = assign_roles(frame.columns, options.columns, file)
    used = frame.select(sorted(set(roles.values())))
    for role in (*NUMBER_COLUMNS, "Bid", "BidVolume"):
        if role not in roles:
            continue
        dtype = used.schema[roles[role]]
        if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
            where = f"{file.label}, column {roles[role]}"
            raise DataError("a price column must be numeric", where=where, got=str(dtype))
    rows = used.with_row_index(ROW, offset=1)
    return RawTable(file=file, format="table", frame=rows, roles=roles)
