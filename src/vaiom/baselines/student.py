"""Student-t returns: probabilities of buckets, and fits by likelihood. Not in the paper."""

from __future__ import annotations

import math

import numpy as np

from vaiom.baselines.base import Floats, Rows
from vaiom.corpus.store import Corpus

MIN_DEGREES = 0.5
MAX_DEGREES = 200.0
"""Where a Student-t is normal to three digits."""
_FIRST_DEGREES = 4.0
"""Where fits begin."""
_SCALES = (1e-3, 1e3)
"""Bounds of a fitted scale, in units of sigma20."""
_MIN_PROBABILITY = 1e-300


def student_buckets(edges: Floats, degrees: float) -> Floats:
    """Probabilities (..., K) between edges (..., K + 1) in units of the Student-t's scale."""
    from scipy.special import stdtr  # type: ignore[import-untyped]

    # The upper half is mirrored: differences of a CDF near one would lose the far tail.
    below = stdtr(degrees, edges)
    above = stdtr(degrees, -edges)
    left = np.diff(below)
    right = -np.diff(above)
    upper = edges[..., 1:]
    mass = np.where(upper <= 0, left, right)
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(mass / total)


def return_bounds(corpus: Corpus, rows: Rows) -> Floats:
    """(n, K + 1) edges in log returns; the inner ones of a row without a scale are zero."""
    edges = corpus.edges["return"]
    scale = corpus.target_scale[rows]
    with np.errstate(invalid="ignore"):
        scaled = np.outer(scale, edges)
    return np.where(np.isinf(edges), edges, scaled)


def fit_student(edges: Floats, counts: Floats) -> tuple[float, float]:
    """Scale and degrees of freedom under which bucket counts (K,) are most probable."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    def nats(logs: Floats) -> float:
        scale, degrees = np.exp(logs)
        probs = student_buckets(edges / scale, float(degrees))
        log_probs = np.log(np.maximum(probs, _MIN_PROBABILITY))
        return float(-(counts @ log_probs) / counts.sum())

    start = np.log([1.0, _FIRST_DEGREES])
    bounds = np.log([_SCALES, (MIN_DEGREES, MAX_DEGREES)])
    options = {"xatol": 1e-6}
    best = minimize(nats, start, method="Nelder-Mead", bounds=bounds, options=options)
    scale, degrees = np.exp(best.x).tolist()
    return scale, degrees


def fit_scale(regressors: Floats, returns: Floats) -> tuple[float, ...]:
    """Maximum likelihood of Student-t returns r (n,), their log scale linear in regressors (n, k).

    Returns the k coefficients, then the degrees of freedom v. With the scale s of an event and
    u = r^2 / (v s^2), its loss is

        log s + (v + 1) / 2 log(1 + u) + log(v pi) / 2 + log G(v / 2) - log G((v + 1) / 2)
    """
    from scipy.optimize import minimize
    from scipy.special import digamma, gammaln

    def nats(point: Floats) -> tuple[float, Floats]:
        """The mean loss and its gradient, in the coefficients and the log of v."""
        log_scale = regressors @ point[:-1]
        degrees = math.exp(point[-1])
        half = (degrees + 1) / 2
        squares = returns**2 * np.exp(-2 * log_scale) / degrees
        mean_log = np.log1p(squares).mean()
        norm = gammaln(half) - gammaln(degrees / 2)
        norm -= math.log(degrees * math.pi) / 2
        loss = log_scale.mean() + half * mean_log - norm
        shares = squares / (1 + squares)
        slopes = 1 - 2 * half * shares
        by_coefficient = regressors.T @ slopes / len(returns)
        norm_slope = (digamma(half) - digamma(degrees / 2) - 1 / degrees) / 2
        by_degrees = mean_log / 2 - half / degrees * shares.mean() - norm_slope
        by_log_degrees = degrees * by_degrees
        return float(loss), np.append(by_coefficient, by_log_degrees)

    # The regression of log sizes differs from the solution by little more than a constant.
    log_sizes = np.log(np.abs(returns))
    coefficients, *_ = np.linalg.lstsq(regressors, log_sizes, rcond=None)
    start = np.append(coefficients, math.log(_FIRST_DEGREES))
    least, most = np.log([MIN_DEGREES, MAX_DEGREES])
    free = [(None, None)] * len(coefficients)
    bounds = [*free, (least, most)]
    options = {"maxiter": 500}
    best = minimize(nats, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    *weights, log_degrees = best.x.tolist()
    return *weights, math.exp(log_degrees)
