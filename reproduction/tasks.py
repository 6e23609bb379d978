"""What the engine is given: runs to train and judge, years to walk, runs to compare, a corpus or
baselines to describe.

Enters: tasks, and where corpora and baselines are. Leaves: `records/<id>.json`, and `runs/<id>` for
what is trained. What is finished is reused; a run that was broken off goes on from its last
checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reproduction.records import (
    ALL_TESTS,
    BASELINES,
    CORPUS,
    ENSEMBLE,
    PAIR,
    RUN,
    WALK,
    YEAR,
    Record,
    SplitScores,
    gains_of,
    read_record,
    read_records,
)
from reproduction.walk_forward import TREES, score_year, splits_of
from vaiom import __version__
from vaiom.baselines.stored_losses import load_losses, losses_file
from vaiom.codec import to_json
from vaiom.corpus.split_quality import count_events
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import ConfigError
from vaiom.evaluation.access_ledger import record_access
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.scores import MODEL, event_bits, read_events, score_events
from vaiom.experiments.tasks import TaskRunner
from vaiom.experiments.whole_job import evaluate_splits
from vaiom.files import Progress, canonical_json, sha256_of
from vaiom.model.vaiom import count_parameters
from vaiom.run import Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train

Fields = dict[str, Any]  # of a record, beside those that identify its task


@dataclass(frozen=True, kw_only=True)
class Task:
    """One piece of work that leaves one record."""

    kind: str
    timeframe: str
    corpus_sha256: str
    experiment: Experiment | None = None
    year: int = 0
    splits: tuple[str, ...] = ()  # to be scored, with baselines
    runs: tuple[str, ...] = ()  # ids of earlier runs that are compared or averaged
    other_name: str = ""  # of the second of two compared runs
    shortened: str = ""
    claimed: bool = True

    @property
    def label(self) -> str:
        """Timeframe, experiment, kind, year and seed in one word."""
        if self.experiment is None or self.kind == BASELINES:
            return f"{self.timeframe}-{self.kind}"
        kind = f"-{self.kind}" if self.kind in (PAIR, ENSEMBLE) else ""
        year = f"-{self.year}" if self.year else ""
        seed = "" if self.kind == ENSEMBLE else f"-s{self.experiment.train.seed}"
        return f"{self.timeframe}-{self.experiment.name}{kind}{year}{seed}"

    @cached_property
    def key(self) -> str:
        """A hash of what decides the record."""
        identity = self.experiment.identity() if self.experiment else None
        parts: dict[str, Any] = {"kind": self.kind, "corpus": self.corpus_sha256, "year": self.year}
        parts |= {"splits": list(self.splits), "experiment": identity}
        parts |= {"beside": list(self.runs)} if self.runs else {}
        return sha256_of(canonical_json(parts))

    @property
    def id(self) -> str:
        """Label and key: the name of the record and of the run."""
        return f"{self.label}-{self.key[:8]}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where tasks find and leave things; every worker must see these folders."""

    corpora: dict[str, Path]  # by timeframe
    out: Path
    baselines: Path | None = None
    deadline: float = math.inf
    """When runs stop at their next checkpoint, by `time.time`; the same tasks go on from there
    another time.
    """

    @property
    def records(self) -> Path:
        """Folder of the records."""
        return self.out / "records"

    @property
    def runs(self) -> Path:
        """Folder of the runs."""
        return self.out / "runs"


def finish_tasks(
    tasks: Sequence[Task], place: Place, engine: TaskRunner, report: Progress | None = None
) -> dict[str, str]:
    """Do what is not done yet; why some failed, by their ids."""
    # Workers have folders of their own to start from.
    corpora = {timeframe: path.absolute() for timeframe, path in place.corpora.items()}
    baselines_path = place.baselines and place.baselines.absolute()
    place = replace(place, corpora=corpora, out=place.out.absolute(), baselines=baselines_path)
    now = {task.timeframe: task.corpus_sha256 for task in tasks}
    for record in read_records(place.records):  # records of two corpora would mix in one table
        if (
            record.kind == CORPUS
            and now.get(record.timeframe, record.facts["sha256"]) != record.facts["sha256"]
        ):
            problem = f"the records are of another {record.timeframe} corpus"
            was = record.facts["sha256"]
            fix = "choose another --out"
            raise ConfigError(
                problem, where=place.records, expected=was, got=now[record.timeframe], fix=fix
            )
    # Stored baselines may have grown, and what is wrong with them is said before anything is run.
    facts = [
        perform(place, task).facts for task in tasks if task.kind == BASELINES and place.baselines
    ]
    baselines = {split: set(entry["bits"]) for each in facts for split, entry in each.items()}
    todo = [
        task for task in tasks if task.kind != BASELINES and not _is_done(task, place, baselines)
    ]
    return engine.run(todo, partial(perform, place), len(tasks) - len(todo), report)


def perform(place: Place, task: Task, device: str = "auto") -> Record:
    """Do one task and write its record."""
    corpus = open_corpus(place.corpora[task.timeframe])
    make = {
        RUN: _run,
        WALK: _walk,
        PAIR: _pair,
        ENSEMBLE: _ensemble,
        CORPUS: _corpus,
        BASELINES: _baselines,
    }[task.kind]
    fields: Fields = {"name": task.kind}
    if task.experiment and task.kind not in (CORPUS, BASELINES):
        fields |= {
            "name": task.experiment.name,
            "seed": task.experiment.train.seed,
            "year": task.year,
        }
        fields |= {
            "shortened": task.shortened,
            "claimed": task.claimed,
            "vaiom_version": __version__,
        }
    fields |= make(task, corpus, place, device)
    record = Record(kind=task.kind, key=task.key, timeframe=task.timeframe, **fields)
    record.write(place.records / f"{task.id}.json")
    return record


def score_ensemble(runs: Sequence[Path], corpus: Corpus, split: str, device: str) -> SplitScores:
    """The mean of several runs' probabilities, beside the baselines that the first was compared
    with.
    """
    models = [ModelPredictor.load(Run(run).best, device) for run in runs]
    rows = heldout_rows(corpus, split, models[0].checkpoint)
    stored = read_events(runs[0], split, same_as=score_events(corpus, rows, {}))
    together = sha256_of("".join(model.checkpoint.sha256 for model in models).encode())
    looks = record_access(
        corpus, split, run=ENSEMBLE, checkpoint_sha256=together, num_events=len(rows)
    )
    probs = np.mean([model.predict_proba(corpus, rows) for model in models], axis=0)
    bits = {**stored.bits, MODEL: event_bits(probs, stored.buckets)}
    return SplitScores.of_events(replace(stored, bits=bits), looks)


def _is_done(task: Task, place: Place, baselines: Mapping[str, set[str]]) -> bool:
    """Whether the record of exactly this task is there, with all of the baselines where its model
    still is.
    """
    file = place.records / f"{task.id}.json"
    if not file.is_file():
        return False
    record = read_record(file)
    trees = {TREES} if TREES in baselines.get(VALIDATION, ()) and find_spec("lightgbm") else set()
    wanted = {**baselines, YEAR: trees}
    if (
        task.experiment
        and record.validation
        and not task.experiment.train.has_ended(record.validation)
    ):
        return not Run(place.runs / task.id).exists
    complete = all(
        wanted.get(split, set()) <= scored.bits.keys() for split, scored in record.scored.items()
    )
    return record.key == task.key and (complete or not Run(place.runs / task.id).best.exists())


def _run(task: Task, corpus: Corpus, place: Place, device: str) -> Fields:
    """Train, and score the splits that are asked for beside the baselines."""
    run = place.runs / task.id
    trained = _train(task, corpus, run, device, place.deadline)
    scored = {}
    results = evaluate_splits(run, corpus, task.splits, baselines=place.baselines, device=device)
    for split, result in results.items():
        scored[split] = SplitScores(
            bits=result.bits, gains=gains_of(result.against), looks=result.looks
        )
        if result.all_tests:
            scored[ALL_TESTS] = SplitScores(bits={}, gains=gains_of(result.all_tests))
    return {"scored": scored, **trained}


def _walk(task: Task, corpus: Corpus, place: Place, device: str) -> Fields:
    """The protocol moved to a year: everything is fitted anew on the year's Train."""
    moved = corpus.with_splits(splits_of(task.year))
    run = place.runs / task.id
    trained = _train(task, moved, run, device, place.deadline)
    # Trees are fitted for every year where the corpus itself has them among its baselines.
    with_trees = TREES in _losses(task, corpus, place, VALIDATION) and find_spec("lightgbm")
    events = score_year(moved, run, device, place.out / "trees" if with_trees else None)
    return {"scored": {YEAR: SplitScores.of_events(events)}, **trained}


def _pair(task: Task, corpus: Corpus, place: Place, device: str) -> Fields:
    """A run against another, on exactly the same events of each split."""
    own, other = (place.runs / run for run in task.runs)
    scored = {}
    for split in task.splits:
        mine = read_events(own, split)
        theirs = read_events(other, split, same_as=mine)
        both = replace(mine, bits={MODEL: mine.bits[MODEL], task.other_name: theirs.bits[MODEL]})
        scored[split] = SplitScores.of_events(both)
    return {"scored": scored}


def _ensemble(task: Task, corpus: Corpus, place: Place, device: str) -> Fields:
    """The runs' mean probabilities on each split."""
    runs = [place.runs / run for run in task.runs]
    return {"scored": {split: score_ensemble(runs, corpus, split, device) for split in task.splits}}


def _corpus(task: Task, corpus: Corpus, place: Place, device: str) -> Fields:
    """What the tables say of a corpus: assets, events, splits and edges."""
    counts = count_events(corpus)
    facts = {
        "assets": {
            symbol: {
                **{key: entry[key] for key in ("class", "rows", "first", "last")},
                "train_windows": counts["train"][symbol],
            }
            for symbol, entry in corpus.manifest["series"].items()
        },
        "events": {split: sum(by_asset.values()) for split, by_asset in counts.items()},
        "splits": corpus.splits.to_json(),
        "edges": corpus.tokenizer.to_json()["inner_edges"],
        "sha256": corpus.sha256,
    }
    return {"facts": facts}


def _baselines(task: Task, corpus: Corpus, place: Place, device: str) -> Fields:
    """Number of events and bits per event of each baseline, by split."""
    facts = {}
    for split in (VALIDATION, *corpus.splits.test_names):
        if losses := _losses(task, corpus, place, split):
            bits = {name: float(values.mean()) for name, values in losses.items()}
            facts[split] = {"events": len(next(iter(losses.values()))), "bits": bits}
    return {"facts": facts}


def _losses(
    task: Task, corpus: Corpus, place: Place, split: str
) -> dict[str, npt.NDArray[np.float64]]:
    """Of the baselines on a split; none where they were not scored on it."""
    if place.baselines is None or not losses_file(place.baselines, split).exists():
        return {}
    assert task.experiment
    return load_losses(place.baselines, corpus, split, task.experiment.model.history)


def _train(task: Task, corpus: Corpus, run: Path, device: str, deadline: float) -> Fields:
    """Train, or go on, and say of it what a record holds."""
    assert task.experiment
    if time.time() > deadline:
        raise ConfigError("not begun: the time limit had passed", fix="run the same command again")
    result = train(
        corpus, task.experiment, run, device=device, resume=Run(run).exists, deadline=deadline
    )
    model = task.experiment.model
    used = resolve_device(device)
    bits = Run(run).validation_bits()
    stopped: Fields = {}
    if result.last_step < task.experiment.train.steps:  # by a time limit, or by patience
        how = f"stopped at {result.last_step:,} of {task.experiment.train.steps:,} steps"
        stopped["shortened"] = "; ".join(filter(None, [task.shortened, how]))
        stopped["claimed"] = (
            task.claimed and result.best_step < result.last_step
        )  # else its curve had not turned
    return {
        **stopped,
        "settings": to_json(task.experiment),
        "num_params": count_parameters(model, corpus.tokenizer.vocabulary_sizes),
        "num_params_positional": model.context * model.width if model.positions == "learned" else 0,
        "windows_per_step": task.experiment.train.windows_per_step,
        "validation": bits,
        "seconds": round(result.seconds, 1),
        "device": torch.cuda.get_device_name(used) if used.type == "cuda" else "CPU",
    }
