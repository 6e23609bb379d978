"""A few kills of every quick stage; `python -m verification.faults.run` makes the many."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from market import feed_server
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.files import STAGING_PREFIX, atomic_file, staged_folder, write_json
from verification.faults.kills import quiet_run, torment
from verification.faults.serving import make_served, torment_service, undisturbed
from verification.faults.stages import Stage, make_inputs, stages

pytestmark = pytest.mark.kills
QUICK = (
    "import into a folder",
    "corpus rebuild",
    "append",
    "unpack",
)  # training: tests/training/test_processes.py
KILLS = 3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def known(inputs: Path) -> Iterator[dict[str, Stage]]:
    with feed_server.running() as server:
        yield stages(inputs, server)


@pytest.mark.parametrize("name", QUICK)
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    known: dict[str, Stage], name: str, tmp_path: Path
) -> None:
    folder, chance = tmp_path / "work", random.Random(name)
    quiet = quiet_run(known[name], folder)
    assert torment(known[name], quiet, folder, KILLS, chance).failures == []


def test_a_killed_service_has_every_bar_that_it_acknowledged(inputs: Path, tmp_path: Path) -> None:
    served, chance = make_served(inputs), random.Random(1)
    quiet = undisturbed(served, tmp_path / "state")
    tally = torment_service(served, quiet, tmp_path / "state", 2, chance)
    assert tally.failures == []
    assert tally.finishes == tally.rows


class Killed(BaseException):
    """Stands for a kill at one exact moment, which a real one hits too rarely; nothing after it is
    run.
    """


def killed_between_the_renames(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a folder, and die when the old one is away and the new one not there yet."""
    real = Path.rename

    def die_at_second(self: Path, target: Path) -> Path:
        if self.name.startswith(STAGING_PREFIX):
            monkeypatch.setattr("vaiom.files._recover", lambda path: None)
            raise Killed
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die_at_second)
        with pytest.raises(Killed), staged_folder(folder, overwrite=True) as staged:
            write_json(staged / "manifest.json", {"symbols": ["new"]})
    monkeypatch.undo()


def test_a_folder_is_not_lost_between_the_two_renames_of_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bars"
    write_json(folder / "manifest.json", {"symbols": ["old"]})
    killed_between_the_renames(folder, monkeypatch)
    assert not folder.exists()
    with pytest.raises(DataError, match="exists already"), staged_folder(folder):
        pass
    assert "old" in (folder / "manifest.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["bars"]


def test_what_killed_runs_left_is_swept_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    (tmp_path / f"{STAGING_PREFIX}file").write_text("left")
    (tmp_path / f"{STAGING_PREFIX}folder" / "inside").mkdir(parents=True)
    (tmp_path / ".staging-of-another-tool").mkdir()
    with atomic_file(tmp_path / "first") as first, atomic_file(tmp_path / "second") as second:
        assert first.exists()
        assert second.exists()
        first.write_text("1")
        second.write_text("2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".staging-of-another-tool",
        "first",
        "second",
    ]


def test_rows_that_a_killed_append_left_are_not_believed(
    known: dict[str, Stage], tmp_path: Path
) -> None:
    """They are written again: a byte that was changed meanwhile does not get into the corpus."""
    from vaiom.corpus.append import append_bars

    stage = known["append"]
    later = Path(stage.start[-1])
    for name in ("whole", "work"):
        stage.before(tmp_path / name)
    grown = append_bars(tmp_path / "whole" / "corpus", later)
    rows = str(grown.manifest["folder"])
    shutil.copytree(tmp_path / "whole" / "corpus" / rows, tmp_path / "work" / "corpus" / rows)
    column = tmp_path / "work" / "corpus" / rows / "ret_z.npy"
    column.write_bytes(column.read_bytes()[:-1] + b"\x7f")
    append_bars(tmp_path / "work" / "corpus", later)
    assert open_corpus(tmp_path / "work" / "corpus").sha256 == grown.sha256
