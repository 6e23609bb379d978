"""The manifest of a corpus describes its folder and hashes it, itself included.

Enters: a corpus folder. Leaves: a manifest whose every part has the shape that the rest of the house relies on, and
whose names lead nowhere but into the folder. NumPy alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vaiom.errors import DataError
from vaiom.events.schema import COLUMN_TYPES
from vaiom.events.splits import SplitConfig
from vaiom.files import canonical_json, read_json, sha256_of

FORMAT = "vaiom-corpus"
FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"

_FOLDER = re.compile(r"rows-[0-9a-f]{16}")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a corpus folder, or why it cannot be trusted."""
    file = path / MANIFEST_NAME
    if not file.is_file():
        raise DataError("not a corpus", where=path, expected=f"a folder with {MANIFEST_NAME}", fix="vaiom corpus build")
    manifest = read_json(file)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError("not the manifest of a corpus", where=file, expected=f'"format": "{FORMAT}"')
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(
            "a corpus of another format version",
            where=file,
            expected=FORMAT_VERSION,
            got=manifest.get("format_version"),
            fix="build it again with this version of vaiom",
        )
    unsealed = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    if value_sha256(file, unsealed, written=manifest) != manifest.get("manifest_sha256"):
        raise damaged(file)
    try:
        _require_shape(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            "the manifest does not describe a corpus", where=file, got=str(error), fix="build the corpus again"
        ) from error
    return manifest


def value_sha256(file: Path, value: Any, *, written: Any = None) -> str:
    """The hash of a JSON value that was read from a file, which must hold exactly what we would write."""
    # The same values written otherwise, such as a seventeenth digit that changes no float, are a changed file too.
    spelled = json.dumps(value if written is None else written, indent=2).encode() + b"\n"
    if file.read_bytes() != spelled:
        raise damaged(file)
    try:
        return sha256_of(canonical_json(value))
    except ValueError as error:  # NaN and the infinities, which we never write
        raise damaged(file) from error


def damaged(file: Path) -> DataError:
    return DataError(
        "the corpus is damaged: a file is not what was written",
        where=file,
        expected="the SHA-256 recorded in the manifest",
        fix="build or unpack the corpus again",
    )


def _require_shape(manifest: dict[str, Any]) -> None:
    """A manifest with the right hash may still be somebody's own: names must stay in the folder, counts must agree."""
    _require(_FOLDER.fullmatch(manifest["folder"]) is not None, "folder")
    types = {name: entry["dtype"] for name, entry in manifest["arrays"].items()}
    _require(types == COLUMN_TYPES, "arrays")
    hashes = [entry["sha256"] for entry in manifest["arrays"].values()]
    hashes += [manifest["tokenizer_sha256"], manifest["state_sha256"]]
    _require(all(isinstance(each, str) for each in hashes), "hashes")
    sizes = [asset["rows"] for asset in manifest["assets"].values()]
    _require(all(type(size) is int and size > 0 for size in sizes), "rows of an asset")
    _require(type(manifest["rows"]) is int and sum(sizes) == manifest["rows"], "rows")
    _require(manifest["symbols"] == list(manifest["assets"]), "symbols")
    _require(all(isinstance(asset["last"], str) for asset in manifest["assets"].values()), "assets")
    splits = SplitConfig.from_json(manifest["splits"])
    _require(list(manifest["events"]) == list(splits.names), "events")
    _require(all(type(count) is int for count in manifest["events"].values()), "events")
    _require(all(isinstance(each, dict) for each in manifest["inputs"]), "inputs")
    _require(isinstance(manifest["timeframe"], str), "timeframe")


def _require(condition: bool, part: str) -> None:
    if not condition:
        raise ValueError(f"its {part} make no sense")
