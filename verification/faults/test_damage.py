"""Every file of a corpus, a bar folder and a run, cut short and with a bit flipped: noticed, named,
and mended.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reproduction.records import read_record
from training.tiny_runs import TINY
from vaiom.baselines.stored_losses import load_losses
from vaiom.corpus.append import append_bars
from vaiom.corpus.store import open_corpus
from vaiom.errors import UserError
from vaiom.evaluation.scores import read_events
from vaiom.market.folder import read_bars
from vaiom.model.checkpoint import load_checkpoint
from vaiom.report.contents import read_run
from vaiom.training.loop import train
from verification.fuzz.materials import CONTEXT, SPLIT, make_materials


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    folder = make_materials(tmp_path_factory.mktemp("damage"))
    torch.set_num_threads(threads)
    return folder


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def flipped(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


DAMAGE = {"cut": cut, "flipped": flipped}


def spoil_each(folder: Path, damage: str, times: int, use: Callable[[Path], object]) -> list[str]:
    """Spoil one file after another and use the folder; the files whose damage changed the answer
    without an error.
    """
    unnoticed, answer = [], use(folder)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        good = file.read_bytes()
        for number in range(times):
            file.write_bytes(DAMAGE[damage](good, random.Random(f"{file.name} {number}")))
            try:
                if use(folder) != answer:
                    unnoticed.append(file.name)
            except UserError as error:
                if not (error.where and (error.fix or error.got or error.expected)):
                    unnoticed.append(f"{file.name}: {error}")
            finally:
                file.write_bytes(good)
    return unnoticed


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_damage_to_a_corpus_goes_unnoticed(materials: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(materials / "corpus", tmp_path / "corpus")
    (tmp_path / "corpus" / "ledger.jsonl").unlink()
    assert spoil_each(tmp_path / "corpus", damage, 3, open_corpus) == []
    open_corpus(tmp_path / "corpus")


def test_a_damaged_corpus_is_not_appended_to(materials: Path, tmp_path: Path) -> None:
    shutil.copytree(materials / "corpus", tmp_path / "corpus")
    state = next((tmp_path / "corpus").rglob("state.json"))
    state.write_bytes(flipped(state.read_bytes(), random.Random(1)))
    with pytest.raises(UserError, match="damaged"):
        append_bars(tmp_path / "corpus", materials / "bars")


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_damage_to_a_checkpoint_goes_unnoticed(
    materials: Path, tmp_path: Path, damage: str
) -> None:
    (tmp_path / "run").mkdir()
    shutil.copyfile(materials / "run" / "best.safetensors", tmp_path / "run" / "best.safetensors")
    assert (
        spoil_each(
            tmp_path / "run", damage, 60, lambda run: load_checkpoint(run / "best.safetensors")
        )
        == []
    )


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_a_run_is_refused_or_harmless(
    materials: Path, tmp_path: Path, damage: str
) -> None:
    """Resuming and reporting never end in anything but a result or an error that says what
    to do.
    """
    experiment = TINY.with_changes(steps=4, num_layers=1)
    shutil.copytree(materials / "run", tmp_path / "run")
    corpus = open_corpus(materials / "corpus")

    def use(run: Path) -> None:
        train(corpus, experiment, run, device="cpu", resume=True)
        read_run(run, materials / "corpus")

    spoil_each(tmp_path / "run", damage, 1, use)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_bars_losses_events_and_records_is_refused_or_read(
    materials: Path, tmp_path: Path, damage: str
) -> None:
    """Formats without a checksum cannot notice every flipped bit; none may end in a traceback."""
    corpus = open_corpus(materials / "corpus")
    for name in ("bars", "losses"):
        shutil.copytree(materials / name, tmp_path / name)
    shutil.copytree(
        materials / "run",
        tmp_path / "run",
        ignore=lambda _, names: [n for n in names if "events" not in n],
    )

    def losses(folder: Path) -> dict[str, bytes]:
        return {
            name: bits.tobytes()
            for name, bits in load_losses(folder, corpus, SPLIT, CONTEXT).items()
        }

    (tmp_path / "records").mkdir()
    shutil.copyfile(materials / "record.json", tmp_path / "records" / "record.json")
    spoil_each(tmp_path / "bars", damage, 20, lambda bars: bool(read_bars(bars)))
    assert spoil_each(tmp_path / "losses", damage, 20, losses) == []
    spoil_each(tmp_path / "run", damage, 20, lambda run: bool(read_events(run, SPLIT)))
    spoil_each(
        tmp_path / "records", damage, 20, lambda folder: bool(read_record(folder / "record.json"))
    )
