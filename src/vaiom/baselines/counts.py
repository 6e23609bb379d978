"""Baselines that count Train events: of all, by the last bucket, by the hour of the week.

Enters: Train events. Leaves: shares of the buckets, smoothed so that none is zero.

Paper: Methods, "Baselines"; the hour of the week is an addition.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Baseline, Floats, Rows, count_targets, smooth
from vaiom.corpus.store import Corpus
from vaiom.features.fields import DISC_FIELDS, NUM_RETURN_BUCKETS, UNKNOWN_ASSET
from vaiom.market.sessions import HOUR, slot_of_week, slots_per_week
from vaiom.model.config import class_of

HOURS_PER_WEEK = slots_per_week(HOUR)
PRIOR_WEIGHTS = tuple(2.0**power for power in range(-1, 17))
"""Events that the prior is tried to count for."""

_RETURN_BUCKET = DISC_FIELDS.index("return_bucket")
_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


class Frequency(Baseline):
    """The Train shares of the return buckets, with one more event in each (Laplace).

    Attributes:
        probs_: (K,) shares.
    """

    name = "frequency"
    probs_: Floats

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        self.probs_ = smooth(count_targets(corpus, rows))

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        return np.broadcast_to(self.probs_, (len(rows), len(self.probs_)))


class Markov(Baseline):
    """The Train shares of the next return bucket given that of the row's own return.

    Attributes:
        probs_: (K + 1, K) shares by own bucket, the first for a missing one.
    """

    name = "markov"
    probs_: Floats

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        own = corpus.disc[rows, _RETURN_BUCKET]
        counts = np.zeros((NUM_RETURN_BUCKETS + 1, NUM_RETURN_BUCKETS))
        np.add.at(counts, (own, class_of(corpus.target_return[rows])), 1.0)
        self.probs_ = smooth(counts)

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        return np.asarray(self.probs_[corpus.disc[rows, _RETURN_BUCKET]])


class HourOfWeek(Baseline):
    """The Train shares by asset and hour of the week of the row, shrunk towards Frequency.

    The prior of a cell's shares is Dirichlet, centred on Frequency, with the weight on a grid that
    makes the Train counts most probable (empirical Bayes). A cell without Train events, and an
    unknown asset, get Frequency.

    Attributes:
        probs_: (assets + 1, 168, K) shares, the first for an unknown asset.
        prior_weight_: events that the prior counts for.
    """

    name = "hour_of_week"
    probs_: Floats
    prior_weight_: float

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        counts = np.zeros((len(corpus.asset_slices) + 1, HOURS_PER_WEEK, NUM_RETURN_BUCKETS))
        buckets = class_of(corpus.target_return[rows])
        np.add.at(counts, (corpus.meta[rows, 0], hour_of_week(corpus, rows), buckets), 1.0)
        centre = smooth(count_targets(corpus, rows))
        evidence = [log_evidence(counts, weight * centre) for weight in PRIOR_WEIGHTS]
        self.prior_weight_ = PRIOR_WEIGHTS[int(np.argmax(evidence))]
        raised = counts + self.prior_weight_ * centre
        self.probs_ = raised / raised.sum(axis=-1, keepdims=True)

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        assets = corpus.meta[rows, 0]
        known = np.where(assets < len(self.probs_), assets, UNKNOWN_ASSET)
        return np.asarray(self.probs_[known, hour_of_week(corpus, rows)])


def hour_of_week(corpus: Corpus, rows: Rows) -> npt.NDArray[np.int64]:
    """(n,) 0 for the first hour of Monday, on the stored clock."""
    return slot_of_week(corpus.columns["timestamp"][rows], HOUR)


def log_evidence(counts: Floats, prior: Floats) -> float:
    """Log-probability of counts (..., K) if the shares of each cell are drawn from
    Dirichlet(`prior`).
    """
    cells = counts.reshape(-1, counts.shape[-1])
    cells = cells[cells.any(axis=-1)]
    weight = prior.sum()
    of_totals = math.lgamma(weight) - _log_gamma(weight + cells.sum(axis=-1))
    of_counts = _log_gamma(prior + cells) - _log_gamma(prior)
    return float(of_totals.sum() + of_counts.sum())
