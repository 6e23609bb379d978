"""What the trees see of a row: the paper's three choices of its own fields, or those and what its asset did before it.

Enters: a corpus and row numbers. Leaves: one feature vector per row, and which of its fields are categories.
Paper: Methods, "Baselines" (LightGBM: 15 discrete, 25 continuous, or 25 continuous and 3 metadata fields); it leaves
features of the context to future work. Those come from rows up to the row itself, of the same asset, in units of its
`sigma20`, the scale in which the target is measured. Dates are left out there: a tree would learn them by heart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats, Rows, clean_returns, rows_by_asset
from vaiom.events.calendar import step_seconds
from vaiom.events.corpus import Corpus
from vaiom.events.fields import CONT_FIELDS, DISC_FIELDS, EXTRA_FIELDS, META_FIELDS

SEASON_COUNT = 60  # how many earlier days, or weeks, say what is usual in a slot
CYCLES = {"day": 86_400, "week": 7 * 86_400}
_MONDAY = 4 * 86_400  # 1970-01-01 was a Thursday

_DATES = ("years_since_2000", "month", "day_of_month", "day_of_year")
_UNDATED = [name for name in CONT_FIELDS if not name.startswith(_DATES)]

Matrix = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class FeatureSet(NamedTuple):
    """A named way from rows to vectors; the last `num_categories` fields are categories."""

    fields: tuple[str, ...]
    num_categories: int
    of: Callable[[Corpus, Rows], Matrix]

    @property
    def categories(self) -> list[int]:
        """Positions of the categorical fields."""
        return list(range(len(self.fields) - self.num_categories, len(self.fields)))


def history_features(
    seconds: Ints, step: int, returns: Floats, abs_z: Floats, unit: Floats, volatility: Floats, gaps: Floats
) -> Iterator[tuple[str, Floats]]:
    """Name and column (n,) of everything that tells what an asset did up to a row, from all of its rows (n,).

    Bars are `step` seconds apart. Log returns, and their sizes in sigmas of the row before, are NaN where a row has no
    clean one; `unit` is one over the row's `sigma20`.
    """
    size = np.abs(returns)
    slots = {cycle: ((seconds - _MONDAY) % length) // step for cycle, length in CYCLES.items()}
    # The slot that the clock says comes next: that of the target if no bar is skipped.
    asked = {cycle: ((seconds + step - _MONDAY) % length) // step for cycle, length in CYCLES.items()}
    for lag in (0, 1, 2, 3, 4, 5, 11, 22, 23, 24):
        yield f"return_lag_{lag}", lagged(returns, lag) * unit
    for window in (3, 6, 12, 24, 48, 120, 480, 2_400):
        yield f"abs_return_mean_{window}", rolling_mean(size, window) * unit
    for window in (3, 12, 24, 120):
        yield f"return_mean_{window}", rolling_mean(returns, window) * unit
    yield "abs_return_max_24", rolling_max(size, 24) * unit
    for lag in (1, 3, 6, 12, 24, 120):
        yield f"relative_log_vol_lag_{lag}", lagged(volatility, lag)
    for lag in (1, 2, 3):
        yield f"gap_z_lag_{lag}", lagged(gaps, lag)
    for lag in (1, 6, 24, 120):
        yield f"seconds_since_lag_{lag}", seconds - lagged(seconds.astype(np.float64), lag)
    for cycle in CYCLES:
        for count in (1, 5, 20, 60):
            yield f"next_slot_of_{cycle}_{count}", recent_mean(size, slots[cycle], asked[cycle], count) * unit
    for cycle in CYCLES:
        yield f"next_slot_of_{cycle}_z", recent_mean(abs_z, slots[cycle], asked[cycle], SEASON_COUNT)
    for cycle in CYCLES:
        for window in (3, 12, 48):
            yield f"season_of_{cycle}_{window}", seasonal_forecast(size, slots[cycle], asked[cycle], window) * unit
    for cycle in CYCLES:
        yield f"slot_of_{cycle}", slots[cycle].astype(np.float64)


def seasonal_forecast(size: Floats, own_slot: Ints, asked_slot: Ints, window: int) -> Floats:
    """The usual size of the slot asked for, times how the last `window` rows compared with the usual of their slots."""
    usual = recent_mean(size, own_slot, own_slot, SEASON_COUNT)
    return recent_mean(size, own_slot, asked_slot, SEASON_COUNT) * rolling_mean(size / usual, window)


def lagged(values: Floats, lag: int) -> Floats:
    """The value `lag` rows earlier, NaN before the first."""
    return np.concatenate([np.full(min(lag, len(values)), np.nan), values[: max(len(values) - lag, 0)]])


def rolling_mean(values: Floats, window: int) -> Floats:
    """Mean of the finite values among the last `window` rows, NaN where there is none."""
    end = np.arange(1, len(values) + 1)
    return _mean_between(values, np.maximum(end - window, 0), end)


def rolling_max(values: Floats, window: int) -> Floats:
    """Largest finite value among the last `window` rows, NaN where there is none."""
    padded = np.concatenate([np.full(window - 1, -np.inf), np.where(np.isfinite(values), values, -np.inf)])
    largest = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return np.where(np.isfinite(largest), largest, np.nan)


def recent_mean(values: Floats, own_slot: Ints, asked_slot: Ints, count: int) -> Floats:
    """For each row the mean over the last `count` rows, up to itself, whose own slot is the slot it asks for."""
    out = np.full(len(values), np.nan)
    num_slots = int(max(own_slot.max(), asked_slot.max())) + 1
    for rows, asking in zip(_by_slot(own_slot, num_slots), _by_slot(asked_slot, num_slots), strict=True):
        end = np.searchsorted(rows, asking, side="right")
        out[asking] = _mean_between(values[rows], np.maximum(end - count, 0), end)
    return out


def _by_slot(slots: Ints, num_slots: int) -> list[Ints]:
    """The rows of each slot in order."""
    order = np.argsort(slots, kind="stable")
    return np.split(order, np.searchsorted(slots[order], np.arange(1, num_slots)))


def _mean_between(values: Floats, start: Ints, end: Ints) -> Floats:
    """Means of the finite values at positions start..end-1."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    number = counts[end] - counts[start]
    return np.where(number > 0, (sums[end] - sums[start]) / np.maximum(number, 1), np.nan)


def _history_matrix(corpus: Corpus, rows: Rows) -> Matrix:
    out = np.empty((len(rows), len(_HISTORY_FIELDS)), np.float32)
    for symbol, chosen in rows_by_asset(corpus, rows).items():
        own = rows[chosen]
        # Nothing after the last row that is asked for is even looked at.
        history = slice(corpus.asset_slices[symbol].start, int(own.max()) + 1)
        columns = {name: values[history] for name, values in corpus.columns.items()}
        returns = clean_returns(corpus, history)
        with np.errstate(divide="ignore"):
            unit = 1.0 / corpus.sigma20[history]
        unit[~np.isfinite(unit)] = np.nan
        features = history_features(
            columns["timestamp"].astype(np.int64),
            step_seconds(corpus.tokenizer.timeframe),
            returns,
            np.where(np.isfinite(returns), np.abs(columns["ret_z"]), np.nan),
            unit,
            columns["relative_log_vol"].astype(np.float64),
            columns["gap_z"].astype(np.float64),
        )
        out[chosen] = np.stack([column[own - history.start] for _, column in features], axis=1)
    return out


def _lags(corpus: Corpus, rows: Rows) -> Matrix:
    own = corpus.cont[rows][:, [CONT_FIELDS.index(name) for name in _UNDATED]]
    return np.concatenate([own, _history_matrix(corpus, rows), corpus.meta[rows]], axis=1, dtype=np.float32)


def _with_meta(corpus: Corpus, rows: Rows) -> Matrix:
    return np.concatenate([corpus.cont[rows], corpus.meta[rows]], axis=1, dtype=np.float32)


# The names alone: those of an asset that has one row.
_HISTORY_FIELDS = tuple(name for name, _ in history_features(np.zeros(1, np.int64), 1, *[np.ones(1)] * 5))
_LAG_FIELDS = (*_UNDATED, *_HISTORY_FIELDS, *META_FIELDS)
_NUM_META = len(META_FIELDS)

FEATURES = {
    "lightgbm_disc": FeatureSet(DISC_FIELDS, len(DISC_FIELDS), lambda c, rows: c.disc[rows].astype(np.float32)),
    "lightgbm_cont": FeatureSet(CONT_FIELDS, 0, lambda c, rows: c.cont[rows]),
    "lightgbm": FeatureSet((*CONT_FIELDS, *META_FIELDS), _NUM_META, _with_meta),
    "lightgbm_lags": FeatureSet(_LAG_FIELDS, _NUM_META, _lags),
    "lightgbm_extra": FeatureSet(
        (*EXTRA_FIELDS, *_LAG_FIELDS),
        _NUM_META,
        lambda c, rows: np.concatenate([c.extra[rows], _lags(c, rows)], axis=1),
    ),
}
"""By baseline; the last also sees the corpus's extra fields, some of which tell of the other assets."""
