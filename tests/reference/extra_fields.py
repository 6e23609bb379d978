"""The extra fields once more, as slowly and as plainly as they are defined; nothing is shared with
the product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from benchmarks import events_pandas

WEEK = pd.Timedelta(days=7)
FLOOR = 1e-8


def own_fields(bars: pd.DataFrame, step: pd.Timedelta) -> pd.DataFrame:
    """One asset's own fields, float64, 0 where undefined."""
    features = events_pandas.features(bars)
    log_ret, sigma20 = features["log_ret"], features["sigma20"]
    missing = features["mask_missing"]
    ret = log_ret.where(~missing & (log_ret != 0) & (log_ret.abs() <= 1))

    believed = (bars["Low"] > 0) & (bars["High"] >= bars["Open"]) & (bars["High"] >= bars["Close"])
    believed &= (
        (bars["Low"] <= bars["Open"])
        & (bars["Low"] <= bars["Close"])
        & (bars["High"] / bars["Low"] <= math.e)
    )
    span = np.log(bars["High"].where(believed) / bars["Low"])
    middle = (bars["High"] + bars["Low"]) / 2
    half = (bars["High"] - bars["Low"]).where(believed) / 2
    variance = span.where(span > 0) ** 2 / (4 * math.log(2))
    volume = bars["Volume"].where(bars["Volume"] > 0)

    range120, ret120, volume120 = (_mean(values, 120) for values in (variance, ret**2, volume))
    ratios = {
        "ret": (ret**2 / ret120.shift()).clip(upper=25),
        "range": (variance / range120.shift()).clip(upper=25),
        "volume": (volume / volume120.shift()).clip(upper=25),
    }
    own, coming = zip(
        *(_slots(bars["Datetime"], ratio, step) for ratio in ratios.values()), strict=True
    )
    own_of, coming_of = dict(zip(ratios, own, strict=True)), dict(zip(ratios, coming, strict=True))
    log_sigma20 = np.log(sigma20)
    fields = {
        "range_z": span / sigma20.shift(),
        "close_location": ((bars["Close"] - middle) / half).where(half != 0),
        "range_vol20": np.log(_root(_mean(variance, 20))) - log_sigma20,
        "range_vol480": np.log(_root(_mean(variance, 480))) - log_sigma20,
        "long_vol": log_sigma20 - np.log(_root(_mean(ret**2, 2400))),
        "activity": np.log(volume / volume120.shift()),
        "slot_activity": np.log(volume / volume120.shift() / own_of["volume"]),
        "slot_surprise": ret / _root(own_of["ret"] * ret120.shift()),
        "next_slot_vol": np.log(_root(coming_of["ret"] * ret120)) - log_sigma20,
        "next_slot_range": np.log(_root(coming_of["range"] * range120)) - log_sigma20,
    }
    moves, ranges = ret.notna().cumsum(), variance.notna().cumsum()
    closes_alone = (moves >= 20) & (ranges < 0.05 * moves)
    ret_z = log_ret / sigma20.shift()
    distance = ret_z.abs()
    expected = distance + 2 / (distance + np.sqrt(distance**2 + 8 / math.pi))
    for name, value in {
        "range_z": expected,
        "close_location": ret_z / expected,
        "range_vol480": -fields["long_vol"],
        "next_slot_range": fields["next_slot_vol"],
    }.items():
        fields[name] = fields[name].where(~closes_alone, value)
    return pd.DataFrame(fields).fillna(0.0).clip(-1000, 1000)


def cross_fields(assets: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Per asset, from frames indexed by stamp with ret_z, relative_log_vol and mask_any."""
    good = {symbol: frame[~frame["mask_any"]].to_dict("index") for symbol, frame in assets.items()}
    made = {}
    for symbol, frame in assets.items():
        rows = []
        for stamp in frame.index:
            others = {
                name: rows_of[stamp]
                for name, rows_of in good.items()
                if name != symbol and stamp in rows_of
            }
            moves = {name: max(-10.0, min(10.0, row["ret_z"])) for name, row in others.items()}
            dollar = [moves[name] for name in moves if name.startswith("USD")]
            dollar += [-moves[name] for name in moves if name.endswith("USD")]
            wildness = [row["relative_log_vol"] for row in others.values()]
            rows.append(
                [
                    _average(values)
                    for values in ([abs(move) for move in moves.values()], dollar, wildness)
                ]
            )
        made[symbol] = pd.DataFrame(
            rows, index=frame.index, columns=["cross_abs", "usd_factor", "cross_vol"], dtype=float
        )
    return made


def _slots(stamps: pd.Series, values: pd.Series, step: pd.Timedelta) -> tuple[pd.Series, pd.Series]:
    """Row by row: the mean of the own slot before the row, and of the next slot that was fed
    lately.
    """
    num_slots = WEEK // step
    alpha = 2 / 53
    weighted = dict.fromkeys(range(num_slots), 0.0)
    weights = dict.fromkeys(range(num_slots), 0.0)
    last: dict[int, pd.Timestamp] = {}
    own, coming = [], []
    for stamp, value in zip(stamps, values, strict=True):
        monday = stamp.normalize() - pd.Timedelta(days=stamp.day_of_week)
        slot = (stamp - monday) // step
        own.append(weighted[slot] / weights[slot] if weights[slot] else math.nan)
        if not math.isnan(value):
            weighted[slot] = (1 - alpha) * weighted[slot] + value
            weights[slot] = (1 - alpha) * weights[slot] + 1
            last[slot] = monday
        found = math.nan
        for later in range(slot + 1, slot + 1 + num_slots):
            candidate = later % num_slots
            if candidate in last and monday - last[candidate] <= 4 * WEEK:
                found = weighted[candidate] / weights[candidate]
                break
        coming.append(found)
    return pd.Series(own), pd.Series(coming)


def _mean(values: pd.Series, span: int) -> pd.Series:
    return values.ewm(span=span, ignore_na=True).mean()


def _root(values: pd.Series) -> pd.Series:
    return values.pow(0.5).clip(lower=FLOOR)


def _average(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
