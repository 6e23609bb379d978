"""Runs tasks in this process, in several processes of this machine, or on a Ray cluster.

Enters: tasks, and a function that performs one on a device. Leaves: the reasons of those that
failed; no failure affects another task.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any, Protocol
from urllib.parse import urlsplit

from vaiom.errors import ConfigError, UserError, require_installed
from vaiom.files import Progress

ENGINES = ("local", "ray")
RETRIES = 3
"""How often Ray runs a task again whose worker died."""
_CONNECT_SECONDS = 5


class Task(Protocol):
    """A piece of work."""

    @property
    def id(self) -> str:
        """Name that no other task has."""

    @property
    def label(self) -> str:
        """Name for people."""

    @property
    def runs(self) -> Sequence[str]:
        """Ids of the tasks whose results this one reads."""


Perform = Callable[[Any, str], object]
"""Performs a task on a device; must be picklable."""
Outcome = tuple[Task, str | None]
"""A task and why it failed, if it did."""


@dataclass(frozen=True, kw_only=True)
class TaskRunner:
    """Where tasks run: on this machine, `workers` at a time, or on a Ray cluster."""

    name: str = "local"
    workers: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ConfigError("unknown engine", expected=", ".join(ENGINES), got=self.name)

    def run(
        self,
        tasks: Sequence[Task],
        perform: Perform,
        finished: int = 0,
        report: Progress | None = None,
    ) -> dict[str, str]:
        """Run the tasks and return the reasons of failures by task id.

        Tasks that read the results of others run last, in this process. `finished` tasks that were
        done before count in the progress.
        """
        independent = [task for task in tasks if not task.runs]
        dependent = [task for task in tasks if task.runs]
        if self.name == "ray":
            outcomes = _on_ray(independent, perform, self.device)
        elif self.workers > 1:
            outcomes = _in_processes(independent, perform, self.device, self.workers)
        else:
            outcomes = _here(independent, perform, self.device)
        outcomes = chain(outcomes, _here(dependent, perform, self.device))
        failures = {}
        for number, (task, reason) in enumerate(outcomes, finished + 1):
            if reason is not None:
                failures[task.id] = reason
            if report:
                report(number, finished + len(tasks), task.label + (" FAILED" if reason else ""))
        return failures


def _attempt(task: Task, perform: Perform, device: str) -> str | None:
    """Run a task; returns the reason if it failed."""
    try:
        perform(task, device)
    except UserError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return None


def _here(tasks: Sequence[Task], perform: Perform, device: str) -> Iterator[Outcome]:
    """Run tasks in this process, one after another."""
    for task in tasks:
        yield task, _attempt(task, perform, device)


def _in_processes(
    tasks: Sequence[Task], perform: Perform, device: str, workers: int
) -> Iterator[Outcome]:
    """Run `workers` tasks at a time, each in a new process, spread over the GPUs.

    Every process is a pool of its own: one that is killed breaks no other. All of them hold one end
    of a pipe and end when the other end closes, however this process ends: a second runner must
    find nobody writing into its runs.
    """
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    waiting = deque(tasks)
    free = _devices(device, workers)
    running: dict[Future[str | None], tuple[ProcessPoolExecutor, Task, str]] = {}
    try:
        while waiting or running:
            while waiting and free:
                task = waiting.popleft()
                own_device = free.pop()
                pool = ProcessPoolExecutor(1, context, _end_with, (lifeline,))
                attempt = pool.submit(_attempt, task, perform, own_device)
                running[attempt] = (pool, task, own_device)
            for attempt in wait(running, return_when=FIRST_COMPLETED).done:
                pool, task, own_device = running.pop(attempt)
                pool.shutdown()
                free.append(own_device)
                yield task, _reason(attempt)
    finally:
        held.close()
        lifeline.close()


def _reason(attempt: Future[str | None]) -> str | None:
    """Why a finished attempt failed, if it did."""
    try:
        return attempt.result()
    except BrokenProcessPool:
        return "its process ended without an answer, as when memory runs out"


def _devices(device: str, workers: int) -> list[str]:
    """The device of each worker; `auto` takes the GPUs in turn."""
    if device != "auto":
        return [device] * workers
    import torch

    num_gpus = torch.cuda.device_count()
    return [f"cuda:{worker % num_gpus}" if num_gpus else device for worker in range(workers)]


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end of the pipe closes."""

    def watch() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_ray(tasks: Sequence[Task], perform: Perform, device: str) -> Iterator[Outcome]:
    """Run each task as one of Ray, as many at a time as the cluster holds.

    Ray runs a task again whose worker died.
    """
    require_installed("ray")
    import ray

    _require_reachable(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address="auto", log_to_driver=False, ignore_reinit_error=True)
    except ConnectionError as error:
        raise ConfigError(
            "no Ray cluster to run on", fix="ray start --head, here or on the head node"
        ) from error
    try:
        gpus = 1 if device != "cpu" and ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_attempt)
        waiting = {remote.remote(task, perform, device): task for task in tasks}
        while waiting:
            for reference in ray.wait(list(waiting))[0]:
                task = waiting.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield task, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Refuse the address of a cluster that does not answer; Ray itself would try for minutes."""
    if address in ("", "auto", "local"):
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        place = (parts.hostname or "", parts.port or 0)
        socket.create_connection(place, timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the Ray cluster cannot be reached",
            where=f"RAY_ADDRESS={address}",
            expected="HOST:PORT, or ray://HOST:PORT",
            got=str(error),
            fix="ray start --head there, or unset RAY_ADDRESS for a cluster on this machine",
        ) from error
