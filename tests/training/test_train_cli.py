"""`vaiom train` and `vaiom experiments` as people and scripts meet them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tiny_runs import CHANGES

from vaiom.cli.main import main
from vaiom.corpus.store import Corpus
from vaiom.experiments.registry import PATIENCE, experiment, stopping_early


def vaiom(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command line, run in this process through its own entry point."""
    monkeypatch.setattr(sys, "argv", ["vaiom", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def train_arguments(corpus: Corpus, run: Path, **changes: object) -> list[str]:
    settings = [
        part for key, value in (CHANGES | changes).items() for part in ("--set", f"{key}={value}")
    ]
    return ["train", str(corpus.path), "--experiment", "demo", "--out", str(run), *settings]


def test_training_reports_for_people_and_for_scripts(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = train_arguments(corpus, tmp_path / "run", log_every=1)
    assert vaiom(monkeypatch, *arguments, "--steps", "8", "--seed", "29") == 0
    out, err = capsys.readouterr()
    assert "best Validation bits/event" in out
    assert "seconds" in out
    lines = [line for line in err.splitlines() if line.startswith("training:")]
    assert lines[0].startswith("training: 1/8 loss ")
    assert "bits, best " in lines[-1]
    assert "steps/s" in lines[-2]
    assert "left" in lines[-2]
    assert (
        vaiom(monkeypatch, *arguments, "--steps", "12", "--seed", "29", "--resume", "--json") == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["last_step"] == 12
    assert result["peak_gpu_mib"] is None
    assert set(result) == {
        "run",
        "best_step",
        "best_bits",
        "last_step",
        "last_bits",
        "seconds",
        "peak_gpu_mib",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--experiment", "mian"], "main, main-5m"),
        (["--set", "learning_rat=1"], "learning_rate"),
        (["--set", "learning_rate=fast"], "not a value for learning_rate"),
        (["--set", "precision=fp16"], "CPUs train in FP32"),
        (["--device", "tpu"], "auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "no such device"),
        (["--set", "context=4000"], "no window to learn from"),
        (["--set", "learning_rate=1e30"], "offers no model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_user_can_fix_is_one_message_and_exit_2(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: list[str],
    message: str,
) -> None:
    arguments = [*train_arguments(corpus, tmp_path / "run"), "--device", "cpu", *change]
    assert vaiom(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_a_folder_that_is_no_corpus_is_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(tmp_path), "--experiment", "demo", "--out", str(tmp_path / "run")]
    assert vaiom(monkeypatch, *arguments) == 2
    assert "not a corpus" in capsys.readouterr().err


def test_experiments_lists_and_resolves(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vaiom(monkeypatch, "experiments", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["experiments"]
    assert {"main", "demo"} <= {each["name"] for each in listed}
    assert all(each["about"] for each in listed)
    assert vaiom(monkeypatch, "experiments", "main", "--json") == 0
    main_ = json.loads(capsys.readouterr().out)
    assert main_["num_params"] == 911_582
    assert (main_["model"]["input"], main_["train"]["seed"]) == ("hybrid", 17)
    assert vaiom(monkeypatch, "experiments", "main", "--corpus", str(corpus.path), "--json") == 0
    ours = json.loads(capsys.readouterr().out)["num_params"]
    gap_buckets = corpus.tokenizer.num_buckets["gap"]
    assert ours == 911_582 - (11 - 2) * 8 + (gap_buckets - 14) * 129
    assert vaiom(monkeypatch, "experiments", "main") == 0
    assert "911,582" in capsys.readouterr().out
    assert vaiom(monkeypatch, "experiments", "mian") == 2
    assert "main, main-5m" in capsys.readouterr().err


def test_three_experiments_are_shown_and_the_rest_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert vaiom(monkeypatch, "experiments") == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line][2:] == ["main", "demo", "best"]
    assert "--all" in err
    assert vaiom(monkeypatch, "experiments", "--all") == 0
    assert "best-512-aux" in capsys.readouterr().out


def test_only_the_papers_experiments_run_their_whole_length() -> None:
    chosen = {
        name: stopping_early(experiment(name)).train.patience
        for name in ("main", "cont-20k", "demo", "best")
    }
    assert chosen == {"main": 0, "cont-20k": 0, "demo": PATIENCE, "best": PATIENCE}
    assert PATIENCE == 4
    assert stopping_early(experiment("best")).sha256 == experiment("best").sha256
    assert stopping_early(experiment("demo").with_changes(patience=9)).train.patience == 9


def test_one_unit_and_a_word_where_validation_has_left_its_best(
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        vaiom(
            monkeypatch,
            *train_arguments(corpus, tmp_path / "run", learning_rate=1.0, validate_every=1),
        )
        == 0
    )
    err = capsys.readouterr().err
    assert "nats" not in err
    assert "and rising since" in err
    assert "more steps do not help" in err
