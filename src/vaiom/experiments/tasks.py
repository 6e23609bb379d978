"""Runs tasks in this process, in several processes of this machine, or on a Ray cluster; failures
are isolated.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol
from urllib.parse import urlsplit

from vaiom.errors import ConfigError, UserError, require_installed
from vaiom.files import Progress

ENGINES = ("local", "ray")
RETRIES = 3
_CONNECT_SECONDS = 5


class Task(Protocol):
    """A piece of work."""

    @property
    def id(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def runs(self) -> Sequence[str]:
        """Ids of the tasks whose results this one reads."""


Perform = Callable[[Any, str], object]
"""Performs a task on a device; must be picklable."""
Outcome = tuple[Task, str | None]
"""A task and why it failed, if it did."""


@dataclass(frozen=True, kw_only=True)
class Engine:
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
        """Run the tasks; returns reasons of failures by task id. `finished` other tasks are
        reported as done.
        """
        # Tasks that read the results of others come last and run here.
        first, last = (
            [task for task in tasks if not task.runs],
            [task for task in tasks if task.runs],
        )
        if self.name == "ray":
            outcomes = _on_ray(first, perform, self.device)
        elif self.workers > 1:
            outcomes = _in_processes(first, perform, self.device, self.workers)
        else:
            outcomes = _here(first, perform, self.device)
        failures = {}
        for number, (task, reason) in enumerate(
            chain(outcomes, _here(last, perform, self.device)), finished + 1
        ):
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
    for task in tasks:
        yield task, _attempt(task, perform, device)


def _in_processes(
    tasks: Sequence[Task], perform: Perform, device: str, workers: int
) -> Iterator[Outcome]:
    """A process for every task, `workers` at a time, spread over the GPUs; one that dies affects no
    other.
    """
    gpus = 0
    if device == "auto":
        import torch

        gpus = torch.cuda.device_count()
    context = multiprocessing.get_context("spawn")
    free = [f"cuda:{number % gpus}" if gpus else device for number in range(workers)]
    waiting = deque(tasks)
    running: dict[Connection, tuple[BaseProcess, Task, str]] = {}
    try:
        while waiting or running:
            while waiting and free:
                task, own = waiting.popleft(), free.pop()
                answer, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(task, perform, own, sender))
                process.start()
                sender.close()  # the child's end alone keeps it open: its death is an end of file
                running[answer] = process, task, own
            ready = wait(list(running))
            for answer in [each for each in running if each in ready]:
                child, task, own = running.pop(answer)
                free.append(own)
                try:
                    reason = answer.recv()
                    child.join()
                except EOFError:
                    child.join()
                    reason = f"its process ended with code {child.exitcode}"
                yield task, reason
    finally:
        for child, _, _ in running.values():
            child.kill()


def _child(task: Task, perform: Perform, device: str, sender: Connection) -> None:
    """End with the parent, however it ends: a second runner must find nobody writing into
    its runs.
    """

    def follow_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
    sender.send(_attempt(task, perform, device))


def _on_ray(tasks: Sequence[Task], perform: Perform, device: str) -> Iterator[Outcome]:
    """One Ray task each, as many at a time as the cluster holds; a task whose worker dies is
    retried.
    """
    require_installed("ray")
    import ray

    address = os.environ.get("RAY_ADDRESS", "")
    if address not in ("", "auto", "local"):
        try:  # Ray itself would try for minutes
            parts = urlsplit(address if "://" in address else f"//{address}")
            socket.create_connection(
                (parts.hostname or "", parts.port or 0), timeout=_CONNECT_SECONDS
            ).close()
        except (OSError, ValueError) as error:
            problem, where = "the Ray cluster cannot be reached", f"RAY_ADDRESS={address}"
            expected, got = "HOST:PORT, or ray://HOST:PORT", str(error)
            fix = "ray start --head there, or unset RAY_ADDRESS for a cluster on this machine"
            raise ConfigError(problem, where=where, expected=expected, got=got, fix=fix) from error
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
