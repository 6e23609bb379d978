"""`vaiom reproduce` from end to end: every table, honest looks, one object, a page from records
alone.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproductions import RUN_COMPARISONS, RUN_TABLES, Reproduced, vaiom, words_of

from cli.command_line import require_refusal
from reproduction.findings import Records
from reproduction.page import tables_of
from reproduction.paper import COMPARISONS, JUDGED, MAIN, SEEDS
from reproduction.plan import TABLES
from reproduction.records import CORPUS
from reproduction.tasks import score_ensemble
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.evaluation.scores import read_events, write_events


@pytest.fixture(scope="module")
def records(reproduced: Reproduced) -> Records:
    return Records.read(reproduced.out / "records")


def test_all_tables_are_on_the_page_and_on_the_terminal(
    reproduced: Reproduced, records: Records
) -> None:
    for name in TABLES:
        tables = tables_of(name, records)
        assert tables, name
        for table, _ in tables:
            assert f"## {table.caption}\n" in reproduced.page
            assert (table.caption in reproduced.ran.out) == (name in RUN_TABLES)
    for comparison in COMPARISONS:
        for row in comparison.rows:
            assert row.bits is None or f"{row.bits:.4f}" in reproduced.page


def test_runs_of_this_timeframe_have_figures_and_the_others_only_published_ones(
    reproduced: Reproduced, records: Records
) -> None:
    for comparison in RUN_COMPARISONS:
        for row in comparison.rows:
            assert bool(records.runs(row.experiment, row.timeframe)) == (row.timeframe == "1h"), row
    assert "rows of 1d bars without a record" in reproduced.page


def test_what_was_scaled_down_is_said_and_not_claimed(
    reproduced: Reproduced, records: Records
) -> None:
    assert "2 steps of 4 windows for 5,500 of 128" in reproduced.page
    assert "width 12 for 128" in reproduced.page
    assert "too short to claim" in reproduced.page
    assert not any(record.claimed for record in records.all if record.validation)
    for word in ("holds", "unresolved"):
        tables = reproduced.page.split("\n## ", 2)[2]  # those below the claims
        rows = [line for line in tables.splitlines() if line.startswith("|") and word in line]
        assert not any(
            comparison.rows[0].label in row for comparison in COMPARISONS for row in rows
        )


def test_the_page_states_data_hardware_and_splits(reproduced: Reproduced, records: Records) -> None:
    facts = records.facts(CORPUS)
    for said in (
        "45,000 bars of 1 asset",
        facts["sha256"][:12],
        "runs on CPU",
        "Train before 2024-01-01",
    ):
        assert said in reproduced.page


def test_the_walk_forward_has_its_years_and_its_figure(
    reproduced: Reproduced, records: Records
) -> None:
    walked = records.walk_forward()
    assert list(walked) == [2023, 2024]
    for record in walked.values():
        scored = record.scored["year"]
        assert set(scored.bits) == {"model", "frequency", "markov"}
        assert scored.gains["markov"].months.num_blocks == 12
        assert scored.gains["markov"].gain_bits == pytest.approx(
            scored.bits["markov"] - scored.bits["model"]
        )
    figure = (reproduced.out / "walk-forward.svg").read_text()
    assert figure.count("<svg") == 1
    assert "](walk-forward.svg)" in reproduced.page


def test_only_judged_models_look_at_a_test_and_once_per_seed(
    reproduced: Reproduced, records: Records
) -> None:
    looks = [json.loads(line) for line in reproduced.ledger.splitlines()]
    by_model = Counter((look["split"], look["run"]) for look in looks if look["checkpoint_sha256"])
    assert set(by_model.values()) == {1}
    runs = {(split, run) for split, run in by_model if run != "ensemble"}
    assert set(by_model) - runs == {("test-h1", "ensemble"), ("test-h2", "ensemble")}
    assert Counter(split for split, _ in runs) == {
        "test-h1": 2 * len(SEEDS),
        "test-h2": 2 * len(SEEDS),
    }
    assert {run.rpartition("-")[0] for _, run in runs} == {
        f"1h-{name}-s{seed}" for name in JUDGED for seed in SEEDS
    }
    for record in records.all:
        if record.name not in JUDGED or record.year:
            assert not set(record.scored) & {"test-h1", "test-h2", "all"}, record.name
    # The files of the runs tell the same as the ledger.
    events = {file.parent.name for file in reproduced.out.glob("runs/*/events-test*")}
    assert events == {run for _, run in runs}


def test_pairs_and_the_ensemble_come_from_the_losses_of_the_runs(
    reproduced: Reproduced, records: Records
) -> None:
    def losses(name: str, seed: int, split: str) -> np.ndarray:
        (run,) = reproduced.out.glob(f"runs/1h-{name}-s{seed}-*")
        return read_events(run, split).bits["model"]

    pairs = records.pairs("best")
    assert list(pairs) == list(SEEDS)
    for seed, record in pairs.items():
        for split, scored in record.scored.items():
            gains = losses("main", seed, split) - losses("best", seed, split)
            assert scored.gains["main"].gain_bits == pytest.approx(gains.mean())
            assert scored.bits["model"] == pytest.approx(losses("best", seed, split).mean())
    ensemble = records.ensemble("best")
    assert ensemble
    assert set(ensemble.scored) == {"validation", "test-h1", "test-h2"}
    for split, scored in ensemble.scored.items():
        each = [2.0 ** -losses("best", seed, split) for seed in SEEDS]
        assert scored.bits["model"] == pytest.approx(
            -np.log2(np.mean(each, axis=0)).mean(), abs=1e-6
        )
    assert "`best` beside `main`" in reproduced.page
    assert "`best` beside every baseline" in reproduced.page


def test_an_ensemble_refuses_stored_events_of_something_else(
    reproduced: Reproduced, tmp_path: Path
) -> None:
    corpus = open_corpus(reproduced.corpus)
    split = "test-h1"
    runs = sorted(reproduced.out.glob("runs/1h-best-s*"))[:2]
    first = Path(shutil.copytree(runs[0], tmp_path / runs[0].name))
    events = read_events(first, split)
    write_events(
        first, split, replace(events, target_times=events.target_times + np.timedelta64(1, "h"))
    )
    before = (reproduced.corpus / "ledger.jsonl").read_text()
    with pytest.raises(DataError, match="the two event sets differ"):
        score_ensemble([first, *runs[1:]], corpus, split, "cpu")
    assert (reproduced.corpus / "ledger.jsonl").read_text() == before


def test_the_full_year_is_there_where_both_halves_are(records: Records) -> None:
    for record in records.runs(MAIN, "1h").values():
        halves = [record.scored[split].gains["markov"] for split in ("test-h1", "test-h2")]
        year = record.scored["all"].gains["markov"]
        events = [half.num_events for half in halves]
        assert year.num_events == sum(events)
        together = sum(
            half.gain_bits * count for half, count in zip(halves, events, strict=True)
        ) / sum(events)
        assert year.gain_bits == pytest.approx(together)


def test_rendering_alone_gives_the_same_page(reproduced: Reproduced, tmp_path: Path) -> None:
    shutil.copytree(reproduced.out / "records", tmp_path / "records")
    ran = vaiom(
        "reproduce", *RUN_TABLES, "--out", tmp_path, "--page", tmp_path / "docs" / "page.md"
    )
    assert ran.code == 0
    assert (tmp_path / "docs" / "page.md").read_text() == reproduced.page
    assert (tmp_path / "docs" / "walk-forward.svg").read_bytes() == (
        reproduced.out / "walk-forward.svg"
    ).read_bytes()
    assert ran.out == reproduced.ran.out


def test_one_object(reproduced: Reproduced) -> None:
    words = words_of(reproduced.corpus, reproduced.out, "splits", "rungs", "--json")
    value = vaiom(*words).json()
    assert value == {
        "tables": ["rungs", "splits"],
        "tasks": 5,
        "failed": [],
        "page": str(reproduced.out / "reproduction.md"),
    }


def test_the_list_shows_costs_and_runs_nothing(reproduced: Reproduced, tmp_path: Path) -> None:
    plain = vaiom("reproduce", "--list")
    assert plain.code == 0
    for comparison in COMPARISONS:
        assert comparison.name in plain.out
        for row in comparison.rows:
            assert row.experiment in plain.out
    costs = {
        each["name"]: each["cost"]
        for each in vaiom("reproduce", "--list", "--json").json()["experiments"]
    }
    assert costs[MAIN] == 1
    assert (
        costs["cont-15m-last-300k"] > costs["cont-5m-last-300k"] > costs["cont-0.9m-last-300k"] > 10
    )
    listed = vaiom("reproduce", "--corpus", reproduced.corpus, "--out", tmp_path / "none", "--list")
    assert "1h-main-s17" in listed.out
    assert "runs of the main model" in listed.err
    fast = vaiom(
        "reproduce", "--corpus", reproduced.corpus, "--budget", "fast", "--list", "--json"
    ).json()["runs"]
    full = vaiom(
        "reproduce", "--corpus", reproduced.corpus, "--budget", "full", "--list", "--json"
    ).json()["runs"]
    assert 0 < sum(run["cost"] for run in fast) < sum(run["cost"] for run in full) / 4
    assert not (tmp_path / "none").exists()


def test_refusals(reproduced: Reproduced, tmp_path: Path) -> None:
    require_refusal(vaiom("reproduce", "nonsense"), "unknown table", "main-test", "nonsense")
    require_refusal(
        vaiom("reproduce", "--out", tmp_path / "typo"), "no records", "typo", "--corpus"
    )
    assert not (tmp_path / "typo").exists()
    twice = ("--corpus", reproduced.corpus, "--corpus", reproduced.corpus)
    require_refusal(
        vaiom("reproduce", *twice, "--out", tmp_path), "two corpora of one timeframe", "1h"
    )
    require_refusal(
        vaiom("reproduce", "--corpus", reproduced.corpus, "--budget", "slow"), "full, fast", "slow"
    )
    unknown = ("--corpus", reproduced.corpus, "--set", "depth=3")
    require_refusal(vaiom("reproduce", *unknown), "unknown setting", "num_layers", "depth")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "bad.json").write_text('{"kind": "run"}')
    require_refusal(vaiom("reproduce", "--out", tmp_path), "not a record", "bad.json")
