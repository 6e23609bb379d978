"""Probabilities of buckets from quantiles of a forecast.

Enters: quantiles of log returns, and bounds of buckets. Leaves: probabilities. Not in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaiom.distribution.shape import Floats, ReturnShape, Tail


def quantile_buckets(
    levels: Sequence[float], quantiles: Floats, bounds: Floats, shape: ReturnShape
) -> Floats:
    """Probabilities (n, K) between bounds (n, K - 1) of distributions with these quantiles (n, L).

    Bounds and quantiles are in log returns. Between quantiles the distribution function is linear;
    beyond the outermost it has the shape of Train's tail, with the scale that lets the density go
    on as it was.
    """
    by_event = zip(bounds, quantiles, strict=True)
    below = np.stack([np.interp(own, values, levels) for own, values in by_event])
    inner_density = np.diff(levels) / np.diff(quantiles, axis=1)
    lower = quantiles[:, :1] - bounds
    upper = bounds - quantiles[:, -1:]
    lower_mass = _mass_beyond(lower, levels[0], inner_density[:, :1], shape.lower)
    upper_mass = _mass_beyond(upper, 1 - levels[-1], inner_density[:, -1:], shape.upper)
    below = np.where(lower > 0, lower_mass, below)
    below = np.where(upper > 0, 1 - upper_mass, below)
    return np.diff(below, axis=1, prepend=0.0, append=1.0)


def _mass_beyond(excess: Floats, mass: float, density: Floats, tail: Tail) -> Floats:
    """Mass beyond an excess (n, K - 1) over an outermost quantile, of that beyond it."""
    unit_tail = Tail(scale=1.0, shape=tail.shape)
    scaled = np.maximum(excess, 0) * density / mass
    return mass * unit_tail.survival(scaled)
