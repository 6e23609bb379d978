"""The ledger of test looks: each scoring of a test split is recorded in the corpus before it
happens.

The lines are a hash chain: each has the SHA-256 of all before it, so that none can be removed
unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vaiom.codec import from_json, to_json
from vaiom.corpus.splits import SEALED
from vaiom.corpus.store import LEDGER_NAME, Corpus
from vaiom.errors import DataError

NO_CHECKPOINT = ""
"""Stands for the checkpoint of a baseline."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One scoring of one split."""

    when: str
    """UTC."""
    split: str
    run: str
    checkpoint_sha256: str
    corpus_sha256: str
    num_events: int
    previous: str | None = None
    """SHA-256 of the ledger when the look was recorded; None in older lines."""


def is_recorded(corpus: Corpus, split: str) -> bool:
    """Whether looks at the split are recorded."""
    return split in (*corpus.splits.test_names, SEALED)


def record_look(
    corpus: Corpus, split: str, *, run: str, checkpoint_sha256: str, num_events: int
) -> int | None:
    """Add a line, on disk before this returns; the number of looks by models so far, None where
    looks do not count.
    """
    if not is_recorded(corpus, split):
        return None
    read_ledger(corpus)  # never add to a ledger that cannot be read
    look = Look(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        split=split,
        run=run,
        checkpoint_sha256=checkpoint_sha256,
        corpus_sha256=corpus.sha256,
        num_events=num_events,
        previous=ledger_heads(corpus)[-1],
    )
    file = _ledger(corpus)[0]
    try:
        # One short write in append mode: lines of processes that score at the same time do not mix.
        with file.open("ab") as stream:
            stream.write((json.dumps(to_json(look)) + "\n").encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        problem = "a look at a test split must be recorded, and the ledger cannot be written"
        fix = "use a copy of the corpus in a folder that you may write to"
        raise DataError(problem, where=file, got=error.strerror, fix=fix) from error
    return len(model_looks(corpus, split))


def ledger_heads(corpus: Corpus) -> list[str]:
    """SHA-256 of the file before its first look and after each: the last is that of the
    whole file.
    """
    digest = hashlib.sha256()
    heads = [digest.hexdigest()]
    for line in _ledger(corpus)[1]:
        digest.update(line)
        heads.append(digest.hexdigest())
    return heads


def read_ledger(corpus: Corpus) -> list[Look]:
    """All looks, oldest first."""
    (file, lines), looks = _ledger(corpus), []
    for number, line in enumerate(lines, start=1):
        try:
            looks.append(from_json(Look, json.loads(line)))
        except (ValueError, RecursionError) as error:
            problem, got = "the ledger of test looks is damaged", line[:80].decode(errors="replace")
            expected = "one JSON object per look, as `vaiom evaluate` writes it"
            fix = "restore the file: without it nobody knows how often Test was looked at"
            raise DataError(
                problem, where=f"{file}, line {number}", expected=expected, got=got, fix=fix
            ) from error
    return looks


def model_looks(corpus: Corpus, split: str) -> list[Look]:
    """Scorings of a split with a model; baselines, which nobody selects, are recorded and not
    counted.
    """
    looks = read_ledger(corpus)
    return [
        look for look in looks if look.split == split and look.checkpoint_sha256 != NO_CHECKPOINT
    ]


def _ledger(corpus: Corpus) -> tuple[Path, list[bytes]]:
    """The file and its lines; none where nobody looked yet."""
    if corpus.path is None:
        raise DataError(
            "only a corpus folder keeps a ledger", fix="open the corpus from its folder"
        )
    file = corpus.path / LEDGER_NAME
    return file, file.read_bytes().splitlines(keepends=True) if file.exists() else []
