"""Proof (e): a run that is evaluated again gives its own files, and what differs is named."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.tiny_runs import TINY
from vaiom.auditing.again import prove_evaluation
from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.compare import compare_figures
from vaiom.auditing.proof import PASSED, AuditConfig, Proof
from vaiom.baselines.base import baseline
from vaiom.baselines.stored_losses import fit_or_load
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.evaluation.access_ledger import ledger_heads
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import read_events, write_events
from vaiom.features.fields import CROSS_FIELDS
from vaiom.model.checkpoint import USE
from vaiom.report.contents import read_run
from vaiom.report.page import render, write_report
from vaiom.run import Run
from vaiom.training.loop import train
from verification.forgeries.catalogue import edit

SPLIT = "validation"


def audited(place: Path, name: str = "seed17", **options: Any) -> AuditedRun:
    return AuditedRun(place / name, open_corpus(place / "corpus"), AuditConfig(seed=3, **options))


def proof_of(place: Path, name: str = "seed17", **options: Any) -> Proof:
    return prove_evaluation(audited(place, name, **options))


def keep_validation(place: Path, name: str = "seed17") -> Path:
    """One evaluation is enough, and quicker."""
    run = Run(place / name)
    for split in ("test-h1", "test-h2"):
        run.evaluation(split).unlink(missing_ok=True)
    run.report.unlink(missing_ok=True)
    return run.evaluation(SPLIT)


def test_what_was_left_alone_passes_in_full(reported: Path) -> None:
    ledger = (reported / "corpus/ledger.jsonl").read_bytes()
    proof = proof_of(reported)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert proof.count > 60_000
    start = "all 982 events scored again, largest difference 0.0e+00 bits, mean +0.0e+00; float32"
    assert proof.notes[-1].startswith(f"{SPLIT}: {start} arithmetic explains")
    assert len(proof.notes) == 3
    assert (reported / "corpus/ledger.jsonl").read_bytes() == ledger


def test_seeds_that_were_moved_together_are_found_beside_each_other(
    reported: Path, spoiled: Path
) -> None:
    file = keep_validation(spoiled)
    file.write_text(file.read_text().replace(str(reported), "/where/they/lay"))
    proof = proof_of(spoiled)
    assert proof.findings == []
    assert not any("not recomputed" in note for note in proof.notes)


COMPARED: dict[str, tuple[Any, Any, int, list[str]]] = {
    "the same": ({"a": [1.0, 2], "b": None}, {"a": [1.0, 2], "b": None}, 5, []),
    "added": ({"a": 1}, {"a": 1, "c": 2, "b": 3}, 2, ["x: the file has b, c, which nothing gives"]),
    "missing": ({"a": 1, "b": 2}, {"a": 1}, 3, ["x.b: the file says None, recomputed 2"]),
    "no table": ({"a": 1.0}, [1.0], 2, ["x.a: the file says None, recomputed 1.0"]),
    "inside": (
        {"a": {"b": [0, 1]}},
        {"a": {"b": [0, 2]}},
        5,
        ["x.a.b[1]: the file says 2, recomputed 1"],
    ),
    "shorter": ([1, 2], [1], 1, ["x: 2 entries recomputed, not those of the file"]),
    "a text of that length": ([1, 2], "12", 1, ["x: 2 entries recomputed, not those of the file"]),
    "no list": ([], None, 1, ["x: 0 entries recomputed, not those of the file"]),
    "a whole number for a figure": (2.0, 2, 1, []),
    "a little off": (2.0, 2.0 + 1e-8, 1, [f"x: the file says {2.0 + 1e-8}, recomputed 2.0"]),
    "a count is exact": (2, 2.0 + 1e-12, 1, [f"x: the file says {2.0 + 1e-12}, recomputed 2"]),
    "the tenth digit": (1_000.0, 1_000.0 + 0.5e-6, 1, []),
    "the ninth digit": (1_000.0, 1_000.0 + 2e-6, 1, [f"x: the file says {1_000.0 + 2e-6}, reco"]),
    "near zero": (0.0, 0.5e-11, 1, []),
    "not so near": (0.0, 2e-11, 1, ["x: the file says 2e-11, recomputed 0.0"]),
    "a text for a figure": (2.0, "2.0", 1, ["x: the file says 2.0, recomputed 2.0"]),
    "nothing for a figure": (2.0, None, 1, ["x: the file says None, recomputed 2.0"]),
    "not a number for a figure": (2.0, math.nan, 1, ["x: the file says nan, recomputed 2.0"]),
    "within what is allowed": ({"loose": {"a": [0.1]}}, {"loose": {"a": [0.105]}}, 3, []),
    "beyond it": (
        {"loose": {"a": [0.1]}},
        {"loose": {"a": [0.12]}},
        3,
        ["x.loose.a[0]: the file says 0.12, recomputed 0.1"],
    ),
}


@pytest.mark.parametrize("which", COMPARED)
def test_every_value_is_in_the_file_and_no_other(which: str) -> None:
    ours, stored, count, says = COMPARED[which]
    proof = Proof(name="figures")
    compare_figures(proof, ours, stored, "x", {"loose": 0.01})
    assert len(proof.findings) == len(says)
    assert all(found.startswith(words) for found, words in zip(proof.findings, says, strict=True))
    assert which.startswith(("within", "beyond")) or proof.count == count


class InHalfPrecision(ModelPredictor):
    """The model on a GPU, as far as rounding goes."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.precision = torch.float16


def score_in_half_precision(place: Path, name: str = "seed17") -> Path:
    """Validation as a GPU would have scored it."""
    model = InHalfPrecision.load(Run(place / name).best, "cpu")
    evaluate_run(place / name, open_corpus(place / "corpus"), SPLIT, model=model)
    return keep_validation(place, name)


def test_half_precision_is_explained_by_the_checkpoint(spoiled: Path) -> None:
    file = score_in_half_precision(spoiled)
    proof = proof_of(spoiled)
    assert proof.findings == []
    assert "float16 arithmetic explains" in proof.notes[0]
    # Figures follow from the forecasts that are stored, to the last digit.
    stored = json.loads(file.read_text())
    assert stored["precision"] == "float16"
    stored["backtests"][0]["kupiec_p"] += 1e-6
    edit(file, backtests=stored["backtests"])
    [found] = proof_of(spoiled).findings
    assert found.startswith("validation.backtests[0].kupiec_p: the file says")
    # Who claims FP32 is held to it.
    edit(file, precision="float32")
    assert "losses that are not the checkpoint's" in proof_of(spoiled).findings[0]


def test_a_model_with_an_attention_window_is_scored_again_in_full(spoiled: Path) -> None:
    fields = (*TINY.model.fields, *CROSS_FIELDS)
    window = TINY.with_changes(positions="rotary", attention_window=8, steps=4, fields=fields)
    train(open_corpus(spoiled / "corpus"), window, spoiled / "window", device="cpu")
    file = score_in_half_precision(spoiled, "window")
    proof = proof_of(spoiled, "window")
    assert proof.findings == []
    assert "all 982 events scored again" in proof.notes[0]
    alone = json.loads(file.read_text())["bits_alone"]
    for off, says in ((1e-6, []), (-0.01, ["validation.bits_alone"])):
        edit(file, bits_alone=alone + off)
        found = proof_of(spoiled, "window").findings
        assert [finding.split(":")[0] for finding in found] == says


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True), (-2.0, True)])
def test_losses_are_those_of_the_forecasts_beside_them(
    spoiled: Path, times: float, found: bool
) -> None:
    """To a billionth of a bit, and those of baselines to a millionth."""
    keep_validation(spoiled)
    run = spoiled / "seed17"
    events = read_events(run, SPLIT)
    one = np.arange(len(events)) == 7
    disagree = "validation: losses and probabilities of the events disagree"
    off = f"validation: markov gives an event {abs(times) * 1e-6:.1e} bits more or fewer"
    for name, tolerance, says in (("model", 1e-9, disagree), ("markov", 1e-6, off)):
        bits = events.bits | {name: events.bits[name] + times * tolerance * one}
        write_events(run, SPLIT, replace(events, bits=bits))
        findings = proof_of(spoiled).findings
        assert any(each.startswith(says) for each in findings) == found


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True)])
def test_forecasts_are_as_near_as_rounding(spoiled: Path, times: float, found: bool) -> None:
    keep_validation(spoiled)
    run = spoiled / "seed17"
    events = read_events(run, SPLIT)
    assert events.probs is not None
    moved = times * audited(spoiled).rounding(SPLIT, "float32").probability
    probs = events.probs.copy()
    bucket = int(events.buckets[7])  # not that of the outcome: losses stay
    probs[7, bucket % 16] += moved
    probs[7, (bucket + 1) % 16] -= moved
    write_events(run, SPLIT, replace(events, probs=probs))
    off = f"validation: a probability differs by {moved:.1e} from the checkpoint's"
    assert (off in proof_of(spoiled).findings) == found


def test_baselines_are_fitted_again_taken_as_stored_or_named(spoiled: Path, tmp_path: Path) -> None:
    file = keep_validation(spoiled)
    events = read_events(spoiled / "seed17", SPLIT)
    fit_or_load(baseline("hour_of_week"), open_corpus(spoiled / "corpus"), 16, tmp_path / "stored")
    edit(file, baselines=str(tmp_path / "stored"))
    proof = proof_of(spoiled, baselines=("markov",))
    again = "was not computed again (--baselines fits those that are named)"
    stored = "by its stored fit, not fitted again (--baselines hour_of_week does)"
    assert proof.findings == []
    assert f"validation: frequency {again}" in proof.notes
    assert f"validation: hour_of_week {stored}" in proof.notes
    bits = events.bits | {"hour_of_week": events.bits["hour_of_week"] + 1}
    write_events(spoiled / "seed17", SPLIT, replace(events, bits=bits))
    found = proof_of(spoiled, baselines=("markov",)).findings
    assert found[0].startswith("validation: hour_of_week gives an event 1.0e+00 bits")


def test_few_events_are_scored_again_where_the_user_says_so(spoiled: Path) -> None:
    keep_validation(spoiled)
    proof = proof_of(spoiled, rescore=10)
    assert proof.findings == []
    assert any("10 of 982 events scored again" in note for note in proof.notes)
    assert proof.notes[-1] == "the run has no report.html (vaiom report)"


def test_what_cannot_be_compared_is_named(spoiled: Path) -> None:
    file = keep_validation(spoiled)
    origin = audited(spoiled).checkpoint.provenance.corpus_sha256
    edit(file, confidence_set=None, corpus_sha256="1" * 64, zero_share=0.5)
    assert origin != "1" * 64
    proof = proof_of(spoiled)
    assert proof.findings == []
    assert "validation: not compared: confidence_set" in proof.notes
    grown = "validation: not recomputed, the corpus has grown since: zero_share"
    assert grown in proof.notes


@pytest.mark.parametrize("change", [{"bits": 3}, {"seeds": {"x": 1}}, {"looks": "2"}])
def test_what_is_no_evaluation_is_refused(spoiled: Path, change: dict[str, Any]) -> None:
    edit(keep_validation(spoiled), **change)
    with pytest.raises(DataError, match="not an evaluation"):
        proof_of(spoiled)


def test_a_run_without_an_evaluation_says_why(finished: Path) -> None:
    run = audited(finished, "seed29")
    proof = prove_evaluation(run)
    why = "no figures: the run has no evaluation (vaiom evaluate)"
    assert (proof.notes, proof.count) == ([why], 0)
    origin = replace(run.checkpoint.provenance, purpose=USE)
    run.checkpoint = replace(run.checkpoint, provenance=origin)
    why = "no figures: a refit is for use, and nothing was held out of it"
    assert prove_evaluation(run).notes == [why]


# The page.


def page_proof(place: Path, page: str) -> Proof:
    """Of a run that was evaluated on Validation alone, whose page is this."""
    Run(place / "seed17").report.write_text(page)
    return proof_of(place, rescore=10)


def write_page(place: Path, **inputs: Any) -> str:
    """A page that says so of its inputs, and is what these would give."""
    contents = read_run(place / "seed17", place / "corpus")
    return render(replace(contents, inputs=replace(contents.inputs, **inputs)))


def test_a_page_of_another_place_or_matplotlib_is_compared_as_far_as_it_goes(
    spoiled: Path,
) -> None:
    keep_validation(spoiled)
    proof = page_proof(spoiled, write_page(spoiled, run="/a/run", corpus="/a/corpus"))
    told = "report.html says that it was written elsewhere: '/a/run'; '/a/corpus'"
    assert (proof.findings, proof.notes[-1]) == ([], told)
    page = write_page(spoiled, matplotlib="1.5").replace("<svg></svg>", "<svg>x</svg>")
    drew = f"matplotlib 1.5 drew them and this is {version('matplotlib')}"
    proof = page_proof(spoiled, page)
    assert (proof.findings, proof.notes[-1]) == (
        [],
        f"report.html, figures: not compared, {drew}",
    )


def test_a_page_knows_the_looks_that_its_evaluations_know_of(spoiled: Path) -> None:
    heads = ledger_heads(open_corpus(spoiled / "corpus"))
    hidden = "report.html leaves out looks that its evaluations know of"
    for head, says in ((heads[2], []), (heads[1], [hidden])):
        assert page_proof(spoiled, write_page(spoiled, ledger_sha256=head)).findings == says
    # One that no ledger ever had is compared with what there is now.
    found = page_proof(spoiled, write_page(spoiled).replace(heads[-1], "f" * 64)).findings
    assert {finding.split(":")[0] for finding in found} == {"report.html, provenance"}


def test_a_page_that_was_written_without_its_corpus_is_compared(spoiled: Path) -> None:
    keep_validation(spoiled)
    run = Run(spoiled / "seed17")
    config = run.config.read_text()
    run.config.write_text(config.replace(str(run.corpus_path()), "/gone/<away>"))
    write_report(run.path)
    run.config.write_text(config)
    page = run.report.read_text()
    assert "The corpus could not be read" in page
    assert page_proof(spoiled, page).findings == []
    page = page.replace("How often Test was looked at", "How seldom Test was looked at")
    assert "How seldom" in page_proof(spoiled, page).findings[0]


def test_a_grown_corpus_is_not_what_the_page_shows(spoiled: Path) -> None:
    keep_validation(spoiled)
    write_report(spoiled / "seed17", corpus=spoiled / "corpus")
    run = audited(spoiled)
    origin = replace(run.checkpoint.provenance, corpus_sha256="0" * 64)
    run.checkpoint = replace(run.checkpoint, provenance=origin)
    why = "not compared, the corpus is not what it was for the page"
    notes = prove_evaluation(run).notes
    assert [f"report.html, {name}: {why}" for name in ("quality", "provenance")] == notes[-2:]


def test_an_evaluation_is_made_again_from_a_copy(spoiled: Path) -> None:
    """Nothing is written, whatever was evaluated: a folder that may not be written to will do."""
    before = {path: path.stat().st_mtime_ns for path in spoiled.rglob("*")}
    proof_of(spoiled)
    assert {path: path.stat().st_mtime_ns for path in spoiled.rglob("*")} == before
    shutil.move(spoiled / "seed17", spoiled / "renamed")
    assert proof_of(spoiled, "renamed").findings == []
