"""The pages of the repository are what its results say, to the byte."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from reproduction.__main__ import ROOT, write_docs
from reproduction.claims import claims
from reproduction.findings import FAILS, HOLDS, UNRESOLVED, Records, measure
from reproduction.paper import CLAIMS, comparison
from reproduction.records import ALL_TESTS, CORPUS, RUN, WALK, YEAR, read_records
from reproduction.tasks import Task
from vaiom.codec import from_json
from vaiom.experiments.registry import experiment
from vaiom.training.experiment import Experiment

DOCS = ROOT / "docs"
GONE = ("norm", "feed_forward", "normed_keys", "drop_field")
"""Settings that the search tried and that were not kept."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    write_docs(DOCS / "results", folder)
    return folder


@pytest.mark.parametrize("name", ["reproduction.md", "walk-forward.svg", "LOG.md"])
def test_a_page_is_written_from_results_alone(written: Path, name: str) -> None:
    assert (written / name).read_bytes() == (DOCS / name).read_bytes(), "run `make reproduce`"


def test_every_record_is_found_by_the_key_of_its_settings() -> None:
    records = read_records(DOCS / "results" / "records")
    corpora = {each.timeframe: each.facts["sha256"] for each in records if each.kind == CORPUS}
    trained = [each for each in records if each.kind in (RUN, WALK)]
    assert len(trained) > 50
    for record in trained:
        task = Task(
            kind=record.kind,
            timeframe=record.timeframe,
            corpus_sha256=corpora[record.timeframe],
            experiment=from_json(Experiment, record.settings),
            year=record.year,
            splits=tuple(split for split in record.scored if split not in (ALL_TESTS, YEAR)),
        )
        assert task.key == record.key
        assert (DOCS / "results" / "records" / f"{task.id}.json").is_file()


def test_every_run_of_the_search_has_a_figure_of_its_own_curve_and_settings_that_exist() -> None:
    rounds = json.loads((DOCS / "results" / "search.json").read_text())
    runs = [(each, run) for each in rounds for run in each["runs"]]
    assert len(runs) >= 30
    for each, run in runs:
        if run["validation"]:  # of some only the figure was kept
            assert (
                run["bits"]
                == min(run["validation"].values())
                == run["validation"][str(run["step"])]
            )
        kept = [
            setting
            for setting in (*each["common"], *run["settings"])
            if setting.partition("=")[0] not in GONE
        ]
        experiment(each.get("experiment", "main")).with_settings(kept)


def test_the_claims_are_decided_by_the_tables_below_them() -> None:
    records = Records.read(DOCS / "results" / "records")
    table, told = claims(records)
    by_text = {row[0]: row for row in table.rows}
    assert len(by_text) == len(CLAIMS)
    verdicts = Counter(row[4] for row in table.rows)
    assert set(verdicts) <= {HOLDS, FAILS, UNRESOLVED}
    assert (
        told == f"Of {len(CLAIMS)}: {verdicts[HOLDS]} hold, {verdicts[FAILS]} fail, "
        f"{verdicts[UNRESOLVED]} are unresolved."
    )
    for claim in CLAIMS:
        _, published, ours, _, verdict, why = by_text[claim.text]
        assert why
        if verdict != UNRESOLVED:
            assert (
                (published < 0) == (ours < 0) if verdict == HOLDS else (published < 0) != (ours < 0)
            )
    measured = {each.row.label: each for each in measure(comparison("rungs"), records)}
    assert by_text["5M parameters are worse than 0.9M"][2] == measured["5M"].delta_bits
