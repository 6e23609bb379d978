"""Atomic files and folders (complete or absent), locks, checksums and JSON, for every room."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import lzma
import math
import os
import platform
import re
import secrets
import shutil
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaiom.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt
    from filelock import BaseFileLock

Progress = Callable[[int, int, str], None]
"""Called with the number done, the total and the name of the current item."""

STAGING_PREFIX = ".vaiom-staging-"
MOST_UNPACKED = 4 << 30

BAD_ZIPS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    KeyError,
    IndexError,
    struct.error,
)
"""What the standard library raises for damaged zip files."""
BAD_ARRAYS = (*BAD_ZIPS, TypeError, SyntaxError, MemoryError, tokenize.TokenError)
"""What NumPy raises for damaged arrays as well."""

_LOCK_SUFFIX = ".staging-lock"
_SWEEP_SECONDS = 0.1
"""A sweep holds the locks that it finds for a moment."""
_RETIRED_PREFIX = ".vaiom-replaced-"


class FolderInUseError(DataError):
    """Another process is writing the folder."""


def sha256_of(data: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """Canonical JSON bytes: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def ensure_folder(path: Path) -> Path:
    """Create a folder, or raise an error that says why it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no write permission")
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it otherwise."""
    with _staged(path.parent, Path.touch, path.suffix) as staged:
        try:
            yield staged
        except Exception as error:
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None or isinstance(error, OSError):
                raise
            # Native writers report a full disk by errors of their own.
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        flush(staged)
        staged.replace(path)
        flush(path.parent)


def staging_folder(parent: Path) -> AbstractContextManager[Path]:
    """An empty hidden folder in `parent`, removed when the block ends.

    If the process is killed, the next one removes it.
    """
    return _staged(parent, Path.mkdir)


@contextmanager
def hold_folder(path: Path, *, patience: float = _SWEEP_SECONDS) -> Iterator[None]:
    """Lock a folder, existing or not, against other processes.

    Raises `FolderInUseError` if another process holds it for `patience` seconds.
    """
    from filelock import FileLock, Timeout  # slow to import

    own = path.resolve()
    # Beside the folder, which may be replaced, if writable; with a name that is swept if left over.
    place = own.parent if os.access(own.parent, os.W_OK) or not own.is_dir() else own
    file = place / f"{STAGING_PREFIX}{sha256_of(own.name.encode())[:16]}{_LOCK_SUFFIX}"
    lock = FileLock(file, thread_local=False)
    try:
        lock.acquire(timeout=patience, poll_interval=_SWEEP_SECONDS / 4)
    except (OSError, NotImplementedError) as error:
        holder = None
        with suppress(OSError):  # without a lock file, writing reports the reason
            holder = file.read_text(errors="replace")
        if isinstance(error, Timeout) and holder is not None:
            raise FolderInUseError(
                "another process is writing this folder",
                where=path,
                got=holder,
                fix="wait until it has ended, or choose another folder",
            ) from None
        yield
        return
    with suppress(OSError):
        file.write_text(f"process {os.getpid()} on {platform.node()}")
    try:
        yield
    finally:
        _release(file, lock, [])


def try_lock(path: Path) -> BaseFileLock | None:
    """Hold a lock file until it is released or the process ends.

    None if another process holds it, or the file system has no locks.
    """
    from filelock import FileLock  # slow to import

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except (OSError, NotImplementedError):  # a lock held by another process is a TimeoutError
        return None
    return lock


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, complete or not at all."""
    with atomic_file(path) as staged:
        staged.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raises `ValueError`, also for duplicate keys."""

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = {}
        for key, item in pairs:
            if key in value:
                raise ValueError(f"the key {key!r} is there twice")
            value[key] = item
        return value

    return json.loads(text, object_pairs_hook=read_object)


def read_json(path: Path) -> Any:
    """The content of a JSON file; what cannot be read is an error for users."""
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError as error:
        fix = "check the path, or build the folder again"
        raise DataError("a file is missing", where=path, fix=fix) from error
    except (ValueError, RecursionError) as error:
        fix = "the file is damaged: build the folder again"
        raise DataError("not readable as JSON", where=path, got=str(error), fix=fix) from error


def read_arrays(path: Path, most_bytes: int = MOST_UNPACKED) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an .npz file; raises one of `BAD_ARRAYS`.

    No more memory is allocated than the file really holds, and `most_bytes` at most.
    """
    import numpy as np
    from numpy.lib import format as npy

    arrays = {}
    with zipfile.ZipFile(path) as archive:
        if sum(info.file_size for info in archive.infolist()) > most_bytes:
            raise ValueError(f"it would unpack to more than {most_bytes} bytes")
        for info in archive.infolist():
            stream = io.BytesIO(archive.read(info))
            major, _ = npy.read_magic(stream)
            read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
            shape, is_fortran, dtype = read_header(stream)
            num_bytes = len(stream.getbuffer()) - stream.tell()
            if dtype.hasobject or num_bytes != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{info.filename} does not hold what its header says")
            flat = np.frombuffer(stream.getbuffer(), dtype, offset=stream.tell())
            name = info.filename.removesuffix(".npy")
            arrays[name] = flat.reshape(shape, order="F" if is_fortran else "C")
    return arrays


@contextmanager
def staged_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside `path` that replaces it on success, and is removed otherwise."""
    ensure_folder(path.parent)
    with hold_folder(path):
        _recover(path)
        if path.exists():
            _require_replaceable(path, overwrite)
        with staging_folder(path.parent) as staged:
            try:
                yield staged
                if path.exists():
                    path.rename(path.with_name(_RETIRED_PREFIX + path.name))
                staged.rename(path)
                flush(path.parent)
            finally:
                _recover(path)


def _require_replaceable(path: Path, overwrite: bool) -> None:
    """Refuse to replace a folder that is not ours, or any without `overwrite`."""
    if not overwrite:
        problem = "the output folder exists already"
        raise DataError(problem, where=path, fix="choose another, or pass --overwrite")
    file = path / "manifest.json"
    manifest = read_json(file) if file.is_file() else {}
    is_ours = isinstance(manifest, dict) and {"symbols", "series"} & manifest.keys()
    if not path.is_dir() or (not is_ours and any(path.iterdir())):
        raise DataError(
            "only what vaiom wrote is overwritten",
            where=path,
            expected="an empty folder, or one with a manifest.json of vaiom",
            fix="choose another folder, or remove this one yourself",
        )


def _recover(path: Path) -> None:
    """Restore the old folder that a process left retired, killed between two renames."""
    retired = path.with_name(_RETIRED_PREFIX + path.name)
    if retired.is_dir():
        if path.exists():
            shutil.rmtree(retired, ignore_errors=True)
        else:
            retired.rename(path)


@contextmanager
def _staged(parent: Path, make: Callable[[Path], None], suffix: str = "") -> Iterator[Path]:
    """Create something hidden in a folder, with a lock file that this process holds.

    Both are removed at the end.
    """
    folder = ensure_folder(parent)
    try:
        _sweep(folder)
        for _ in range(3):  # another process may sweep the lock file before it is locked
            lock_file = folder / f"{STAGING_PREFIX}{secrets.token_hex(8)}{_LOCK_SUFFIX}"
            lock = try_lock(lock_file)  # None if the file system has no locks: then no sweep either
            if lock and lock_file.exists():
                break
        staged = lock_file.with_suffix(suffix)
        make(staged)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield staged
    finally:
        _release(lock_file, lock, [staged])


def _sweep(folder: Path) -> None:
    """Remove what killed runs left: everything named after a lock that no process holds."""
    staged: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if path.name.startswith(STAGING_PREFIX):
            staged.setdefault(path.name.split(".")[1], []).append(path)
    for name, paths in staged.items():
        lock_file = folder / f".{name}{_LOCK_SUFFIX}"
        if any(path.is_symlink() for path in (lock_file, *paths)):
            continue
        lock = try_lock(lock_file)
        if lock:
            _release(lock_file, lock, paths)


def _release(lock_file: Path, lock: BaseFileLock | None, staged: list[Path]) -> None:
    """Remove staged files, then their lock file: a file without a lock file has no owner."""
    for path in staged:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path != lock_file:
            path.unlink(missing_ok=True)
    if os.name == "nt" and lock:
        lock.release()  # Windows cannot remove an open file
    lock_file.unlink(missing_ok=True)
    if lock:
        lock.release()


def flush(path: Path) -> None:
    """Flush to disk; Windows cannot open folders and flushes them itself."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> DataError:
    fix = "choose a folder that you may write to"
    return DataError("cannot write here", where=path, got=error.strerror, fix=fix)
