"""Files that are whole or absent: atomic writes, staged folders, checksums. Used by every room."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vaiom.errors import DataError

STAGING_PREFIX = ".staging-"


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def ensure_folder(path: Path) -> Path:
    """Create a folder, or say why it cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unwritable(path, None)
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it there when the block ends well, remove it otherwise."""
    ensure_folder(path.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=STAGING_PREFIX, suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    os.close(handle)
    staged = Path(name)
    try:
        yield staged
        _flush(staged)
        # mkstemp makes private files; what we publish is as readable as the user's other files.
        staged.chmod(0o666 & ~_umask())
        staged.replace(path)
        _flush(path.parent)
    finally:
        staged.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_file(path) as staged:
        staged.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people: indented, keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError("a file is missing", where=path, fix="check the path, or build the folder again") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(
            "not readable as JSON", where=path, got=str(error), fix="the file is damaged: build the folder again"
        ) from error


@contextmanager
def staged_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside `path` that becomes `path` when the block ends well and vanishes otherwise."""
    if path.exists() and not overwrite:
        raise DataError("the output folder exists already", where=path, fix="choose another, or pass --overwrite")
    if path.exists() and not _is_ours(path):
        raise DataError(
            "only what vaiom wrote is overwritten",
            where=path,
            expected="an empty folder, or one whose manifest.json lists symbols",
            fix="choose another folder, or remove this one yourself",
        )
    ensure_folder(path.parent)
    try:
        staged = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=path.parent))
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        yield staged
        staged.chmod(0o777 & ~_umask())
        if path.exists():
            retired = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=path.parent)) / "old"
            path.rename(retired)
            staged.rename(path)
            shutil.rmtree(retired.parent)
        else:
            staged.rename(path)
        _flush(path.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """A bar folder or a corpus, which both have a manifest that lists symbols, or an empty folder."""
    if not path.is_dir():
        return False
    manifest = path / "manifest.json"
    known = read_json(manifest) if manifest.is_file() else {}
    return "symbols" in known or not any(path.iterdir())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: Path, error: OSError | None) -> DataError:
    return DataError(
        "cannot write here",
        where=path,
        got=error.strerror if error else "no write permission",
        fix="choose a folder that you may write to",
    )
