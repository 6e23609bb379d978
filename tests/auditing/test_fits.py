"""What Train fits beside a model: horizons that are right pass, and whatever is changed is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.tiny_runs import TINY
from vaiom.auditing.again import prove_evaluation
from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.fits import scramble_after
from vaiom.auditing.proof import PASSED, AuditConfig, Proof
from vaiom.codec import to_json
from vaiom.corpus import targets
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.horizon_scores import events_name, figures_of_horizon
from vaiom.evaluation.scores import ScoredEvents, event_bits, read_events, write_events
from vaiom.experiments.refit import fit_horizons
from vaiom.model.checkpoint import load_checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import Run
from vaiom.training.loop import train
from verification.forgeries.catalogue import edit

BARS = 4
NAME = events_name("test-h1", BARS)
WHERE = "test-h1, 4 bars"


@pytest.fixture(scope="module")
def with_horizon(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one horizon that was evaluated on a test split, and its corpus."""
    folder = tmp_path_factory.mktemp("horizons")
    shutil.copytree(finished / "corpus", folder / "corpus")
    corpus = open_corpus(folder / "corpus")
    window = TINY.with_changes(attention_window=8, positions="rotary", steps=4, num_layers=1)
    train(corpus, window, folder / "run", device="cpu")
    fit_horizons(folder / "run", corpus, (BARS,), device="cpu")
    evaluate_run(folder / "run", corpus, "test-h1", device="cpu")
    return folder


@pytest.fixture
def place(with_horizon: Path, tmp_path: Path) -> Path:
    shutil.copytree(with_horizon, tmp_path / "place")
    return tmp_path / "place"


def audited(place: Path) -> AuditedRun:
    return AuditedRun(place / "run", open_corpus(place / "corpus"), AuditConfig(seed=1))


def proof_of(place: Path) -> Proof:
    return prove_evaluation(audited(place))


def stored_score(place: Path) -> dict[str, Any]:
    stored = json.loads(Run(place / "run").evaluation("test-h1").read_text())
    [score] = stored["horizons"]
    return dict(score)


def state(place: Path, *scores: dict[str, Any]) -> None:
    edit(Run(place / "run").evaluation("test-h1"), horizons=scores)


def restate(place: Path, change: Callable[[ScoredEvents], ScoredEvents]) -> None:
    """Other events of the horizon, and the figures that follow from them."""
    events = change(read_events(place / "run", NAME))
    write_events(place / "run", NAME, events)
    view = open_corpus(place / "corpus").with_target(BARS)
    if events.probs is not None:
        figures = figures_of_horizon(view, view.endpoints("test-h1", 16), events)
        state(place, stored_score(place) | to_json(figures))


def test_an_honest_horizon_passes(with_horizon: Path) -> None:
    proof = proof_of(with_horizon)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert proof.count > 5_000


def a_little_better(events: ScoredEvents) -> ScoredEvents:
    """Forecasts and losses, less than any figure shows."""
    assert events.probs is not None
    hits = np.eye(16)[events.buckets.astype(int) - 1]
    probs = events.probs * 2 ** (3e-4 * hits)
    probs /= probs.sum(axis=1, keepdims=True)
    bits = events.bits | {"model": event_bits(probs, events.buckets)}
    return replace(events, probs=probs, bits=bits)


def other_tails(events: ScoredEvents) -> ScoredEvents:
    assert events.probs is not None
    return replace(events, probs=np.roll(events.probs, 8, axis=1))


def other_outcomes(events: ScoredEvents) -> ScoredEvents:
    buckets = events.buckets.copy()
    buckets[7] = buckets[7] % 16 + 1
    return replace(events, buckets=buckets)


def worse_baseline(events: ScoredEvents) -> ScoredEvents:
    return replace(events, bits=events.bits | {"frequency": events.bits["frequency"] + 1})


FORGED: dict[str, tuple[Callable[[ScoredEvents], ScoredEvents], str]] = {
    "a little better": (a_little_better, f"{WHERE}: losses that are not the heads'"),
    "other tails": (other_tails, f"{WHERE}: a probability differs by"),
    "other outcomes": (other_outcomes, f"{WHERE}: the two event sets differ"),
    "no forecasts": (lambda each: replace(each, probs=None), f"{WHERE}: events without forecasts"),
    "a worse baseline": (worse_baseline, f"{WHERE}: frequency gives an event 1.0e+00 bits more"),
}


@pytest.mark.parametrize("which", FORGED)
def test_events_of_a_horizon_are_those_of_its_heads(place: Path, which: str) -> None:
    change, says = FORGED[which]
    restate(place, change)
    assert any(finding.startswith(says) for finding in proof_of(place).findings)


def test_figures_of_a_horizon_follow_from_its_events(place: Path) -> None:
    score = stored_score(place)
    for name in ("wider", "variance_of_steps", "variance_realised", "zero_share"):
        state(place, score | {name: score[name] + 1e-6})
        [found] = proof_of(place).findings
        assert found.startswith(f"test-h1.horizons[0].{name}: the file says")
    state(place, {**score, "bars": 99}, score)
    assert proof_of(place).findings == [
        "test-h1.horizons: 1 entries recomputed, not those of the file"
    ]
    edit(Run(place / "run").evaluation("test-h1"), horizons=None)
    proof = proof_of(place)
    assert proof.findings == []
    assert "test-h1: the evaluation has no horizons, and horizons.safetensors is there" in (
        proof.notes
    )


def test_a_baseline_of_a_horizon_without_a_fit_is_named(place: Path) -> None:
    restate(place, lambda each: replace(each, bits=each.bits | {"garch_t": each.bits["frequency"]}))
    proof = proof_of(place)
    assert proof.findings == []
    assert f"{WHERE}: garch_t was not computed again, no fit was found" in proof.notes


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True), (-2.0, True)])
def test_heads_claim_the_validation_bits_of_their_events(
    place: Path, times: float, found: bool
) -> None:
    run = Run(place / "run")
    heads = load_horizons(run.horizons, load_checkpoint(run.best))
    claimed = {bars: bits + times * 1e-5 for bars, bits in heads.fitted.validation_bits.items()}
    replace(heads, fitted=replace(heads.fitted, validation_bits=claimed)).save(run.horizons)
    findings = proof_of(place).findings
    assert any(each.startswith("4 bars: the heads claim") for each in findings) == found


def test_horizons_are_fitted_on_train_alone(place: Path) -> None:
    run = Run(place / "run")
    heads = load_horizons(run.horizons, load_checkpoint(run.best))
    [fit] = heads.fitted.fits
    other = replace(fit, zero_share=tuple(share + 1e-9 for share in fit.zero_share))
    replace(heads, fitted=replace(heads.fitted, fits=(other,))).save(run.horizons)
    assert "4 bars: Train fits other buckets, shape or scale" in proof_of(place).findings


@pytest.mark.parametrize("late", [-1, 1])
def test_a_target_is_its_own_bars(place: Path, monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    honest = targets.sum_of_next
    monkeypatch.setattr(targets, "sum_of_next", lambda *words: np.roll(honest(*words), late))
    assert "4 bars: targets of other bars than the next" in proof_of(place).findings


def test_a_scale_sees_no_target(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_returns(self: Any, columns: Any, assets: Any) -> Any:
        return 1 + np.abs(np.nan_to_num(columns["log_ret"]))

    monkeypatch.setattr(targets.TargetFit, "scale", of_returns)
    assert "4 bars: a scale that sees its target" in proof_of(place).findings


def test_horizons_of_an_opened_seal_are_evaluated_again(place: Path) -> None:
    corpus = open_corpus(place / "corpus")
    evaluate_run(place / "run", corpus, "sealed", unseal="sealed", device="cpu")
    before = proof_of(place)
    assert before.findings == []
    write_events(
        place / "run",
        events_name("sealed", BARS),
        worse_baseline(read_events(place / "run", events_name("sealed", BARS))),
    )
    assert any("sealed, 4 bars: frequency" in each for each in proof_of(place).findings)


def test_rows_after_a_cut_come_in_another_order_at_the_same_stamps(finished: Path) -> None:
    corpus: Corpus = open_corpus(finished / "corpus")
    cut = corpus.timestamps[1_000]
    found = scramble_after(corpus, cut, np.random.default_rng(4))
    known = corpus.timestamps <= cut
    assert found.columns["timestamp"] is corpus.columns["timestamp"]
    for name in ("log_ret", "sigma20"):
        ours, theirs = corpus.columns[name], found.columns[name]
        np.testing.assert_array_equal(ours[known], theirs[known])
        for rows in corpus.asset_slices.values():
            np.testing.assert_array_equal(np.sort(ours[rows]), np.sort(theirs[rows]))
            assert not np.array_equal(ours[rows], theirs[rows], equal_nan=True)
