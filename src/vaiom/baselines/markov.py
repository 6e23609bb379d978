"""Markov: the Train shares of the next return bucket given the bucket of the row's own return.

Enters: Train events. Leaves: one distribution per current bucket, and one for rows whose own bucket is missing.
Paper: Methods, "Baselines" (Markov baseline, Laplace smoothing, an extra row for the missing state).
"""

from __future__ import annotations

from typing import Self

import numpy as np

from vaiom.baselines.base import (
    Probabilities,
    Rows,
    TableFit,
    num_return_buckets,
    require_fitted,
    smoothed,
    targets_to_fit,
)
from vaiom.events.corpus import Corpus
from vaiom.events.schema import DISC_FIELDS

_RETURN_BUCKET = DISC_FIELDS.index("return_bucket")


class Markov(TableFit):
    name = "markov"

    probs_: Probabilities  # (K + 1, K), row 0 for a missing current bucket

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        states = num_return_buckets(corpus) + 1
        counts = np.zeros((states, states))
        np.add.at(counts, (corpus.disc[rows, _RETURN_BUCKET], targets_to_fit(corpus, rows)), 1.0)
        self.probs_ = smoothed(counts[:, 1:])
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        require_fitted(self)
        probs: Probabilities = self.probs_[corpus.disc[rows, _RETURN_BUCKET]]
        return probs
