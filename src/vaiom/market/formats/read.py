"""Any file, compressed or not, as the rows of a table; its kind is recognised by content, not by
name.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from vaiom.errors import ConfigError, DataError, require_installed
from vaiom.files import BAD_ZIPS, sha256_of
from vaiom.market.folder import NUMBER_COLUMNS, PRICE_COLUMNS, read_parquet
from vaiom.market.formats import dukascopy, table
from vaiom.market.formats.table import ROW, FileBars, Options, Origin, RawTable
from vaiom.market.symbols import find_pair

MAX_UNPACKED = 4 << 30
# Price tables pack five to twenty times; a bomb packs a thousand times and more.
MAX_RATIO = 200
# Below this size the ratio says nothing: a short file of equal lines packs very well.
RATIO_FROM = 1 << 20

_AUTO = "use --format auto"
_LONGEST_LINE = 1 << 16
_MOST_LINES_ABOVE = 20
_BLANK_OR_COMMENT = re.compile(rb"(?:[^\S\n]*+(?:#[^\n]*+)?\n)*+(?:[^\S\n]*+(?:#[^\n]*+)?\Z)?")


@dataclass(frozen=True)
class Layout:
    """How a tool's table begins: patterns of its header, if any, and of delimiter and first row,
    cells by newlines.
    """

    tool: str
    header: str | None
    row: str
    columns: tuple[str, ...] = ()
    fixed_point: float | None = None


_BARS = ("Datetime", *NUMBER_COLUMNS)
_DATE, _TIME = r"\d{4}\.\d{2}\.\d{2}", r"\d{2}:\d{2}(:\d{2})?"
# What JavaScript prints: milliseconds since 1970, or ISO 8601 with exactly three decimals and a Z.
_NODE_STAMP = r"(\d{11,13}|\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z)"
_NODE_HEADER = (
    r"timestamp\n(open\nhigh\nlow\nclose(\nvolume)?|askPrice\nbidPrice(\naskVolume\nbidVolume)?)"
)
_UNIX = r"\d{13}(\d{3})?"
LAYOUTS = (
    # MetaTrader 4 and 5 write tabs or commas, with or without header and time of day, and both a
    # tick volume.
    Layout("metatrader", r"(?i:<date>|date)(\n.*)?", rf".{_DATE}.*"),
    Layout("metatrader", None, rf".{_DATE}\n{_TIME}(\n.*)?", ("Date", "Time", *NUMBER_COLUMNS)),
    Layout("metatrader", None, rf".{_DATE}( {_TIME})?(\n(?!{_TIME}(\n|$)).*)?", _BARS),
    Layout("histdata", None, r";\d{8} \d{6}(\n[^\n]*){5}", _BARS),
    # From JForex, or from dukascopy-node.
    Layout("dukascopy", r"(?i:gmt time|local time|time \([a-z0-9+:-]+\))(\n.*)?", r".*"),
    Layout("dukascopy", _NODE_HEADER, rf".{_NODE_STAMP}(\n.*)?"),
    # Archives and the API of candles, from opening time to closing time, until recently without
    # column names.
    Layout("binance", None, rf",{_UNIX}(\n[\d.]+){{5}}\n{_UNIX}(\n.*)?", _BARS),
    Layout("databento", r"(.*\n)?rtype\npublisher_id\ninstrument_id\n.*", r".*", fixed_point=1e9),
)
FORMATS = ("auto", *sorted({layout.tool for layout in LAYOUTS}), "table")


def read_source(file: Origin, data: bytes, options: Options) -> FileBars:
    """The bars of one file of any known kind, and its record for the manifest."""
    digest = {"sha256": sha256_of(data), "bytes": len(data)}
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        file, data = _open_zip(file, data)
    elif data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        data = _decompress(file, data, "gzip" if data[0] == 0x1F else "zstd")
    is_bi5 = data.startswith(dukascopy.MAGIC) or (not data and file.path.suffix.lower() == ".bi5")
    is_parquet = data.startswith(b"PAR1")
    actual = "dukascopy" if is_bi5 else "table"
    if options.price_scale is not None and not is_bi5:
        raise ConfigError("a price scale is for .bi5 files only", where=file.label)
    if (is_bi5 or is_parquet) and options.format not in ("auto", actual):
        raise file.error(f"not a {options.format} file", got=f"a {actual} file", fix=_AUTO)
    if is_bi5:
        raw = dukascopy.read_bi5(file, data, options)
    else:
        raw = _read_parquet(file, data, options) if is_parquet else _read_text(file, data, options)
    member = {"member": raw.file.member} if raw.file.member else {}
    record = {
        "name": file.path.name,
        **member,
        **digest,
        "format": raw.format,
        "rows": len(raw.frame),
    }
    return replace(table.parse_bars(raw, options), record=record)


def _read_parquet(file: Origin, data: bytes, options: Options) -> RawTable:
    file = replace(file, unit="row")
    frame = read_parquet(io.BytesIO(data), file.label)
    roles = table.assign_roles(frame.columns, options.columns, file)
    used = frame.select(sorted(set(roles.values())))
    for role in (*NUMBER_COLUMNS, "Bid", "BidVolume"):
        dtype = used.schema[roles[role]] if role in roles else pl.Float64()
        if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
            where = f"{file.label}, column {roles[role]}"
            raise DataError("a price column must be numeric", where=where, got=str(dtype))
    return RawTable(
        file=file, format="table", frame=used.with_row_index(ROW, offset=1), roles=roles
    )


def _open_zip(file: Origin, data: bytes) -> tuple[Origin, bytes]:
    """The only `.csv` member of a zip file, or without one its only `.txt` member, and its
    bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members, ends = archive.infolist(), (".csv", ".txt")
            csvs, texts = (
                [info for info in members if info.filename.lower().endswith(end)] for end in ends
            )
            tables = csvs or texts
            if len(tables) != 1:
                expected, fix = (
                    "one .csv member, or one .txt member",
                    "unpack it and import the files you want",
                )
                got = ", ".join(archive.namelist()[:8]) or "an empty archive"
                fix = "save the sheet as CSV" if "xl/workbook.xml" in archive.namelist() else fix
                raise file.error(
                    "a zip file must hold exactly one table", expected=expected, got=got, fix=fix
                )
            file = replace(file, member=tables[0].filename)
            _require_size(file, tables[0].file_size, tables[0].compress_size)
            return file, archive.read(tables[0])
    except BAD_ZIPS as error:
        raise dukascopy.damaged(
            "the zip file cannot be unpacked", file.label, got=str(error)
        ) from error


def _decompress(file: Origin, data: bytes, codec: str) -> bytes:
    """The content of a file compressed by gzip or zstd."""
    most = min(MAX_UNPACKED, max(RATIO_FROM, MAX_RATIO * len(data)))
    stream: Any = gzip.GzipFile(fileobj=io.BytesIO(data))
    if codec != "gzip":
        require_installed("pyarrow")
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.BufferReader(data), codec)
    try:
        unpacked: bytes = stream.read(most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise dukascopy.damaged(
            f"the {codec} file cannot be unpacked", file.label, got=str(error)
        ) from error
    _require_size(file, len(unpacked), len(data))
    return unpacked


def _require_size(file: Origin, size: int, packed: int) -> None:
    if size > min(MAX_UNPACKED, max(RATIO_FROM, MAX_RATIO * packed)):
        expected = f"at most {MAX_UNPACKED} bytes and {MAX_RATIO} times its packed size"
        got, fix = (
            f"{size} bytes or more from {packed}",
            "unpack it yourself if you know where it comes from",
        )
        raise file.error("the file unpacks to too much", expected=expected, got=got, fix=fix)


def _read_text(file: Origin, data: bytes, options: Options) -> RawTable:
    """Find delimiter, header and layout of a table, and read its rows."""
    if data.lstrip()[:1] in (b"[", b"{"):
        file, data = replace(file, unit="row"), _json_to_csv(file, data)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    if options.whole_lines:
        data = data[: data.rfind(b"\n") + 1]
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    lines = _content_lines(file, data, _find_header(data, options))
    head, position = next(lines)
    delimiter = _delimiter_of(head)
    if "\0" in head or delimiter not in head:
        expected = (
            "a .bi5, Parquet or packed file, JSON, or text with a tab, ';', '|' or ',' "
            "between columns"
        )
        raise file.error(
            "not a file of bars",
            expected=expected,
            got=repr(head[:80]),
            fix="save the prices as CSV",
        )
    names, symbol, line = _split_cells(head, delimiter), None, head
    if has_header := not names[0][:1].isdigit():
        line, position = next(lines)
        tickers = _split_cells(line, delimiter)
        if tickers[0] == "Ticker" and len(tickers) == len(names):
            # yfinance has the tickers in a second header line, and the name of the stamps alone in
            # a third.
            names, symbol = _select_ticker(file, names, tickers, options.symbol)
            names[0] = _split_cells(next(lines)[0], delimiter)[0]
            line, position = next(lines)
        # Repeated names get the number of their column added, to be unique.
        taken = (ROW, *names)
        names = [f"{name} ({n})" if name in taken[:n] else name for n, name in enumerate(names, 1)]
    else:
        names = [str(n) for n in range(1, len(names) + 1)]
    first_line, cells = 1 + data.count(b"\n", 0, position), _split_cells(line, delimiter)
    layout, roles = _recognise(
        file, names, cells, delimiter, options, None if has_header else first_line
    )
    frame = _read_rows(file, names, delimiter, data[position:], first_line)
    tool, fixed_point = (layout.tool, layout.fixed_point) if layout else ("table", None)
    return RawTable(
        file=file, format=tool, frame=frame, roles=roles, symbol=symbol, fixed_point=fixed_point
    )


def _find_header(data: bytes, options: Options) -> int:
    """Where the line that names the columns begins: some brokers write an account or a title above
    it.
    """
    position, wanted = 0, {*options.columns.values()} if options.columns else set()
    for line in data[:_LONGEST_LINE].split(b"\n")[:_MOST_LINES_ABOVE]:
        text = line.decode(errors="replace")
        names = _split_cells(text, _delimiter_of(text))
        if wanted <= {*names} if wanted else table.prices_in(table.guess_roles(names)):
            return position
        position += len(line) + 1
    return 0


def _delimiter_of(line: str) -> str:
    return max(("\t", ";", "|", ","), key=line.count)


def _json_to_csv(file: Origin, data: bytes) -> bytes:
    """A list of lists, or of objects with the same keys, as CSV."""
    try:
        rows = json.loads(data)
        lines = [[*rows[0]]] if isinstance(rows[0], dict) else []
        lines += [[row[name] for name in lines[0]] if lines else [*row] for row in rows]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError) as error:
        expected = "a list of candles, each a list or an object"
        raise file.error(
            "the JSON is not a table of bars", expected=expected, got=repr(data[:80])[1:]
        ) from error
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _recognise(
    file: Origin,
    names: list[str],
    first: list[str],
    delimiter: str,
    options: Options,
    unnamed_at: int | None,
) -> tuple[Layout | None, table.Roles]:
    """The tool's layout and the roles of the columns; columns without names (from a line on) are
    never guessed.
    """
    format, has_header = options.format, unnamed_at is None
    header, row = "\n".join(names), delimiter + "\n".join(first)
    for layout in () if options.columns or format == "table" else LAYOUTS:
        # With --format dukascopy any header will do.
        fits = (
            layout.header is None
            or format == "dukascopy"
            or re.fullmatch(layout.header, header, re.DOTALL)
        )
        matches = (layout.header is not None) == has_header and re.fullmatch(
            layout.row, row, re.DOTALL
        )
        if format in ("auto", layout.tool) and fits and matches:
            roles = dict(zip(layout.columns, names, strict=False)) or table.guess_roles(names)
            if table.prices_in(roles) == PRICE_COLUMNS or (
                table.prices_in(roles) and layout.tool == "dukascopy"
            ):
                return layout, roles
    shown = delimiter.join(names if has_header else first)[:120]
    if format not in ("auto", "table"):
        raise file.error(
            f"not a {format} file", expected=f"a table as {format} has it", got=shown, fix=_AUTO
        )
    if not has_header and not options.columns:
        expected = "a header line, or a file of " + ", ".join(FORMATS[1:-1])
        fix = (
            "say which is which by number: `vaiom data import --column Datetime=1 --column "
            "Open=2 ...`"
        )
        raise file.error(
            "the columns have no names", row=unnamed_at, expected=expected, got=shown, fix=fix
        )
    return None, table.assign_roles(names, options.columns, file)


def _select_ticker(
    file: Origin, names: list[str], tickers: list[str], wanted: str | None
) -> tuple[list[str], str]:
    """Column names, with the ticker added to those of all but one ticker, and its symbol."""
    symbols = {ticker: find_pair(ticker) or ticker for ticker in tickers[1:]}
    chosen = [
        ticker
        for ticker, symbol in symbols.items()
        if len(symbols) == 1 or wanted in (ticker, symbol)
    ]
    if not chosen:
        raise table.several_symbols(file, sorted(symbols.values()), wanted)
    columns = zip(names, tickers, strict=True)
    return [name if of == chosen[0] else f"{name} of {of}" for name, of in columns], symbols[
        chosen[0]
    ]


def _content_lines(file: Origin, data: bytes, position: int) -> Iterator[tuple[str, int]]:
    """The lines that are neither blank nor comments, and their byte positions; raises an error
    after the last.
    """
    while True:
        match = _BLANK_OR_COMMENT.match(data, position)
        position = match.end() if match else position
        if position == len(data):
            raise file.error(
                "the file holds no rows", expected="a table of bars", fix="leave the file out"
            )
        line = data[position : position + _LONGEST_LINE].split(b"\n", 1)[0]
        yield line.decode(errors="replace").rstrip("\r"), position
        position = (data.find(b"\n", position) + 1) or len(data)


def _split_cells(line: str, delimiter: str) -> list[str]:
    # The csv module refuses a carriage return inside a line; it is read as a space.
    plain = line[:_LONGEST_LINE].replace("\r", " ")
    return [cell.strip() for cell in next(csv.reader([plain], delimiter=delimiter), [])]


def _read_rows(
    file: Origin, names: list[str], delimiter: str, body: bytes, first_line: int
) -> pl.DataFrame:
    """All rows as stripped texts, empty cells null, with their line in the file; blank lines are
    left out.
    """
    # A header of our own fixes the number of columns: the first row may be cut, and names may need
    # quotes.
    numbers = [str(n) for n in range(len(names))]
    try:
        cells = pl.read_csv(
            delimiter.join(numbers).encode() + b"\n" + body,
            separator=delimiter,
            infer_schema=False,
            encoding="utf8-lossy",
            row_index_name=ROW,
            row_index_offset=first_line,
        )
    except pl.exceptions.PolarsError as error:
        for number, line in enumerate(body.decode(errors="replace").split("\n"), first_line):
            if line.strip() and len(_split_cells(line, delimiter)) > len(names):
                details = {
                    "expected": f"{len(names)} fields",
                    "got": line[:200],
                    "fix": "correct or remove the line",
                }
                raise file.error("a line has too many fields", row=number, **details) from error
        raise file.error("the text is not a table", got=str(error).splitlines()[0]) from error
    texts = pl.col(names).str.strip_chars()
    stripped = cells.rename(dict(zip(numbers, names, strict=True))).with_columns(
        pl.when(texts != "").then(texts)
    )
    return stripped.filter(~pl.all_horizontal(pl.col(names).is_null()))
