"""How far apart is too far: each tolerance lets through half of itself and refuses twice
as much.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from vaiom.auditing import figures, leakage
from vaiom.auditing.pipeline import AuditedRun, Pipeline, widest_model
from vaiom.auditing.proof import FAILED, PASSED, AuditConfig, Proof
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.distribution.dependence import Dependence
from vaiom.evaluation.scores import find_rows, read_events

HALF, TWICE = 0.5, 2.0
ENOUGH = pytest.mark.parametrize(("times", "verdict"), [(HALF, PASSED), (TWICE, FAILED)])


@ENOUGH
@pytest.mark.parametrize(
    ("figure", "tolerance"), [(1_000.0, 1e-6), (0.0, 1e-11)], ids=["relative", "absolute"]
)
def test_a_figure_is_the_same_to_nine_digits(
    figure: float, tolerance: float, times: float, verdict: str
) -> None:
    proof = Proof(claim=figures.prove_figures)
    figures.compare_figures(
        proof, {"bits": [figure]}, {"bits": [figure + times * tolerance]}, "split"
    )
    assert proof.verdict == verdict


@ENOUGH
@pytest.mark.parametrize("name", ["covariance", "correlation"])
def test_a_fitted_matrix_is_the_same_to_a_thousandth(
    name: str, times: float, verdict: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: dict[str, Any] = {
        "covariance": np.eye(2),
        "correlation": np.eye(2),
        "decay": 0.9,
        "shrinkage": 0.1,
    }
    names: dict[str, Any] = {
        "checkpoint_sha256": "0",
        "symbols": ("A", "B"),
        "classes": ("FX", "FX"),
    }
    fit = Dependence(**names, **parts, degrees={"1": 8.0}, references={}, num_stamps=9)
    monkeypatch.setattr(figures, "fit_dependence", lambda *_: fit)
    moved = getattr(fit, name) + times * 1e-3 * np.eye(2)[::-1]
    none: Any = None
    corpus, config = open_corpus(finished / "corpus"), AuditConfig(cuts=0, seed=1)
    assert (
        figures.prove_dependence(replace(fit, **{name: moved}), none, corpus, config).verdict
        == verdict
    )


def test_a_dependence_that_was_fitted_on_later_rows_is_found(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(_: Any, corpus: Corpus) -> Dependence:
        seen = int(1e9 * np.abs(corpus.columns["log_ret"][-1]))
        names: dict[str, Any] = {
            "checkpoint_sha256": "0",
            "symbols": ("A", "B"),
            "classes": ("FX", "FX"),
        }
        parts: dict[str, Any] = {
            "covariance": np.eye(2),
            "correlation": np.eye(2),
            "decay": 0.9,
            "shrinkage": 0.1,
        }
        return Dependence(**names, **parts, degrees={"1": 8.0}, references={}, num_stamps=seen)

    monkeypatch.setattr(figures, "fit_dependence", fit)
    none: Any = None
    corpus = open_corpus(finished / "corpus")
    proof = figures.prove_dependence(fit(none, corpus), none, corpus, AuditConfig(cuts=0, seed=1))
    assert [finding.split(":")[0] for finding in proof.findings] == [
        "Train gives another num_stamps"
    ]


@ENOUGH
def test_a_probability_is_the_same_to_a_hundred_thousandth(
    times: float, verdict: str, finished: Path
) -> None:
    class Alone:
        name = "alone"

        def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
            return np.full((len(rows), 16), 1 / 16) + times * 1e-5 * (len(rows) == 1)

    pipeline = Pipeline(None, widest_model(16), predictor=Alone())
    proof = leakage.prove_neighbours(pipeline, open_corpus(finished / "corpus"), seed=1)
    assert proof.verdict == verdict
    assert proof.notes == [
        f"largest difference of a probability {times * 1e-5:.1e}, tolerance 1e-05"
    ]


@ENOUGH
def test_a_baselines_loss_is_the_same_to_a_millionth_of_a_bit(
    times: float, verdict: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaiom.auditing.proof.MAX_FINDINGS", 10**6)
    run = AuditedRun(
        place / "seed17", open_corpus(place / "corpus"), AuditConfig(seed=1, baselines=("markov",))
    )
    for split in ("test-h1", "test-h2"):
        run.files.evaluation(split).unlink()
    events = pl.read_parquet(run.files.events("validation"))
    one = pl.when(pl.int_range(pl.len()) == 7).then(times * 1e-6).otherwise(0.0)
    events.with_columns(pl.col("bits_markov") + one).write_parquet(run.files.events("validation"))
    found = figures.prove_figures(run).findings
    assert any("markov gives an event" in finding for finding in found) == (verdict == FAILED)


def test_what_another_machine_may_have_answered_hides_no_figure(place: Path) -> None:
    """Losses that moved by what rounding explains: figures that rest on the model's answers may
    differ a little.
    """
    run = AuditedRun(place / "seed17", open_corpus(place / "corpus"), AuditConfig(seed=1))
    events = read_events(run.files.path, "validation")
    rows = find_rows(run.corpus, run.corpus.target_timestamps, events.symbols, events.target_times)
    moved = events.bits["model"] + run.rounding("validation", "float32").bits / 100
    proof = Proof(claim=figures.prove_figures)
    for bits, known in ((events.bits["model"], True), (moved, False)):
        other = replace(events, bits=events.bits | {"model": bits}, probs=None)
        _, tolerances = figures._score_again(
            proof, run, "validation", rows, other, {"precision": "float32"}
        )
        assert (tolerances == {}) is known
    assert 0 < tolerances["bits_alone"] < 0.002
    assert tolerances["joint"] == 0.005
    assert tolerances["mixture"] == pytest.approx(8 / len(rows))
