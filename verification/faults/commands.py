"""The real command line in a process of its own: run to its end, or killed at a random moment of
its work.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

VAIOM = [sys.executable, "-m", "vaiom"]
# One thread, so that sums keep their order and small products are quick.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
LONGEST_S = 240.0
SILENT_SHARE = 0.02
EARLY_SHARE = 0.1
"""How many of the kills may fall into the start of the interpreter."""


@dataclass(frozen=True)
class Ended:
    """What a finished command left."""

    code: int
    err: str
    work_s: float
    """From its first line to its end."""
    whole_s: float


def run(
    arguments: list[str],
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Ended:
    """Run a command to its end; `prepare` runs in the child before it becomes the command."""
    began = time.monotonic()
    process = start(arguments, environment, prepare)
    assert process.stderr
    first = process.stderr.readline()
    working = time.monotonic()
    err = first + process.stderr.read()
    code = process.wait(LONGEST_S)
    ended = time.monotonic()
    return Ended(code, err, ended - working, ended - began)


def kill_at_random(arguments: list[str], calm: Ended, chance: random.Random) -> bool:
    """Start a command and kill it; most often after its first line, at any moment of its work.
    Whether it still ran.
    """
    process = start(arguments)
    assert process.stderr
    if calm.work_s < SILENT_SHARE * calm.whole_s:  # it says nothing before its end
        time.sleep(chance.uniform(0.3, 1.0) * calm.whole_s)
    elif chance.random() < EARLY_SHARE:
        time.sleep(chance.uniform(0, calm.whole_s - calm.work_s))
    else:
        process.stderr.readline()
        time.sleep(chance.uniform(0, calm.work_s))
    process.kill()
    return require_clean_end(process)


def require_clean_end(process: subprocess.Popen[str]) -> bool:
    """Whether a process that was killed still ran; if not, it must have ended well."""
    assert process.stderr
    err = process.stderr.read()
    code = process.wait(LONGEST_S)
    assert code in (0, 2, -signal.SIGKILL), err
    return code == -signal.SIGKILL


def require_clean(ended: Ended) -> None:
    """Done, or refused with one message that says what to do."""
    assert ended.code in (0, 2), ended.err
    assert "Traceback" not in ended.err, ended.err
    if ended.code == 2:
        assert "vaiom: " in ended.err, ended.err


def contents(folder: Path, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, but for some names."""
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and not set(path.relative_to(folder).parts) & set(without)
    )
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def start(
    arguments: list[str],
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> subprocess.Popen[str]:
    """A command in a process of its own, whose errors can be read."""
    return subprocess.Popen(
        [*VAIOM, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **(environment or {})},
        preexec_fn=prepare,
    )
