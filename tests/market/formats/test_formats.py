"""Each tool's file, written here in every variant, comes back as the bars it was made from, under
`auto`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from market.price_files import Bar, candles_bi5, epoch_ms, frame_of, some_bars, write_rows
from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import read_bars
from vaiom.market.imports import import_files

BARS = some_bars()
HOURS = some_bars(step_min=60)
DAYS = some_bars(start=datetime(2019, 2, 4), step_min=1440)
MT5 = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>"


def mt_rows(path: Path, bars: list[Bar], stamp: str, header: str, separator: str) -> Path:
    """MetaTrader's nine columns: after the tick volume a real volume, mostly zero, and a spread."""
    lines = [header] if header else []
    for when, *numbers in bars:
        cells = [when.strftime(stamp), *(repr(number) for number in numbers), "0", "7"]
        lines.append(separator.join(cells))
    path.write_text("\r\n".join(lines) + "\r\n")
    return path


def node_rows(path: Path, stamps: Callable[[datetime], str]) -> Path:
    lines = ["timestamp,open,high,low,close,volume"]
    lines += [",".join([stamps(when), *map(repr, numbers)]) for when, *numbers in BARS]
    path.write_text("\n".join(lines))
    return path


def parquet(path: Path, **renamed: str) -> Path:
    frame_of(BARS).rename(renamed).write_parquet(path)
    return path


def candles(path: Path) -> Path:
    path.write_bytes(candles_bi5(BARS, datetime(2019, 2, 4)))
    return path


KLINE_NAMES = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,ignore"
)
THOUSANDS = [
    (when, *(price * 10_000 + 0.5 for price in prices), volume) for when, *prices, volume in HOURS
]
THOUSANDS = [
    (when, *(round(price, 2) for price in prices), volume) for when, *prices, volume in THOUSANDS
]


def klines(path: Path, unit: int, header: str = "") -> Path:
    """Binance's candles: opening time, five numbers, closing time, and more."""
    lines = [header] if header else []
    for when, *numbers in HOURS:
        opened, closed = (
            epoch_ms(when + length) * unit for length in (timedelta(0), timedelta(minutes=60))
        )
        lines.append(",".join(map(str, (opened, *numbers, closed - 1, "12.5", 7, "3.5", 0))))
    path.write_text("\n".join(lines))
    return path


def as_json(path: Path) -> Path:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    if not rows[0][0].isdigit():
        path.write_text(
            json.dumps(
                [dict(zip(rows[0], [int(row[0]), *row[1:]], strict=True)) for row in rows[1:]]
            )
        )
    else:
        path.write_text(json.dumps([[int(first), *rest] for first, *rest in rows]))
    return path


def carriage_returns(path: Path) -> Path:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    return path


def yfinance_header(*tickers: str) -> str:
    names = ["Open", "High", "Low", "Close", "Volume"]
    lines = [
        ["Price", *(name for name in names for _ in tickers)],
        ["Ticker", *tickers * 5],
        ["Datetime", *[""] * 5],
    ]
    return "\n".join(",".join(line) for line in lines)


def databento(path: Path, bars: list[Bar], *, pretty: bool = False) -> Path:
    lines = ["ts_event,rtype,publisher_id,instrument_id,open,high,low,close,volume,symbol"]
    for when, *prices, volume in bars:
        shown = [f"{price:.9f}" if pretty else round(price * 1e9) for price in prices]
        stamp = f"{when.isoformat()}.000000000Z" if pretty else epoch_ms(when) * 1_000_000
        lines.append(",".join(map(str, (stamp, 34, 1, 5482, *shown, int(volume), "EURUSD"))))
    path.write_text("\n".join(lines))
    return path


def extended(path: Path, by: str) -> Path:
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(row + by for row in rows)]))
    return path


def decimal_commas(path: Path) -> Path:
    path.write_text(path.read_text().replace(".", ","))
    return path


def quoted(path: Path, spell: Callable[[float], str]) -> Path:
    lines = ["time,open,high,low,close,volume"]
    for when, *prices, volume in THOUSANDS:
        lines.append(
            ",".join(
                [
                    f"{when:%Y-%m-%d %H:%M}",
                    *(f'"{spell(price)}"' for price in prices),
                    f"{volume:.0f}",
                ]
            )
        )
    path.write_text("\n".join(lines))
    return path


Variant = tuple[str, list[Bar], Callable[[Path], Path], dict[str, Any]]
"""The tool, the bars, what writes them into a file, and options to import it with."""
JFOREX = "Open,High,Low,Close,Volume"


def rows(
    tool: str, bars: list[Bar], stamp: str, header: str = "", separator: str = ",", **options: Any
) -> Variant:
    """One line a bar, and the options to import it with."""
    return (
        tool,
        bars,
        lambda path: write_rows(path, bars, stamp, header=header, separator=separator),
        options,
    )


VARIANTS: dict[str, Variant] = {
    "jforex gmt": rows("dukascopy", BARS, "%d.%m.%Y %H:%M:%S.000", header="Gmt time," + JFOREX),
    "jforex utc": rows("dukascopy", BARS, "%Y.%m.%d %H:%M:%S", header=f"Time (UTC),{JFOREX} "),
    "jforex eet": rows("dukascopy", BARS, "%d.%m.%Y %H:%M:%S", header="Time (EET)," + JFOREX),
    "jforex local": rows(
        "dukascopy", BARS, "%d.%m.%Y %H:%M:%S.000 GMT+0000", header="Local time," + JFOREX, utc=True
    ),
    "dukascopy-node ms": (
        "dukascopy",
        BARS,
        lambda p: node_rows(p, lambda w: str(epoch_ms(w))),
        {},
    ),
    "dukascopy-node iso": (
        "dukascopy",
        BARS,
        lambda p: node_rows(p, lambda w: w.isoformat(timespec="milliseconds") + "Z"),
        {"utc": True},
    ),
    "histdata": rows("histdata", BARS, "%Y%m%d %H%M%S", separator=";"),
    "mt5 tab": (
        "metatrader",
        HOURS,
        lambda p: mt_rows(p, HOURS, "%Y.%m.%d\t%H:%M:%S", MT5, "\t"),
        {},
    ),
    "mt5 tab, no brackets": (
        "metatrader",
        HOURS,
        lambda p: mt_rows(
            p, HOURS, "%Y.%m.%d\t%H:%M:%S", MT5.replace("<", "").replace(">", ""), "\t"
        ),
        {},
    ),
    "mt5 comma": (
        "metatrader",
        HOURS,
        lambda p: mt_rows(p, HOURS, "%Y.%m.%d,%H:%M:%S", MT5.replace("\t", ","), ","),
        {},
    ),
    "mt5 daily": (
        "metatrader",
        DAYS,
        lambda p: mt_rows(p, DAYS, "%Y.%m.%d", MT5.replace("<TIME>\t", ""), "\t"),
        {},
    ),
    "mt5 no header": (
        "metatrader",
        HOURS,
        lambda p: mt_rows(p, HOURS, "%Y.%m.%d\t%H:%M:%S", "", "\t"),
        {},
    ),
    "mt4 comma": rows("metatrader", BARS, "%Y.%m.%d,%H:%M"),
    "mt4 daily": rows("metatrader", DAYS, "%Y.%m.%d"),
    "mt chart": rows("metatrader", BARS, "%Y.%m.%d %H:%M"),
    "table": rows("table", BARS, "%Y-%m-%d %H:%M:%S", header="time,open,high,low,close,vol"),
    "table with date and time": rows(
        "table", BARS, "%Y-%m-%d,%H:%M", header="Date,Time,Open,High,Low,Close,Volume"
    ),
    "table of pandas": rows("table", BARS, "%Y-%m-%d %H:%M:%S", header=",o,h,l,c,v"),
    "table with a map": rows(
        "table",
        BARS,
        "%Y-%m-%d %H:%M",
        header="when;a;b;x;d;n",
        separator=";",
        columns={
            "Datetime": "when",
            "open": "a",
            "High": "b",
            "Low": "x",
            "Close": "d",
            "Volume": "n",
        },
    ),
    "table without names": rows(
        "table",
        BARS,
        "%Y-%m-%d %H:%M",
        columns={
            "Datetime": "1",
            "Open": "2",
            "High": "3",
            "Low": "4",
            "Close": "5",
            "Volume": "6",
        },
    ),
    "table with a map of date and time": rows(
        "table",
        BARS,
        "%Y-%m-%d,%H:%M",
        header="day,clock,open,high,low,close,volume",
        columns={"Date": "day", "Time": "clock"},
    ),
    "parquet": ("table", BARS, lambda p: parquet(p), {}),
    "parquet with a map": (
        "table",
        BARS,
        lambda p: parquet(p, Close="settle"),
        {"columns": {"Close": "settle"}},
    ),
    "binance ms": ("binance", HOURS, lambda p: klines(p, 1), {}),
    "binance us": ("binance", HOURS, lambda p: klines(p, 1000), {}),
    "binance with a header": ("table", HOURS, lambda p: klines(p, 1, header=KLINE_NAMES), {}),
    "binance lists": ("binance", HOURS, lambda p: as_json(klines(p, 1)), {}),
    "binance objects": ("table", HOURS, lambda p: as_json(klines(p, 1, header=KLINE_NAMES)), {}),
    "yfinance": rows(
        "table", HOURS, "%Y-%m-%d %H:%M:%S+00:00", header=yfinance_header("EURUSD=X"), utc=True
    ),
    "tradingview": (
        "table",
        HOURS,
        lambda p: extended(
            write_rows(p, HOURS, "%s", header="time,open,high,low,close,Volume,RSI,RSI"), ",50.1,"
        ),
        {},
    ),
    "tradingview iso": rows(
        "table", HOURS, "%Y-%m-%dT%H:%M:%SZ", header="time,open,high,low,close,Volume", utc=True
    ),
    "databento": ("databento", HOURS, lambda p: databento(p, HOURS), {}),
    "databento pretty": (
        "databento",
        HOURS,
        lambda p: databento(p, HOURS, pretty=True),
        {"utc": True},
    ),
    "decimal comma": (
        "table",
        HOURS,
        lambda p: decimal_commas(
            write_rows(p, HOURS, "%Y-%m-%d %H:%M", header="time;o;h;l;c;v", separator=";")
        ),
        {},
    ),
    "decimal comma in quotes, thousands": (
        "table",
        THOUSANDS,
        lambda p: quoted(p, lambda number: f"{number:,}".translate(str.maketrans(",.", ".,"))),
        {},
    ),
    "lines above the header": rows(
        "table",
        HOURS,
        "%Y-%m-%d %H:%M",
        header="Acme, Inc.\nAccount: 12\n\ntime,open,high,low,close,volume",
    ),
    "lines above a header of other names": rows(
        "table",
        HOURS,
        "%Y-%m-%d %H:%M",
        header="Acme, Inc.\nAccount\ntime,open,high,low,last,volume",
        columns={"Close": "last"},
    ),
    "numbered names": rows(
        "table",
        HOURS,
        "%Y-%m-%d %H:%M",
        header="timestamp,1. open,2. high,3. low,4. close,5. volume",
    ),
    "an index without a name, reset": rows(
        "table", HOURS, "%Y-%m-%d %H:%M", header="index,open,high,low,close,volume"
    ),
    "parquet of an index without a name": (
        "table",
        BARS,
        lambda p: parquet(p, Datetime="__index_level_0__"),
        {},
    ),
    "carriage returns alone": (
        "table",
        HOURS,
        lambda p: carriage_returns(write_rows(p, HOURS, "%Y-%m-%d %H:%M", header="time,o,h,l,c,v")),
        {},
    ),
    "thousands in quotes": (
        "table",
        THOUSANDS,
        lambda p: quoted(p, lambda number: f"{number:,}"),
        {},
    ),
    "bi5": ("dukascopy", BARS, lambda p: candles(p), {"start": datetime(2019, 2, 4)}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_round_trip(variant: str, tmp_path: Path) -> None:
    format, bars, write, options = VARIANTS[variant]
    # The suffix says nothing: a file is known by its content.
    manifest = import_files([write(tmp_path / "EURUSD.txt")], tmp_path / "bars", **options)
    assert manifest["symbols"]["EURUSD"]["sources"][0]["format"] == format
    assert manifest["symbols"]["EURUSD"]["rows"] == len(bars)
    assert_frame_equal(read_bars(tmp_path / "bars")["EURUSD"], frame_of(bars), rel_tol=1e-12)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks(encoding: str, tmp_path: Path) -> None:
    path = mt_rows(tmp_path / "EURUSD60.csv", HOURS, "%Y.%m.%d\t%H:%M:%S", MT5, "\t")
    path.write_text(path.read_text(), encoding=encoding)
    entry = import_files([path], tmp_path / "bars")["symbols"]["EURUSD"]
    assert entry["sources"][0]["format"] == "metatrader"
    assert_frame_equal(read_bars(tmp_path / "bars")["EURUSD"], frame_of(HOURS))


def test_ticks_of_jforex_and_dukascopy_node_become_minutes(tmp_path: Path) -> None:
    start = datetime(2019, 2, 4)
    ticks = [(start + timedelta(milliseconds=20_500 * i), 1.1 + i * 1e-5) for i in range(9)]
    jforex = ["Time (EET),Ask,Bid,AskVolume,BidVolume "]
    node = ["timestamp,askPrice,bidPrice"]
    for when, bid in ticks:
        jforex.append(
            f"{when:%Y.%m.%d %H:%M:%S}.{when.microsecond // 1000:03d},{bid + 1e-5},{bid},1,2.5"
        )
        node.append(f"{epoch_ms(when)},{bid + 1e-5},{bid}")
    for name, lines in {"jforex": jforex, "node": node}.items():
        path = tmp_path / f"EURUSD_{name}.csv"
        path.write_text("\n".join(lines))
        manifest = import_files([path], tmp_path / name)
        assert manifest["symbols"]["EURUSD"]["sources"][0]["rows"] == len(ticks)
        bars = read_bars(tmp_path / name)["EURUSD"]
        assert bars["Datetime"].to_list() == [start + timedelta(minutes=i) for i in range(3)]
        assert bars["Open"].to_list() == [ticks[0][1], ticks[3][1], ticks[6][1]]
        assert bars["Close"].to_list() == [ticks[2][1], ticks[5][1], ticks[8][1]]
        assert bars["Volume"].to_list() == ([7.5] * 3 if name == "jforex" else [None] * 3)


def test_one_of_several_tickers_of_yfinance(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    lines = [yfinance_header("AAPL", "SPY")]
    for when, *numbers in HOURS:
        cells = [value for number in numbers for value in (number, 2 * number)]
        lines.append(",".join([f"{when:%Y-%m-%d %H:%M:%S}", *map(repr, cells)]))
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"several symbols[\s\S]*AAPL, SPY[\s\S]*--symbol"):
        import_files([path], tmp_path / "bars")
    import_files([path], tmp_path / "bars", symbol="SPY")
    assert read_bars(tmp_path / "bars")["SPY"]["Close"].to_list() == [2 * bar[4] for bar in HOURS]


def test_json_that_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "EURUSD.json"
    path.write_text('{"instrument": "EUR_USD", "candles": []}')
    with pytest.raises(DataError, match="the JSON is not a table"):
        import_files([path], tmp_path / "bars")
    for text in (
        "[]",
        "[1, 2]",
        "[[1, 2], 3]",
        '[{"a": 1}, {"b": 2}]',
        "[[1, 2",
        '["code", -1121]',
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=r"EURUSD\.json"):
            import_files([path], tmp_path / "bars")


def test_histdata_zip_beside_its_report(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "plain", BARS, "%Y%m%d %H%M%S", separator=";")
    path = tmp_path / "download.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(table, "DAT_ASCII_EURUSD_M1_201902.csv")
        archive.writestr("DAT_ASCII_EURUSD_M1_201902.txt", "File Status Report")
    source = import_files([path], tmp_path / "bars")["symbols"]["EURUSD"]["sources"][0]
    assert (source["format"], source["member"]) == ("histdata", "DAT_ASCII_EURUSD_M1_201902.csv")
    assert_frame_equal(read_bars(tmp_path / "bars")["EURUSD"], frame_of(BARS))


def test_comments_blank_lines_spaces_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "EURUSD.csv"
    path.write_text(
        '# made by hand\n\n"time", open ,high,low,close\n# units\n\n2019-02-04 00:00, 1.1 '
        ',"1.3",1.0,1.2\n\n'
    )
    import_files([path], tmp_path / "bars")
    row = read_bars(tmp_path / "bars")["EURUSD"].row(0)
    assert row == (datetime(2019, 2, 4), 1.1, 1.3, 1.0, 1.2, None)


def test_flat_bars_are_dropped_for_dukascopy_alone(tmp_path: Path) -> None:
    flat = [*BARS, (BARS[-1][0] + timedelta(minutes=1), 1.1, 1.1, 1.1, 1.1, 0.0)]
    jforex = write_rows(
        tmp_path / "EURUSD_a.csv", flat, "%d.%m.%Y %H:%M:%S.000", header="Gmt time," + JFOREX
    )
    histdata = write_rows(tmp_path / "EURUSD_b.csv", flat, "%Y%m%d %H%M%S", separator=";")
    first = import_files([jforex], tmp_path / "a")["symbols"]["EURUSD"]
    second = import_files([histdata], tmp_path / "b")["symbols"]["EURUSD"]
    assert (first["rows"], first["flat_dropped"]) == (len(BARS), 1)
    assert (second["rows"], second["flat_dropped"]) == (len(flat), 0)


@pytest.mark.parametrize("format", ["dukascopy", "histdata", "metatrader", "table"])
def test_a_named_format_is_held_to(format: str, tmp_path: Path) -> None:
    written = {
        "dukascopy": write_rows(
            tmp_path / "EURUSD_d.csv", BARS, "%d.%m.%Y %H:%M:%S", header="Gmt time," + JFOREX
        ),
        "histdata": write_rows(tmp_path / "EURUSD_h.csv", BARS, "%Y%m%d %H%M%S", separator=";"),
        "metatrader": write_rows(tmp_path / "EURUSD_m.csv", BARS, "%Y.%m.%d,%H:%M"),
        "table": parquet(tmp_path / "EURUSD_t.parquet"),
    }
    manifest = import_files([written[format]], tmp_path / "bars", format=format)
    assert manifest["symbols"]["EURUSD"]["sources"][0]["format"] == format
    other = "histdata" if format == "metatrader" else "metatrader"
    with pytest.raises(DataError, match="--format auto"):
        import_files([written[format]], tmp_path / "other", format=other)


def test_options_that_do_not_fit_together(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "EURUSD.csv", BARS, "%Y%m%d %H%M%S", separator=";")
    wrong: list[dict[str, Any]] = [
        {"format": "excel"},
        {"format": "histdata", "columns": {"Open": "1"}},
        {"columns": {"Opening": "1"}},
        {"columns": {"Time": "1"}},
        {"price_scale": 1e5},
        {"price_scale": -1.0},
        {"start": datetime.fromisoformat("2019-02-04T00:00:00+00:00")},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            import_files([path], tmp_path / "bars", **options)
    assert not (tmp_path / "bars").exists()


def test_real_files_of_every_format_are_recognised(shared_data: Path, tmp_path: Path) -> None:
    unsaid: dict[str, dict[str, Any]] = {
        "dukascopy_USDHKD.bi5": {"start": datetime(2020, 1, 2)},
        "ork-ad_USDCNH_1h.csv": {"utc": True},
    }
    formats = {
        "dukascopy": "dukascopy",
        "histdata": "histdata",
        "mt5": "metatrader",
        "oanda": "table",
        "ork": "table",
    }
    files = [path for path in sorted((shared_data / "raw").iterdir()) if path.is_file()]
    assert files
    for path in files:
        manifest = import_files([path], tmp_path / path.stem, **unsaid.get(path.name, {}))
        ((symbol, entry),) = manifest["symbols"].items()
        source = entry["sources"][0]
        assert source["format"] == next(
            name for prefix, name in formats.items() if path.name.startswith(prefix)
        )
        assert entry["rows"] + entry["flat_dropped"] == source["rows"] or "ticks" in path.name
        bars = read_bars(tmp_path / path.stem)[symbol]
        assert len(bars) == entry["rows"]
        assert bars.select(
            pl.all_horizontal(pl.col("Open", "High", "Low", "Close") > 0).all()
        ).item()
