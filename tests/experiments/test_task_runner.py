"""Tasks run here, in processes or on a cluster; a failure leaves the others alone."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from experiments.small_tasks import Work, hold_pipe, perform, run_pipe_holder
from vaiom.errors import ConfigError
from vaiom.experiments.tasks import TaskRunner

NAMES = ("one", "refused", "two", "broken", "three")


def devices_in(folder: Path) -> dict[str, str]:
    """The device of each finished task."""
    return {file.name: file.read_text().split()[0] for file in folder.iterdir()}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for Ray that works here, one task after another, and notes what it was
    asked for.
    """
    asked = SimpleNamespace(gpus=0.0, waits=0, up=False, init={}, remote={}, dies="")

    class RayError(Exception):
        pass

    def init(**options: Any) -> None:
        asked.init = options
        asked.up = True

    def remote(**options: Any) -> Any:
        asked.remote = options
        return lambda function: SimpleNamespace(remote=lambda *words: (function, *words))

    def wait(references: list[Any]) -> tuple[list[Any], list[Any]]:
        asked.waits += 1
        return references[:1], references[1:]

    def get(reference: Any) -> Any:
        function, task, *words = reference
        if task.id == asked.dies:
            raise RayError("the worker died\nand many words more")
        return function(task, *words)

    ray: Any = ModuleType("ray")
    ray.init = init
    ray.remote = remote
    ray.wait = wait
    ray.get = get
    ray.exceptions = SimpleNamespace(RayError=RayError)
    ray.cluster_resources = lambda: {"GPU": asked.gpus} if asked.gpus else {}
    ray.shutdown = lambda: setattr(asked, "up", False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("vaiom.experiments.tasks.require_installed", lambda name: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return asked


@pytest.mark.parametrize(
    "runner",
    [
        TaskRunner(device="cpu"),
        TaskRunner(workers=2, device="cpu"),
        TaskRunner(name="ray", device="cpu"),
    ],
)
def test_every_runner_finishes_what_it_can_and_tells_of_each_task(
    runner: TaskRunner, tmp_path: Path, cluster: SimpleNamespace
) -> None:
    # First in the list, but it reads the results of others.
    last = Work("last", tmp_path, runs=("one", "three"))
    told: list[tuple[int, int, str]] = []
    failures = runner.run(
        [last, *(Work(name, tmp_path) for name in NAMES)],
        perform,
        4,
        lambda *words: told.append(words),
    )
    assert failures.keys() == {"refused", "broken"}
    assert "no bars" in failures["refused"]
    assert "Traceback" not in failures["refused"]
    assert "ZeroDivisionError: an accident" in failures["broken"]
    assert devices_in(tmp_path) == dict.fromkeys(("one", "two", "three", "last"), "cpu")
    assert [(done, of) for done, of, _ in told] == [(number, 10) for number in range(5, 11)]
    assert {label for _, _, label in told} == {
        *("work one", "work two", "work three", "work last"),
        *("work refused FAILED", "work broken FAILED"),
    }
    assert told[-1][2] == "work last"


def test_alone_a_runner_works_in_order_in_this_process(tmp_path: Path) -> None:
    places: list[tuple[str, str, int]] = []

    def note(task: Any, device: str) -> None:
        places.append((task.id, device, os.getpid()))

    assert TaskRunner().run([Work("b", tmp_path), Work("a", tmp_path)], note) == {}
    assert places == [("b", "auto", os.getpid()), ("a", "auto", os.getpid())]


@pytest.mark.timeout(120)  # a death that goes unnoticed is waited for without end
@pytest.mark.parametrize("names", [("killed", "one", "two"), ("one", "two", "killed")])
def test_a_killed_worker_fails_alone(names: tuple[str, ...], tmp_path: Path) -> None:
    tasks = [Work(name, tmp_path) for name in names]
    failures = TaskRunner(workers=2, device="cpu").run(tasks, perform)
    assert failures == {"killed": "its process ended without an answer, as when memory runs out"}
    assert devices_in(tmp_path) == {"one": "cpu", "two": "cpu"}


@pytest.mark.parametrize(
    ("gpus", "device", "used"),
    [(2, "auto", {"cuda:0", "cuda:1"}), (0, "auto", {"auto"}), (2, "cpu", {"cpu"})],
)
def test_tasks_have_processes_of_their_own_that_are_spread_over_the_gpus(
    gpus: int, device: str, used: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    tasks = [Work(name, tmp_path) for name in "abc"]
    assert TaskRunner(workers=2, device=device).run(tasks, perform) == {}
    assert set(devices_in(tmp_path).values()) == used
    processes = {(tmp_path / name).read_text().split()[1] for name in "abc"}
    assert len(processes | {str(os.getpid())}) == 4


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    runner = multiprocessing.get_context("spawn").Process(target=run_pipe_holder, args=(tmp_path,))
    runner.start()
    with (tmp_path / "pipe").open("rb", buffering=0) as pipe:
        assert pipe.read(4) == b"here"
        runner.kill()
        runner.join()
        assert pipe.read(4) == b""  # the end of file: no one holds the other end


def test_what_still_runs_ends_where_the_runner_is_interrupted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with ExitStack() as stack:
        opened: list[Any] = []

        def interrupt(*_: object) -> None:
            pipe = stack.enter_context((tmp_path / "pipe").open("rb", buffering=0))
            assert pipe.read(4) == b"here"
            opened.append(pipe)
            raise KeyboardInterrupt

        tasks = [Work("pipe", tmp_path), Work("short", tmp_path)]
        with pytest.raises(KeyboardInterrupt):
            TaskRunner(workers=2, device="cpu").run(tasks, hold_pipe, report=interrupt)
        assert opened[0].read(4) == b""


@pytest.mark.parametrize(
    ("gpus", "device", "each"),
    [(0.0, "auto", 0), (2.0, "auto", 1), (2.0, "cuda", 1), (2.0, "cpu", 0)],
)
def test_a_task_on_a_cluster_takes_a_core_and_a_gpu_where_there_are_any(
    gpus: float, device: str, each: int, tmp_path: Path, cluster: SimpleNamespace
) -> None:
    cluster.gpus = gpus
    assert TaskRunner(name="ray", device=device).run([Work("one", tmp_path)], perform) == {}
    assert devices_in(tmp_path) == {"one": device}
    assert cluster.remote == {"num_cpus": 1, "num_gpus": each, "max_retries": 3}
    assert cluster.init == {"address": "auto", "log_to_driver": False, "ignore_reinit_error": True}
    assert not cluster.up


def test_a_cluster_is_left_whatever_happens_and_a_dead_worker_is_told_in_a_line(
    tmp_path: Path, cluster: SimpleNamespace
) -> None:
    cluster.dies = "two"
    failures = TaskRunner(name="ray").run(
        [Work(name, tmp_path) for name in ("one", "two", "three")], perform
    )
    assert failures == {"two": "RayError: the worker died"}
    assert cluster.waits == 3

    def interrupt(task: Any, device: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TaskRunner(name="ray").run([Work("one", tmp_path)], interrupt)
    assert not cluster.up


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "", "auto", "local"])
def test_a_cluster_that_answers_is_used(
    address: str, tmp_path: Path, cluster: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", address.format(server.getsockname()[1]))
        assert TaskRunner(name="ray").run([Work("one", tmp_path)], perform) == {}
        server.setblocking(False)
        if "127" in address:
            server.accept()[0].close()  # it was asked first
        else:
            with pytest.raises(BlockingIOError):
                server.accept()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1", "nonsense"])
def test_a_cluster_that_does_not_answer_is_not_waited_for(
    address: str, cluster: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def refuse(place: tuple[str, int], timeout: float) -> None:
        waited.append((place, timeout))
        raise OSError("no one there")

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConfigError, match="cannot be reached"):
        TaskRunner(name="ray").run([], perform)
    assert not cluster.init
    [((host, port), timeout)] = waited
    assert (host, port) == {"127.0.0.1:1": ("127.0.0.1", 1), "nonsense": ("nonsense", 0)}.get(
        address, ("127.0.0.1", 0)
    )
    assert timeout == 5


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaiom.errors.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs ray"):
        TaskRunner(name="ray").run([], perform)
    with pytest.raises(ConfigError, match="unknown engine") as refused:
        TaskRunner(name="steam")
    assert (refused.value.expected, refused.value.got) == ("local, ray", "steam")
