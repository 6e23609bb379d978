"""Runs tasks: what is finished is reused, what was broken off goes on, a failure stops nothing else.

Enters: tasks and a place. Leaves: a record for each task that succeeded, and the reasons of those that failed.
Engines: this process, several processes of this machine, or a Ray cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from vaiom.errors import ConfigError, UserError
from vaiom.events.splits import VALIDATION
from vaiom.experiments.plan import Task
from vaiom.experiments.records import BASELINES, CORPUS, YEAR, Record, Records, read_record
from vaiom.experiments.walk_forward import TREES
from vaiom.experiments.work import Place, perform, trees_can_be_fitted
from vaiom.training.loop import BEST_NAME

ENGINES = ("local", "ray")
RETRIES = 3

Report = Callable[[int, int, str], None]
Outcome = tuple[Task, str | None]
"""A task and why it failed, if it did."""


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
    place = _absolute(place)
    _require_same_corpora(tasks, place)
    rivals = _rivals(tasks, place)
    open_ = [task for task in tasks if task.kind != BASELINES and not is_done(task, place, rivals)]
    run = {"ray": _with_ray, "local": _in_processes if workers > 1 else _here}[engine]
    alone, together = [t for t in open_ if not t.beside], [t for t in open_ if t.beside]
    failures = []
    # What puts runs beside each other waits for all of them.
    outcomes = chain(run(alone, place, workers), _here(together, place, 1))
    for number, (task, reason) in enumerate(outcomes, start=1):
        if reason is not None:
            failures.append(Failure(task=task.id, reason=reason))
        if report:
            report(len(tasks) - len(open_) + number, len(tasks), task.label + (" FAILED" if reason else ""))
    return failures


def is_done(task: Task, place: Place, rivals: Mapping[str, set[str]]) -> bool:
    """Whether the record of exactly this task is there, with all of the rivals where its model still is."""
    file = place.record_of(task)
    if not file.is_file():
        return False
    record = read_record(file)
    if record.key != task.key:
        return False
    return not (_lacks_rivals(record, rivals) and (place.run_of(task) / BEST_NAME).exists())


def _lacks_rivals(record: Record, rivals: Mapping[str, set[str]]) -> bool:
    for split, scored in record.scored.items():
        wanted = rivals.get(split, set())
        if split == YEAR and TREES in rivals.get(VALIDATION, set()) and trees_can_be_fitted():
            wanted = {TREES}
        if wanted - scored.bits.keys():
            return True
    return False


def _rivals(tasks: Sequence[Task], place: Place) -> dict[str, set[str]]:
    """The stored baselines by split; they may have grown. What is wrong with them is said before anything is run."""
    if place.baselines is None:
        return {}
    facts = [perform(task, place).facts for task in tasks if task.kind == BASELINES]
    return {split: set(entry["bits"]) for each in facts for split, entry in each.items()}


def _require_same_corpora(tasks: Sequence[Task], place: Place) -> None:
    """Records of two corpora would mix in one table."""
    now = {task.timeframe: task.corpus_sha256 for task in tasks}
    for record in Records.read(place.records).all:
        if record.kind == CORPUS and now.get(record.timeframe, record.facts["sha256"]) != record.facts["sha256"]:
            raise ConfigError(
                f"the records are of another {record.timeframe} corpus",
                where=place.records,
                expected=record.facts["sha256"],
                got=now[record.timeframe],
                fix="choose another --out",
            )


def _absolute(place: Place) -> Place:
    """Workers have folders of their own to start from."""
    return replace(
        place,
        corpora={timeframe: path.absolute() for timeframe, path in place.corpora.items()},
        out=place.out.absolute(),
        baselines=place.baselines and place.baselines.absolute(),
    )


def _attempt(task: Task, place: Place) -> str | None:
    """None, or why it failed."""
    try:
        perform(task, place)
    except UserError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return None


def _here(tasks: Sequence[Task], place: Place, workers: int) -> Iterator[Outcome]:
    for task in tasks:
        yield task, _attempt(task, place)


def _in_processes(tasks: Sequence[Task], place: Place, workers: int) -> Iterator[Outcome]:
    """A process for every task, some at a time, spread over the GPUs: one that dies takes nothing else with it."""
    context = multiprocessing.get_context("spawn")
    gpus = torch.cuda.device_count() if place.device == "auto" else 0
    free = [replace(place, device=f"cuda:{number % gpus}") if gpus else place for number in range(workers)]
    waiting = deque(tasks)
    running: dict[Connection, tuple[BaseProcess, Task, Place]] = {}
    try:
        while waiting or running:
            while waiting and free:
                task, own = waiting.popleft(), free.pop()
                answer, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(task, own, sender))
                process.start()
                sender.close()  # the child's end alone keeps it open: its death is an end of file
                running[answer] = process, task, own
            ready = wait(list(running))
            for answer in [each for each in running if each in ready]:
                child, task, own = running.pop(answer)
                free.append(own)
                yield task, _answer(answer, child)
    finally:
        for child, _, _ in running.values():
            child.kill()


def _answer(answer: Connection, child: BaseProcess) -> str | None:
    try:
        reason: str | None = answer.recv()
    except EOFError:
        child.join()
        return f"its process ended with code {child.exitcode}"
    child.join()
    return reason


def _child(task: Task, place: Place, sender: Connection) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    sender.send(_attempt(task, place))


def _follow_parent() -> None:
    """End with the parent, however it ends: a second runner must find nobody writing into its runs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _with_ray(tasks: Sequence[Task], place: Place, workers: int) -> Iterator[Outcome]:
    """One Ray task each, as many at a time as the cluster holds; one whose worker dies goes on in another."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("the ray engine needs Ray", fix="pip install 'vaiom[ray]'") from error
    try:
        ray.init(address="auto", log_to_driver=False, ignore_reinit_error=True)
    except ConnectionError as error:
        raise ConfigError("no Ray cluster to run on", fix="ray start --head, here or on the head node") from error
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_attempt)
        waiting = {remote.remote(task, place): task for task in tasks}
        while waiting:
            for reference in ray.wait(list(waiting))[0]:
                task = waiting.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield task, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        ray.shutdown()
