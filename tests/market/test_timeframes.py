"""Timeframes by name: whatever divides a day into whole minutes, and a week."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.errors import ConfigError
from vaiom.market.timeframes import format_span, step_seconds, timeframe_of


@given(st.integers(1, 1440))
def test_whatever_divides_a_day_is_a_timeframe_with_one_usual_name(minutes: int) -> None:
    if 1440 % minutes:
        with pytest.raises(ConfigError, match="divide a day"):
            timeframe_of(f"{minutes}min")
    else:
        span = timedelta(minutes=minutes)
        assert timeframe_of(f"{minutes}min") == timeframe_of(format_span(span)) == span


@pytest.mark.parametrize(
    ("name", "hours"), [("1H", 1), ("4h", 4), ("24h", 24), ("1d", 24), ("1W", 168), ("7d", 168)]
)
def test_names_in_any_case(name: str, hours: int) -> None:
    assert timeframe_of(name) == timedelta(hours=hours)
    assert step_seconds(name) == 3600 * hours


@pytest.mark.parametrize(
    "name", ["", "h", "0h", "7h", "2d", "2w", "90s", "1.5h", "1 h", "-1h", "99999min", "month"]
)
def test_what_is_no_timeframe(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown timeframe"):
        timeframe_of(name)


@given(st.integers(-(10**6), 10**6))
def test_spans_are_spelled_in_their_largest_whole_unit(seconds: int) -> None:
    spelled = format_span(timedelta(seconds=seconds))
    unit = spelled.lstrip("-0123456789")
    assert (
        int(spelled.removesuffix(unit))
        * {"w": 604_800, "d": 86_400, "h": 3600, "min": 60, "s": 1}[unit]
        == seconds
    )
