"""Resampling against pandas, against a plain loop, and its laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from vaiom.errors import ConfigError, DataError
from vaiom.files import read_json, sha256_file
from vaiom.market.folder import BAR_COLUMNS, BAR_SCHEMA, infer_timeframe, read_bars, write_symbol
from vaiom.market.resample import resample, resample_file, resample_folder
from vaiom.market.timeframes import timeframe_of

# Whole volumes keep sums exact in any order; prices are only compared and picked, so they may be
# anything.
PRICE = st.one_of(st.none(), st.floats(min_value=0.5, max_value=2.0), st.sampled_from([0.0, -1.0]))
VOLUME = st.one_of(st.none(), st.integers(0, 1000).map(float))
ROW = st.tuples(PRICE, PRICE, PRICE, PRICE, VOLUME)
START = datetime(1969, 12, 30)


@st.composite
def minute_bars(draw: st.DrawFn, max_gaps: int = 30) -> pl.DataFrame:
    """Ordered minutes on both sides of the epoch, with gaps and missing values; the commonest step
    is one.
    """
    steps = draw(st.lists(st.sampled_from([1, 7, 60, 300, 1500]), min_size=1, max_size=max_gaps))
    minutes = [draw(st.integers(0, 4000))]
    for step in steps:
        minutes += [minutes[-1] + step, minutes[-1] + step + 1]
    rows = draw(st.lists(ROW, min_size=len(minutes), max_size=len(minutes)))
    stamps = [START + timedelta(minutes=minute) for minute in minutes]
    return frame_of([(stamp, *row) for stamp, row in zip(stamps, rows, strict=True)])


def frame_of(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


def bars_every(step: timedelta, count: int, start: datetime = datetime(2024, 1, 1)) -> pl.DataFrame:
    return frame_of(
        [(start + i * step, 1.0 + i, 2.0 + i, 0.5 + i, 1.5 + i, float(i)) for i in range(count)]
    )


def plain_loop(bars: pl.DataFrame, to: str) -> pl.DataFrame:
    """The paper's rule, one bin at a time."""
    step = timeframe_of(to)
    bins: dict[datetime, list[dict[str, object]]] = {}
    for row in bars.iter_rows(named=True):
        stamp = row["Datetime"]
        midnight = datetime(stamp.year, stamp.month, stamp.day)
        midnight -= timedelta(days=stamp.weekday()) if to == "1w" else timedelta(0)
        bins.setdefault(midnight + (stamp - midnight) // step * step, []).append(row)

    made = []
    for left, rows in bins.items():
        there = {name: [row[name] for row in rows if row[name] is not None] for name in BAR_COLUMNS}
        made.append(
            (
                left,
                next(iter(there["Open"]), None),
                max(there["High"], default=None),
                min(there["Low"], default=None),
                next(reversed(there["Close"]), None),
                math.fsum(there["Volume"]) if there["Volume"] else None,
            )
        )
    return frame_of(made)


def pandas_resample(bars: pl.DataFrame, to: str) -> pl.DataFrame:
    rules = {"Open": "first", "High": "max", "Low": "min", "Close": "last", "Volume": "sum"}
    binned = bars.to_pandas().resample(to.replace("d", "D"), on="Datetime")
    made = binned.agg(rules)[binned.size() > 0].reset_index()
    return pl.from_pandas(made).cast(BAR_SCHEMA)  # type: ignore[arg-type]


@given(minute_bars(), st.sampled_from(["10min", "15min", "1h", "4h", "1d", "1w"]))
def test_equals_a_plain_loop(bars: pl.DataFrame, to: str) -> None:
    assert_frame_equal(resample(bars, to), plain_loop(bars, to), check_exact=True)


@settings(max_examples=40)
@given(minute_bars(), st.integers(1, 70), st.integers(1, 50))
def test_batch_boundaries_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, bars: pl.DataFrame, batch_rows: int, row_group: int
) -> None:
    path = tmp_path_factory.mktemp("bars") / "EURUSD.parquet"
    bars.write_parquet(path, row_group_size=row_group)
    assert_frame_equal(
        resample_file(path, "1h", batch_rows=batch_rows), resample(bars, "1h"), check_exact=True
    )


@pytest.mark.parametrize("symbol", ["EURUSD", "XAUUSD"])
@pytest.mark.parametrize("to", ["10min", "1h", "4h", "1d"])
def test_real_minutes_equal_pandas_bit_for_bit(shared_data: Path, symbol: str, to: str) -> None:
    path = shared_data / "bars_1m" / f"{symbol}.parquet"
    bars = read_bars(path)[symbol]
    expected = pandas_resample(bars, to)
    assert_frame_equal(resample(bars, to), expected, check_exact=True)
    assert_frame_equal(resample_file(path, to, batch_rows=10_007), expected, check_exact=True)


def test_nan_is_as_unavailable_as_null() -> None:
    bars = bars_every(timedelta(minutes=1), 5).with_columns(
        Open=pl.Series([math.nan, None, 3.0, 4.0, 5.0]),
        Volume=pl.Series([1.0, math.nan, None, 2.0, 3.0]),
    )
    assert resample(bars, "1h").row(0) == (datetime(2024, 1, 1), 3.0, 6.0, 0.5, 5.5, 6.0)


def test_observed_rows_without_prices_stay_a_bar_of_nulls() -> None:
    bars = bars_every(timedelta(minutes=30), 4).with_columns(
        pl.when(pl.col("Datetime") >= datetime(2024, 1, 1, 1)).then(pl.col(name)).alias(name)
        for name in BAR_COLUMNS[1:]
    )
    assert resample(bars, "1h").row(0) == (datetime(2024, 1, 1), None, None, None, None, None)


def test_a_frame_without_volume_gives_null_volume() -> None:
    made = resample(bars_every(timedelta(minutes=1), 3).drop("Volume"), "1h")
    assert made["Volume"].to_list() == [None]


@given(st.lists(st.integers(1, 5), max_size=30))
def test_infer_timeframe_is_the_commonest_step(steps: list[int]) -> None:
    stamps = [START]
    for step in steps:
        stamps.append(stamps[-1] + timedelta(minutes=step))
    seen = infer_timeframe(pl.Series(stamps, dtype=pl.Datetime("us")))
    expected = min(set(steps), key=lambda step: (-steps.count(step), step)) if steps else None
    assert seen == (None if expected is None else timedelta(minutes=expected))


def test_what_cannot_be_resampled_is_said_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown timeframe"):
        resample_folder(tmp_path / "nowhere", "7h", tmp_path / "out")
    with pytest.raises(DataError, match="'Close' is missing"):
        resample(bars_every(timedelta(minutes=1), 3).drop("Close"), "1h")


def test_a_single_bar_is_resampled_too() -> None:
    made = resample(bars_every(timedelta(minutes=1), 1, start=datetime(2024, 1, 1, 0, 7)), "1h")
    assert made.row(0) == (datetime(2024, 1, 1), 1.0, 2.0, 0.5, 1.5, 0.0)


def test_two_bars_around_a_weekend_are_resampled_too() -> None:
    """They have no timeframe of their own, and a folder is resampled whole."""
    friday, sunday = bars_every(timedelta(hours=50), 2, start=datetime(2024, 3, 1, 21, 59))[
        "Datetime"
    ]
    made = resample(bars_every(timedelta(hours=50), 2, start=friday), "4h")
    assert made["Datetime"].to_list() == [
        datetime(2024, 3, 1, 20),
        sunday.replace(hour=20, minute=0),
    ]


def test_finer_targets_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be made finer"):
        resample(bars_every(timedelta(hours=1), 5), "10min")


def test_steps_that_do_not_divide_the_target_are_refused() -> None:
    with pytest.raises(DataError, match="do not divide"):
        resample(bars_every(timedelta(minutes=7), 5), "1h")


def test_bars_that_straddle_a_bin_are_refused() -> None:
    off_clock = bars_every(timedelta(hours=1), 30, start=datetime(2024, 1, 1, 0, 30))
    with pytest.raises(
        DataError, match=r"reaches over the edge[\s\S]*2024-01-01 03:30:00[\s\S]*--shift"
    ):
        resample(off_clock, "4h")


def test_unordered_rows_are_refused_wherever_the_batch_ends(tmp_path: Path) -> None:
    bars = bars_every(timedelta(minutes=1), 6)
    swapped = pl.concat([bars[:3], bars[4:5], bars[3:4], bars[5:]])
    with pytest.raises(DataError, match=r"goes back in time[\s\S]*row 5"):
        resample(swapped, "1h")
    swapped.write_parquet(tmp_path / "EURUSD.parquet")
    with pytest.raises(DataError, match=r"EURUSD.parquet, row 5"):
        resample_file(tmp_path / "EURUSD.parquet", "1h", batch_rows=4)


def test_a_folder_becomes_a_folder_that_remembers_its_source(tmp_path: Path) -> None:
    source, out = tmp_path / "minutes", tmp_path / "hours"
    source.mkdir()
    for symbol in ("EURUSD", "XAUUSD"):
        write_symbol(source, symbol, bars_every(timedelta(minutes=1), 150))
    (source / "manifest.json").write_text('{"shift": "2h"}')
    seen: list[tuple[int, int, str]] = []
    manifest = resample_folder(source, "1H", out, progress=lambda *step: seen.append(step))

    made = read_bars(out)
    assert list(made) == ["EURUSD", "XAUUSD"]
    assert_frame_equal(made["EURUSD"], resample(read_bars(source)["EURUSD"], "1h"))
    assert manifest == read_json(out / "manifest.json")
    assert manifest["timeframe"] == "1h"
    assert manifest["symbols"]["XAUUSD"] == {
        "rows": 3,
        "first": "2024-01-01T00:00:00",
        "last": "2024-01-01T02:00:00",
        "source": "resample",
        "source_sha256": sha256_file(source / "XAUUSD.parquet"),
    }
    assert manifest["resampled_from"] == {"shift": "2h"}
    assert seen == [(0, 2, "EURUSD"), (1, 2, "XAUUSD"), (2, 2, "")]
    with pytest.raises(DataError, match="exists already"):
        resample_folder(source, "4h", out)
    resample_folder(source, "4h", out, overwrite=True)
    assert len(read_bars(out)["EURUSD"]) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-40], lambda data: data.replace(b"Close", b"\x8close")]
)
def test_a_bad_asset_leaves_nothing_behind(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    source, out = tmp_path / "minutes", tmp_path / "hours"
    source.mkdir()
    write_symbol(source, "EURUSD", bars_every(timedelta(minutes=1), 150))
    (source / "XAUUSD.parquet").write_bytes(damage((source / "EURUSD.parquet").read_bytes()))
    with pytest.raises(DataError, match=r"not readable as Parquet[\s\S]*XAUUSD"):
        resample_folder(source, "1h", out)
    assert [path.name for path in tmp_path.iterdir()] == ["minutes"]


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "minutes"
    source.mkdir()
    write_symbol(source, "EURUSD", bars_every(timedelta(minutes=1), 150))
    for out in (source / "x" / "..", tmp_path):
        with pytest.raises(ConfigError, match="is the source, or holds it"):
            resample_folder(source, "1h", out, overwrite=True)
    assert list(read_bars(source)) == ["EURUSD"]


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda bars: bars.drop("Close"), "'Close' is missing"),
        (lambda bars: bars.with_columns(pl.col("Datetime").dt.replace_time_zone("UTC")), "naive"),
        (lambda bars: bars.with_columns(pl.col("Open").cast(pl.String)), "must be numeric"),
        (lambda bars: bars.clear(), "holds no bars"),
    ],
)
def test_foreign_files_are_named(tmp_path: Path, break_it: object, says: str) -> None:
    path = tmp_path / "EURUSD.parquet"
    break_it(bars_every(timedelta(minutes=1), 3)).write_parquet(path)  # type: ignore[operator]
    with pytest.raises(DataError, match=rf"{says}[\s\S]*EURUSD.parquet"):
        resample_file(path, "1h")
    with pytest.raises(DataError, match="no such file"):
        resample_file(tmp_path / "absent.parquet", "1h")
