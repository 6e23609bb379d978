"""The runner: finished work is reused, broken work goes on, failures stop nothing, every engine
leaves the same.
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from reproductions import (
    SOME,
    TINY,
    Reproduced,
    records_in,
    start_vaiom,
    vaiom,
    without_minutes,
    words_of,
)

from cli.command_line import require_refusal
from reproduction.findings import Records
from reproduction.page import render
from reproduction.paper import MAIN, SEEDS
from reproduction.plan import plan_tasks
from reproduction.records import BASELINES, RUN, read_record
from reproduction.tasks import Place, finish_tasks
from vaiom.corpus.store import open_corpus
from vaiom.experiments.tasks import TaskRunner


def page_of_some(some_reproduced: Reproduced, out: Path) -> str:
    """What the page of `out` would be if its records were those of the uninterrupted run."""
    names = {file.stem for file in (out / "records").glob("*.json")}
    chosen = [
        record
        for file, record in zip(
            sorted((some_reproduced.out / "records").glob("*.json")),
            Records.read(some_reproduced.out / "records").all,
            strict=True,
        )
        if file.stem in names
    ]
    assert len(chosen) == len(names)
    return without_minutes(render(Records(chosen)))


def test_a_second_call_runs_nothing(some_reproduced: Reproduced) -> None:
    def times() -> dict[str, int]:
        files = [*some_reproduced.out.glob("r*/**/*"), some_reproduced.corpus / "ledger.jsonl"]
        return {
            str(file): file.stat().st_mtime_ns
            for file in files
            if "baselines" not in file.name and file.is_file()
        }

    before = times()
    page = some_reproduced.page
    again = vaiom(
        *words_of(
            some_reproduced.corpus,
            some_reproduced.out,
            *some_reproduced.tables,
            "--baselines",
            some_reproduced.baselines,
        )
    )
    assert again.code == 0
    assert times() == before
    assert some_reproduced.page == page


def test_a_failure_is_told_at_the_end_and_stops_nothing(
    some_reproduced: Reproduced, tmp_path: Path
) -> None:
    words = words_of(some_reproduced.corpus, tmp_path, *SOME)
    listed = json.loads(vaiom(*words, "--list", "--json").out)["runs"]
    done = vaiom(*words, "--json")
    assert done.code == 0
    names = sorted((tmp_path / "runs").iterdir())
    assert len(names) == len(listed)
    # One run whose state is damaged and whose record is gone: it can neither be reused nor go on.
    broken = names[0]
    lost = names[1]
    for run in (broken, lost):
        (tmp_path / "records" / f"{run.name}.json").unlink()
    for state in broken.rglob("*.safetensors"):
        state.write_bytes(b"nothing")
    ran = vaiom(*words, "--json")
    assert ran.code == 1
    value = json.loads(ran.out)
    assert [failure["task"] for failure in value["failed"]] == [broken.name]
    assert "safetensors" in value["failed"][0]["reason"]
    assert f"Failed: {broken.name}" in ran.err
    assert not (tmp_path / "records" / f"{broken.name}.json").exists()
    assert (tmp_path / "records" / f"{lost.name}.json").exists()
    assert "not run" in (tmp_path / "reproduction.md").read_text()


def test_a_run_that_its_time_limit_stopped_says_so_and_goes_on(
    some_reproduced: Reproduced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_corpus(some_reproduced.corpus)
    settings = [setting for setting in TINY if not setting.startswith("steps")]
    task = next(
        task
        for task in plan_tasks(["inputs"], {"1h": corpus}, "full", [*settings, "steps=4"])
        if task.kind == RUN and task.experiment
    )
    place = Place(corpora={"1h": some_reproduced.corpus}, out=tmp_path)
    with monkeypatch.context() as patched:
        # The limit passes between the start and the first checkpoint.
        patched.setattr("reproduction.tasks.time", SimpleNamespace(time=lambda: 0.0))
        assert not finish_tasks([task], replace(place, deadline=1.0), TaskRunner(device="cpu"))
    record = read_record(tmp_path / "records" / f"{task.id}.json")
    assert list(record.validation) == [2]
    assert record.shortened.endswith("stopped at 2 of 4 steps")
    assert not record.claimed  # its curve had no time to turn
    late = finish_tasks([task], replace(place, deadline=0.0), TaskRunner(device="cpu"))
    assert "time limit" in late[task.id]
    assert not finish_tasks([task], place, TaskRunner(device="cpu"))
    record = read_record(tmp_path / "records" / f"{task.id}.json")
    assert list(record.validation) == [2, 4]
    assert "stopped" not in record.shortened


@pytest.mark.kills
def test_killed_midway_and_started_again(some_reproduced: Reproduced, tmp_path: Path) -> None:
    words = words_of(some_reproduced.corpus, tmp_path, *SOME)
    process = start_vaiom(words)
    while process.poll() is None and len(list(tmp_path.glob("records/*.json"))) < 3:
        time.sleep(0.002)
    while process.poll() is None and len(list(tmp_path.glob("runs/*"))) < 4:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    finished = {file: file.stat().st_mtime_ns for file in tmp_path.glob("records/[!.]*.json")}
    assert not (tmp_path / "reproduction.md").exists()
    # What was being written when the runner died is no record.
    (tmp_path / "records" / ".vaiom-staging-half.json").write_text('{"kind": ')
    assert vaiom(*words).code == 0
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    records = records_in(tmp_path)
    assert len(records) > len(finished)
    assert records.items() <= records_in(some_reproduced.out).items()
    assert without_minutes((tmp_path / "reproduction.md").read_text()) == page_of_some(
        some_reproduced, tmp_path
    )


def test_two_workers_leave_the_records_of_one(some_reproduced: Reproduced, tmp_path: Path) -> None:
    ran = vaiom(*words_of(some_reproduced.corpus, tmp_path, "inputs", "--workers", 2))
    assert ran.code == 0, ran.err
    records = records_in(tmp_path)
    assert len(records) == 3
    assert records.items() <= records_in(some_reproduced.out).items()


def test_baselines_that_came_later_are_added_without_training(
    some_reproduced: Reproduced, tmp_path: Path
) -> None:
    place = Place(corpora={"1h": some_reproduced.corpus}, out=tmp_path)
    planned = plan_tasks(
        ["seeds-validation"], {"1h": open_corpus(some_reproduced.corpus)}, "fast", TINY
    )
    chosen = [
        task for task in planned if task.kind == BASELINES or task.label == f"1h-{MAIN}-s{SEEDS[0]}"
    ]
    assert not finish_tasks(chosen, place, TaskRunner(device="cpu"))
    states = {file: file.stat().st_mtime_ns for file in place.runs.rglob("step-*")}
    only = ("--only", "frequency,ewma_t", "--split", "validation", "--context", 16)
    vaiom("baselines", some_reproduced.corpus, "--out", tmp_path / "later", *only)
    assert not finish_tasks(
        chosen, replace(place, baselines=tmp_path / "later"), TaskRunner(device="cpu")
    )
    [record] = Records.read(place.records).runs(MAIN).values()
    assert set(record.scored["validation"].bits) == {"model", "frequency", "ewma_t"}
    assert {file: file.stat().st_mtime_ns for file in states} == states


def test_records_of_another_corpus_are_not_mixed_in(
    some_reproduced: Reproduced, tmp_path: Path
) -> None:
    bars = tmp_path / "bars"
    vaiom("data", "simulate", "--assets", 1, "--bars", 20_000, "--out", bars)
    vaiom("corpus", "build", bars, "--out", tmp_path / "corpus")
    words = words_of(tmp_path / "corpus", some_reproduced.out, "splits")
    require_refusal(vaiom(*words), "of another 1h corpus", "--out")


def test_foreign_baselines_are_refused_before_anything_runs(
    some_reproduced: Reproduced, tmp_path: Path
) -> None:
    settings = (*TINY, "context=32")
    words = words_of(
        some_reproduced.corpus,
        tmp_path,
        "main-test",
        "--baselines",
        some_reproduced.baselines,
        settings=settings,
    )
    require_refusal(vaiom(*words), "stored losses are not of this context", "16", "32")
    assert not (tmp_path / "runs").exists()
