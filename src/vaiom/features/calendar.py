"""Clock fields of stored timestamps, as integers for DiscIn and sin/cos channels for ContIn, and
the time between bars.

They follow from the stored provider clock, so a corpus does not store them. Paper: Methods, "Input
Representations".
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from vaiom.market.sessions import DAY

# (name, number of steps in a cycle, value of the first step); order is that of both schemas.
PERIODIC_FIELDS = (
    ("month", 12, 1),
    ("day_of_month", 31, 1),
    ("day_of_week", 7, 0),
    ("day_of_year", 366, 1),
    ("hour", 24, 0),
    ("minute", 60, 0),
    ("second", 60, 0),
)
MAX_YEARS_SINCE_2000 = 63
LAST_SECOND = np.iinfo(np.uint32).max
"""The last storable second, early in 2106."""

_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday; Monday is 0
_OF_DAY = 3  # hour, minute, second; the fields before them belong to the day

Seconds = npt.NDArray[np.integer]


def calendar_fields(seconds: Seconds) -> npt.NDArray[np.int16]:
    """(N, 8): years since 2000, month, day of month, day of week, day of year, hour, minute,
    second.
    """
    day, second = np.divmod(seconds, DAY)
    return np.concatenate([_day_table()[0][day], _second_table()[0][second]], axis=1)


def calendar_channels(seconds: Seconds, out: npt.NDArray[np.float32]) -> None:
    """Fill `out` (N, 15) with the normalised year and the sin and cos of each periodic field."""
    day, second = np.divmod(seconds, DAY)
    by_day, by_second = _day_table()[1], _second_table()[1]
    # Nothing is ever clipped; the mode skips the bounds check of every index.
    out[:, : by_day.shape[1]] = by_day.take(day, axis=0, mode="clip")
    out[:, by_day.shape[1] :] = by_second.take(second, axis=0, mode="clip")


def log_waits(seconds: Seconds, step: int, last: int | None = None) -> npt.NDArray[np.float32]:
    """ln of the bars of `step` seconds since the row before, for an asset's rows after `last`; 0 on
    the first.
    """
    stamps = seconds.astype(np.int64)
    before = np.concatenate([stamps[:1] - step if last is None else [last], stamps])[: len(stamps)]
    return np.asarray(np.log((stamps - before) / step), np.float32)


# Every storable day and every second of a day has a row in a table: look-ups replace the
# arithmetic.
Table = tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]
"""Integer fields, and their channels."""


@cache
def _day_table() -> Table:
    dates = np.arange(LAST_SECOND // DAY + 1).astype("datetime64[D]")
    months, years = dates.astype("datetime64[M]"), dates.astype("datetime64[Y]")
    columns = (
        np.clip(
            years.astype(np.int64) - 30, 0, MAX_YEARS_SINCE_2000
        ),  # NumPy counts years from 1970
        months.astype(np.int64) % 12 + 1,
        (dates - months).astype(np.int64) + 1,
        (dates.astype(np.int64) + _EPOCH_WEEKDAY) % 7,
        (dates - years).astype(np.int64) + 1,
    )
    fields = np.stack(columns, axis=1).astype(np.int16)
    waves = _waves(fields[:, 1:], PERIODIC_FIELDS[:-_OF_DAY])
    return fields, np.concatenate([fields[:, :1] / MAX_YEARS_SINCE_2000, waves], axis=1).astype(
        np.float32
    )


@cache
def _second_table() -> Table:
    second = np.arange(DAY)
    fields = np.stack([second // 3600, second // 60 % 60, second % 60], axis=1).astype(np.int16)
    return fields, _waves(fields, PERIODIC_FIELDS[-_OF_DAY:]).astype(np.float32)


def _waves(
    fields: npt.NDArray[np.int16], periods: tuple[tuple[str, int, int], ...]
) -> npt.NDArray[np.float64]:
    """sin and cos of each column, once around per period."""
    columns = []
    for column, (_, steps, first) in enumerate(periods):
        angle = 2 * np.pi * (fields[:, column] - first) / steps
        columns += [np.sin(angle), np.cos(angle)]
    return np.stack(columns, axis=1)
