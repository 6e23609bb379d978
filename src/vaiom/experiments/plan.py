"""Which runs the tables need, how long each is under a budget, and what it costs beside the main model.

Enters: names of tables, corpora by timeframe, a budget. Leaves: tasks in the order of the tables, each once.
The fast budget shortens long runs to a floor of updates below which no comparison is claimed.
Paper: Appendix A, "Evidence-Bearing Validation Runs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from vaiom.errors import ConfigError
from vaiom.events.corpus import Corpus
from vaiom.events.splits import VALIDATION
from vaiom.experiments.paper import BEST, COMPARISONS, JUDGED, MAIN, MAIN_TIMEFRAME, SEEDS, Comparison
from vaiom.experiments.records import BASELINES, CORPUS, ENSEMBLE, PAIR, RUN, WALK
from vaiom.experiments.registry import experiment
from vaiom.experiments.walk_forward import years_of
from vaiom.files import canonical_json, sha256_of
from vaiom.model.config import PAPER_VOCABULARY
from vaiom.model.vaiom import count_parameters
from vaiom.training.experiment import Experiment

BUDGETS = ("full", "fast")
FLOOR_UPDATES = 10_000
"""Micro-batches of the usual size below which a comparison is not claimed."""
FLOOR_WINDOWS = 32
SWEEP, SWEEP_STEPS = "cont-20k", 7_000
"""The checkpoint sweep, and how far the fast budget follows it."""
WINDOWS_KEPT = ("cont-last-50k", "disc-last-50k")
"""Runs over the last position that stand beside full sequences: they see as many windows in a step."""
WHOLE = (MAIN, "cont")
"""What even the fast budget does not shorten."""
_LENGTH = ("steps", "num_micro_batches", "validate_every", "log_every", "keep_last", "patience", "precision")
"""Settings that do not make it another experiment, only a shorter or more often validated one."""

TEST_TABLES = ("main-test", "seeds-test", "seeds-validation", "tails", "bootstrap", "best")
CORPUS_TABLES = ("splits", "coverage", "corpus-audit")
TABLES = (
    *TEST_TABLES,
    "baselines",
    *(comparison.name for comparison in COMPARISONS),
    "walk-forward",
    *CORPUS_TABLES,
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One piece of work that leaves one record."""

    kind: str
    timeframe: str
    corpus_sha256: str
    experiment: Experiment | None = None
    year: int = 0
    splits: tuple[str, ...] = ()
    """What is scored with baselines beside it."""
    beside: tuple[str, ...] = ()
    """The runs that are put beside each other, by their ids; they come first."""
    shortened: str = ""
    claimed: bool = True

    @property
    def label(self) -> str:
        if self.experiment is None or self.kind == BASELINES:
            return f"{self.timeframe}-{self.kind}"
        if self.kind == ENSEMBLE:
            return f"{self.timeframe}-{self.experiment.name}-{self.kind}"
        year = f"-{self.year}" if self.year else ""
        pair = f"-{self.kind}" if self.kind == PAIR else ""
        return f"{self.timeframe}-{self.experiment.name}{pair}{year}-s{self.experiment.train.seed}"

    @cached_property
    def key(self) -> str:
        parts: dict[str, Any] = {"kind": self.kind, "corpus": self.corpus_sha256, "year": self.year}
        parts |= {"splits": list(self.splits), "experiment": _identity(self.experiment) if self.experiment else None}
        parts |= {"beside": list(self.beside)} if self.beside else {}
        return sha256_of(canonical_json(parts))

    @property
    def id(self) -> str:
        return f"{self.label}-{self.key[:8]}"


def comparison(name: str) -> Comparison:
    return next(each for each in COMPARISONS if each.name == name)


def require_tables(names: Sequence[str]) -> tuple[str, ...]:
    """All tables if none is named; an unknown name lists the known ones."""
    for name in names:
        if name not in TABLES:
            raise ConfigError("unknown table", expected=", ".join(TABLES), got=name)
    return tuple(name for name in TABLES if name in names) or TABLES


def tasks_of(
    tables: Sequence[str],
    corpora: Mapping[str, Corpus],
    budget: str,
    settings: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
) -> list[Task]:
    """The work behind the tables; rows whose timeframe has no corpus are left to their published figures."""
    if budget not in BUDGETS:
        raise ConfigError("unknown budget", expected=", ".join(BUDGETS), got=budget)
    tasks = [
        task
        for timeframe, corpus in corpora.items()
        for task in _Planner(timeframe, corpus, budget, settings, seeds).tasks(tables)
    ]
    return list({task.id: task for task in tasks}.values())


def cost_beside_main(chosen: Experiment) -> float:
    """Parameters times bars read, in runs of the main model: a rough estimate of the time it takes."""
    return _work(chosen) / _work(experiment(MAIN))


class _Planner:
    """The tasks of one corpus."""

    def __init__(
        self, timeframe: str, corpus: Corpus, budget: str, settings: Sequence[str], seeds: Sequence[int]
    ) -> None:
        self.timeframe, self.corpus, self.seeds = timeframe, corpus, seeds
        self.budget, self.settings = budget, settings

    def tasks(self, tables: Sequence[str]) -> Iterator[Task]:
        yield self._task(CORPUS)
        judged = self.timeframe == MAIN_TIMEFRAME
        if judged:
            yield self._task(BASELINES, scaled(experiment(MAIN), self.budget, self.settings))
        if judged and set(tables) & {*TEST_TABLES, "baselines"}:
            yield from self._judged()
        for table in COMPARISONS:
            if table.name in tables:
                yield from self._comparison(table)
        if judged and "walk-forward" in tables:
            walker = scaled(experiment(MAIN).with_changes(seed=self.seeds[0]), self.budget, self.settings, walks=True)
            yield from (self._task(WALK, walker, year=year) for year in years_of(self.corpus))

    def _judged(self) -> Iterator[Task]:
        """All seeds of both models, then each seed of the one beside the other's, and the seeds together."""
        runs = {name: [self._run(name, seed) for seed in self.seeds] for name in JUDGED}
        for of_model in runs.values():
            yield from of_model
        for main, best in zip(runs[MAIN], runs[BEST], strict=True):
            yield replace(best, kind=PAIR, beside=(best.id, main.id))
        first = runs[BEST][0]
        yield replace(first, kind=ENSEMBLE, beside=tuple(best.id for best in runs[BEST]))

    def _comparison(self, table: Comparison) -> Iterator[Task]:
        for row in table.rows:
            if row.timeframe == self.timeframe:
                # Long runs over the last position have one seed under the fast budget.
                alone = self.budget == "fast" and experiment(row.experiment).train.scope == "last"
                yield from (self._run(row.experiment, seed) for seed in self.seeds[: 1 if alone else table.num_seeds])

    def _run(self, name: str, seed: int) -> Task:
        chosen = scaled(experiment(name).with_changes(seed=seed), self.budget, self.settings)
        return self._task(RUN, chosen, splits=self._scored(chosen.experiment))

    def _scored(self, chosen: Experiment) -> tuple[str, ...]:
        """Two models of the main timeframe are judged on all splits that have events; no other touches a test."""
        if chosen.name not in JUDGED or self.timeframe != MAIN_TIMEFRAME:
            return ()
        names = (VALIDATION, *self.corpus.splits.test_names)
        return tuple(name for name in names if len(self.corpus.endpoints(name, chosen.model.context)))

    def _task(self, kind: str, chosen: Scaled | None = None, **more: Any) -> Task:
        if chosen:
            more |= {"experiment": chosen.experiment, "shortened": chosen.changed, "claimed": chosen.claimed}
        return Task(kind=kind, timeframe=self.timeframe, corpus_sha256=self.corpus.sha256, **more)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """An experiment as it is run."""

    experiment: Experiment
    changed: str
    """How it differs from the published one, in words; empty where it does not."""
    claimed: bool
    """Whether a comparison with it may be claimed: long enough, and otherwise the published one."""


def scaled(published: Experiment, budget: str, settings: Sequence[str] = (), *, walks: bool = False) -> Scaled:
    """The experiment under a budget and settings."""
    chosen = (_shortened(published, walks) if budget == "fast" else published).with_settings(settings)
    before, after = published.train, chosen.train
    changes = []
    shortened = (after.steps, after.windows_per_step) != (before.steps, before.windows_per_step)
    if shortened:
        changes.append(
            f"{after.steps:,} steps of {after.windows_per_step} windows for {before.steps:,} of "
            f"{before.windows_per_step}"
        )
    others = {name: pair for name, pair in _differences(published, chosen).items() if name not in _LENGTH}
    changes += [f"{name} {new} for {old}" for name, (new, old) in others.items()]
    enough = not shortened or after.steps * after.windows_per_step >= FLOOR_UPDATES * FLOOR_WINDOWS
    return Scaled(experiment=chosen, changed="; ".join(changes), claimed=enough and not others)


def _shortened(published: Experiment, walks: bool) -> Experiment:
    train = published.train
    if train.scope == "last":
        shorter = published.with_changes(steps=min(train.steps, FLOOR_UPDATES), validate_every=1_000)
        keeps = published.name in WINDOWS_KEPT or train.steps <= FLOOR_UPDATES
        return shorter if keeps else shorter.with_changes(num_micro_batches=1)
    if published.name == SWEEP:
        return published.with_changes(steps=SWEEP_STEPS)
    if not walks and (published.name in WHOLE or train.steps * train.windows_per_step <= FLOOR_UPDATES * FLOOR_WINDOWS):
        return published
    floor = FLOOR_UPDATES * FLOOR_WINDOWS // train.windows_per_step
    return published.with_changes(steps=min(train.steps, floor), validate_every=250)


def _differences(before: Experiment, after: Experiment) -> dict[str, tuple[Any, Any]]:
    """Settings that changed, as they are and as they were."""
    out: dict[str, tuple[Any, Any]] = {}
    for old, new in ((before.model.to_json(), after.model.to_json()), (before.train.to_json(), after.train.to_json())):
        out |= {name: (new[name], old[name]) for name in old if new[name] != old[name]}
    return out


def _identity(chosen: Experiment) -> dict[str, Any]:
    """The name and what is not a default: a setting that is added one day leaves finished work valid."""
    return {"name": chosen.name} | {name: new for name, (new, _) in _differences(Experiment(name=""), chosen).items()}


def _work(chosen: Experiment) -> float:
    model, train = chosen.model, chosen.train
    return float(count_parameters(model, PAPER_VOCABULARY) * train.steps * train.windows_per_step * model.context)
