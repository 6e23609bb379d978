"""A run from beginning to end: what it leaves, what it selects, when it stops, and how it
goes on.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import CPU, TINY, assert_same_tensors, metrics_of, state_of

from vaiom import __version__
from vaiom.codec import to_json
from vaiom.corpus.store import Corpus
from vaiom.errors import CheckpointError, ConfigError
from vaiom.evaluation.scores import event_bits
from vaiom.files import FolderInUseError
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.training import loop
from vaiom.training.experiment import Experiment
from vaiom.training.loop import TrainResult, train
from vaiom.training.step import RunRecord, TrainStep, save_state
from vaiom.training.windows import DeviceCorpus, Scorer, predict_probabilities


@pytest.fixture(scope="module")
def run(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(corpus, TINY, tmp_path_factory.mktemp("runs") / "tiny", device="cpu")


def test_a_run_folder_holds_what_it_promises(run: TrainResult) -> None:
    names = {str(path.relative_to(run.run)) for path in run.run.rglob("*") if path.is_file()}
    saved = {
        f"checkpoints/step-{step:07d}{kind}.safetensors"
        for step in (4, 8, 12)
        for kind in ("", ".state")
    }
    assert names == {"config.toml", "metrics.jsonl", "best.safetensors", *saved}
    config = tomllib.loads((run.run / "config.toml").read_text())
    assert config["experiment"]["name"] == "tiny"
    assert config["model"] == to_json(TINY.model)
    assert config["train"] == to_json(TINY.train)


def test_a_deadline_stops_at_a_checkpoint_and_the_rest_is_that_of_the_whole_run(
    run: TrainResult, corpus: Corpus, tmp_path: Path
) -> None:
    stopped = train(corpus, TINY, tmp_path / "run", device="cpu", deadline=0.0)
    assert stopped.last_step == TINY.train.validate_every
    resumed = train(corpus, TINY, tmp_path / "run", device="cpu", resume=True)
    assert resumed.last_step == run.last_step
    assert_same_tensors(state_of(resumed.run, 12), state_of(run.run, 12))


def test_metrics_tell_the_loss_of_every_interval_and_the_bits_of_every_validation(
    run: TrainResult,
) -> None:
    lines = metrics_of(run.run)
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in lines if "validation_bits" in line] == [4, 8, 12]
    assert all(1 < line["loss_nats"] < 4 for line in lines)
    assert run.last_step == 12
    assert run.last_bits == lines[-1]["validation_bits"]


def test_the_best_is_the_best_and_says_where_it_comes_from(
    run: TrainResult, corpus: Corpus
) -> None:
    bits = {
        line["step"]: line["validation_bits"]
        for line in metrics_of(run.run)
        if "validation_bits" in line
    }
    best = load_checkpoint(run.run / "best.safetensors")
    assert run.best_bits == min(bits.values()) == bits[run.best_step]
    told = best.provenance
    assert (told.step, told.validation_bits, told.seed) == (
        run.best_step,
        run.best_bits,
        TINY.train.seed,
    )
    assert (told.vaiom_version, told.experiment, told.train) == (
        __version__,
        "tiny",
        to_json(TINY.train),
    )
    assert told.corpus_sha256 == corpus.sha256
    assert told.inputs == corpus.manifest["inputs"]
    assert told.splits["train_end"] == "2023-12-10T00:00:00"
    assert best.tokenizer.sha256 == corpus.tokenizer.sha256


def test_the_recorded_bits_are_those_of_the_saved_model(run: TrainResult, corpus: Corpus) -> None:
    """Scored one window at a time, in the words of the evaluation room."""
    best = load_checkpoint(run.run / "best.safetensors")
    rows = corpus.endpoints("validation", TINY.model.context)
    data = DeviceCorpus(corpus, TINY.model, CPU)
    probs = []
    with torch.no_grad():
        for row in rows:
            window = slice(row - TINY.model.context + 1, row + 1)
            x = torch.from_numpy(corpus.cont[window])[None]
            meta = torch.from_numpy(corpus.meta[row : row + 1].astype(np.int64))
            probs.append(best.model.log_probs(x, meta)[0].double().exp().numpy())
    expected = event_bits(np.stack(probs), corpus.target_return[rows])
    scorer = Scorer(best.model, data, torch.float32)
    assert scorer.mean_bits(rows) == pytest.approx(expected.mean(), abs=1e-5)
    assert scorer.mean_bits(rows) == pytest.approx(run.best_bits, abs=1e-7)
    assert scorer.predict(rows[:0]).shape == (0, 16)


def test_two_runs_are_the_same_run_and_another_seed_is_not(
    run: TrainResult, corpus: Corpus, tmp_path: Path
) -> None:
    again = train(corpus, TINY, tmp_path / "again", device="cpu")
    assert metrics_of(again.run) == metrics_of(run.run)
    assert_same_tensors(state_of(again.run, 12), state_of(run.run, 12))
    other = train(corpus, TINY.with_changes(seed=29), tmp_path / "other", device="cpu")
    assert metrics_of(other.run) != metrics_of(run.run)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("at", [2, 4, 6, 10])
def test_a_resumed_run_equals_an_uninterrupted_one(
    run: TrainResult, corpus: Corpus, tmp_path: Path, at: int
) -> None:
    def die(entry: dict[str, object]) -> None:
        if entry["step"] == at:
            raise KilledError

    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        train(corpus, TINY, folder, device="cpu", report=die)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')  # a line that the power cut off
    torch.manual_seed(99)  # whatever happened meanwhile
    resumed = train(corpus, TINY, folder, device="cpu", resume=True)
    assert metrics_of(folder) == metrics_of(run.run)
    assert_same_tensors(state_of(folder, 12), state_of(run.run, 12))
    assert (resumed.best_step, resumed.best_bits, resumed.last_bits) == (
        run.best_step,
        run.best_bits,
        run.last_bits,
    )
    ours, theirs = (load_checkpoint(path / "best.safetensors") for path in (folder, run.run))
    assert ours.sha256 == theirs.sha256


def test_averages_and_falling_rates_resume_too(corpus: Corpus, tmp_path: Path) -> None:
    experiment = TINY.with_changes(ema_decay=0.8, schedule="cosine", warmup_steps=3)
    whole = train(corpus, experiment, tmp_path / "whole", device="cpu")

    def die(entry: dict[str, object]) -> None:
        if entry["step"] == 6:
            raise KilledError

    with pytest.raises(KilledError):
        train(corpus, experiment, tmp_path / "broken", device="cpu", report=die)
    resumed = train(corpus, experiment, tmp_path / "broken", device="cpu", resume=True)
    assert metrics_of(resumed.run) == metrics_of(whole.run)
    assert_same_tensors(state_of(resumed.run, 12), state_of(whole.run, 12))
    assert (
        load_checkpoint(resumed.run / "best.safetensors").sha256
        == load_checkpoint(Run(whole.run).best).sha256
    )
    # What is kept is the average, and the rate of a shorter run would have been another.
    state = state_of(whole.run, 12)
    kept = load_checkpoint(Run(whole.run).checkpoint(12)).model.state_dict()
    assert torch.equal(kept["heads.projection.weight"], state["averaged/heads.projection.weight"])
    assert not torch.equal(kept["heads.projection.weight"], state["model/heads.projection.weight"])
    with pytest.raises(ConfigError, match="another configuration"):
        train(corpus, experiment.with_changes(steps=16), whole.run, device="cpu", resume=True)


@pytest.mark.parametrize("written", [False, True], ids=["before the state", "after the state"])
def test_a_run_that_dies_while_saving_loses_and_repeats_nothing(
    run: TrainResult, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    def die(path: Path, step: TrainStep, record: RunRecord) -> None:
        if record.step == 8 and not written:
            raise KilledError
        save_state(path, step, record)
        if record.step == 8:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", die)
        with pytest.raises(KilledError):
            train(corpus, TINY, tmp_path / "run", device="cpu")
    train(corpus, TINY, tmp_path / "run", device="cpu", resume=True)
    assert metrics_of(tmp_path / "run") == metrics_of(run.run)
    assert_same_tensors(state_of(tmp_path / "run", 12), state_of(run.run, 12))


def test_a_finished_run_resumes_to_its_own_result(run: TrainResult, corpus: Corpus) -> None:
    before = metrics_of(run.run)
    again = train(corpus, TINY, run.run, device="cpu", resume=True)
    assert again == run
    assert metrics_of(run.run) == before


def test_a_longer_run_goes_on_from_a_shorter_one(
    run: TrainResult, corpus: Corpus, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(corpus, TINY.with_changes(steps=8), folder, device="cpu")
    train(corpus, TINY, folder, device="cpu", resume=True)
    assert metrics_of(folder) == metrics_of(run.run)
    assert tomllib.loads((folder / "config.toml").read_text())["train"]["steps"] == 12


def test_a_run_does_not_go_back(run: TrainResult, corpus: Corpus) -> None:
    """Its `config.toml` would name fewer steps than its model has seen."""
    before = Run(run.run).config.read_bytes()
    with pytest.raises(ConfigError, match="gone further") as refused:
        train(corpus, TINY.with_changes(steps=8), run.run, device="cpu", resume=True)
    assert "expected: steps=12 or more" in str(refused.value)
    assert Run(run.run).config.read_bytes() == before


def test_losses_of_hopeless_forecasts_are_those_of_an_evaluation(
    corpus: Corpus, tmp_path: Path
) -> None:
    wild = TINY.with_changes(learning_rate=3.0, validate_every=1, keep_last=12)
    train(corpus, wild, tmp_path / "run", device="cpu")
    rows = corpus.endpoints("validation", TINY.model.context)
    losses = {}
    for step in range(1, 13):
        model = load_checkpoint(Run(tmp_path / "run").checkpoint(step)).model
        probs = predict_probabilities(model, corpus, rows, torch.device("cpu"))
        losses[step] = event_bits(probs, corpus.target_return[rows])
    assert max(each.max() for each in losses.values()) > 39.8  # the most that one event can cost
    expected = {step: pytest.approx(each.mean(), abs=1e-6) for step, each in losses.items()}
    assert Run(tmp_path / "run").validation_bits() == expected


def test_old_checkpoints_give_way(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = train(corpus, TINY.with_changes(validate_every=2, keep_last=2), folder, device="cpu")
    assert Run(folder).saved_steps() == [10, 12]
    kept = {path.name for path in (folder / "checkpoints").iterdir()}
    assert kept == {
        path(step).name for path in (Run(folder).checkpoint, Run(folder).state) for step in (10, 12)
    }
    assert load_checkpoint(folder / "best.safetensors").provenance.step == result.best_step


def test_patience_ends_a_run_that_no_longer_improves(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    restless = TINY.with_changes(
        learning_rate=0.1, validate_every=1, log_every=1, steps=60, patience=3
    )
    result = train(corpus, restless, folder, device="cpu")
    bits = [line["validation_bits"] for line in metrics_of(folder)]
    assert len(bits) == result.last_step == result.best_step + 3 < 60
    assert min(bits) == bits[result.best_step - 1] == result.best_bits
    assert load_checkpoint(folder / "best.safetensors").provenance.step == result.best_step
    # It does not wake up again.
    assert train(corpus, restless, folder, device="cpu", resume=True) == result
    # With more patience the same run goes on.
    more = train(corpus, restless.with_changes(patience=4), folder, device="cpu", resume=True)
    assert more.last_step > result.last_step


def test_one_process_trains_a_run_at_a_time(
    run: TrainResult, corpus: Corpus, tmp_path: Path
) -> None:
    refused = 0

    def meanwhile(_: object) -> None:
        nonlocal refused
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"):
            train(corpus, TINY, tmp_path / "runs" / "run", device="cpu", resume=True)
        refused += 1

    train(corpus, TINY, tmp_path / "runs" / "run", device="cpu", report=meanwhile)
    assert refused == len(metrics_of(run.run))
    assert metrics_of(tmp_path / "runs" / "run") == metrics_of(run.run)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_a_run_folder_is_not_written_over(run: TrainResult, corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="holds a run already") as caught:
        train(corpus, TINY, run.run, device="cpu")
    assert "--resume" in str(caught.value.fix)


@pytest.mark.parametrize(
    "other",
    [
        TINY.with_changes(learning_rate=1e-3),
        TINY.with_changes(width=32),
        TINY.with_changes(seed=18),
    ],
    ids=["learning rate", "width", "seed"],
)
def test_another_configuration_does_not_resume(
    run: TrainResult, corpus: Corpus, other: Experiment
) -> None:
    with pytest.raises(ConfigError, match="another configuration"):
        train(corpus, other, run.run, device="cpu", resume=True)


def test_a_damaged_state_does_not_resume_but_the_one_before_does(
    corpus: Corpus, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    whole = train(corpus, TINY, folder, device="cpu")
    newest = Run(folder).state(12)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated") as caught:
        train(corpus, TINY, folder, device="cpu", resume=True)
    assert "remove this one" in str(caught.value.fix)
    newest.unlink()
    assert train(corpus, TINY, folder, device="cpu", resume=True).best_bits == whole.best_bits
