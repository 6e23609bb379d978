"""Fields beyond the paper's that an asset's own bars give: range, activity, long memory, hour of the week.

Enters: bars that follow a state, and their rows. Leaves: float16 columns in the order of `schema.OWN_FIELDS`, known
at the row's own time, 0 where undefined, and the state after the last row. Feeding a history in pieces gives the same
bits as feeding it at once. Not in the paper, whose fields they leave alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.events.inputs import BAD_RETURN, Halves, has_flag, to_half
from vaiom.events.ranges import ranges_of
from vaiom.events.rows import Rows, rows_of
from vaiom.events.scales import (
    LONG_SPAN,
    SCALE_FLOOR,
    SHORT_SPAN,
    Bools,
    EwmaState,
    Floats,
    ScaleState,
    ewma,
)
from vaiom.events.schema import OWN_FIELDS
from vaiom.events.seasons import SeasonState, run_seasons

LONG_RANGE_SPAN = 480
LONGEST_SPAN = 2400
SLOT_LIMIT = 25.0
"""A slot learns from no value larger than this many times the week's mean: one wild bar must not rule it for a year."""


@dataclass(frozen=True, kw_only=True)
class MeanState:
    """An EWMA started at 0 and how many values it holds, from which their weight in it follows."""

    level: float = 0.0
    count: int = 0


# Of range variances, squared returns and volumes; the spans are part of the names of what the state keeps.
_MEANS = (
    ("range", SHORT_SPAN),
    ("range", LONG_SPAN),
    ("range", LONG_RANGE_SPAN),
    ("ret", LONG_SPAN),
    ("ret", LONGEST_SPAN),
    ("volume", LONG_SPAN),
)
_MEAN_NAMES = tuple(f"{name}{span}" for name, span in _MEANS)
_SLOT_QUANTITIES = ("ret", "range", "volume")


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtraState:
    """All that the extra fields remember of an asset's past."""

    season: SeasonState
    sigma20: float = math.nan
    range20: MeanState = MeanState()
    range120: MeanState = MeanState()
    range480: MeanState = MeanState()
    ret120: MeanState = MeanState()
    ret2400: MeanState = MeanState()
    volume120: MeanState = MeanState()

    @classmethod
    def empty(cls, timeframe: timedelta) -> ExtraState:
        return cls(season=SeasonState.empty(len(_SLOT_QUANTITIES), int(timeframe.total_seconds())))

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit; an undefined scale is null."""
        means: dict[str, MeanState] = {name: getattr(self, name) for name in _MEAN_NAMES}
        return {
            "sigma20": None if math.isnan(self.sigma20) else self.sigma20,
            **{name: [mean.level, mean.count] for name, mean in means.items()},
            "season": self.season.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExtraState:
        means = {name: MeanState(level=float(value[name][0]), count=int(value[name][1])) for name in _MEAN_NAMES}
        sigma20 = math.nan if value["sigma20"] is None else float(value["sigma20"])
        season = SeasonState.from_json(value["season"])
        return cls(sigma20=sigma20, season=season, **means)


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetState:
    """Where all recursions of an asset stand after its last bar."""

    scales: ScaleState
    extra: ExtraState

    @classmethod
    def empty(cls, timeframe: timedelta) -> AssetState:
        return cls(scales=ScaleState(), extra=ExtraState.empty(timeframe))

    def to_json(self) -> dict[str, Any]:
        return {**self.scales.to_json(), "extra": self.extra.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> AssetState:
        try:
            return cls(scales=ScaleState.from_json(value), extra=ExtraState.from_json(value["extra"]))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError("not the state of an asset", got=str(error), fix="build the corpus again") from error


def asset_rows(
    bars: pl.DataFrame, state: AssetState, where: object = None
) -> tuple[Rows, dict[str, Halves], AssetState]:
    """Rows and own extra fields of ordered bars that follow `state`, and the state after: a history or one live bar."""
    rows, scales = rows_of(bars, state.scales, where)
    fields, extra = own_fields(bars, rows, state.extra)
    return rows, fields, AssetState(scales=scales, extra=extra)


def own_fields(bars: pl.DataFrame, rows: Rows, state: ExtraState) -> tuple[dict[str, Halves], ExtraState]:
    """The columns of `OWN_FIELDS` for bars that follow `state` and the rows made of them."""
    if not len(rows):
        return {name: np.empty(0, np.float16) for name in OWN_FIELDS}, state
    ranges = ranges_of(bars)
    clean_ret = np.where(has_flag(rows.flags, BAD_RETURN), math.nan, rows.log_ret)
    volume = bars["Volume"].cast(pl.Float64).to_numpy()
    sources = {"range": ranges.variance, "ret": clean_ret**2, "volume": np.where(_usable(volume), volume, math.nan)}
    means = {
        f"{name}{span}": running_mean(sources[name], span, getattr(state, f"{name}{span}")) for name, span in _MEANS
    }

    # A slot holds ratios to the level of the time: levels drift within months, the shape of the week hardly does.
    week = {name: means[f"{name}{LONG_SPAN}"] for name in _SLOT_QUANTITIES}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratios = {name: sources[name] / week[name].before for name in _SLOT_QUANTITIES}
    learned = np.minimum(np.stack(list(ratios.values()), axis=1), SLOT_LIMIT)
    seasons, season = run_seasons(rows.timestamp, learned, state.season)
    own = dict(zip(_SLOT_QUANTITIES, np.ascontiguousarray(seasons.own_prev.T), strict=True))
    coming = dict(zip(_SLOT_QUANTITIES, np.ascontiguousarray(seasons.coming.T), strict=True))

    log_sigma20 = np.log(rows.sigma20)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        fields = {
            "range_z": ranges.log_range / np.concatenate([[state.sigma20], rows.sigma20[:-1]]),
            "close_location": ranges.close_location,
            "range_vol20": _log_root(means["range20"].through) - log_sigma20,
            "range_vol480": _log_root(means["range480"].through) - log_sigma20,
            "long_vol": log_sigma20 - _log_root(means["ret2400"].through),
            "activity": np.log(ratios["volume"]),
            "slot_activity": np.log(ratios["volume"] / own["volume"]),
            "slot_surprise": clean_ret / np.maximum(SCALE_FLOOR, np.sqrt(own["ret"] * week["ret"].before)),
            "next_slot_vol": _log_root(coming["ret"] * week["ret"].through) - log_sigma20,
            "next_slot_range": _log_root(coming["range"] * week["range"].through) - log_sigma20,
        }
    after = ExtraState(
        season=season,
        sigma20=float(rows.sigma20[-1]),
        **{name: mean.after for name, mean in means.items()},
    )
    return {name: to_half(fields[name]) for name in OWN_FIELDS}, after


@dataclass(frozen=True, kw_only=True, eq=False)
class RunningMean:
    """A mean through each row, before each row, and its state after the last."""

    through: Floats
    before: Floats
    after: MeanState


def running_mean(values: Floats, span: int, state: MeanState) -> RunningMean:
    """pandas' `ewm(span, ignore_na=True).mean()`, NaN before the first value; NaN values leave it as it is."""
    seen = ~np.isnan(values)
    levels, after = ewma(values[seen], span, EwmaState(mean=state.level))
    counts = state.count + np.arange(len(levels) + 1)
    with np.errstate(invalid="ignore"):
        mean = np.concatenate([[state.level], levels]) / -np.expm1(counts * np.log1p(-2 / (span + 1)))
    at = np.cumsum(seen)
    level = state.level if after.mean is None else after.mean
    return RunningMean(through=mean[at], before=mean[at - seen], after=MeanState(level=level, count=int(counts[-1])))


def _usable(volume: Floats) -> Bools:
    with np.errstate(invalid="ignore"):
        return (volume > 0) & (volume < math.inf)


def _log_root(mean_square: Floats) -> Floats:
    return np.log(np.maximum(SCALE_FLOOR, np.sqrt(mean_square)))  # NaN stays NaN
