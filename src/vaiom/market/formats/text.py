"""Delimited text of any tool, taken apart without believing any of it, and the tools that are known by their tables.

MetaTrader 4 and 5 write tabs or commas, `<DATE>` or `DATE` or no header, with or without a time of day; Volume is the
tick volume, the one that both versions have. histdata.com writes one-minute bars without a header. Dukascopy's come
from JForex (`Gmt time`, `Local time`, `Time (UTC)`) or from dukascopy-node, bars or ticks.
"""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass

import polars as pl

from vaiom.errors import DataError
from vaiom.market.formats.table import (
    ROW,
    Options,
    Origin,
    RawTable,
    Roles,
    assign_roles,
    guess_roles,
    has_bars,
    has_ticks,
)

_DELIMITERS = ("\t", ";", "|", ",")
_LONGEST_LINE = 1 << 16
_BLANK_OR_COMMENT = re.compile(rb"(?:[^\S\n]*+(?:#[^\n]*+)?\n)*+(?:[^\S\n]*+(?:#[^\n]*+)?\Z)?")

_NUMBERS = ("Open", "High", "Low", "Close", "Volume")
_DATE, _TIME = r"\d{4}\.\d{2}\.\d{2}", r"\d{2}:\d{2}(:\d{2})?"
# What JavaScript prints: milliseconds since 1970, or ISO 8601 with exactly three decimals and a Z.
_NODE_STAMP = r"(\d{11,13}|\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z)"
_NODE_HEADER = r"timestamp\n(open\nhigh\nlow\nclose(\nvolume)?|askPrice\nbidPrice(\naskVolume\nbidVolume)?)"
_SIGNATURES: tuple[tuple[str, str | None, str, tuple[str, ...]], ...] = (
    ("metatrader", r"(?i:<date>|date)(\n.*)?", rf".{_DATE}.*", ()),
    ("metatrader", None, rf".{_DATE}\n{_TIME}(\n.*)?", ("Date", "Time", *_NUMBERS)),
    ("metatrader", None, rf".{_DATE}( {_TIME})?(\n(?!{_TIME}(\n|$)).*)?", ("Datetime", *_NUMBERS)),
    ("histdata", None, r";\d{8} \d{6}(\n[^\n]*){5}", ("Datetime", *_NUMBERS)),
    ("dukascopy", r"(?i:gmt time|local time|time \([a-z0-9+:-]+\))(\n.*)?", r".*", ()),
    ("dukascopy", _NODE_HEADER, rf".{_NODE_STAMP}(\n.*)?", ()),
)
"""(tool, header or None, delimiter and first row, roles of columns without names); newlines part the cells."""

_EXPECTED = {
    "metatrader": "DATE TIME OPEN HIGH LOW CLOSE TICKVOL ..., "
    "or 2015.01.02,00:00,open,high,low,close,volume without a header",
    "histdata": "YYYYMMDD HHMMSS;open;high;low;close;volume without a header",
    "dukascopy": "a header with Gmt time, Local time, Time (ZONE) or timestamp, "
    "then open, high, low, close or ask, bid",
}


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table before any meaning is given to it; without a header the columns are called 1, 2, 3."""

    file: Origin
    delimiter: str
    has_header: bool
    names: tuple[str, ...]
    sample: tuple[str, ...]
    body: bytes
    first_line: int


def read_text(file: Origin, data: bytes, format: str, options: Options) -> RawTable:
    """The rows of a text table, and which tool wrote it."""
    table = _open_table(file, data)
    tool, roles = _recognise(table, format, options)
    return RawTable(file=file, format=tool, frame=_read_rows(table), roles=roles)


def _recognise(table: TextTable, format: str, options: Options) -> tuple[str, Roles]:
    """The tool and the roles of the columns; columns without names are never guessed."""
    header, row = "\n".join(table.names), table.delimiter + "\n".join(table.sample)
    by_table = bool(options.columns) or format == "table"
    for tool, its_header, its_row, roles_in_order in () if by_table else _SIGNATURES:
        matches = (its_header is not None) == table.has_header and re.fullmatch(its_row, row, re.DOTALL)
        # What the user calls Dukascopy's may have any header.
        fits = its_header is None or format == "dukascopy" or re.fullmatch(its_header, header, re.DOTALL)
        roles = dict(zip(roles_in_order, table.names, strict=False)) or guess_roles(table.names)
        if (
            format in ("auto", tool)
            and matches
            and fits
            and (has_bars(roles) or (tool == "dukascopy" and has_ticks(roles)))
        ):
            return tool, roles
    if format not in ("auto", "table"):
        raise DataError(
            f"not a {format} file",
            where=table.file.label,
            expected=_EXPECTED[format],
            got=table.delimiter.join(table.names if table.has_header else table.sample)[:120],
            fix="use --format auto",
        )
    if not table.has_header and not options.columns:
        raise DataError(
            "the columns have no names",
            where=table.file.at(table.first_line),
            expected="a header line, or a file of Dukascopy, histdata.com or MetaTrader",
            got=table.delimiter.join(table.sample)[:120],
            fix="say which is which by number: --column Datetime=1 --column Open=2 ...",
        )
    return "table", assign_roles(table.names, options.columns, table.file)


def _open_table(file: Origin, data: bytes) -> TextTable:
    """Find delimiter and header; leading blank lines and `#` comments are passed over."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    head, body = _next_row(file, data, 0)
    delimiter = max(_DELIMITERS, key=head.count)
    if "\0" in head or delimiter not in head:
        raise DataError(
            "not a file of bars",
            where=file.label,
            expected="a .bi5, Parquet or zip file, or text with a tab, ';', '|' or ',' between columns",
            got=repr(head[:80]),
        )
    cells = _split_cells(head, delimiter)
    names = tuple(str(place) for place in range(1, len(cells) + 1))
    if has_header := not cells[0][:1].isdigit():
        taken = (ROW, *cells)
        # A column name that was there before gets its place added, so that each can be told.
        names = tuple(f"{name} ({at + 1})" if name in taken[: at + 1] else name for at, name in enumerate(cells))
        head, body = _next_row(file, data, (data.find(b"\n", body) + 1) or len(data))
    return TextTable(
        file=file,
        delimiter=delimiter,
        has_header=has_header,
        names=names,
        sample=_split_cells(head, delimiter),
        body=data[body:],
        first_line=1 + data.count(b"\n", 0, body),
    )


def _next_row(file: Origin, data: bytes, position: int) -> tuple[str, int]:
    """The next line that is neither blank nor a comment, and its byte position."""
    match = _BLANK_OR_COMMENT.match(data, position)
    position = match.end() if match else position
    if position == len(data):
        raise DataError(
            "the file holds no rows", where=file.label, expected="a table of bars", fix="leave the file out"
        )
    line = data[position : position + _LONGEST_LINE].split(b"\n", 1)[0]
    return line.decode(errors="replace").rstrip("\r"), position


def _split_cells(line: str, delimiter: str) -> tuple[str, ...]:
    # A carriage return inside a line is a space to us; the csv module would refuse it.
    plain = line[:_LONGEST_LINE].replace("\r", " ")
    return tuple(cell.strip() for cell in next(csv.reader([plain], delimiter=delimiter), []))


def _read_rows(table: TextTable) -> pl.DataFrame:
    """All rows as stripped texts, empty cells null, with their line in the file; blank lines are left out."""
    # A header of our own fixes the number of columns: the first row may be cut, and names may need quotes.
    places = [str(place) for place in range(len(table.names))]
    try:
        cells = pl.read_csv(
            table.delimiter.join(places).encode() + b"\n" + table.body,
            separator=table.delimiter,
            infer_schema=False,
            encoding="utf8-lossy",
            row_index_name=ROW,
            row_index_offset=table.first_line,
        )
    except pl.exceptions.PolarsError as error:
        raise _explain(table, error) from error
    texts = pl.col(table.names).str.strip_chars()
    stripped = cells.rename(dict(zip(places, table.names, strict=True))).with_columns(pl.when(texts != "").then(texts))
    return stripped.filter(~pl.all_horizontal(pl.col(table.names).is_null()))


def _explain(table: TextTable, error: Exception) -> DataError:
    """Which line it is that cannot be a row of the table."""
    for number, line in enumerate(table.body.decode(errors="replace").split("\n"), table.first_line):
        if line.strip() and len(_split_cells(line, table.delimiter)) > len(table.names):
            return DataError(
                "a line has too many fields",
                where=table.file.at(number),
                expected=f"{len(table.names)} fields",
                got=line[:200],
                fix="correct or remove the line",
            )
    return DataError("the text is not a table", where=table.file.label, got=str(error).splitlines()[0])
