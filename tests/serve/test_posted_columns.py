"""Many bars are checked by columns: what is taken and what is refused, and why, is what it is bar by bar."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from vaiom.serve import schemas
from vaiom.serve.schemas import MAX_BARS, Bar, PushRequest

PRICES = {"open": 1.25, "high": 2, "low": None, "close": 1.5}
BARS = [{"datetime": f"2024-02-{day:02}T{hour:02}:00:00", **PRICES} for day in range(1, 29) for hour in (0, 7, 23)]
ONE_BY_ONE = TypeAdapter(list[Bar])


@pytest.mark.parametrize("change", [{}, {"volume": 7}, {"volume": None}, {"open": 0}, {"close": -1e300}])
def test_good_bars(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bars = [*BARS[:40], {**BARS[40], **change}, *BARS[41:]]
    taken = PushRequest.model_validate({"bars": bars}).bars
    assert [each._asdict() for each in taken] == [vars(bar) for bar in ONE_BY_ONE.validate_python(bars)]
    assert schemas._rows_of(bars) == taken  # a whole history must not be checked bar by bar: it takes too long
    assert all(type(value) in (float, type(None), datetime) for row in taken for value in row)
    monkeypatch.setattr(schemas, "_MANY", MAX_BARS + 1)
    assert taken == PushRequest.model_validate({"bars": bars}).bars


@pytest.mark.parametrize(
    "change",
    [
        {"open": "1.5"}, {"open": True}, {"low": float("nan")}, {"high": float("inf")}, {"close": 10**400},
        {"close": [1.0]}, {"datetime": "2024-02-30T00:00:00"}, {"datetime": "2024-02-03"}, {"datetime": 7},
        {"datetime": "2024-02-03T00:00:00\n2024-02-03T01:00:00"}, {"datetime": "2024-02-03T00:00:00Z"}, {"extra": 1.0},
    ],
)  # fmt: skip
def test_bad_bars(change: dict[str, Any]) -> None:
    bars = [*BARS[:40], {**BARS[40], **change}, *BARS[41:]]
    with pytest.raises(ValidationError) as expected:
        ONE_BY_ONE.validate_python(bars)
    with pytest.raises(ValidationError) as refused:
        PushRequest.model_validate({"bars": bars})
    first, ours = expected.value.errors()[0], refused.value.errors()[0]
    assert ours["loc"] == ("bars", *first["loc"])
    assert ours["msg"] == first["msg"]


@pytest.mark.parametrize("missing", ["datetime", "open", "close"])
def test_a_bar_that_lacks_a_value(missing: str) -> None:
    bars = [
        {name: value for name, value in bar.items() if name != missing or number != 5}
        for number, bar in enumerate(BARS)
    ]
    with pytest.raises(ValidationError, match="Field required"):
        PushRequest.model_validate({"bars": bars})


@pytest.mark.parametrize("bars", [[], BARS * (MAX_BARS // len(BARS) + 1), "bars", {"bars": BARS}, [1] * 20, None])
def test_no_list_of_so_many_bars(bars: Any) -> None:
    with pytest.raises(ValidationError):
        PushRequest.model_validate({"bars": bars})
