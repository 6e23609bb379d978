"""What proofs examine and fill: the pipeline, and the proof itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from vaiom.auditing.pipeline import Pipeline, widest_model
from vaiom.auditing.proof import FAILED, NOT_RUN, PASSED, AuditConfig, Proof, claim
from vaiom.baselines.base import baseline
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS
from vaiom.files import sha256_of
from vaiom.market.folder import read_bars
from vaiom.training.experiment import TrainConfig
from verification.leaks.leaky import make_pipeline


@pytest.fixture(scope="module")
def corpus(finished: Path) -> Corpus:
    return open_corpus(finished / "corpus")


def test_a_pipeline_shows_fits_and_samples_what_a_training_would(
    corpus: Corpus, tmp_path: Path
) -> None:
    train = TrainConfig(seed=5, micro_batch=3, num_micro_batches=2)
    pipeline = Pipeline(None, widest_model(16), train, baselines=("frequency", "markov"))
    assert pipeline.model.fields == (*CONT_FIELDS, *EXTRA_FIELDS)
    rows, inputs = np.array([15, 99, 2_415]), corpus.inputs(pipeline.model)
    windows = [inputs[row - 15 : row + 1] for row in rows]
    np.testing.assert_array_equal(pipeline.windows(corpus, rows), windows)
    for name, own in pipeline.splits(corpus).items():
        np.testing.assert_array_equal(own, corpus.endpoints(name, 16))
    assert tuple(pipeline.splits(corpus)) == ("train", "validation", "test-h1", "test-h2")
    ends = corpus.endpoints("train", 16)
    drawn = ends[np.random.default_rng([5, 7]).integers(0, len(ends), 6)]
    np.testing.assert_array_equal(pipeline.sampler(corpus).draw(7), drawn)
    hashes = {"tokenizer": corpus.tokenizer.sha256}
    for name in ("frequency", "markov"):
        (tmp_path / name).mkdir()
        baseline(name).fit(corpus, ends).save(tmp_path / name)
        files = sorted(file for file in (tmp_path / name).rglob("*") if file.is_file())
        hashes[name] = sha256_of(b"".join(file.read_bytes() for file in files))
    assert pipeline.hashes(corpus) == hashes


@pytest.mark.parametrize("moved", [False, True])
def test_a_pipeline_builds_what_the_corpus_is(finished: Path, corpus: Corpus, moved: bool) -> None:
    """Under other boundaries than it was built with, too."""
    splits, expected = corpus.splits, corpus
    if moved:
        splits = replace(splits, train_end=splits.train_end - timedelta(days=3))
        expected = corpus.with_splits(splits)
    built = replace(make_pipeline(splits), moved=moved).corpus(read_bars(finished / "bars"))
    assert built.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(built.columns[name], column)
    assert built.tokenizer.sha256 == expected.tokenizer.sha256


def test_a_proof_counts_and_shows_the_first_eight_findings() -> None:
    @claim("a name", "a sentence")
    def examine(proof: Proof, holds: int, *, fails: int = 0) -> None:
        for number in range(holds):
            assert proof.check(True, f"no problem {number}", 3)
        for number in range(fails):
            assert not proof.check(False, f"problem {number}")

    empty = examine.proof("why")
    assert (empty.verdict, empty.notes, empty.count) == (NOT_RUN, ["why"], 0)
    assert (examine(2).verdict, examine(2).count) == (PASSED, 6)
    found = examine(1, fails=10)
    assert (found.verdict, found.count, len(found.findings)) == (FAILED, 13, 10)
    assert found.seconds > 0
    found.seconds, found.notes = 1.23456, ["a note"]
    assert found.summary() == {
        "name": "a name",
        "about": "a sentence",
        "verdict": "failed",
        "count": 13,
        "num_findings": 10,
        "findings": [f"problem {number}" for number in range(8)],
        "notes": ["a note"],
        "seconds": 1.235,
    }


def test_an_audit_has_a_seed_of_its_own() -> None:
    first, second = AuditConfig(), AuditConfig()
    assert first.seed != second.seed
    assert max(first.seed, second.seed) < 2**32
