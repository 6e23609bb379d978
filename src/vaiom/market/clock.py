"""The clock of a series' stamps, inferred from when its weeks open and close.

Enters: stamps. Leaves: eras of years with the same weekly opening, whose daylight saving they
follow, and the offset from UTC if the market closes when spot currencies do. Stamps are consumed as
stored; this only describes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import polars as pl

from vaiom.codec import Stored
from vaiom.market.findings import Finding, Severity, finding
from vaiom.market.sessions import DAY, HOUR, MINUTE, WEEK

MIN_WEEKS = 3
"""Fewer weeks of a season do not tell when a market opens in it."""
NEW_YORK_CLOSE_IN_WINTER = 4 * DAY + 22 * HOUR
"""Friday 17:00 in New York, as seconds of the UTC week; an hour earlier in summer."""
MAX_UTC_OFFSET = 14 * HOUR

_DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _show_week_time(seconds: int | None) -> str | None:
    """A time of the week in words, as in `Sunday 22:00`."""
    if seconds is None:
        return None
    day, second_of_day = divmod(seconds % WEEK, DAY)
    hour, second_of_hour = divmod(second_of_day, HOUR)
    minute = second_of_hour // MINUTE
    return f"{_DAY_NAMES[day]} {hour:02d}:{minute:02d}"


WeekTime = Annotated[int | None, Stored(encode=_show_week_time, decode=str)]
"""Seconds since Monday midnight, or None if there are too few weeks. In JSON a day and a time."""


@dataclass(frozen=True, kw_only=True)
class Era:
    """Consecutive years in which the week opens at the same times."""

    years: tuple[int, int]
    """The first and the last."""
    weeks: int
    open_summer: WeekTime
    open_winter: WeekTime
    close_summer: WeekTime
    close_winter: WeekTime
    follows: Annotated[str | None, Stored("daylight_saving")]
    """Whose daylight saving decides between summer and winter: "US", "EU", or None if unknown."""

    def __str__(self) -> str:
        first, last = self.years
        years = f"{first}-{last}" if first != last else f"{first}"
        summer = _show_week_time(self.open_summer)
        winter = _show_week_time(self.open_winter)
        both_known = summer is not None and winter is not None
        moves = both_known and summer != winter
        if moves:
            opening = f"{summer} in summer, {winter} in winter"
        elif both_known:
            opening = f"{summer} all year"
        elif summer is None:
            opening = f"{winter} in winter"
        else:
            opening = f"{summer} in summer"
        remarks = self._daylight(moves) + self._zone() + self._doubt(moves)
        return f"{years}: opens {opening}{remarks}"

    def _daylight(self, moves: bool) -> str:
        """Whose daylight saving the opening, or a clock on which it never moves, follows."""
        if self.follows is None:
            return ""
        verb = "follows" if moves else "on a clock that moves with"
        return f", {verb} {self.follows} daylight saving"

    def _zone(self) -> str:
        """The offset from UTC, if this market closes when spot currencies and metals do."""
        if self.close_winter is None or self.close_summer is None:
            return ""
        winter = self.close_winter - NEW_YORK_CLOSE_IN_WINTER
        summer = self.close_summer - (NEW_YORK_CLOSE_IN_WINTER - HOUR)
        for offset in (winter, summer):
            if offset % HOUR or abs(offset) > MAX_UTC_OFFSET:
                return ""
        zone = _show_offset(winter)
        if summer != winter:
            zone = f"{zone} in winter, {_show_offset(summer)} in summer"
        return f"; {zone} if Friday closes at 17:00 New York"

    def _doubt(self, moves: bool) -> str:
        """An opening that never moves is New York's own clock, or nothing has daylight saving."""
        if self.follows == "US" and not moves:
            return ", or neither clock nor market moves"
        return ""


def _show_offset(seconds: int) -> str:
    """An offset from UTC in words, as in `UTC+2`."""
    return f"UTC{seconds // HOUR:+d}" if seconds else "UTC"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The clock of the stamps, as the weekly openings show it."""

    statement: str
    """The last era in a sentence, or why there is none."""
    eras: tuple[Era, ...] = ()


def read_clock(stamps: pl.Series, timeframe: int | None) -> tuple[Clock, list[Finding]]:
    """Infer the clock from the weekends, from sorted stamps and the seconds of a bar.

    Consecutive years that do not contradict each other are one era.
    """
    if timeframe is None or timeframe > HOUR:
        return Clock(statement="bars of an hour or less are needed to see the weekly opening"), []
    weekends = _find_weekends(stamps, timeframe)
    if len(weekends) < MIN_WEEKS:
        statement = (
            "no weekly opening: the asset trades through the weekend, or the span is too short"
        )
        return Clock(statement=statement), []
    eras: list[Era] = []
    for (number,), weeks in weekends.group_by("year", maintain_order=True):
        year = _era_of_year(number, weeks)
        joined = _join(eras[-1], year) if eras else None
        if joined is None:
            eras.append(year)
        else:
            eras[-1] = joined
    num_before = sum(era.weeks for era in eras[:-1])
    summary = "weekly openings before the week opened at its present times"
    moved = finding("opening_moved", Severity.INFO, num_before, summary, map(str, eras))
    return Clock(statement=str(eras[-1]), eras=tuple(eras)), moved


def _join(era: Era, year: Era) -> Era | None:
    """The era with one more year, whose times complete it; None if their openings differ."""
    opening = ("open_summer", "open_winter", "follows")
    known = {}
    for name in (*opening, "close_summer", "close_winter"):
        value = getattr(year, name)
        if value is None:
            continue
        differs = getattr(era, name) not in (None, value)
        if differs and name in opening:
            return None
        known[name] = value
    years = (era.years[0], year.years[1])
    num_weeks = era.weeks + year.weeks
    return replace(era, years=years, weeks=num_weeks, **known)


def _find_weekends(stamps: pl.Series, timeframe: int) -> pl.DataFrame:
    """One row per weekend: `year`, `open` and `close` in seconds of the week, `us` and `eu`.

    The last two say whether New York and London had daylight saving.
    """

    def has_daylight_saving(zone: str) -> pl.Expr:
        # Noon is hours after any change, so a naive clock misleads on the Sunday of a change alone.
        noon = pl.col("opened").dt.truncate("1d").dt.offset_by("12h")
        local = noon.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
        return local.dt.dst_offset() > pl.duration(seconds=0)

    def second_of_week(stamp: pl.Expr) -> pl.Expr:
        # To the nearest half hour: the first and last minutes of a week may have no bar.
        since_monday = stamp.dt.round("30m") - stamp.dt.truncate("1w")
        return since_monday.dt.total_seconds()

    opened = pl.col("opened")
    closed = pl.col("closed")
    end_of_bar_before = opened.shift().dt.offset_by(f"{timeframe}s")
    pause = (opened - closed).dt.total_seconds()
    pauses = stamps.to_frame("opened").with_columns(closed=end_of_bar_before)
    weekends = pauses.filter(pause.is_between(DAY, 5 * DAY))
    return weekends.select(
        year=opened.dt.year(),
        open=second_of_week(opened),
        close=second_of_week(closed),
        us=has_daylight_saving("America/New_York"),
        eu=has_daylight_saving("Europe/London"),
    )


def _era_of_year(year: Any, weeks: pl.DataFrame) -> Era:
    """The usual opening and closing times of one year's weekends."""
    us = pl.col("us")
    eu = pl.col("eu")
    summer_weeks = weeks.filter(us & eu)
    winter_weeks = weeks.filter(~us & ~eu)
    open_summer = _usual(summer_weeks["open"])
    open_winter = _usual(winter_weeks["open"])
    follows = None
    if open_summer is not None and open_winter is not None:
        follows = _followed(weeks.filter(us != eu), open_summer, open_winter)
    return Era(
        years=(year, year),
        weeks=len(weeks),
        follows=follows,
        open_summer=open_summer,
        open_winter=open_winter,
        close_summer=_usual(summer_weeks["close"]),
        close_winter=_usual(winter_weeks["close"]),
    )


def _usual(times: pl.Series) -> Any:
    """The commonest time, the earliest of equals; None if there are too few."""
    return times.mode().min() if len(times) >= MIN_WEEKS else None


def _followed(weeks: pl.DataFrame, summer: int, winter: int) -> str | None:
    """Whose daylight saving the openings follow, from weeks in which US and EU differ.

    Each such week votes for the side under which it opened at its usual time; None if the votes are
    even.
    """
    opened = pl.col("open")
    as_us = opened == pl.when("us").then(summer).otherwise(winter)
    as_eu = opened == pl.when("eu").then(summer).otherwise(winter)
    if summer == winter:
        # The clock is moved to keep the opening, and is an hour off in the weeks of the other side.
        as_eu = ~as_us
    votes = weeks.select(us=as_us.sum(), eu=as_eu.sum())
    num_us, num_eu = votes.row(0)
    if num_us == num_eu:
        return None
    return "US" if num_us > num_eu else "EU"
