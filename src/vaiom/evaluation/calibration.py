"""Whether probabilities mean what they say: the randomised probability integral transform and a test of it.

If a return was drawn from the predicted distribution, the predicted probability of everything below it is uniform on
(0, 1). With buckets, a uniform draw inside the outcome's own share restores that: the transform of every event is
exactly uniform when the prediction is the true law, and successive events are then independent. Predictions that are
too narrow pile up values at both ends, too wide ones in the middle, shifted ones on one side. Kuiper's statistic, the
sum of the largest excess and the largest deficit of the empirical distribution, is as sensitive to the first two as to
the third.

Enters: probabilities (n, K) and the buckets that came, 1..K. Leaves: transforms (n,), a statistic and its p-value.
Paper: reports no calibration ("No ... calibration analysis is reported"); this is an addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaiom.evaluation.likelihood import Buckets, Floats, class_ids, clipped

_SERIES_TERMS = 100
_CERTAIN_BELOW = 0.4  # the series converges slowly here, where the p-value is one to many digits


@dataclass(frozen=True, kw_only=True)
class CalibrationTest:
    """A small p-value says that the outcomes were not drawn from the predictions."""

    statistic: float
    p_value: float
    num_events: int


def randomised_pit(probs: Floats, buckets: Buckets, seed: int) -> Floats:
    """The transform of every event, shape (n,); `seed` fixes the draw inside the outcome's bucket."""
    shares = clipped(probs)
    ids = class_ids(buckets, probs.shape[-1])[:, None]
    share = np.take_along_axis(shares, ids, axis=-1)[:, 0]
    below = np.take_along_axis(np.cumsum(shares, axis=-1), ids, axis=-1)[:, 0] - share
    drawn: Floats = below + np.random.default_rng(seed).random(len(share)) * share
    return np.clip(drawn, 0.0, 1.0)


def uniformity_test(pit: Floats) -> CalibrationTest:
    """Kuiper's test that the values are independent and uniform on (0, 1)."""
    count = len(pit)
    if not count:
        raise ValueError("a calibration test needs at least one event")
    ordered = np.sort(pit)
    steps = np.arange(count + 1) / count
    statistic = float(np.max(steps[1:] - ordered) + np.max(ordered - steps[:-1]))
    root = count**0.5
    return CalibrationTest(
        statistic=statistic,
        p_value=_kuiper_tail(statistic * (root + 0.155 + 0.24 / root)),
        num_events=count,
    )


def _kuiper_tail(scaled: float) -> float:
    """P(Kuiper's scaled statistic > scaled) in the limit of many events."""
    if scaled < _CERTAIN_BELOW:
        return 1.0
    squares = (np.arange(1, _SERIES_TERMS + 1) * scaled) ** 2
    tail = 2.0 * float(np.sum((4.0 * squares - 1.0) * np.exp(-2.0 * squares)))
    return min(max(tail, 0.0), 1.0)
