"""Which kind of file it is, told by its content and not by its name; zip files are read, never extracted.

Enters: the bytes of a file and the format that the user names, or `auto`. Leaves: its `RawTable`.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import PurePosixPath

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import BAD_ZIPS
from vaiom.market.folder import PRICE_COLUMNS, parquet_frame, readable_parquet
from vaiom.market.formats import dukascopy
from vaiom.market.formats.table import ROW, Options, Origin, RawTable, assign_roles
from vaiom.market.formats.text import read_text

FORMATS = ("auto", "dukascopy", "histdata", "metatrader", "table")
MAX_UNPACKED = 4 << 30
# Price tables pack five to twenty times; a bomb packs a thousand times and more.
MAX_RATIO = 200
# Below this size the ratio says nothing: a short file of equal lines packs very well.
RATIO_FROM = 1 << 20

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_PARQUET_MAGIC = b"PAR1"
_SAFE_ONLY = "do not trust this archive; unpack it yourself if you know where it comes from"


def read_table(file: Origin, data: bytes, format: str, options: Options) -> RawTable:
    """The rows of one file of any known kind."""
    if data.startswith(_ZIP_MAGIC):
        file, data = _open_zip(file, data)
    is_empty_bi5 = not data and file.path.suffix.lower() == ".bi5"
    is_bi5 = data.startswith(dukascopy.MAGIC) or is_empty_bi5
    is_parquet = data.startswith(_PARQUET_MAGIC)
    actual = "dukascopy" if is_bi5 else "table"
    if options.price_scale is not None and not is_bi5:
        raise ConfigError("a price scale is for .bi5 files only", where=file.label)
    if (is_bi5 or is_parquet) and format not in ("auto", actual):
        raise DataError(f"not a {format} file", where=file.label, got=f"a {actual} file", fix="use --format auto")
    if is_bi5:
        return dukascopy.read_bi5(file, data, options)
    return _read_parquet(file, data, options) if is_parquet else read_text(file, data, format, options)


def _read_parquet(file: Origin, data: bytes, options: Options) -> RawTable:
    file = replace(file, unit="row")
    with readable_parquet(file.label):
        frame = parquet_frame(io.BytesIO(data))
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
            member = _only_table(archive.infolist(), file)
            with archive.open(member) as stream:
                return replace(file, member=member.filename), stream.read(member.file_size)
    except BAD_ZIPS as error:
        raise dukascopy.damaged("the zip file cannot be unpacked", file.label, got=str(error)) from error


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


def _only_table(infos: list[zipfile.ZipInfo], file: Origin) -> zipfile.ZipInfo:
    by_suffix = {
        suffix: [info for info in infos if PurePosixPath(info.filename).suffix.lower() == suffix]
        for suffix in (".csv", ".txt")
    }
    tables = by_suffix[".csv"] or by_suffix[".txt"]
    if len(tables) == 1:
        return tables[0]
    raise DataError(
        "a zip file must hold exactly one table",
        where=file.label,
        expected="one .csv member, or one .txt member",
        got=", ".join(info.filename for info in infos[:8]) or "an empty archive",
        fix="unpack it and import the files you want",
    )
