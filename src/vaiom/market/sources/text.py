"""Delimited text of any tool, taken apart without believing any of it: delimiter, header or none, cells as text.

Enters: the bytes of a text file. Leaves: a `TextTable` that knows its first cells, and its rows as texts, each with the
line of the file it came from.
"""

from __future__ import annotations

import codecs
import csv
from dataclasses import dataclass

import polars as pl

from vaiom.errors import DataError
from vaiom.market.sources.piece import ROW, Origin

_DELIMITERS = ("\t", ";", "|", ",")
_LONGEST_LINE = 1 << 16


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

    def rows(self) -> pl.DataFrame:
        """All rows as stripped texts, empty cells null, with their line in the file; blank lines are left out."""
        # A header of our own fixes the number of columns: the first row may be cut, and names may need quotes.
        places = [str(place) for place in range(len(self.names))]
        header = self.delimiter.join(places).encode() + b"\n"
        try:
            cells = pl.read_csv(
                header + self.body,
                separator=self.delimiter,
                infer_schema=False,
                encoding="utf8-lossy",
                row_index_name=ROW,
                row_index_offset=self.first_line,
            )
        except pl.exceptions.PolarsError as error:
            raise self._misshapen(error) from error
        cells = cells.rename(dict(zip(places, self.names, strict=True)))
        texts = pl.col(self.names).str.strip_chars()
        stripped = cells.with_columns(pl.when(texts != "").then(texts))
        return stripped.filter(~pl.all_horizontal(pl.col(self.names).is_null()))

    def _misshapen(self, error: Exception) -> DataError:
        lines = self.body.decode(errors="replace").split("\n")
        for number, line in enumerate(lines, self.first_line):
            if line.strip() and len(_cells(line, self.delimiter)) > len(self.names):
                return DataError(
                    "a line has too many fields",
                    where=self.file.at(number),
                    expected=f"{len(self.names)} fields",
                    got=line[:200],
                    fix="correct or remove the line",
                )
        return DataError("the text is not a table", where=self.file.label, got=str(error).splitlines()[0])


def open_text(file: Origin, data: bytes) -> TextTable:
    """Find delimiter and header; leading blank lines and `#` comments are passed over."""
    data = _as_utf8(data)
    position, line = _first_row(data)
    if position == len(data):
        raise _empty(file)
    head = _line_at(data, position)
    delimiter = max(_DELIMITERS, key=head.count)
    if "\0" in head or delimiter not in head:
        raise DataError(
            "not a file of bars",
            where=file.label,
            expected="a .bi5, Parquet or zip file, or text with a tab, ';', '|' or ',' between columns",
            got=repr(head[:80]),
        )
    cells = _cells(head, delimiter)
    has_header = not cells[0][:1].isdigit()
    if has_header:
        names = _distinct(cells)
        position, line = _first_row(data, _next_line(data, position), line + 1)
        if position == len(data):
            raise _empty(file)
    else:
        names = tuple(str(place) for place in range(1, len(cells) + 1))
    return TextTable(
        file=file,
        delimiter=delimiter,
        has_header=has_header,
        names=names,
        sample=_cells(_line_at(data, position), delimiter),
        body=data[position:],
        first_line=line,
    )


def _as_utf8(data: bytes) -> bytes:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def _first_row(data: bytes, position: int = 0, line: int = 1) -> tuple[int, int]:
    """Byte position and line number of the next line that is neither blank nor a comment; the end where none is."""
    while position < len(data):
        text = _line_at(data, position).lstrip()
        if text and not text.startswith("#"):
            break
        position, line = _next_line(data, position), line + 1
    return position, line


def _next_line(data: bytes, position: int) -> int:
    return (data.find(b"\n", position) + 1) or len(data)


def _line_at(data: bytes, position: int) -> str:
    return data[position : position + _LONGEST_LINE].split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")


def _cells(line: str, delimiter: str) -> tuple[str, ...]:
    # A carriage return inside a line is a space to us; the csv module would refuse it.
    plain = line[:_LONGEST_LINE].replace("\r", " ")
    return tuple(cell.strip() for cell in next(csv.reader([plain], delimiter=delimiter), []))


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """A column name that was there before gets its place added, so that each can be told."""
    taken = (ROW, *names)
    return tuple(f"{name} ({at + 1})" if name in taken[: at + 1] else name for at, name in enumerate(names))


def _empty(file: Origin) -> DataError:
    return DataError("the file holds no rows", where=file.label, expected="a table of bars", fix="leave the file out")
