"""One live bar through the recursions that build a corpus, number by number: what a dataframe costs is saved.

Enters: a checked bar and the state before it. Leaves: the values that a corpus stores of its row, and the state after
it, all to the bit those of `events.rows.rows_of` and `events.extra.own_fields`. Logarithms are NumPy's here too,
because other libraries round some of them otherwise.
Paper: Methods, "Continuous dynamic features" and "Data-quality masks".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaiom.events.extra import (
    LONG_RANGE_SPAN,
    LONGEST_SPAN,
    SLOT_LIMIT,
    AssetState,
    ExtraState,
    MeanState,
)
from vaiom.events.inputs import BAD_GAP, BAD_RETURN, EXTRA_LIMIT, MASK_BITS
from vaiom.events.masks import MIN_CLEAN_RETURNS
from vaiom.events.ranges import PARKINSON
from vaiom.events.scales import LONG_SPAN, MAX_LOG_MOVE, SCALE_FLOOR, SHORT_SPAN, EwmaState, ScaleState, ewma_step
from vaiom.events.seasons import LATELY_WEEKS, SPAN_WEEKS, SeasonState, week_and_slot

_NAN = math.nan
_BITS = {name: int(bit) for name, bit in MASK_BITS.items()}
_BAD_RETURN, _BAD_GAP = int(BAD_RETURN), int(BAD_GAP)
_LOG_KEPT = {span: np.log1p(-2 / (span + 1)) for span in (SHORT_SPAN, LONG_SPAN, LONG_RANGE_SPAN, LONGEST_SPAN)}
_SLOT_ALPHA = 2 / (SPAN_WEEKS + 1)
_LOG_SLOT_KEPT = np.log1p(-_SLOT_ALPHA)

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveBar:
    """A bar as plain numbers; NaN where a price or the volume is missing."""

    seconds: int
    open: float
    high: float
    low: float
    close: float
    volume: float


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row's values before they are stored."""

    ret_z: float
    gap_z: float
    relative_log_vol: float
    sigma20: float
    log_ret: float
    clean: bool
    flags: int


def live_row(bar: LiveBar, state: ScaleState) -> tuple[LiveRow, ScaleState]:
    """`events.rows.rows_of` for one bar."""
    close = bar.close if bar.close > 0 else _NAN
    open_ = bar.open if bar.open > 0 else _NAN
    missing = math.isnan(open_) or math.isnan(close)
    log_ret, log_gap = _log(close / state.close), _log(open_ / state.close)
    clean = not missing and log_ret != 0 and abs(log_ret) <= MAX_LOG_MOVE
    clean_gap = not missing and abs(log_gap) <= MAX_LOG_MOVE
    squared_ret = log_ret * log_ret if clean else _NAN
    ret20 = ewma_step(squared_ret, SHORT_SPAN, state.ret20)
    ret120 = ewma_step(squared_ret, LONG_SPAN, state.ret120)
    gap20 = ewma_step(log_gap * log_gap if clean_gap else _NAN, SHORT_SPAN, state.gap20)
    sigma20_prev, sigma20 = _sigma(state.ret20), _sigma(ret20)
    masks = {
        "missing": missing,
        "stale": log_ret == 0,
        "bad_data": abs(log_ret) > MAX_LOG_MOVE or abs(log_gap) > MAX_LOG_MOVE,
        "insufficient_history": state.num_clean < MIN_CLEAN_RETURNS,
        "scale_zero": not sigma20_prev > SCALE_FLOOR,
    }
    flags = sum(_BITS[name] for name, hit in masks.items() if hit)
    flags |= (0 if clean else _BAD_RETURN) | (0 if clean_gap else _BAD_GAP)
    row = LiveRow(
        ret_z=log_ret / sigma20_prev,
        gap_z=log_gap / _sigma(state.gap20),
        relative_log_vol=_log(sigma20) - _log(_sigma(ret120)),
        sigma20=sigma20,
        log_ret=log_ret,
        clean=clean,
        flags=flags,
    )
    num_clean = state.num_clean + clean
    return row, ScaleState(close=close, num_clean=num_clean, ret20=ret20, ret120=ret120, gap20=gap20)


def stored_row(bar: LiveBar, row: LiveRow, inner_edges: dict[str, Sequence[float]]) -> Values:
    """What a corpus stores of a row, buckets included."""
    return {
        "ret_z": _finite(row.ret_z),
        "gap_z": _finite(row.gap_z),
        "relative_log_vol": _finite(row.relative_log_vol),
        "sigma20": _finite(row.sigma20),
        "timestamp": bar.seconds,
        "log_ret": row.log_ret,
        "flags": row.flags,
        "return_bucket": _bucket(inner_edges["return"], row.ret_z),
        "gap_bucket": _bucket(inner_edges["gap"], row.gap_z),
        "vol_regime": _bucket(inner_edges["vol_regime"], row.relative_log_vol),
    }


def live_asset_row(bar: LiveBar, state: AssetState) -> tuple[LiveRow, Values, AssetState]:
    """`events.extra.asset_rows` for one bar."""
    row, scales = live_row(bar, state.scales)
    own, extra = _own_values(bar, row, state.extra)
    return row, own, AssetState(scales=scales, extra=extra)


def _own_values(bar: LiveBar, row: LiveRow, state: ExtraState) -> tuple[Values, ExtraState]:
    log_range, location = _range_of(bar)
    ret = row.log_ret if row.clean else _NAN
    range_variance = log_range * log_range / PARKINSON if log_range > 0 else _NAN
    ret_variance = ret * ret
    volume = bar.volume if 0 < bar.volume < math.inf else _NAN
    range20 = _mean(range_variance, SHORT_SPAN, state.range20)
    range120 = _mean(range_variance, LONG_SPAN, state.range120)
    range480 = _mean(range_variance, LONG_RANGE_SPAN, state.range480)
    ret120 = _mean(ret_variance, LONG_SPAN, state.ret120)
    ret2400 = _mean(ret_variance, LONGEST_SPAN, state.ret2400)
    volume120 = _mean(volume, LONG_SPAN, state.volume120)

    range_before, ret_before, volume_before = (
        _level(mean, LONG_SPAN) for mean in (state.range120, state.ret120, state.volume120)
    )
    activity = _ratio(volume, volume_before)
    ratios = (_ratio(ret_variance, ret_before), _ratio(range_variance, range_before), activity)
    own, coming, season = _season(bar.seconds, [SLOT_LIMIT if r > SLOT_LIMIT else r for r in ratios], state.season)

    log_sigma20 = _log(row.sigma20)
    slot_sigma = _at_least_floor(math.sqrt(own[0] * ret_before))
    values = {
        "range_z": log_range / state.sigma20,
        "close_location": location,
        "range_vol20": _log_root(_level(range20, SHORT_SPAN)) - log_sigma20,
        "range_vol480": _log_root(_level(range480, LONG_RANGE_SPAN)) - log_sigma20,
        "long_vol": log_sigma20 - _log_root(_level(ret2400, LONGEST_SPAN)),
        "activity": _log(activity),
        "slot_activity": _log(_ratio(activity, own[2])),
        "slot_surprise": ret / slot_sigma,
        "next_slot_vol": _log_root(coming[0] * _level(ret120, LONG_SPAN)) - log_sigma20,
        "next_slot_range": _log_root(coming[1] * _level(range120, LONG_SPAN)) - log_sigma20,
    }
    after = ExtraState(
        season=season,
        sigma20=row.sigma20,
        range20=range20,
        range120=range120,
        range480=range480,
        ret120=ret120,
        ret2400=ret2400,
        volume120=volume120,
    )
    return {name: min(max(_finite(value), -EXTRA_LIMIT), EXTRA_LIMIT) for name, value in values.items()}, after


def _range_of(bar: LiveBar) -> tuple[float, float]:
    """`events.ranges.ranges_of` for one bar: the log range and where in it the bar closed."""
    high, low = bar.high, bar.low
    encloses = low > 0 and low <= bar.open and low <= bar.close and bar.open <= high and bar.close <= high
    log_range = _log(high / low) if encloses else _NAN
    if not log_range <= MAX_LOG_MOVE:
        return _NAN, _NAN
    return log_range, (2 * bar.close - high - low) / (high - low) if high > low else 0.0


def _season(seconds: int, values: Sequence[float], state: SeasonState) -> tuple[list[float], list[float], SeasonState]:
    """`events.seasons.run_seasons` for one row: means of its own slot before it and of the coming slot, per value."""
    week, slot = week_and_slot(seconds, state.step)
    level, count, last_week = state.level.copy(), state.count.copy(), state.last_week.copy()
    own, coming = [], []
    for quantity, value in enumerate(values):
        own.append(_slot_mean(state, quantity, slot))
        if not math.isnan(value):
            before = level[quantity, slot]
            level[quantity, slot] = before + _SLOT_ALPHA * (value - before)
            count[quantity, slot] += 1
            last_week[quantity, slot] = max(last_week[quantity, slot], week)
    after = SeasonState(level=level, count=count, last_week=last_week)
    for quantity in range(len(values)):
        fed_lately = week - last_week[quantity] <= LATELY_WEEKS
        later, earlier = fed_lately[slot + 1 :], fed_lately[: slot + 1]
        # argmax finds the first; where there is none the slot is not to be used.
        if later.any():
            coming.append(_slot_mean(after, quantity, slot + 1 + int(later.argmax())))
        elif earlier.any():
            coming.append(_slot_mean(after, quantity, int(earlier.argmax())))
        else:
            coming.append(_NAN)
    return own, coming, after


def _slot_mean(state: SeasonState, quantity: int, slot: int) -> float:
    count = int(state.count[quantity, slot])
    return float(state.level[quantity, slot] / -np.expm1(count * _LOG_SLOT_KEPT)) if count else _NAN


def _mean(value: float, span: int, state: MeanState) -> MeanState:
    """`events.extra.running_mean` for one value."""
    if math.isnan(value):
        return state
    mean = ewma_step(value, span, EwmaState(mean=state.level)).mean
    assert mean is not None
    return MeanState(level=mean, count=state.count + 1)


def _level(state: MeanState, span: int) -> float:
    return float(state.level / -np.expm1(state.count * _LOG_KEPT[span])) if state.count else _NAN


def _sigma(state: EwmaState) -> float:
    return _NAN if state.mean is None else _at_least_floor(math.sqrt(state.mean))


def _at_least_floor(value: float) -> float:
    return SCALE_FLOOR if value < SCALE_FLOOR else value  # NaN stays NaN


def _log_root(mean_square: float) -> float:
    return _log(_at_least_floor(math.sqrt(mean_square)))


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -math.inf if value == 0 else _NAN


def _ratio(value: float, of: float) -> float:
    return value / of if of else _NAN if value == 0 else value * math.inf


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _bucket(inner_edges: Sequence[float], value: float) -> int:
    return bisect_left(inner_edges, value) + 1 if math.isfinite(value) else 0
