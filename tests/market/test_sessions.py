"""The bar that will come next, learned from the week of those that came."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from vaiom.market.sessions import WEEK, next_stamp

HOUR = 3_600


def hours(start: datetime, number: int, is_open: object = None) -> list[datetime]:
    every = (start + timedelta(hours=each) for each in range(number))
    return [each for each in every if is_open is None or is_open(each)]  # type: ignore[operator]


def seconds(stamps: list[datetime]) -> npt.NDArray[np.uint32]:
    return np.array(stamps, "datetime64[s]").astype(np.int64).astype(np.uint32)


def following(stamps: list[datetime], step: int = HOUR, ahead: int = 1) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=next_stamp(seconds(stamps), step, ahead))


def fx(moment: datetime) -> bool:
    """Sunday 22:00 to Friday 21:00."""
    day, hour = moment.weekday(), moment.hour
    return not (day == 5 or (day == 4 and hour > 21) or (day == 6 and hour < 22))


def shares(moment: datetime) -> bool:
    return moment.weekday() < 5 and 14 <= moment.hour <= 20


def test_after_the_last_bar_of_a_week_comes_the_first_of_the_next() -> None:
    friday = [
        each
        for each in hours(datetime(2024, 1, 1), 40 * 24, fx)
        if each <= datetime(2024, 2, 9, 21)
    ]
    assert friday[-1] == datetime(2024, 2, 9, 21)
    assert following(friday) == datetime(2024, 2, 11, 22)
    assert following(friday, ahead=3) == datetime(2024, 2, 12, 0)
    assert following(friday[:-1]) == friday[-1]


def test_sessions_nights_and_markets_that_never_close() -> None:
    evening = [
        each
        for each in hours(datetime(2024, 1, 1), 60 * 24, shares)
        if each <= datetime(2024, 2, 8, 20)
    ]
    assert following(evening) == datetime(2024, 2, 9, 14)
    assert following([each for each in evening if each <= datetime(2024, 2, 2, 20)]) == datetime(
        2024, 2, 5, 14
    )
    always = hours(datetime(2024, 1, 1), 1_000)
    assert following(always) == always[-1] + timedelta(hours=1)
    # One holiday in the window, or one odd bar on a Saturday, changes nothing.
    holiday = [each for each in evening if each.date() != datetime(2024, 2, 2).date()]
    odd = sorted([*evening, datetime(2024, 1, 20, 3)])
    assert following(holiday) == following(odd) == datetime(2024, 2, 9, 14)
    days = [
        each
        for each in hours(datetime(2024, 1, 1), 60 * 24)
        if each.hour == 0 and each.weekday() < 5
    ]
    assert following(
        [each for each in days if each <= datetime(2024, 2, 9)], 24 * HOUR
    ) == datetime(2024, 2, 12)


def test_a_change_of_daylight_saving_moves_the_next_bar() -> None:
    """New York's hours from 9:30 on: 13:00 to 19:00 UTC in summer, an hour later in winter."""

    def new_york(moment: datetime) -> bool:
        opens = 14 if moment >= datetime(2025, 11, 2) else 13
        holiday = moment.date() == datetime(2025, 11, 27).date()
        return moment.weekday() < 5 and opens <= moment.hour <= opens + 6 and not holiday

    past = hours(datetime(2025, 5, 1), 230 * 24, new_york)
    until = [each for each in past if each <= datetime(2025, 12, 8, 20)][-1_024:]
    assert following(until) == datetime(2025, 12, 9, 14)
    assert following(until[:-1]) == datetime(2025, 12, 8, 20)
    assert following(until, ahead=8) == datetime(2025, 12, 10, 14)
    # Thanksgiving was two Thursdays ago: the next one trades.
    wednesday = [each for each in until if each <= datetime(2025, 12, 3, 20)]
    assert following(wednesday) == datetime(2025, 12, 4, 14)


def test_with_less_than_two_weeks_bars_follow_the_clock() -> None:
    short = [
        each
        for each in hours(datetime(2024, 1, 29), 13 * 24, fx)
        if each <= datetime(2024, 2, 9, 21)
    ]
    assert following(short) == datetime(2024, 2, 9, 22)


@given(
    st.sets(st.integers(0, 167), min_size=1),
    st.integers(2, 6),
    st.integers(0, 200),
    st.integers(1, 60),
)
def test_a_strict_week_is_continued_to_any_bar(
    slots: set[int], weeks: int, skipped: int, ahead: int
) -> None:
    every = sorted(week * WEEK + slot * HOUR for week in range(weeks + 9 + ahead) for slot in slots)
    end = min(skipped % len(slots) + len(slots) * (weeks + 1), len(every) - ahead)
    history = np.array(every[:end], np.uint32)
    assert next_stamp(history, HOUR, ahead) == every[end - 1 + ahead]


def test_without_a_usual_slot_bars_follow_the_clock() -> None:
    assert next_stamp(np.array([0, 3 * WEEK], np.uint32), HOUR) == 3 * WEEK + HOUR
    assert next_stamp(np.array([0, 3 * WEEK], np.uint32), HOUR, 4) == 3 * WEEK + 4 * HOUR
