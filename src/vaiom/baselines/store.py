"""Per-event losses of baselines as files, so that a machine without their libraries can compare with them.

Enters: bits per event of baselines on a split's events. Leaves: `<split>.npz` with the rows, their buckets and
`bits_<name>` for each baseline, and a header that says which events these are; reading refuses any others. NumPy alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom import __version__
from vaiom.errors import DataError
from vaiom.events.corpus import DEFAULT_CONTEXT, Corpus
from vaiom.files import BAD_ARRAYS, atomic_file, read_arrays

FORMAT = "vaiom-baseline-losses"
_PREFIX = "bits_"

Floats = npt.NDArray[np.float64]


def losses_file(directory: Path, split: str) -> Path:
    return directory / f"{split}.npz"


def save_losses(
    directory: Path,
    corpus: Corpus,
    split: str,
    bits: Mapping[str, Floats],
    context: int = DEFAULT_CONTEXT,
    *,
    unseal: bool = False,
) -> Path:
    """Write the losses of a split's events; those of other baselines that are there already stay."""
    file = losses_file(directory, split)
    rows = corpus.endpoints(split, context, unseal=unseal)
    for name, values in bits.items():
        assert values.shape == rows.shape, name
    kept = load_losses(directory, corpus, split, context, unseal=unseal) if file.exists() else {}
    arrays = {
        "header": np.array(json.dumps({**_identity(corpus, split, context), "vaiom_version": __version__})),
        "rows": rows,
        "bucket": corpus.target_return[rows],
        **{_PREFIX + name: values for name, values in {**kept, **bits}.items()},
    }
    with atomic_file(file) as staged, staged.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    return file


def load_losses(
    directory: Path, corpus: Corpus, split: str, context: int = DEFAULT_CONTEXT, *, unseal: bool = False
) -> dict[str, Floats]:
    """Bits per event (n,) by baseline, for exactly the events `corpus.endpoints(split, context)`."""
    file = losses_file(directory, split)
    rows = corpus.endpoints(split, context, unseal=unseal)
    arrays = _read(file)
    header = _header(arrays, file)
    for field, expected in _identity(corpus, split, context).items():
        if header.get(field) != expected:
            raise _foreign(file, field.removesuffix("_sha256"), expected, header.get(field))
    if not np.array_equal(arrays.get("rows", ()), rows):
        raise _foreign(file, "set of events", f"{len(rows)} events", f"{len(arrays.get('rows', ()))} events")
    if not np.array_equal(arrays.get("bucket", ()), corpus.target_return[rows]):
        raise _foreign(file, "corpus: the events ended in other buckets", "those of the corpus", "others")
    losses = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
    for name, values in losses.items():
        if values.shape != rows.shape or values.dtype != np.float64 or not np.isfinite(values).all():
            raise _damaged(file, f"{_PREFIX}{name}")
    return losses


def _identity(corpus: Corpus, split: str, context: int) -> dict[str, Any]:
    return {"format": FORMAT, "corpus_sha256": corpus.sha256, "split": split, "context": context}


def _read(file: Path) -> dict[str, npt.NDArray[Any]]:
    if not file.is_file():
        raise DataError("no stored losses of this split", where=file, fix="vaiom baselines CORPUS --out DIR --split S")
    try:
        return read_arrays(file)
    except BAD_ARRAYS as error:
        raise _damaged(file, str(error)) from error


def _header(arrays: Mapping[str, npt.NDArray[Any]], file: Path) -> dict[str, Any]:
    try:
        header = json.loads(str(arrays["header"]))
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(file, "no header") from error
    if not isinstance(header, dict):
        raise _damaged(file, "no header")
    return header


def _foreign(file: Path, what: str, expected: object, got: object) -> DataError:
    return DataError(
        f"stored losses are not of this {what}",
        where=file,
        expected=expected,
        got=got,
        fix="score the baselines again into another folder",
    )


def _damaged(file: Path, got: str) -> DataError:
    return DataError("stored losses cannot be read", where=file, got=got, fix="remove the file and score again")
