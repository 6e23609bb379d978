"""Any file as the rows of a table: which kind it is, is told by its content and not by its name.

Enters: the bytes of a file and the format that the user names, or `auto`. Leaves: its `FileBars`. Zip files are read,
never extracted. MetaTrader 4 and 5 write tabs or commas, `<DATE>`, `DATE` or no header, with or without a time of day,
and both a tick volume. histdata.com writes one-minute bars without a header. Dukascopy's come from JForex (`Gmt time`,
`Local time`, `Time (UTC)`) or from dukascopy-node, bars or ticks.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import zipfile
import zlib
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import BAD_ZIPS, sha256_of
from vaiom.market.folder import PRICE_COLUMNS, read_parquet
from vaiom.market.formats import dukascopy
from vaiom.market.formats.table import (
    ROW,
    FileBars,
    Options,
    Origin,
    RawTable,
    Roles,
    assign_roles,
    guess_roles,
    has_bars,
    has_ticks,
    parse_bars,
)

FORMATS = ("auto", "dukascopy", "histdata", "metatrader", "table")
MAX_UNPACKED = 4 << 30
# Price tables pack five to twenty times; a bomb packs a thousand times and more.
MAX_RATIO = 200
# Below this size the ratio says nothing: a short file of equal lines packs very well.
RATIO_FROM = 1 << 20

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_AUTO = "use --format auto"
_SAFE_ONLY = "do not trust this archive; unpack it yourself if you know where it comes from"
_DELIMITERS = ("\t", ";", "|", ",")
_LONGEST_LINE = 1 << 16
_BLANK_OR_COMMENT = re.compile(rb"(?:[^\S\n]*+(?:#[^\n]*+)?\n)*+(?:[^\S\n]*+(?:#[^\n]*+)?\Z)?")

_NUMBERS = (*PRICE_COLUMNS, "Volume")
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


class TextTable(NamedTuple):
    """A table before any meaning is given to it; without a header the columns are called 1, 2, 3."""

    file: Origin
    delimiter: str
    has_header: bool
    names: tuple[str, ...]
    sample: tuple[str, ...]
    body: bytes
    first_line: int


def read_source(file: Origin, data: bytes, format: str, options: Options) -> FileBars:
    """The bars of one file of any known kind, and what to record of it."""
    digest = {"sha256": sha256_of(data), "bytes": len(data)}
    if data.startswith(_ZIP_MAGIC):
        file, data = _open_zip(file, data)
    elif data.startswith(_GZIP_MAGIC):
        data = _open_gzip(file, data)
    is_bi5 = data.startswith(dukascopy.MAGIC) or (not data and file.path.suffix.lower() == ".bi5")
    is_parquet = data.startswith(_PARQUET_MAGIC)
    actual = "dukascopy" if is_bi5 else "table"
    if options.price_scale is not None and not is_bi5:
        raise ConfigError("a price scale is for .bi5 files only", where=file.label)
    if (is_bi5 or is_parquet) and format not in ("auto", actual):
        raise file.error(f"not a {format} file", got=f"a {actual} file", fix=_AUTO)
    if is_bi5:
        table = dukascopy.read_bi5(file, data, options)
    else:
        table = _read_parquet(file, data, options) if is_parquet else _read_text(file, data, format, options)
    member = {"member": table.file.member} if table.file.member else {}
    record = {"name": file.path.name, **member, **digest, "format": table.format, "rows": len(table.frame)}
    return replace(parse_bars(table, options), record=record)


def _read_parquet(file: Origin, data: bytes, options: Options) -> RawTable:
    file = replace(file, unit="row")
    frame = read_parquet(io.BytesIO(data), file.label)
    roles = assign_roles(frame.columns, options.columns, file)
    used = frame.select(sorted(set(roles.values())))
    for role in (*PRICE_COLUMNS, "Volume", "Bid", "BidVolume"):
        dtype = used.schema[roles[role]] if role in roles else pl.Float64()
        if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
            where = f"{file.label}, column {roles[role]}"
            raise DataError("a price column must be numeric", where=where, got=str(dtype))
    return RawTable(file=file, format="table", frame=used.with_row_index(ROW, offset=1), roles=roles)


def _open_zip(file: Origin, data: bytes) -> tuple[Origin, bytes]:
    """The only `.csv` member of a zip file, or without one its only `.txt` member, and its bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                _require_safe(info, f"{file.label}!{info.filename}")
            names = [info.filename for info in archive.infolist()]
            by_suffix = (
                [name for name in names if PurePosixPath(name).suffix.lower() == end] for end in (".csv", ".txt")
            )
            tables = next(filter(None, by_suffix), [])
            if len(tables) != 1:
                raise file.error(
                    "a zip file must hold exactly one table",
                    expected="one .csv member, or one .txt member",
                    got=", ".join(names[:8]) or "an empty archive",
                    fix="unpack it and import the files you want",
                )
            return replace(file, member=tables[0]), archive.read(tables[0])
    except BAD_ZIPS as error:
        raise dukascopy.damaged("the zip file cannot be unpacked", file.label, got=str(error)) from error


def _open_gzip(file: Origin, data: bytes) -> bytes:
    """The bytes of a gzip file, which must be no more than a price table packs into one."""
    packed, most = zlib.decompressobj(wbits=31), min(MAX_UNPACKED, max(RATIO_FROM, MAX_RATIO * len(data)))
    try:
        table = packed.decompress(data, most)
    except zlib.error as error:
        raise dukascopy.damaged("the gzip file cannot be unpacked", file.label, got=str(error)) from error
    if not packed.eof:
        got = "more" if packed.unconsumed_tail else "a file that is cut off"
        raise file.error(
            "the gzip file is not a whole table", expected=f"at most {most} bytes", got=got, fix=_SAFE_ONLY
        )
    return table


def _require_safe(info: zipfile.ZipInfo, where: str) -> None:
    path = PurePosixPath(info.filename.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in info.filename:
        raise DataError("a zip member climbs out of its folder", where=where, fix=_SAFE_ONLY)
    if info.flag_bits & 1:
        raise DataError("a zip member is encrypted", where=where, fix="unpack it yourself and import the table")
    if info.file_size > MAX_UNPACKED or info.file_size > max(RATIO_FROM, MAX_RATIO * info.compress_size):
        raise DataError(
            "a zip member unpacks to too much",
            where=where,
            expected=f"at most {MAX_UNPACKED} bytes and {MAX_RATIO} times its packed size",
            got=f"{info.file_size} bytes from {info.compress_size}",
            fix=_SAFE_ONLY,
        )


def _read_text(file: Origin, data: bytes, format: str, options: Options) -> RawTable:
    table = _open_table(file, data)
    tool, roles = _recognise(table, format, options)
    return RawTable(file=file, format=tool, frame=_read_rows(table), roles=roles)


def _recognise(table: TextTable, format: str, options: Options) -> tuple[str, Roles]:
    """The tool and the roles of the columns; columns without names are never guessed."""
    header, row = "\n".join(table.names), table.delimiter + "\n".join(table.sample)
    by_table = bool(options.columns) or format == "table"
    for tool, its_header, its_row, roles_in_order in () if by_table else _SIGNATURES:
        # What the user calls Dukascopy's may have any header.
        fits = its_header is None or format == "dukascopy" or re.fullmatch(its_header, header, re.DOTALL)
        matches = (its_header is not None) == table.has_header and re.fullmatch(its_row, row, re.DOTALL)
        if format in ("auto", tool) and fits and matches:
            roles = dict(zip(roles_in_order, table.names, strict=False)) or guess_roles(table.names)
            if has_bars(roles) or (tool == "dukascopy" and has_ticks(roles)):
                return tool, roles
    shown = table.delimiter.join(table.names if table.has_header else table.sample)[:120]
    if format not in ("auto", "table"):
        raise table.file.error(f"not a {format} file", expected=_EXPECTED[format], got=shown, fix=_AUTO)
    if not table.has_header and not options.columns:
        raise table.file.error(
            "the columns have no names",
            row=table.first_line,
            expected="a header line, or a file of Dukascopy, histdata.com or MetaTrader",
            got=shown,
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
        raise file.error(
            "not a file of bars",
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
    sample, first_line = _split_cells(head, delimiter), 1 + data.count(b"\n", 0, body)
    return TextTable(file, delimiter, has_header, names, sample, data[body:], first_line)


def _next_row(file: Origin, data: bytes, position: int) -> tuple[str, int]:
    """The next line that is neither blank nor a comment, and its byte position."""
    match = _BLANK_OR_COMMENT.match(data, position)
    position = match.end() if match else position
    if position == len(data):
        raise file.error("the file holds no rows", expected="a table of bars", fix="leave the file out")
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
        for number, line in enumerate(table.body.decode(errors="replace").split("\n"), table.first_line):
            if line.strip() and len(_split_cells(line, table.delimiter)) > len(table.names):
                raise table.file.error(
                    "a line has too many fields",
                    row=number,
                    expected=f"{len(table.names)} fields",
                    got=line[:200],
                    fix="correct or remove the line",
                ) from error
        raise table.file.error("the text is not a table", got=str(error).splitlines()[0]) from error
    texts = pl.col(table.names).str.strip_chars()
    stripped = cells.rename(dict(zip(places, table.names, strict=True))).with_columns(pl.when(texts != "").then(texts))
    return stripped.filter(~pl.all_horizontal(pl.col(table.names).is_null()))
