"""Clock fields of a stored timestamp, as integers and as sin/cos channels.

Enters: naive timestamps. Leaves: integer fields for DiscIn, float32 channels for ContIn; both depend on the
timestamp alone, which is why a corpus does not store them.
Paper: Methods, "Input Representations"; the stored provider clock is used as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.events.schema import MAX_YEARS_SINCE_2000, PERIODIC_FIELDS

_SECONDS_PER_DAY = 86_400
_NUM_DAY_FIELDS = 5  # year, month, day of month, day of week, day of year


@dataclass(frozen=True)
class _Clock:
    """Timestamps taken apart: fields of the days that occur, the day of each row, its time of day."""

    day_fields: npt.NDArray[np.int64]  # (days, 5)
    day: npt.NDArray[np.int64]  # (N,) into day_fields
    hour: npt.NDArray[np.int64]
    minute: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]


def _take_apart(timestamps: npt.NDArray[np.datetime64]) -> _Clock:
    seconds = timestamps.astype("datetime64[s]").astype(np.int64)
    day, of_day = np.divmod(seconds, _SECONDS_PER_DAY)
    first, last = (int(day.min()), int(day.max())) if len(day) else (0, 0)
    dates = np.arange(first, last + 1).astype("datetime64[D]")
    months, years = dates.astype("datetime64[M]"), dates.astype("datetime64[Y]")
    fields = np.stack(
        [
            np.clip(years.astype(np.int64) - 30, 0, MAX_YEARS_SINCE_2000),  # NumPy counts years from 1970
            months.astype(np.int64) % 12 + 1,
            (dates - months).astype(np.int64) + 1,
            (dates.astype(np.int64) + 3) % 7,  # 1970-01-01 was a Thursday; Monday is 0
            (dates - years).astype(np.int64) + 1,
        ],
        axis=1,
    )
    return _Clock(fields, day - first, of_day // 3600, of_day // 60 % 60, of_day % 60)


def calendar_fields(timestamps: npt.NDArray[np.datetime64]) -> npt.NDArray[np.int16]:
    """(N, 8): years since 2000, month, day of month, day of week, day of year, hour, minute, second."""
    clock = _take_apart(timestamps)
    out = np.empty((len(timestamps), _NUM_DAY_FIELDS + 3), np.int16)
    out[:, :_NUM_DAY_FIELDS] = clock.day_fields.astype(np.int16)[clock.day]
    out[:, _NUM_DAY_FIELDS:] = np.stack([clock.hour, clock.minute, clock.second], axis=1)
    return out


def calendar_channels(timestamps: npt.NDArray[np.datetime64], out: npt.NDArray[np.float32]) -> None:
    """Fill `out` (N, 15) with the normalised year and the sin and cos of each periodic field."""
    clock = _take_apart(timestamps)
    by_day = [clock.day_fields[:, :1] / MAX_YEARS_SINCE_2000]
    for column, (_, steps, first) in enumerate(PERIODIC_FIELDS[: _NUM_DAY_FIELDS - 1], start=1):
        by_day.append(_waves(clock.day_fields[:, column] - first, steps))
    table = np.concatenate(by_day, axis=1).astype(np.float32)
    width = table.shape[1]
    out[:, :width] = table[clock.day]
    for values, (_, steps, _) in zip(
        (clock.hour, clock.minute, clock.second), PERIODIC_FIELDS[_NUM_DAY_FIELDS - 1 :], strict=True
    ):
        out[:, width : width + 2] = _waves(np.arange(steps), steps).astype(np.float32)[values]
        width += 2


def _waves(step: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.float64]:
    angle = 2 * np.pi * step / steps
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)
