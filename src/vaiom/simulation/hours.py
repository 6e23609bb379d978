"""When a simulated market trades, and how much it moves at each hour: its public calendar."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vaiom.market.sessions import HOUR, WEEK, slot_of_week
from vaiom.simulation.oracle import FloatArray, IntArray

Stamps = NDArray[np.datetime64]
BoolArray = NDArray[np.bool_]

WEEK_CLOSES = 4 * 24 + 22
WEEK_OPENS = 6 * 24 + 22
"""Friday and Sunday at 22:00, in hours since Monday midnight."""
METALS_PAUSE = 21
"""The hour of the day at which metals do not trade."""
HOLIDAYS = ((12, 25), (1, 1))
MIN_OPEN_SHARE = 0.6
"""A lower bound of the share of hours that trade, holidays and pauses included."""
LONGEST_PAUSE_H = 12
"""A longer break is a weekend or a holiday, after which bars open with a gap."""

SESSION_HOURS = np.array([1.0, 8.0, 14.0])  # Asia, London, New York
SESSION_FOCUS = 5.0
FX_SESSIONS = (0.45, 1.15, 1.3)
METAL_SESSIONS = (0.45, 0.9, 1.6)
"""How much each session moves a class."""
DAY_LEVEL = np.array([0.90, 0.98, 1.03, 1.03, 1.04, 1.0, 1.0])
WEEKLY_NEWS = ((2, 18), (4, 12))
"""(weekday, hour) at which every asset moves more."""
NEWS_FACTOR = 1.35
OPENING_FACTOR = 2.2

_FORTNIGHT_H = 2 * WEEK // HOUR


@dataclass(frozen=True)
class Asset:
    """The public constants of one asset."""

    symbol: str
    metal: bool
    start: float
    ticks_per_unit: int
    hourly_scale: float
    sessions: tuple[float, ...]


def trading_stamps(
    asset: Asset, bars: int, step: int, end: datetime, start: int, stop: int
) -> Stamps:
    """Stamps of the rows `start` to `stop` of an asset's last `bars` rows up to the market's end.

    The first row has number 0, and number `bars` is the row after the end.
    """
    first, num_through, num_before = _trading_hours(asset.metal, bars, step, end)
    rows = np.arange(start, stop) + num_before
    hours = np.searchsorted(num_through, rows, side="right")
    since = rows - np.append(0, num_through)[hours]
    return np.asarray(first[hours] + since * step).astype("datetime64[s]")


def hours_back(bars: int, step: int) -> int:
    """An upper bound of the hours that the bars span."""
    return int(bars / MIN_OPEN_SHARE) * step // HOUR + _FORTNIGHT_H


@lru_cache(maxsize=2)
def _trading_hours(
    metal: bool, bars: int, step: int, end: datetime
) -> tuple[IntArray, IntArray, int]:
    """First stamp of each trading hour, cumulative number of stamps through it, and the number of
    stamps before the market's first.
    """
    last_hour = np.datetime64(end, "h")
    last = int(last_hour.astype("datetime64[s]").astype(int))
    numbers = np.arange(-hours_back(bars, step), _FORTNIGHT_H)
    hours = last + HOUR * numbers
    week_hour = slot_of_week(hours, HOUR)
    is_closed = (week_hour >= WEEK_CLOSES) & (week_hour < WEEK_OPENS)
    days = hours.astype("datetime64[s]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    month = months.astype(np.int64) % 12 + 1
    day_of_month = (days - months).astype(np.int64) + 1
    for holiday_month, holiday in HOLIDAYS:
        is_closed |= (month == holiday_month) & (day_of_month == holiday)
    if metal:
        is_closed |= week_hour % 24 == METALS_PAUSE
    hours = hours[~is_closed]
    # Stamps are whole steps from the last one; hours need not be.
    late = (last - hours) % step
    num_through = np.cumsum(-((late - HOUR) // step))
    num_hours = int(np.searchsorted(hours, last))
    num_stamps = int(num_through[num_hours - 1])
    if hours[num_hours] == last:
        num_stamps += 1
    first = hours + late
    num_before = num_stamps - bars
    return first, num_through, num_before


def calendar_profile(asset: Asset, stamps: Stamps) -> FloatArray:
    """The known scale of an hour's return at each stamp: sessions, weekday, news, openings."""
    week_hour = slot_of_week(stamps.astype("datetime64[s]"), HOUR)
    hours_of_day = np.arange(24)[:, None]
    angle = 2 * np.pi * (hours_of_day - SESSION_HOURS) / 24
    closeness = np.exp(SESSION_FOCUS * (np.cos(angle) - 1))
    of_day = np.exp(closeness @ np.array(asset.sessions))
    of_day *= asset.hourly_scale / np.sqrt(np.mean(of_day**2))
    of_hour = of_day[week_hour % 24]
    profile: FloatArray = of_hour * DAY_LEVEL[week_hour // 24]
    for weekday, hour in WEEKLY_NEWS:
        profile[week_hour == 24 * weekday + hour] *= NEWS_FACTOR
    profile[follows_closure(stamps)] *= OPENING_FACTOR
    return profile


def follows_closure(stamps: Stamps) -> BoolArray:
    """Bars that open after a weekend or a holiday, not after the metals' daily pause."""
    pause = np.diff(stamps, prepend=stamps[:1])
    return pause > np.timedelta64(LONGEST_PAUSE_H, "h")
