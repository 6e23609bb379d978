"""Which clock the stamps are on: where the week opens and closes, and whether that moves with daylight saving.

Enters: the sorted stamps of one asset. Leaves: a `Clock`: eras of one rhythm each, and a sentence about the last.
Paper: "Market Data, Price Convention and Bar Construction" (stamps are the provider's and are never localised, so the
clock can only be read off the data).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from vaiom.market.findings import Finding, Severity, finding
from vaiom.market.grid import DAY, HOUR, WEEK

_LONGEST_WEEKEND = 5 * DAY
_WINTER_CLOSE_UTC = 4 * DAY + 22 * HOUR  # Friday 17:00 in New York, seconds from Monday midnight
_FEWEST_WEEKS = 3
_HALF_HOUR = HOUR // 2
_RHYTHM = ("open_summer", "open_winter", "follows")
_CLOSES = ("close_summer", "close_winter")
_DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, kw_only=True)
class Era:
    """Neighbouring years with one weekly rhythm; times in seconds from Monday midnight, None if too few weeks say."""

    first_year: int
    last_year: int
    num_weeks: int
    open_summer: int | None
    open_winter: int | None
    close_summer: int | None
    close_winter: int | None
    follows: str | None
    """Whose daylight saving decides between summer and winter: "US", "EU", or None where no week tells."""

    @property
    def moves(self) -> bool:
        """Whether the opening stands at another clock time in summer than in winter."""
        return None not in (self.open_summer, self.open_winter) and self.open_summer != self.open_winter

    def __str__(self) -> str:
        years = f"{self.first_year}" if self.first_year == self.last_year else f"{self.first_year}-{self.last_year}"
        if self.moves:
            opening = f"opens {_week_time(self.open_summer)} in summer, {_week_time(self.open_winter)} in winter"
            daylight = f", follows {self.follows} daylight saving" if self.follows else ""
            return f"{years}: {opening}{daylight}{self._zone()}"
        known = self.open_winter if self.open_summer is None else self.open_summer
        both = self.open_summer is not None and self.open_winter is not None
        season = "all year" if both else "in winter" if self.open_summer is None else "in summer"
        daylight = f", on a clock that moves with {self.follows} daylight saving" if self.follows else ""
        # In America's own rhythm nothing ever moves, which a clock and a market without daylight saving do as well.
        doubt = ", or neither clock nor market moves" if self.follows == "US" else ""
        return f"{years}: opens {_week_time(known)} {season}{daylight}{self._zone()}{doubt}"

    def _zone(self) -> str:
        """The clock's name, on a premise that holds for spot currencies and metals: they close at 17:00 New York."""
        if self.close_winter is None or self.close_summer is None:
            return ""
        winter = self.close_winter - _WINTER_CLOSE_UTC
        summer = self.close_summer - (_WINTER_CLOSE_UTC - HOUR)
        if winter % HOUR or summer % HOUR or max(abs(winter), abs(summer)) > 14 * HOUR:
            return ""
        zone = _utc(winter) if winter == summer else f"{_utc(winter)} in winter, {_utc(summer)} in summer"
        return f"; {zone} if Friday closes at 17:00 New York"

    def to_json(self) -> dict[str, Any]:
        return {
            "years": [self.first_year, self.last_year],
            "weeks": self.num_weeks,
            "open_summer": _week_time(self.open_summer),
            "open_winter": _week_time(self.open_winter),
            "close_summer": _week_time(self.close_summer),
            "close_winter": _week_time(self.close_winter),
            "daylight_saving": self.follows,
        }


@dataclass(frozen=True, kw_only=True)
class Clock:
    """What the weekly openings say about the clock."""

    statement: str
    eras: tuple[Era, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"statement": self.statement, "eras": [era.to_json() for era in self.eras]}


def read_clock(stamps: pl.Series, timeframe: int | None) -> tuple[Clock, list[Finding]]:
    """Read the clock from the weekends; `stamps` are sorted and not null."""
    if timeframe is None or timeframe > HOUR:
        return Clock(statement="bars of an hour or less are needed to see the weekly opening"), []
    weekends = _weekends(stamps, timeframe)
    if len(weekends) < _FEWEST_WEEKS:
        return Clock(statement="no weekly opening: the asset trades through the weekend, or the span is too short"), []
    eras = _merge([_year_era(year, weeks) for (year,), weeks in weekends.group_by("year", maintain_order=True)])
    others = sum(era.num_weeks for era in eras[:-1])
    moved = finding(
        "opening_moved",
        Severity.INFO,
        others,
        "weekly openings before the present rhythm of the week began",
        (str(era) for era in eras),
    )
    return Clock(statement=str(eras[-1]), eras=eras), moved


def _weekends(stamps: pl.Series, timeframe: int) -> pl.DataFrame:
    """One row per weekend: opening and closing in seconds of the week, and who had daylight saving then."""

    def daylight(zone: str) -> pl.Expr:
        # Noon is hours after any change; a day's error of a naive clock cannot matter but on the Sunday of the change.
        noon = pl.col("opened").dt.truncate("1d").dt.offset_by("12h")
        return noon.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.dst_offset() > pl.duration(seconds=0)

    closed = pl.col("opened").shift().dt.offset_by(f"{timeframe}s")
    pause = (pl.col("opened") - pl.col("closed")).dt.total_seconds()
    return (
        stamps.alias("opened")
        .to_frame()
        .with_columns(closed.alias("closed"))
        .filter(pause.is_between(DAY, _LONGEST_WEEKEND))
        .select(
            pl.col("opened").dt.year().alias("year"),
            _second_of_week(pl.col("opened")).alias("open"),
            _second_of_week(pl.col("closed")).alias("close"),
            daylight("America/New_York").alias("us"),
            daylight("Europe/London").alias("eu"),
        )
    )


def _second_of_week(stamp: pl.Expr) -> pl.Expr:
    """From Monday midnight, to the nearest half hour: the first and last minutes of a week may have no bar."""
    day = stamp.dt.weekday().cast(pl.Int64) - 1
    seconds = day * DAY + (stamp - stamp.dt.truncate("1d")).dt.total_seconds()
    return (seconds + _HALF_HOUR // 2).floordiv(_HALF_HOUR) * _HALF_HOUR


def _year_era(year: Any, weeks: pl.DataFrame) -> Era:
    summer, winter = weeks.filter(pl.col("us") & pl.col("eu")), weeks.filter(~pl.col("us") & ~pl.col("eu"))
    disputed = weeks.filter(pl.col("us") != pl.col("eu"))
    open_summer, open_winter = _usual(summer["open"]), _usual(winter["open"])
    follows = None
    if open_summer is not None and open_winter is not None and len(disputed):
        follows = _follows(disputed, open_summer, open_winter)
    return Era(
        first_year=year,
        last_year=year,
        num_weeks=len(weeks),
        open_summer=open_summer,
        open_winter=open_winter,
        close_summer=_usual(summer["close"]),
        close_winter=_usual(winter["close"]),
        follows=follows,
    )


def _follows(disputed: pl.DataFrame, open_summer: int, open_winter: int) -> str | None:
    """Decide by the weeks in which America and Europe differ."""
    if open_summer == open_winter:
        # The clock is moved to keep the opening: on the wrong side's weeks the opening slips by an hour.
        us, eu = (disputed["open"] == open_summer).sum(), (disputed["open"] != open_summer).sum()
    else:
        with_us = pl.when(pl.col("us")).then(open_summer).otherwise(open_winter)
        with_eu = pl.when(pl.col("eu")).then(open_summer).otherwise(open_winter)
        us, eu = disputed.select((pl.col("open") == with_us).sum(), (pl.col("open") == with_eu).sum().alias("eu")).row(
            0
        )
    return None if us == eu else "US" if us > eu else "EU"


def _usual(times: pl.Series) -> int | None:
    """The commonest time, the earliest of equals; None below a few weeks."""
    return int(times.mode().min()) if len(times) >= _FEWEST_WEEKS else None  # type: ignore[arg-type]


def _merge(years: list[Era]) -> tuple[Era, ...]:
    """Join neighbouring years that do not contradict each other; what one does not know, the other tells."""
    eras: list[Era] = []
    for year in years:
        if eras and all(_agree(getattr(eras[-1], name), getattr(year, name)) for name in _RHYTHM):
            last = eras[-1]
            known = {name: _either(getattr(last, name), getattr(year, name)) for name in (*_RHYTHM, *_CLOSES)}
            eras[-1] = replace(last, last_year=year.last_year, num_weeks=last.num_weeks + year.num_weeks, **known)
        else:
            eras.append(year)
    return tuple(eras)


def _agree(one: Any, other: Any) -> bool:
    return one is None or other is None or one == other


def _either(one: Any, other: Any) -> Any:
    return other if other is not None else one


def _week_time(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    day, rest = divmod(seconds % WEEK, DAY)
    return f"{_DAY_NAMES[day]} {rest // HOUR:02d}:{rest % HOUR // 60:02d}"


def _utc(offset: int) -> str:
    return f"UTC{offset // HOUR:+d}" if offset else "UTC"
