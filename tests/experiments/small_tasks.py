"""Tasks that processes of a runner find by name."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaiom.errors import DataError
from vaiom.experiments.tasks import TaskRunner


@dataclass(frozen=True)
class Work:
    """A task that writes its device into a folder, or fails as its id says."""

    id: str
    folder: Path
    runs: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"work {self.id}"


def perform(task: Any, device: str) -> None:
    if task.id == "refused":
        raise DataError("no bars", where="here")
    if task.id == "broken":
        raise ZeroDivisionError("an accident")
    if task.id == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    assert all((task.folder / run).exists() for run in task.runs)
    (task.folder / task.id).write_text(f"{device} {os.getpid()}")


def hold_pipe(task: Any, device: str) -> None:
    """Open the named pipe of a task and keep it for as long as this process lives; after a minute,
    say so. Other tasks end at once.
    """
    if task.id != "pipe":
        return
    with (task.folder / task.id).open("wb", buffering=0) as pipe:
        pipe.write(b"here")
        threading.Event().wait(60)
        pipe.write(b"late")


def run_pipe_holder(folder: Path) -> None:
    TaskRunner(workers=2, device="cpu").run([Work("pipe", folder)], hold_pipe)
