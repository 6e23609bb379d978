"""Forecasts of others beside a run: the report shows them, an honest one passes the audit, a forged
one does not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import vaiom as package
from vaiom.auditing.again import prove_evaluation
from vaiom.auditing.audit import hashes_of
from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.proof import PASSED, AuditConfig, Proof
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.report.page import write_report
from vaiom.run import Run
from verification.forgeries.catalogue import changed, edit

FOLDER = Path("seed17/forecasts/flat")
TEST = FOLDER / "evaluation-test-h1.json"
EVENTS = FOLDER / "events-test-h1.parquet"
MINUS = "\N{MINUS SIGN}"


def score(place: Path, split: str, tilt: float = 0.0) -> Any:
    """Forecasts of every second event, nearly uniform, saved in the run."""
    file = place / f"seed17/events-{split}.parquet"
    events = pl.read_parquet(file, columns=["symbol", "target_time"])[::2]
    probs = {f"p{bucket}": 1 / 16 + tilt * (bucket - 8.5) for bucket in range(1, 17)}
    table = events.with_columns(pl.lit(value).alias(name) for name, value in probs.items())
    against = place / "seed17"
    return package.score(table, place / "corpus", split, name="flat", against=against, save=True)


@pytest.fixture(scope="module")
def scored(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scored") / "place"
    shutil.copytree(finished, place)
    for split in ("validation", "test-h1"):
        score(place, split)
    for split in ("validation", "test-h2"):  # fewer are quicker
        Run(place / "seed17").evaluation(split).unlink()
    (place / FOLDER / "evaluation-validation.json").unlink()
    write_report(place / "seed17", corpus=place / "corpus")
    return place


@pytest.fixture
def spoiled(scored: Path, tmp_path: Path) -> Path:
    shutil.copytree(scored, tmp_path / "spoiled")
    return tmp_path / "spoiled"


def proof_of(place: Path, *baselines: str) -> Proof:
    corpus = open_corpus(place / "corpus")
    config = AuditConfig(seed=3, rescore=10, baselines=baselines or ("markov",))
    return prove_evaluation(AuditedRun(place / "seed17", corpus, config))


def found(place: Path) -> list[str]:
    return proof_of(place).findings


def test_the_report_shows_what_was_saved_and_an_honest_one_passes(scored: Path) -> None:
    saved = json.loads((scored / TEST).read_text())
    assert saved["bits"]["model"] == 4.0
    text = Run(scored / "seed17").report.read_text()
    section = text[text.index('<section id="forecasts"') :].partition("</section>")[0]
    assert f"{saved['num_events']:,} events) flat needs 4.0000 bits per event" in section
    assert {"run seed17", "frequency", "markov", "hour_of_week"} < saved["bits"].keys()
    for against in saved["against"]:
        low, high = against["gain"]["asset_months"]["interval"]
        assert f">{against['baseline']}</th>" in section
        assert f"[{low:+.4f}, {high:+.4f}]".replace("-", MINUS) in section
    proof = proof_of(scored)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert "flat, test-h1: forecasts of others, taken as they were given" in proof.notes
    files = {f"forecasts/flat/{each.name}" for each in (scored / FOLDER).glob("*-test-h1.*")}
    assert files < hashes_of(scored / "seed17").keys()


def test_no_number_of_them_can_be_changed(spoiled: Path) -> None:
    paths: list[str] = []
    stored = json.loads((spoiled / TEST).read_text())
    edit(
        spoiled / TEST,
        **changed(stored, "flat, test-h1", paths)
        | {"looks": None, "caveats": ["None is missing."], "experiment": "garch"},
    )
    findings = found(spoiled)
    # Lines of a table that is not kept: only what is said of them can be compared.
    lacking = set(paths) - {finding.split(":")[0] for finding in findings}
    assert lacking == {"flat, test-h1.num_unused", "flat, test-h1.looks"}
    assert len(paths) > 1_000
    for says in ("no such look", "caveats: ", "experiment: the file says garch"):
        assert any(says in finding for finding in findings), says
    edit(spoiled / TEST, **stored | {"num_unused": stored["num_unused"] + 1})
    assert any("caveats" in finding for finding in found(spoiled))


def rewrite(place: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    change(pl.read_parquet(place / EVENTS)).write_parquet(place / EVENTS)


def twice(events: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([events, events[3:4]])


def elsewhen(events: pl.DataFrame) -> pl.DataFrame:
    """One event whose bar the run has not scored: an hour of another split."""
    early = pl.col("target_time").dt.offset_by("-20d")
    first = pl.int_range(pl.len()) == 0
    return events.with_columns(pl.when(first).then(early).otherwise(pl.col("target_time")))


def without_forecasts(events: pl.DataFrame) -> pl.DataFrame:
    return events.drop(pl.selectors.starts_with("prob_"))


@pytest.mark.parametrize("how", [twice, elsewhen, without_forecasts])
def test_events_of_others_are_the_runs_with_forecasts(
    spoiled: Path, how: Callable[[pl.DataFrame], pl.DataFrame]
) -> None:
    rewrite(spoiled, how)
    says = "flat, test-h1: events without forecasts, or that the run does not have"
    assert says in found(spoiled)


def test_losses_of_others_the_run_and_baselines_are_each_compared(spoiled: Path) -> None:
    for name in ("model", "run seed17", "markov"):
        column = pl.col(f"bits_{name}")
        for off in (0.25, -0.25):
            rewrite(spoiled, lambda events, moved=column + off: events.with_columns(moved))
            says = f"flat, test-h1: {name} gives an event 2.5e-01 bits more or fewer than the file"
            assert (says in found(spoiled)) == (off > 0)


def test_other_forecasts_and_another_page_are_found(spoiled: Path) -> None:
    """Better forecasts with figures of their own, and a ledger that never saw them."""
    ledger = spoiled / "corpus/ledger.jsonl"
    before = ledger.read_bytes()
    score(spoiled, "test-h1", tilt=1e-3)
    ledger.write_bytes(before)
    look, *_, shown = found(spoiled)
    assert look == "flat, test-h1: the ledger has no such look at these forecasts"
    assert shown.startswith("report.html, forecasts: says")


def test_forecasts_beside_another_model_are_refused(spoiled: Path) -> None:
    edit(spoiled / TEST, run_sha256="0")
    with pytest.raises(DataError, match="scored against another model") as refused:
        write_report(spoiled / "seed17", corpus=spoiled / "corpus")
    assert "--save, or remove" in str(refused.value.fix)


def test_baselines_are_named_that_were_not_computed_again(spoiled: Path) -> None:
    notes = proof_of(spoiled).notes
    for name in ("frequency", "hour_of_week"):
        again = "was not computed again (--baselines fits those that are named)"
        assert f"flat, test-h1: {name} {again}" in notes


@pytest.mark.parametrize("looks", [None, 1, 3])
def test_a_look_of_another_number_is_none(spoiled: Path, looks: int | None) -> None:
    assert json.loads((spoiled / TEST).read_text())["looks"] == 2
    edit(spoiled / TEST, looks=looks)
    no_look = "flat, test-h1: the ledger has no such look at these forecasts"
    assert found(spoiled)[0] == no_look


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_missing", 1),
        ("seed", 1),
        ("step", 1),
        ("experiment", "other"),
        ("split", "test-h2"),
        ("run", "seed17"),
        ("checkpoint_sha256", "0"),
        ("precision", "float32"),
        ("bits_alone", 3.0),
    ],
)
def test_what_is_said_of_them_is_held_word_by_word(spoiled: Path, name: str, value: object) -> None:
    edit(spoiled / TEST, **{name: value})
    assert found(spoiled)[0].startswith(f"flat, test-h1.{name}: the file says {value}, recomputed")


def test_an_unknown_form_is_found(spoiled: Path) -> None:
    edit(spoiled / TEST, form="dreams")
    assert found(spoiled)[0] == "flat, test-h1: forecasts of an unknown form, dreams"


def test_a_run_that_was_renamed_since_keeps_its_forecasts(spoiled: Path) -> None:
    Run(spoiled / "seed17").report.unlink()
    shutil.move(spoiled / "seed17", spoiled / "renamed")
    corpus, config = open_corpus(spoiled / "corpus"), AuditConfig(seed=3, rescore=10)
    assert prove_evaluation(AuditedRun(spoiled / "renamed", corpus, config)).findings == []
