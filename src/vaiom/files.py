"""Files that are whole or absent: atomic writes, staged folders, checksums. Used by every room."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import lzma
import math
import os
import re
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaiom.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

STAGING_PREFIX = ".vaiom-staging-"
MOST_UNPACKED = 4 << 30

# What the standard library and NumPy are known to raise over zip files and arrays that are not whole.
BAD_ZIPS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, KeyError, IndexError, struct.error),
)
BAD_ARRAYS = (*BAD_ZIPS, TypeError, SyntaxError, MemoryError, tokenize.TokenError)

_RETIRED_PREFIX = ".vaiom-replaced-"


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
    folder = ensure_folder(path.parent)
    with _claimed(folder, lambda: _new_file(folder, path.suffix)) as staged:
        try:
            with _disk_errors(path):
                yield staged
            _flush(staged)
            # mkstemp makes private files; what we publish is as readable as the user's other files.
            staged.chmod(0o666 & ~_umask())
            staged.replace(path)
            _flush(path.parent)
        finally:
            staged.unlink(missing_ok=True)


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """Yield an empty hidden folder in `parent`, gone when the block ends, or at the next run if this one is killed."""
    folder = ensure_folder(parent)
    with _claimed(folder, lambda: tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=folder)) as staged:
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)


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
    except (ValueError, RecursionError) as error:
        raise DataError(
            "not readable as JSON", where=path, got=str(error), fix="the file is damaged: build the folder again"
        ) from error


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file; raises one of `BAD_ARRAYS`, and takes no more memory than the file really holds."""
    import numpy as np
    from numpy.lib import format as npy

    arrays = {}
    with zipfile.ZipFile(path) as archive:
        if sum(info.file_size for info in archive.infolist()) > MOST_UNPACKED:
            raise ValueError(f"it would unpack to more than {MOST_UNPACKED} bytes")
        for info in archive.infolist():
            stream = io.BytesIO(archive.read(info))
            major, _ = npy.read_magic(stream)
            header = npy.read_array_header_1_0(stream) if major == 1 else npy.read_array_header_2_0(stream)
            shape, fortran, dtype = header
            # NumPy's own reader would reserve what the header claims.
            if dtype.hasobject or len(stream.getbuffer()) - stream.tell() != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{info.filename} does not hold what its header says")
            flat = np.frombuffer(stream.getbuffer(), dtype, offset=stream.tell())
            arrays[info.filename.removesuffix(".npy")] = flat.reshape(shape, order="F" if fortran else "C")
    return arrays


@contextmanager
def staged_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside `path` that becomes `path` when the block ends well and vanishes otherwise."""
    _recover(path)
    if path.exists() and not overwrite:
        raise DataError("the output folder exists already", where=path, fix="choose another, or pass --overwrite")
    if path.exists() and not _is_ours(path):
        raise DataError(
            "only what vaiom wrote is overwritten",
            where=path,
            expected="an empty folder, or one whose manifest.json lists symbols",
            fix="choose another folder, or remove this one yourself",
        )
    with staging_folder(path.parent) as staged:
        try:
            yield staged
            staged.chmod(0o777 & ~_umask())
            if path.exists():
                path.rename(_retired(path))
            staged.rename(path)
            _flush(path.parent)
        finally:
            _recover(path)


def _retired(path: Path) -> Path:
    return path.parent / f"{_RETIRED_PREFIX}{path.name}"


def _recover(path: Path) -> None:
    """Whoever is killed between the two renames of a replacement leaves the old folder under its retired name."""
    retired = _retired(path)
    if retired.is_dir():
        if path.exists():
            shutil.rmtree(retired, ignore_errors=True)
        else:
            retired.rename(path)


def _is_ours(path: Path) -> bool:
    """A bar folder or a corpus, which both have a manifest that lists symbols, or an empty folder."""
    if not path.is_dir():
        return False
    manifest = path / "manifest.json"
    known = read_json(manifest) if manifest.is_file() else {}
    return (isinstance(known, dict) and "symbols" in known) or not any(path.iterdir())


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Native writers tell of a full disk in words of their own; here it becomes the error that everybody knows."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _new_file(folder: Path, suffix: str) -> str:
    handle, name = tempfile.mkstemp(prefix=STAGING_PREFIX, suffix=suffix, dir=folder)
    os.close(handle)
    return name


@contextmanager
def _claimed(folder: Path, make: Callable[[], str]) -> Iterator[Path]:
    """Make something staged and hold a lock on it, which ends with this process: what nobody holds is swept away."""
    try:
        _sweep(folder)
        while True:
            staged = Path(make())
            try:
                descriptor = os.open(staged, os.O_RDONLY)
            except FileNotFoundError:
                continue  # swept by another run before it could be locked
            _lock(descriptor)
            if staged.exists():
                break
            os.close(descriptor)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield staged
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what killed runs left staged in a folder."""
    for left in folder.glob(f"{STAGING_PREFIX}*"):
        try:
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _lock(descriptor):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether the lock is ours now; some network file systems have none, and nothing is swept there."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
