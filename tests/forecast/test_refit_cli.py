"""`vaiom refit` as a user runs it: the same configuration through the newest bars, for use, and
evaluation says no.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from forecast_runs import CONTEXT, TinyRun, tiny_run

from strategies import random_bars
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import CheckpointError
from vaiom.evaluation.access_ledger import model_accesses
from vaiom.experiments.refit import fit_horizons, refit, shifted_corpus
from vaiom.forecast.export import export_run
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_bars
from vaiom.model.checkpoint import load_checkpoint

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """Enough bars for half a year beside a Train."""
    bars = {symbol: random_bars(6_000, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}
    return tiny_run(tmp_path_factory.mktemp("long"), bars)


@pytest.fixture(scope="module")
def end(long: TinyRun) -> datetime:
    return read_bars(long.bars)["EURUSD"]["Datetime"][-1] + timedelta(hours=1)


@pytest.fixture(scope="module")
def refitted(long: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refit") / "run"
    refit(long.run, long.corpus, folder, device="cpu")
    return folder


def num_accesses(corpus: Corpus) -> list[int]:
    """How often the models of a corpus saw targets that it holds out."""
    return [len(model_accesses(corpus, split)) for split in ("test-h1", "sealed")]


def test_it_trains_the_configuration_on_all_bars(
    long: TinyRun, refitted: Path, end: datetime
) -> None:
    made = load_checkpoint(refitted / "best.safetensors")
    before = load_checkpoint(long.run / "best.safetensors")
    assert (made.provenance.purpose, before.provenance.purpose) == ("use", "evidence")
    assert made.config == before.config
    for name in ("experiment", "train", "seed", "inputs"):
        assert getattr(made.provenance, name) == getattr(before.provenance, name)
    half = (end - timedelta(weeks=26)).isoformat()
    assert made.provenance.splits == {
        "train_end": half,
        "validation": [half, end.isoformat()],
        "tests": [],
        "seal": end.isoformat(),
    }
    assert made.tokenizer.sha256 == shifted_corpus(long.corpus).tokenizer.sha256
    assert made.tokenizer.sha256 != before.tokenizer.sha256
    # Selecting looked at events that the corpus holds out, and its ledger says so.
    assert num_accesses(long.corpus) == [1, 1]


def test_it_is_used_like_any_other_and_says_what_it_is(
    run: Run, long: TinyRun, refitted: Path, tmp_path: Path
) -> None:
    code, out, err = run("predict", refitted, "--bars", long.bars, "--json")
    assert code == 0, err
    assert json.loads(out)["model"]["purpose"] == "use"
    assert Forecaster.load(long.run).describe()["purpose"] == "evidence"
    pytest.importorskip("onnxscript")
    assert export_run(refitted, tmp_path / "m.onnx").real_windows == 32
    assert Forecaster.load(tmp_path / "m.onnx").describe()["purpose"] == "use"


@pytest.mark.parametrize(
    ("split", "says"),
    [("test-h1", "selected on targets of this split"), ("validation", "trained on targets")],
)
def test_it_is_no_evidence(run: Run, refitted: Path, split: str, says: str) -> None:
    code, out, err = run("evaluate", refitted, "--split", split)
    assert (code, out) == (2, "")
    assert says in err
    assert "score the run it was refitted from" in err


@pytest.fixture
def command(run: Run, long: TinyRun) -> Run:
    return partial(run, "refit", long.run, "--corpus", long.corpus.path, "--device", "cpu")


def test_a_run_is_not_overwritten_and_the_end_is_in_the_data(
    command: Run, long: TinyRun, refitted: Path
) -> None:
    other = refitted.parent / "other"
    for words, says in (
        ((other,), "learns from Validation and the tests"),
        ((refitted, "--yes"), "holds a run already"),
        ((other, "--yes", "--until", "2030-01-01"), "the data end before this"),
        ((other, "--yes", "--until", "2023-11-03"), "Train holds no usable event"),
        ((other, "--yes", "--until", "2024-01-01"), "Train"),
    ):
        code, out, err = command("--out", *words)
        assert (code, out) == (2, ""), err
        assert says in err
    assert not other.exists()
    assert num_accesses(long.corpus) == [1, 1]


def test_the_command(command: Run, tmp_path: Path) -> None:
    words = ("--out", tmp_path / "run", "--yes")
    code, out, err = command(*words, "--until", "2024-06-15", "--json")
    assert code == 0, err
    made = load_checkpoint(tmp_path / "run" / "best.safetensors").provenance
    assert json.loads(out)["best_bits"] == made.validation_bits
    assert (made.purpose, made.splits["seal"]) == ("use", "2024-06-15T00:00:00")
    code, out, err = command(*words, "--until", "2024-06-15", "--resume")
    assert code == 0, err
    assert "for use, not for evidence" in err
    code, _, err = command(*words, "--resume")
    assert code == 2, "other bars, another run"


def test_bars_from_a_day_on_can_be_left_out(long: TinyRun) -> None:
    until = datetime(2024, 6, 1)
    shifted = shifted_corpus(open_corpus(long.corpus.path), until)
    rows = shifted.endpoints("validation", CONTEXT)
    targets = shifted.target_timestamps[rows]
    assert targets.max() == np.datetime64(until - timedelta(hours=1))
    assert targets.min() >= np.datetime64(until - timedelta(weeks=26))
    assert shifted.target_timestamps[shifted.endpoints("train", CONTEXT)].max() < targets.min()


def test_heads_of_a_refit_are_fitted_under_its_boundaries_and_the_access_is_recorded(
    long: TinyRun, refitted: Path, tmp_path: Path
) -> None:
    corpus = open_corpus(Path(shutil.copytree(long.corpus.path, tmp_path / "corpus")))
    run = Path(shutil.copytree(refitted, tmp_path / "run"))
    before = num_accesses(corpus)
    fitted = fit_horizons(run, corpus, (2,), device="cpu")
    assert fitted.corpus_sha256 == shifted_corpus(corpus).sha256
    assert Forecaster.load(run).horizons == (1, 2)
    assert num_accesses(corpus) == [count + 1 for count in before]
    assert model_accesses(corpus, "sealed")[-1].run == "run"
    # A run for evidence looks at nothing that is held out.
    shutil.copytree(long.run, tmp_path / "evidence")
    fit_horizons(tmp_path / "evidence", corpus, (2,), device="cpu")
    assert num_accesses(corpus) == [count + 1 for count in before]


def test_heads_need_the_buckets_of_the_model(long: TinyRun, tmp_path: Path) -> None:
    tokenizer = shifted_corpus(long.corpus, datetime(2024, 6, 1)).tokenizer
    run = Path(shutil.copytree(long.run, tmp_path / "run"))
    with pytest.raises(CheckpointError, match="tokenizer"):
        fit_horizons(run, replace(long.corpus, tokenizer=tokenizer), (2,), device="cpu")
    assert Forecaster.load(run).horizons == (1,)
