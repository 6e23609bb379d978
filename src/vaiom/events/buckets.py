"""Bucket edges fitted on Train, and the map from a value to its bucket.

Enters: float64 values of Train events. Leaves: edges with the infinities; bucket ids 1..K, 0 invalid.
Paper: Methods, "Return Bucket Construction"; Appendix B, "Return Buckets and Validity Rules".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError

TAIL_CUTOFFS = (-8.0, -5.0, -3.0, -2.0, 2.0, 3.0, 5.0, 8.0)
INTERIOR_QUANTILES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
REGIME_QUANTILES = (0.2, 0.4, 0.6, 0.8)

Edges = npt.NDArray[np.float64]


def fit_signed_edges(values: npt.NDArray[np.float64]) -> Edges:
    """Fixed tail cutoffs and the quantiles of what lies strictly inside the inner pair; repeated quantiles collapse."""
    inside = values[np.abs(values) < min(np.abs(TAIL_CUTOFFS))]
    quantiles = _quantiles(inside, INTERIOR_QUANTILES)
    return np.unique(np.concatenate([[-np.inf, np.inf], TAIL_CUTOFFS, quantiles]))


def fit_regime_edges(values: npt.NDArray[np.float64]) -> Edges:
    """Plain quantiles of all values, between the infinities."""
    return np.unique(np.concatenate([[-np.inf, np.inf], _quantiles(values, REGIME_QUANTILES)]))


def bucket_of(edges: Edges, values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """The j with edges[j-1] < value <= edges[j]; non-finite values get 0."""
    ids = np.searchsorted(edges[1:-1], values, side="left") + 1
    return np.where(np.isfinite(values), ids, 0).astype(np.uint8)


def _quantiles(values: npt.NDArray[np.float64], levels: tuple[float, ...]) -> npt.NDArray[np.float64]:
    if not len(values):
        raise DataError(
            "Train holds no usable event to fit bucket edges on",
            expected="bars before the end of Train with at least 21 moving closes",
            fix="move the boundaries with --train-end, or bring in a longer history",
        )
    return np.quantile(values, levels)
