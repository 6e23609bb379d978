"""The contract of everything that predicts return buckets: fit on Train events, then probabilities for any events.

Enters: a corpus and row numbers of events (`Corpus.endpoints`). Leaves: probabilities (n, K) of buckets 1..K.
Paper: Methods, "Baselines"; all are fitted on Train and transform-only elsewhere.
"""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.schema import INVALID

Rows = npt.NDArray[np.integer]
Probabilities = npt.NDArray[np.float64]

LAPLACE_COUNT = 1.0


class Predictor(Protocol):
    """Anything that gives a distribution over return buckets from what a row knows."""

    @property
    def name(self) -> str: ...

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        """Probabilities (n, K) of the next return bucket of each row; column j belongs to bucket j + 1."""
        ...


class Baseline(Predictor, Protocol):
    """A predictor that learns from the events it is given and from nothing else."""

    def fit(self, corpus: Corpus, rows: Rows) -> Self: ...


def num_return_buckets(corpus: Corpus) -> int:
    return len(corpus.edges["return"]) - 1


def targets_to_fit(corpus: Corpus, rows: Rows) -> npt.NDArray[np.uint8]:
    """The buckets that the rows' events ended in, or an error if there is nothing to learn from."""
    if not len(rows):
        raise DataError(
            "no events to fit on", expected="at least one valid Train event", fix="bring in a longer history"
        )
    targets = corpus.target_return[rows]
    assert (targets != INVALID).all(), "an event without a valid target cannot be fitted"
    return targets


def smoothed(counts: npt.NDArray[np.float64]) -> Probabilities:
    """Shares of the counts along the last axis with one imagined event more in every bucket."""
    raised = counts + LAPLACE_COUNT
    shares: Probabilities = raised / raised.sum(axis=-1, keepdims=True)
    return shares
