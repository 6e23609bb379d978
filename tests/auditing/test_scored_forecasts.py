"""Forecasts of others beside a run: the report shows them, an honest one passes the audit, a forged
one does not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import vaiom as package
from auditing.test_figures import changed, proof_of
from vaiom.auditing.audit import hashes_of
from vaiom.auditing.figures import _compare_scored_forecasts, prove_figures
from vaiom.auditing.pipeline import AuditedRun
from vaiom.auditing.proof import PASSED, AuditConfig, Proof
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.evaluation.evaluate import judge
from vaiom.evaluation.scores import event_bits, find_rows, read_events
from vaiom.files import sha256_of
from vaiom.report.page import write_report
from vaiom.run import Run

FOLDER = Path("seed17/forecasts/flat")
TEST = FOLDER / "evaluation-test-h1.json"
EVENTS = FOLDER / "events-test-h1.parquet"


def score(place: Path, split: str, tilt: float = 0.0) -> Any:
    """Forecasts of every second event, nearly uniform, saved in the run."""
    events = pl.read_parquet(
        place / f"seed17/events-{split}.parquet", columns=["symbol", "target_time"]
    )[::2]
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>"
        )  # drawing takes seconds
        write_report(place / "seed17", corpus=place / "corpus")
    return place


@pytest.fixture
def spoiled(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>")
    monkeypatch.setattr("vaiom.auditing.proof.MAX_FINDINGS", 10**6)
    shutil.copytree(scored, tmp_path / "spoiled")
    return tmp_path / "spoiled"


def test_the_report_shows_what_was_saved_and_an_honest_one_passes(spoiled: Path) -> None:
    found = json.loads((spoiled / TEST).read_text())
    assert found["bits"]["model"] == 4.0
    text = Run(spoiled / "seed17").report.read_text()
    section = text[text.index('<section id="forecasts"') :].partition("</section>")[0]
    assert f"{found['num_events']:,} events) flat needs 4.0000 bits per event" in section
    assert {"run seed17", "frequency", "markov", "hour_of_week"} < found["bits"].keys()
    for against in found["against"]:
        assert f">{against['baseline']}</th>" in section
        assert f">{found['bits'][against['baseline']]:.4f}<" in section
        low, high = against["gain"]["asset_months"]["interval"]
        assert f"[{low:+.4f}, {high:+.4f}]".replace("-", "\N{MINUS SIGN}") in section
    proof = proof_of(spoiled, rescore=10)
    assert proof.findings == []
    assert proof.verdict == PASSED
    assert "flat, test-h1: forecasts of others, taken as they were given" in proof.notes
    assert {f"forecasts/flat/{each.name}" for each in (spoiled / FOLDER).iterdir()} < hashes_of(
        spoiled / "seed17"
    ).keys()


def findings_of(place: Path) -> list[str]:
    return proof_of(place, rescore=10).findings


def test_no_number_of_them_can_be_changed(spoiled: Path) -> None:
    paths: list[str] = []
    stored = json.loads((spoiled / TEST).read_text())
    told = {
        "looks": None,
        "caveats": ["None is missing."],
        "experiment": "garch",
        "bits_alone": 3.0,
    }
    (spoiled / TEST).write_text(json.dumps(changed(stored, "flat, test-h1", paths) | told))
    found = findings_of(spoiled)
    # Lines of a table that is not kept: only what is said of them can be held.
    assert set(paths) - {finding.split(":")[0] for finding in found} == {"flat, test-h1.num_unused"}
    assert len(paths) > 1_000
    for says in (
        "no such look",
        "caveats: ",
        "experiment: the file says garch",
        "bits_alone: the file says",
    ):
        assert any(says in finding for finding in found), says
    (spoiled / TEST).write_text(json.dumps(stored | {"num_unused": stored["num_unused"] + 1}))
    assert any("caveats" in finding for finding in findings_of(spoiled))


def test_no_loss_and_no_forecast_of_them_can_be_changed(spoiled: Path) -> None:
    table, columns = (
        pl.read_parquet(spoiled / EVENTS),
        ["bits_model", "bits_run seed17", "bits_markov"],
    )
    table.with_columns(pl.col(columns) - 0.1, pl.col("prob_1") * 1.0001).write_parquet(
        spoiled / EVENTS
    )
    found = findings_of(spoiled)
    for says in (
        "model gives",
        "run seed17 gives",
        "markov gives",
        "no such look at these forecasts",
    ):
        assert any(
            finding.startswith("flat, test-h1: ") and says in finding for finding in found
        ), says


def test_other_forecasts_and_another_page_are_found(spoiled: Path) -> None:
    """Better forecasts with figures of their own, and a ledger that never saw them."""
    ledger = spoiled / "corpus/ledger.jsonl"
    before = ledger.read_bytes()
    score(spoiled, "test-h1", tilt=1e-3)
    ledger.write_bytes(before)
    look, *_, shown = findings_of(spoiled)
    assert look == "flat, test-h1: the ledger has no such look at these forecasts"
    assert shown.startswith("report.html, forecasts: says")


def test_forecasts_beside_another_model_are_refused(spoiled: Path) -> None:
    stored = json.loads((spoiled / TEST).read_text())
    (spoiled / TEST).write_text(json.dumps(stored | {"run_sha256": "0"}))
    with pytest.raises(DataError, match="scored against another model") as refused:
        write_report(spoiled / "seed17", corpus=spoiled / "corpus")
    assert "--save, or remove" in str(refused.value.fix)


def compared(place: Path, split: str = "test-h1") -> Proof:
    run = AuditedRun(
        place / "seed17", open_corpus(place / "corpus"), AuditConfig(seed=3, baselines=("markov",))
    )
    proof = Proof(claim=prove_figures)
    _compare_scored_forecasts(proof, run, Run(place / FOLDER), split)
    return proof


AS_GIVEN = "flat, test-h1: forecasts of others, taken as they were given"
NOT_AGAIN = [
    f"flat, test-h1: {name} was not computed again (--baselines fits those that are named)"
    for name in ("frequency", "hour_of_week")
]
NO_LOOK = "flat, test-h1: the ledger has no such look at these forecasts"
NOT_THERE = "flat, test-h1: events without forecasts, or that the run does not have"


def test_honest_forecasts_of_others_leave_three_things_to_say(spoiled: Path) -> None:
    proof = compared(spoiled)
    assert proof.findings == []
    assert sorted(proof.notes) == sorted([*NOT_AGAIN, AS_GIVEN])
    assert compared(spoiled, "validation").findings == []


def rewrite(place: Path, change: Any) -> None:
    change(pl.read_parquet(place / EVENTS)).write_parquet(place / EVENTS)


def twice(events: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([events, events[3:4]])


def elsewhen(events: pl.DataFrame) -> pl.DataFrame:
    """One event whose bar the run has not scored: an hour of another split."""
    early = pl.col("target_time").dt.offset_by("-20d")
    return events.with_columns(
        pl.when(pl.int_range(pl.len()) == 0).then(early).otherwise(pl.col("target_time"))
    )


def without_forecasts(events: pl.DataFrame) -> pl.DataFrame:
    return events.drop(pl.selectors.starts_with("prob_"))


@pytest.mark.parametrize("how", [twice, elsewhen, without_forecasts])
def test_events_of_others_are_the_runs_with_forecasts(spoiled: Path, how: Any) -> None:
    rewrite(spoiled, how)
    proof = compared(spoiled)
    assert (proof.findings, proof.notes, proof.count) == ([NOT_THERE], [], 1)


def test_losses_of_others_the_run_and_baselines_are_each_compared(spoiled: Path) -> None:
    for column, name in (("model", "model"), ("run seed17", "run seed17"), ("markov", "markov")):
        rewrite(
            spoiled,
            lambda events, column=column: events.with_columns(pl.col(f"bits_{column}") + 0.25),
        )
        found = compared(spoiled).findings
        rewrite(
            spoiled,
            lambda events, column=column: events.with_columns(pl.col(f"bits_{column}") - 0.25),
        )
        losses = [finding for finding in found if "gives an event" in finding]
        assert losses == [
            f"flat, test-h1: {name} gives an event 2.5e-01 bits more or fewer than the file"
        ]


def test_a_look_at_other_forecasts_or_of_another_number_is_none(spoiled: Path) -> None:
    stored = json.loads((spoiled / TEST).read_text())
    assert stored["looks"] == 2
    for looks in (None, 1, 3):
        (spoiled / TEST).write_text(json.dumps(stored | {"looks": looks}))
        assert compared(spoiled).findings == [NO_LOOK]
    validation = spoiled / FOLDER / "evaluation-validation.json"
    other = json.loads(validation.read_text())
    validation.write_text(json.dumps(other | {"looks": 1}))
    found = compared(spoiled, "validation").findings
    assert found == [NO_LOOK.replace("test-h1", "validation")]


def test_what_is_said_of_others_forecasts_is_held_word_by_word(spoiled: Path) -> None:
    stored = json.loads((spoiled / TEST).read_text())
    run = AuditedRun(spoiled / "seed17", open_corpus(spoiled / "corpus"), AuditConfig(seed=3))
    events = read_events(spoiled / FOLDER, "test-h1")
    ours = len(read_events(spoiled / "seed17", "test-h1"))
    assert (stored["num_missing"], stored["num_unused"]) == (ours - len(events), 0)
    rows = find_rows(run.corpus, run.corpus.target_timestamps, events.symbols, events.target_times)
    assert events.probs is not None
    np.testing.assert_allclose(
        event_bits(events.probs, events.buckets), events.bits["model"], atol=1e-9
    )
    assert stored["caveats"][1:] == judge(run.corpus, "test-h1", rows, events)["caveats"]
    digest = sha256_of(events.probs.tobytes())
    for name, ours_is, theirs in (
        ("form", None, "dreams"),
        ("num_missing", ours - len(events), 1),
        ("seed", 0, 1),
        ("step", 0, 1),
        ("experiment", "flat", "other"),
        ("split", "test-h1", "test-h2"),
        ("run", "flat", "seed17"),
        ("checkpoint_sha256", digest, "0"),
        ("precision", None, "float32"),
        ("joint", None, None),
    ):
        (spoiled / TEST).write_text(json.dumps(stored | {name: theirs}))
        found = compared(spoiled).findings
        if name == "form":
            assert found[0] == "flat, test-h1: forecasts of an unknown form, dreams"
            assert found[1].startswith("flat, test-h1.caveats[0]: the file says ")
            assert len(found) == 2
        elif ours_is is not None or theirs is not None:
            assert found == [
                f"flat, test-h1.{name}: the file says {theirs}, recomputed {ours_is}"
            ], name
    (spoiled / TEST).write_text(
        json.dumps({key: value for key, value in stored.items() if key != "num_unused"})
    )
    assert [finding for finding in compared(spoiled).findings if "caveats" in finding] == []
