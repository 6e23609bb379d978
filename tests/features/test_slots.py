"""The slots of the week: what follows Friday's last bar, clock changes, and slots that were not
fed.
"""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from vaiom.features.recursions import SLOT_WEEKS, Slots, run_slots

HOUR, WEEK = 3600, 7 * 24 * 3600
MONDAY = int(np.datetime64("2024-01-01T00", "s").astype(np.int64))
FRIDAY_20 = MONDAY + (4 * 24 + 20) * HOUR
SUNDAY_22 = MONDAY + (6 * 24 + 22) * HOUR


def run(stamps: list[int], values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(invalid="ignore"):
        coming, own_prev, _ = run_slots(
            np.array(stamps), np.array(values, float)[None], Slots.empty(1, HOUR)
        )
    return own_prev[0], coming[0]


def test_the_slot_after_fridays_last_bar_is_sundays_first() -> None:
    stamps = [stamp + WEEK * week for week in range(3) for stamp in (FRIDAY_20, SUNDAY_22)]
    _, coming = run(stamps, [1, 10, 2, 20, 3, 30])
    # Sundays of 10, then of 10 and 20, weighted; before the first Sunday the only slot ever fed is
    # Friday's own.
    alpha = 2 / (SLOT_WEEKS + 1)
    both = (10 * (1 - alpha) + 20) / (2 - alpha)
    assert_allclose(coming[[0, 2, 4]], [1, 10, both])


def test_the_slot_after_sundays_last_hour_is_mondays_first() -> None:
    sunday_23 = MONDAY + WEEK - HOUR
    _, coming = run([MONDAY, sunday_23, MONDAY + WEEK], [5, 7, 9])
    assert coming[1] == 5


def test_a_slot_that_was_not_fed_lately_is_passed_over() -> None:
    """Friday 21:00 trades in winter alone; in summer the week ends with Friday 20:00."""
    winter = [
        stamp + WEEK * week
        for week in range(3)
        for stamp in (FRIDAY_20, FRIDAY_20 + HOUR, SUNDAY_22)
    ]
    summer = [stamp + WEEK * week for week in range(3, 10) for stamp in (FRIDAY_20, SUNDAY_22)]
    values = [1.0, 50.0, 9.0] * 3 + [1.0, 9.0] * 7
    _, coming = run(winter + summer, values)
    fridays = coming[len(winter) :: 2]
    assert_allclose(fridays, [50] * 4 + [9] * 3)
