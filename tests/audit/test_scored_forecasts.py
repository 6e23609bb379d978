"""Forecasts of others beside a run: the report shows them, an honest one passes the audit, a forged one does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import vaiom as package
from audit.test_figures import changed, proof_of
from vaiom.audit.audit import hashes_of
from vaiom.audit.proof import PASSED
from vaiom.errors import DataError
from vaiom.report.page import write_report
from vaiom.run import Run

FOLDER = Path("seed17/forecasts/flat")
TEST = FOLDER / "evaluation-test-h1.json"
EVENTS = FOLDER / "events-test-h1.parquet"


def score(place: Path, split: str, tilt: float = 0.0) -> Any:
    """Forecasts of every second event, nearly uniform, saved in the run."""
    events = pl.read_parquet(place / f"seed17/events-{split}.parquet", columns=["symbol", "target_time"])[::2]
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
        patch.setattr("vaiom.report.figures._to_svg", lambda *figure: "<svg></svg>")  # drawing takes seconds
        write_report(place / "seed17", corpus=place / "corpus")
    return place


@pytest.fixture
def spoiled(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("vaiom.report.figures._to_svg", lambda *figure: "<svg></svg>")
    monkeypatch.setattr("vaiom.audit.proof.MAX_FINDINGS", 10**6)
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
    told = {"looks": None, "caveats": ["None is missing."], "experiment": "garch", "bits_alone": 3.0}
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
    table, columns = pl.read_parquet(spoiled / EVENTS), ["bits_model", "bits_run seed17", "bits_markov"]
    table.with_columns(pl.col(columns) - 0.1, pl.col("prob_1") * 1.0001).write_parquet(spoiled / EVENTS)
    found = findings_of(spoiled)
    for says in ("model gives", "run seed17 gives", "markov gives", "no such look at these forecasts"):
        assert any(finding.startswith("flat, test-h1: ") and says in finding for finding in found), says


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
