"""Clock fields of stored timestamps, and the time between bars.

Enters: seconds of the stored provider clock since 1970. Leaves: integers for DiscIn, sin and cos
channels for ContIn. They follow from the stamps, so a corpus does not store them. Paper: Methods,
"Input Representations".
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vaiom.features.typing import Floats, Ints, Shorts, Singles
from vaiom.market.sessions import DAY, HOUR, MINUTE


class Period(NamedTuple):
    """A clock field that comes around: its name, the steps of a cycle, the value of the first."""

    name: str
    num_steps: int
    first: int


PERIODS_OF_DATE = (
    Period("month", 12, 1),
    Period("day_of_month", 31, 1),
    Period("day_of_week", 7, 0),
    Period("day_of_year", 366, 1),
)
PERIODS_OF_TIME = (
    Period("hour", 24, 0),
    Period("minute", 60, 0),
    Period("second", 60, 0),
)
PERIODIC_FIELDS = (*PERIODS_OF_DATE, *PERIODS_OF_TIME)
"""In the order of both schemas."""
MAX_YEARS_SINCE_2000 = 63
LAST_SECOND = np.iinfo(np.uint32).max
"""The last storable second, early in 2106."""

_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday; Monday is 0

Seconds = npt.NDArray[np.integer]


class _Table(NamedTuple):
    """The fields of every storable day, or of every second of a day: look-ups replace
    arithmetic.
    """

    fields: Shorts
    channels: Singles


def calendar_fields(seconds: Seconds) -> Shorts:
    """(N, 8): years since 2000, month, day of month, day of week, day of year, hour, minute,
    second.
    """
    day, second = np.divmod(seconds, DAY)
    of_date = _date_table().fields[day]
    of_time = _time_table().fields[second]
    return np.concatenate([of_date, of_time], axis=1)


def calendar_channels(seconds: Seconds, out: Singles) -> None:
    """Fill `out` (N, 15) with the normalised year and the sin and cos of each periodic field."""
    day, second = np.divmod(seconds, DAY)
    by_date = _date_table().channels
    by_time = _time_table().channels
    num_of_date = by_date.shape[1]
    # Nothing is ever clipped; the mode skips the bounds check of every index.
    out[:, :num_of_date] = by_date.take(day, axis=0, mode="clip")
    out[:, num_of_date:] = by_time.take(second, axis=0, mode="clip")


def log_waits(seconds: Seconds, step: int, last: int | None = None) -> Singles:
    """ln of the time since the row before, in bars, for the rows of one asset.

    Parameters
    ----------
    seconds : (N,) stamps of the rows
    step : seconds of a bar
    last : the stamp before them; without it the first row has waited one bar
    """
    stamps = seconds.astype(np.int64)
    first = stamps[:1] - step if last is None else np.array([last])
    before = np.concatenate([first, stamps])[: len(stamps)]
    waits: Floats = np.log((stamps - before) / step)
    return waits.astype(np.float32)


@cache
def _date_table() -> _Table:
    days = np.arange(LAST_SECOND // DAY + 1)
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    years = dates.astype("datetime64[Y]")
    years_since_2000 = years.astype(np.int64) - 30  # NumPy counts years from 1970
    year = np.clip(years_since_2000, 0, MAX_YEARS_SINCE_2000)
    month = months.astype(np.int64) % 12 + 1
    day_of_month = (dates - months).astype(np.int64) + 1
    day_of_week = (days + _EPOCH_WEEKDAY) % 7
    day_of_year = (dates - years).astype(np.int64) + 1
    periodic = [month, day_of_month, day_of_week, day_of_year]
    channels = [year / MAX_YEARS_SINCE_2000, *_waves(periodic, PERIODS_OF_DATE)]
    return _table([year, *periodic], channels)


@cache
def _time_table() -> _Table:
    second = np.arange(DAY)
    periodic = [second // HOUR, second // MINUTE % 60, second % MINUTE]
    return _table(periodic, _waves(periodic, PERIODS_OF_TIME))


def _table(fields: list[Ints], channels: list[Floats]) -> _Table:
    integers = np.stack(fields, axis=1).astype(np.int16)
    singles = np.stack(channels, axis=1).astype(np.float32)
    return _Table(integers, singles)


def _waves(fields: list[Ints], periods: tuple[Period, ...]) -> list[Floats]:
    """sin and cos of each field, once around per period."""
    waves = []
    for field, period in zip(fields, periods, strict=True):
        angle = 2 * np.pi * (field - period.first) / period.num_steps
        waves += [np.sin(angle), np.cos(angle)]
    return waves
