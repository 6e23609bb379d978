from __future__ import annotations

import math
from datetime import datetime, timedelta

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from vaiom.features.calendar import LAST_SECOND, calendar_channels, calendar_fields, log_waits
from vaiom.features.fields import CONT_FIELDS, DISC_FIELDS

LAST = datetime(1970, 1, 1) + timedelta(seconds=int(LAST_SECOND))
stamps = st.lists(st.datetimes(datetime(1970, 1, 1), LAST), min_size=1, max_size=20)


def plain_fields(stamp: datetime) -> dict[str, int]:
    return {
        "years_since_2000": min(max(stamp.year - 2000, 0), 63),
        "month_of_year": stamp.month,
        "day_of_month": stamp.day,
        "day_of_week": stamp.weekday(),
        "day_of_year": stamp.timetuple().tm_yday,
        "hour": stamp.hour,
        "minute": stamp.minute,
        "second": stamp.second,
    }


@given(stamps)
@example([datetime(1970, 1, 1), LAST])
def test_fields_equal_the_standard_library(moments: list[datetime]) -> None:
    moments = [moment.replace(microsecond=0) for moment in moments]
    fields = calendar_fields(np.array(moments, "datetime64[s]").astype(np.int64))
    names = DISC_FIELDS[6:-1]
    assert [dict(zip(names, row.tolist(), strict=True)) for row in fields] == [
        plain_fields(m) for m in moments
    ]


PERIODS = {
    "month_of_year": (12, 1),
    "day_of_month": (31, 1),
    "day_of_week": (7, 0),
    "day_of_year": (366, 1),
    "hour": (24, 0),
    "minute": (60, 0),
    "second": (60, 0),
}


@given(stamps)
@example([LAST])
def test_channels_equal_the_formula(moments: list[datetime]) -> None:
    moments = [moment.replace(microsecond=0) for moment in moments]
    out = np.empty((len(moments), 15), np.float32)
    calendar_channels(np.array(moments, "datetime64[s]").astype(np.int64), out)
    for row, moment in zip(out, moments, strict=True):
        fields = plain_fields(moment)
        expected = [fields["years_since_2000"] / 63]
        for name, (period, first) in PERIODS.items():
            angle = 2 * math.pi * (fields[name] - first) / period
            expected += [math.sin(angle), math.cos(angle)]
        assert_allclose(row, expected, atol=1e-7)


@given(st.lists(st.integers(1, 10**6), max_size=20), st.sampled_from([600, 3600, 86_400]))
def test_waits_are_logs_of_bars_apart(steps: list[int], step: int) -> None:
    stamps = np.cumsum([1_700_000_000, *steps]).astype(np.uint32)
    waits = log_waits(stamps, step)
    assert_allclose(waits[1:], np.log(np.array(steps) / step), rtol=1e-6, atol=1e-7)
    assert waits[0] == 0
    # The stamp before is all that later rows need.
    assert_array_equal(log_waits(stamps[1:], step, int(stamps[0])), waits[1:])
    assert log_waits(stamps[:0], step).shape == (0,)


def test_the_schemas_have_the_papers_sizes() -> None:
    assert (len(CONT_FIELDS), len(DISC_FIELDS)) == (25, 15)
    assert CONT_FIELDS[4] == "years_since_2000_norm"
    assert CONT_FIELDS[19] == "mask_missing"
