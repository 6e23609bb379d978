"""A run that was left alone passes every proof; whatever is changed in it afterwards is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from vaiom.auditing.audit import audit_path
from vaiom.auditing.leakage import rare_moments
from vaiom.auditing.pipeline import AuditedRun
from vaiom.auditing.proof import FAILED, PASSED, AuditConfig
from vaiom.auditing.provenance import prove_provenance
from vaiom.corpus.append import append_bars
from vaiom.corpus.store import open_corpus
from vaiom.market.folder import read_bars, read_file, write_symbol
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.run import Run

QUICK = AuditConfig(cuts=1, rare_cuts=0, baselines=("frequency",))


def failed(place: Path) -> set[str]:
    proofs = audit_path(
        place / "seed17", corpus=place / "corpus", bars=place / "bars", config=QUICK
    )
    return {proof.name for proof in proofs if proof.verdict == FAILED}


def test_a_run_that_was_left_alone_passes_everything(finished: Path) -> None:
    proofs = audit_path(finished / "seed17", bars=finished / "bars", config=AuditConfig(cuts=2))
    assert {proof.name: proof.findings for proof in proofs if proof.verdict != PASSED} == {}
    names = ["rebuild", "prices", "a. future", "b. refit", "duplicates", "lead-lag"]
    assert [proof.name for proof in proofs][:6] == names
    assert [proof.name[0] for proof in proofs][6:] == [*"cdefg"]


def edit_json(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def flatter_mean(place: Path) -> None:
    edit_json(
        place / "seed17/evaluation-validation.json",
        lambda v: v["bits"].update(model=v["bits"]["model"] - 1e-6),
    )


def flatter_events(place: Path) -> None:
    file = place / "seed17/events-test-h1.parquet"
    pl.read_parquet(file).with_columns(pl.col("bits_model") - 0.3).write_parquet(file)


def drop_hard_events(place: Path) -> None:
    file = place / "seed17/events-validation.parquet"
    pl.read_parquet(file).filter(pl.col("bits_model") < 4).write_parquet(file)


def take_the_last_step(place: Path) -> None:
    """Another checkpoint of the run than the one with the fewest Validation bits."""
    lines = [json.loads(line) for line in (place / "seed29/metrics.jsonl").read_text().splitlines()]
    worst = max(
        (line["validation_bits"], line["step"]) for line in lines if "validation_bits" in line
    )[1]
    shutil.copy(
        place / f"seed29/checkpoints/step-{worst:07d}.safetensors",
        place / "seed29/best.safetensors",
    )


def take_another_seed(place: Path) -> None:
    shutil.copy(place / "seed29/best.safetensors", place / "seed17/best.safetensors")


def claim_another_corpus(place: Path) -> None:
    file = place / "seed17/config.toml"
    file.write_text(file.read_text().replace('sha256 = "', 'sha256 = "0'))


def forget_the_looks(place: Path) -> None:
    (place / "corpus/ledger.jsonl").unlink()


def claim_another_seed(place: Path) -> None:
    edit_json(place / "seed17/evaluation-validation.json", lambda v: v.update(seed=29))


def claim_fewer_looks(place: Path) -> None:
    edit_json(place / "seed17/evaluation-test-h1.json", lambda v: v.update(looks=0))


def change_a_price(place: Path) -> None:
    bars = read_file(place / "bars/EURUSD.parquet")
    raised = (
        pl.when(pl.int_range(pl.len()) == 2_000)
        .then(pl.col("Close") * 1.001)
        .otherwise(pl.col("Close"))
    )
    write_symbol(place / "bars", "EURUSD", bars.with_columns(raised))


# By the run that is then examined.
EXCHANGES = {
    flatter_events: "seed17",
    drop_hard_events: "seed17",
    take_the_last_step: "seed29",
    take_another_seed: "seed17",
    claim_another_corpus: "seed17",
    forget_the_looks: "seed17",
    claim_another_seed: "seed17",
    claim_fewer_looks: "seed17",
}


@pytest.mark.parametrize("tamper", EXCHANGES, ids=lambda tamper: tamper.__name__)
def test_what_does_not_belong_together_is_found(
    tamper: Callable[[Path], None], place: Path
) -> None:
    run = place / EXCHANGES[tamper]
    tamper(place)
    proofs = audit_path(run, corpus=place / "corpus", config=QUICK)
    assert {proof.name for proof in proofs if proof.verdict == FAILED}


def test_a_best_model_with_other_weights_than_its_kept_checkpoint_is_named(place: Path) -> None:
    """Its header says the right step and bits."""
    run = Run(place / "seed17")
    checkpoint = load_checkpoint(run.best)
    with torch.no_grad():
        next(checkpoint.model.parameters()).mul_(1.01)
    save_checkpoint(run.best, checkpoint.model, checkpoint.tokenizer, checkpoint.provenance)
    proofs = audit_path(run.path, corpus=place / "corpus", config=QUICK)
    assert any(
        "is not the checkpoint step-" in finding for proof in proofs for finding in proof.findings
    )


def test_other_bars_are_not_taken_for_those_of_the_corpus(place: Path) -> None:
    change_a_price(place)
    assert failed(place) == {"rebuild", "f. provenance"}


def test_a_grown_corpus_is_still_the_origin_of_its_run(place: Path) -> None:
    old = read_file(place / "bars/EURUSD.parquet")
    later = old.tail(50).with_columns(
        pl.col("Datetime") + (old["Datetime"][-1] - old["Datetime"][-51])
    )
    write_symbol(place / "bars", "EURUSD", pl.concat([old, later]))
    append_bars(place / "corpus", place / "bars")
    assert failed(place) == set()


def test_what_an_audit_cannot_show_is_said(finished: Path) -> None:
    """Buckets of another model, looks from before the ledger was a chain, a training that was not
    made again.
    """
    corpus = open_corpus(finished / "corpus")
    like = replace(corpus, manifest=corpus.manifest | {"like": "ab" * 32})
    assert any(
        "abababababababab: what they were fitted on" in note
        for note in prove_provenance(like).notes
    )
    proofs = audit_path(finished / "seed17", corpus=finished / "corpus")
    assert any("--repeat --full" in note for proof in proofs for note in proof.notes)


OTHER = "0" * 64
ORIGINS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another corpus": (
        {"corpus_sha256": OTHER, "inputs": [{"symbol": "GBPUSD"}]},
        ["was trained on another corpus", "config.toml names another corpus"],
    ),
    "a corpus that grew": ({"corpus_sha256": OTHER}, ["config.toml names another corpus"]),
    "another seed": ({"seed": 5}, ["another experiment, seed or step"] * 3),
    "another recipe": (
        {"experiment": "other"},
        ["describes another experiment", *["another experiment, seed or step"] * 3],
    ),
}


@pytest.mark.parametrize("what", ORIGINS)
def test_each_link_from_bars_to_checkpoint_is_checked_by_itself(finished: Path, what: str) -> None:
    changes, says = ORIGINS[what]
    corpus = open_corpus(finished / "corpus")
    run = AuditedRun(finished / "seed17", corpus, QUICK)
    run.checkpoint = replace(
        run.checkpoint, provenance=replace(run.checkpoint.provenance, **changes)
    )
    found = prove_provenance(corpus, finished / "bars", run).findings
    assert len(found) == len(says)
    assert all(words in finding for words, finding in zip(says, found, strict=True))


def test_as_many_short_cuts_as_kinds_of_rare_moments(finished: Path) -> None:
    bars = read_bars(finished / "bars")
    proofs = audit_path(
        finished / "seed17", bars=finished / "bars", config=AuditConfig(cuts=1, rare_cuts=1, seed=2)
    )
    [future] = [proof for proof in proofs if proof.name == "a. future"]
    assert future.notes[0] == "1 cuts, 3 kinds of damage"
    assert future.notes[1].startswith(f"{len(rare_moments(bars))} short cuts: ")
