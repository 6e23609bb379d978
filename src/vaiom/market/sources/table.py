"""Any other CSV or Parquet table: columns by their usual names, or by the map that the user gives.

Enters: a text table, or the bytes of a Parquet file. Leaves: the roles of its columns, or the `Piece` itself.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from vaiom.errors import DataError
from vaiom.market.folder import BAD_PARQUET, parquet_frame
from vaiom.market.sources.columns import Roles, bars_from, guess_roles, mapped_roles, require_bars
from vaiom.market.sources.piece import ROW, Options, Origin, Piece
from vaiom.market.sources.text import TextTable

PARQUET_MAGIC = b"PAR1"


def roles_of(table: TextTable, columns: Mapping[str, str] | None) -> Roles:
    """The roles of a text table; columns without names are never guessed."""
    if not table.has_header and not columns:
        raise DataError(
            "the columns have no names",
            where=table.file.at(table.first_line),
            expected="a header line, or a file of Dukascopy, histdata.com or MetaTrader",
            got=table.delimiter.join(table.sample)[:120],
            fix="say which is which by number: --column Datetime=1 --column Open=2 ...",
        )
    return _complete(table.names, columns, table.file)


def read_parquet(file: Origin, data: bytes, options: Options) -> Piece:
    """The bars of a Parquet file of any tool."""
    file = replace(file, unit="row")
    try:
        frame = parquet_frame(io.BytesIO(data))
    except BAD_PARQUET as error:
        raise DataError("not readable as Parquet", where=file.label, got=str(error).splitlines()[0]) from error
    roles = _complete(frame.columns, options.columns, file)
    used = frame.select(sorted(set(roles.values())))
    for role, name in roles.items():
        if role in ("Open", "High", "Low", "Close", "Volume", "Bid", "BidVolume"):
            _require_numbers(used, name, file)
    return bars_from(used.with_row_index(ROW, offset=1), roles, file, "table", options)


def _complete(names: Sequence[str], columns: Mapping[str, str] | None, file: Origin) -> Roles:
    roles = mapped_roles(names, columns, file) if columns else guess_roles(names)
    require_bars(roles, names, file)
    return roles


def _require_numbers(frame: pl.DataFrame, name: str, file: Origin) -> None:
    dtype = frame.schema[name]
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
        raise DataError("a price column must be numeric", where=f"{file.label}, column {name}", got=str(dtype))
