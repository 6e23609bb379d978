"""Dukascopy's own `.bi5` files: minute, hour and day candles, or ticks.

Enters: an LZMA stream of records with big-endian integers, prices multiplied by a power of ten, and
times since the file's beginning. Leaves: its rows; the beginning is in the path, as the file does
not say it.
"""

from __future__ import annotations

import lzma
import re
from dataclasses import replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import DataError
from vaiom.market.folder import BAR_SCHEMA, PRICE_COLUMNS
from vaiom.market.formats.source import ROW, Options, RawTable, SourceFile, damaged
from vaiom.market.sessions import HOUR, MINUTE
from vaiom.market.symbols import CURRENCIES, METALS

CANDLE = np.dtype(
    [
        ("s", ">u4"),
        ("Open", ">u4"),
        ("Close", ">u4"),
        ("Low", ">u4"),
        ("High", ">u4"),
        ("Volume", ">f4"),
    ]
)
TICK = np.dtype(
    [("ms", ">u4"), ("Ask", ">u4"), ("Bid", ">u4"), ("AskVolume", ">f4"), ("BidVolume", ">f4")]
)
MAGIC = b"\x5d\x00\x00"
"""An LZMA stream in the old container, as every .bi5 file is."""
MAX_UNPACKED = 64 << 20
"""The busiest hour of ticks stays far below this; what unpacks to more is not price data."""
MAX_DICTIONARY = 256 << 20

_TRUNCATED = "the .bi5 file is truncated: its last record is not whole"
_PATH = re.compile(
    r"(?:^|[/_])(?P<symbol>[A-Za-z0-9]+)[/_](?P<year>\d{4})(?:[/_](?P<month>\d{2}))?(?:[/_](?P<day>\d{2}))?"
    r"[/_](?:(?:BID|ASK)_candles_(?:min|hour|day)_1|(?P<hour>\d{2})h_ticks)\.bi5$",
    re.IGNORECASE,
)
_EXAMPLE = ".../EURUSD/2019/01/04/BID_candles_min_1.bi5, or the same joined by underscores"
_SCALE_FIX = "`vaiom data import --price-scale`, the number that stored integers are divided by"


def price_scale_of(symbol: str, fix: str = _SCALE_FIX) -> float:
    """The number that Dukascopy's stored integers are divided by to give prices.

    It is a thousand for yen and metals, and a hundred thousand for other currencies. For other
    instruments the user must give it, as a wrong one would make wrong prices.
    """
    legs = {symbol[:3].upper(), symbol[3:].upper()}
    if not legs <= CURRENCIES:
        problem = "the price scale of this symbol is not known"
        raise DataError(problem, expected="a currency pair or a metal", got=symbol, fix=fix)
    return 1e3 if legs & {"JPY", *METALS} else 1e5


def parse_path(path: str) -> tuple[str, datetime] | None:
    """Symbol and start of `.../EURUSD/2019/01/04/BID_candles_min_1.bi5`, whose months are from 00.

    The parts may also be joined by underscores; None for other paths.
    """
    match = _PATH.search(path.replace("\\", "/"))
    if not match:
        return None
    year = int(match["year"])
    month = int(match["month"] or 0)
    day = int(match["day"] or 1)
    hour = int(match["hour"] or 0)
    try:
        start = datetime(year, month + 1, day, hour)
        if not 1900 <= year < 2200:
            raise ValueError(f"the year {year}")
    except ValueError as error:
        raise DataError(
            "the path names an impossible date",
            where=path,
            expected="year/month/day, months from 00",
            got=str(error),
        ) from error
    return match["symbol"].upper(), start


def read_bi5(file: SourceFile, data: bytes, options: Options) -> RawTable:
    """The candles or ticks of one `.bi5` file; the options give what its path does not say.

    These are the start, the symbol, and the price scale of other instruments than currencies and
    metals.
    """
    file = replace(file, unit="record")
    symbol, start = parse_path(file.path.as_posix()) or (file.symbol, options.start)
    raw = _unpack(data, file.label)
    frame = pl.DataFrame(schema=BAR_SCHEMA)
    if raw:
        if start is None:
            raise file.error(
                "the path does not say when the file begins",
                expected=_EXAMPLE,
                fix="`vaiom data import --start`, the beginning of its hour, day, month or year",
            )
        named = symbol or options.symbol
        if named is None:
            raise file.error("the path does not name a symbol", fix="pass --symbol")
        scale = options.price_scale or price_scale_of(named)
        frame = _decode(raw, _record_type(raw, file.label), start, scale)
    return RawTable(
        file=file,
        format="dukascopy",
        frame=frame.with_row_index(ROW, offset=1),
        roles={name: name for name in frame.columns},
        symbol=symbol,
    )


def decode_candles(
    payload: bytes, start: datetime, price_scale: float, where: object
) -> pl.DataFrame:
    """All candles of a `.bi5` file as bars, flat ones included; none of an empty file."""
    raw = _unpack(payload, where)
    if len(raw) % CANDLE.itemsize:
        expected = f"a multiple of {CANDLE.itemsize} bytes"
        raise damaged(_TRUNCATED, where, expected=expected, got=len(raw))
    return _decode(raw, CANDLE, start, price_scale)


def _unpack(payload: bytes, where: object) -> bytes:
    """The records of a file, which must be one whole stream of a size that price data can have."""
    if not payload:
        return b""
    decoder = lzma.LZMADecompressor(memlimit=MAX_DICTIONARY)
    try:
        raw = decoder.decompress(payload, max_length=MAX_UNPACKED + 1)
    except lzma.LZMAError as error:
        raise damaged("the .bi5 file cannot be unpacked", where, got=str(error)) from error
    if len(raw) > MAX_UNPACKED:
        expected = f"at most {MAX_UNPACKED} bytes"
        raise damaged("the .bi5 file unpacks to too much", where, expected=expected)
    if not decoder.eof:
        got = f"the stream breaks off after {len(raw)} bytes"
        raise damaged("the .bi5 file is truncated", where, got=got)
    if decoder.unused_data:
        got = f"{len(decoder.unused_data)} more bytes"
        raise damaged("the .bi5 file goes on after its end", where, got=got)
    return raw


def _record_type(raw: bytes, where: object) -> np.dtype[np.void]:
    """Whether records are candles or ticks, by their length and their clock.

    Candles begin at whole minutes; ticks lie within their hour.
    """
    is_candles = len(raw) % CANDLE.itemsize == 0
    is_ticks = len(raw) % TICK.itemsize == 0
    if is_candles and np.all(np.frombuffer(raw, CANDLE)["s"] % MINUTE == 0):
        return CANDLE
    if is_ticks and np.all(np.frombuffer(raw, TICK)["ms"] < 1_000 * HOUR):
        return TICK
    if is_candles or is_ticks:
        raise damaged("the .bi5 file holds neither candles nor ticks", where)
    expected = f"a multiple of {CANDLE.itemsize} (candles) or {TICK.itemsize} (ticks) bytes"
    raise damaged(_TRUNCATED, where, expected=expected, got=len(raw))


def _decode(
    raw: bytes, kind: np.dtype[np.void], start: datetime, price_scale: float
) -> pl.DataFrame:
    """Bars of candles, or stamps, bids and their volumes of ticks."""
    records: npt.NDArray[np.void] = np.frombuffer(raw, kind)
    if kind == CANDLE:
        microseconds = records["s"].astype(np.int64) * 1_000_000
        prices: tuple[str, ...] = PRICE_COLUMNS
        volume = "Volume"
    else:
        microseconds = records["ms"].astype(np.int64) * 1_000
        prices = ("Bid",)
        volume = "BidVolume"
    stamps = pl.Series(microseconds).cast(pl.Duration("us")) + start
    # Dividing the stored integer gives the double nearest to the decimal price; multiplying by 1e-5
    # would not.
    columns = {name: records[name].astype(np.float64) / price_scale for name in prices}
    return pl.DataFrame({"Datetime": stamps, **columns, volume: records[volume].astype(np.float64)})
