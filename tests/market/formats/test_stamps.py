"""Every layout of stamps reads back; what is ambiguous, zoned or broken is refused by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.errors import DataError
from vaiom.market.formats.stamps import parse_stamps

NAIVE = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y/%m/%d %H:%M:%S",
    "%Y.%m.%d %H:%M:%S",
    "%d.%m.%Y %H:%M:%S.000",
    "%d.%m.%Y %H:%M:%S",
    "%Y%m%d %H%M%S",
    "%Y%m%d%H%M%S",
    "%Y%m%d %H:%M:%S",
)
MINUTE = ("%Y-%m-%d %H:%M", "%Y.%m.%d %H:%M", "%d.%m.%Y %H:%M", "%Y%m%d%H%M", "%Y%m%d %H%M")
DAILY = ("%Y-%m-%d", "%Y.%m.%d", "%d.%m.%Y", "%Y%m%d")
ZONED = ("Z", " UTC", "+00:00", " GMT+0000", "+0000")

seconds = st.datetimes(datetime(2001, 9, 10), datetime(2099, 1, 1)).map(
    lambda when: when.replace(microsecond=0)
)


def parse(values: list[object] | pl.Series, *, utc: bool = False) -> list[datetime]:
    series = values if isinstance(values, pl.Series) else pl.Series(values, strict=False)
    return parse_stamps(series, lambda row: f"bars.csv, line {row + 2}", utc=utc).to_list()


@given(st.lists(seconds, min_size=1, max_size=20), st.sampled_from(NAIVE))
def test_naive_layouts_read_back(stamps: list[datetime], layout: str) -> None:
    assert parse([stamp.strftime(layout) for stamp in stamps]) == stamps


@given(st.lists(seconds, min_size=1, max_size=20), st.sampled_from(MINUTE), st.sampled_from(DAILY))
def test_coarse_layouts_read_back(stamps: list[datetime], minute: str, daily: str) -> None:
    minutes = [stamp.replace(second=0) for stamp in stamps]
    assert parse([stamp.strftime(minute) for stamp in minutes]) == minutes
    days = [stamp.replace(hour=0, minute=0, second=0) for stamp in stamps]
    assert parse([stamp.strftime(daily) for stamp in days]) == days


@given(st.lists(seconds, min_size=1, max_size=20))
def test_unix_times_are_utc_in_text_and_in_numbers(stamps: list[datetime]) -> None:
    since_1970 = [round(stamp.replace(tzinfo=UTC).timestamp()) for stamp in stamps]
    assert parse([str(value) for value in since_1970]) == stamps
    assert parse([str(1000 * value) for value in since_1970]) == stamps
    assert parse([f"{value}.0" for value in since_1970]) == stamps
    assert parse(pl.Series(since_1970)) == stamps
    assert parse(pl.Series([1000.0 * value for value in since_1970])) == stamps


@given(st.lists(seconds, min_size=1, max_size=20), st.sampled_from(ZONED))
def test_zoned_stamps_need_utc(stamps: list[datetime], zone: str) -> None:
    texts = [stamp.strftime("%Y-%m-%d %H:%M:%S") + zone for stamp in stamps]
    with pytest.raises(DataError, match=r"line 2[\s\S]*--utc"):
        parse(texts)
    assert parse(texts, utc=True) == stamps


def test_offsets_are_taken_off_under_utc() -> None:
    nine = datetime(2025, 8, 16, 9)
    texts = ["16.08.2025 09:00:00.000 GMT+0900", "2025-08-15T20:00:00-04:00"]
    assert parse(texts, utc=True) == [nine - timedelta(hours=9), nine - timedelta(hours=9)]
    zoned = pl.Series([nine]).dt.replace_time_zone("Asia/Tokyo")
    assert parse(zoned, utc=True) == [nine - timedelta(hours=9)]
    with pytest.raises(DataError, match="--utc"):
        parse(zoned)


def test_columns_of_dates_and_stamps_are_taken_as_they_are() -> None:
    noon = datetime(2019, 2, 4, 12)
    assert parse(pl.Series([noon.date()])) == [datetime(2019, 2, 4)]
    assert parse(pl.Series([noon], dtype=pl.Datetime("ns"))) == [noon]


def test_utc_leaves_naive_stamps_alone() -> None:
    assert parse(["2019-02-04 01:00"], utc=True) == [datetime(2019, 2, 4, 1)]


def test_twelve_digits_are_a_date_or_milliseconds() -> None:
    assert parse(["201902040102"]) == [datetime(2019, 2, 4, 1, 2)]
    assert parse(["504921600000"]) == [datetime(1986, 1, 1)]


def test_layouts_may_change_within_a_column() -> None:
    assert parse(["2019-02-04", "2019-02-04 01:00", "2019-02-04 01:00:30.5"]) == [
        datetime(2019, 2, 4),
        datetime(2019, 2, 4, 1),
        datetime(2019, 2, 4, 1, 0, 30, 500_000),
    ]


@pytest.mark.parametrize(
    ("day", "layout"), [(13, "%d/%m/%Y"), (13, "%m/%d/%Y"), (31, "%m/%d/%Y %I:%M:%S %p")]
)
def test_a_day_above_twelve_tells_day_from_month(day: int, layout: str) -> None:
    stamps = [datetime(2019, 1, 2), datetime(2019, 1, day), datetime(2019, 3, 4)]
    assert parse([stamp.strftime(layout) for stamp in stamps]) == stamps
    assert (
        parse([stamp.strftime(layout).replace("/0", "/").lstrip("0") for stamp in stamps]) == stamps
    )


@pytest.mark.parametrize("texts", [["01/02/2019", "12/12/2019"], ["13/01/2019", "01/13/2019"]])
def test_days_and_months_that_nothing_tells_apart_are_refused(texts: list[str]) -> None:
    with pytest.raises(DataError, match="above 12"):
        parse(texts)


def test_halves_of_a_day() -> None:
    texts = [
        "2019-02-04 12:00 AM",
        "2019-02-04 01:30 am",
        "2019-02-04 12:00 PM",
        "2019-02-04 11:30 PM",
    ]
    hours = [timedelta(0), timedelta(hours=1.5), timedelta(hours=12), timedelta(hours=23.5)]
    assert parse(texts) == [datetime(2019, 2, 4) + hour for hour in hours]


@pytest.mark.parametrize(
    "text",
    [
        "04/02/2019 00:00",
        "yesterday",
        "2019-13-01",
        "2019-02-30 00:00",
        "",
        None,
        "12",
        "2019-02-04Z",
    ],
)
def test_what_cannot_be_read_is_named_by_row(text: str | None) -> None:
    with pytest.raises(DataError, match=r"cannot be read[\s\S]*line 3"):
        parse(["2019-02-04 00:00", text, "2019-02-04 00:02"])
