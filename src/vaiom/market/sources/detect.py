"""Which tool wrote a file, told by its content and not by its name.

Enters: the bytes of a file and the format that the user names, or `auto`. Leaves: its `Piece`.
"""

from __future__ import annotations

from vaiom.errors import ConfigError, DataError
from vaiom.market.sources import archive, dukascopy, dukascopy_csv, histdata, metatrader, table
from vaiom.market.sources.columns import Roles, bars_from
from vaiom.market.sources.piece import Options, Origin, Piece
from vaiom.market.sources.text import TextTable, open_text

FORMATS = ("auto", "dukascopy", "histdata", "metatrader", "table")

_SIGNATURES = {
    "metatrader": metatrader.roles_of,
    "histdata": histdata.roles_of,
    "dukascopy": dukascopy_csv.roles_of,
}
_NAMED = {**_SIGNATURES, "dukascopy": dukascopy_csv.named_roles_of}
_EXPECTED = {
    "metatrader": metatrader.EXPECTED,
    "histdata": histdata.EXPECTED,
    "dukascopy": dukascopy_csv.EXPECTED,
}


def read_any(file: Origin, data: bytes, format: str, options: Options) -> Piece:
    """The bars of one file of any known kind."""
    if data.startswith(archive.MAGIC):
        file, data = archive.open_table(file, data)
    is_empty_bi5 = not data and file.path.suffix.lower() == ".bi5"
    if data.startswith(dukascopy.MAGIC) or is_empty_bi5:
        _require(format, "dukascopy", file)
        return dukascopy.read(file, data, options)
    if options.price_scale is not None:
        raise ConfigError("a price scale is for .bi5 files only", where=file.label)
    if data.startswith(table.PARQUET_MAGIC):
        _require(format, "table", file)
        return table.read_parquet(file, data, options)
    text = open_text(file, data)
    found, roles = _recognise(text, format, options)
    return bars_from(text.rows(), roles, text.file, found, options)


def _recognise(text: TextTable, format: str, options: Options) -> tuple[str, Roles]:
    if options.columns or format == "table":
        return "table", table.roles_of(text, options.columns)
    if format == "auto":
        for name, roles_of in _SIGNATURES.items():
            if roles := roles_of(text):
                return name, roles
        return "table", table.roles_of(text, None)
    if roles := _NAMED[format](text):
        return format, roles
    raise DataError(
        f"not a {format} file",
        where=text.file.label,
        expected=_EXPECTED[format],
        got=text.delimiter.join(text.names if text.has_header else text.sample)[:120],
        fix="use --format auto",
    )


def _require(format: str, actual: str, file: Origin) -> None:
    if format not in ("auto", actual):
        raise DataError(f"not a {format} file", where=file.label, got=f"a {actual} file", fix="use --format auto")
