"""Frequency: the Train shares of the return buckets, whatever the row says.

Enters: Train events. Leaves: one distribution for every event.
Paper: Methods, "Baselines" (Frequency baseline, Laplace smoothing).
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


class Frequency(TableFit):
    name = "frequency"

    probs_: Probabilities  # (K,)

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        counts = np.bincount(targets_to_fit(corpus, rows), minlength=num_return_buckets(corpus) + 1)[1:]
        self.probs_ = smoothed(counts.astype(np.float64))
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        require_fitted(self)
        return np.broadcast_to(self.probs_, (len(rows), len(self.probs_)))
