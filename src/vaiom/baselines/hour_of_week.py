"""Hour of week: the Train shares of the return buckets for each asset and hour of the week of the row.

Enters: Train events. Leaves: one distribution per asset and hour of the row's own timestamp (the target's is not known
in general), drawn towards Frequency as far as Train itself says: the prior weight is the one on a grid under which the
counts of Train are most probable (Dirichlet prior centred on Frequency). A pair never seen in Train gets Frequency.
Not in the paper. NumPy alone.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Probabilities, Rows, TableFit, num_return_buckets, require_fitted, targets_to_fit
from vaiom.baselines.frequency import Frequency
from vaiom.events.corpus import Corpus

HOURS_PER_WEEK = 168
PRIOR_WEIGHTS = tuple(2.0**power for power in range(-1, 17))
_MONDAY = 4 * 24  # 1970-01-01 was a Thursday

Floats = npt.NDArray[np.float64]
_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


class HourOfWeek(TableFit):
    name = "hour_of_week"

    probs_: Probabilities  # (assets + 1, 168, K); the first is for an unknown asset
    prior_weight_: float

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        targets = targets_to_fit(corpus, rows)
        counts = np.zeros((len(corpus.asset_slices) + 1, HOURS_PER_WEEK, num_return_buckets(corpus)))
        np.add.at(counts, (corpus.meta[rows, 0], hour_of_week(corpus, rows), targets - 1), 1.0)
        centre = Frequency().fit(corpus, rows).probs_
        self.prior_weight_ = max(PRIOR_WEIGHTS, key=lambda weight: log_evidence(counts, weight * centre))
        raised = counts + self.prior_weight_ * centre
        self.probs_ = raised / raised.sum(axis=-1, keepdims=True)
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        require_fitted(self)
        assets = corpus.meta[rows, 0]
        known = np.where(assets < len(self.probs_), assets, 0)
        probs: Probabilities = self.probs_[known, hour_of_week(corpus, rows)]
        return probs

    def state(self) -> dict[str, Any]:
        return {**super().state(), "prior_weight": self.prior_weight_}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.prior_weight_ = state["prior_weight"]


def hour_of_week(corpus: Corpus, rows: Rows) -> npt.NDArray[np.int64]:
    """0 for the first hour of Monday, on the stored clock."""
    hours = corpus.timestamps[rows].astype("datetime64[h]").astype(np.int64)
    within: npt.NDArray[np.int64] = (hours - _MONDAY) % HOURS_PER_WEEK
    return within


def log_evidence(counts: Floats, prior: Floats) -> float:
    """Log-probability of the counts (..., K) when each cell's distribution is drawn from Dirichlet(`prior`)."""
    cells = counts.reshape(-1, counts.shape[-1])
    cells = cells[cells.any(axis=-1)]
    whole = math.lgamma(prior.sum()) - _log_gamma(prior.sum() + cells.sum(axis=-1))
    parts = _log_gamma(prior + cells) - _log_gamma(prior)
    return float(whole.sum() + parts.sum())
