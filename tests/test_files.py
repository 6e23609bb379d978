"""Files that are whole or absent, on any system and in any thread."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from vaiom.errors import DataError
from vaiom.files import (
    BAD_ARRAYS,
    STAGING_PREFIX,
    FolderInUseError,
    atomic_file,
    canonical_json,
    ensure_folder,
    hold_folder,
    read_arrays,
    read_json,
    sha256_file,
    sha256_of,
    staged_folder,
    staging_folder,
    try_lock,
    write_bytes,
    write_json,
)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_the_users_other_files(tmp_path: Path, mask: int) -> None:
    """And the umask, which all threads share, is never changed on the way."""
    code = f"""
import os; os.umask({mask}); os.umask = None
from pathlib import Path
from vaiom.files import staged_folder, write_bytes
folder = Path({str(tmp_path)!r})
write_bytes(folder / "file", b"x")
with staged_folder(folder / "made"):
    pass
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    for name, all_may in (("file", 0o666), ("made", 0o777)):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == all_may & ~mask


def test_the_package_needs_no_unix() -> None:
    """What Windows lacks is not imported, by the package or its command line."""
    missing = ("fcntl", "resource", "pwd", "grp", "termios")
    code = f"import sys; sys.modules |= dict.fromkeys({missing}); import vaiom.cli.main"
    subprocess.run(
        [sys.executable, "-c", code + ", vaiom.files, vaiom.run, vaiom.codec"], check=True
    )


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '[{"x": {"a": 1, "a": 1}}]'])
def test_a_repeated_key_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "told.json").write_text(text)
    with pytest.raises(DataError, match=r"told\.json[\s\S]*'a' is there twice"):
        read_json(tmp_path / "told.json")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {})
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "b") as staged:
        staged.with_name("no such folder").rename(staged)
    with staging_folder(tmp_path) as folder:
        assert {path.name.split(".")[1] for path in tmp_path.iterdir() if path.name[0] == "."} == {
            folder.name[1:]
        }
        (folder / "inside").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First its content, then the name in its folder: a crash of the machine leaves the old file or
    the new one.
    """
    file, flushed, descriptors = tmp_path / "file", [], []

    def note(opened: int) -> None:
        descriptors.append(opened)
        flushed.append((os.fstat(opened).st_ino, file.exists()))

    monkeypatch.setattr("vaiom.files.os.fsync", note)
    write_bytes(file, b"x")
    assert flushed == [(file.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    file, flushed = tmp_path / "folder", []
    with staged_folder(file):
        pass
    assert flushed == [(tmp_path.stat().st_ino, True)]
    for descriptor in descriptors:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(descriptor)


def test_a_lock_file_that_another_process_swept_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def locked_too_late(path: Path) -> object:
        lock = try_lock(path)
        made.append(path)
        if len(made) < 3:
            path.unlink()
        return lock

    monkeypatch.setattr("vaiom.files.try_lock", locked_too_late)
    with staging_folder(tmp_path):
        assert len(made) == 3
        assert [path.exists() for path in made] == [False, False, True]
    del made[:]

    def never_in_time(path: Path) -> object:
        lock = try_lock(path)
        made.append(path)
        path.unlink()
        return lock

    monkeypatch.setattr("vaiom.files.try_lock", never_in_time)
    with staging_folder(tmp_path) as staged:
        assert (len(made), staged.name) == (3, made[-1].stem)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "lock")
    assert lock
    assert try_lock(tmp_path / "lock") is None
    lock.release()
    again = try_lock(tmp_path / "lock")
    assert again
    again.release()


def test_links_named_like_ours_are_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    for name in ("x", "y.staging-lock"):
        (tmp_path / f"{STAGING_PREFIX}{name}").symlink_to(victim)
    write_bytes(tmp_path / "ours", b"x")
    assert victim.read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 4


def test_many_threads_write_one_file(tmp_path: Path) -> None:
    """Each sweeps while the others write; the file is always one that was written whole."""
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(10):
                write_bytes(tmp_path / "file", str(number).encode() * 1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set((tmp_path / "file").read_bytes())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


HOLD = "import sys; from pathlib import Path; from vaiom.files import hold_folder\n"
HOLD += "with hold_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()"


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_folder_is_held_by_one_process_and_the_second_is_told_by_whom(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    folder.parent.mkdir()
    with held_elsewhere(folder) as other:
        for _ in range(2):  # being refused takes nothing from the holder
            with (
                pytest.raises(FolderInUseError, match=f"process {other.pid} on ") as refused,
                hold_folder(folder),
            ):
                pass
            assert refused.value.where == folder
        with pytest.raises(FolderInUseError), hold_folder(tmp_path / "new" / "." / "folder"):
            pass
        with hold_folder(tmp_path / "new" / "another"):
            pass
    # A killed one leaves its file, which keeps nobody out.
    assert len(list(folder.parent.iterdir())) == 1
    with hold_folder(folder):
        pass
    assert list(folder.parent.iterdir()) == []


def test_a_folder_whose_parent_may_not_be_written_to_is_held_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaiom.files.os.access", lambda path, _: Path(path) != tmp_path.parent)
    with hold_folder(tmp_path):
        assert len(list(tmp_path.iterdir())) == 1
        with pytest.raises(FolderInUseError), hold_folder(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_who_finds_a_folder_held_waits_as_long_as_it_says(tmp_path: Path) -> None:
    holder = hold_folder(tmp_path / "made")
    holder.__enter__()
    letting_go = threading.Timer(0.3, lambda: holder.__exit__(None, None, None))
    letting_go.start()
    with pytest.raises(FolderInUseError), hold_folder(tmp_path / "made", patience=0.0):
        pass
    with hold_folder(tmp_path / "made", patience=60.0):
        letting_go.join()


def test_a_new_folder_in_a_new_place_is_held_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, real = list[bool](), FileLock.acquire

    def acquire(lock: FileLock, **how: Any) -> Any:
        places.append(Path(lock.lock_file).parent.is_dir())
        return real(lock, **how)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with staged_folder(tmp_path / "new" / "made"):
        assert places == [True] * 3


def test_a_folder_is_held_beside_it_and_let_go_by_any_thread(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    held, letting_go = hold_folder(tmp_path / "made"), threading.Event()
    taker = threading.Thread(target=lambda: (held.__enter__(), letting_go.wait()))
    taker.start()
    while len(list(tmp_path.iterdir())) < 2 and taker.is_alive():
        pass
    assert list((tmp_path / "made").iterdir()) == []
    held.__exit__(None, None, None)
    with hold_folder(tmp_path / "made"):
        letting_go.set()
    taker.join()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize(("system", "is_there"), [("posix", False), ("nt", True)])
def test_a_lock_file_goes_before_its_lock_or_after_it_where_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, is_there: bool
) -> None:
    """Nobody may hold a file that is then removed; Windows removes none that is open."""
    there, release = list[bool](), FileLock.release

    def note(lock: FileLock, force: bool = False) -> None:
        there.append(os.path.exists(lock.lock_file))  # noqa: PTH110 - no Path of another system
        release(lock, force)

    monkeypatch.setattr(FileLock, "release", note)
    with hold_folder(tmp_path / "made"):
        monkeypatch.setattr("os.name", system)
    monkeypatch.setattr("os.name", "posix")
    assert there[0] == is_there
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_a_place_of_ours_leads_nobody_astray(tmp_path: Path) -> None:
    victim, made = tmp_path / "victim", tmp_path / "made"
    victim.mkdir()
    (victim / "theirs").touch()
    with staging_folder(tmp_path) as staged:
        staged.rmdir()
        staged.symlink_to(victim)
    with staged_folder(made):
        pass
    (tmp_path / ".vaiom-replaced-made").symlink_to(victim)
    with pytest.raises(DataError, match="exists already"), staged_folder(made):
        pytest.fail("it is there")
    assert [path.name for path in victim.iterdir()] == ["theirs"]


def test_what_a_killed_holder_left_is_swept(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "a"), held_elsewhere(tmp_path / "b") as other:
        other.kill()
        other.wait()
        write_bytes(tmp_path / "file", b"x")
        assert len(list(tmp_path.iterdir())) == 2
        with pytest.raises(FolderInUseError), hold_folder(tmp_path / "a"):
            pass


def test_of_two_writers_of_a_new_folder_the_second_is_refused(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "made") as staged:
        (staged / "file").touch()
        with pytest.raises(FolderInUseError), staged_folder(tmp_path / "made"):
            pass
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "file"]


def test_only_a_folder_of_ours_or_an_empty_one_is_replaced(tmp_path: Path) -> None:
    theirs, empty = tmp_path / "theirs", tmp_path / "empty"
    for folder in (theirs, empty):
        folder.mkdir()
    (theirs / "thesis.txt").write_text("years")
    with pytest.raises(DataError), staged_folder(theirs, overwrite=True):
        pytest.fail("nothing may be made for it")
    assert (theirs / "thesis.txt").read_text() == "years"
    with staged_folder(empty, overwrite=True) as made:
        (made / "rows").touch()
    assert (empty / "rows").is_file()


def test_a_folder_that_a_killed_run_had_put_aside_comes_back(tmp_path: Path) -> None:
    """It was killed after the old folder had given up its name, or after the new one had
    taken it.
    """
    made, aside = tmp_path / "made", tmp_path / ".vaiom-replaced-made"
    with staged_folder(made) as staged:
        write_json(staged / "manifest.json", {"symbols": {}})
    made.rename(aside)
    with pytest.raises(DataError, match="exists already"), staged_folder(made):
        pytest.fail("the old folder is back")
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "manifest.json"]
    aside.mkdir()
    with staged_folder(made, overwrite=True) as staged:
        assert sorted(path.name for path in tmp_path.iterdir() if path != staged)[-1] == "made"
        assert not aside.exists()
        (staged / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "new"]


def test_a_replacement_that_fails_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rename = tmp_path / "made", Path.rename
    with staged_folder(made) as staged:
        write_json(staged / "manifest.json", {"symbols": {}})

    def fails_for_staged(path: Path, target: Path) -> Path:
        if path.name.startswith(STAGING_PREFIX):
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_for_staged)
    with pytest.raises(OSError, match="no"), staged_folder(made, overwrite=True):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "manifest.json"]


def test_where_nothing_can_be_written_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for make in (ensure_folder, lambda path: write_bytes(path / "x", b"")):
        with pytest.raises(DataError, match="cannot write here") as refused:
            make(tmp_path / "file" / "folder")
        assert refused.value.where == tmp_path / "file" / "folder"
    assert ensure_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    monkeypatch.setattr("vaiom.files.os.access", lambda path, mode: mode != os.W_OK | os.X_OK)
    with pytest.raises(DataError, match="no write permission"):
        ensure_folder(tmp_path / "a")


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (
            RuntimeError("parquet: cannot write (os error 28)"),
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        ),
        (RuntimeError("another reason"), RuntimeError("another reason")),
        (OSError(5, "(os error 28)"), OSError(5, "(os error 28)")),
    ],
)
def test_a_full_disk_is_an_error_of_the_system_whoever_reports_it(
    tmp_path: Path, raised: Exception, seen: Exception
) -> None:
    with pytest.raises(type(seen)) as caught, atomic_file(tmp_path / "file"):
        raise raised
    assert caught.value.args[:2] == seen.args[:2]
    assert not list(tmp_path.iterdir())


def test_digests_and_json_are_plain(tmp_path: Path) -> None:
    file, value = tmp_path / "value.json", {"b": [1, 2.5], "a": None}
    write_json(file, value)
    assert file.read_text() == '{\n  "b": [\n    1,\n    2.5\n  ],\n  "a": null\n}\n'
    assert read_json(file) == value
    assert canonical_json(value) == b'{"a":null,"b":[1,2.5]}'
    assert (
        sha256_file(file)
        == sha256_of(file.read_bytes())
        == hashlib.sha256(file.read_bytes()).hexdigest()
    )
    for write in (lambda: write_json(file, math.nan), lambda: canonical_json([math.inf])):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write()
    for path, problem in (
        (tmp_path / "none.json", "a file is missing"),
        (tmp_path / "bad.json", "not readable"),
    ):
        (tmp_path / "bad.json").write_text("{")
        with pytest.raises(DataError, match=problem) as refused:
            read_json(path)
        assert (refused.value.where, bool(refused.value.fix)) == (path, True)


def test_arrays_are_those_that_numpy_saved(tmp_path: Path) -> None:
    arrays = {
        "rows": np.arange(12.0).reshape(3, 4),
        "columns": np.asfortranarray(np.arange(12).reshape(3, 4)),
        "texts": np.array(["a", "bc"]),
        "none": np.zeros((0, 2)),
        "one": np.float32(1.5),
    }
    np.savez_compressed(tmp_path / "all.npz", **arrays)
    with (
        zipfile.ZipFile(tmp_path / "all.npz", "a") as archive,
        archive.open("wide.npy", "w") as member,
    ):
        np.lib.format.write_array(member, arrays["rows"], version=(2, 0))
    read = read_arrays(tmp_path / "all.npz")
    arrays["wide"] = arrays["rows"]
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == np.asarray(array).dtype


def test_arrays_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.arange(12.0))
    objects = io.BytesIO()
    np.save(objects, np.array([None, "x"]), allow_pickle=True)
    contents = [
        whole.getvalue()[:-8],
        whole.getvalue() + b"more",
        objects.getvalue(),
        whole.getvalue()[:20],
    ]
    for content in contents:
        with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
            archive.writestr("rows.npy", content)
        with pytest.raises(BAD_ARRAYS):
            read_arrays(tmp_path / "bad.npz")


def test_arrays_are_read_up_to_a_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros(100), b=np.zeros(100))
    size = sum(info.file_size for info in zipfile.ZipFile(tmp_path / "two.npz").infolist())
    assert len(read_arrays(tmp_path / "two.npz", size)) == 2
    with pytest.raises(ValueError, match="would unpack to more"):
        read_arrays(tmp_path / "two.npz", size - 1)


@pytest.mark.parametrize("error", [OSError("no locks here"), NotImplementedError()])
def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    left = tmp_path / f"{STAGING_PREFIX}0123.txt"
    left.touch()
    (tmp_path / f"{STAGING_PREFIX}{sha256_of(b'made')[:16]}.staging-lock").write_text("process 1")
    with hold_folder(tmp_path / "made"):
        write_bytes(tmp_path / "made" / "file", b"x")
    assert try_lock(tmp_path / "lock") is None
    assert left.exists()  # whose it is cannot be known
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["file"]
