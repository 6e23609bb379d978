"""What the tests of this folder share: tiny settings, the command line, and records that can be
compared.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cli.command_line import Ran
from reproduction.paper import COMPARISONS, Row
from reproduction.plan import TABLES
from reproduction.records import RUN, Record
from vaiom.cli.main import main
from vaiom.corpus.manifest import LEDGER_NAME

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


LONG = ("components", "beyond")
"""Comparisons of many runs, which show nothing that shorter ones do not."""
RUN_TABLES = [name for name in TABLES if name not in LONG]
RUN_COMPARISONS = [each for each in COMPARISONS if each.name not in LONG]
SOME = ("inputs", "matched", "heads")
"""Tables that never look at a test split."""
SPLITS = {
    "train-end": "2024-01-01",
    "validation": "2024-11-01:2025-01-01",
    "test": "2025-01-01:2025-02-15,2025-02-15:2025-04-01",
}
"""The paper's, but with months where it has half-years."""


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """The tables of a simulated market, and how the command that made them went."""

    corpus: Path
    baselines: Path
    out: Path
    tables: Sequence[str]
    ran: Ran
    ledger: str
    """Of the corpus, right after."""

    @property
    def page(self) -> str:
        return (self.out / "reproduction.md").read_text()


def words_of(corpus: Path, out: Path, *more: object, settings: tuple[str, ...] = TINY) -> list[str]:
    """A tiny `vaiom reproduce`; tables and further options come last."""
    changes = [word for setting in settings for word in ("--set", setting)]
    words = [
        "reproduce",
        *more,
        "--corpus",
        corpus,
        "--budget",
        "fast",
        "--out",
        out,
        "--device",
        "cpu",
        *changes,
    ]
    return [str(word) for word in words]


def vaiom(*words: object) -> Ran:
    """A command as a user has it, run in this process; what is not the user's error comes through
    as it is.
    """
    out = io.StringIO()
    err = io.StringIO()
    code = 0
    with (
        patch.object(sys, "argv", ["vaiom", *map(str, words)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())


def reproduce(corpus: Path, folder: Path, tables: Sequence[str]) -> Reproduced:
    baselines = folder / "baselines"
    out = folder / "out"
    for split in ("validation", "test-h1", "test-h2"):
        only = ("--only", "frequency,markov,hour_of_week", "--split", split, "--context", 16)
        assert vaiom("baselines", corpus, "--out", baselines, *only).code == 0
    ran = vaiom(*words_of(corpus, out, *tables, "--baselines", baselines))
    assert ran.code == 0, ran.err
    ledger = (corpus / LEDGER_NAME).read_text()
    return Reproduced(
        corpus=corpus, baselines=baselines, out=out, tables=tables, ran=ran, ledger=ledger
    )


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
    """Every record, without the seconds that no two runs share and the number of the look that
    depends on the order.
    """
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
    facts: dict[str, Any] = {
        "kind": RUN,
        "key": "",
        "name": row.experiment,
        "timeframe": row.timeframe,
        "seed": seed,
    }
    return Record(**{**facts, "validation": validation, "windows_per_step": 128, **more})
