"""The event definitions once more, in plain pandas: what benchmarks race against and tests compare
with.

Enters: {symbol: bars} as pandas frames. Leaves: float64 features, masks and targets per asset, the
(N, 25) float32 array of continuous inputs, the Train fit sets and the three edge sets.
Paper: Methods ("Market Data, Price Convention and Bar Construction", "Return Bucket Construction")
and Appendix B.

It shares no code with the product, so an error must be made twice to go unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]

FLOOR = 1e-8
EXCESSIVE = 1.0
MIN_CLEAN_RETURNS = 20
TAIL_CUTOFFS = (2.0, 3.0, 5.0, 8.0)
INTERIOR_QUANTILES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
REGIME_QUANTILES = (0.2, 0.4, 0.6, 0.8)
TRAIN_END = pd.Timestamp("2024-01-01")
CALENDAR_PERIODS = {  # name: (attribute of a pandas stamp, first value, period)
    "month": ("month", 1, 12),
    "day_of_month": ("day", 1, 31),
    "day_of_week": ("day_of_week", 0, 7),
    "day_of_year": ("day_of_year", 1, 366),
    "hour": ("hour", 0, 24),
    "minute": ("minute", 0, 60),
    "second": ("second", 0, 60),
}
MASK_FIELDS = [
    "mask_missing",
    "mask_stale",
    "mask_bad_data",
    "mask_insufficient_history",
    "mask_scale_zero",
    "mask_any",
]
CONT_FIELDS = [
    "ret_z",
    "gap_z",
    "relative_log_vol",
    "sigma_through_t",
    "years_since_2000_norm",
    *(f"{name}_{wave}" for name in CALENDAR_PERIODS for wave in ("sin", "cos")),
    *MASK_FIELDS,
]


def features(bars: pd.DataFrame) -> pd.DataFrame:
    """One asset's row features and masks, information through the row itself."""
    opened = bars["Open"].where(bars["Open"] > 0)
    close = bars["Close"].where(bars["Close"] > 0)
    log_ret = np.log(close / close.shift())
    log_gap = np.log(opened / close.shift())

    missing = opened.isna() | close.isna()
    stale = log_ret == 0
    wild_ret = log_ret.abs() > EXCESSIVE
    wild_gap = log_gap.abs() > EXCESSIVE
    clean_ret = log_ret.mask(missing | stale | wild_ret)
    clean_gap = log_gap.mask(missing | wild_gap)

    sigma20 = _ewma_scale(clean_ret, 20)
    sigma120 = _ewma_scale(clean_ret, 120)
    sigma_gap20 = _ewma_scale(clean_gap, 20)
    sigma20_prev = sigma20.shift()
    short_history = clean_ret.notna().cumsum().shift(fill_value=0) < MIN_CLEAN_RETURNS
    # Written as a negation, so that an undefined scale counts as zero.
    scale_zero = ~(sigma20_prev > FLOOR)

    return pd.DataFrame(
        {
            "Datetime": bars["Datetime"],
            "log_ret": log_ret,
            "log_gap": log_gap,
            "sigma20": sigma20,
            "sigma120": sigma120,
            "sigma_gap20": sigma_gap20,
            "ret_z": log_ret / sigma20_prev,
            "gap_z": log_gap / sigma_gap20.shift(),
            "relative_log_vol": np.log(sigma20) - np.log(sigma120),
            "sigma_through_t": sigma20,
            "mask_missing": missing,
            "mask_stale": stale,
            "mask_bad_data": wild_ret | wild_gap,
            "mask_insufficient_history": short_history,
            "mask_scale_zero": scale_zero,
            "mask_any": missing | stale | wild_ret | wild_gap | short_history | scale_zero,
        }
    )


def calendar(stamps: pd.Series[Any]) -> pd.DataFrame:
    """The clock fields of the stored timestamps, as the model reads them."""
    columns = {"years_since_2000_norm": (stamps.dt.year - 2000).clip(0, 63) / 63}
    for name, (attribute, first, period) in CALENDAR_PERIODS.items():
        angle = 2 * np.pi * (getattr(stamps.dt, attribute) - first) / period
        columns[f"{name}_sin"] = np.sin(angle)
        columns[f"{name}_cos"] = np.cos(angle)
    return pd.DataFrame(columns)


def cont_of_bars(bars: Mapping[str, pd.DataFrame]) -> npt.NDArray[np.float32]:
    """The continuous inputs of all assets in sorted-symbol order, (N, 25), non-finite values as
    zero.
    """
    parts = []
    for symbol in sorted(bars):
        frame = bars[symbol]
        fields = pd.concat([features(frame), calendar(frame["Datetime"])], axis=1)[CONT_FIELDS]
        parts.append(
            np.nan_to_num(fields.to_numpy(np.float32), copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        )
    return np.concatenate(parts)


def targets(rows: pd.DataFrame) -> pd.DataFrame:
    """What the rows of `features` must predict: next values in units known at the row, and whether
    each is valid.
    """
    following = rows[["Datetime", "log_ret", "log_gap", "relative_log_vol"]].shift(-1)
    missing_next = rows["mask_missing"].shift(-1, fill_value=True)
    log_ret_next = following["log_ret"]
    log_gap_next = following["log_gap"]
    # A comparison with NaN is False, so the last row and every undefined return end up bad.
    ret_good = (log_ret_next.abs() <= EXCESSIVE) & (log_ret_next != 0) & ~missing_next
    gap_good = (log_gap_next.abs() <= EXCESSIVE) & ~missing_next
    ret_z_next = log_ret_next / rows["sigma20"]
    gap_z_next = log_gap_next / rows["sigma_gap20"]
    return pd.DataFrame(
        {
            "target_timestamp": following["Datetime"],
            "log_ret_next": log_ret_next,
            "ret_z_next": ret_z_next,
            "gap_z_next": gap_z_next,
            "relative_log_vol_next": following["relative_log_vol"],
            "target_bad": ~ret_good,
            "valid_return": ret_good & np.isfinite(ret_z_next),
            "valid_gap": gap_good & np.isfinite(gap_z_next),
            "valid_vol_regime": np.isfinite(following["relative_log_vol"]),
        }
    )


def events(bars: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Features and targets side by side, per asset in sorted-symbol order."""
    rows = {symbol: features(bars[symbol]) for symbol in sorted(bars)}
    return {symbol: pd.concat([frame, targets(frame)], axis=1) for symbol, frame in rows.items()}


def fit_sets(
    made: Mapping[str, pd.DataFrame], train_end: pd.Timestamp = TRAIN_END
) -> dict[str, Floats]:
    """The Train values each edge set is fitted on: unmasked rows whose own target is valid."""
    values = {"return": "ret_z_next", "gap": "gap_z_next", "vol_regime": "relative_log_vol_next"}
    train = pd.concat(
        [
            frame[(frame["target_timestamp"] < train_end) & ~frame["mask_any"]]
            for frame in made.values()
        ],
        ignore_index=True,
    )
    return {
        task: train.loc[train[f"valid_{task}"], column].to_numpy()
        for task, column in values.items()
    }


def fit_edges(fitted_on: Mapping[str, Floats]) -> dict[str, Floats]:
    """The return, gap and vol_regime edges, with the infinities."""
    regimes = np.quantile(fitted_on["vol_regime"], REGIME_QUANTILES)
    return {
        "return": _signed_edges(fitted_on["return"]),
        "gap": _signed_edges(fitted_on["gap"]),
        "vol_regime": np.concatenate([[-np.inf], regimes, [np.inf]]),
    }


def bucket(z: pd.Series[Any], valid: pd.Series[Any], edges: Floats) -> npt.NDArray[np.int64]:
    """Bucket ids from 1, a value on an edge belonging to the bucket below it; 0 where not valid."""
    return np.where(valid, np.searchsorted(edges[1:-1], z, side="left") + 1, 0)


def endpoints(
    frame: pd.DataFrame, start: pd.Timestamp | None, end: pd.Timestamp, context: int = 512
) -> npt.NDArray[np.int64]:
    """Rows of one asset's events that are scored: enough history, unmasked, a valid return in
    [start, end).
    """
    due = frame["target_timestamp"]
    inside = (due < end) if start is None else (due >= start) & (due < end)
    usable = inside & frame["valid_return"] & ~frame["mask_any"]
    rows = np.flatnonzero(usable)
    return rows[rows >= context - 1]


def _ewma_scale(clean: pd.Series[Any], span: int) -> pd.Series[Any]:
    """sigma20: the root of the exponential mean of squares, floored."""
    variance = (clean**2).ewm(span=span, adjust=False, min_periods=1, ignore_na=False).mean()
    return np.sqrt(variance).clip(lower=FLOOR)


def _signed_edges(z: Floats) -> Floats:
    """Quantiles between the fixed tails, each once, with the infinities."""
    inside = z[(z > -TAIL_CUTOFFS[0]) & (z < TAIL_CUTOFFS[0])]
    interior = np.unique(np.quantile(inside, INTERIOR_QUANTILES))
    tails = np.array(TAIL_CUTOFFS)
    return np.concatenate([[-np.inf], -tails[::-1], interior, tails, [np.inf]])
