"""The whole audit: which proofs are made, in which order, and what can be published of it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from vaiom.auditing.audit import audit_path, hashes_of
from vaiom.auditing.cuts import calendar_moments, rare_moments
from vaiom.auditing.proof import FAILED, NOT_RUN, PASSED, AuditConfig, Proof
from vaiom.corpus.append import append_bars
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.files import sha256_file
from vaiom.market.folder import read_bars, read_file, write_symbol
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run

QUICK = AuditConfig(cuts=1, rare_cuts=0, baselines=("frequency",), seed=2, context=16)
OF_BARS = ["rebuild", "prices", "a. future", "b. refit"]
OF_CORPUS = ["duplicates", "lead-lag", "c. chronology"]
OF_RUN = ["d. neighbours", "e. evaluation"]
LAST = ["f. provenance", "g. selection"]


def failed(place: Path) -> dict[str, list[str]]:
    bars, corpus = place / "bars", place / "corpus"
    proofs = audit_path(place / "seed17", corpus=corpus, bars=bars, config=QUICK)
    return {proof.name: proof.findings for proof in proofs if proof.verdict == FAILED}


def names(proofs: list[Proof]) -> list[str]:
    return [proof.name for proof in proofs]


def test_a_run_that_was_left_alone_passes_everything_in_the_order_of_the_data(
    finished: Path,
) -> None:
    said: list[str] = []
    config = AuditConfig(cuts=2)
    proofs = audit_path(finished / "seed17", bars=finished / "bars", config=config, say=said.append)
    assert {proof.name: proof.findings for proof in proofs if proof.verdict != PASSED} == {}
    assert names(proofs) == [*OF_BARS, *OF_CORPUS, *OF_RUN, *LAST]
    assert len(said) == 1 + len(proofs)
    [future] = [proof for proof in proofs if proof.name == "a. future"]
    assert future.notes[0] == "2 cuts, 4 kinds of damage"
    bars = read_bars(finished / "bars")
    moments = rare_moments(bars) | calendar_moments(bars)
    assert future.notes[1].startswith(f"{len(moments)} short cuts: ")


def test_a_corpus_is_audited_with_and_without_bars(finished: Path) -> None:
    with_bars = audit_path(finished / "corpus", bars=finished / "bars", config=QUICK)
    without = audit_path(finished / "corpus", config=QUICK)
    assert names(with_bars) == names(without) == [*OF_BARS, *OF_CORPUS, *LAST]
    assert {proof.verdict for proof in with_bars} == {PASSED}
    assert [proof.verdict for proof in without] == [NOT_RUN] * 4 + [PASSED] * 5
    assert [proof.notes for proof in without[:4]] == [["not run: needs --bars"]] * 4


def test_other_bars_are_not_taken_for_those_of_the_corpus(place: Path) -> None:
    bars = read_file(place / "bars/EURUSD.parquet")
    one = pl.int_range(pl.len()) == 2_000
    raised = pl.when(one).then(pl.col("Close") * 1.001).otherwise(pl.col("Close"))
    write_symbol(place / "bars", "EURUSD", bars.with_columns(raised))
    assert failed(place).keys() == {"rebuild", "f. provenance"}


def test_a_grown_corpus_is_still_the_origin_of_its_run(place: Path) -> None:
    old = read_file(place / "bars/EURUSD.parquet")
    late = old["Datetime"][-1] - old["Datetime"][-51]
    later = old.tail(50).with_columns(pl.col("Datetime") + late)
    write_symbol(place / "bars", "EURUSD", pl.concat([old, later]))
    append_bars(place / "corpus", place / "bars")
    assert failed(place) == {}


def test_what_is_neither_is_refused(finished: Path) -> None:
    with pytest.raises(DataError, match="neither a corpus nor a run"):
        audit_path(finished / "bars")
    # A run names its corpus itself.
    run = finished / "seed17"
    assert hashes_of(run) == hashes_of(run, finished / "corpus")


def test_every_file_that_a_claim_rests_on_has_a_hash(place: Path) -> None:
    """Of a corpus without reading its arrays: whoever publishes hashes has had it audited."""
    ledger, corpus = place / "corpus/ledger.jsonl", open_corpus(place / "corpus")
    array = next((place / "corpus").rglob("sigma20.npy"))
    array.write_bytes(array.read_bytes()[:-1] + b"\x01")
    of_corpus = {"corpus": corpus.sha256, "ledger.jsonl": sha256_file(ledger)}
    assert hashes_of(place / "corpus") == of_corpus
    run = Run(place / "seed17")
    scored = run.forecasts / "flat/evaluation-x.json"
    more = [run.dependence, run.horizons, run.report, scored]
    for file in more:
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(file.name)
    files = [run.config, run.metrics, run.best, *more]
    for split in ("test-h1", "test-h2", "validation"):
        files += [run.evaluation(split), run.events(split)]
    expected = of_corpus | {"checkpoint": load_checkpoint(run.best).sha256}
    expected |= {str(file.relative_to(run.path)): sha256_file(file) for file in files}
    assert hashes_of(run.path, place / "corpus") == expected
    ledger.unlink()
    assert hashes_of(place / "corpus")["corpus"] == corpus.sha256
