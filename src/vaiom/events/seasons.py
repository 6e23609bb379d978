"""Means by time of the week: what a bar's own slot held in past weeks, and what the coming slot held.

Enters: stamps of consecutive rows of one asset, the quantities to average (NaN where a row has none), and the state
left by the rows before them. Leaves: two means per row and quantity, and the state after the last row.
Not in the paper.

A slot is a timeframe's step within the week of the stored clock. Its mean is an EWMA over the weeks in which it was
fed. The coming slot is the first after the row's own, in the order of the week, that was fed lately: after Friday's
last bar it is Sunday's first, also in the weeks after a change to or from summer time has moved both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vaiom.events.inputs import BLOCK_ROWS
from vaiom.events.scales import Floats

SPAN_WEEKS = 52
LATELY_WEEKS = 4
"""Two holidays a week apart close a slot for two weeks; a change of clocks closes it for half a year."""

_DAY = 86_400
_WEEK = 7 * _DAY
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday; weeks start on Monday
_NEVER = -(10**6)  # a week long before any that can be stored

_ALPHA = 2 / (SPAN_WEEKS + 1)

Ints = npt.NDArray[np.int64]
IntOrInts = TypeVar("IntOrInts", int, Ints)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeasonState:
    """A table of (quantity, slot of the week)."""

    level: Floats
    """The EWMA started at 0; dividing by the weight that the values have in it makes it their mean."""
    count: Ints
    last_week: Ints

    @classmethod
    def empty(cls, num_quantities: int, step: int) -> SeasonState:
        """The state before the first row, for a timeframe of `step` seconds."""
        shape = (num_quantities, _WEEK // step)
        return cls(level=np.zeros(shape), count=np.zeros(shape, np.int64), last_week=np.full(shape, _NEVER))

    @property
    def step(self) -> int:
        """Seconds of a slot."""
        return _WEEK // int(self.level.shape[1])

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit."""
        return {name: getattr(self, name).tolist() for name in ("level", "count", "last_week")}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SeasonState:
        level = np.array(value["level"], np.float64)
        count, last_week = (np.array(value[name], np.int64) for name in ("count", "last_week"))
        if not level.shape == count.shape == last_week.shape or level.ndim != 2 or not level.size:
            raise ValueError("the tables of a season have one shape")
        return cls(level=level, count=count, last_week=last_week)


@dataclass(frozen=True, kw_only=True, eq=False)
class Seasons:
    """(N, quantities), NaN where no such slot was fed."""

    own_prev: Floats
    """The mean of the row's own slot before the row."""
    coming: Floats
    """The mean, through the row, of the slot that comes next."""


def week_and_slot(seconds: IntOrInts, step: int) -> tuple[IntOrInts, IntOrInts]:
    """The week of a stamp and its slot in it."""
    week, second_of_week = divmod(seconds + _EPOCH_WEEKDAY * _DAY, _WEEK)
    return week, second_of_week // step


def run_seasons(seconds: Ints, values: Floats, state: SeasonState) -> tuple[Seasons, SeasonState]:
    """Run the recursion over rows that follow `state`; `values` is (N, quantities)."""
    own_prev, coming = np.empty_like(values), np.empty_like(values)
    for start in range(0, len(seconds), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        state = _run_block(seconds[block], values[block], state, own_prev[block], coming[block])
    return Seasons(own_prev=own_prev, coming=coming), state


def _run_block(seconds: Ints, values: Floats, state: SeasonState, own_prev: Floats, coming: Floats) -> SeasonState:
    """Fill `own_prev` and `coming`; the tables of all sweeps of the block are held at once."""
    week, slot = week_and_slot(seconds, state.step)
    # A sweep is a stretch of rows through ever later slots of one week, so that each slot is fed once at most.
    new_sweep = (np.diff(week) != 0) | (np.diff(slot) <= 0)
    sweep = np.concatenate([[0], np.cumsum(new_sweep)])
    num_sweeps = int(sweep[-1]) + 1
    sweep_week = np.empty((num_sweeps, 1, 1), np.int64)
    sweep_week[sweep, 0, 0] = week
    fed_values = np.full((num_sweeps, *state.level.shape), np.nan)
    fed_values[sweep, :, slot] = values
    fed = ~np.isnan(fed_values)

    # Layer k is the table before sweep k, layer k+1 the one after it.
    level = np.empty((num_sweeps + 1, *state.level.shape))
    level[0] = state.level
    for k in range(num_sweeps):
        level[k + 1] = np.where(fed[k], level[k] + _ALPHA * (fed_values[k] - level[k]), level[k])
    count = np.cumsum(np.concatenate([state.count[None], fed]), axis=0)
    last_week = np.maximum.accumulate(np.concatenate([state.last_week[None], np.where(fed, sweep_week, _NEVER)]))
    with np.errstate(invalid="ignore"):
        mean = level / -np.expm1(count * np.log1p(-_ALPHA))

    own_prev[:] = mean[sweep, :, slot]
    coming[:] = _coming(mean, sweep_week - last_week[:-1], sweep_week - last_week[1:], sweep, slot)
    return SeasonState(level=level[-1], count=count[-1], last_week=last_week[-1])


def _coming(mean: Floats, age_before: Ints, age_after: Ints, sweep: Ints, slot: Ints) -> Floats:
    """Of the slots after the row's own the table before the sweep is what is known, of the others the one after it."""
    num_quantities, num_slots = mean.shape[1:]
    slots = np.arange(num_slots)
    later = np.where(age_before <= LATELY_WEEKS, slots, num_slots)
    later = np.minimum.accumulate(later[:, :, ::-1], axis=2)[:, :, ::-1]
    later = np.concatenate([later, np.full((*later.shape[:2], 1), num_slots)], axis=2)
    first = np.where(age_after <= LATELY_WEEKS, slots, num_slots).min(axis=2)

    in_this_week = later[sweep, :, slot + 1]
    in_next_week = first[sweep]
    this_week = in_this_week < num_slots
    known = this_week | (in_next_week <= slot[:, None])
    layer = sweep[:, None] + ~this_week
    picked = mean[layer, np.arange(num_quantities), np.where(this_week, in_this_week, in_next_week) % num_slots]
    return np.where(known, picked, np.nan)
