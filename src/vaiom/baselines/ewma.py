"""Student-t returns with the corpus's own EWMA scale (RiskMetrics 1996). Not in the paper."""

from __future__ import annotations

import numpy as np

from vaiom.baselines.base import Baseline, Floats, Rows, count_targets, rows_by_asset
from vaiom.baselines.student import fit_student, student_buckets
from vaiom.corpus.store import Corpus
from vaiom.features.fields import NUM_RETURN_BUCKETS

MIN_EVENTS = 500
"""An asset with fewer Train events has no fit of its own."""


class EwmaT(Baseline):
    """The next return is Student-t, with a constant times the corpus's EWMA scale:

        r[t+1] = c sigma20[t] e,  e ~ t(v)

    Buckets are in units of the same scale, so an asset has one distribution of buckets, and c and v
    are those under which its counts are most probable.

    Attributes:
        students_: (c, v) by symbol, of the assets with at least `MIN_EVENTS` Train events.
        pooled_: (c, v) of all events, for the other assets.
    """

    name = "ewma_t"
    students_: dict[str, tuple[float, float]]
    pooled_: tuple[float, float]

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        edges = corpus.edges["return"]
        self.pooled_ = fit_student(edges, count_targets(corpus, rows))
        self.students_ = {
            symbol: fit_student(edges, count_targets(corpus, rows[chosen]))
            for symbol, chosen in rows_by_asset(corpus, rows).items()
            if chosen.sum() >= MIN_EVENTS
        }

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = np.empty((len(rows), NUM_RETURN_BUCKETS))
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            scale, degrees = self.students_.get(symbol, self.pooled_)
            probs[chosen] = student_buckets(corpus.edges["return"] / scale, degrees)
        return probs
