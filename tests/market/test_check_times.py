"""Gaps and the clock, on markets whose sessions and time zones are known."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta

import polars as pl
import pytest
from dateutil.easter import easter
from hypothesis import given, settings
from hypothesis import strategies as st

from vaiom.codec import to_json
from vaiom.market.clock import Clock, read_clock
from vaiom.market.folder import infer_timeframe
from vaiom.market.gaps import Closure, Gaps, easter_sunday, find_gaps

HOUR = 3600
WEEK_HOURS = 168


def session(
    zone: str,
    opens: tuple[int, int],
    closes: tuple[int, int],
    first: date = date(2020, 6, 1),
    last: date = date(2024, 6, 1),
) -> pl.Series:
    """Hourly stamps in UTC of a market open from (weekday, hour) to (weekday, hour), both in its
    own zone.
    """
    hours = pl.datetime_range(first, last, "1h", time_zone="UTC", eager=True)
    local = hours.dt.convert_time_zone(zone)
    of_week = (local.dt.weekday().cast(pl.Int32) - 1) * 24 + local.dt.hour()
    start, end = opens[0] * 24 + opens[1], closes[0] * 24 + closes[1]
    return hours.filter((of_week - start) % WEEK_HOURS < (end - start) % WEEK_HOURS)


def on_clock(stamps: pl.Series, zone: str) -> pl.Series:
    return stamps.dt.convert_time_zone(zone).dt.replace_time_zone(None).alias("Datetime")


@pytest.fixture(scope="module")
def spot() -> pl.Series:
    """Sunday 17:00 to Friday 17:00 in New York."""
    return session("America/New_York", (6, 17), (4, 17))


def clock_of(stamps: pl.Series) -> Clock:
    return read_clock(stamps, infer_timeframe(stamps) // timedelta(seconds=1))[0]


def test_a_clock_in_utc_is_named(spot: pl.Series) -> None:
    clock = clock_of(on_clock(spot, "UTC"))
    assert clock.statement == (
        "2020-2024: opens Sunday 21:00 in summer, Sunday 22:00 in winter, follows US daylight "
        "saving; "
        "UTC if Friday closes at 17:00 New York"
    )


def test_a_broker_clock_seven_hours_ahead_of_new_york(spot: pl.Series) -> None:
    stamps = on_clock(spot, "America/New_York").dt.offset_by("7h")
    (era,) = clock_of(stamps).eras
    assert (to_json(era)["open_summer"], to_json(era)["open_winter"]) == (
        "Monday 00:00",
        "Monday 00:00",
    )
    assert era.follows == "US"
    assert "UTC+2 in winter, UTC+3 in summer" in str(era)


def test_a_clock_that_follows_europe(spot: pl.Series) -> None:
    (era,) = clock_of(on_clock(spot, "Europe/Helsinki")).eras
    assert (era.follows, era.open_summer) == ("EU", era.open_winter)
    assert "opens Monday 00:00 all year, on a clock that moves with EU daylight saving" in str(era)


def test_a_market_that_follows_europe() -> None:
    stamps = session("Europe/London", (0, 8), (4, 17))
    (era,) = clock_of(on_clock(stamps, "UTC")).eras
    assert (
        "opens Monday 07:00 in summer, Monday 08:00 in winter, follows EU daylight saving"
        in str(era)
    )


def test_late_first_minutes_do_not_blur_the_opening(spot: pl.Series) -> None:
    hours = on_clock(spot, "UTC")
    late = pl.format("{}m", pl.col("Datetime").dt.week() % 12)
    stamps = hours.to_frame().select(pl.col("Datetime").dt.offset_by(late))["Datetime"]
    assert read_clock(stamps, HOUR)[0].statement == clock_of(hours).statement


def test_an_hour_more_begins_an_era(spot: pl.Series) -> None:
    stamps = on_clock(spot, "UTC").to_frame()
    later = pl.when(pl.col("Datetime").dt.year() >= 2022).then(pl.lit("1h")).otherwise(pl.lit("0h"))
    clock = clock_of(stamps.select(pl.col("Datetime").dt.offset_by(later))["Datetime"])
    assert [(era.years[0], era.follows) for era in clock.eras] == [(2020, "US"), (2022, "US")]


def test_a_change_of_clock_begins_an_era(spot: pl.Series) -> None:
    before = spot.filter(spot.dt.year() < 2022)
    after = spot.filter(spot.dt.year() >= 2022)
    stamps = pl.concat([on_clock(before, "UTC"), on_clock(after, "Europe/Helsinki")])
    clock, (finding,) = read_clock(stamps, HOUR)
    assert [era.years for era in clock.eras] == [(2020, 2021), (2022, 2024)]
    assert finding.kind == "opening_moved"
    assert 82 <= finding.count <= 84  # the weeks from June 2020 to the end of 2021
    assert finding.examples[0].startswith("2020-2021: opens Sunday 21:00 in summer")


@pytest.mark.parametrize(("weeks", "known"), [(2, False), (3, True)])
def test_three_weekends_are_enough_for_an_opening(spot: pl.Series, weeks: int, known: bool) -> None:
    stamps = on_clock(spot, "UTC")
    start = datetime(2021, 1, 4)
    clock = clock_of(
        stamps.filter(stamps.is_between(start, start + timedelta(weeks=weeks), closed="left"))
    )
    assert ("Sunday 22:00 in winter" in clock.statement) == known
    assert [era.weeks for era in clock.eras] == [3] * known


def test_no_opening_no_statement_about_it() -> None:
    hours = pl.datetime_range(datetime(2024, 1, 1), datetime(2024, 6, 1), "1h", eager=True)
    assert "trades through the weekend" in clock_of(hours).statement
    days = pl.datetime_range(datetime(2024, 1, 1), datetime(2024, 6, 1), "1d", eager=True)
    assert "an hour or less" in clock_of(days).statement


def test_weeks_between_two_daylight_savings_miss_their_last_hour_at_most(spot: pl.Series) -> None:
    stamps = on_clock(spot, "Europe/Helsinki")
    gaps, findings = find_gaps(stamps, HOUR)
    assert findings == []
    assert 0 < gaps.missing_bins <= 4 * 4  # four such weeks a year
    assert gaps.longest_closures == ()


@pytest.mark.parametrize("minute", [0, 30])
def test_a_closure_is_found_across_its_weekend(spot: pl.Series, minute: int) -> None:
    """Also of bars that begin at :30, whose stamps it tells."""
    stamps = on_clock(spot, "UTC").dt.offset_by(f"{minute}m")
    closed = stamps.is_between(datetime(2022, 8, 5, 10, minute), datetime(2022, 8, 8, 2, minute))
    gaps, (finding,) = find_gaps(stamps.filter(~closed), HOUR)
    assert gaps.missing_bins == closed.sum() == finding.count
    missing = f"2022-08-05 10:{minute:02d} to 2022-08-08 03:{minute:02d} ({closed.sum()} bars)"
    assert str(gaps.longest_closures[0]) == missing


HOLIDAYS = {
    first + timedelta(days=number)
    for year in range(2018, 2027)
    for first, count in ((date(year, 12, 23), 12), (easter(year) - timedelta(days=3), 5))
    for number in range(count)
}


def reference_gaps(stamps: list[datetime], step: timedelta) -> tuple[Gaps, int]:
    """The rule bin by bin, and how many bars are missing in long stretches apart from holidays."""
    there, first = set(stamps), stamps[0]
    monday = datetime(first.year, first.month, first.day) - timedelta(days=first.weekday())
    last_week = (stamps[-1] - monday) // timedelta(weeks=1)
    expected, runs, before = 0, list[list[datetime]](), False
    for number in range((stamps[-1] - first) // step + 1):
        stamp = first + number * step
        week = (stamp - monday) // timedelta(weeks=1)
        near = [k for k in range(-4, 5) if k and 0 <= week + k <= last_week]
        if 2 * sum(stamp + timedelta(weeks=k) in there for k in near) > len(near):
            expected += 1
            if stamp not in there:
                runs += [] if before else [[]]
                runs[-1].append(stamp)
            before = stamp not in there
    closures = []
    for run in sorted(runs, key=lambda run: -len(run)):
        end = run[-1] + step
        days = {
            (run[0] + timedelta(hours=hour)).date()
            for hour in range((end - run[0]) // timedelta(hours=1))
        }
        closures.append(Closure(start=run[0], end=end, bins=len(run), holiday=days <= HOLIDAYS))
    return Gaps(
        expected_bins=expected,
        missing_bins=sum(map(len, runs)),
        missing_on_holidays=sum(each.bins for each in closures if each.holiday),
        longest_closures=tuple(each for each in closures[:5] if each.bins > 1),
    ), sum(
        c.bins
        for c in closures
        if not c.holiday and c.bins >= 2 and c.bins * step >= timedelta(hours=6)
    )


@settings(max_examples=60)
@given(
    st.datetimes(datetime(2019, 1, 1), datetime(2023, 6, 1)).map(
        lambda when: datetime(when.year, when.month, when.day)
    ),
    st.sampled_from([2, 8, 24]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 12)), max_size=9),
    st.integers(2, 20),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_gaps_are_those_of_a_plain_loop(
    start: datetime, hours: int, holes: list[tuple[float, int]], weeks: int, thin: float
) -> None:
    step, count = timedelta(hours=hours), weeks * WEEK_HOURS // hours
    taken = {2 + int(share * count) + number for share, length in holes for number in range(length)}
    taken |= {number for number in range(2, count) if random.Random(number).random() < thin}
    stamps = [
        start + number * step for number in range(count) if number not in taken and number % 7
    ]
    gaps, found = find_gaps(pl.Series(stamps, dtype=pl.Datetime("us")), hours * HOUR)
    expected, num_long = reference_gaps(stamps, step)
    assert gaps == expected
    counts = {each.kind: each.count for each in found}
    is_poor = expected.missing_bins > 0.1 * expected.expected_bins
    assert counts.pop("missing_bars", 0) == is_poor * expected.missing_bins
    assert counts == ({"gap": num_long} if num_long else {})


@pytest.mark.parametrize(
    ("first", "last", "holiday"),
    [
        ("2021-12-23 00:00", "2022-01-03 23:00", True),
        ("2022-01-01 00:00", "2022-01-03 23:00", True),
        ("2022-12-22 23:00", "2022-12-26 12:00", False),
        ("2022-12-24 00:00", "2023-01-04 00:00", False),
        ("2022-01-03 22:00", "2022-01-04 00:00", False),
        ("2022-04-14 00:00", "2022-04-18 23:00", True),
        ("2022-04-13 23:00", "2022-04-15 12:00", False),
        ("2022-04-15 00:00", "2022-04-19 00:00", False),
    ],
)
def test_a_closure_is_a_holiday_from_its_first_bar_to_its_last(
    first: str, last: str, holiday: bool
) -> None:
    hours = pl.datetime_range(datetime(2021, 6, 1), datetime(2023, 6, 1), "1h", eager=True)
    closed = hours.is_between(datetime.fromisoformat(first), datetime.fromisoformat(last))
    gaps, found = find_gaps(hours.filter(~closed), HOUR)
    assert gaps.missing_bins == closed.sum()
    assert [closure.holiday for closure in gaps.longest_closures] == [holiday]
    assert gaps.missing_on_holidays == holiday * closed.sum()
    long = closed.sum() >= 6 and not holiday
    assert [each.count for each in found] == [closed.sum()] * bool(long)


@pytest.mark.parametrize(
    ("groups", "far"),
    [
        ([(0, 11), (1100, 1)], []),
        ([(0, 11), (1201, 1)], [1201]),
        ([(0, 1), (1290, 12)], [0]),
        ([(0, 6), (1300, 6)], [0, 1, 2, 3, 4, 5]),
        ([(0, 7), (1310, 6)], [1310, 1311, 1312, 1313, 1314, 1315]),
    ],
)
def test_stamps_are_far_where_fewer_than_one_in_a_hundred_is_there(
    groups: list[tuple[int, int]], far: list[int]
) -> None:
    start = datetime(2024, 1, 3)
    hours = [first + number for first, count in groups for number in range(count)]
    gaps, found = find_gaps(pl.Series([start + timedelta(hours=hour) for hour in hours]), HOUR)
    assert [(each.kind, each.count) for each in found if each.kind == "far_stamp"] == [
        ("far_stamp", len(far))
    ] * bool(far)
    shown = [f"{start + timedelta(hours=hour):%Y-%m-%d %H:%M}" for hour in far[:5]]
    assert [list(each.examples) for each in found] == [shown] * bool(far)
    assert gaps == Gaps() or not far


def test_no_gaps_where_a_week_does_not_repeat() -> None:
    stamps = pl.datetime_range(datetime(2024, 1, 1), datetime(2024, 6, 1), "1w", eager=True)
    for step in (None, 7 * 24 * HOUR, 5 * HOUR):
        gaps, found = find_gaps(stamps, step)
        assert (to_json(gaps), found) == (
            {
                "expected_bins": 0,
                "missing_bins": 0,
                "missing_on_holidays": 0,
                "longest_closures": [],
            },
            [],
        )


def test_bars_of_seconds_are_counted_by_the_minute() -> None:
    days = pl.datetime_range(
        datetime(2024, 1, 1), datetime(2024, 1, 29), "30s", closed="left", eager=True
    )
    stamps = days.filter(days.dt.hour() == 9)
    hole = stamps.is_between(datetime(2024, 1, 10, 9, 3), datetime(2024, 1, 10, 9, 4, 30))
    gaps, _ = find_gaps(stamps.filter(~hole), 30)
    assert (gaps.expected_bins, gaps.missing_bins) == (28 * 60, 2)


def test_easter() -> None:
    years = range(1583, 2600)
    assert [easter_sunday(year) for year in years] == [easter(year) for year in years]
