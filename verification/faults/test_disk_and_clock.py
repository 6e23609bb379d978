"""A disk that fills up, folders that may not be written to, a clock that jumps: refused with the
reason, or done.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from market import feed_server
from verification.faults.commands import contents, require_clean, run
from verification.faults.stages import Stage, make_inputs, stages

pytestmark = pytest.mark.kills


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stage]]:
    with feed_server.running() as server:
        yield stages(make_inputs(tmp_path_factory.mktemp("inputs")), server)


def files_up_to(size: int) -> Callable[[], None]:
    """The kernel refuses every byte of a file beyond this size, as a full disk does."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("name", ["import", "corpus rebuild", "training"])
def test_a_full_disk_leaves_what_was_there_and_room_makes_it_go_on(
    known: dict[str, Stage], name: str, tmp_path: Path
) -> None:
    stage = known[name]
    for folder in ("quiet", "full"):
        (tmp_path / folder).mkdir()
        stage.before(tmp_path / folder)
    before = contents(tmp_path / "full")
    ended = run(stage.arguments(tmp_path / "full", again=False), prepare=files_up_to(3_000))
    assert ended.code == 2, ended.err
    require_clean(ended)
    after = contents(tmp_path / "full", without=("config.toml", "metrics.jsonl"))
    assert after == before
    for folder, again in (("quiet", False), ("full", name == "training")):
        done = run(stage.arguments(tmp_path / folder, again))
        assert done.code == 0, done.err
    assert stage.result(tmp_path / "full").keys() == stage.result(tmp_path / "quiet").keys()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """For an ordinary user by its permissions; for root, whom they do not stop, by a read-only
    mount.
    """
    if os.geteuid():
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    mounted = [["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", folder]]
    if any(subprocess.run(command, capture_output=True).returncode for command in mounted):
        pytest.skip("root may write everywhere, and a read-only mount is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("name", ["import", "append", "training"])
def test_a_folder_that_may_not_be_written_to(
    known: dict[str, Stage], name: str, tmp_path: Path
) -> None:
    stage = known[name]
    stage.before(tmp_path)
    target = tmp_path / "corpus" if name == "append" else tmp_path
    before = contents(tmp_path)
    with read_only(target):
        ended = run(stage.arguments(tmp_path, again=False))
    assert ended.code == 2, ended.err
    require_clean(ended)
    assert "cannot write here" in ended.err
    assert contents(tmp_path) == before


JUMPING = """
import datetime, os, random, time

random = random.Random(os.environ.get("CLOCK"))

class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        years = random.choice([-40, -3, 0, 0, 0, 5, 60])
        return datetime.datetime(2026, 1, 1, tzinfo=tz) + datetime.timedelta(days=365 * years)

time.time = lambda: random.choice([0.0, 1e9, 4e9])
datetime.datetime = Jumping
"""


@pytest.mark.parametrize("name", ["download", "training"])
def test_a_clock_that_jumps_changes_nothing_or_is_named(
    known: dict[str, Stage], name: str, tmp_path: Path
) -> None:
    """Every reading of the clock is years off the one before."""
    stage = known[name]
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPING)
    for folder in ("quiet", "jumping"):
        (tmp_path / folder).mkdir()
        stage.before(tmp_path / folder)
    assert run(stage.arguments(tmp_path / "quiet", again=False)).code == 0
    for attempt in range(6):
        clock = {"PYTHONPATH": str(tmp_path / "clock"), "CLOCK": str(attempt)}
        ended = run(stage.arguments(tmp_path / "jumping", again=attempt > 0), clock)
        require_clean(ended)
        if ended.code == 0 and "not settled" not in ended.err:
            break
    else:  # the clock never said that the days are over
        assert run(stage.arguments(tmp_path / "jumping", again=True)).code == 0
    quiet, jumping = stage.result(tmp_path / "quiet"), stage.result(tmp_path / "jumping")
    quiet.pop("run/config.toml", None), jumping.pop("run/config.toml", None)
    assert jumping == quiet


def test_the_clock_of_that_test_does_jump(tmp_path: Path) -> None:
    """A sitecustomize that is not loaded would prove nothing."""
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    code = (
        "from datetime import datetime, UTC; print(len({datetime.now(UTC).year for _ in "
        "range(99)}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CLOCK": "0"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(said.stdout) > 2


def test_a_really_full_disk(known: dict[str, Stage], tmp_path: Path) -> None:
    """A file system of its own with no room left, where mounting one is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        not mount
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=80k", "tmpfs", disk], capture_output=True
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    try:
        for name in ("import", "corpus build", "training"):
            ended = run(known[name].arguments(disk, again=False))
            assert ended.code == 2, ended.err
            require_clean(ended)
            assert "space" in ended.err.lower(), ended.err
            assert not list(disk.rglob(".vaiom-*"))
            for left in disk.iterdir():
                shutil.rmtree(left)
    finally:
        subprocess.run(["umount", disk], check=True)
