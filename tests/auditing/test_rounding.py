"""How far another machine may be off: measured on the model, and asked of each difference."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.proof import AuditConfig
from vaiom.auditing.rounding import Rounding
from vaiom.baselines.base import baseline
from vaiom.baselines.stored_losses import fit_or_load
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.training.windows import DeviceCorpus, Scorer


@pytest.fixture(scope="module")
def corpus(finished: Path) -> Corpus:
    return open_corpus(finished / "corpus")


def audited(finished: Path, **options: Any) -> AuditedRun:
    config = AuditConfig(seed=3, **options)
    return AuditedRun(finished / "seed17", open_corpus(finished / "corpus"), config)


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


def rounding_of(**limits: float) -> Rounding:
    wide = {"bits": 9.0, "rms_bits": 9.0, "mean_bits": 9.0, "probability": 0.0}
    return Rounding(precision="float32", **(wide | limits))


@pytest.mark.parametrize("which", EXPLAINED)
def test_rounding_explains_an_event_the_spread_and_the_mean(which: str) -> None:
    limits, bits, explained = EXPLAINED[which]
    assert rounding_of(**limits).explains(bits) is explained


def test_figures_that_no_file_holds_answers_of_may_be_a_little_off() -> None:
    allowed = rounding_of(bits=1e-3, mean_bits=1e-4).of_figures(1_000)
    assert allowed["mixture"] == pytest.approx(8e-3)
    assert allowed["bits_alone"] == pytest.approx(2e-4)
    assert rounding_of(bits=1.0).of_figures(1_000)["mixture"] == 1.0


DRAWN: dict[str, tuple[int, dict[str, Any], int | None, int]] = {
    "few": (4_096, {}, None, 4_096),
    "many": (4_097, {}, None, 4_096),
    "as the user says": (100, {}, 10, 10),
    "at least": (100, {"at_least": 20}, 10, 20),
    "at least so many that are there": (15, {"at_least": 20}, 10, 15),
    "no more than asked": (100, {"at_least": 5}, 10, 10),
}


@pytest.mark.parametrize("which", DRAWN)
def test_events_are_drawn_by_the_seed(finished: Path, which: str) -> None:
    size, words, rescore, count = DRAWN[which]
    rows = np.arange(7, 7 + size)
    first, second = (audited(finished, rescore=rescore).draw(rows, **words) for _ in range(2))
    assert first.tolist() == second.tolist() == sorted(set(first.tolist()))
    assert len(first) == count
    assert set(first.tolist()) <= set(range(size))


def test_rows_that_share_a_pass_are_all_scored_again(finished: Path) -> None:
    run = audited(finished)
    assert not run.scores_together
    run.scores_together = True
    assert len(run.draw(np.arange(5_000))) == 5_000


def test_a_baseline_is_fitted_again_or_its_stored_fit_is_taken(
    finished: Path, corpus: Corpus, tmp_path: Path
) -> None:
    run = audited(finished, baselines=("frequency",))
    rows = corpus.endpoints("validation", 16)[:9]
    markov = fit_or_load(baseline("markov"), corpus, 16, tmp_path)
    frequency = baseline("frequency").fit(corpus, corpus.endpoints("train", 16))
    for name, folder, expected in (
        ("frequency", None, frequency),
        ("frequency", tmp_path, frequency),
        ("markov", tmp_path, markov),
    ):
        fitted = run.fitted(name, folder)
        assert fitted
        ours, theirs = (each.predict_proba(corpus, rows) for each in (fitted, expected))
        np.testing.assert_array_equal(ours, theirs)
    missing = (("markov", None), ("hour_of_week", tmp_path), ("run rival", tmp_path))
    assert [run.fitted(name, folder) for name, folder in missing] == [None] * 3


def rounding_by_hand(
    run: AuditedRun, corpus: Corpus, rows: np.ndarray, half: bool
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
        return Scorer(model, data, dtype).predict(rows).numpy().astype(np.float64)

    now = answer(network, torch.float32)
    others = [answer(moved, torch.float32)]
    if half:
        others.append(answer(network, torch.float16))
    found = {"bits": 0.0, "rms_bits": 0.0, "mean_bits": 0.0, "probability": 0.0}
    hits = np.arange(len(rows)), corpus.target_return[rows].astype(int) - 1
    for other in others:
        bits = (now - other) / np.log(2)
        each = {
            "bits": 8 * np.abs(bits).max(),
            "rms_bits": 3 * np.sqrt((bits * bits).mean()),
            "mean_bits": 3 * (abs(bits[hits].mean()) + bits.std() / np.sqrt(len(rows))),
            "probability": 8 * np.abs(np.exp(now) - np.exp(other)).max(),
        }
        found = {name: max(value, each[name]) for name, value in found.items()}
    return found


def same(found: Rounding, precision: str, expected: dict[str, float]) -> bool:
    measured = dict(vars(found))
    return measured.pop("precision") == precision and measured == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("precision", [None, "float32", "bfloat16"])
def test_rounding_is_measured_on_64_events_of_the_split(
    finished: Path, corpus: Corpus, precision: str | None
) -> None:
    run = audited(finished)
    events = corpus.endpoints("sealed", 16, unseal=True)
    rows = np.sort(np.random.default_rng(3).choice(events, 64, replace=False))
    expected = rounding_by_hand(run, corpus, rows, half=precision != "float32")
    found = run.rounding("sealed", precision)
    assert same(found, precision or "float16", expected)
    assert found.bits > found.mean_bits > 0


@pytest.mark.parametrize("split", ["train", "test-h1"])
def test_rounding_is_measured_on_successive_events_where_rows_share_a_pass(
    finished: Path, corpus: Corpus, split: str
) -> None:
    run, rows = audited(finished), corpus.endpoints(split, 16)
    run.scores_together = True
    assert (len(rows) > 1_024) == (split == "train")
    start = int(np.random.default_rng(3).integers(max(1, len(rows) - 1_024)))
    expected = rounding_by_hand(run, corpus, rows[start : start + 1_024], half=False)
    assert same(run.rounding(split, "float32"), "float32", expected)
