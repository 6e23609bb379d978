"""A frame of bars as a bar folder holds it, whichever way it is brought to that."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from vaiom.errors import DataError
from vaiom.market.folder import BAR_COLUMNS, BAR_SCHEMA, conform, readable_parquet

BARS = pl.DataFrame(
    {
        "Datetime": [datetime(2024, 1, 1) + timedelta(hours=hour) for hour in range(4)],
        "Open": [1.0, 2.0, None, 4.0],
        "High": [1.5, 2.5, 3.5, 4.5],
        "Low": [0.5, 1.5, 2.5, 3.5],
        "Close": [1.0, 2.0, 3.0, 4.0],
        "Volume": [1.0, None, 3.0, 4.0],
    },
    schema=BAR_SCHEMA,
)


@pytest.mark.parametrize(
    "frame",
    [
        BARS,
        BARS.select(reversed(BARS.columns)),
        BARS.with_columns(pl.col("Datetime").cast(pl.Datetime("ms")), pl.col("High").cast(pl.Float32)),
        BARS.with_columns(Spread=pl.lit(0.1)),
        BARS.with_columns(pl.col("Open").fill_null(math.nan)),
        BARS.with_columns(pl.col("Volume").fill_null(math.nan)),
    ],
    ids=["as it is", "another order", "other types", "a column more", "NaN in a price", "NaN in the volume"],
)
def test_columns_order_types_and_missing_values(frame: pl.DataFrame) -> None:
    conformed = conform(frame, Path("bars"))
    assert conformed.columns == list(BAR_COLUMNS)
    assert conformed.schema == BAR_SCHEMA
    assert conformed.equals(BARS)


@pytest.mark.parametrize(
    ("damage", "got"), [(OSError("cut short\nat row 7"), "cut short"), (MemoryError(), "MemoryError")]
)
def test_damage_is_told_by_its_first_line_or_by_its_kind(damage: BaseException, got: str) -> None:
    with pytest.raises(DataError, match="not readable as CSV") as told, readable_parquet("bars.csv", "CSV"):
        raise damage
    assert told.value.got == got
