"""EWMA-t: the next return is Student-t with the corpus's own EWMA scale times a constant.

Enters: Train events. Leaves: scale and degrees of freedom per asset, and pooled ones for an asset without enough Train
events, fitted by the likelihood of the Train buckets; bucket probabilities from the CDF. Buckets are in units of that
same EWMA scale, so the law of the bucket is one per asset: this is what a scaled Student-t can say, and no more.
Not in the paper.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import (
    JsonFit,
    Probabilities,
    Rows,
    asset_parts,
    num_return_buckets,
    require_fitted,
    targets_to_fit,
)
from vaiom.events.corpus import Corpus

MIN_EVENTS = 500
MIN_DEGREES, MAX_DEGREES = 0.5, 200.0  # at the upper end it is normal to three digits
_MIN_PROBABILITY = 1e-300

Floats = npt.NDArray[np.float64]


class EwmaT(JsonFit):
    name = "ewma_t"

    laws_: dict[str, tuple[float, float]]  # scale in units of sigma20 and degrees of freedom, by symbol
    pooled_: tuple[float, float]

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        edges, num_buckets = corpus.edges["return"], num_return_buckets(corpus)
        targets = targets_to_fit(corpus, rows)

        def law(events: npt.NDArray[np.uint8]) -> tuple[float, float]:
            return fit_student(edges, np.bincount(events, minlength=num_buckets + 1)[1:].astype(np.float64))

        self.pooled_ = law(targets)
        self.laws_ = {
            symbol: law(targets[chosen])
            for symbol, chosen in asset_parts(corpus, rows).items()
            if chosen.sum() >= MIN_EVENTS
        }
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        require_fitted(self)
        probs = np.empty((len(rows), num_return_buckets(corpus)))
        for symbol, chosen in asset_parts(corpus, rows).items():
            scale, degrees = self.laws_.get(symbol, self.pooled_)
            probs[chosen] = student_buckets(corpus.edges["return"] / scale, degrees)
        return probs

    def state(self) -> dict[str, Any]:
        return {"laws": self.laws_, "pooled": self.pooled_}

    def restore(self, state: dict[str, Any]) -> None:
        self.laws_ = {symbol: (scale, degrees) for symbol, (scale, degrees) in state["laws"].items()}
        self.pooled_ = (state["pooled"][0], state["pooled"][1])


def student_buckets(edges: Floats, degrees: float) -> Probabilities:
    """Probabilities (..., K) between edges (..., K + 1) that are in units of the law's scale."""
    from scipy.special import stdtr  # type: ignore[import-untyped]

    # The upper half is mirrored: differences of a CDF near one would lose the far tail.
    below, above = stdtr(degrees, edges), stdtr(degrees, -edges)
    left, right = np.diff(below, axis=-1), -np.diff(above, axis=-1)
    mass = np.where(edges[..., 1:] <= 0, left, right)
    probs: Probabilities = mass / mass.sum(axis=-1, keepdims=True)
    return probs


def fit_student(edges: Floats, counts: Floats) -> tuple[float, float]:
    """Scale and degrees of freedom under which the bucket counts (K,) are most probable."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    def nats(point: Floats) -> float:
        scale, degrees = np.exp(point)
        probs = student_buckets(edges / scale, float(degrees))
        return float(-(counts @ np.log(np.maximum(probs, _MIN_PROBABILITY))) / counts.sum())

    bounds = [(np.log(1e-3), np.log(1e3)), (np.log(MIN_DEGREES), np.log(MAX_DEGREES))]
    found = minimize(nats, x0=np.log([1.0, 4.0]), method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-6})
    scale, degrees = np.exp(found.x)
    return float(scale), float(degrees)
