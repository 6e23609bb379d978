"""The plan: every task once, the same each time, and nothing claimed below the floor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reproductions import TINY

from reproduction.paper import COMPARISONS, JUDGED, SEEDS
from reproduction.plan import (
    FLOOR_UPDATES,
    FLOOR_WINDOWS,
    TABLES,
    plan_tasks,
    require_tables,
    scale,
)
from reproduction.records import ENSEMBLE, PAIR, RUN, WALK
from reproduction.tasks import Task
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import ConfigError
from vaiom.experiments.registry import EXPERIMENTS, experiment
from vaiom.training.experiment import Experiment


@pytest.fixture(scope="module")
def corpus(simulated_corpus: Path) -> Corpus:
    return open_corpus(simulated_corpus)


SETTINGS = st.lists(
    st.sampled_from(
        [
            *(
                "steps=1",
                "steps=9999",
                "steps=20000",
                "micro_batch=1",
                "micro_batch=64",
                "validate_every=10",
            ),
            *(
                "width=192",
                "context=16",
                "learning_rate=1e-3",
                "seed=5",
                "precision=fp32",
                "log_every=1",
            ),
        ]
    ),
    unique_by=lambda setting: setting.split("=")[0],
)


@given(
    st.sampled_from(sorted(EXPERIMENTS)), st.sampled_from(["full", "fast"]), SETTINGS, st.booleans()
)
def test_what_is_claimed_is_long_enough_and_the_published_experiment(
    name: str, budget: str, settings: list[str], walks: bool
) -> None:
    published = experiment(name)
    assume(
        "context=16" not in settings or not published.model.attention_window
    )  # too short for such a model: refused
    chosen = scale(published, budget, settings, walks=walks)
    train = chosen.experiment.train
    if chosen.claimed:
        windows = [each.steps * each.windows_per_step for each in (train, published.train)]
        assert windows[0] >= FLOOR_UPDATES * FLOOR_WINDOWS or windows[0] == windows[1]
        assert chosen.experiment.model == published.model
        assert chosen.experiment.with_changes(**_length(published)) == published
    # Whoever reads the table is told of every change that matters.
    if (train.steps, train.windows_per_step) != (
        published.train.steps,
        published.train.windows_per_step,
    ):
        assert f"{train.steps:,} steps of {train.windows_per_step} windows" in chosen.changed
    if not settings and budget == "full":
        assert chosen.experiment == published
        assert chosen.changed == ""


def _length(published: Experiment) -> dict[str, object]:
    names = ("steps", "num_micro_batches", "validate_every", "log_every", "precision")
    return {name: getattr(published.train, name) for name in names}


@pytest.mark.parametrize(
    "name", sorted({row.experiment for each in COMPARISONS for row in each.rows})
)
def test_the_fast_budget_only_shortens_and_keeps_every_claim(name: str) -> None:
    published = experiment(name)
    chosen = scale(experiment(name), "fast")
    assert chosen.experiment.train.steps <= published.train.steps
    assert chosen.claimed
    assert (chosen.changed == "") == (chosen.experiment.train.steps == published.train.steps)


@settings(max_examples=10)
@given(st.lists(st.sampled_from(TABLES), unique=True), st.sampled_from(["full", "fast"]))
def test_tasks_are_unique_and_the_same_each_time(
    corpus: Corpus, names: list[str], budget: str
) -> None:
    tables = require_tables(names)
    tasks = plan_tasks(tables, {"1h": corpus}, budget)
    ids = [task.id for task in tasks]
    assert len(set(ids)) == len(ids)
    assert ids == [
        task.id for task in plan_tasks(require_tables(names[::-1]), {"1h": corpus}, budget)
    ]
    # A task of some tables is one of all tables: its record is found whoever asked for it.
    assert set(ids) <= ids_of_all_tables(corpus, budget)


@cache
def ids_of_all_tables(corpus: Corpus, budget: str) -> set[str]:
    return {task.id for task in plan_tasks(TABLES, {"1h": corpus}, budget)}


def test_seeds_and_splits(corpus: Corpus) -> None:
    tasks = plan_tasks(TABLES, {"1h": corpus, "4h": corpus}, "fast", TINY)
    runs = [task for task in tasks if task.kind == RUN and task.experiment]
    judged = [task for task in runs if task.splits]
    assert [(name_of(task), seed_of(task)) for task in judged] == [
        (name, seed) for name in JUDGED for seed in SEEDS
    ]
    assert {task.timeframe for task in judged} == {"1h"}
    pairs = [task for task in tasks if task.kind == PAIR]
    assert [task.runs for task in pairs] == [(judged[n + 3].id, judged[n].id) for n in range(3)]
    assert [task.runs for task in tasks if task.kind == ENSEMBLE] == [
        tuple(task.id for task in judged[3:])
    ]
    assert {task.splits for task in judged} == {("validation", "test-h1", "test-h2")}
    assert {task.year for task in tasks if task.kind == WALK} == {2023, 2024}
    last = {
        name_of(task) for task in runs if task.experiment and task.experiment.train.scope == "last"
    }
    assert {seed_of(task) for task in runs if name_of(task) in last} == {SEEDS[0]}
    assert {seed_of(task) for task in runs if name_of(task) == "main-no-gap"} == set(SEEDS)
    assert {row.experiment for row in rows_of("4h")} == {
        name_of(task) for task in runs if task.timeframe == "4h"
    }


def rows_of(timeframe: str) -> Iterator[object]:
    return (row for each in COMPARISONS for row in each.rows if row.timeframe == timeframe)


def name_of(task: Task) -> str:
    assert task.experiment
    return task.experiment.name


def seed_of(task: Task) -> int:
    assert task.experiment
    return task.experiment.train.seed


def test_a_key_is_of_what_decides_the_contents(corpus: Corpus) -> None:
    base, *others = (
        {
            task.label: task.key
            for task in plan_tasks(["metadata"], {"1h": corpus}, budget, settings)
        }
        for budget, settings in product(["full"], [(), ("width=64",), ("steps=7",)])
    )
    for other in others:
        assert all(base[label] != other[label] for label in base if label.startswith("1h-main-"))
    # The main model is whole under both budgets: what one has run the other reuses.
    fast = {task.label: task.key for task in plan_tasks(["metadata"], {"1h": corpus}, "fast")}
    assert fast == base


def test_unknown_names_list_the_known(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match=r"main-test, .*corpus-audit"):
        require_tables(["splits", "nonsense"])
    with pytest.raises(ConfigError, match="full, fast"):
        plan_tasks(TABLES, {"1h": corpus}, "slow")
