"""What the true distribution of a simulated market would have predicted: the best reachable bits per event.

The probabilities are given everything observed through the row, and given that the next return is a valid target (not
zero, not excessive), which is what the buckets are defined on. NumPy alone.
Paper: "Return Bucket Construction" and "Serialized row and target validity rules".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.simulate.truth import FAULT_LIMIT, FloatArray, IntArray, Truth, read_truth


class Events(Protocol):
    """What the oracle reads of a corpus."""

    @property
    def edges(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def asset_slices(self) -> Mapping[str, slice]: ...
    @property
    def sigma20(self) -> npt.NDArray[Any]: ...
    @property
    def timestamps(self) -> npt.NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class Oracle:
    """Predicts like a baseline, but from the distribution that made the bars."""

    truths: Mapping[str, Truth]
    name = "oracle"

    @classmethod
    def load(cls, bars_folder: Path) -> Self:
        """The oracle of a folder that `vaiom data simulate` wrote."""
        return cls(read_truth(bars_folder))

    def predict_proba(self, corpus: Events, rows: npt.NDArray[np.integer]) -> FloatArray:
        """Probabilities (n, K) of the next return bucket of each row."""
        edges = corpus.edges["return"]
        probs = np.empty((len(rows), len(edges) - 1))
        for symbol, inside in corpus.asset_slices.items():
            chosen = (rows >= inside.start) & (rows < inside.stop)
            if chosen.any():
                truth = self._truth_of(corpus, symbol)
                own = rows[chosen].astype(np.int64)
                probs[chosen] = bucket_probabilities(truth, own - inside.start, edges, corpus.sigma20[own])
        return probs

    def _truth_of(self, corpus: Events, symbol: str) -> Truth:
        truth = self.truths.get(symbol)
        if truth is None:
            raise DataError(
                "this market's truth knows no such asset", expected=", ".join(sorted(self.truths)), got=symbol
            )
        if not np.array_equal(truth.timestamps, corpus.timestamps[corpus.asset_slices[symbol]]):
            raise DataError(
                "the corpus was not built from the bars of this truth",
                where=symbol,
                expected=f"{len(truth)} rows from {truth.timestamps[0]} to {truth.timestamps[-1]}",
                fix="build the corpus again from the simulated bar folder",
            )
        return truth


def bucket_probabilities(truth: Truth, rows: IntArray, edges: FloatArray, sigma: FloatArray) -> FloatArray:
    """P(bucket | observed past, valid target), shape (n, K); `edges` (K + 1,) with infinities, in units of `sigma`."""
    origin = truth.ticks[rows, None].astype(np.float64)
    returns = np.clip(edges * sigma[:, None], -FAULT_LIMIT, FAULT_LIMIT)
    bounds = np.floor(origin * np.exp(returns))
    mass = truth.mass(rows, bounds[:, :-1], bounds[:, 1:])
    # An unmoved price is no target: its bucket keeps what lies below and above it.
    zero = int(np.searchsorted(edges, 0.0, side="left")) - 1
    lower, upper = bounds[:, [zero]], bounds[:, [zero + 1]]
    below = truth.mass(rows, lower, np.maximum(origin - 1.0, lower))
    above = truth.mass(rows, origin, np.maximum(upper, origin))
    mass[:, [zero]] = below + above
    probs: FloatArray = mass / mass.sum(axis=1, keepdims=True)
    return probs


def share_closed(baseline_bits: float, model_bits: float, oracle_bits: float) -> float:
    """How far a model has gone from a baseline to the best reachable score: 0 at the one, 1 at the other."""
    return (baseline_bits - model_bits) / (baseline_bits - oracle_bits)
