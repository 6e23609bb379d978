"""The rhythm of a series' week: the slot of a bar, the slots it trades, the next bar, closures.

A slot is one step of the timeframe in a week that begins on Monday at 00:00 of the stored clock,
so an hourly series has 168. Stamps enter as seconds since 1970 and are the left edges of bars.
All rooms ask here; NumPy alone, because live forecasts do too. Paper: Methods, "Input
Representations", which takes clocks as stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY
FIRST_MONDAY = 4 * DAY
"""The first Monday after 1970-01-01, which was a Thursday."""
OPEN_WEEKS = 4
"""A slot is open for so many weeks after its last value. Two holidays a week apart close a slot for
two weeks, a change of the clock closes it for half a year.
"""
NEIGHBOUR_WEEKS = 4
"""Weeks on either side of a week that tell which of its slots should have a bar."""

NEWEST_WEEKS = 5
"""Weeks that tell when the next bar comes: after a change of daylight saving the older ones tell
the hours of another season, and of five weeks two may have holidays.
"""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def slots_per_week(step: int) -> int:
    """The number of slots of `step` seconds in a week."""
    return WEEK // step


def place_in_week(seconds: Ints, step: int) -> tuple[Ints, Ints]:
    """The number of the week, and of the slot of `step` seconds in it; also of a single stamp.

    Week 0 is that of 1970-01-01.
    """
    week, second = divmod(seconds + (WEEK - FIRST_MONDAY), WEEK)
    return week, second // step


def slot_of_week(seconds: npt.NDArray[Any], step: int) -> Ints:
    """(N,) the slot of `step` seconds in the week of each stamp, of any type of integers."""
    _, slot = place_in_week(seconds.astype(np.int64), step)
    return slot


def open_slots(last_week: Ints, week: int) -> Bools:
    """Which slots trade in a week, from the number of the last week in which each had a value."""
    return last_week >= week - OPEN_WEEKS


def next_open(is_open: Bools, slots: Ints) -> Ints:
    """The first open slot after each of `slots` (n,), from flags (..., S); S where there is none.

    `is_open` may cover more than one week, so that what follows Friday is found on Sunday.
    """
    num_slots = is_open.shape[-1]
    numbers = np.where(is_open, np.arange(num_slots), num_slots)
    backwards = np.minimum.accumulate(numbers[..., ::-1], axis=-1)
    first_from = backwards[..., ::-1]
    return np.asarray(first_from[..., slots + 1])


def next_open_around(is_open: Bools, slot: int) -> int | None:
    """The first open slot after one slot, around the week and back to the slot itself.

    For one bar this takes a tenth of the time of `next_open`.
    """
    num_slots = len(is_open)
    order = (number % num_slots for number in range(slot + 1, slot + 1 + num_slots))
    return next((number for number in order if is_open[number]), None)


def usual_successors(slots: Ints, following: Ints, num_slots: int) -> Ints:
    """(num_slots,) the slot that mostly follows each, from pairs (n,) of a row's and the next's.

    A slot that was never seen is followed by the next one of the clock.
    """
    pairs = slots * num_slots + following
    counts = np.bincount(pairs, minlength=num_slots**2)
    by_clock = np.eye(num_slots, k=1) / 2
    votes = counts.reshape(num_slots, num_slots) + by_clock
    return np.asarray(votes.argmax(axis=1))


def next_stamp(seconds: npt.NDArray[np.integer], step: int, ahead: int = 1) -> int:
    """The expected stamp of the bar `ahead` bars after the last, learned from the newest weeks.

    A slot is expected to have a bar if most of the newest complete weeks had one there, those of
    another season left out. With fewer than two weeks, or no such slot, bars follow the clock.

    Parameters
    ----------
    seconds : (N,) the series' stamps, sorted
    step : seconds of a bar
    ahead : 1 for the next bar
    """
    stamps = seconds.astype(np.int64)
    last = int(stamps[-1])
    num_weeks = min(int(last - stamps[0]) // WEEK, NEWEST_WEEKS)
    by_clock = last + ahead * step
    if num_weeks < 2:
        return by_clock
    weeks_before = WEEK * np.arange(1, num_weeks + 1)

    def expected_among(num_slots: int) -> Ints:
        coming = last + step * np.arange(1, num_slots + 1)
        earlier = coming[:, None] - weeks_before
        present = stamps[stamps.searchsorted(earlier)] == earlier
        return np.asarray(coming[2 * present.sum(axis=1) > num_weeks])

    # The next slot nearly always has a bar; the whole week takes longer.
    expected = expected_among(1) if ahead == 1 else np.empty(0, np.int64)
    if not len(expected):
        expected = expected_among(slots_per_week(step))
    if not len(expected):
        return by_clock
    weeks, place = divmod(ahead - 1, len(expected))
    return int(expected[place]) + weeks * WEEK


class Closures(NamedTuple):
    """Missing bars of a series, and their runs; closed hours inside a run are skipped."""

    expected: int
    """Number of bars that the neighbouring weeks make likely."""
    start: Ints
    """(n,) the stamp of the first missing bar of each run."""
    end: Ints
    """(n,) the end of the last one."""
    bars: Ints
    """(n,) how many are missing."""


def find_closures(seconds: Ints, step: int) -> Closures:
    """Runs of bars missing where most of the neighbouring weeks have one, from sorted stamps (N,).

    Both sides are neighbours, so this looks into the future: it describes data and forecasts
    nothing.
    """
    week, _ = place_in_week(seconds[0], WEEK)
    monday = FIRST_MONDAY + (int(week) - 1) * WEEK
    since_monday = seconds - monday
    # Half an hour for hours that begin at :30.
    phase = int(np.bincount(since_monday % step).argmax())
    numbers = np.unique(since_monday // step)

    per_week = slots_per_week(step)
    num_weeks = int(numbers[-1]) // per_week + 1
    present = np.zeros(num_weeks * per_week, dtype=np.int8)
    present[numbers] = 1
    is_expected = _expected_slots(present.reshape(num_weeks, per_week))
    expected = np.flatnonzero(is_expected)
    is_inside = (expected >= numbers[0]) & (expected <= numbers[-1])
    expected = expected[is_inside]

    is_missing = present[expected] == 0
    run_first, run_last = find_runs(is_missing)
    origin = monday + phase
    last_missing = origin + expected[run_last] * step
    return Closures(
        expected=len(expected),
        start=origin + expected[run_first] * step,
        end=last_missing + step,
        bars=run_last - run_first + 1,
    )


def _expected_slots(present: npt.NDArray[np.int8]) -> Bools:
    """Which slots (weeks, slots) most of the neighbouring weeks have, from 1 where there is a bar.

    The first and last weeks have fewer neighbours.
    """
    padded = np.pad(present, ((NEIGHBOUR_WEEKS, NEIGHBOUR_WEEKS), (0, 0)))
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOUR_WEEKS + 1, axis=0)
    num_present = around.sum(axis=-1) - present
    num_before = np.minimum(np.arange(len(present)), NEIGHBOUR_WEEKS)
    num_neighbours = num_before + num_before[::-1]
    return np.asarray(2 * num_present > num_neighbours[:, None])


def find_runs(flags: Bools) -> tuple[Ints, Ints]:
    """First and last index (n,) of each run of True."""
    edge = np.diff(flags.astype(np.int8), prepend=0, append=0)
    first = np.flatnonzero(edge == 1)
    after = np.flatnonzero(edge == -1)
    return first, after - 1
