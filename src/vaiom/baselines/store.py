"""Stored baselines: fits in `fits/<name>-<key>/`, and the losses of each event in `<split>.npz`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vaiom import __version__, files
from vaiom.baselines.base import Baseline, Floats
from vaiom.baselines.base import baseline as named_baseline
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.errors import DataError

FITS_FOLDER = "fits"
KEY_NAME = "key.json"
FIT_VERSION = 1
"""Raised when fitting changes, so that older fits are not used; fits of sums of bars are one
version ahead.
"""
BITS_PREFIX = "bits_"
PATIENCE_SECONDS = 600.0
"""How long to wait for another process that stores losses of the same split."""

B = TypeVar("B", bound=Baseline)


def fit_or_load(baseline: B, corpus: Corpus, context: int, directory: Path) -> B:
    """The baseline fitted on the corpus's Train events, or loaded from `directory` if it is stored
    there.
    """
    if load_fit(baseline, corpus, context, directory) is not None:
        return baseline
    learned = corpus.with_target(1) if baseline.fits_bars else corpus
    baseline.fit(learned, learned.endpoints(TRAIN, context))
    folder, key = _fit_folder(baseline, corpus, context, directory)
    # Another process may have stored it meanwhile, or be storing it.
    if not folder.exists():
        with suppress(files.FolderInUseError), files.staged_folder(folder) as staged:
            baseline.save(staged)
            files.write_json(staged / KEY_NAME, key)
    return baseline


def load_fit(baseline: B, corpus: Corpus, context: int, directory: Path) -> B | None:
    """The baseline with its fit from `directory`; None if it is not stored."""
    folder, key = _fit_folder(baseline, corpus, context, directory)
    if not folder.exists():
        return None
    if files.read_json(folder / KEY_NAME) != key:
        raise DataError(
            "a stored fit is not what its name says", where=folder, fix="remove it and fit again"
        )
    return baseline.load(folder)


def find_fit(name: str, corpus: Corpus, context: int, directory: Path | None) -> Baseline | None:
    """A named baseline with its stored fit; None if it is not stored or its library is not
    installed.
    """
    with suppress(ImportError):
        return load_fit(named_baseline(name), corpus, context, directory) if directory else None
    return None


def _fit_folder(
    baseline: Baseline, corpus: Corpus, context: int, directory: Path
) -> tuple[Path, dict[str, Any]]:
    """The folder of a fit, and the key that identifies it."""
    learned = corpus.with_target(1) if baseline.fits_bars else corpus
    key = {
        "baseline": baseline.name,
        "corpus_sha256": learned.sha256,
        "context": context,
        "config": baseline.config(),
        "fit_version": FIT_VERSION + (learned.horizon > 1),
    }
    return (
        directory
        / FITS_FOLDER
        / f"{baseline.name}-{files.sha256_of(files.canonical_json(key))[:16]}",
        key,
    )


def losses_file(directory: Path, split: str, horizon: int = 1) -> Path:
    return directory / (f"{split}.npz" if horizon == 1 else f"{split}-{horizon}-bars.npz")


def save_losses(
    directory: Path,
    corpus: Corpus,
    split: str,
    bits: Mapping[str, Floats],
    context: int = DEFAULT_CONTEXT,
) -> Path:
    """Write the losses of a split's events; stored losses of other baselines are kept."""
    file, rows = (
        losses_file(directory, split, corpus.horizon),
        corpus.endpoints(split, context, unseal=True),
    )
    assert all(values.shape == rows.shape for values in bits.values())
    with files.hold_folder(file, patience=PATIENCE_SECONDS):
        kept = load_losses(directory, corpus, split, context) if file.exists() else {}
        arrays = {
            "header": np.array(
                json.dumps({**_identity(corpus, split, context), "vaiom_version": __version__})
            ),
            "rows": rows,
            "bucket": corpus.target_return[rows],
            **{BITS_PREFIX + name: values for name, values in {**kept, **bits}.items()},
        }
        with files.atomic_file(file) as staged, staged.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
    return file


def load_losses(
    directory: Path, corpus: Corpus, split: str, context: int = DEFAULT_CONTEXT
) -> dict[str, Floats]:
    """Bits per event (n,) by baseline, for exactly the events `corpus.endpoints(split,
    context)`.
    """
    file, rows = (
        losses_file(directory, split, corpus.horizon),
        corpus.endpoints(split, context, unseal=True),
    )
    if not file.is_file():
        raise DataError(
            "no stored losses of this split",
            where=file,
            fix="vaiom baselines CORPUS --out DIR --split S",
        )
    try:
        arrays = files.read_arrays(file)
        header = dict(json.loads(str(arrays["header"])))
        losses = bits_of_columns(arrays)
    except (*files.BAD_ARRAYS, RecursionError) as error:
        fix = "remove the file and score again"
        raise DataError(
            "stored losses cannot be read", where=file, got=str(error), fix=fix
        ) from error
    stored = (
        (name, expected, header.get(name))
        for name, expected in _identity(corpus, split, context).items()
    )
    wrong = [
        (name.removesuffix("_sha256"), expected, got)
        for name, expected, got in stored
        if expected != got
    ]
    if not np.array_equal(arrays.get("rows", ()), rows):
        wrong.append(
            ("set of events", f"{len(rows)} events", f"{len(arrays.get('rows', ()))} events")
        )
    if not np.array_equal(arrays.get("bucket", ()), corpus.target_return[rows]):
        wrong.append(("corpus: the events ended in other buckets", "those of the corpus", "others"))
    if wrong:
        what, expected, got = wrong[0]
        fix = (
            "vaiom baselines CORPUS --for RUN --out ANOTHER_DIR, which takes context and splits "
            "from the run"
        )
        raise DataError(
            f"stored losses are not of this {what}", where=file, expected=expected, got=got, fix=fix
        )
    return losses


def bits_of_columns(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Floats]:
    """Losses by predictor from stored columns; raises `ValueError` unless each event has a finite
    one.
    """
    losses = {name: values for name, values in columns.items() if name.startswith(BITS_PREFIX)}
    for name, values in losses.items():
        if (
            values.dtype != np.float64
            or values.shape != columns["bucket"].shape
            or not np.isfinite(values).all()
        ):
            raise ValueError(f"{name} is not one finite loss per event")
    return {name.removeprefix(BITS_PREFIX): values for name, values in losses.items()}


def _identity(corpus: Corpus, split: str, context: int) -> dict[str, Any]:
    return {
        "format": "vaiom-baseline-losses",
        "corpus_sha256": corpus.sha256,
        "split": split,
        "context": context,
    }
