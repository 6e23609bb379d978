"""What the tests of this folder share: tiny settings, the command line, and records that can be compared."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cli.command_line import Ran
from reproduction.paper import Row
from reproduction.records import RUN, Record
from vaiom.cli.main import main

TINY = (
    "steps=2",
    "validate_every=2",
    "width=12",
    "num_heads=2",
    "num_layers=1",
    "micro_batch=4",
    "num_micro_batches=1",
    "context=16",
    "teachers=0",
    "teacher_share=0",
)


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """All tables of a simulated market, and how the command that made them went."""

    corpus: Path
    baselines: Path
    out: Path
    ran: Ran
    ledger: str
    """Of the corpus, right after."""

    @property
    def page(self) -> str:
        return (self.out / "reproduction.md").read_text()


def words_of(corpus: Path, out: Path, *more: object, settings: tuple[str, ...] = TINY) -> list[str]:
    """A tiny `vaiom reproduce`; tables and further options come last."""
    changes = [word for setting in settings for word in ("--set", setting)]
    words = ["reproduce", *more, "--corpus", corpus, "--budget", "fast", "--out", out, "--device", "cpu", *changes]
    return [str(word) for word in words]


def vaiom(*words: object) -> Ran:
    """A command as a user has it, run in this process; what is not the user's error comes through as it is."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with patch.object(sys, "argv", ["vaiom", *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())


def start_vaiom(words: list[str], **environment: str) -> subprocess.Popen[str]:
    """A command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "vaiom", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def records_in(out: Path) -> dict[str, Any]:
    """Every record, without the seconds that no two runs share and the number of the look that depends on the order."""
    found = {}
    for file in sorted((out / "records").glob("[!.]*.json")):
        record = json.loads(file.read_text())
        record.pop("seconds")
        for scored in record["scored"].values():
            scored.pop("looks")
        found[file.name] = record
    return found


def without_minutes(page: str) -> str:
    return re.sub(r"\d+ minutes of training", "minutes of training", page)


def record_of(row: Row, seed: int, validation: dict[int, float], **more: Any) -> Record:
    """A finished run of a row."""
    facts: dict[str, Any] = {"kind": RUN, "key": "", "name": row.experiment, "timeframe": row.timeframe, "seed": seed}
    return Record(**{**facts, "validation": validation, "windows_per_step": 128, **more})
