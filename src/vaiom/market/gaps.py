"""What is missing in the usual trading hours of a series: counts, and the longest closures.

A bar is expected where most of the four weeks before and after have one, so that weekends, daily
pauses and changes of the clock are no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.codec import Stored
from vaiom.market.findings import NUM_EXAMPLES, Finding, Severity, finding, show_stamp
from vaiom.market.sessions import DAY, HOUR, MINUTE, WEEK, find_closures

MIN_PRESENT_SHARE = 0.01
"""If fewer of the bars between the first and the last stamp exist, a stamp must be wrong."""
MAX_MISSING_SHARE = 0.1
"""If more of the expected bars are missing, a series is poor."""
LONG_GAP = 6 * HOUR
SHORT_GAP_BARS = 6

_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Closure:
    """Consecutive missing bars; closed hours between them are skipped."""

    start: Annotated[datetime, Stored("from")]
    end: Annotated[datetime, Stored("to")]
    bins: int
    """The number of missing bars."""
    holiday: bool

    def __str__(self) -> str:
        return f"{show_stamp(self.start)} to {show_stamp(self.end)} ({self.bins} bars)"


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Bars that are missing inside the usual trading hours, and how many were expected."""

    expected_bins: int = 0
    missing_bins: int = 0
    missing_on_holidays: int = 0
    longest_closures: tuple[Closure, ...] = ()
    """Closures of more than one bar, the longest first."""


def find_gaps(stamps: pl.Series, timeframe: int | None) -> tuple[Gaps, list[Finding]]:
    """Bars missing where most of the neighbouring weeks have one; `stamps` are sorted, not null.

    The timeframe is in seconds. Without one that divides a week nothing is counted; bars of seconds
    are counted by the minute.
    """
    if timeframe is None or timeframe > DAY or WEEK % timeframe:
        return Gaps(), []
    step = max(timeframe, MINUTE)
    seconds = stamps.dt.epoch("s").to_numpy()
    since_first = seconds - seconds[0]
    num_present = len(np.unique(since_first // step))
    num_possible = since_first[-1] / step
    if num_present < MIN_PRESENT_SHARE * num_possible:
        return Gaps(), _far_stamps(stamps, seconds)

    missing = find_closures(seconds, step)
    runs = np.column_stack([missing.start, missing.end, missing.bars])
    closures = [_closure(*run) for run in runs.tolist()]
    closures.sort(key=lambda closure: -closure.bins)
    longest = [closure for closure in closures[:NUM_EXAMPLES] if closure.bins > 1]
    on_holidays = [closure.bins for closure in closures if closure.holiday]
    gaps = Gaps(
        expected_bins=missing.expected,
        missing_bins=int(missing.bars.sum()),
        missing_on_holidays=sum(on_holidays),
        longest_closures=tuple(longest),
    )
    summary = f"bars missing of {gaps.expected_bins:,} in usual trading hours, holidays included"
    is_poor = gaps.missing_bins > MAX_MISSING_SHARE * gaps.expected_bins
    poor = finding("missing_bars", Severity.WARNING, is_poor * gaps.missing_bins, summary)
    fewest = max(2, LONG_GAP / step)
    long = [closure for closure in closures if closure.bins >= fewest and not closure.holiday]
    num_missing = sum(closure.bins for closure in long)
    summary = f"bars missing from usual trading hours in long gaps outside holidays ({len(long)})"
    return gaps, [
        *poor,
        *finding("gap", Severity.INFO, num_missing, summary, map(str, long)),
    ]


def missing_share(seconds: NDArray[np.integer], step: int) -> float:
    """The share of bars missing in usual trading hours, 0 where short gaps are few.

    Gaps of at most six bars are counted first, which is fast; whether they are pauses of every
    week is asked only where these are many.
    """
    waits = np.diff(seconds.astype(np.int64)) // step
    short = waits[(waits > 1) & (waits <= SHORT_GAP_BARS)]
    num_short = int((short - 1).sum())
    is_counted = step <= DAY and not WEEK % step
    if not is_counted or num_short <= MAX_MISSING_SHARE * (len(seconds) + num_short):
        return 0.0
    missing = find_closures(seconds.astype(np.int64), step)
    return float(missing.bars.sum() / max(1, missing.expected))


def _far_stamps(stamps: pl.Series, seconds: NDArray[np.int64]) -> list[Finding]:
    """The rows on the smaller side of the widest step."""
    after = int(np.diff(seconds).argmax()) + 1
    far = stamps[:after] if 2 * after <= len(stamps) else stamps[after:]
    summary = "rows far from all others in time; missing bars are not counted"
    return finding("far_stamp", Severity.WARNING, len(far), summary, map(show_stamp, far))


def _closure(start_second: int, end_second: int, bins: int) -> Closure:
    """A closure from its seconds since 1970."""
    start = _EPOCH + timedelta(seconds=start_second)
    end = _EPOCH + timedelta(seconds=end_second)
    return Closure(start=start, end=end, bins=bins, holiday=is_holiday(start, end))


def is_holiday(start: datetime, end: datetime) -> bool:
    """Whether a closure lies inside the Christmas and New Year fortnight or around Easter.

    Easter is from the evening of Maundy Thursday to Easter Monday.
    """
    first_day = start.date()
    last_second = end - timedelta(seconds=1)
    last_day = last_second.date()
    year = start.year if start.month > 6 else start.year - 1
    christmas = (date(year, 12, 23), date(year + 1, 1, 3))
    sunday = easter_sunday(start.year)
    easter = (sunday - timedelta(days=3), sunday + timedelta(days=1))
    return any(begins <= first_day and last_day <= ends for begins, ends in (christmas, easter))


def easter_sunday(year: int) -> date:
    """Easter Sunday of the Gregorian calendar, by the anonymous algorithm (Meeus, 1991, p. 67)."""
    century, of_century = divmod(year, 100)
    golden = year % 19
    num_leap_centuries, of_leap_century = divmod(century, 4)
    lunar_drift = (century + 8) // 25
    correction = num_leap_centuries + (century - lunar_drift + 1) // 3
    moon = (19 * golden + century - correction + 15) % 30
    leap, of_leap = divmod(of_century, 4)
    weekday = (32 + 2 * of_leap_century + 2 * leap - moon - of_leap) % 7
    late = (golden + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * late + 114, 31)
    return date(year, month, day + 1)
