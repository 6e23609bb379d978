"""What proofs examine and fill: the pipeline, a run, how far rounding may move its losses, and the
proof itself.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from auditing.leaky import make_pipeline
from vaiom.auditing.pipeline import AuditedRun, Pipeline, Rounding, widest_model
from vaiom.auditing.proof import FAILED, NOT_RUN, PASSED, AuditConfig, Claim, Proof, claim
from vaiom.baselines.base import baseline
from vaiom.baselines.store import fit_or_load
from vaiom.corpus.build import CorpusConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS
from vaiom.files import sha256_of
from vaiom.market.folder import read_bars
from vaiom.training.experiment import TrainConfig
from vaiom.training.windows import DeviceCorpus, Scorer

SPLITS = ("train", "validation", "test-h1", "test-h2")


@pytest.fixture(scope="module")
def corpus(finished: Path) -> Corpus:
    return open_corpus(finished / "corpus")


def audited(finished: Path, **options: Any) -> AuditedRun:
    return AuditedRun(
        finished / "seed17", open_corpus(finished / "corpus"), AuditConfig(seed=3, **options)
    )


def test_a_pipeline_shows_fits_and_samples_what_a_training_would(
    corpus: Corpus, tmp_path: Path
) -> None:
    train = TrainConfig(seed=5, micro_batch=3, num_micro_batches=2)
    pipeline = Pipeline(None, widest_model(16), train, baselines=("frequency", "markov"))
    assert pipeline.model.fields == (*CONT_FIELDS, *EXTRA_FIELDS)
    assert not pipeline.moved
    rows, inputs = np.array([15, 99, 2_415]), corpus.inputs(pipeline.model)
    windows = [[inputs[row - 15 + place] for place in range(16)] for row in rows]
    np.testing.assert_array_equal(pipeline.windows(corpus, rows), windows)
    for name, own in pipeline.splits(corpus).items():
        np.testing.assert_array_equal(own, corpus.endpoints(name, 16))
    assert tuple(pipeline.splits(corpus)) == SPLITS
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
    assert len(set(hashes.values())) == 3


@pytest.mark.parametrize("moved", [False, True])
def test_a_pipeline_builds_what_the_corpus_is(finished: Path, corpus: Corpus, moved: bool) -> None:
    """Under other boundaries than it was built with, too."""
    splits = (
        replace(corpus.splits, train_end=corpus.splits.train_end - timedelta(days=3))
        if moved
        else corpus.splits
    )
    expected = corpus.with_splits(splits) if moved else corpus
    pipeline = replace(make_pipeline(splits), moved=moved)
    assert pipeline.config == CorpusConfig(splits=splits)
    built = pipeline.corpus(read_bars(finished / "bars"))
    assert built.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(built.columns[name], column)
    assert built.tokenizer.sha256 == expected.tokenizer.sha256
    assert ("arrays" in built.manifest) == moved


BITS = np.array([1.0, -1.0, 1.0, -1.0])
EXPLAINED = {
    "all of it": ({}, BITS, True),
    "one event": ({"bits": 1.0}, BITS, True),
    "one event too far": ({"bits": 0.99}, BITS, False),
    "their spread": ({"rms_bits": 1.0}, BITS, True),
    "their spread too far": ({"rms_bits": 0.99}, BITS, False),
    "their mean": ({"mean_bits": 0.5}, BITS + 0.5, True),
    "their mean too high": ({"mean_bits": 0.49}, BITS + 0.5, False),
    "their mean too low": ({"mean_bits": 0.49}, BITS - 0.5, False),
}


@pytest.mark.parametrize("which", EXPLAINED)
def test_rounding_explains_an_event_the_spread_and_the_mean(which: str) -> None:
    limits, bits, explained = EXPLAINED[which]
    limits = {"bits": 9.0, "rms_bits": 9.0, "mean_bits": 9.0, **limits}
    assert Rounding(precision="float32", probability=0.0, **limits).explains(bits) is explained


DRAWN: dict[str, tuple[int, dict[str, Any], dict[str, Any], int]] = {
    "few": (4_096, {}, {}, 4_096),
    "many": (4_097, {}, {}, 4_096),
    "many, whole": (4_097, {"whole": True}, {}, 4_097),
    "as the user says": (100, {}, {"rescore": 10}, 10),
    "as the user says, not whole": (100, {"whole": True}, {"rescore": 10}, 10),
    "at least": (100, {"at_least": 20}, {"rescore": 10}, 20),
    "at least so many that are there": (15, {"at_least": 20}, {"rescore": 10}, 15),
    "no more than asked": (100, {"at_least": 5}, {"rescore": 10}, 10),
}


@pytest.mark.parametrize("which", DRAWN)
def test_events_are_drawn_by_the_seed(finished: Path, which: str) -> None:
    size, words, options, count = DRAWN[which]
    drawn = audited(finished, **options).draw(np.arange(7, 7 + size), **words)
    expected = (
        np.random.default_rng(3).choice(size, count, replace=False)
        if count < size
        else np.arange(size)
    )
    assert drawn.tolist() == sorted(expected)


def test_rows_that_share_a_pass_are_all_scored_again(finished: Path) -> None:
    run = audited(finished)
    assert not run.in_stretches
    run.in_stretches = True
    assert len(run.draw(np.arange(5_000))) == 5_000


def test_a_baseline_is_fitted_again_or_its_stored_fit_is_taken(
    finished: Path, corpus: Corpus, tmp_path: Path
) -> None:
    """None of another machine's kind: a GPU may have rounded it otherwise."""
    run, rows = audited(finished, baselines=("frequency",)), corpus.endpoints("validation", 16)[:9]
    markov = fit_or_load(baseline("markov"), corpus, 16, tmp_path)
    again = (
        baseline("frequency").fit(corpus, corpus.endpoints("train", 16)).predict_proba(corpus, rows)
    )
    for folder in (None, str(tmp_path)):
        fitted = run.fitted("frequency", folder)
        assert fitted
        np.testing.assert_array_equal(fitted.predict_proba(corpus, rows), again)
    stored = run.fitted("markov", str(tmp_path))
    assert stored
    np.testing.assert_array_equal(
        stored.predict_proba(corpus, rows), markov.predict_proba(corpus, rows)
    )
    for name, folder in (
        ("markov", None),
        ("markov", ""),
        ("hour_of_week", str(tmp_path)),
        ("run rival", str(tmp_path)),
    ):
        assert run.fitted(name, folder) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaiom.auditing.pipeline.FOR_GPUS", ("markov",))
        assert audited(finished, baselines=()).fitted("markov", str(tmp_path)) is None


def rounding_by_hand(
    run: AuditedRun, corpus: Corpus, rows: np.ndarray, half: bool, heads: Any = None
) -> dict[str, float]:
    """Each parameter moved to about its neighbour in FP32, and FP16: what that does to the answers
    of these rows.
    """
    network, draws = run.checkpoint.model, torch.Generator().manual_seed(3)
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter *= 1 + (2 * torch.rand(parameter.shape, generator=draws) - 1) * 2.0**-23
    data = DeviceCorpus(corpus, network.config, torch.device("cpu"))

    def answer(model: Any, dtype: torch.dtype) -> np.ndarray:
        out = Scorer(model, data, dtype, hidden=heads is not None).predict(rows).numpy()
        return (
            np.log(heads.probs(out, corpus.inputs(model.config)[rows], 4))
            if heads
            else out.astype(np.float64)
        )

    now = answer(network, torch.float32)
    others = [answer(moved, torch.float32), *([answer(network, torch.float16)] if half else [])]
    found = {"bits": 0.0, "rms_bits": 0.0, "mean_bits": 0.0, "probability": 0.0}
    for other in others:
        bits = (now - other) / np.log(2)
        own = np.mean(
            [
                bits[event, bucket - 1]
                for event, bucket in enumerate(corpus.target_return[rows].astype(int))
            ]
        )
        each = {
            "bits": 8 * np.abs(bits).max(),
            "rms_bits": 3 * np.sqrt((bits * bits).mean()),
            "mean_bits": 3 * (abs(own) + bits.std() / np.sqrt(len(rows))),
            "probability": 8 * np.abs(np.exp(now) - np.exp(other)).max(),
        }
        found = {name: max(value, each[name]) for name, value in found.items()}
    return found


@pytest.mark.parametrize("precision", [None, "float32", "float16", "bfloat16"])
def test_rounding_is_measured_on_64_events_of_the_split(
    finished: Path, corpus: Corpus, precision: str | None
) -> None:
    run = audited(finished)
    found = vars(run.rounding("sealed", precision)).copy()
    rows = np.sort(
        np.random.default_rng(3).choice(
            corpus.endpoints("sealed", 16, unseal=True), 64, replace=False
        )
    )
    assert found.pop("precision") == (precision or "float16")
    assert found == pytest.approx(
        rounding_by_hand(run, corpus, rows, half=precision != "float32"), rel=1e-6
    )
    assert found["bits"] > found["mean_bits"] > 0


@pytest.mark.parametrize("split", ["train", "test-h1"])
def test_rounding_is_measured_on_a_stretch_where_rows_share_a_pass(
    finished: Path, corpus: Corpus, split: str
) -> None:
    run, rows = audited(finished), corpus.endpoints(split, 16)
    run.in_stretches = True
    assert (len(rows) > 1_024) == (split == "train")
    start = int(np.random.default_rng(3).integers(max(1, len(rows) - 1_024)))
    expected = rounding_by_hand(run, corpus, rows[start : start + 1_024], half=False)
    found = vars(run.rounding(split, "float32")).copy()
    assert found.pop("precision") == "float32"
    assert found == pytest.approx(expected, rel=1e-6)


def test_rounding_of_heads_is_that_of_what_they_answer(finished: Path, corpus: Corpus) -> None:
    """They read hidden states, in FP32 alone."""
    run, view = audited(finished), corpus.with_target(4)
    weights = np.random.default_rng(1).normal(size=(run.checkpoint.config.width, 16))

    def probs(hidden: np.ndarray, inputs: np.ndarray, bars: int) -> np.ndarray:
        assert bars == 4
        sizes = np.exp(hidden.astype(np.float64) @ weights + inputs[:, :1])
        return np.asarray(sizes / sizes.sum(axis=1, keepdims=True))

    heads: Any = SimpleNamespace(probs=probs)
    found = vars(run._measure("validation", (heads, view))).copy()
    rows = np.sort(
        np.random.default_rng(3).choice(view.endpoints("validation", 16), 64, replace=False)
    )
    assert found.pop("precision") == "float32"
    assert found == pytest.approx(
        rounding_by_hand(run, view, rows, half=False, heads=heads), rel=1e-6
    )


def test_a_proof_counts_and_keeps_the_first_eight_findings() -> None:
    @claim("a name", "a sentence")
    def check(proof: Proof, holds: int, *, fails: int = 0) -> None:
        for number in range(holds):
            assert proof.check(True, f"no problem {number}", 3)
        for number in range(fails):
            assert not proof.check(False, f"problem {number}")

    assert isinstance(check, Claim)
    empty = Proof(claim=check)
    assert (empty.count, empty.seconds, empty.num_findings, empty.findings, empty.notes) == (
        0,
        0.0,
        0,
        [],
        [],
    )
    assert (empty.name, empty.verdict) == ("a name", NOT_RUN)
    assert (check(2).verdict, check(2).count) == (PASSED, 6)
    before = time.perf_counter()
    found = check(1, fails=10)
    assert 0 < found.seconds <= time.perf_counter() - before
    assert (found.verdict, found.count, found.num_findings) == (FAILED, 13, 10)
    assert found.findings == [f"problem {number}" for number in range(8)]
    found.seconds, found.notes = 1.23456, ["a note"]
    told = {
        "name": "a name",
        "about": "a sentence",
        "verdict": "failed",
        "count": 13,
        "num_findings": 10,
    }
    assert found.summary() == {
        **told,
        "findings": found.findings,
        "notes": ["a note"],
        "seconds": 1.235,
    }


def test_an_audit_has_a_seed_of_its_own_and_quick_defaults() -> None:
    first, second = AuditConfig(), AuditConfig()
    assert first.seed != second.seed
    assert max(first.seed, second.seed) < 2**32
    told = {"cuts": 6, "rare_cuts": 1, "context": None, "rescore": None, "seed": 1}
    quick = ("frequency", "markov", "hour_of_week", "ewma_t")
    assert vars(AuditConfig(seed=1)) == {**told, "baselines": quick}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.randbelow", lambda limit: limit)
        assert AuditConfig().seed == 2**32
