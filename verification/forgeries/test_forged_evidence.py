"""Every forgery of the catalogue is refused, or named where it may be honest work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditing.finished_runs import finished, little_drawing, place, reported, spoiled
from cli.command_line import Vaiom
from vaiom.auditing.audit import audit_path
from vaiom.auditing.proof import AuditConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from verification.forgeries.catalogue import (
    FORGERIES,
    NOTED,
    PAGES,
    SPLIT,
    Forgery,
    change_page,
    changed,
    edit,
)

__all__ = ["finished", "little_drawing", "place", "reported", "spoiled"]


def findings_of(vaiom: Vaiom, place: Path, audited: str, *options: object) -> list[str]:
    """What the command finds."""
    corpus = ["--context", 16] if audited == "corpus" else ["--corpus", place / "corpus"]
    ran = vaiom("audit", place / audited, *corpus, *options, "--json")
    found = [each for proof in json.loads(ran.out)["proofs"] for each in proof["findings"]]
    assert ran.code == bool(found), ran.err
    return found


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda each: each.name)
def test_a_forgery_is_refused(forgery: Forgery, spoiled: Path, vaiom: Vaiom) -> None:
    forgery.forge(spoiled)
    found = findings_of(vaiom, spoiled, forgery.audited, *forgery.options)
    assert any(forgery.says in finding for finding in found), found


@pytest.mark.parametrize("which", PAGES)
def test_a_changed_page_is_refused(which: str, spoiled: Path, vaiom: Vaiom) -> None:
    change, says = PAGES[which]
    change_page(spoiled, change)
    found = findings_of(vaiom, spoiled, "seed17")
    assert all(finding.startswith("report.html") for finding in found)
    assert any(says in finding for finding in found), found


@pytest.mark.parametrize("forgery", NOTED, ids=lambda each: each.name)
def test_what_may_be_honest_is_named(forgery: Forgery, spoiled: Path) -> None:
    forgery.forge(spoiled)
    run, corpus = spoiled / forgery.audited, spoiled / "corpus"
    proofs = audit_path(run, corpus=corpus, config=AuditConfig(seed=3))
    assert any(forgery.says in note for proof in proofs for note in proof.notes)


@pytest.mark.parametrize("split", [SPLIT, "test-h2"])
def test_no_number_of_an_evaluation_can_be_changed(spoiled: Path, split: str) -> None:
    """All at once: each must be named. Validation has the seeds, the last test all tests together.

    The number of looks is held to the ledger.
    """
    file = spoiled / "seed17" / f"evaluation-{split}.json"
    stored = json.loads(file.read_text())
    assert stored["seeds" if split == SPLIT else "all_tests"]
    assert stored["confidence_set"]
    assert stored["mixture"]
    paths: list[str] = []
    looks = stored.pop("looks")
    edit(file, **changed(stored, split, paths), looks=looks)
    config = AuditConfig(seed=3)
    proofs = audit_path(spoiled / "seed17", corpus=spoiled / "corpus", config=config)
    found = {finding.split(":")[0] for proof in proofs for finding in proof.findings}
    assert set(paths) - found == set()
    assert len(paths) > 1_500


def test_a_patched_evaluation_that_drops_large_moves_is_found(
    spoiled: Path, vaiom: Vaiom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the events of a test, the audit included, gets those within two sigmas."""
    honest: Callable[..., Any] = Corpus.endpoints

    def without_large_moves(self: Corpus, split: str, *words: Any, **more: Any) -> Any:
        rows = honest(self, split, *words, **more)
        small = np.abs(self.log_ret_next[rows] / self.sigma20[rows]) <= 2
        return rows[small] if split.startswith("test-") else rows

    monkeypatch.setattr(Corpus, "endpoints", without_large_moves)
    evaluate_run(spoiled / "seed29", open_corpus(spoiled / "corpus"), "test-h1", device="cpu")
    found = findings_of(vaiom, spoiled, "seed29")
    assert any("test-h1 lacks" in finding for finding in found)
    assert any("does not hold every valid target" in finding for finding in found)
