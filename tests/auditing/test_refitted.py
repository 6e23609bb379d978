"""A refit has boundaries of its own: its audit proves what applies under them, and says what does
not.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from cli.command_line import Vaiom
from evaluation.simulated_market import TINY_SPLITS, tiny_corpus
from training.tiny_runs import TINY
from vaiom.auditing.audit import audit_path
from vaiom.auditing.proof import FAILED, NOT_RUN, AuditConfig
from vaiom.corpus.append import append_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import open_corpus
from vaiom.errors import CheckpointError
from vaiom.experiments.refit import fit_horizons, refit
from vaiom.market.folder import read_file, write_symbol
from vaiom.training.loop import train

QUICK = AuditConfig(cuts=1, rare_cuts=0, baselines=("frequency",))


@pytest.fixture(scope="module")
def refitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bars` with half a year beside a Train, `corpus`, `run` and its `refit`."""
    folder = tmp_path_factory.mktemp("refitted")
    corpus = tiny_corpus(folder, rows=6_000)
    train(
        corpus,
        TINY.with_changes(steps=4, num_layers=1, validate_every=4),
        folder / "run",
        device="cpu",
    )
    refit(folder / "run", corpus, folder / "refit", device="cpu")
    return folder


@pytest.fixture
def place(refitted: Path, tmp_path: Path) -> Path:
    shutil.copytree(refitted, tmp_path / "place")
    return tmp_path / "place"


def failed(place: Path, run: str = "refit") -> set[str]:
    proofs = audit_path(place / run, corpus=place / "corpus", bars=place / "bars", config=QUICK)
    return {proof.name for proof in proofs if proof.verdict == FAILED}


def test_it_passes_what_applies_and_says_what_does_not(refitted: Path, vaiom: Vaiom) -> None:
    got = vaiom(
        "audit",
        refitted / "refit",
        "--bars",
        refitted / "bars",
        "--cuts",
        2,
        "--rare-cuts",
        0,
        "--json",
    ).json()
    assert got["passed"]
    (left_out,) = (proof for proof in got["proofs"] if proof["verdict"] == NOT_RUN)
    assert left_out["name"] == "e. evaluation"
    assert left_out["notes"] == ["no figures: a refit is for use, and nothing was held out of it"]
    (selection,) = (proof for proof in got["proofs"] if proof["name"] == "g. selection")
    assert any("holds out as sealed" in note for note in selection["notes"])
    assert failed(refitted, "run") == set()


def test_its_training_repeats(refitted: Path, vaiom: Vaiom) -> None:
    (proof,) = vaiom("audit", "--repeat", "--full", refitted / "refit", "--json").json()["proofs"]
    assert proof["verdict"] == "passed"
    assert proof["notes"][1] == "the run's own best.safetensors is the same"


def test_it_is_still_its_own_when_the_corpus_has_grown(place: Path) -> None:
    for symbol in ("EURUSD", "XAUUSD"):
        old = read_file(place / f"bars/{symbol}.parquet")
        later = old.tail(50).with_columns(
            pl.col("Datetime") + (old["Datetime"][-1] - old["Datetime"][-51])
        )
        write_symbol(place / "bars", symbol, pl.concat([old, later]))
    append_bars(place / "corpus", place / "bars")
    assert failed(place) == set()


def test_heads_of_a_refit_look_and_need_no_evaluation(place: Path) -> None:
    fit_horizons(place / "refit", open_corpus(place / "corpus"), (2,), device="cpu")
    assert failed(place) == set()


def test_looks_that_are_not_recorded_are_found(place: Path) -> None:
    (place / "corpus/ledger.jsonl").unlink()
    assert failed(place) == {"g. selection"}


def test_a_model_of_other_bars_is_not_its_own(place: Path) -> None:
    """The corpus is built again from bars that differ in one price of Train."""
    bars = read_file(place / "bars/EURUSD.parquet")
    raised = (
        pl.when(pl.int_range(pl.len()) == 500)
        .then(pl.col("Close") * 1.001)
        .otherwise(pl.col("Close"))
    )
    write_symbol(place / "bars", "EURUSD", bars.with_columns(raised))
    shutil.rmtree(place / "corpus")
    build_corpus(place / "bars", place / "corpus", CorpusConfig(splits=TINY_SPLITS))
    with pytest.raises(CheckpointError, match="another tokenizer"):
        failed(place)
