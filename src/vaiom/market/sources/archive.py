"""The one table of bars inside a zip file, read as a bounded stream and never written to disk.

Enters: the bytes of a zip file. Leaves: the bytes of its only `.csv` (or, without one, its only `.txt`) member.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import PurePosixPath

from vaiom.errors import DataError
from vaiom.files import BAD_ZIPS
from vaiom.market.sources.piece import Origin, damaged

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
MAX_UNPACKED = 4 << 30
# Price tables pack five to twenty times; a bomb packs a thousand times and more.
MAX_RATIO = 200
# Below this size the ratio says nothing: a short file of equal lines packs very well.
RATIO_FROM = 1 << 20

_SAFE_ONLY = "do not trust this archive; unpack it yourself if you know where it comes from"


def open_table(file: Origin, data: bytes) -> tuple[Origin, bytes]:
    """The member of a zip file that holds the bars, and its bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                _require_safe(info, file)
            member = _only_table(archive.infolist(), file)
            with archive.open(member) as stream:
                table = stream.read(member.file_size)
    except BAD_ZIPS as error:
        raise damaged("the zip file cannot be unpacked", file.label, got=str(error)) from error
    return replace(file, member=member.filename), table


def _require_safe(info: zipfile.ZipInfo, file: Origin) -> None:
    where = f"{file.label}!{info.filename}"
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
    for suffix in (".csv", ".txt"):
        tables = [info for info in infos if PurePosixPath(info.filename).suffix.lower() == suffix]
        if len(tables) == 1:
            return tables[0]
        if tables:
            break
    raise DataError(
        "a zip file must hold exactly one table",
        where=file.label,
        expected="one .csv member, or one .txt member",
        got=", ".join(info.filename for info in infos[:8]) or "an empty archive",
        fix="unpack it and import the files you want",
    )
