"""The data-quality report of bars: facts, gaps, the clock and findings; bad rows are findings,
never errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl

from vaiom.codec import Stored, to_json
from vaiom.files import Progress
from vaiom.market import findings
from vaiom.market.findings import DAY, HOUR, WEEK, Finding, Severity, finding, show_stamp
from vaiom.market.folder import (
    PRICE_COLUMNS,
    conform,
    counted,
    infer_timeframe,
    keep_last,
    read_file,
    symbols_in,
)

_EPOCH = datetime(1970, 1, 1)
_MICRO = 1_000_000
_MONDAY = 4 * DAY  # the epoch began on a Thursday
_NEIGHBOUR_WEEKS = 4
_WINTER_CLOSE_UTC = 4 * DAY + 22 * HOUR  # Friday 17:00 in New York, seconds from Monday midnight
_FEWEST_WEEKS = 3
_DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, kw_only=True)
class AssetQuality:
    """Facts and findings of one asset."""

    symbol: str
    rows: int
    first: datetime | None
    last: datetime | None
    timeframe_seconds: int | None
    phase_seconds: int | None
    """Offset of most stamps from the timeframe's steps since midnight, or Monday: 1800 for hours
    that begin at :30.
    """
    zero_return_share: float | None
    """Share of rows whose Close equals the one before; None if no two rows can be compared."""
    gaps: Gaps
    clock: Clock
    findings: Annotated[tuple[Finding, ...], Stored(None)]
    """By severity. In JSON, `QualityReport` lists those of all assets together."""


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """The assets of a folder, in sorted-symbol order."""

    assets: tuple[AssetQuality, ...]

    def plus(self, more: Mapping[str, list[Finding]]) -> QualityReport:
        """The report with more findings of some assets."""
        assets = [
            replace(a, findings=_by_severity([*a.findings, *more.get(a.symbol, [])]))
            for a in self.assets
        ]
        return QualityReport(assets=tuple(assets))

    def to_json(self) -> dict[str, Any]:
        listed = [
            {"symbol": asset.symbol, **to_json(one)}
            for asset in self.assets
            for one in asset.findings
        ]
        return {"assets": to_json(self.assets), "findings": listed}


def _by_severity(found: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda one: list(Severity).index(one.severity)))


def check_folder(folder: Path, progress: Progress | None = None) -> QualityReport:
    """Check every asset of a bar folder, and whether their stamps have the same phase."""
    symbols = counted(symbols_in(folder), progress)
    assets = [check_bars(symbol, read_file(folder / f"{symbol}.parquet")) for symbol in symbols]
    grids = {asset.symbol: (asset.timeframe_seconds, asset.phase_seconds) for asset in assets}
    [(usual, _)] = Counter(grids.values()).most_common(1)
    summary = (
        "bars that begin at other moments than those of most assets here, and are never "
        "read beside them"
    )
    others = [asset for asset in assets if grids[asset.symbol] != usual]
    found = {
        asset.symbol: finding("other_grid", Severity.WARNING, asset.rows, summary)
        for asset in others
    }
    return QualityReport(assets=tuple(assets)).plus(found)


def check_bars(symbol: str, bars: pl.DataFrame) -> AssetQuality:
    """Check one asset; rows may be unordered, repeated or incomplete."""
    bars = conform(bars, Path(symbol))
    stamped = bars.filter(pl.col("Datetime").is_not_null()).sort("Datetime", maintain_order=True)
    stamps = stamped["Datetime"]
    step = infer_timeframe(stamps.dt.truncate("1s"))
    timeframe = int(step.total_seconds()) if step else None
    higher, higher_findings = findings.find_higher_timeframe_bars(stamped, timeframe)
    priced = pl.all_horizontal(pl.col(*PRICE_COLUMNS) > 0, pl.col(*PRICE_COLUMNS).is_finite())
    # Rows that are certainly wrong are reported once, and left out where neighbours are compared.
    usable = keep_last(stamped.filter(priced & ~pl.lit(pl.Series(higher))))
    gaps, gap_findings = find_gaps(stamps, timeframe)
    clock, clock_findings = read_clock(stamps, timeframe)
    phase, stamp_findings = check_stamps(bars, timeframe)
    found = [
        *stamp_findings,
        *findings.check_values(bars),
        *higher_findings,
        *findings.find_scale(symbol, usable),
    ]
    for check in (findings.find_spikes, findings.find_stale_runs, findings.find_repeated_blocks):
        found += check(usable)
    return AssetQuality(
        symbol=symbol,
        rows=len(bars),
        first=stamps[0] if len(stamps) else None,
        last=stamps[-1] if len(stamps) else None,
        timeframe_seconds=timeframe,
        phase_seconds=phase,
        zero_return_share=usable.select((pl.col("Close").diff() == 0).mean()).item(),
        gaps=gaps,
        clock=clock,
        findings=_by_severity([*found, *gap_findings, *clock_findings]),
    )


def check_stamps(bars: pl.DataFrame, timeframe: int | None) -> tuple[int | None, list[Finding]]:
    """The usual phase; missing, repeated, unordered and off-grid stamps of rows in their original
    order.
    """
    stamp = pl.col("Datetime")
    repeated = ~stamp.is_first_distinct() & stamp.is_not_null()
    unordered = stamp < stamp.cum_max().shift().forward_fill()
    step, hour = (
        timeframe * _MICRO if timeframe and timeframe <= WEEK else 1,
        HOUR * _MICRO,
    )  # months differ in length
    phases = (bars["Datetime"].dt.epoch("us") - _MONDAY * _MICRO) % step
    usual: Any = phases.drop_nulls().mode().min()
    # Longer bars that begin with a session are shifted by an hour for half of the year if it has
    # daylight saving.
    allowed = [0, hour, step - hour] if step > hour else [0]
    off_grid = ~pl.lit((phases - (usual or 0)) % step).is_in(allowed)
    return usual // _MICRO if timeframe else None, findings.row_findings(
        bars,
        ("missing_stamp", Severity.ERROR, "rows without a stamp", stamp.is_null()),
        ("duplicate_stamp", Severity.ERROR, "rows whose stamp came before", repeated),
        ("unordered_stamp", Severity.ERROR, "rows that go back in time", unordered),
        (
            "off_grid_stamp",
            Severity.WARNING,
            "rows between the left edges of their timeframe",
            off_grid,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Closure:
    """Consecutive missing bins, closed hours between them skipped."""

    start: Annotated[datetime, Stored("from")]
    end: Annotated[datetime, Stored("to")]
    bins: int
    holiday: bool

    def __str__(self) -> str:
        return f"{show_stamp(self.start)} to {show_stamp(self.end)} ({self.bins} bars)"


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """What is missing inside the usual trading hours; closures by decreasing length."""

    expected_bins: int = 0
    missing_bins: int = 0
    missing_on_holidays: int = 0
    longest_closures: tuple[Closure, ...] = ()


def find_gaps(stamps: pl.Series, timeframe: int | None) -> tuple[Gaps, list[Finding]]:
    """Bins missing where most of the neighbouring weeks have one; `stamps` are sorted and
    not null.
    """
    if timeframe is None or timeframe > DAY or WEEK % timeframe:
        return Gaps(), []
    bin_seconds = max(timeframe, 60)
    seconds = stamps.dt.epoch("s").to_numpy()
    origin = (int(seconds[0]) - _MONDAY) // WEEK * WEEK + _MONDAY
    bins = np.unique((seconds - origin) // bin_seconds)
    phase = int(
        np.bincount((seconds - origin) % bin_seconds).argmax()
    )  # 1,800 for hours that begin at :30
    if len(bins) < (bins[-1] - bins[0]) / 100:
        # So sparse that a stamp must be wrong: the smaller side of the widest step is reported.
        after = int(np.diff(seconds).argmax()) + 1
        far = stamps[:after] if 2 * after <= len(stamps) else stamps[after:]
        summary = "rows far from all others in time; missing bars are not counted"
        return Gaps(), finding(
            "far_stamp", Severity.WARNING, len(far), summary, map(show_stamp, far)
        )
    per_week = WEEK // bin_seconds
    present = np.zeros((int(bins[-1]) // per_week + 1, per_week), dtype=np.int8)
    present.reshape(-1)[bins] = 1
    # The number of neighbouring weeks in which each bin is present, and the number of such weeks.
    padded = np.pad(present, ((_NEIGHBOUR_WEEKS, _NEIGHBOUR_WEEKS), (0, 0)))
    near = (
        np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOUR_WEEKS + 1, axis=0).sum(
            axis=-1
        )
        - present
    )
    week = np.arange(len(present))
    num_near = np.minimum(week, _NEIGHBOUR_WEEKS) + np.minimum(week[::-1], _NEIGHBOUR_WEEKS)
    expected = np.flatnonzero(2 * near > num_near[:, None])
    expected = expected[(expected >= bins[0]) & (expected <= bins[-1])]
    missing = present.reshape(-1)[expected] == 0
    closures = []
    for first, last in zip(*findings.find_runs(missing), strict=True):
        numbers = (int(expected[first]), int(expected[last]) + 1)
        start, end = (
            _EPOCH + timedelta(seconds=origin + phase + number * bin_seconds) for number in numbers
        )
        closures.append(
            Closure(
                start=start, end=end, bins=int(last - first) + 1, holiday=_is_holiday(start, end)
            )
        )
    closures.sort(key=lambda closure: -closure.bins)
    fewest = max(2, 6 * HOUR / bin_seconds)
    long = [closure for closure in closures if closure.bins >= fewest and not closure.holiday]
    summary = (
        f"bars missing from usual trading hours in long stretches ({len(long)}), holidays apart"
    )
    return Gaps(
        expected_bins=len(expected),
        missing_bins=int(missing.sum()),
        missing_on_holidays=sum(closure.bins for closure in closures if closure.holiday),
        longest_closures=tuple(
            closure for closure in closures[: findings.NUM_EXAMPLES] if closure.bins > 1
        ),
    ), finding("gap", Severity.INFO, sum(closure.bins for closure in long), summary, map(str, long))


def _is_holiday(start: datetime, end: datetime) -> bool:
    """Inside the Christmas and New Year fortnight, or from Maundy Thursday evening to Easter
    Monday.
    """
    last = (end - timedelta(seconds=1)).date()
    turn = start.year if start.month > 6 else start.year - 1
    easter = _easter(start.year)
    holidays = (
        (date(turn, 12, 23), date(turn + 1, 1, 3)),
        (easter - timedelta(days=3), easter + timedelta(days=1)),
    )
    return any(begins <= start.date() and last <= ends for begins, ends in holidays)


def _easter(year: int) -> date:
    """Easter Sunday of the Gregorian calendar (the anonymous algorithm)."""
    century, of_century = divmod(year, 100)
    moon = (
        19 * (year % 19) + century - century // 4 - (century - (century + 8) // 25 + 1) // 3 + 15
    ) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (of_century // 4) - moon - of_century % 4) % 7
    late = (year % 19 + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * late + 114, 31)
    return date(year, month, day + 1)


def _week_time(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    day, rest = divmod(seconds % WEEK, DAY)
    return f"{_DAY_NAMES[day]} {rest // HOUR:02d}:{rest % HOUR // 60:02d}"


WeekTime = Annotated[int | None, Stored(encode=_week_time, decode=str)]
"""Seconds from Monday midnight, None if there are too few weeks; stored as a day and a time, never
read back.
"""


@dataclass(frozen=True, kw_only=True)
class Era:
    """Consecutive years, from the first through the last, with the same weekly opening times."""

    years: tuple[int, int]
    weeks: int
    open_summer: WeekTime
    open_winter: WeekTime
    close_summer: WeekTime
    close_winter: WeekTime
    follows: Annotated[str | None, Stored("daylight_saving")]
    """Whose daylight saving decides between summer and winter: "US", "EU", or None if no week shows
    it.
    """

    def __str__(self) -> str:
        years = "-".join(str(year) for year in sorted(set(self.years)))
        summer, winter = _week_time(self.open_summer), _week_time(self.open_winter)
        if moves := None not in (summer, winter) and summer != winter:
            opening, clock = f"{summer} in summer, {winter} in winter", "follows"
        else:
            season = (
                "in winter" if summer is None else "in summer" if winter is None else "all year"
            )
            opening, clock = f"{summer or winter} {season}", "on a clock that moves with"
        daylight = f", {clock} {self.follows} daylight saving" if self.follows else ""
        # An opening that never moves is New York's own clock, or a clock and a market without
        # daylight saving.
        doubt = ", or neither clock nor market moves" if self.follows == "US" and not moves else ""
        zone = ""
        if self.close_winter is not None and self.close_summer is not None:
            # The zone follows from when spot currencies and metals close.
            offsets = (
                self.close_winter - _WINTER_CLOSE_UTC,
                self.close_summer - (_WINTER_CLOSE_UTC - HOUR),
            )
            if all(offset % HOUR == 0 and abs(offset) <= 14 * HOUR for offset in offsets):
                in_winter, in_summer = (
                    f"UTC{offset // HOUR:+d}" if offset else "UTC" for offset in offsets
                )
                name = (
                    in_winter
                    if in_winter == in_summer
                    else f"{in_winter} in winter, {in_summer} in summer"
                )
                zone = f"; {name} if Friday closes at 17:00 New York"
        return f"{years}: opens {opening}{daylight}{zone}{doubt}"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The clock of the stamps as weekly openings show it: eras, and a sentence about the
    last one.
    """

    statement: str
    eras: tuple[Era, ...] = ()


def read_clock(stamps: pl.Series, timeframe: int | None) -> tuple[Clock, list[Finding]]:
    """Infer the clock from the weekends; `stamps` are sorted and not null."""
    if timeframe is None or timeframe > HOUR:
        return Clock(statement="bars of an hour or less are needed to see the weekly opening"), []
    weekends = _find_weekends(stamps, timeframe)
    if len(weekends) < _FEWEST_WEEKS:
        return Clock(
            statement="no weekly opening: the asset trades through the weekend, or the span is "
            "too short"
        ), []
    eras: list[Era] = []
    for (number,), weeks in weekends.group_by("year", maintain_order=True):
        year = _year_era(number, weeks)
        opening = ("open_summer", "open_winter", "follows")
        times = (*opening, "close_summer", "close_winter")
        known = {name: value for name in times if (value := getattr(year, name)) is not None}
        # Consecutive years that do not contradict each other are one era, and complete each other.
        if eras and all(
            getattr(eras[-1], name) in (None, known[name]) for name in opening if name in known
        ):
            span, num_weeks = (eras[-1].years[0], year.years[1]), eras[-1].weeks + year.weeks
            eras[-1] = replace(eras[-1], years=span, weeks=num_weeks, **known)
        else:
            eras.append(year)
    num_before = sum(era.weeks for era in eras[:-1])
    summary = "weekly openings before the present rhythm of the week began"
    moved = finding("opening_moved", Severity.INFO, num_before, summary, map(str, eras))
    return Clock(statement=str(eras[-1]), eras=tuple(eras)), moved


def _find_weekends(stamps: pl.Series, timeframe: int) -> pl.DataFrame:
    """One row per weekend: opening and closing in seconds of the week, and whether US and EU had
    daylight saving.
    """

    def daylight(zone: str) -> pl.Expr:
        # Noon is hours after any change; a naive clock can mislead on the Sunday of a change alone.
        noon = pl.col("opened").dt.truncate("1d").dt.offset_by("12h")
        return noon.dt.replace_time_zone("UTC").dt.convert_time_zone(
            zone
        ).dt.dst_offset() > pl.duration(seconds=0)

    def second_of_week(stamp: pl.Expr) -> pl.Expr:
        # To the nearest half hour: the first and last minutes of a week may have no bar.
        return (stamp.dt.round("30m") - stamp.dt.truncate("1w")).dt.total_seconds()

    closed = pl.col("opened").shift().dt.offset_by(f"{timeframe}s")
    pause = (pl.col("opened") - pl.col("closed")).dt.total_seconds()
    weekends = stamps.alias("opened").to_frame().with_columns(closed.alias("closed"))
    return weekends.filter(pause.is_between(DAY, 5 * DAY)).select(
        year=pl.col("opened").dt.year(),
        open=second_of_week(pl.col("opened")),
        close=second_of_week(pl.col("closed")),
        us=daylight("America/New_York"),
        eu=daylight("Europe/London"),
    )


def _year_era(year: Any, weeks: pl.DataFrame) -> Era:
    us, eu, opened = pl.col("us"), pl.col("eu"), pl.col("open")

    def usual(what: str, season: pl.Expr) -> Any:
        """The commonest time, the earliest of equals; None below a few weeks."""
        times = weeks.filter(season)[what]
        return times.mode().min() if len(times) >= _FEWEST_WEEKS else None

    seasons = {"summer": us & eu, "winter": ~us & ~eu}
    times = {
        f"{what}_{name}": usual(what, season)
        for name, season in seasons.items()
        for what in ("open", "close")
    }
    summer, winter = times["open_summer"], times["open_winter"]
    follows = None
    if summer is not None and winter is not None:
        # A clock that is moved to keep the opening slips by an hour in the weeks of the other side.
        as_us = opened == pl.when(us).then(summer).otherwise(winter)
        as_eu = ~as_us if summer == winter else opened == pl.when(eu).then(summer).otherwise(winter)
        votes = weeks.filter(us != eu).select(US=as_us.sum(), EU=as_eu.sum()).row(0, named=True)
        follows = max(votes, key=lambda side: votes[side]) if votes["US"] != votes["EU"] else None
    return Era(years=(year, year), weeks=len(weeks), follows=follows, **times)
