"""Compressed files: the one table of a zip file, or the content of a gzip or zstd file.

What would unpack to far more than price tables do is refused before memory is used for it.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from dataclasses import replace
from typing import Any

from vaiom.errors import require_installed
from vaiom.files import BAD_ZIPS
from vaiom.market.formats.source import SourceFile, damaged

MAX_UNPACKED = 4 << 30
MAX_RATIO = 200
"""Price tables pack five to twenty times; a bomb packs a thousand times and more."""
RATIO_FROM = 1 << 20
"""Below this size the ratio says nothing: a short file of equal lines packs very well."""

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def unpack(file: SourceFile, data: bytes) -> tuple[SourceFile, bytes]:
    """The content of a compressed file and where it came from; other data as they are."""
    if data.startswith(_ZIP):
        return _open_zip(file, data)
    for magic, codec in _CODECS.items():
        if data.startswith(magic):
            return file, _decompress(file, data, codec)
    return file, data


def _open_zip(file: SourceFile, data: bytes) -> tuple[SourceFile, bytes]:
    """The only `.csv` member of a zip file, or without one its only `.txt` member."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            member = _only_table(file, archive)
            file = replace(file, member=member.filename)
            _require_size(file, member.file_size, member.compress_size)
            return file, archive.read(member)
    except BAD_ZIPS as error:
        raise damaged("the zip file cannot be unpacked", file.label, got=str(error)) from error


def _only_table(file: SourceFile, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The one member to read: a `.csv`, or if there is none, a `.txt`."""
    names = archive.namelist()
    for ending in (".csv", ".txt"):
        tables = [info for info in archive.infolist() if info.filename.lower().endswith(ending)]
        if len(tables) == 1:
            return tables[0]
        if tables:
            break
    is_sheet = "xl/workbook.xml" in names
    raise file.error(
        "a zip file must hold exactly one table",
        expected="one .csv member, or one .txt member",
        got=", ".join(names[:8]) or "an empty archive",
        fix="save the sheet as CSV" if is_sheet else "unpack it and import the files you want",
    )


def _decompress(file: SourceFile, data: bytes, codec: str) -> bytes:
    """The content of a gzip or zstd file."""
    most = _max_size(len(data))
    stream: Any = gzip.GzipFile(fileobj=io.BytesIO(data))
    if codec == "zstd":
        require_installed("pyarrow")
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.BufferReader(data), codec)
    try:
        unpacked: bytes = stream.read(most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise damaged(f"the {codec} file cannot be unpacked", file.label, got=str(error)) from error
    _require_size(file, len(unpacked), len(data))
    return unpacked


def _max_size(num_packed: int) -> int:
    """How many bytes a file may unpack to."""
    return min(MAX_UNPACKED, max(RATIO_FROM, MAX_RATIO * num_packed))


def _require_size(file: SourceFile, num_bytes: int, num_packed: int) -> None:
    """Refuse a file that unpacks to more than price tables do."""
    if num_bytes > _max_size(num_packed):
        raise file.error(
            "the file unpacks to too much",
            expected=f"at most {MAX_UNPACKED} bytes and {MAX_RATIO} times its packed size",
            got=f"{num_bytes} bytes or more from {num_packed}",
            fix="unpack it yourself if you know where it comes from",
        )
