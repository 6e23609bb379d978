"""A Ray cluster of two workers, one of which is killed midway, leaves the records and the corpus of
this process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import children_of, command_of, needs_proc
from reproductions import TINY, Reproduced, records_in, start_vaiom, vaiom, words_of

from vaiom.corpus.build import CorpusConfig, build_corpus, propose_splits
from vaiom.experiments.tasks import TaskRunner
from vaiom.simulation.market import MarketConfig, write_market

ray = pytest.importorskip("ray", reason="the ray extra is not installed")

SETTINGS = ("steps=240", "validate_every=40", *TINY[2:])
TABLES = ("inputs", "sweep")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def cluster() -> Iterator[tuple[str, int]]:
    """The address of a cluster on this machine, and the process that all others of it are below."""
    head, agent, grpc = free_ports(3)
    # The sockets of a cluster lie below its folder, and their paths must be short.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    command = Path(sys.executable).with_name("ray")
    options = {
        "port": head,
        "num-cpus": 2,
        "num-gpus": 0,
        "include-dashboard": "false",
        "dashboard-agent-listen-port": agent,
        "dashboard-agent-grpc-port": grpc,
        "object-store-memory": 100_000_000,
        "temp-dir": folder,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [command, "start", "--head", "--block", "--disable-usage-stats", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    said = ""
    while "--block" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    address = re.search(r"--address='([^']+)'", said)
    assert address, said
    yield address[1], process.pid
    below = children_of(process.pid)
    process.terminate()
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    for pid in below:
        if "ray" in command_of(pid):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.kills
@needs_proc
def test_a_killed_worker_is_replaced(
    some_reproduced: Reproduced, tmp_path: Path, cluster: tuple[str, int]
) -> None:
    address, head = cluster
    here = tmp_path / "here"
    spread = tmp_path / "spread"
    words = words_of(
        some_reproduced.corpus, spread, *TABLES, "--engine", "ray", "--json", settings=SETTINGS
    )
    process = start_vaiom(words, RAY_ADDRESS=address)
    victim = None
    deadline = time.monotonic() + 100
    while process.poll() is None and victim is None and time.monotonic() < deadline:
        time.sleep(0.02)
        if list(spread.glob("runs/*/checkpoints/*")):
            busy = [pid for pid in children_of(head) if command_of(pid).startswith("ray::_attempt")]
            victim = busy[0] if busy else None
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    else:
        process.kill()
    _, errors = process.communicate(timeout=100)
    assert victim is not None, errors
    assert process.returncode == 0, errors
    assert vaiom(*words_of(some_reproduced.corpus, here, *TABLES, settings=SETTINGS)).code == 0
    assert len(records_in(here)) == 4
    assert records_in(spread) == records_in(here)


@pytest.mark.kills
@needs_proc
def test_a_corpus_of_a_hundred_assets_survives_a_killed_worker(
    tmp_path: Path, cluster: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = tmp_path / "bars"
    marker = tmp_path / "killed"
    write_market(MarketConfig(assets=100, bars=400), bars)

    class KillsOnce:
        """The Ray engine, the first of whose workers dies when its rows are half written."""

        def run(
            self, tasks: Any, perform: Any, finished: int = 0, report: Any = None
        ) -> dict[str, str]:
            def dies_once(task: Any, device: str) -> None:
                if task.id == tasks_to_die and not marker.exists():
                    marker.touch()
                    task.writer.write(
                        task.writer.slices[task.paths[0].stem].start, {"log_ret": [0.0] * 100}
                    )
                    os.kill(os.getpid(), signal.SIGKILL)
                perform(task, device)

            assert len(tasks) == 10
            tasks_to_die = tasks[3].id
            return TaskRunner(name="ray", device="cpu").run(tasks, dies_once, finished, report)

    monkeypatch.setenv("RAY_ADDRESS", cluster[0])
    config = CorpusConfig(splits=propose_splits(bars))
    build_corpus(bars, tmp_path / "spread", config, runner=KillsOnce(), rows_per_task=4000)
    assert marker.exists()
    assert not ray.is_initialized()
    build_corpus(bars, tmp_path / "here", config)
    files = sorted(
        path.relative_to(tmp_path / "here")
        for path in (tmp_path / "here").rglob("*")
        if path.is_file()
    )
    assert len(files) > 20
    for file in files:
        assert (tmp_path / "spread" / file).read_bytes() == (
            tmp_path / "here" / file
        ).read_bytes(), file
