"""The recursive state of an asset: all that later bars need of the bars before them.

It is stored with a corpus, so that an append goes on where the build ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from vaiom.errors import DataError
from vaiom.features.recursions import Ewma, Mean, Slots

SHORT_SPAN = 20
LONG_SPAN = 120
SCALES = {
    "ret20": ("ret", SHORT_SPAN),
    "ret120": ("ret", LONG_SPAN),
    "gap20": ("gap", SHORT_SPAN),
}
"""The paper's EWMAs of squared returns and gaps: the quantity and the span of each."""
MEANS = {
    "range20": ("range", 20),
    "range120": ("range", 120),
    "range480": ("range", 480),
    "ret120": ("ret", 120),
    "ret2400": ("ret", 2400),
    "volume120": ("volume", 120),
}
"""Running means of range variances, squared returns and volumes, for fields beyond the paper's."""
SLOT_QUANTITIES = ("ret", "range", "volume")
"""Quantities with a mean for each slot of the week."""

_MOST_MISSING = 10_000_000  # more rows than any history has


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetState:
    """The state after a bar; `means` and `slots` only if fields beyond the paper's are needed."""

    close: float = math.nan
    num_clean: int = 0
    """Bars with a clean return so far."""
    scales: Mapping[str, Ewma]
    means: Mapping[str, Mean]
    slots: Slots | None

    @classmethod
    def empty(cls, timeframe: timedelta | None) -> AssetState:
        """The state before the first bar; without a timeframe only that of the paper's fields."""
        scales = dict.fromkeys(SCALES, Ewma())
        if timeframe is None:
            return cls(scales=scales, means={}, slots=None)
        slots = Slots.empty(len(SLOT_QUANTITIES), int(timeframe.total_seconds()))
        return cls(scales=scales, means=dict.fromkeys(MEANS, Mean()), slots=slots)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit; undefined values are null."""
        value: dict[str, Any] = {
            "close": _or_null(self.close),
            "num_clean": self.num_clean,
            "scales": {name: [_or_null(each[0]), each[1]] for name, each in self.scales.items()},
        }
        if self.slots is not None:
            value["means"] = {name: list(mean) for name, mean in self.means.items()}
            value["slots"] = {name: table.tolist() for name, table in vars(self.slots).items()}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> AssetState:
        """The state from its `to_json`; an error if it is none."""
        try:
            means = {}
            slots = None
            if "slots" in value:
                means = {name: _mean_from(value["means"][name]) for name in MEANS}
                slots = _slots_from(value["slots"])
            return cls(
                close=_or_nan(value["close"]),
                num_clean=int(value["num_clean"]),
                scales={name: _ewma_from(value["scales"][name]) for name in SCALES},
                means=means,
                slots=slots,
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError(
                "not the state of an asset", got=str(error), fix="build the corpus again"
            ) from error


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _ewma_from(value: list[Any]) -> Ewma:
    mean, num_missing = value
    if not 0 <= num_missing < _MOST_MISSING:  # its aging takes a loop
        raise ValueError(f"{num_missing} rows without a value")
    return Ewma(_or_nan(mean), int(num_missing))


def _mean_from(value: list[Any]) -> Mean:
    level, num_values = value
    return Mean(float(level), int(num_values))


def _slots_from(value: dict[str, Any]) -> Slots:
    level = np.array(value["level"], np.float64)
    count = np.array(value["count"], np.int64)
    last_week = np.array(value["last_week"], np.int64)
    if level.ndim != 2 or not level.size or not level.shape == count.shape == last_week.shape:
        raise ValueError("the tables of the slots have other shapes")
    return Slots(level=level, count=count, last_week=last_week)
