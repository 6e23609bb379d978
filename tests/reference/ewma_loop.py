"""The EWMA of the paper as a plain loop over rows."""

from __future__ import annotations

import math


def ewma_loop(values: list[float], span: int) -> list[float]:
    """Across a missing value the old weight keeps decaying; the next value is mixed with weights
    renormalised.
    """
    alpha = 2 / (span + 1)
    mean, weight, out = math.nan, 1.0, []
    for value in values:
        if not math.isnan(mean):
            weight *= 1 - alpha
        if not math.isnan(value):
            mean = value if math.isnan(mean) else (weight * mean + alpha * value) / (weight + alpha)
            weight = 1.0
        out.append(mean)
    return out
