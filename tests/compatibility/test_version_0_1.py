"""What version 0.1 wrote still opens and answers the same: corpus, runs, evaluations, experiments,
resumed training.

`v0_1` holds a small simulated market, its corpus, runs of `main` and `best` at a tiny width, and
the answers of that version. On the processor and libraries that gave them the answers must agree to
the bit, elsewhere to rounding.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vaiom.baselines import store
from vaiom.cli.main import main
from vaiom.corpus import tokenizer as fit
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.forecast import stream as online

STORED = Path(__file__).parent / "v0_1"
ANSWERS = json.loads((STORED / "answers.json").read_text())
EXAMINES_THE_SERVED_DISTRIBUTION_NOW = {
    "backtests",
    "backtests_by",
    "pit",
    "pit_histogram",
    "pit_p_value",
}
"""Version 0.1 tested a distribution that nobody was served: these figures had to change."""
SETTINGS = {
    "width": 16,
    "num_heads": 2,
    "num_layers": 2,
    "context": 64,
    "micro_batch": 8,
    "validate_every": 30,
    "learning_rate": 3e-3,
    "keep_last": 1,
    "precision": "fp32",
    "steps": 90,
}


def same_machine() -> bool:
    """Whether this processor and these libraries are those of the stored answers."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    cpu = [line for line in lines if line.startswith(("model name", "flags"))][:2]
    told = "\n".join(cpu) + torch.__version__ + np.__version__
    return hashlib.sha256(told.encode()).hexdigest() == ANSWERS["machine"]


def differences(ours: Any, theirs: Any, exact: bool, where: str = "") -> list[str]:
    """Where two JSON values differ; keys that only ours has are new, and no difference."""
    if isinstance(theirs, dict):
        if not isinstance(ours, dict):
            return [f"{where}: no object"]
        kept = [key for key in theirs if key not in EXAMINES_THE_SERVED_DISTRIBUTION_NOW]
        missing = [f"{where}/{key}: missing" for key in kept if key not in ours]
        found = (
            differences(ours[key], theirs[key], exact, f"{where}/{key}")
            for key in kept
            if key in ours
        )
        return missing + [line for lines in found for line in lines]
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return [f"{where}: another length"]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [
            line
            for number, (a, b) in pairs
            for line in differences(a, b, exact, f"{where}/{number}")
        ]
    if isinstance(theirs, float) and not exact:
        close = isinstance(ours, (int, float)) and abs(ours - theirs) <= 1e-5 + 1e-4 * abs(theirs)
        return [] if close else [f"{where}: {ours}, not {theirs}"]
    return [] if ours == theirs else [f"{where}: {ours!r}, not {theirs!r}"]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored files as they lay, with the corpus unpacked beside the runs that name it."""
    shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(tmp_path / "stored")
    run_command(monkeypatch, "corpus", "unpack", "corpus.vaiom", "corpus")
    return tmp_path / "stored"


def run_command(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["vaiom", *map(str, words)])
    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    assert not code, words


def digest(array: Any) -> str:
    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()


def require_stored_answers(corpus: Corpus) -> None:
    assert corpus.sha256 == ANSWERS["corpus_sha256"]
    assert corpus.tokenizer.sha256 == ANSWERS["tokenizer_sha256"]
    assert {name: digest(getattr(corpus, name)) for name in ANSWERS["arrays"]} == ANSWERS["arrays"]
    assert {
        split: digest(corpus.endpoints(split, 64)) for split in ANSWERS["endpoints"]
    } == ANSWERS["endpoints"]
    assert {
        name: [repr(float(edge)) for edge in edges] for name, edges in corpus.edges.items()
    } == ANSWERS["edges"]


def test_a_packed_corpus_opens_to_the_bit(stored: Path) -> None:
    require_stored_answers(open_corpus(stored / "corpus"))


def test_the_same_bars_build_the_same_corpus(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = "2025-11-22:2025-12-10,2025-12-10:2025-12-24"
    boundaries = {
        "train-end": "2025-10-15",
        "validation": "2025-11-01:2025-11-22",
        "test": tests,
        "seal": "2025-12-24",
    }
    words = [word for name, value in boundaries.items() for word in (f"--{name}", value)]
    run_command(monkeypatch, "corpus", "build", "bars", "--out", "built", *words)
    require_stored_answers(open_corpus(stored / "built"))


@pytest.mark.parametrize("experiment", ["main", "best"])
def test_a_run_is_evaluated_alike(
    stored: Path,
    experiment: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = json.loads((stored / experiment / "evaluation-validation.json").read_text())
    capsys.readouterr()
    words = (experiment, "--split", "validation", "--baselines", "baselines", "--json")
    run_command(monkeypatch, "evaluate", *words)
    found = differences(json.loads(capsys.readouterr().out), before, same_machine())
    # Where the corpus was is not part of the answer, nor is what people are told about it.
    assert [line for line in found if not line.startswith(("/corpus:", "/caveats"))] == []


@pytest.mark.parametrize("experiment", ["main", "best"])
def test_a_run_forecasts_alike(
    stored: Path,
    experiment: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    before = json.loads((stored / experiment / "predict.json").read_text())
    now = max(
        each["as_of"] for each in before["forecasts"]
    )  # version 0.1 did not look at the clock
    run_command(monkeypatch, "predict", experiment, "--bars", "bars", "--now", now, "--json")
    assert differences(json.loads(capsys.readouterr().out), before, same_machine()) == []


def test_a_stored_evaluation_is_reported(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command(monkeypatch, "report", "best")
    assert (stored / "best" / "report.html").stat().st_size > 100_000


def test_training_goes_on_from_a_stored_state(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    words = (
        "corpus",
        "--experiment",
        "main",
        "--out",
        "main",
        "--device",
        "cpu",
        "--resume",
        *settings,
    )
    run_command(monkeypatch, "train", *words)
    last = json.loads((stored / "main" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == ANSWERS["resumed_step"]
    assert last["validation_bits"] == pytest.approx(
        ANSWERS["resumed_bits"], abs=0 if same_machine() else 1e-3
    )


def test_experiments_keep_their_hashes() -> None:
    """Records are found by them."""
    from vaiom.experiments.registry import EXPERIMENTS

    known = {each.hashed_name: each.sha256 for each in EXPERIMENTS.values() if each.name != "best"}
    assert known == ANSWERS["experiments"]


def test_formats_that_are_stored_change_their_version_deliberately() -> None:
    """What an earlier vaiom wrote would be refused: docs/compatibility.md says how a format is
    retired.
    """
    versions = {
        "vaiom.baselines.networks": ("vaiom-tabm", 1),
        "vaiom.forecast.backend": ("vaiom-onnx", 1),
        "vaiom.model.checkpoint": ("vaiom-checkpoint", 2),
        "vaiom.model.horizons": ("vaiom-horizons", 1),
        "vaiom.training.step": ("vaiom-training-state", 1),
        "vaiom.corpus.store": ("vaiom-corpus", 2),
    }
    for name, version in versions.items():
        module = import_module(name)
        assert version == (module.FORMAT, module.FORMAT_VERSION)
    stored = (store.FIT_VERSION, fit.TOKENIZER_VERSION, online.STATE_VERSION)
    assert stored == (1, 2, 3)
