"""Returns, gaps and their EWMA scales: one recursion for a whole history, for new bars, and for one live bar.

Enters: Open and Close of consecutive bars of one asset, and the state left by the bars before them.
Leaves: float64 series through each row, and the state after the last. Feeding a history in pieces gives the
same bits as feeding it at once, because a state is replayed through the same recursion.
Paper: Methods, "Continuous dynamic features" and "Return Bucket Construction".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

SHORT_SPAN = 20
LONG_SPAN = 120
SCALE_FLOOR = 1e-8
FEW_VALUES = 2_000
"""A series no longer than this is averaged value by value."""
MAX_LOG_MOVE = 1.0

Floats = npt.NDArray[np.float64]
MOST_MISSING = 10_000_000
"""Rows without a value in a row: more than any history has."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class EwmaState:
    """Where an EWMA stands: its mean (None before the first value) and how many rows without a value came since."""

    mean: float | None = None
    num_missing: int = 0


@dataclass(frozen=True, kw_only=True)
class ScaleState:
    """All that the recursion remembers of an asset's past."""

    close: float = math.nan
    num_clean: int = 0
    ret20: EwmaState = EwmaState()
    ret120: EwmaState = EwmaState()
    gap20: EwmaState = EwmaState()

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit; a missing close is null."""
        ewmas = {name: getattr(self, name) for name in ("ret20", "ret120", "gap20")}
        return {
            "close": None if math.isnan(self.close) else self.close,
            "num_clean": self.num_clean,
            **{name: [ewma.mean, ewma.num_missing] for name, ewma in ewmas.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ScaleState:
        ewmas = {}
        for name in ("ret20", "ret120", "gap20"):
            mean, num_missing = value[name]
            if mean is not None and not 0 <= float(mean) < math.inf:
                raise ValueError(f"{name} is a mean of squares")
            if not 0 <= int(num_missing) < MOST_MISSING:
                raise ValueError(f"{name} lacks {num_missing} values")
            ewmas[name] = EwmaState(mean=None if mean is None else float(mean), num_missing=int(num_missing))
        close = math.nan if value["close"] is None else float(value["close"])
        if not 0 <= int(value["num_clean"]) < 2**62:
            raise ValueError("num_clean is no count")
        return cls(close=close, num_clean=int(value["num_clean"]), **ewmas)


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Series of one asset, one value per row, float64; undefined values are NaN."""

    missing: Bools
    log_ret: Floats
    log_gap: Floats
    clean: Bools
    """The row's return entered the return scales."""
    num_clean_prev: npt.NDArray[np.int64]
    sigma20: Floats
    sigma20_prev: Floats
    sigma120: Floats
    sigma_gap20: Floats
    sigma_gap20_prev: Floats

    @property
    def ret_z(self) -> Floats:
        return self.log_ret / self.sigma20_prev

    @property
    def gap_z(self) -> Floats:
        return self.log_gap / self.sigma_gap20_prev

    @property
    def relative_log_vol(self) -> Floats:
        return np.log(self.sigma20) - np.log(self.sigma120)


def ewma(values: Floats, span: int, state: EwmaState) -> tuple[Floats, EwmaState]:
    """The paper's EWMA through each row: pandas' `ewm(span, adjust=False).mean()`; NaN values only age the past."""
    if len(values) <= FEW_VALUES:
        return _ewma_of_few(values, span, state)
    replay = [] if state.mean is None else [state.mean, *[math.nan] * state.num_missing]
    series = pl.Series(np.concatenate([replay, values]), nan_to_null=True)
    # Polars leaves null where the value is null, pandas carries the mean on.
    smooth = series.ewm_mean(span=span, adjust=False, ignore_nulls=False)
    if series.null_count():
        smooth = smooth.forward_fill()
    num_missing = 0
    if series.null_count() < len(series) and series[-1] is None:
        num_missing = int(series.is_not_null().reverse().arg_max() or 0)
    after = EwmaState(mean=smooth[-1] if len(smooth) else None, num_missing=num_missing)
    return smooth.to_numpy()[len(replay) :], after


def ewma_step(value: float, span: int, state: EwmaState) -> EwmaState:
    """One value more, in the order of operations of Polars: the same bits."""
    if math.isnan(value):
        return state if state.mean is None else EwmaState(mean=state.mean, num_missing=state.num_missing + 1)
    if state.mean is None:
        return EwmaState(mean=value)
    alpha = 2 / (span + 1)
    return EwmaState(mean=state.mean + (value - state.mean) * _weight(alpha, state.num_missing))


def _ewma_of_few(values: Floats, span: int, state: EwmaState) -> tuple[Floats, EwmaState]:
    """`ewma_step` after `ewma_step`: short series cost less than a call of a dataframe library and its threads."""
    alpha = 2 / (span + 1)
    usual = _weight(alpha, 0)
    mean, num_missing = state.mean, state.num_missing
    out = []
    for value in values.tolist():
        if mean is None:
            mean = None if value != value else value
        elif value != value:
            num_missing += 1
        else:
            mean += (value - mean) * (_weight(alpha, num_missing) if num_missing else usual)
            num_missing = 0
        out.append(math.nan if mean is None else mean)
    return np.array(out, np.float64), EwmaState(mean=mean, num_missing=num_missing)


def _weight(alpha: float, num_missing: int) -> float:
    """Of a value after so many rows without one: the past has aged meanwhile."""
    old = 1.0
    for _ in range(num_missing + 1):
        old *= 1 - alpha
    return alpha / (old + alpha)


def run_scales(open_: Floats, close: Floats, state: ScaleState | None = None) -> tuple[Scales, ScaleState]:
    """Run the recursion over consecutive bars that follow `state`; prices may be NaN or non-positive."""
    state = state or ScaleState()
    # A non-positive price is a missing one: it never makes an infinite return.
    close = np.where(close > 0, close, math.nan)
    open_ = np.where(open_ > 0, open_, math.nan)
    close_prev = _shift(close, state.close)
    missing = np.isnan(open_) | np.isnan(close)
    log_ret = np.log(close / close_prev)
    log_gap = np.log(open_ / close_prev)

    with np.errstate(invalid="ignore"):
        clean = ~missing & (log_ret != 0) & (np.abs(log_ret) <= MAX_LOG_MOVE)
        clean_gap = ~missing & (np.abs(log_gap) <= MAX_LOG_MOVE)
    squared_ret = np.where(clean, log_ret, math.nan) ** 2
    squared_gap = np.where(clean_gap, log_gap, math.nan) ** 2
    mean20, ret20 = ewma(squared_ret, SHORT_SPAN, state.ret20)
    mean120, ret120 = ewma(squared_ret, LONG_SPAN, state.ret120)
    mean_gap20, gap20 = ewma(squared_gap, SHORT_SPAN, state.gap20)
    sigma20, sigma_gap20 = _floored_root(mean20), _floored_root(mean_gap20)

    num_clean = state.num_clean + np.cumsum(clean)
    scales = Scales(
        missing=missing,
        log_ret=log_ret,
        log_gap=log_gap,
        clean=clean,
        num_clean_prev=num_clean - clean,
        sigma20=sigma20,
        sigma20_prev=_shift(sigma20, _sigma_of(state.ret20)),
        sigma120=_floored_root(mean120),
        sigma_gap20=sigma_gap20,
        sigma_gap20_prev=_shift(sigma_gap20, _sigma_of(state.gap20)),
    )
    if not len(close):
        return scales, state
    after = ScaleState(close=float(close[-1]), num_clean=int(num_clean[-1]), ret20=ret20, ret120=ret120, gap20=gap20)
    return scales, after


def _floored_root(mean_square: Floats) -> Floats:
    return np.maximum(SCALE_FLOOR, np.sqrt(mean_square))  # NaN stays NaN


def _sigma_of(state: EwmaState) -> float:
    return math.nan if state.mean is None else float(_floored_root(np.array([state.mean]))[0])


def _shift(values: Floats, first: float) -> Floats:
    return np.concatenate([[first], values[:-1]]) if len(values) else values
