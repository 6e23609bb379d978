"""`.bi5` files: what is encoded here is decoded there, and real hours, minutes and ticks tell the
same story.
"""

from __future__ import annotations

import lzma
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from market.price_files import bi5, candles_bi5, frame_of, some_bars
from vaiom.errors import DataError
from vaiom.market.folder import BAR_COLUMNS, PRICE_COLUMNS
from vaiom.market.formats import dukascopy
from vaiom.market.formats.dukascopy import decode_candles, parse_path, price_scale_of
from vaiom.market.formats.source import FileBars, Options, SourceFile
from vaiom.market.formats.table import drop_flat, parse_bars

DAY = datetime(2019, 2, 4)
DAY_PATH = "EURUSD/2019/01/04/BID_candles_min_1.bi5"
HOUR_PATH = "EURUSD/2019/01/04/00h_ticks.bi5"

units = st.integers(1, 2**32 - 1)
volumes = st.floats(0, 1e6, width=32)


def read(path: str | Path, data: bytes, **options: object) -> FileBars:
    chosen = Options(**options)  # type: ignore[arg-type]
    return parse_bars(dukascopy.read_bi5(SourceFile(path=Path(path)), data, chosen), chosen)


@given(
    st.dictionaries(
        st.integers(0, 1439), st.tuples(units, units, units, units, volumes), max_size=40
    )
)
def test_candles_survive_the_round_trip(
    minutes: dict[int, tuple[int, int, int, int, float]],
) -> None:
    records = [(60 * minute, *minutes[minute]) for minute in sorted(minutes)]
    bars = decode_candles(bi5(records, ">IIIIIf"), DAY, 1e5, "test")
    assert bars.columns == list(BAR_COLUMNS)
    for bar, (seconds, o, c, low, h, volume) in zip(bars.iter_rows(), records, strict=True):
        assert bar == (
            DAY + timedelta(seconds=seconds),
            o / 1e5,
            h / 1e5,
            low / 1e5,
            c / 1e5,
            volume,
        )


@given(
    st.lists(
        st.tuples(st.integers(0, 3_599_999), units, units, volumes, volumes),
        min_size=1,
        max_size=60,
    )
)
def test_ticks_become_the_minutes_of_a_plain_loop(
    ticks: list[tuple[int, int, int, float, float]],
) -> None:
    ticks.sort(key=lambda tick: tick[0])
    by_minute: dict[datetime, list[tuple[float, float]]] = {}
    for ms, _, bid, _, bid_volume in ticks:
        by_minute.setdefault(DAY + timedelta(minutes=ms // 60_000), []).append(
            (bid / 1e5, bid_volume)
        )
    found = read(HOUR_PATH, bi5(ticks, ">IIIff"))
    assert found.bars["Datetime"].to_list() == list(by_minute)
    for bar, inside in zip(found.bars.iter_rows(named=True), by_minute.values(), strict=True):
        bids = [bid for bid, _ in inside]
        assert (bar["Open"], bar["High"], bar["Low"], bar["Close"]) == (
            bids[0],
            max(bids),
            min(bids),
            bids[-1],
        )
        assert bar["Volume"] == pytest.approx(sum(volume for _, volume in inside))


def test_a_length_that_fits_both_kinds_is_told_by_its_clock() -> None:
    candles = candles_bi5(some_bars(5, DAY), DAY)
    ticks = bi5([(7 + 500 * i, 110002 + i, 110000 + i, 1.0, 2.0) for i in range(6)], ">IIIff")
    assert len(lzma.decompress(candles)) == len(lzma.decompress(ticks))
    assert len(read(DAY_PATH, candles).bars) == 5
    assert len(read(HOUR_PATH, ticks).bars) == 1


def test_records_that_count_no_time_are_refused() -> None:
    for records, layout in (
        ([(61, 1, 1, 1, 1, 1.0)], ">IIIIIf"),
        ([(3_600_000, 1, 1, 1.0, 1.0)], ">IIIff"),
    ):
        with pytest.raises(DataError, match="neither candles nor ticks"):
            read(DAY_PATH, bi5(records, layout))


def test_flat_bars_of_closed_hours_go_and_quiet_traded_ones_stay() -> None:
    stamps = [DAY + timedelta(minutes=i) for i in range(4)]
    bars = frame_of(
        [
            (stamps[0], 1.1, 1.1, 1.1, 1.1, 0.0),
            (stamps[1], 1.1, 1.1, 1.1, 1.1, 0.5),
            (stamps[2], 1.1, 1.2, 1.1, 1.1, 0.0),
            (stamps[3], 1.1, 1.1, 1.1, 1.1, None),  # type: ignore[list-item]
        ]
    )
    assert drop_flat(bars)["Datetime"].to_list() == stamps[1:]


@pytest.mark.parametrize(
    ("path", "symbol", "start"),
    [
        ("x/EURUSD/2019/01/04/BID_candles_min_1.bi5", "EURUSD", datetime(2019, 2, 4)),
        ("x/EURUSD/2019/01/04/13h_ticks.bi5", "EURUSD", datetime(2019, 2, 4, 13)),
        ("dukascopy_EURUSD_2019_01_04_BID_candles_min_1.bi5", "EURUSD", datetime(2019, 2, 4)),
        ("dukascopy_EURUSD_2019_00_BID_candles_hour_1.bi5", "EURUSD", datetime(2019, 1, 1)),
        ("dukascopy_EURUSD_2018_ASK_candles_day_1.bi5", "EURUSD", datetime(2018, 1, 1)),
        ("dukascopy_EURUSD_2019_11_31_00h_ticks.bi5", "EURUSD", datetime(2019, 12, 31)),
        ("data\\usdjpy\\2019\\01\\04\\BID_candles_min_1.bi5", "USDJPY", datetime(2019, 2, 4)),
    ],
)
def test_the_path_tells_symbol_and_start(path: str, symbol: str, start: datetime) -> None:
    assert parse_path(path) == (symbol, start)


def test_paths_that_say_nothing_or_nonsense() -> None:
    assert parse_path("dukascopy_USDHKD.bi5") is None
    with pytest.raises(DataError, match="months from 00"):
        parse_path("EURUSD/2019/12/04/BID_candles_min_1.bi5")


def test_price_scales() -> None:
    assert [price_scale_of(symbol) for symbol in ("EURUSD", "USDJPY", "XAUUSD", "USDHKD")] == [
        1e5,
        1e3,
        1e3,
        1e5,
    ]
    with pytest.raises(DataError, match="--price-scale"):
        price_scale_of("USA500IDXUSD")
    assert (
        read(
            "x.bi5", candles_bi5(some_bars(), DAY), symbol="USA500", start=DAY, price_scale=1e2
        ).bars["Low"][0]
        == 1100
    )


def test_a_path_without_date_or_symbol_asks_for_them() -> None:
    data = candles_bi5(some_bars(), DAY)
    with pytest.raises(DataError, match="--start"):
        read("EURUSD.bi5", data)
    with pytest.raises(DataError, match="--symbol"):
        read("unnamed.bi5", data, start=DAY)
    assert_frame_equal(
        read("EURUSD.bi5", data, start=DAY).bars.select(BAR_COLUMNS), frame_of(some_bars())
    )


def test_every_cut_of_a_file_is_noticed() -> None:
    data = candles_bi5(some_bars(), DAY)
    for length in range(1, len(data)):
        with pytest.raises(DataError):
            decode_candles(data[:length], DAY, 1e5, "cut.bi5")
    with pytest.raises(DataError, match="last record is not whole"):
        decode_candles(lzma.compress(b"\0" * 25, format=lzma.FORMAT_ALONE), DAY, 1e5, "odd.bi5")
    with pytest.raises(DataError, match="last record is not whole"):
        read(DAY_PATH, lzma.compress(b"\0" * 25, format=lzma.FORMAT_ALONE))
    with pytest.raises(DataError, match="after its end"):
        decode_candles(data + b"more", DAY, 1e5, "long.bi5")


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dukascopy, "MAX_UNPACKED", 1 << 20)
    bomb = lzma.compress(b"\0" * (2 << 20), format=lzma.FORMAT_ALONE)
    with pytest.raises(DataError, match="too much"):
        decode_candles(bomb, DAY, 1e5, "bomb.bi5")


def test_a_huge_dictionary_is_refused() -> None:
    data = candles_bi5(some_bars(), DAY)
    greedy = data[:1] + (0xFFFFFFFF).to_bytes(4, "little") + data[5:]
    with pytest.raises(DataError, match="cannot be unpacked"):
        decode_candles(greedy, DAY, 1e5, "greedy.bi5")


def test_unordered_ticks_need_repair() -> None:
    ticks = bi5([(61_000, 3, 2, 1, 1), (10, 5, 4, 1, 1), (20, 9, 8, 1, 1)], ">IIIff")
    with pytest.raises(DataError, match="record 2"):
        read(HOUR_PATH, ticks)
    found = read(HOUR_PATH, ticks, repair=True)
    assert found.changes["rows_reordered"] == 2
    assert found.bars["Open"].to_list() == [4e-5, 2e-5]


def raw_bars(shared_data: Path, name: str) -> pl.DataFrame:
    path = shared_data / "raw" / f"dukascopy_EURUSD_{name}.bi5"
    return read(path, path.read_bytes()).bars


def test_real_hours_are_their_real_minutes(shared_data: Path) -> None:
    minutes = pl.concat(
        [raw_bars(shared_data, f"2019_01_{day}_BID_candles_min_1") for day in ("04", "05")]
    )
    hours = raw_bars(shared_data, "2019_01_BID_candles_hour_1")
    expected = minutes.group_by_dynamic("Datetime", every="1h").agg(
        pl.col("Open").first(),
        pl.col("High").max(),
        pl.col("Low").min(),
        pl.col("Close").last(),
        pl.col("Volume").sum(),
    )
    found = hours.join(expected.select("Datetime"), on="Datetime").select(BAR_COLUMNS)
    assert len(found) == 48
    assert_frame_equal(
        found.select(PRICE_COLUMNS), expected.select(PRICE_COLUMNS), check_exact=True
    )
    assert_frame_equal(found, expected, rel_tol=1e-6)


def test_real_ticks_make_the_real_minutes(shared_data: Path) -> None:
    minutes = raw_bars(shared_data, "2019_01_04_BID_candles_min_1")
    made = pl.concat([raw_bars(shared_data, f"2019_01_04_{hour}h_ticks") for hour in ("00", "12")])
    expected = minutes.join(made.select("Datetime"), on="Datetime")
    assert len(expected) == 120
    assert_frame_equal(made.select(PRICE_COLUMNS), expected.select(PRICE_COLUMNS), check_exact=True)
    assert_frame_equal(made.select(BAR_COLUMNS), expected.select(BAR_COLUMNS), rel_tol=1e-6)
