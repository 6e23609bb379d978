"""Runs tasks and leaves records: what is finished is reused, what was broken off goes on, a failure stops nothing else.

Enters: tasks, corpora, a folder. Leaves: `records/<id>.json` for each task that succeeded, `runs/<id>` for each run,
and the reasons of those that failed. Engines: this process, several processes of this machine, or a Ray cluster.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vaiom import __version__
from vaiom.baselines.store import load_losses, losses_file
from vaiom.errors import ConfigError, UserError
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.events.corpus import Corpus, count_events, open_corpus
from vaiom.events.splits import VALIDATION
from vaiom.experiments.plan import Task
from vaiom.experiments.records import BASELINES, CORPUS, WALK, Gain, Record, Scored, read_record, validation_of
from vaiom.experiments.walk_forward import corpus_of_year, score_year
from vaiom.model.config import Vocabulary
from vaiom.model.vaiom import count_parameters
from vaiom.training.experiment import Experiment
from vaiom.training.loop import CONFIG_NAME, METRICS_NAME, TrainResult, train

ENGINES = ("local", "ray")
RETRIES = 3

Report = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where tasks find and leave things; every worker must see these folders."""

    corpora: dict[str, Path]
    out: Path
    baselines: Path | None = None
    device: str = "auto"

    @property
    def records(self) -> Path:
        return self.out / "records"


@dataclass(frozen=True, kw_only=True)
class Failure:
    task: str
    reason: str


def run_tasks(
    tasks: Sequence[Task], place: Place, *, engine: str = "local", workers: int = 1, report: Report | None = None
) -> list[Failure]:
    """Do what is not done yet; returns what failed."""
    if engine not in ENGINES:
        raise ConfigError("unknown engine", expected=", ".join(ENGINES), got=engine)
    open_ = [task for task in tasks if not is_done(task, place)]
    run = {"ray": _with_ray, "local": _in_processes if workers > 1 else _here}[engine]
    failures = []
    for number, (task, reason) in enumerate(run(open_, place, workers), start=1):
        if reason is not None:
            failures.append(Failure(task=task.id, reason=reason))
        if report:
            report(len(tasks) - len(open_) + number, len(tasks), task.label + (" FAILED" if reason else ""))
    return failures


def is_done(task: Task, place: Place) -> bool:
    """Whether the record of exactly this task is there; what baselines say may change with their folder."""
    file = place.records / f"{task.id}.json"
    return file.is_file() and task.kind != BASELINES and read_record(file).key == task.key


def perform(task: Task, place: Place) -> None:
    """Do one task and write its record."""
    corpus = open_corpus(place.corpora[task.timeframe])
    make = {CORPUS: _corpus, BASELINES: _baselines, WALK: _walk}.get(task.kind, _run)
    make(task, corpus, place).write(place.records, task.id)


def _run(task: Task, corpus: Corpus, place: Place) -> Record:
    assert task.experiment
    run = place.out / "runs" / task.id
    result = _train(corpus, task.experiment, run, place.device)
    scored = {}
    context = task.experiment.model.context
    for split in task.splits:
        stored = place.baselines if place.baselines and losses_file(place.baselines, split).exists() else None
        if stored and split != VALIDATION:
            load_losses(stored, corpus, split, context)  # refused before it becomes a look
        evaluation = evaluate_run(run, corpus, split, baselines=stored, device=place.device)
        scored[split] = Scored.of(evaluation)
        if evaluation.all_tests:
            gains = {each.baseline: Gain.of(each) for each in evaluation.all_tests}
            scored["all"] = Scored(bits={}, gains=gains)
    return _record(task, corpus, task.experiment, result, scored)


def _walk(task: Task, corpus: Corpus, place: Place) -> Record:
    assert task.experiment
    run = place.out / "runs" / task.id
    moved = corpus_of_year(corpus, task.year)
    result = _train(moved, task.experiment, run, place.device)
    stored = _stored(place, corpus, VALIDATION, task)
    # Trees are fitted for every year where they are among the baselines of the corpus itself.
    scored = score_year(moved, run, place.device, trees="lightgbm" in stored)
    return _record(task, moved, task.experiment, result, {"year": scored})


def _train(corpus: Corpus, experiment: Experiment, run: Path, device: str) -> TrainResult:
    return train(corpus, experiment, run, device=device, resume=(run / CONFIG_NAME).exists())


def _record(
    task: Task, corpus: Corpus, experiment: Experiment, result: TrainResult, scored: dict[str, Scored]
) -> Record:
    model = experiment.model
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
        validation=validation_of(result.run, METRICS_NAME),
        scored=scored,
        seconds=round(result.seconds, 1),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        vaiom_version=__version__,
    )


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
        losses = _stored(place, corpus, split, task)
        if losses:
            facts[split] = {
                "events": len(next(iter(losses.values()))),
                "bits": {name: float(values.mean()) for name, values in losses.items()},
            }
    return Record(kind=BASELINES, key=task.key, name=BASELINES, timeframe=task.timeframe, facts=facts)


def _stored(place: Place, corpus: Corpus, split: str, task: Task) -> dict[str, Any]:
    """Losses of the baselines on a split; none where they were not scored on it."""
    if place.baselines is None or not losses_file(place.baselines, split).exists():
        return {}
    assert task.experiment
    return dict(load_losses(place.baselines, corpus, split, task.experiment.model.context))


Outcome = tuple[Task, str | None]


def _attempt(task: Task, place: Place) -> str | None:
    """None, or why it failed."""
    try:
        perform(task, place)
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _here(tasks: Sequence[Task], place: Place, workers: int) -> Iterator[Outcome]:
    for task in tasks:
        yield task, _attempt(task, place)


def _in_processes(tasks: Sequence[Task], place: Place, workers: int) -> Iterator[Outcome]:
    """A process for every task, some at a time, spread over the GPUs: one that dies takes nothing else with it."""
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if place.device == "auto" else []

    def run(number: int, task: Task) -> str | None:
        own = Place(**{**vars(place), "device": devices[number % len(devices)]}) if devices else place
        process = multiprocessing.get_context("spawn").Process(target=_child, args=(task, own))
        process.start()
        process.join()
        reasons = place.out / "failures" / f"{task.id}.txt"
        if process.exitcode == 0:
            reasons.unlink(missing_ok=True)
            return None
        return reasons.read_text() if reasons.exists() else f"its process ended with code {process.exitcode}"

    with ThreadPoolExecutor(workers) as pool:
        waiting: dict[Future[str | None], Task] = {
            pool.submit(run, number, task): task for number, task in enumerate(tasks)
        }
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()


def _child(task: Task, place: Place) -> None:
    reason = _attempt(task, place)
    if reason is not None:
        folder = place.out / "failures"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{task.id}.txt").write_text(reason)
        raise SystemExit(1)


def _with_ray(tasks: Sequence[Task], place: Place, workers: int) -> Iterator[Outcome]:
    """One Ray task each; a worker that dies is replaced, and its task goes on from the last checkpoint."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("the ray engine needs Ray", fix="pip install 'vaiom[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError("no Ray cluster to run on", fix="ray start --head, here or on the head node") from error
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_attempt)
    waiting = {remote.remote(task, place): task for task in tasks}
    while waiting:
        done, _ = ray.wait(list(waiting))
        for reference in done:
            task = waiting.pop(reference)
            try:
                yield task, ray.get(reference)
            except ray.exceptions.RayError as error:
                yield task, f"{type(error).__name__}: {str(error).splitlines()[0]}"
