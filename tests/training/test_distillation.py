"""Students: what teachers say at every row, the loss towards it, and runs that train their teachers
first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import CPU, TINY, assert_same_tensors, state_of

from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError
from vaiom.features.fields import SIGNED_FIELDS
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.training.loop import train
from vaiom.training.teachers import mean_probs, teachers_of
from vaiom.training.windows import DeviceCorpus

ALONE = TINY.with_changes(positions="rotary", attention_window=6, steps=8, mirror=0.5)
STUDENT = ALONE.with_changes(teachers=2, teacher_share=0.75)


@pytest.fixture(scope="module")
def run(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(corpus, STUDENT, tmp_path_factory.mktemp("runs") / "student", device="cpu").run


def test_teachers_answer_for_every_row_of_train_and_no_other(run: Path, corpus: Corpus) -> None:
    data = DeviceCorpus(corpus, STUDENT.model, CPU, mirror=0.5)
    checkpoints = [Run(run).teachers / str(number) / "best.safetensors" for number in (1, 2)]
    table = mean_probs(checkpoints, corpus, data, torch.float32)
    train_rows = corpus.split_codes == corpus.splits.code("train")
    assert not table[:, ~train_rows].any()
    assert table[:, train_rows & corpus.valid_base].float().sum(dim=-1).sub(1).abs().max() < 2e-3
    models = [load_checkpoint(path).model.eval() for path in checkpoints]
    signs = torch.tensor(
        [-1.0 if name in SIGNED_FIELDS else 1.0 for name in STUDENT.model.input_fields]
    )
    second = list(corpus.asset_slices.values())[1].start
    for row in [*np.flatnonzero(train_rows & corpus.valid_base)[[0, 100]].tolist(), second + 40]:
        first = max(second if row >= second else 0, row + 1 - STUDENT.model.receptive_field)
        x = data.x[None, first : row + 1]
        meta = data.meta[row : row + 1]
        for way, inputs in enumerate((x, x * signs)):
            with torch.no_grad():
                expected = torch.stack(
                    [model.log_probs(inputs, meta)[0].exp() for model in models]
                ).mean(dim=0)
            torch.testing.assert_close(table[way, row].float(), expected, atol=1e-3, rtol=0)
    assert (table[0] - table[1]).abs().max() > 1e-3


def test_windows_bring_what_teachers_say_of_them(corpus: Corpus) -> None:
    data = DeviceCorpus(corpus, STUDENT.model, CPU, mirror=0.5)
    numbers = torch.arange(len(data.x), dtype=torch.float32)
    data.teacher = torch.stack([numbers, -numbers])[..., None].expand(-1, -1, 16)
    ends = torch.from_numpy(corpus.endpoints("train", 16)[:200])
    windows = data.windows(ends)
    assert windows.teacher_BTK is not None
    index = ends[:, None] + torch.arange(-15, 1)
    column = STUDENT.model.input_fields.index("ret_z")
    straight = (windows.x_BTF[..., column] == data.x[index][..., column]).all(dim=1)
    assert 60 < straight.sum() < 140
    expected = torch.where(straight[:, None], index, -index).float()
    assert torch.equal(windows.teacher_BTK[..., 7], expected)


def test_a_run_holds_the_runs_of_its_teachers(run: Path) -> None:
    seeds = {
        load_checkpoint(Run(run).teachers / str(n) / "best.safetensors").provenance.seed
        for n in (1, 2)
    }
    assert seeds == {each.train.seed for each in teachers_of(STUDENT)}
    assert len({*seeds, STUDENT.train.seed}) == 3
    ours = load_checkpoint(Run(run).best).provenance
    assert (ours.train["teachers"], ours.train["teacher_share"]) == (2, 0.75)


def test_a_student_learns_from_its_teachers(run: Path, corpus: Corpus, tmp_path: Path) -> None:
    train(corpus, ALONE, tmp_path / "alone", device="cpu")
    taught = state_of(run, 8)
    alone = state_of(tmp_path / "alone", 8)
    assert any(not torch.equal(taught[name], alone[name]) for name in alone)


@pytest.mark.parametrize("stopped_at", [("teacher", 1), ("teacher", 2), ("student", 0)])
def test_a_run_that_was_stopped_goes_on_with_whoever_it_was(
    run: Path, corpus: Corpus, tmp_path: Path, stopped_at: tuple[str, int]
) -> None:
    def stop(entry: dict[str, Any]) -> None:
        who = ("teacher", entry["teacher"]) if "teacher" in entry else ("student", 0)
        if who == stopped_at and entry["step"] == 6:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, STUDENT, out, device="cpu", report=stop)
    with pytest.raises(ConfigError, match="holds a run already"):
        train(corpus, STUDENT, out, device="cpu")
    train(corpus, STUDENT, out, device="cpu", resume=True)
    assert_same_tensors(state_of(out, 8), state_of(run, 8))


@pytest.mark.parametrize("other", [{"steps": 12}, {"patience": 1}])
def test_teachers_are_not_trained_further_under_their_student(
    corpus: Corpus, tmp_path: Path, other: dict[str, Any]
) -> None:
    """The whole run would be none that its settings describe."""
    train(corpus, STUDENT, tmp_path / "run", device="cpu")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(ConfigError, match=f"teachers keep their {next(iter(other))}"):
        train(corpus, STUDENT.with_changes(**other), tmp_path / "run", device="cpu", resume=True)
    assert {file: file.read_bytes() for file in before} == before


def test_teachers_need_a_share_and_a_model_of_stretches() -> None:
    with pytest.raises(ConfigError, match="need each other"):
        TINY.with_changes(teachers=2)
    with pytest.raises(ConfigError, match="every row"):
        TINY.with_changes(teachers=2, teacher_share=0.5)
