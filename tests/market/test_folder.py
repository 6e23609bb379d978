"""A frame of bars as a bar folder holds it, whichever way it is brought to that."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from vaiom.errors import DataError
from vaiom.market import folder
from vaiom.market.folder import (
    BAR_COLUMNS,
    BAR_SCHEMA,
    conform,
    count_bars,
    keep_last,
    read_bars,
    read_file,
    read_stamps,
    readable_parquet,
    require_calendar,
    write_symbol,
)

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
        BARS.with_columns(
            pl.col("Datetime").cast(pl.Datetime("ms")), pl.col("High").cast(pl.Float32)
        ),
        BARS.with_columns(Spread=pl.lit(0.1)),
        BARS.with_columns(pl.col("Open").fill_null(math.nan)),
        BARS.with_columns(pl.col("Volume").fill_null(math.nan)),
        BARS.with_columns(pl.col("Open", "Volume").fill_null(math.nan)),
    ],
    ids=[
        "as it is",
        "another order",
        "other types",
        "a column more",
        "NaN in a price",
        "NaN in the volume",
        "NaN in both",
    ],
)
def test_columns_order_types_and_missing_values(frame: pl.DataFrame) -> None:
    conformed = conform(frame, Path("bars"))
    assert conformed.columns == list(BAR_COLUMNS)
    assert conformed.schema == BAR_SCHEMA
    assert conformed.equals(BARS)


@pytest.mark.parametrize(
    ("damage", "got"),
    [(OSError("cut short\nat row 7"), "cut short"), (MemoryError(), "MemoryError")],
)
def test_damage_is_told_by_its_first_line_or_by_its_kind(damage: BaseException, got: str) -> None:
    with (
        pytest.raises(DataError, match="not readable as CSV") as told,
        readable_parquet("bars.csv", "CSV"),
    ):
        raise damage
    assert told.value.got == got
    with (
        pytest.raises(DataError, match=r"not readable as Parquet[\s\S]*data import"),
        readable_parquet("bars"),
    ):
        raise damage


def test_a_frame_without_columns_says_so() -> None:
    for columns, got in (([], "no columns"), (["Open", "Low"], "Open, Low")):
        with pytest.raises(DataError, match="'Datetime' is missing") as refused:
            conform(BARS.select(columns), Path("bars"))
        assert refused.value.got == got


@pytest.mark.parametrize("arrow", [True, False])
def test_files_read_back_with_and_without_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    path = write_symbol(tmp_path, "EURUSD", BARS)
    assert path == tmp_path / "EURUSD.parquet"
    if not arrow:
        monkeypatch.setattr(folder, "find_spec", lambda _: None)
        monkeypatch.setattr("pyarrow.parquet.ParquetFile", lambda *_: pytest.fail("Arrow was used"))
    assert count_bars(path) == len(BARS)
    assert read_file(path).equals(BARS)
    assert read_file(path, ["Close"]).equals(BARS.select("Close"))
    assert read_stamps(path).equals(BARS["Datetime"])
    BARS.with_columns(pl.col("Datetime").cast(pl.Datetime("ms"))).write_parquet(path)
    assert read_stamps(path).equals(BARS["Datetime"])


def test_rows_out_of_order_are_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"back in time[\s\S]*EURUSD\.parquet, row 2"):
        write_symbol(tmp_path, "EURUSD", BARS.reverse())
    assert not list(tmp_path.iterdir())
    BARS.reverse().write_parquet(tmp_path / "EURUSD.parquet")
    with pytest.raises(DataError, match=r"back in time[\s\S]*EURUSD\.parquet, row 2"):
        read_bars(tmp_path)


def test_of_repeated_stamps_the_last_row_is_kept() -> None:
    stamps = [datetime(2024, 1, 1, hour) for hour in (0, 0, 1, 2, 2, 2, 3, 5, 5)]
    rows = pl.DataFrame({"Datetime": stamps}).with_row_index()
    assert keep_last(rows)["index"].to_list() == [1, 2, 5, 6, 8]
    assert keep_last(rows.clear()).is_empty()


def test_years_that_a_calendar_can_print() -> None:
    inside = [datetime(1000, 1, 1), None, datetime(8999, 12, 31, 23)]
    assert require_calendar(pl.Series(inside), str).to_list() == inside
    for outside in (datetime(999, 12, 31, 23), datetime(9000, 1, 1)):
        with pytest.raises(DataError, match="1000 to 8999") as refused:
            require_calendar(pl.Series([*inside, outside]), lambda row: f"row {row}")
        assert refused.value.where == "row 3"
