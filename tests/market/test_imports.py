"""The pipeline: many files, one table per symbol, a manifest that tells all, repairs that are
counted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import vaiom
from market.price_files import Bar, candles_bi5, frame_of, some_bars, write_rows
from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import read_bars
from vaiom.market.imports import import_files
from vaiom.market.symbols import default_class, dollar_sign, find_pair, find_symbol, usual_price

HEADER = "time,open,high,low,close,volume"
STAMP = "%Y-%m-%d %H:%M"


def table(path: Path, bars: list[Bar]) -> Path:
    return write_rows(path, bars, STAMP, header=HEADER)


def test_the_manifest_tells_where_bars_come_from(tmp_path: Path) -> None:
    bars = some_bars(40)
    late, early = (
        table(tmp_path / "EURUSD_1.csv", bars[20:]),
        table(tmp_path / "EURUSD_2.csv", bars[:20]),
    )
    calls: list[tuple[int, int, str]] = []
    manifest = import_files(
        [late, early], tmp_path / "out", progress=lambda *call: calls.append(call)
    )
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["symbols"]["EURUSD"] == {
        "rows": 40,
        "first": "2019-02-04T22:00:00",
        "last": "2019-02-04T22:39:00",
        "timeframe": "1min",
        "clock": {"shift": "0min", "utc": False},
        "flat_dropped": 0,
        "filled_from_close": 0,
        "repairs": {
            "rows_reordered": 0,
            "repeated_stamps_dropped": 0,
            "unusable_rows_dropped": 0,
            "volumes_blanked": 0,
        },
        "sources": [
            {
                "name": path.name,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
                "format": "table",
                "rows": 20,
            }
            for path in (early, late)
        ],
    }
    assert calls == [(0, 2, "EURUSD_1.csv"), (1, 2, "EURUSD_2.csv"), (2, 2, "")]
    assert_frame_equal(read_bars(tmp_path / "out")["EURUSD"], frame_of(bars))


def test_a_folder_is_read_through_and_symbols_are_kept_apart(tmp_path: Path) -> None:
    day = datetime(2019, 2, 4)
    for symbol, number in (("EURUSD", "04"), ("EURUSD", "05"), ("GBPUSD", "04")):
        start = day + timedelta(days=int(number) - 4)
        path = tmp_path / "raw" / symbol / "2019" / "01" / number / "BID_candles_min_1.bi5"
        path.parent.mkdir(parents=True)
        path.write_bytes(candles_bi5(some_bars(20, start), start))
    empty = tmp_path / "raw" / "EURUSD" / "2019" / "01" / "06" / "BID_candles_min_1.bi5"
    empty.parent.mkdir()
    empty.write_bytes(b"")
    write_rows(
        tmp_path / "raw" / "USDJPY.tsv",
        some_bars(20),
        STAMP,
        header=HEADER.replace(",", "\t"),
        separator="\t",
    )
    (tmp_path / "raw" / "ledger.json").write_text("{}")
    (tmp_path / "raw" / "._EURUSD.csv").write_text("left by a file manager")
    manifest = import_files([tmp_path / "raw"], tmp_path / "out")
    assert {name: entry["rows"] for name, entry in manifest["symbols"].items()} == {
        "EURUSD": 40,
        "GBPUSD": 20,
        "USDJPY": 20,
    }
    assert [source["rows"] for source in manifest["symbols"]["EURUSD"]["sources"]] == [20, 20, 0]


def test_the_clock_moves_only_when_told(tmp_path: Path) -> None:
    bars = some_bars()
    path = table(tmp_path / "EURUSD.csv", bars)
    moved = import_files([path], tmp_path / "moved", shift=timedelta(minutes=-90))["symbols"][
        "EURUSD"
    ]
    assert moved["clock"] == {"shift": "-90min", "utc": False}
    stamps = read_bars(tmp_path / "moved")["EURUSD"]["Datetime"].to_list()
    assert stamps == [bar[0] - timedelta(minutes=90) for bar in bars]


def test_a_second_import_adds_symbols_and_replaces_on_demand_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = (
        table(tmp_path / "EURUSD.csv", some_bars(20)),
        table(tmp_path / "GBPUSD.csv", some_bars(30)),
    )
    import_files([first], out)
    import_files([second], out)
    with pytest.raises(DataError, match="--replace"):
        import_files([table(first, some_bars(25))], out)
    assert {name: len(frame) for name, frame in read_bars(out).items()} == {
        "EURUSD": 20,
        "GBPUSD": 30,
    }
    import_files([first], out, replace=True)
    assert {name: len(frame) for name, frame in read_bars(out).items()} == {
        "EURUSD": 25,
        "GBPUSD": 30,
    }
    recorded = json.loads((out / "manifest.json").read_text())["symbols"]
    assert {name: entry["rows"] for name, entry in recorded.items()} == {"EURUSD": 25, "GBPUSD": 30}
    assert sorted(path.name for path in out.iterdir()) == [
        "EURUSD.parquet",
        "GBPUSD.parquet",
        "manifest.json",
    ]


def test_a_symbol_column_splits_or_is_refused(tmp_path: Path) -> None:
    lines = ["Symbol," + HEADER]
    for when, *numbers in some_bars(12):
        for pair in ("EUR/USD", "GBP/USD"):
            lines.append(",".join([pair, when.strftime(STAMP), *map(repr, numbers)]))
    path = tmp_path / "quotes.csv"
    path.write_text("\n".join(lines))
    entries = import_files([path], tmp_path / "both")["symbols"]
    assert {symbol: entry["rows"] for symbol, entry in entries.items()} == {
        "EURUSD": 12,
        "GBPUSD": 12,
    }
    assert_frame_equal(read_bars(tmp_path / "both")["GBPUSD"], frame_of(some_bars(12)))
    with pytest.raises(DataError, match="no rows of USDJPY"):
        import_files([path], tmp_path / "out", symbol="USDJPY")
    entry = import_files([path], tmp_path / "out", symbol="GBPUSD")["symbols"]["GBPUSD"]
    assert (entry["rows"], entry["sources"][0]["rows"]) == (12, 24)


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("DAT_ASCII_EURUSD_M1_202306.csv", "EURUSD"),
        ("oanda-EUR_USD-2020-5.csv", "EURUSD"),
        ("eurusd-m1-bid-2019-01-01.csv", "EURUSD"),
        ("XAUUSD60.csv", "XAUUSD"),
        ("GBPUSDh1.csv", "GBPUSD"),
        ("BTCUSDT-1h.csv", "BTCUSDT"),
        ("1INCHUSDT_4h.csv", "1INCHUSDT"),
        ("BTCUSD_H1_202601.csv", "BTCUSD"),
        ("LINK-USDT.csv.gz", "LINKUSDT"),
        ("EURUSD_and_BTCUSDT.csv", None),
        ("EURUSD_and_GBPUSD.csv", None),
        ("DOGE-USD.csv", "DOGEUSD"),
        ("BINANCE_BTCUSDT, 60.csv", "BTCUSDT"),
        ("OANDA_EURUSD, 240.csv", "EURUSD"),
        ("candle_export.csv", None),
        ("EURUSDm.csv", None),
    ],
)
def test_symbols_in_names(name: str, pair: str | None) -> None:
    assert find_pair(name) == pair


@pytest.mark.parametrize(
    ("symbol", "asset_class", "sign"),
    [
        ("EURUSD", "FX", -1),
        ("usdjpy", "FX", 1),
        ("EURGBP", "FX", 0),
        ("XAUUSD", "SPOT", -1),
        ("BTCUSDT", "CRYPTO", -1),
        ("US500", "INDEX", 0),
        ("AAPL", "EQUITY", 0),
    ],
)
def test_what_the_letters_of_a_symbol_say(symbol: str, asset_class: str, sign: int) -> None:
    assert (default_class(symbol), dollar_sign(symbol)) == (asset_class, sign)


def test_the_manifest_is_replaced_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, moved, replace = tmp_path / "out", list[str](), Path.replace
    files = [table(tmp_path / f"{symbol}.csv", some_bars()) for symbol in ("ZARUSD", "AUDUSD")]
    import_files(files, out)

    def note(path: Path, target: Path) -> Path:
        moved.extend([target.name] if target.parent == out else [])
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", note)
    import_files(files, out, replace=True)
    assert (sorted(moved[:-1]), moved[-1]) == (
        ["AUDUSD.parquet", "ZARUSD.parquet"],
        "manifest.json",
    )


def test_usual_prices_are_near_those_of_the_market() -> None:
    dollars = {
        "EURUSD": 1.1,
        "GBPUSD": 1.3,
        "AUDUSD": 0.66,
        "NZDUSD": 0.6,
        "USDJPY": 150,
        "USDCHF": 0.9,
        "USDCAD": 1.35,
    }
    dollars |= {
        "USDSGD": 1.34,
        "USDHKD": 7.8,
        "USDCNY": 7.2,
        "USDCNH": 7.2,
        "USDSEK": 10.5,
        "USDNOK": 10.7,
        "usddkk": 6.9,
    }
    for symbol, price in {**dollars, "EURJPY": 165, "EURGBP": 0.85}.items():
        assert 1 / 1.6 < usual_price(symbol) / price < 1.6, symbol
    assert usual_price("XAUUSD") is None


def test_a_packed_table_is_read_and_a_bomb_is_not(tmp_path: Path) -> None:
    lines = ["time,open,high,low,close"] + [
        f"2024-01-02 {hour:02}:00,1.1,1.2,1.0,1.1" for hour in range(24)
    ]
    table = "\n".join(lines).encode()
    packed = tmp_path / "EURUSD.csv.gz"
    packed.write_bytes(gzip.compress(table))
    entry = import_files([tmp_path], tmp_path / "out")["symbols"]["EURUSD"]
    assert (entry["rows"], entry["sources"][0]["name"]) == (24, "EURUSD.csv.gz")
    whole = packed.read_bytes()
    for data, says in (
        (whole[:-12], "cannot be unpacked"),
        (whole[:20] + b"nonsense" + whole[28:], "cannot be unpacked"),
        (gzip.compress(b"\n" * (1 << 26)), "too much"),
    ):
        packed.write_bytes(data)
        with pytest.raises(DataError, match=says):
            import_files([packed], tmp_path / "other")


def test_a_table_packed_by_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = table(tmp_path / "EURUSD.csv", some_bars())
    packed = tmp_path / "in" / "EURUSD.csv.zst"
    packed.parent.mkdir()
    packed.write_bytes(pa.compress(plain.read_bytes(), codec="zstd", asbytes=True))
    with monkeypatch.context() as patched:
        patched.setattr("vaiom.errors.find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=r"vaiom\[train\]"):
            import_files([packed.parent], tmp_path / "out")
    import_files([packed.parent], tmp_path / "out")
    assert_frame_equal(read_bars(tmp_path / "out")["EURUSD"], frame_of(some_bars()))
    packed.write_bytes(packed.read_bytes()[:-5])
    with pytest.raises(DataError, match="cannot be unpacked"):
        import_files([packed], tmp_path / "other")


def test_a_pattern_finds_the_symbol_in_every_name(tmp_path: Path) -> None:
    files = [
        table(tmp_path / f"BATS_{name}, 60.csv", some_bars())
        for name in ("AAPL", "BRK.B", "BTC_USDT")
    ]
    with pytest.raises(DataError, match=r"--symbol .BATS_\*"):
        import_files(files[:1], tmp_path / "out")
    imported = import_files(files, tmp_path / "out", symbol="BATS_*, 60")["symbols"]
    assert list(imported) == ["AAPL", "BRK.B", "BTCUSDT"]
    with pytest.raises(DataError, match=r"BATS_AAPL, 60.csv[\s\S]*NYSE_\*"):
        import_files(files, tmp_path / "other", symbol="NYSE_*")
    later = table(tmp_path / "BATS_AAPL, 60 (1).csv", some_bars(start=datetime(2019, 3, 1)))
    assert (
        import_files([files[0], later], tmp_path / "two", symbol="BATS_*, *")["symbols"]["AAPL"][
            "rows"
        ]
        == 60
    )


@pytest.mark.parametrize(
    "name",
    [
        "BRK.B.csv",
        "BRK.B.csv.gz",
        "BRK.B.TXT",
        "BRK.B.zip",
        "BRK.B.parquet",
        "BRK-B.csv",
        "BRK.dat",
        "BTC_USDT.csv.zst",
    ],
)
def test_a_dot_of_a_symbol_is_not_the_ending_of_a_file(name: str) -> None:
    """Two classes of shares are two assets."""
    expected = {"BRK.dat": "BRK", "BTC_USDT.csv.zst": "BTCUSDT"}
    assert find_symbol("*", name) == expected.get(name, name[:5])


@pytest.mark.parametrize(
    ("given", "symbol"),
    [("eurusd", "EURUSD"), ("EUR/USD", "EURUSD"), ("EURUSD.pro", "EURUSD.pro"), ("aapl", "aapl")],
)
def test_a_pair_may_be_spelled_in_any_way(given: str, symbol: str, tmp_path: Path) -> None:
    path = table(tmp_path / "prices.csv", some_bars(3))
    assert [*import_files([path], tmp_path / "out", symbol=given)["symbols"]] == [symbol]


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("SPX500_USD_1h.csv", "SPX500_USD"),
        ("AAPL.csv", "AAPL"),
        ("BRK.B.csv", "BRK.B"),
        ("DE40-15min.csv", "DE40"),
        ("NAS100_H4.csv", "NAS100"),
        ("prices.csv", "prices"),
    ],
)
def test_a_name_without_a_pair_is_the_symbol_and_the_record_says_so(
    name: str, symbol: str, tmp_path: Path
) -> None:
    path = table(tmp_path / name, some_bars())
    [(found, entry)] = import_files([path], tmp_path / "out")["symbols"].items()
    assert found == symbol
    assert entry["sources"][0]["symbol_from"] == "file name"


def test_a_row_without_symbol_is_named(tmp_path: Path) -> None:
    lines = ["symbol," + HEADER, "A,2024-01-02 10:00,1,1,1,1,1", ",2024-01-02 11:00,1,1,1,1,1"]
    path = tmp_path / "quotes.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"no symbol[\s\S]*line 3"):
        import_files([path], tmp_path / "out")


def test_a_file_without_symbol_asks_for_it(tmp_path: Path) -> None:
    for name in ("2024.csv", "EURUSD and GBPUSD.csv", "two words.csv"):
        with pytest.raises(DataError, match="--symbol"):
            import_files([table(tmp_path / name, some_bars())], tmp_path / "out")
    path = table(tmp_path / "bars.csv", some_bars())
    assert list(import_files([path], tmp_path / "out", symbol="GOLD")["symbols"]) == ["GOLD"]


rows = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from(["1.5", "2.5", "-1", "0", "nan", "inf", "", "1.5e0", "x"]),
    ),
    min_size=1,
    max_size=25,
)


@given(rows)
def test_repair_keeps_what_a_plain_loop_keeps(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("repair")
    start = datetime(2019, 2, 4)
    lines = [HEADER]
    kept: dict[datetime, float] = {}
    usable = reordered = 0
    latest = datetime.min
    for number, (minute, price) in enumerate(rows):
        when = start + timedelta(minutes=minute)
        lines.append(f"{when:{STAMP}},1,2,1,{price},{number}")
        if price not in ("1.5", "2.5", "1.5e0"):
            continue
        usable += 1
        reordered += when < latest
        latest = max(latest, when)
        kept[when] = float(number)
    path = folder / "EURUSD.csv"
    path.write_text("\n".join(lines))
    if not kept:
        with pytest.raises(DataError, match="no bars"):
            import_files([path], folder / "out", repair=True)
        return
    repairs = import_files([path], folder / "out", repair=True)["symbols"]["EURUSD"]["repairs"]
    assert repairs == {
        "rows_reordered": reordered,
        "repeated_stamps_dropped": usable - len(kept),
        "unusable_rows_dropped": len(rows) - usable,
        "volumes_blanked": 0,
    }
    bars = read_bars(folder / "out")["EURUSD"]
    assert dict(zip(bars["Datetime"], bars["Volume"], strict=True)) == dict(sorted(kept.items()))


def test_repair_lets_the_later_file_win(tmp_path: Path) -> None:
    bars = some_bars(40)
    newer = [(when, *prices, volume + 1000) for when, *prices, volume in bars[15:]]
    early = table(tmp_path / "EURUSD_1.csv", bars[:20])
    late = table(tmp_path / "EURUSD_2.csv", newer)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"overlap[\s\S]*EURUSD_2.csv, line 2"):
        import_files([early, late], tmp_path / "out")
    repairs = import_files([early, late], tmp_path / "out", repair=True)["symbols"]["EURUSD"][
        "repairs"
    ]
    assert repairs["repeated_stamps_dropped"] == 5
    expected = pl.concat([frame_of(bars[:15]), frame_of(newer)])  # type: ignore[arg-type]
    assert_frame_equal(read_bars(tmp_path / "out")["EURUSD"], expected)


def test_timeframes_sides_and_symbols_are_not_mixed(tmp_path: Path) -> None:
    minutes = table(tmp_path / "EURUSD_bid_min.csv", some_bars())
    hours = table(
        tmp_path / "EURUSD_bid_hour.csv", some_bars(step_min=60, start=datetime(2019, 3, 1))
    )
    asks = table(tmp_path / "EURUSD_ask.csv", some_bars(start=datetime(2019, 3, 1)))
    other = table(tmp_path / "GBPUSD.csv", some_bars(start=datetime(2019, 3, 1)))
    for path, problem in ((hours, "different timeframes"), (asks, "bid and ask")):
        with pytest.raises(DataError, match=problem):
            import_files([minutes, path], tmp_path / "out", repair=True)
    with pytest.raises(DataError, match="several symbols"):
        import_files([minutes, other], tmp_path / "out", symbol="EURUSD")
    assert not (tmp_path / "out").exists()


def test_a_few_bars_around_a_hole_have_no_timeframe_of_their_own(tmp_path: Path) -> None:
    minutes = table(tmp_path / "EURUSD_1.csv", some_bars())
    few = table(tmp_path / "EURUSD_2.csv", some_bars(4, step_min=60, start=datetime(2019, 3, 1)))
    assert (
        import_files([minutes, few], tmp_path / "out")["symbols"]["EURUSD"]["timeframe"] == "1min"
    )


def test_a_clock_is_not_moved_beyond_all_calendars(tmp_path: Path) -> None:
    path = table(tmp_path / "EURUSD.csv", some_bars())
    with pytest.raises(DataError, match=r"EURUSD, bar 1, moved by 365000w"):
        import_files([path], tmp_path / "out", shift=timedelta(weeks=365_000))


def test_volumes_that_repair_blanked_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "EURUSD.csv"
    lines = [
        f"2019-02-04 00:0{minute},1,2,1,2,{volume}"
        for minute, volume in enumerate(("5", "", "nan", "many"))
    ]
    path.write_text("\n".join([HEADER, *lines]))
    repairs = import_files([path], tmp_path / "out", repair=True)["symbols"]["EURUSD"]["repairs"]
    assert repairs["volumes_blanked"] == 2
    assert read_bars(tmp_path / "out")["EURUSD"]["Volume"].to_list() == [5.0, None, None, None]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(8, "S1, S2, S3, S4, S5, S6, S7, S8"), (9, "S1, S2, S3, S4, S5, S6, S7, S8, ...")],
)
def test_some_of_many_symbols_are_named(tmp_path: Path, count: int, shown: str) -> None:
    path = tmp_path / "all.csv"
    path.write_text(
        "\n".join(
            ["symbol," + HEADER, *(f"S{n},2019-02-04 00:00,1,2,1,2,5" for n in range(1, count + 1))]
        )
    )
    with pytest.raises(DataError, match="no rows of AAPL") as refused:
        import_files([path], tmp_path / "out", symbol="AAPL")
    assert refused.value.got == shown


def test_files_that_share_one_stamp_overlap(tmp_path: Path) -> None:
    bars = some_bars(40)
    files = [
        table(tmp_path / "EURUSD_1.csv", bars[:20]),
        table(tmp_path / "EURUSD_2.csv", bars[19:]),
    ]
    with pytest.raises(DataError, match="overlap"):
        import_files(files, tmp_path / "out")


def test_python_reads_what_the_command_reads(tmp_path: Path) -> None:
    bars = some_bars(40)
    prices = frame_of(bars).to_pandas().set_index("Datetime")
    tickers = {"EURUSD=X": prices, "AAPL": prices[5:]}
    folder_ = tmp_path / "downloads"
    (folder_ / "more").mkdir(parents=True)
    pd.concat(tickers, axis=1).to_parquet(folder_ / "yahoo.parquet")
    pd.concat({"MSFT": prices}, axis=1).swaplevel(axis=1).to_parquet(folder_ / "one.parquet")
    table(folder_ / "more" / "USDJPY.csv", bars)
    prices.to_parquet(folder_ / "SPX500_USD_1min.parquet")
    read = vaiom.read_bars(folder_)
    assert sorted(read) == ["AAPL", "EURUSD", "MSFT", "SPX500_USD", "USDJPY"]
    assert_frame_equal(read["AAPL"], frame_of(bars[5:]))
    for symbol in ("EURUSD", "MSFT", "SPX500_USD", "USDJPY"):
        assert_frame_equal(read[symbol], frame_of(bars))
    assert list(vaiom.read_bars(folder_ / "more" / "USDJPY.csv", "gbp/usd")) == ["GBPUSD"]
    disordered = table(tmp_path / "EURUSD.csv", [*bars[1:], bars[0]])
    with pytest.raises(DataError, match="goes back in time"):
        vaiom.read_bars(disordered)
    assert_frame_equal(vaiom.read_bars(disordered, repair=True)["EURUSD"], frame_of(bars))
