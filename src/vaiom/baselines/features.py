"""What the single-bar tree baselines see: the inputs of one row, in the paper's three choices.

Enters: a corpus and row numbers. Leaves: one feature vector per row, and which of its fields are categories.
Paper: Methods, "Baselines" (LightGBM: 15 discrete, 25 continuous, or 25 continuous and 3 metadata fields).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Rows
from vaiom.events.corpus import Corpus
from vaiom.events.schema import CONT_FIELDS, DISC_FIELDS, META_FIELDS

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """A named way from rows to vectors; the last `num_categories` fields are categories."""

    fields: tuple[str, ...]
    num_categories: int
    of: Callable[[Corpus, Rows], Matrix]

    @property
    def categories(self) -> list[int]:
        """Positions of the categorical fields."""
        return list(range(len(self.fields) - self.num_categories, len(self.fields)))


def _cont(corpus: Corpus, rows: Rows) -> Matrix:
    return corpus.cont[rows]


def _disc(corpus: Corpus, rows: Rows) -> Matrix:
    return corpus.disc[rows].astype(np.float32)


def _hybrid(corpus: Corpus, rows: Rows) -> Matrix:
    return np.concatenate([corpus.cont[rows], corpus.meta[rows].astype(np.float32)], axis=1)


CONT = FeatureSet(fields=CONT_FIELDS, num_categories=0, of=_cont)
DISC = FeatureSet(fields=DISC_FIELDS, num_categories=len(DISC_FIELDS), of=_disc)
HYBRID = FeatureSet(fields=(*CONT_FIELDS, *META_FIELDS), num_categories=len(META_FIELDS), of=_hybrid)
