"""The ledger of test accesses: each scoring of a test split is recorded in the corpus before it
happens.

Enters: a corpus folder and what is scored. Leaves: a line of `ledger.jsonl`. Each line has the
SHA-256 of all lines before it, so that none can be removed unnoticed. Not in the paper, which
reports each test once.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vaiom.codec import from_json, to_json
from vaiom.corpus.manifest import LEDGER_NAME
from vaiom.corpus.splits import SEALED
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError

NO_CHECKPOINT = ""
"""Stands for the checkpoint of a baseline."""


@dataclass(frozen=True, kw_only=True)
class TestAccess:
    """One scoring of one test split: a line of the ledger."""

    when: str
    """UTC."""
    split: str
    run: str
    """Name of the run folder, of the baseline, or of the forecasts."""
    checkpoint_sha256: str
    corpus_sha256: str
    num_events: int
    previous: str | None = None
    """SHA-256 of the ledger when the access was recorded."""


def is_recorded(corpus: Corpus, split: str) -> bool:
    """Whether scorings of the split are recorded: those of tests and of the sealed interval are."""
    return split in (*corpus.splits.test_names, SEALED)


def record_access(
    corpus: Corpus, split: str, *, run: str, checkpoint_sha256: str, num_events: int
) -> int | None:
    """Add a line to the ledger, which is on disk before this returns.

    Returns the number of accesses by models so far, this one included; None for a split whose
    scorings are not recorded.
    """
    if not is_recorded(corpus, split):
        return None
    read_ledger(corpus)  # never add to a ledger that cannot be read
    access = TestAccess(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        split=split,
        run=run,
        checkpoint_sha256=checkpoint_sha256,
        corpus_sha256=corpus.sha256,
        num_events=num_events,
        previous=ledger_heads(corpus)[-1],
    )
    line = json.dumps(to_json(access)) + "\n"
    file = _ledger_file(corpus)
    try:
        # One short write in append mode: lines of processes that score at the same time do not mix.
        with file.open("ab") as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise DataError(
            "an access to a test split must be recorded, and the ledger cannot be written",
            where=file,
            got=error.strerror,
            fix="use a copy of the corpus in a folder that you may write to",
        ) from error
    return len(model_accesses(corpus, split))


def ledger_heads(corpus: Corpus) -> list[str]:
    """SHA-256 of the ledger before its first line and after each one; the last is that of the
    whole file.
    """
    digest = hashlib.sha256()
    heads = [digest.hexdigest()]
    for line in _ledger_lines(corpus):
        digest.update(line)
        heads.append(digest.hexdigest())
    return heads


def read_ledger(corpus: Corpus) -> list[TestAccess]:
    """All recorded accesses, oldest first."""
    accesses = []
    for number, line in enumerate(_ledger_lines(corpus), start=1):
        try:
            accesses.append(from_json(TestAccess, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise DataError(
                "the ledger of test accesses is damaged",
                where=f"{_ledger_file(corpus)}, line {number}",
                expected="one JSON object per access, as `vaiom evaluate` writes it",
                got=line[:80].decode(errors="replace"),
                fix="restore the file: without it nobody knows how often Test was scored",
            ) from error
    return accesses


def model_accesses(corpus: Corpus, split: str) -> list[TestAccess]:
    """The accesses to a split by models. Baselines, among which nobody selects, are left out."""
    return [
        access
        for access in read_ledger(corpus)
        if access.split == split and access.checkpoint_sha256 != NO_CHECKPOINT
    ]


def _ledger_file(corpus: Corpus) -> Path:
    if corpus.path is None:
        fix = "open the corpus from its folder"
        raise DataError("only a corpus folder keeps a ledger", fix=fix)
    return corpus.path / LEDGER_NAME


def _ledger_lines(corpus: Corpus) -> list[bytes]:
    """The lines of the ledger; none before the first access."""
    file = _ledger_file(corpus)
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []
