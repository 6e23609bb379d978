"""Stored baselines: fits in `fits/<name>-<key>/`, and the losses of each event in `<split>.npz`.

The key of a fit names the corpus, the context and the settings: a fit of anything else is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vaiom import __version__, files
from vaiom.baselines import base
from vaiom.baselines.base import Baseline, Floats
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.errors import DataError

FITS_FOLDER = "fits"
KEY_NAME = "key.json"
FIT_VERSION = 3
"""Raised when fitting changes, so that older fits are not used."""
LOSSES_FORMAT = "vaiom-baseline-losses"
BITS_PREFIX = "bits_"
PATIENCE_SECONDS = 600.0
"""How long to wait for another process that stores losses of the same split."""

B = TypeVar("B", bound=Baseline)


@dataclass(frozen=True, eq=False)
class StoredFit:
    """Where the fit of a baseline on the Train events of a corpus is kept."""

    baseline: Baseline
    corpus: Corpus
    context: int

    @property
    def train_corpus(self) -> Corpus:
        """The corpus with the target that the baseline is fitted to."""
        return self.corpus.with_target(1) if self.baseline.fits_bars else self.corpus

    @property
    def key(self) -> dict[str, Any]:
        """Everything that determines the fit."""
        return {
            "baseline": self.baseline.name,
            "corpus_sha256": self.train_corpus.sha256,
            "context": self.context,
            "config": self.baseline.config(),
            "fit_version": FIT_VERSION,
        }

    def folder(self, directory: Path) -> Path:
        """The folder of the fit among others."""
        digest = files.sha256_of(files.canonical_json(self.key))
        return directory / FITS_FOLDER / f"{self.baseline.name}-{digest[:16]}"


def fit_or_load(baseline: B, corpus: Corpus, context: int, directory: Path) -> B:
    """The baseline fitted on the corpus's Train events, or loaded from `directory` if it is stored
    there.
    """
    if load_fit(baseline, corpus, context, directory) is not None:
        return baseline
    fit = StoredFit(baseline, corpus, context)
    baseline.fit(fit.train_corpus, fit.train_corpus.endpoints(TRAIN, context))
    folder = fit.folder(directory)
    # Another process may have stored it meanwhile, or be storing it.
    if not folder.exists():
        with suppress(files.FolderInUseError), files.staged_folder(folder) as staged:
            baseline.save(staged)
            files.write_json(staged / KEY_NAME, fit.key)
    return baseline


def load_fit(baseline: B, corpus: Corpus, context: int, directory: Path) -> B | None:
    """The baseline with its fit from `directory`; None if it is not stored."""
    fit = StoredFit(baseline, corpus, context)
    folder = fit.folder(directory)
    if not folder.exists():
        return None
    if files.read_json(folder / KEY_NAME) != fit.key:
        fix = "remove it and fit again"
        raise DataError("a stored fit is not what its name says", where=folder, fix=fix)
    return baseline.load(folder)


def find_fit(name: str, corpus: Corpus, context: int, directory: Path | None) -> Baseline | None:
    """A named baseline with its stored fit; None if it is not stored or its library is not
    installed.
    """
    if directory is None:
        return None
    with suppress(ImportError):
        return load_fit(base.baseline(name), corpus, context, directory)
    return None


def losses_file(directory: Path, split: str, horizon: int = 1) -> Path:
    """The file with the losses of a split's events, at a number of bars."""
    return directory / (f"{split}.npz" if horizon == 1 else f"{split}-{horizon}-bars.npz")


def save_losses(
    directory: Path,
    corpus: Corpus,
    split: str,
    bits: Mapping[str, Floats],
    context: int = DEFAULT_CONTEXT,
) -> Path:
    """Write the losses of a split's events; stored losses of other baselines are kept."""
    file = losses_file(directory, split, corpus.horizon)
    rows = corpus.endpoints(split, context, unseal=True)
    assert all(values.shape == rows.shape for values in bits.values())
    header = {**_identity(corpus, split, context), "vaiom_version": __version__}
    with files.hold_folder(file, patience=PATIENCE_SECONDS):
        kept = load_losses(directory, corpus, split, context) if file.exists() else {}
        columns = {BITS_PREFIX + name: values for name, values in {**kept, **bits}.items()}
        with files.atomic_file(file) as staged, staged.open("wb") as stream:
            np.savez(
                stream,
                allow_pickle=False,
                header=np.array(json.dumps(header)),
                rows=rows,
                bucket=corpus.target_return[rows],
                **columns,
            )
    return file


def load_losses(
    directory: Path, corpus: Corpus, split: str, context: int = DEFAULT_CONTEXT
) -> dict[str, Floats]:
    """Bits per event (n,) by baseline, of exactly the events `corpus.endpoints(split, context)`."""
    file = losses_file(directory, split, corpus.horizon)
    if not file.is_file():
        fix = "vaiom baselines CORPUS --out DIR --split S"
        raise DataError("no stored losses of this split", where=file, fix=fix)
    try:
        arrays = files.read_arrays(file)
        header = dict(json.loads(str(arrays["header"])))
        losses = bits_of_columns(arrays)
    except (*files.BAD_ARRAYS, RecursionError) as error:
        raise DataError(
            "stored losses cannot be read",
            where=file,
            got=str(error),
            fix="remove the file and score again",
        ) from error
    rows = corpus.endpoints(split, context, unseal=True)
    stored_rows = arrays.get("rows", np.empty(0))
    wrong = []
    for name, expected in _identity(corpus, split, context).items():
        if header.get(name) != expected:
            wrong.append((name.removesuffix("_sha256"), expected, header.get(name)))
    if not np.array_equal(stored_rows, rows):
        wrong.append(("set of events", f"{len(rows)} events", f"{len(stored_rows)} events"))
    if not np.array_equal(arrays.get("bucket", np.empty(0)), corpus.target_return[rows]):
        problem = "corpus: the events ended in other buckets"
        wrong.append((problem, "those of the corpus", "others"))
    if wrong:
        what, expected, got = wrong[0]
        raise DataError(
            f"stored losses are not of this {what}",
            where=file,
            expected=expected,
            got=got,
            fix=(
                "vaiom baselines CORPUS --for RUN --out ANOTHER_DIR, which takes context and "
                "splits from the run"
            ),
        )
    return losses


def bits_of_columns(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Floats]:
    """Losses by predictor from stored columns; raises `ValueError` unless each event has a finite
    one.
    """
    shape = columns["bucket"].shape
    losses = {}
    for name, values in columns.items():
        if not name.startswith(BITS_PREFIX):
            continue
        if values.dtype != np.float64 or values.shape != shape or not np.isfinite(values).all():
            raise ValueError(f"{name} is not one finite loss per event")
        losses[name.removeprefix(BITS_PREFIX)] = values
    return losses


def _identity(corpus: Corpus, split: str, context: int) -> dict[str, Any]:
    """What stored losses must be of."""
    return {
        "format": LOSSES_FORMAT,
        "corpus_sha256": corpus.sha256,
        "split": split,
        "context": context,
    }
