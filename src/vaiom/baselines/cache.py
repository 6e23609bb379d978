"""Fits that are made once: a folder per baseline, corpus and configuration.

Enters: an unfitted baseline, a corpus, a folder. Leaves: the fitted baseline, read from the folder where it was fitted
before on the same data, Train events and settings. JSON and LightGBM's text files; nothing that runs code when read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from vaiom.baselines.base import Baseline
from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.splits import TRAIN
from vaiom.files import canonical_json, read_json, sha256_of, staged_folder, write_json

FITS_FOLDER = "fits"
KEY_NAME = "key.json"
FIT_VERSION = 1
"""Raised when a baseline's rule of fitting changes, so that older fits are left alone."""

B = TypeVar("B", bound=Baseline)


def fit_key(baseline: Baseline, corpus: Corpus, context: int) -> dict[str, Any]:
    """Everything that decides a fit."""
    return {
        "baseline": baseline.name,
        "corpus_sha256": corpus.sha256,
        "context": context,
        "config": baseline.config(),
        "fit_version": FIT_VERSION,
    }


def fitted(baseline: B, corpus: Corpus, context: int, directory: Path) -> B:
    """The baseline fitted on the corpus's Train events, from the cache in `directory` if it is there."""
    key = fit_key(baseline, corpus, context)
    folder = directory / FITS_FOLDER / f"{baseline.name}-{sha256_of(canonical_json(key))[:16]}"
    if folder.exists():
        if read_json(folder / KEY_NAME) != key:
            raise DataError("a stored fit is not what its name says", where=folder, fix="remove it and fit again")
        return baseline.load(folder)
    baseline.fit(corpus, corpus.endpoints(TRAIN, context))
    if not folder.exists():  # another process may have fitted it meanwhile
        with staged_folder(folder) as staged:
            baseline.save(staged)
            write_json(staged / KEY_NAME, key)
    return baseline
