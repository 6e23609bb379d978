"""Which runs the tables need, how long each is under a budget, and what it costs beside the main
model.

Enters: names of tables, corpora by timeframe, a budget. Leaves: tasks in the order of the tables,
each once. The fast budget shortens long runs to a floor of updates below which no comparison is
claimed.
Paper: Appendix A, "Evidence-Bearing Validation Runs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from reproduction.paper import BEST, COMPARISONS, JUDGED, MAIN, MAIN_TIMEFRAME, SEEDS, Comparison
from reproduction.records import BASELINES, CORPUS, ENSEMBLE, PAIR, RUN, WALK
from reproduction.tasks import Task
from reproduction.walk_forward import years_of
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError
from vaiom.experiments.registry import experiment
from vaiom.model.config import PAPER_VOCABULARY, ModelConfig
from vaiom.model.vaiom import count_parameters
from vaiom.training.experiment import Experiment, changed

BUDGETS = ("full", "fast")
FLOOR_UPDATES = 10_000
FLOOR_WINDOWS = 32
"""Micro-batches, and their windows, below which nothing is claimed."""
SWEEP = "cont-20k"
SWEEP_STEPS = 7_000
"""The checkpoint sweep, and how far the fast budget follows it."""
WINDOWS_KEPT = ("cont-last-50k", "disc-last-50k")
"""Compared with full sequences, with as many windows in a step."""
WHOLE = (MAIN, "cont")
"""What even the fast budget does not shorten."""
# Settings that only make an experiment shorter or validate it more often.
_LENGTH = (
    "steps",
    "num_micro_batches",
    "validate_every",
    "log_every",
    "keep_last",
    "patience",
    "precision",
)

TEST_TABLES = ("main-test", "seeds-test", "seeds-validation", "tails", "bootstrap", "best")
TABLES = (
    *TEST_TABLES,
    "baselines",
    *(comparison.name for comparison in COMPARISONS),
    "walk-forward",
    *("splits", "coverage", "corpus-audit"),
)


def require_tables(names: Sequence[str]) -> tuple[str, ...]:
    """All tables if none is named; an unknown name lists the known ones."""
    for name in names:
        if name not in TABLES:
            raise ConfigError("unknown table", expected=", ".join(TABLES), got=name)
    return tuple(name for name in TABLES if name in names) or TABLES


def plan_tasks(
    tables: Sequence[str],
    corpora: Mapping[str, Corpus],
    budget: str,
    settings: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
) -> list[Task]:
    """The work behind the tables; rows whose timeframe has no corpus are left to their published
    figures.
    """
    if budget not in BUDGETS:
        raise ConfigError("unknown budget", expected=", ".join(BUDGETS), got=budget)
    tasks = [
        task
        for timeframe, corpus in corpora.items()
        for task in _Planner(timeframe, corpus, budget, settings, seeds).tasks(tables)
    ]
    return list({task.id: task for task in tasks}.values())


def cost_beside_main(chosen: Experiment) -> float:
    """Parameters times bars read, in runs of the main model: a rough estimate of the time
    it takes.
    """

    def work(each: Experiment) -> float:
        bars = (
            (1 + each.train.teachers)
            * each.train.steps
            * each.train.windows_per_step
            * each.model.context
        )
        return float(_num_params(each.model) * bars)

    return work(chosen) / work(experiment(MAIN))


@cache
def _num_params(model: ModelConfig) -> int:
    """Parameters of a model for the paper's corpus."""
    return count_parameters(model, PAPER_VOCABULARY)


@dataclass(frozen=True)
class _Planner:
    """The tasks of one corpus."""

    timeframe: str
    corpus: Corpus
    budget: str
    settings: Sequence[str]
    seeds: Sequence[int]

    def tasks(self, tables: Sequence[str]) -> Iterator[Task]:
        """Tasks behind these tables, in their order; some come more than once."""
        yield self._task(CORPUS)
        judged = self.timeframe == MAIN_TIMEFRAME
        if judged:
            yield self._task(BASELINES, scale(experiment(MAIN), self.budget, self.settings))
        if judged and set(tables) & {*TEST_TABLES, "baselines"}:
            yield from self._judged()
        for table in COMPARISONS:
            if table.name in tables:
                yield from self._comparison(table)
        if judged and "walk-forward" in tables:
            for name in JUDGED:
                # One seed and no teachers: a year of a walk is one run.
                settings = [*self.settings, "teachers=0", "teacher_share=0"]
                first = experiment(name).with_changes(seed=self.seeds[0])
                walker = scale(first, self.budget, settings, walks=True)
                yield from (self._task(WALK, walker, year=year) for year in years_of(self.corpus))

    def _judged(self) -> Iterator[Task]:
        """All seeds of both models, then each seed of the one against the other's, and the seeds
        together.
        """
        runs = {name: [self._run(name, seed) for seed in self.seeds] for name in JUDGED}
        for of_model in runs.values():
            yield from of_model
        for main, best in zip(runs[MAIN], runs[BEST], strict=True):
            yield replace(best, kind=PAIR, runs=(best.id, main.id), other_name=MAIN)
        yield replace(runs[BEST][0], kind=ENSEMBLE, runs=tuple(best.id for best in runs[BEST]))

    def _comparison(self, table: Comparison) -> Iterator[Task]:
        """A run for each row of a comparison and each of its seeds."""
        for row in table.rows:
            if row.timeframe == self.timeframe:
                # Long runs over the last position have one seed under the fast budget.
                alone = self.budget == "fast" and experiment(row.experiment).train.scope == "last"
                yield from (
                    self._run(row.experiment, seed)
                    for seed in self.seeds[: 1 if alone else table.num_seeds]
                )

    def _run(self, name: str, seed: int) -> Task:
        """Two models of the main timeframe are judged on all splits that have events; no other
        touches a test.
        """
        chosen = scale(experiment(name).with_changes(seed=seed), self.budget, self.settings)
        splits: tuple[str, ...] = ()
        if name in JUDGED and self.timeframe == MAIN_TIMEFRAME:
            names = (VALIDATION, *self.corpus.splits.test_names)
            context = chosen.experiment.model.history
            splits = tuple(split for split in names if len(self.corpus.endpoints(split, context)))
        return self._task(RUN, chosen, splits=splits)

    def _task(self, kind: str, chosen: Scaled | None = None, **more: Any) -> Task:
        """A task on this corpus."""
        if chosen:
            more |= {
                "experiment": chosen.experiment,
                "shortened": chosen.changed,
                "claimed": chosen.claimed,
            }
        return Task(kind=kind, timeframe=self.timeframe, corpus_sha256=self.corpus.sha256, **more)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """An experiment as it is run."""

    experiment: Experiment
    changed: str  # how it differs from the published one, in words; empty if it does not
    claimed: bool  # whether it supports a claim: long enough, and otherwise the published one


def scale(
    published: Experiment, budget: str, settings: Sequence[str] = (), *, walks: bool = False
) -> Scaled:
    """The experiment under a budget and settings."""
    chosen = (_shorten(published, walks) if budget == "fast" else published).with_settings(settings)
    before = published.train
    after = chosen.train
    changes = []
    shortened = (after.steps, after.windows_per_step) != (before.steps, before.windows_per_step)
    if shortened:
        now = f"{after.steps:,} steps of {after.windows_per_step} windows"
        was = f"{before.steps:,}"
        changes.append(f"{now} for {was} of {before.windows_per_step}")
    others = {
        name: pair for name, pair in changed(published, chosen).items() if name not in _LENGTH
    }
    changes += [f"{name} {new} for {old}" for name, (new, old) in others.items()]
    enough = not shortened or after.steps * after.windows_per_step >= FLOOR_UPDATES * FLOOR_WINDOWS
    return Scaled(experiment=chosen, changed="; ".join(changes), claimed=enough and not others)


def _shorten(published: Experiment, walks: bool) -> Experiment:
    """An experiment under the fast budget: no longer than what a claim needs."""
    train = published.train
    if train.scope == "last":
        shorter = published.with_changes(
            steps=min(train.steps, FLOOR_UPDATES), validate_every=1_000
        )
        keeps = published.name in WINDOWS_KEPT or train.steps <= FLOOR_UPDATES
        return shorter if keeps else shorter.with_changes(num_micro_batches=1)
    if published.name == SWEEP:
        return published.with_changes(steps=SWEEP_STEPS)
    if not walks and (
        published.name in WHOLE
        or train.steps * train.windows_per_step <= FLOOR_UPDATES * FLOOR_WINDOWS
    ):
        return published
    floor = FLOOR_UPDATES * FLOOR_WINDOWS // train.windows_per_step
    return published.with_changes(steps=min(train.steps, floor), validate_every=250)
