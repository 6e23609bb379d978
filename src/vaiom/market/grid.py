"""Which stamps there are, and which are missing.

Enters: the stamps of one asset. Leaves: its timeframe, findings on the stamps, and the bins that are missing inside the
hours of the week in which the asset usually trades. Nothing is known beforehand about sessions or time zones.
Paper: "Market Data, Price Convention and Bar Construction" (left-edge stamps; empty bins stay empty).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.market.findings import NUM_EXAMPLES, Finding, Rows, Severity, clock_time, finding, row_finding, runs

HOUR = 3_600
DAY = 24 * HOUR
WEEK = 7 * DAY
_MICRO = 1_000_000
_MONDAY = 4 * DAY  # the epoch began on a Thursday
_NEIGHBOUR_WEEKS = 4
_FINEST_BIN = 60
_LONG_GAP = 6 * HOUR
_LONG_GAP_BINS = 2
_THINNEST = 0.01


@dataclass(frozen=True, kw_only=True)
class Closure:
    """A stretch of missing bins, closed hours between them skipped."""

    start: datetime
    end: datetime
    num_bins: int
    holiday: bool

    def __str__(self) -> str:
        return f"{clock_time(self.start)} to {clock_time(self.end)} ({self.num_bins} bars)"

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.start.isoformat(),
            "to": self.end.isoformat(),
            "bins": self.num_bins,
            "holiday": self.holiday,
        }


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """What is missing inside the usual trading hours; `longest` holds the longest closures, longest first."""

    num_expected: int = 0
    num_missing: int = 0
    num_missing_on_holidays: int = 0
    longest: tuple[Closure, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "expected_bins": self.num_expected,
            "missing_bins": self.num_missing,
            "missing_on_holidays": self.num_missing_on_holidays,
            "longest_closures": [closure.to_json() for closure in self.longest],
        }


def epoch_seconds(stamps: pl.Series) -> NDArray[np.int64]:
    return stamps.dt.epoch("us").to_numpy().astype(np.int64) // _MICRO


def timeframe_seconds(stamps: pl.Series) -> int | None:
    """The commonest step between neighbouring stamps, the smallest of equals; None where there is no step."""
    step = np.diff(np.sort(epoch_seconds(stamps.drop_nulls())))
    values, counts = np.unique(step[step > 0], return_counts=True)
    return int(values[counts.argmax()]) if len(values) else None


def stamp_findings(bars: pl.DataFrame, timeframe: int | None) -> list[Finding]:
    """Missing, repeated, unordered and off-grid stamps, in the order in which the rows came."""
    stamps = bars["Datetime"]
    missing = stamps.is_null().to_numpy()
    repeated = (~stamps.is_first_distinct()).to_numpy() & ~missing
    latest_before = stamps.cum_max().shift().forward_fill()
    unordered = (stamps < latest_before).fill_null(False).to_numpy()
    between = "rows between the left edges of their timeframe"
    return [
        *row_finding("missing_stamp", Severity.ERROR, "rows without a stamp", bars, missing),
        *row_finding("duplicate_stamp", Severity.ERROR, "rows whose stamp came before", bars, repeated),
        *row_finding("unordered_stamp", Severity.ERROR, "rows that go back in time", bars, unordered),
        *row_finding("off_grid_stamp", Severity.WARNING, between, bars, _off_grid(stamps, timeframe)),
    ]


def _off_grid(stamps: pl.Series, timeframe: int | None) -> Rows:
    known = stamps.is_not_null().to_numpy()
    off = np.zeros(len(stamps), dtype=bool)
    if timeframe is None or timeframe > WEEK:  # months have no fixed length
        return off
    step, hour = timeframe * _MICRO, HOUR * _MICRO
    phase = stamps.drop_nulls().dt.epoch("us").to_numpy() % step
    values, counts = np.unique(phase, return_counts=True)
    aside = (phase - values[counts.argmax()]) % step
    # Longer bars that begin with a session stand one hour aside for half of the year where daylight saving moves it.
    allowed = [0, hour, step - hour] if timeframe > HOUR else [0]
    off[known] = ~np.isin(aside, allowed)
    return off


def find_gaps(stamps: pl.Series, timeframe: int | None) -> tuple[Gaps, list[Finding]]:
    """Bins missing where most of the neighbouring weeks have one; `stamps` are sorted and not null."""
    if timeframe is None or timeframe > DAY or WEEK % timeframe:
        return Gaps(), []
    bin_seconds = max(timeframe, _FINEST_BIN)
    seconds = epoch_seconds(stamps)
    origin = (int(seconds[0]) - _MONDAY) // WEEK * WEEK + _MONDAY
    bins = np.unique((seconds - origin) // bin_seconds)
    if len(bins) < _THINNEST * (bins[-1] - bins[0]):
        return Gaps(), _far_stamps(stamps, seconds)
    per_week = WEEK // bin_seconds
    present = np.zeros((int(bins[-1]) // per_week + 1, per_week), dtype=bool)
    present.reshape(-1)[bins] = True

    expected = np.flatnonzero(_usually_present(present))
    expected = expected[(expected >= bins[0]) & (expected <= bins[-1])]
    missing = ~present.reshape(-1)[expected]
    if not missing.any():
        return Gaps(num_expected=len(expected)), []
    first, last = runs(missing)
    start, end = origin + expected[first] * bin_seconds, origin + (expected[last] + 1) * bin_seconds
    length = last - first + 1
    holiday = np.array([_is_holiday(_moment(a), _moment(b)) for a, b in zip(start, end, strict=True)])

    def closures(chosen: NDArray[np.bool_]) -> Iterable[Closure]:
        for at in np.argsort(-length, kind="stable"):
            if chosen[at]:
                yield Closure(
                    start=_moment(start[at]),
                    end=_moment(end[at]),
                    num_bins=int(length[at]),
                    holiday=bool(holiday[at]),
                )

    longest = tuple(closure for closure, _ in zip(closures(length > 1), range(NUM_EXAMPLES), strict=False))
    gaps = Gaps(
        num_expected=len(expected),
        num_missing=int(missing.sum()),
        num_missing_on_holidays=int(length[holiday].sum()),
        longest=longest,
    )
    long = ~holiday & (length >= _LONG_GAP_BINS) & (length * bin_seconds >= _LONG_GAP)
    return gaps, finding(
        "gap",
        Severity.INFO,
        int(length[long].sum()),
        f"bars missing from usual trading hours in long stretches ({int(long.sum())}), holidays apart",
        (str(closure) for closure in closures(long)),
    )


def _far_stamps(stamps: pl.Series, seconds: NDArray[np.int64]) -> list[Finding]:
    """Rows so thin over their span that a stamp must be wrong: the smaller side of the widest step is pointed at."""
    after = int(np.diff(seconds).argmax()) + 1
    far = stamps[:after] if 2 * after <= len(stamps) else stamps[after:]
    return finding(
        "far_stamp",
        Severity.WARNING,
        len(far),
        "rows far from all others in time; missing bars are not counted",
        (clock_time(stamp) for stamp in far),
    )


def _usually_present(present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(weeks, bins of the week): True where more than half of the neighbouring weeks have that bin."""
    weeks = len(present)
    total = np.zeros((weeks + 1, present.shape[1]), dtype=np.int32)
    np.cumsum(present, axis=0, out=total[1:])
    week = np.arange(weeks)
    low, high = np.maximum(week - _NEIGHBOUR_WEEKS, 0), np.minimum(week + _NEIGHBOUR_WEEKS + 1, weeks)
    others = total[high] - total[low] - present
    usual: NDArray[np.bool_] = 2 * others > (high - low - 1)[:, None]
    return usual


def _is_holiday(start: datetime, end: datetime) -> bool:
    """Inside the Christmas and New Year fortnight, or from Maundy Thursday evening to Easter Monday."""
    last = (end - timedelta(seconds=1)).date()
    turn = start.year if start.month > 6 else start.year - 1
    if date(turn, 12, 23) <= start.date() and last <= date(turn + 1, 1, 3):
        return True
    easter = _easter(start.year)
    return easter - timedelta(days=3) <= start.date() and last <= easter + timedelta(days=1)


def _easter(year: int) -> date:
    """Easter Sunday of the Gregorian calendar (the anonymous algorithm)."""
    century, of_century = divmod(year, 100)
    moon = (19 * (year % 19) + century - century // 4 - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (of_century // 4) - moon - of_century % 4) % 7
    late = (year % 19 + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * late + 114, 31)
    return date(year, month, day + 1)


def _moment(seconds: np.int64) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC).replace(tzinfo=None)
