"""Tables in text: delimiter, header and tool are found by content, then all rows are read.

Enters: bytes of a text in any common encoding, or JSON. Leaves: rows as texts, with the roles of
their columns. A tool is recognised by how its header and first row look; other tables need a header
with usual names, or a column map. Columns without names are never guessed.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from vaiom.market.folder import NUMBER_COLUMNS, PRICE_COLUMNS
from vaiom.market.formats.columns import assign_roles, guess_roles, prices_in
from vaiom.market.formats.source import ROW, Options, RawTable, Roles, SourceFile, several_symbols
from vaiom.market.symbols import find_pair

DELIMITERS = ("\t", ";", "|", ",")
MAX_LINE_BYTES = 1 << 16
MAX_LINES_ABOVE = 20
"""Some brokers write an account or a title above the line that names the columns."""

_BLANK_OR_COMMENT = re.compile(rb"(?:[^\S\n]*+(?:#[^\n]*+)?\n)*+(?:[^\S\n]*+(?:#[^\n]*+)?\Z)?")


@dataclass(frozen=True)
class Layout:
    """How a tool's table begins, as patterns of its header and of its first row.

    Cells are joined by newlines, and a row begins with the delimiter. Without a header, `columns`
    names the roles of the columns.
    """

    tool: str
    header: str | None
    row: str
    columns: tuple[str, ...] = ()
    fixed_point: float | None = None

    def fits(self, names: Sequence[str], row: str, *, has_header: bool, any_header: bool) -> bool:
        """Whether a table begins like this; with `any_header`, its names may be others."""
        if (self.header is not None) != has_header:
            return False
        if not re.fullmatch(self.row, row, re.DOTALL):
            return False
        if self.header is None or any_header:
            return True
        return re.fullmatch(self.header, "\n".join(names), re.DOTALL) is not None


_BARS = ("Datetime", *NUMBER_COLUMNS)
_DATE = r"\d{4}\.\d{2}\.\d{2}"
_TIME = r"\d{2}:\d{2}(:\d{2})?"
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
"""Tables that are recognised: a new one is one more line here."""
TOOLS = tuple(sorted({layout.tool for layout in LAYOUTS}))


@dataclass(frozen=True, kw_only=True)
class _Head:
    """The beginning of a table: its names, delimiter and first row."""

    names: list[str]
    """Of the columns, unique; their numbers from 1 if the table has no names."""
    has_header: bool
    delimiter: str
    first_row: list[str]
    position: int
    """The byte at which the rows begin."""
    symbol: str | None = None


def read_text(file: SourceFile, data: bytes, options: Options) -> RawTable:
    """The rows of a text table, or of JSON, and the roles of its columns."""
    if data.lstrip()[:1] in (b"[", b"{"):
        file = replace(file, unit="row")
        data = _json_to_csv(file, data)
    data = _plain_lines(data)
    if options.whole_lines:
        data = data[: data.rfind(b"\n") + 1]
    head = _read_head(file, data, options)
    first_line = 1 + data.count(b"\n", 0, head.position)
    layout, roles = _recognise(file, head, options, first_line)
    body = data[head.position :]
    return RawTable(
        file=file,
        format=layout.tool if layout else "table",
        frame=_read_rows(file, head.names, head.delimiter, body, first_line),
        roles=roles,
        symbol=head.symbol,
        fixed_point=layout.fixed_point if layout else None,
    )


def _plain_lines(data: bytes) -> bytes:
    """UTF-8 without a byte-order mark; lines end with a newline."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    return data if b"\n" in data else data.replace(b"\r", b"\n")


def _read_head(file: SourceFile, data: bytes, options: Options) -> _Head:
    """The names of the columns, if there are any, the delimiter and the first row.

    A first line that begins with a digit is a row, and the columns have no names.
    """
    lines = _content_lines(file, data, _find_header(data, options))
    line, position = next(lines)
    delimiter = _delimiter_of(line)
    if "\0" in line or delimiter not in line:
        raise file.error(
            "not a file of bars",
            expected="a .bi5, Parquet or packed file, JSON, or text with a tab, ';', '|' or ',' "
            "between columns",
            got=repr(line[:80]),
            fix="save the prices as CSV",
        )
    names = _split_cells(line, delimiter)
    if names[0][:1].isdigit():
        return _Head(
            names=[str(number) for number in range(1, len(names) + 1)],
            has_header=False,
            delimiter=delimiter,
            first_row=names,
            position=position,
        )
    symbol = None
    line, position = next(lines)
    tickers = _split_cells(line, delimiter)
    if tickers[0] == "Ticker" and len(tickers) == len(names):
        # yfinance has the tickers in a second header line, and the name of the stamps alone in a
        # third.
        names, symbol = _select_ticker(file, names, tickers, options.symbol)
        names[0] = _split_cells(next(lines)[0], delimiter)[0]
        line, position = next(lines)
    return _Head(
        names=_made_unique(names),
        has_header=True,
        delimiter=delimiter,
        first_row=_split_cells(line, delimiter),
        position=position,
        symbol=symbol,
    )


def _made_unique(names: list[str]) -> list[str]:
    """Names of which repeated ones get the number of their column."""
    taken = (ROW, *names)
    return [
        f"{name} ({number})" if name in taken[:number] else name
        for number, name in enumerate(names, 1)
    ]


def _find_header(data: bytes, options: Options) -> int:
    """The byte at which the line begins that names the columns; 0 without one.

    With a column map it is the line that has all names of the map, otherwise one with the usual
    names of prices and stamps.
    """
    wanted = set((options.columns or {}).values())
    position = 0
    for line in data[:MAX_LINE_BYTES].split(b"\n")[:MAX_LINES_ABOVE]:
        text = line.decode(errors="replace")
        names = _split_cells(text, _delimiter_of(text))
        if wanted <= {*names} if wanted else prices_in(guess_roles(names)):
            return position
        position += len(line) + 1
    return 0


def _delimiter_of(line: str) -> str:
    """The delimiter that is most frequent in a line."""
    return max(DELIMITERS, key=line.count)


def _json_to_csv(file: SourceFile, data: bytes) -> bytes:
    """A list of lists, or of objects with the same keys, as CSV."""
    try:
        rows = json.loads(data)
        if isinstance(rows[0], dict):
            names = list(rows[0])
            lines = [names, *([row[name] for name in names] for row in rows)]
        else:
            lines = [list(row) for row in rows]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError) as error:
        expected = "a list of candles, each a list or an object"
        got = repr(data[:80])[1:]
        problem = "the JSON is not a table of bars"
        raise file.error(problem, expected=expected, got=got) from error
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _recognise(
    file: SourceFile, head: _Head, options: Options, first_line: int
) -> tuple[Layout | None, Roles]:
    """The tool's layout and the roles of the columns; columns without names are never guessed.

    With `--format`, only that tool's layouts are tried; with a column map, none.
    """
    format = options.format
    row = head.delimiter + "\n".join(head.first_row)
    if not options.columns and format != "table":
        any_header = format == "dukascopy"
        for layout in LAYOUTS:
            if format not in ("auto", layout.tool):
                continue
            if layout.fits(head.names, row, has_header=head.has_header, any_header=any_header):
                roles = dict(zip(layout.columns, head.names, strict=False))
                roles = roles or guess_roles(head.names)
                prices = prices_in(roles)
                has_ticks = prices and layout.tool == "dukascopy"
                if prices == PRICE_COLUMNS or has_ticks:
                    return layout, roles
    cells = head.names if head.has_header else head.first_row
    shown = head.delimiter.join(cells)[:120]
    if format not in ("auto", "table"):
        raise file.error(
            f"not a {format} file",
            expected=f"a table as {format} has it",
            got=shown,
            fix="use --format auto",
        )
    if not head.has_header and not options.columns:
        raise file.error(
            "the columns have no names",
            row=first_line,
            expected="a header line, or a file of " + ", ".join(TOOLS),
            got=shown,
            fix="say which is which by number: `vaiom data import --column Datetime=1 --column "
            "Open=2 ...`",
        )
    return None, assign_roles(head.names, options.columns, file)


def _select_ticker(
    file: SourceFile, names: list[str], tickers: list[str], wanted: str | None
) -> tuple[list[str], str]:
    """Column names of one ticker of yfinance, and its symbol.

    The names of other tickers' columns get their ticker added, so that they have no role.
    """
    symbols = {ticker: find_pair(ticker) or ticker for ticker in tickers[1:]}
    chosen = list(symbols)
    if len(symbols) > 1:
        chosen = [ticker for ticker, symbol in symbols.items() if wanted in (ticker, symbol)]
    if not chosen:
        raise several_symbols(file, sorted(symbols.values()), wanted)
    own = chosen[0]
    columns = zip(names, tickers, strict=True)
    marked = [name if ticker == own else f"{name} of {ticker}" for name, ticker in columns]
    return marked, symbols[own]


def _content_lines(file: SourceFile, data: bytes, position: int) -> Iterator[tuple[str, int]]:
    """The lines that are neither blank nor comments, and their byte positions.

    There is an error after the last.
    """
    while True:
        match = _BLANK_OR_COMMENT.match(data, position)
        position = match.end() if match else position
        if position == len(data):
            expected = "a table of bars"
            raise file.error("the file holds no rows", expected=expected, fix="leave the file out")
        line = data[position : position + MAX_LINE_BYTES].split(b"\n", 1)[0]
        yield line.decode(errors="replace").rstrip("\r"), position
        position = (data.find(b"\n", position) + 1) or len(data)


def _split_cells(line: str, delimiter: str) -> list[str]:
    # The csv module refuses a carriage return inside a line; it is read as a space.
    """The cells of a line without surrounding spaces; quotes are understood."""
    plain = line[:MAX_LINE_BYTES].replace("\r", " ")
    return [cell.strip() for cell in next(csv.reader([plain], delimiter=delimiter), [])]


def _read_rows(
    file: SourceFile, names: list[str], delimiter: str, body: bytes, first_line: int
) -> pl.DataFrame:
    """All rows but blank ones as stripped texts, empty cells null, with their line in the file."""
    # A header of our own fixes the number of columns: the first row may be cut, and names may need
    # quotes.
    numbers = [str(number) for number in range(len(names))]
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
                raise file.error(
                    "a line has too many fields",
                    row=number,
                    expected=f"{len(names)} fields",
                    got=line[:200],
                    fix="correct or remove the line",
                ) from error
        raise file.error("the text is not a table", got=str(error).splitlines()[0]) from error
    texts = pl.col(names).str.strip_chars()
    named = cells.rename(dict(zip(numbers, names, strict=True)))
    stripped = named.with_columns(pl.when(texts != "").then(texts))
    return stripped.filter(~pl.all_horizontal(pl.col(names).is_null()))
