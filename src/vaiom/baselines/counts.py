"""Baselines that count Train events. Paper: Methods, "Baselines"; the hour of the week is an
addition.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Baseline, Floats, Rows, count_targets, smooth
from vaiom.corpus.store import Corpus
from vaiom.features.fields import DISC_FIELDS, NUM_RETURN_BUCKETS
from vaiom.market.sessions import HOUR, slot_of_week
from vaiom.model.config import class_of

HOURS_PER_WEEK = 168
PRIOR_WEIGHTS = tuple(2.0**power for power in range(-1, 17))

_RETURN_BUCKET = DISC_FIELDS.index("return_bucket")
_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


class Frequency(Baseline):
    """The Train shares of the return buckets."""

    name = "frequency"
    probs_: Floats  # (K,)

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        self.probs_ = smooth(count_targets(corpus, rows))

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        return np.broadcast_to(self.probs_, (len(rows), len(self.probs_)))


class Markov(Baseline):
    """The Train shares of the next return bucket given the bucket of the row's own return."""

    name = "markov"
    probs_: Floats  # (K + 1, K), row 0 for a missing current bucket

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        states = NUM_RETURN_BUCKETS + 1
        counts = np.zeros((states, states))
        np.add.at(counts, (corpus.disc[rows, _RETURN_BUCKET], corpus.target_return[rows]), 1.0)
        self.probs_ = smooth(counts[:, 1:])

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        return np.asarray(self.probs_[corpus.disc[rows, _RETURN_BUCKET]])


class HourOfWeek(Baseline):
    """The Train shares for each asset and hour of the week of the row's timestamp, shrunk towards
    Frequency.

    The prior is Dirichlet, centred on Frequency, with the weight on a grid that makes the Train
    counts most probable (empirical Bayes). A pair never seen in Train gets Frequency.
    """

    name = "hour_of_week"
    probs_: Floats  # (assets + 1, 168, K); the first is for an unknown asset
    prior_weight_: float

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        counts = np.zeros((len(corpus.asset_slices) + 1, HOURS_PER_WEEK, NUM_RETURN_BUCKETS))
        np.add.at(
            counts,
            (
                corpus.meta[rows, 0],
                hour_of_week(corpus, rows),
                class_of(corpus.target_return[rows]),
            ),
            1.0,
        )
        centre = smooth(count_targets(corpus, rows))
        self.prior_weight_ = max(
            PRIOR_WEIGHTS, key=lambda weight: log_evidence(counts, weight * centre)
        )
        raised = counts + self.prior_weight_ * centre
        self.probs_ = raised / raised.sum(axis=-1, keepdims=True)

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        assets = corpus.meta[rows, 0]
        known = np.where(assets < len(self.probs_), assets, 0)
        return np.asarray(self.probs_[known, hour_of_week(corpus, rows)])


def hour_of_week(corpus: Corpus, rows: Rows) -> npt.NDArray[np.int64]:
    """0 for the first hour of Monday, on the stored clock."""
    return slot_of_week(corpus.columns["timestamp"][rows], HOUR)


def log_evidence(counts: Floats, prior: Floats) -> float:
    """Log-probability of the counts (..., K) when each cell's distribution is drawn from
    Dirichlet(`prior`).
    """
    cells = counts.reshape(-1, counts.shape[-1])
    cells = cells[cells.any(axis=-1)]
    totals = math.lgamma(prior.sum()) - _log_gamma(prior.sum() + cells.sum(axis=-1))
    return float(totals.sum() + (_log_gamma(prior + cells) - _log_gamma(prior)).sum())
