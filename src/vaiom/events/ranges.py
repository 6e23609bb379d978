"""What High and Low say of a bar: how far it went, and where in its range it closed.

Enters: Open, High, Low and Close of bars. Leaves: float64 series, NaN where the four prices contradict each other.
Not in the paper, which reads Open and Close alone.

A range is believed if High and Low enclose Open and Close, all four are there and positive, and the range is no
larger than a return may be. A hidden higher-timeframe bar can pass: no single row proves one, only their recurrence
does, which takes later rows. That is why no corpus is built of a file that has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from vaiom.events.scales import MAX_LOG_MOVE, Floats

PARKINSON = 4 * math.log(2)
"""The squared log range of a driftless walk, in units of its variance (Parkinson, 1980)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges:
    """Series of one asset, one value per bar; all NaN where the range is not believed."""

    log_range: Floats
    close_location: Floats
    """From -1, closed at the Low, to 1, closed at the High; 0 where the two are one."""

    @property
    def variance(self) -> Floats:
        """Parkinson's estimate; a bar without any range is no estimate, as an exact zero is no return."""
        return np.where(self.log_range > 0, self.log_range, math.nan) ** 2 / PARKINSON


def ranges_of(bars: pl.DataFrame) -> Ranges:
    """Each bar's range, from that bar alone."""
    open_, high, low, close = (bars[name].cast(pl.Float64).to_numpy() for name in ("Open", "High", "Low", "Close"))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        log_range = np.log(high / low)
        encloses = (low > 0) & (low <= np.minimum(open_, close)) & (np.maximum(open_, close) <= high)
        believed = encloses & (log_range <= MAX_LOG_MOVE)
        location = np.where(high > low, (2 * close - high - low) / (high - low), 0.0)
    return Ranges(
        log_range=np.where(believed, log_range, math.nan), close_location=np.where(believed, location, math.nan)
    )
