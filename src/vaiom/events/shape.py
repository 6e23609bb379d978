"""Where returns lie inside their buckets and beyond the outermost edges, fitted on Train.

Enters: bucket edges and the scaled Train returns they were fitted on. Leaves: the `ReturnShape` of `distribution`.

Knots inside buckets are pooled Train quantiles; tails are fitted by probability-weighted moments (Hosking and Wallis
1987). Both are held up by a little made-up data, so that a bucket or a tail that Train hardly met still has a density
and a mean.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from vaiom.events.buckets import Edges
from vaiom.events.distribution import PIECES, TAIL_SHAPES, Floats, ReturnShape, Tail

# A bucket counts this many returns more than it has, spread evenly: knots never coincide.
_EVEN_RETURNS = PIECES
# A tail counts this many excesses of this size (in sigmas) more than it has.
_MADE_UP_EXCESSES = 5
_MADE_UP_EXCESS = 2.0
# One wrong tick must not make the tail.
_MAX_EXCESS = 50.0
# Fewer excesses tell nothing of the tail's shape: it is exponential.
_MIN_EXCESSES = 50


def fit_shape(edges: Edges, values: Floats) -> ReturnShape:
    """Fit the knots of every bucket with two edges and the tails beyond the outermost."""
    inner = edges[1:-1]
    ordered = np.sort(values)
    # A bucket holds its upper edge and not its lower one.
    cuts = np.searchsorted(ordered, inner, side="right")
    buckets = (ordered[a:b] for a, b in pairwise(cuts))
    pieces = [_inner_knots(*pair) for pair in zip(inner[:-1], inner[1:], buckets, strict=True)]
    return ReturnShape(
        knots=np.concatenate([*pieces, inner[-1:]]),
        lower=_fit_tail(inner[0] - ordered[: cuts[0]]),
        upper=_fit_tail(ordered[cuts[-1] :] - inner[-1]),
    )


def _inner_knots(low: float, high: float, values: Floats) -> Floats:
    """The lower edge and the knots up to, not including, the upper one."""
    levels = np.arange(PIECES) / PIECES
    even = low + (high - low) * levels
    if not len(values):
        return even
    share = _EVEN_RETURNS / (len(values) + _EVEN_RETURNS)
    knots: Floats = share * even + (1 - share) * np.quantile(values, levels)
    knots[0] = low
    return knots


def _fit_tail(excesses: Floats) -> Tail:
    excesses = np.minimum(excesses, _MAX_EXCESS)
    count = len(excesses) + _MADE_UP_EXCESSES
    mean = (float(excesses.sum()) + _MADE_UP_EXCESSES * _MADE_UP_EXCESS) / count
    shape = 0.0
    if len(excesses) >= _MIN_EXCESSES:
        ordered = np.sort(excesses)
        above = 1 - (np.arange(len(ordered)) + 0.65) / len(ordered)  # their plotting positions
        first, second = float(ordered.mean()), float((above * ordered).mean())
        if first > 2 * second:
            shape = min(max(2 - first / (first - 2 * second), TAIL_SHAPES[0]), TAIL_SHAPES[1])
    # The mean is kept whatever the shape: scale / (1 - shape).
    return Tail(scale=mean * (1 - shape), shape=shape)
