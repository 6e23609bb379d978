"""Dukascopy's own `.bi5` files: minute, hour and day candles, or ticks."""

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
from vaiom.market.formats.table import ROW, Options, Origin, RawTable
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
# An LZMA stream in the old container, as every .bi5 file is.
MAGIC = b"\x5d\x00\x00"
# The busiest hour of ticks stays far below this; what unpacks to more is not price data.
MAX_UNPACKED = 64 << 20
MAX_DICTIONARY = 256 << 20

_CUT_RECORD = "the .bi5 file is truncated: its last record is not whole"
_PATH = re.compile(
    r"(?:^|[/_])(?P<symbol>[A-Za-z0-9]+)[/_](?P<year>\d{4})(?:[/_](?P<month>\d{2}))?(?:[/_](?P<day>\d{2}))?"
    r"[/_](?:(?:BID|ASK)_candles_(?:min|hour|day)_1|(?P<hour>\d{2})h_ticks)\.bi5$",
    re.IGNORECASE,
)


def price_scale_of(
    symbol: str,
    fix: str = "`vaiom data import --price-scale`, the number that stored integers are divided by",
) -> float:
    """The number that Dukascopy's stored integers are divided by to give prices."""
    legs = {symbol[:3].upper(), symbol[3:].upper()}
    if not legs <= CURRENCIES:
        known = "a currency pair or a metal"
        raise DataError(
            "the price scale of this symbol is not known", expected=known, got=symbol, fix=fix
        )
    return 1e3 if legs & {"JPY", *METALS} else 1e5


def parse_path(path: str) -> tuple[str, datetime] | None:
    """Symbol and start of `.../EURUSD/2019/01/04/BID_candles_min_1.bi5`, or the same joined by
    underscores.
    """
    match = _PATH.search(path.replace("\\", "/"))
    if not match:
        return None
    defaults = {"month": 0, "day": 1, "hour": 0}
    year, (month, day, hour) = (
        int(match["year"]),
        (int(match[name] or least) for name, least in defaults.items()),
    )
    try:
        start = datetime(year, month + 1, day, hour)  # months count from 00
        if not 1900 <= year < 2200:
            raise ValueError(f"the year {year}")
    except ValueError as error:
        layout = "year/month/day, months from 00"
        raise DataError(
            "the path names an impossible date", where=path, expected=layout, got=str(error)
        ) from error
    return match["symbol"].upper(), start


def read_bi5(file: Origin, data: bytes, options: Options) -> RawTable:
    """The candles or ticks of one `.bi5` file; the options give what its path does not say."""
    file = replace(file, unit="record")
    symbol, start = parse_path(file.path.as_posix()) or (file.symbol, options.start)
    raw = _unpack(data, file.label)
    frame = pl.DataFrame(schema=BAR_SCHEMA)
    if raw:
        if start is None:
            expected = (
                ".../EURUSD/2019/01/04/BID_candles_min_1.bi5, or the same joined by underscores"
            )
            fix = "`vaiom data import --start`, the beginning of its hour, day, month or year"
            raise file.error(
                "the path does not say when the file begins", expected=expected, fix=fix
            )
        named = symbol or options.symbol
        if named is None:
            raise file.error("the path does not name a symbol", fix="pass --symbol")
        frame = _decode(
            raw, _record_type(raw, file.label), start, options.price_scale or price_scale_of(named)
        )
    roles, rows = {name: name for name in frame.columns}, frame.with_row_index(ROW, offset=1)
    return RawTable(file=file, format="dukascopy", frame=rows, roles=roles, symbol=symbol)


def decode_candles(
    payload: bytes, start: datetime, price_scale: float, where: object
) -> pl.DataFrame:
    """All candles of a `.bi5` file as bars, flat ones included; an empty file is an empty
    period.
    """
    raw = _unpack(payload, where)
    if len(raw) % CANDLE.itemsize:
        raise damaged(
            _CUT_RECORD, where, expected=f"a multiple of {CANDLE.itemsize} bytes", got=len(raw)
        )
    return _decode(raw, CANDLE, start, price_scale)


def damaged(
    problem: str, where: object, *, expected: object = None, got: object = None
) -> DataError:
    return DataError(
        problem, where=where, expected=expected, got=got, fix="fetch the file again: it is damaged"
    )


def _unpack(payload: bytes, where: object) -> bytes:
    if not payload:
        return b""
    decoder = lzma.LZMADecompressor(memlimit=MAX_DICTIONARY)
    try:
        raw = decoder.decompress(payload, max_length=MAX_UNPACKED + 1)
    except lzma.LZMAError as error:
        raise damaged("the .bi5 file cannot be unpacked", where, got=str(error)) from error
    if len(raw) > MAX_UNPACKED:
        raise damaged(
            "the .bi5 file unpacks to too much", where, expected=f"at most {MAX_UNPACKED} bytes"
        )
    if not decoder.eof:
        raise damaged(
            "the .bi5 file is truncated", where, got=f"the stream breaks off after {len(raw)} bytes"
        )
    if decoder.unused_data:
        raise damaged(
            "the .bi5 file goes on after its end",
            where,
            got=f"{len(decoder.unused_data)} more bytes",
        )
    return raw


def _record_type(raw: bytes, where: object) -> np.dtype[np.void]:
    """Candles begin at whole minutes; ticks lie within their hour."""
    if len(raw) % CANDLE.itemsize == 0 and np.all(np.frombuffer(raw, CANDLE)["s"] % 60 == 0):
        return CANDLE
    if len(raw) % TICK.itemsize == 0 and np.all(np.frombuffer(raw, TICK)["ms"] < 3_600_000):
        return TICK
    if len(raw) % CANDLE.itemsize and len(raw) % TICK.itemsize:
        expected = f"a multiple of {CANDLE.itemsize} (candles) or {TICK.itemsize} (ticks) bytes"
        raise damaged(_CUT_RECORD, where, expected=expected, got=len(raw))
    raise damaged("the .bi5 file holds neither candles nor ticks", where)


def _decode(
    raw: bytes, kind: np.dtype[np.void], start: datetime, price_scale: float
) -> pl.DataFrame:
    """Bars of candles, or stamps, bids and their volumes of ticks."""
    records: npt.NDArray[np.void] = np.frombuffer(raw, kind)
    candles, ticks = ("s", 1_000_000, PRICE_COLUMNS, "Volume"), ("ms", 1_000, ("Bid",), "BidVolume")
    clock, unit, prices, volume = candles if kind == CANDLE else ticks
    stamps = pl.Series(records[clock].astype(np.int64) * unit).cast(pl.Duration("us")) + start
    # Dividing the stored integer gives the double nearest to the decimal price; multiplying by 1e-5
    # would not.
    columns = {name: records[name].astype(np.float64) / price_scale for name in prices}
    return pl.DataFrame({"Datetime": stamps, **columns, volume: records[volume].astype(np.float64)})
