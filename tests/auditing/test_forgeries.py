"""A sample of forged evidence; `verification/forgeries` has all of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.command_line import Vaiom
from vaiom.auditing.audit import audit_path
from vaiom.auditing.proof import AuditConfig
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import ModelPredictor
from verification.forgeries import catalogue
from verification.forgeries.catalogue import FORGERIES, NOTED, PAGES, Forgery, change_page

SAMPLE = (
    catalogue.improve_all_losses_by_less_than_half_precision,
    catalogue.move_losses_between_months,
    catalogue.worsen_a_baseline,
    catalogue.exchange_tails,
    catalogue.forge_risk_figures,
    catalogue.change_figures_of_all_tests,
    catalogue.flatter_the_other_seed,
    catalogue.count_one_model_as_two_seeds,
    catalogue.hide_looks_from_the_page,
    catalogue.select_on_test,
    catalogue.blur_what_was_better,
    catalogue.learn_from_a_teacher_elsewhere,
    catalogue.forget_it_and_mend_the_chain,
    catalogue.claim_more_bars,
)
PAGES_SAMPLE = ("another top", "a figure elsewhere", "a look that is hidden", "inputs twice")
NOTED_SAMPLE = (catalogue.compare_with_a_rival, catalogue.lose_the_other_seed)


def findings_of(place: Path, audited: str = "seed17", *, in_notes: bool = False) -> list[str]:
    is_corpus = audited == "corpus"
    config = AuditConfig(seed=3, context=16 if is_corpus else None)
    corpus = None if is_corpus else place / "corpus"
    proofs = audit_path(place / audited, corpus=corpus, config=config)
    return [each for proof in proofs for each in (proof.notes if in_notes else proof.findings)]


@pytest.mark.parametrize(
    "forgery", [each for each in FORGERIES if each.forge in SAMPLE], ids=lambda each: each.name
)
def test_a_forgery_is_refused(forgery: Forgery, spoiled: Path) -> None:
    forgery.forge(spoiled)
    found = findings_of(spoiled, forgery.audited)
    assert any(forgery.says in finding for finding in found), found


@pytest.mark.parametrize("which", PAGES_SAMPLE)
def test_a_changed_page_is_refused(which: str, spoiled: Path) -> None:
    change, says = PAGES[which]
    change_page(spoiled, change)
    assert any(says in finding for finding in findings_of(spoiled))


@pytest.mark.parametrize(
    "forgery", [each for each in NOTED if each.forge in NOTED_SAMPLE], ids=lambda each: each.name
)
def test_what_may_be_honest_is_named(forgery: Forgery, spoiled: Path) -> None:
    forgery.forge(spoiled)
    found = findings_of(spoiled, forgery.audited, in_notes=True)
    assert any(forgery.says in note for note in found)


def test_another_thread_count_is_no_forgery(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is scored again, and sums are added in another order."""

    class OnOtherThreads(ModelPredictor):
        def predict_proba(self, corpus: Any, rows: Any) -> Any:
            probs = super().predict_proba(corpus, rows)
            noise = torch.sin(torch.arange(probs.size)).numpy().reshape(probs.shape)
            return probs * (1 + 1e-7 * noise)

    model = OnOtherThreads.load(place / "seed17/best.safetensors", "cpu")
    evaluate_run(place / "seed17", open_corpus(place / "corpus"), "test-h1", model=model)
    assert findings_of(place) == []


def test_the_seed_is_drawn_and_printed_with_what_can_be_published(
    place: Path, vaiom: Vaiom
) -> None:
    words = ["audit", place / "seed17", "--corpus", place / "corpus", "--rescore", 10]
    first, second = (json.loads(vaiom(*words, "--json").out) for _ in range(2))
    assert first["seed"] != second["seed"]
    ledger = place / "corpus/ledger.jsonl"
    assert first["hashes"]["ledger.jsonl"] == hashlib.sha256(ledger.read_bytes()).hexdigest()
    files = {"corpus", "checkpoint", "best.safetensors", "evaluation-test-h1.json"}
    assert first["hashes"].keys() >= files
    shown = vaiom(*words, "--seed", 5).out
    assert "--seed 5" in shown
    assert first["hashes"]["checkpoint"] in shown
