"""Gaussian and Student-t copulas: how returns become scores, and how likely scores are together.

The score of a return is the quantile, of the normal distribution or of Student's t, at the return's
PIT. Functions take `degrees` of freedom, where None is Gaussian. Not in the paper.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.shape import Floats

LEAST_TAIL = 1e-9
"""PITs are kept this far from 0 and 1, so that every score is finite."""

_MOST_TERMS = 40
"""Up to so many even degrees of freedom, the finite sum of Student's distribution is faster."""
_FARTHEST_SCORE = 1e9
"""Its level is beyond `LEAST_TAIL` for two degrees of freedom and more."""


def pit_of(dists: BucketDistribution, prob_zero: Any, log_ret: Any) -> Floats:
    """P(return <= log_ret) with zero returns included; in the middle of its step for a zero return.

    `prob_zero` is the probability of a zero return; `dists` is the distribution of the others.
    """
    other_below = np.asarray(dists.cdf(log_ret))
    zero_below = (1 + np.sign(log_ret)) / 2
    pit = (1 - prob_zero) * other_below + prob_zero * zero_below
    return inside(pit)


def inside(levels: Floats) -> Floats:
    """The levels, of which none is nearer to 0 or 1 than `LEAST_TAIL`."""
    return np.clip(levels, LEAST_TAIL, 1 - LEAST_TAIL)


def scores_of(levels: Floats, degrees: float | None = None) -> Floats:
    """Quantiles at these levels."""
    from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]

    if degrees is None:
        return np.asarray(ndtri(levels))
    scores = stdtrit(degrees, levels)
    # At both ends SciPy gives infinities of the other sign, or NaN in older versions.
    at_end = (levels < 1e-99) | (levels == 1)
    ends = np.copysign(np.inf, levels - 0.5)
    return np.where(at_end, ends, scores)


def levels_of(scores: Floats, degrees: float | None = None) -> Floats:
    """The distribution function at these scores, to an absolute error of 1e-15.

    For even degrees of freedom it is a finite sum (Abramowitz and Stegun 1964, 26.7.4), which is
    many times faster than SciPy's function.
    """
    from scipy.special import ndtr, stdtr

    if degrees is None:
        return np.asarray(ndtr(scores))
    if degrees % 2 or degrees > _MOST_TERMS:
        return np.asarray(stdtr(degrees, scores))
    finite = np.clip(scores, -_FARTHEST_SCORE, _FARTHEST_SCORE)
    squares = finite * finite + degrees
    # The square of the cosine of the angle whose tangent is score / sqrt(degrees).
    cosines = degrees / squares
    total = np.ones_like(cosines)
    for power in range(int(degrees) - 2, 1, -2):
        ratio = (power - 1) / power
        total = 1 + total * cosines * ratio
    sines = finite / np.sqrt(squares)
    return np.asarray(0.5 + 0.5 * sines * total)


def correlation_of(covariance: Floats) -> Floats:
    """The covariance (n, n) scaled to a diagonal of ones."""
    deviations = np.sqrt(np.diag(covariance))
    correlation: Floats = covariance / np.outer(deviations, deviations)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def symmetric(matrix: npt.NDArray[np.floating]) -> Floats:
    """The matrix (n, n) without the asymmetry of rounding."""
    return np.asarray((matrix + matrix.T) / 2, np.float64)


def log_density(correlation: Floats, pit: Floats, degrees: float | None = None) -> float:
    """The log density (nats) of the copula with this correlation (n, n) at PITs (n,).

    It is the log density of the joint distribution of the scores less those of each score alone
    (Demarta and McNeil 2005, "The t Copula and Related Copulas").
    """
    size = len(pit)
    scores = scores_of(pit, degrees)
    squares = scores**2
    root = np.linalg.cholesky(correlation)
    independent = np.linalg.solve(root, scores)
    distance = float(independent @ independent)
    log_roots = np.log(np.diag(root))
    log_volume = float(log_roots.sum())
    if degrees is None:
        distance_alone = float(squares.sum())
        return (distance_alone - distance) / 2 - log_volume
    # Half the degrees of freedom, also with one and with all scores more.
    half = degrees / 2
    half_alone = half + 0.5
    half_joint = half + size / 2
    log_distance = math.log1p(distance / degrees)
    joint = math.lgamma(half_joint) - half_joint * log_distance
    shared = math.lgamma(half) * (size - 1)
    log_sizes = np.log1p(squares / degrees)
    alone = size * math.lgamma(half_alone) - half_alone * float(log_sizes.sum())
    return joint + shared - alone - log_volume
