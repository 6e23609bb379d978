"""What the context-aggregated trees see: one row and what its asset did before it, in the row's own scale.

Enters: a corpus and row numbers. Leaves: the continuous fields of the row without its date, which a tree would learn by
heart; recent returns; mean absolute and mean
signed returns over several windows; the largest of a day; earlier volatility ratios and gaps; what the slot of day and
of week that the clock says comes next did on earlier days and weeks, also scaled by how the last rows compared with the
usual of their slots; time since earlier bars; the slots; metadata. Returns are divided by `sigma20` of the row, the
scale in which the target is measured. Everything comes from rows up to the row itself, of the same asset; a second set
adds the corpus's extra fields, some of which speak of the other assets at the same stamp.
Not in the paper, which leaves such a baseline to future work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Rows, asset_parts
from vaiom.baselines.features import FeatureSet, Matrix
from vaiom.baselines.garch import clean_returns
from vaiom.events.calendar import step_seconds
from vaiom.events.corpus import Corpus
from vaiom.events.schema import CONT_FIELDS, EXTRA_FIELDS, META_FIELDS

RETURN_LAGS = (0, 1, 2, 3, 4, 5, 11, 22, 23, 24)
WINDOWS = (3, 6, 12, 24, 48, 120, 480, 2_400)
TREND_WINDOWS = (3, 12, 24, 120)
VOLATILITY_LAGS = (1, 3, 6, 12, 24, 120)
GAP_LAGS = (1, 2, 3)
TIME_LAGS = (1, 6, 24, 120)
SLOT_COUNTS = (1, 5, 20, 60)  # how many earlier days, or weeks, of the slot are averaged
SEASON_COUNT = 60
SEASON_WINDOWS = (3, 12, 48)
LARGEST_WINDOW = 24
DAY, WEEK = 86_400, 7 * 86_400
_MONDAY = 4 * DAY  # 1970-01-01 was a Thursday

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_DATES = ("years_since_2000", "month", "day_of_month", "day_of_year")
_UNDATED = tuple(name for name in CONT_FIELDS if not name.startswith(_DATES))
_HISTORY_FIELDS = (
    *(f"return_lag_{lag}" for lag in RETURN_LAGS),
    *(f"abs_return_mean_{window}" for window in WINDOWS),
    *(f"return_mean_{window}" for window in TREND_WINDOWS),
    f"abs_return_max_{LARGEST_WINDOW}",
    *(f"relative_log_vol_lag_{lag}" for lag in VOLATILITY_LAGS),
    *(f"gap_z_lag_{lag}" for lag in GAP_LAGS),
    *(f"seconds_since_lag_{lag}" for lag in TIME_LAGS),
    *(f"next_slot_of_{cycle}_{count}" for cycle in ("day", "week") for count in SLOT_COUNTS),
    *(f"next_slot_of_{cycle}_z" for cycle in ("day", "week")),
    *(f"season_of_{cycle}_{window}" for cycle in ("day", "week") for window in SEASON_WINDOWS),
    "slot_of_day",
    "slot_of_week",
)


def _lags(corpus: Corpus, rows: Rows) -> Matrix:
    own = corpus.cont[rows][:, [CONT_FIELDS.index(name) for name in _UNDATED]]
    return np.concatenate([own, history_features(corpus, rows), corpus.meta[rows]], axis=1, dtype=np.float32)


def _lags_and_extra(corpus: Corpus, rows: Rows) -> Matrix:
    return np.concatenate([corpus.extra[rows], _lags(corpus, rows)], axis=1)


def history_features(corpus: Corpus, rows: Rows) -> Matrix:
    """(n, F) of what each row's asset did up to it."""
    out = np.empty((len(rows), len(_HISTORY_FIELDS)), np.float32)
    for symbol, chosen in asset_parts(corpus, rows).items():
        own = rows[chosen]
        # Nothing after the last row that is asked for is even looked at.
        history = slice(corpus.asset_slices[symbol].start, int(own.max()) + 1)
        columns = asset_features(corpus, history)
        at = own - history.start
        out[chosen] = np.stack([column[at] for column in columns], axis=1)
    return out


def asset_features(corpus: Corpus, history: slice) -> list[Floats]:
    """Columns (n,) over the rows of one asset from its first: all but the row's own fields."""
    seconds = corpus.columns["timestamp"][history].astype(np.int64)
    returns = clean_returns(corpus, history)
    volatility = corpus.columns["relative_log_vol"][history].astype(np.float64)
    gaps = corpus.columns["gap_z"][history].astype(np.float64)
    size = np.abs(returns)
    size_z = np.where(np.isfinite(returns), np.abs(corpus.columns["ret_z"][history]), np.nan)
    with np.errstate(divide="ignore"):
        unit = 1.0 / corpus.sigma20[history]
    unit[~np.isfinite(unit)] = np.nan
    step = step_seconds(corpus.tokenizer.timeframe)
    slots = [((seconds - _MONDAY) % cycle) // step for cycle in (DAY, WEEK)]
    next_slots = [((seconds + step - _MONDAY) % cycle) // step for cycle in (DAY, WEEK)]
    return [
        *(lagged(returns, lag) * unit for lag in RETURN_LAGS),
        *(rolling_mean(size, window) * unit for window in WINDOWS),
        *(rolling_mean(returns, window) * unit for window in TREND_WINDOWS),
        rolling_max(size, LARGEST_WINDOW) * unit,
        *(lagged(volatility, lag) for lag in VOLATILITY_LAGS),
        *(lagged(gaps, lag) for lag in GAP_LAGS),
        *(seconds - lagged(seconds.astype(np.float64), lag) for lag in TIME_LAGS),
        *(
            recent_mean(size, own, asked, count) * unit
            for own, asked in zip(slots, next_slots, strict=True)
            for count in SLOT_COUNTS
        ),
        *(recent_mean(size_z, own, asked, SEASON_COUNT) for own, asked in zip(slots, next_slots, strict=True)),
        *(
            seasonal_forecast(size, own, asked, window) * unit
            for own, asked in zip(slots, next_slots, strict=True)
            for window in SEASON_WINDOWS
        ),
        *(slot.astype(np.float64) for slot in slots),
    ]


def seasonal_forecast(size: Floats, own_slot: Ints, asked_slot: Ints, window: int) -> Floats:
    """The usual size of the slot asked for, times how the last `window` rows compared with the usual of their slots."""
    usual = recent_mean(size, own_slot, own_slot, SEASON_COUNT)
    return recent_mean(size, own_slot, asked_slot, SEASON_COUNT) * rolling_mean(size / usual, window)


def lagged(values: Floats, lag: int) -> Floats:
    """The value `lag` rows earlier, NaN before the first."""
    return np.concatenate([np.full(min(lag, len(values)), np.nan), values[: max(len(values) - lag, 0)]])


def rolling_mean(values: Floats, window: int) -> Floats:
    """Mean of the finite values among the last `window` rows, NaN where there is none."""
    return _mean_between(values, np.maximum(np.arange(1, len(values) + 1) - window, 0), np.arange(1, len(values) + 1))


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


_FIELDS = (*_UNDATED, *_HISTORY_FIELDS, *META_FIELDS)
LAGS = FeatureSet(fields=_FIELDS, num_categories=len(META_FIELDS), of=_lags)
LAGS_AND_EXTRA = FeatureSet(fields=(*EXTRA_FIELDS, *_FIELDS), num_categories=len(META_FIELDS), of=_lags_and_extra)
