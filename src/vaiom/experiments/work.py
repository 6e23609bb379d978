"""One task done: a run trained and judged, a year walked, a corpus or its baselines described, and its record written.

Enters: a task, and where corpora and baselines are. Leaves: `records/<id>.json`, and `runs/<id>` for what is trained; a
run that was broken off goes on from its last checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vaiom import __version__
from vaiom.baselines.store import load_losses, losses_file
from vaiom.errors import DataError
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.events.corpus import Corpus, count_events, open_corpus
from vaiom.events.splits import VALIDATION
from vaiom.experiments.beside import beside, together
from vaiom.experiments.paper import MAIN
from vaiom.experiments.plan import Task
from vaiom.experiments.records import (
    ALL_TESTS,
    BASELINES,
    CORPUS,
    ENSEMBLE,
    PAIR,
    RUN,
    WALK,
    YEAR,
    Gain,
    Record,
    Scored,
)
from vaiom.experiments.walk_forward import TREES, corpus_of_year, score_year
from vaiom.model.config import Vocabulary
from vaiom.model.vaiom import count_parameters
from vaiom.training.experiment import Experiment
from vaiom.training.loop import CONFIG_NAME, METRICS_NAME, TrainResult, train
from vaiom.training.precision import resolve_device


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where tasks find and leave things; every worker must see these folders."""

    corpora: dict[str, Path]
    """By timeframe."""
    out: Path
    baselines: Path | None = None
    device: str = "auto"

    @property
    def records(self) -> Path:
        return self.out / "records"

    def record_of(self, task: Task) -> Path:
        return self.records / f"{task.id}.json"

    @property
    def runs(self) -> Path:
        return self.out / "runs"

    def run_of(self, task: Task) -> Path:
        return self.runs / task.id


def perform(task: Task, place: Place) -> Record:
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
    record = make(task, corpus, place)
    record.write(place.record_of(task))
    return record


def trees_can_be_fitted() -> bool:
    return find_spec("lightgbm") is not None


def _run(task: Task, corpus: Corpus, place: Place) -> Record:
    assert task.experiment
    run = place.run_of(task)
    result = _train(corpus, task.experiment, run, place.device)
    scored = {}
    for split in task.splits:
        stored = place.baselines if place.baselines and losses_file(place.baselines, split).exists() else None
        evaluation = evaluate_run(run, corpus, split, baselines=stored, device=place.device)
        scored[split] = Scored.of(evaluation)
        if evaluation.all_tests:
            gains = {each.baseline: Gain.of(each) for each in evaluation.all_tests}
            scored[ALL_TESTS] = Scored(bits={}, gains=gains)
    return _record(task, corpus, task.experiment, place, result, scored)


def _walk(task: Task, corpus: Corpus, place: Place) -> Record:
    assert task.experiment
    run = place.run_of(task)
    moved = corpus_of_year(corpus, task.year)
    result = _train(moved, task.experiment, run, place.device)
    # Trees are fitted for every year where the corpus itself has them among its baselines.
    trees = TREES in _losses(place, corpus, VALIDATION, task) and trees_can_be_fitted()
    scored = score_year(moved, run, place.device, trees=place.out / "trees" if trees else None)
    return _record(task, moved, task.experiment, place, result, {YEAR: scored})


def _pair(task: Task, corpus: Corpus, place: Place) -> Record:
    """One run beside another on the events of each split, from the losses that scoring them left."""
    assert task.experiment
    own, other = (place.runs / run for run in task.beside)
    scored = {split: beside(own, other, split, MAIN) for split in task.splits}
    return _of_several(task, corpus, scored)


def _ensemble(task: Task, corpus: Corpus, place: Place) -> Record:
    """The mean of several runs' probabilities beside the same rivals as each of them."""
    runs = [place.runs / run for run in task.beside]
    scored = {split: together(runs, corpus, split, place.device) for split in task.splits}
    return _of_several(task, corpus, scored)


def _of_several(task: Task, corpus: Corpus, scored: dict[str, Scored]) -> Record:
    assert task.experiment
    return Record(
        kind=task.kind,
        key=task.key,
        name=task.experiment.name,
        timeframe=task.timeframe,
        seed=task.experiment.train.seed,
        shortened=task.shortened,
        claimed=task.claimed,
        scored=scored,
        vaiom_version=__version__,
    )


def _train(corpus: Corpus, experiment: Experiment, run: Path, device: str) -> TrainResult:
    return train(corpus, experiment, run, device=device, resume=(run / CONFIG_NAME).exists())


def _record(
    task: Task, corpus: Corpus, experiment: Experiment, place: Place, result: TrainResult, scored: dict[str, Scored]
) -> Record:
    model, device = experiment.model, resolve_device(place.device)
    return Record(
        kind=task.kind,
        key=task.key,
        name=experiment.name,
        timeframe=task.timeframe,
        seed=experiment.train.seed,
        year=task.year,
        settings=experiment.to_json(),
        shortened=task.shortened,
        claimed=task.claimed,
        num_params=count_parameters(model, Vocabulary.of(corpus.tokenizer)),
        num_params_positional=model.context * model.width,
        windows_per_step=experiment.train.windows_per_step,
        validation=_validation(result.run),
        scored=scored,
        seconds=round(result.seconds, 1),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        vaiom_version=__version__,
    )


def _validation(run: Path) -> dict[int, float]:
    """Bits at every Validation of a run."""
    file = run / METRICS_NAME
    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return {entry["step"]: entry["validation_bits"] for entry in lines if "validation_bits" in entry}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("the log of a run is damaged", where=file, fix=f"remove {run} and run it again") from error


def _corpus(task: Task, corpus: Corpus, place: Place) -> Record:
    counts = count_events(corpus)
    assets = {
        symbol: {**entry, "train_windows": counts["train"][symbol]}
        for symbol, entry in corpus.manifest["assets"].items()
    }
    facts = {
        "assets": assets,
        "events": {split: sum(by_asset.values()) for split, by_asset in counts.items()},
        "splits": corpus.splits.to_json(),
        "edges": corpus.tokenizer.to_json()["inner_edges"],
        "sha256": corpus.sha256,
    }
    return Record(kind=CORPUS, key=task.key, name=CORPUS, timeframe=task.timeframe, facts=facts)


def _baselines(task: Task, corpus: Corpus, place: Place) -> Record:
    facts: dict[str, Any] = {}
    for split in (VALIDATION, *corpus.splits.test_names):
        losses = _losses(place, corpus, split, task)
        if losses:
            facts[split] = {
                "events": len(next(iter(losses.values()))),
                "bits": {name: float(values.mean()) for name, values in losses.items()},
            }
    return Record(kind=BASELINES, key=task.key, name=BASELINES, timeframe=task.timeframe, facts=facts)


def _losses(place: Place, corpus: Corpus, split: str, task: Task) -> dict[str, npt.NDArray[np.float64]]:
    """Of the baselines on a split; none where they were not scored on it."""
    if place.baselines is None or not losses_file(place.baselines, split).exists():
        return {}
    assert task.experiment
    return load_losses(place.baselines, corpus, split, task.experiment.model.context)
