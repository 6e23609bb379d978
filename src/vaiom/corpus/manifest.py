"""The manifest of a corpus folder, which names and hashes every file of it.

Enters: a folder. Leaves: its manifest as a mapping, or an error that says why the folder cannot be
trusted. Only bytes that we wrote are read: a manifest may be edited or damaged, so names must stay
inside the folder and counts must agree.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaiom import __version__
from vaiom.codec import from_json, to_json
from vaiom.corpus.series import Series
from vaiom.corpus.splits import SplitConfig
from vaiom.errors import DataError
from vaiom.features.fields import COLUMN_TYPES, REQUIRED_COLUMNS
from vaiom.files import canonical_json, read_json, sha256_of, write_json

FORMAT = "vaiom-corpus"
FORMAT_VERSION = 3
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
STATE_NAME = "state.json"
"""The recursive state of each series after its last row, which an append goes on from."""
LEDGER_NAME = "ledger.jsonl"
"""The record of looks at the test splits; it survives every rebuild of the folder."""


@dataclass(frozen=True, kw_only=True)
class StoredSeries(Series):
    """A series and its rows in a corpus."""

    rows: int
    first: str
    """The stamp of the first row."""
    last: str

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError("a series has rows")


@dataclass(frozen=True, kw_only=True)
class StoredColumn:
    """The type of a column, and the hash of its file."""

    dtype: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file of bars that rows were made of."""

    symbol: str
    file: str
    sha256: str
    rows_taken: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` holds, its own hash aside."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    vaiom_version: str = __version__
    series: dict[str, StoredSeries]
    """By name, in the order of their rows."""
    rows: int
    splits: SplitConfig
    events: dict[str, int]
    """By split, with full context."""
    edges: dict[str, list[float]]
    """Inner bucket edges, for readers of the file."""
    tokenizer_sha256: str
    like: str | None = None
    """The hash of the tokenizer whose edges were taken over."""
    inputs: list[InputFile]
    folder: str
    """The folder of the columns and the states."""
    arrays: dict[str, StoredColumn]
    state_sha256: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"rows-[0-9a-f]{16}", self.folder):
            raise ValueError(f"folder: {self.folder!r} is not a name of ours")
        types = {name: column.dtype for name, column in self.arrays.items()}
        if not set(REQUIRED_COLUMNS) <= set(types) or not types.items() <= COLUMN_TYPES.items():
            raise ValueError("arrays: not the columns of a corpus")
        if sum(series.rows for series in self.series.values()) != self.rows:
            raise ValueError("rows: not the sum over the series")
        if tuple(self.events) != self.splits.names:
            raise ValueError("events: not counts of the splits")


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of a corpus folder, with its own hash."""
    value = to_json(manifest)
    value["manifest_sha256"] = sha256_of(canonical_json(value))
    write_json(path / MANIFEST_NAME, value)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a corpus folder, or an error that says why it cannot be trusted."""
    file = path / MANIFEST_NAME
    if not file.is_file():
        raise DataError(
            "not a corpus",
            where=path,
            expected=f"a folder with {MANIFEST_NAME}",
            fix="vaiom corpus build",
        )
    manifest = read_json(file)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(
            "not the manifest of a corpus", where=file, expected=f'"format": "{FORMAT}"'
        )
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            "a corpus of another format version",
            where=file,
            expected=FORMAT_VERSION,
            got=version,
            fix="build it again with this version of vaiom",
        )
    described = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    require_as_written(file, manifest, described, manifest.get("manifest_sha256"))
    try:
        from_json(Manifest, described)
    except ValueError as error:
        raise DataError(
            "the manifest does not describe a corpus",
            where=file,
            got=str(error),
            fix="build the corpus again",
        ) from error
    return manifest


def require_as_written(file: Path, value: Any, hashed: Any, recorded: Any) -> None:
    """Raise an error unless a file holds its JSON value exactly as we write it, and the hashed part
    of the value has the recorded hash.
    """
    # Other spellings of the same values, such as a 17th digit that changes no float, count as a
    # changed file.
    same = file.read_bytes() == json.dumps(value, indent=2).encode() + b"\n"
    try:
        if not same or sha256_of(canonical_json(hashed)) != recorded:
            raise damaged(file)
    except ValueError as error:  # NaN and the infinities, which we never write
        raise damaged(file) from error


def damaged(file: Path) -> DataError:
    """The error for a file that is missing or not what was written."""
    problem = "not what was written" if file.is_file() else "missing"
    return DataError(
        f"the corpus is damaged: a file is {problem}",
        where=file,
        expected="the SHA-256 recorded in the manifest",
        fix="build or unpack the corpus again",
    )


def keep_ledger(old: Path, staged: Path) -> None:
    """Copy the record of test looks to the folder that replaces `old`."""
    if (old / LEDGER_NAME).is_file():
        shutil.copyfile(old / LEDGER_NAME, staged / LEDGER_NAME)
