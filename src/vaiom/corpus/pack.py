"""Pack a corpus folder into one zip file and unpack it, with every byte checked on both ends."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.corpus.manifest import (
    MANIFEST_NAME,
    STATE_NAME,
    TOKENIZER_NAME,
    keep_ledger,
    read_manifest,
)
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import DataError
from vaiom.files import BAD_ZIPS, atomic_file, staged_folder

_MOST_TEXT = 64 << 20  # bytes of a JSON file
_MOST_HEADER = 1024  # bytes of an array's header
_MAX_RATIO = 1000  # of unpacked to packed bytes, more than deflate makes of any column
_CHUNK = 1 << 20


def pack(path: Path, file: Path) -> int:
    """Write a corpus folder into one file; returns the file's size in bytes."""
    if file.is_dir():
        raise DataError(
            "this is a folder, not a file",
            where=file,
            fix=f"name a file in it: {file / 'corpus.zip'}",
        )
    manifest = dict(open_corpus(path).manifest)
    with atomic_file(file) as staged, zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _declared_sizes(manifest):
            # A fixed date makes the packed bytes depend on the corpus alone.
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            packed = archive.open(info, "w", force_zip64=True)
            with (path / name).open("rb") as source, packed as target:
                shutil.copyfileobj(source, target, _CHUNK)
    return file.stat().st_size


def unpack(file: Path, path: Path, *, overwrite: bool = False) -> Corpus:
    """Unpack a corpus into a folder; nothing is left behind if any byte differs."""
    try:
        archive = zipfile.ZipFile(file)
    except FileNotFoundError as error:
        raise DataError(
            "no such file", where=file, expected="a file made by `vaiom corpus pack`"
        ) from error
    except BAD_ZIPS as error:
        raise DataError(
            "not a packed corpus", where=file, got=str(error), fix="pack it again"
        ) from error
    with archive, staged_folder(path, overwrite=overwrite) as staged:
        try:
            manifest = archive.getinfo(MANIFEST_NAME)
            _extract(archive, [manifest], {MANIFEST_NAME: _MOST_TEXT}, staged)
            _extract(archive, archive.infolist(), _declared_sizes(read_manifest(staged)), staged)
        except BAD_ZIPS as error:
            raise DataError(
                "the packed corpus is damaged", where=file, got=str(error), fix="pack it again"
            ) from error
        open_corpus(staged)
        keep_ledger(path, staged)
    return open_corpus(path, verify=False)


def _declared_sizes(manifest: dict[str, Any]) -> dict[str, int]:
    """The files of a corpus, and the most bytes that each may have."""
    folder = manifest["folder"]
    sizes = dict.fromkeys((MANIFEST_NAME, TOKENIZER_NAME, f"{folder}/{STATE_NAME}"), _MOST_TEXT)
    for name, entry in manifest["arrays"].items():
        num_bytes = manifest["rows"] * np.dtype(entry["dtype"]).itemsize
        sizes[f"{folder}/{name}.npy"] = num_bytes + _MOST_HEADER
    return sizes


def _extract(
    archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], sizes: dict[str, int], folder: Path
) -> None:
    """Extract files of these names alone, each once and within its size, so that no path can leave
    the folder.
    """
    for info in infos:
        where = f"{archive.filename}, {info.filename}"
        most = sizes.pop(info.filename, None)
        if most is None:
            raise DataError("the file holds a name that no corpus has, or one twice", where=where)
        if info.file_size > min(most, _MAX_RATIO * max(info.compress_size, 1024)):
            raise DataError(
                "the file would unpack to more than its manifest declares",
                where=where,
                got=info.file_size,
            )
    for info in infos:
        target = folder / info.filename
        target.parent.mkdir(exist_ok=True)
        with archive.open(info) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
