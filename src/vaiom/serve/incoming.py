"""Bars on their way in: what is refused, and what the recursions take.

Enters: `BarRow`s of a request, a feed or a bar folder, whose numbers are finite or missing.
Leaves: the `BarArrays` of the features, or an error that says what to do. Bars must follow an
asset's last one on its own grid of stamps, and may not be of the future: one wrong stamp would shut
out all later bars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.features.quantities import BarArrays
from vaiom.forecast.asset_stream import AssetStream
from vaiom.forecast.bars import CLOCK_ALLOWANCE, seconds_of, wrong_timeframe
from vaiom.market.folder import NUMBER_COLUMNS, PRICE_COLUMNS
from vaiom.market.timeframes import timeframe_of
from vaiom.serve.follow import BarRow
from vaiom.serve.refusals import RefusalError

HOUR = 3_600
"""Seconds by which daylight saving moves the stamps of bars that are longer than an hour."""


def require_past(stamp: datetime, where: str, clock: Callable[[], datetime]) -> None:
    """Refuse a bar that begins after the present in every time zone."""
    latest = clock() + CLOCK_ALLOWANCE
    if stamp > latest:
        moment = latest.isoformat(timespec="seconds")
        raise DataError(
            "a bar of the future",
            where=where,
            expected=f"a bar from before {moment}, by the clock of this machine",
            got=stamp.isoformat(),
            fix="correct the stamp, or the clock of the machine",
        )


def require_next(
    symbol: str,
    bars: Sequence[BarRow],
    stream: AssetStream | None,
    timeframe: str,
    clock: Callable[[], datetime],
) -> None:
    """Refuse bars, oldest first, that do not follow an asset's last one."""
    last = stream.last if stream else None
    for number, bar in enumerate(bars, start=1):
        stamp = bar.datetime
        where = f"bars of {symbol}, row {number}"
        if last and stamp <= last:
            is_known = stamp == last
            raise RefusalError(
                409,
                "a bar is there already" if is_known else "a bar goes back in time",
                where=where,
                expected=f"a bar after {last.isoformat()}",
                got=stamp.isoformat(),
                fix="push the bars that follow; GET /v1/assets says where each asset stands",
            )
        require_past(stamp, where, clock)
        if last:
            _require_on_grid(stamp, last, stream, timeframe, where)
        last = stamp


def _require_on_grid(
    stamp: datetime, last: datetime, stream: AssetStream | None, timeframe: str, where: str
) -> None:
    """Refuse a bar that is not a whole number of bars from the last one, or from any other of its
    asset; longer bars may be an hour off, where daylight saving moves them.
    """
    length = timeframe_of(timeframe)
    step = int(length.total_seconds())
    allowed = {0, HOUR, step - HOUR} if step > HOUR else {0}
    seconds = seconds_of(stamp)
    known = np.array([seconds_of(last)])
    if (seconds - seconds_of(last)) % step not in allowed and stream:
        known = stream.columns["timestamp"].astype(np.int64)
    if allowed.isdisjoint(((seconds - known) % step).tolist()):
        raise DataError(
            "a bar between the stamps of its asset",
            where=where,
            expected=f"a stamp whole {timeframe} bars from {last.isoformat()}",
            got=stamp.isoformat(),
            fix="resample the bars as those before; DELETE .../bars?after= removes wrong ones that "
            "were taken",
        )
    if stamp - last < length:
        raise wrong_timeframe(where, timeframe, stamp - last)


def features_of(bars: Sequence[BarRow]) -> BarArrays:
    """Bars as the recursions take them: several as arrays, one as scalars, which is ten times
    faster.
    """
    if len(bars) == 1:
        [(stamp, *numbers)] = bars
        scalars = [np.float64(math.nan if each is None else each) for each in numbers]
        return BarArrays(np.int64(seconds_of(stamp)), *scalars)  # type: ignore[arg-type]
    stamps, *columns = zip(*bars, strict=True)
    seconds = np.array([seconds_of(stamp) for stamp in stamps], np.int64)
    return BarArrays(seconds, *(np.array(column, np.float64) for column in columns))


def rows_of(frame: pl.DataFrame) -> list[BarRow]:
    """The bars of a frame of a bar folder."""
    rows = frame.select("Datetime", *NUMBER_COLUMNS).iter_rows()
    return [BarRow(*row) for row in rows]


def revised_stamps(stored: BarArrays, frame: pl.DataFrame) -> list[datetime]:
    """The stamps at which a frame of a bar folder has other prices than the stored bars; a price
    that is missing in both is the same.
    """
    seconds = frame["Datetime"].dt.epoch("s").to_numpy()
    place = np.minimum(stored.seconds.searchsorted(seconds), len(stored.seconds) - 1)
    revised = np.zeros(len(frame), np.bool_)
    for name in PRICE_COLUMNS:
        ours = getattr(stored, name.lower())[place]
        theirs = frame[name].to_numpy()
        revised |= (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
    revised &= stored.seconds[place] == seconds
    return list(frame["Datetime"].filter(pl.Series(revised)))
