"""Dukascopy's own `.bi5` files: minute, hour and day candles, and ticks, which become one-minute bid bars.

Enters: the bytes of a file as the server sends it, and its path, which tells symbol and date. Leaves: bars without the
flat ones that Dukascopy serves for closed hours.
Paper: "Market Data, Price Convention and Bar Construction" (the source of the one-minute bars).
"""

from __future__ import annotations

import lzma
import re
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import DataError
from vaiom.market.folder import BAR_COLUMNS, BAR_SCHEMA, PRICE_COLUMNS
from vaiom.market.sources.clean import drop_unusable
from vaiom.market.sources.piece import CURRENCIES, METALS, ROW, Options, Origin, Piece, damaged, symbol_in_names
from vaiom.market.sources.ticks import tick_piece

CANDLE = np.dtype([("s", ">u4"), ("Open", ">u4"), ("Close", ">u4"), ("Low", ">u4"), ("High", ">u4"), ("Volume", ">f4")])
TICK = np.dtype([("ms", ">u4"), ("Ask", ">u4"), ("Bid", ">u4"), ("AskVolume", ">f4"), ("BidVolume", ">f4")])
# An LZMA stream in the old container, as every .bi5 file is.
MAGIC = b"\x5d\x00\x00"
# The busiest hour of ticks stays far below this; what unpacks to more is not price data.
MAX_UNPACKED = 64 << 20
MAX_DICTIONARY = 256 << 20

_COARSE = {"JPY", *METALS}
_HOUR_MS = 3_600_000
_PATH = re.compile(
    r"(?:^|[/_])(?P<symbol>[A-Za-z0-9]+)[/_](?P<year>\d{4})(?:[/_](?P<month>\d{2}))?(?:[/_](?P<day>\d{2}))?"
    r"[/_](?:(?:BID|ASK)_candles_(?:min|hour|day)_1|(?P<hour>\d{2})h_ticks)\.bi5$",
    re.IGNORECASE,
)
_PATH_DEFAULTS = {"year": 0, "month": 0, "day": 1, "hour": 0}


@dataclass(frozen=True)
class PathFacts:
    """What a path says: the symbol, and the instant from which the file counts its seconds or milliseconds."""

    symbol: str
    start: datetime


def price_scale_of(symbol: str) -> float:
    """How many stored units make a price of one: Dukascopy stores integers."""
    legs = {symbol[:3].upper(), symbol[3:].upper()}
    if not legs <= CURRENCIES:
        raise DataError(
            "the price scale of this symbol is not known",
            expected="a currency pair or a metal",
            got=symbol,
            fix="pass --price-scale, the number that stored integers are divided by",
        )
    return 1e3 if legs & _COARSE else 1e5


def decode_candles(payload: bytes, start: datetime, price_scale: float, where: object) -> pl.DataFrame:
    """All candles of a `.bi5` file as bars, flat ones included; an empty file is an empty period."""
    return _candles(_records(_unpack(payload, where), CANDLE, where), start, price_scale)


def drop_flat(bars: pl.DataFrame) -> pl.DataFrame:
    """Without the bars of closed hours, in which nothing moved and nothing was traded."""
    first, *rest = (pl.col(name) for name in PRICE_COLUMNS)
    flat = pl.all_horizontal(price == first for price in rest) & (pl.col("Volume") == 0)
    return bars.filter(~flat.fill_null(value=False))


def path_facts(path: str) -> PathFacts | None:
    """Read `.../EURUSD/2019/01/04/BID_candles_min_1.bi5`, or the same joined by underscores; months count from 00."""
    match = _PATH.search(path.replace("\\", "/"))
    if not match:
        return None
    year, month, day, hour = (int(match[name] or default) for name, default in _PATH_DEFAULTS.items())
    try:
        start = datetime(year, month + 1, day, hour)
        if not 1900 <= year < 2200:
            raise ValueError(f"the year {year}")
    except ValueError as error:
        raise DataError(
            "the path names an impossible date", where=path, expected="year/month/day, months from 00", got=str(error)
        ) from error
    return PathFacts(match["symbol"].upper(), start)


def read(file: Origin, data: bytes, options: Options) -> Piece:
    """The bars of one `.bi5` file; what its path does not say comes from the options."""
    file = replace(file, unit="record")
    facts = path_facts(file.path.as_posix())
    symbol = facts.symbol if facts else symbol_in_names(file)
    raw = _unpack(data, file.label)
    if not raw:
        bars = pl.DataFrame(schema={**BAR_SCHEMA, ROW: pl.UInt32})
        return Piece(file=file, format="dukascopy", symbol=symbol, bars=bars, rows_read=0)

    start = facts.start if facts else options.start
    if start is None:
        raise DataError(
            "the path does not say when the file begins",
            where=file.label,
            expected=".../EURUSD/2019/01/04/BID_candles_min_1.bi5, or the same joined by underscores",
            fix="pass --start, the beginning of its hour, day, month or year",
        )
    if symbol is None and options.symbol is None:
        raise DataError("the path does not name a symbol", where=file.label, fix="pass --symbol")
    scale = options.price_scale or price_scale_of(symbol or options.symbol or "")

    records = _records(raw, _record_type(raw, file), file.label)
    if records.dtype == TICK:
        ticks = _ticks(records, start, scale).with_row_index(ROW, offset=1)
        return tick_piece(file, "dukascopy", symbol, ticks, options)
    numbered = _candles(records, start, scale).with_row_index(ROW, offset=1)
    traded = drop_flat(numbered)
    bars = drop_unusable(traded, PRICE_COLUMNS, file, repair=options.repair)
    return Piece(
        file=file,
        format="dukascopy",
        symbol=symbol,
        bars=bars,
        rows_read=len(records),
        flat_dropped=len(numbered) - len(traded),
        unusable_dropped=len(traded) - len(bars),
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
        raise damaged("the .bi5 file unpacks to too much", where, expected=f"at most {MAX_UNPACKED} bytes")
    if not decoder.eof:
        raise damaged("the .bi5 file is truncated", where, got=f"the stream breaks off after {len(raw)} bytes")
    if decoder.unused_data:
        raise damaged("the .bi5 file goes on after its end", where, got=f"{len(decoder.unused_data)} more bytes")
    return raw


def _record_type(raw: bytes, file: Origin) -> np.dtype[np.void]:
    """Candles or ticks: the record size must fit, and the first field must count time as that kind does."""
    fitting = [kind for kind in (CANDLE, TICK) if len(raw) % kind.itemsize == 0]
    if not fitting:
        raise _odd_length(
            raw, f"a multiple of {CANDLE.itemsize} (candles) or {TICK.itemsize} (ticks) bytes", file.label
        )
    for kind in fitting:
        if _counts_time(np.frombuffer(raw, kind)):
            return kind
    raise damaged("the .bi5 file holds neither candles nor ticks", file.label)


def _counts_time(records: npt.NDArray[np.void]) -> bool:
    """Candles begin at whole minutes; ticks lie within their hour."""
    if records.dtype == CANDLE:
        return bool(np.all(records["s"] % 60 == 0))
    return bool(np.all(records["ms"] < _HOUR_MS))


def _records(raw: bytes, kind: np.dtype[np.void], where: object) -> npt.NDArray[np.void]:
    if len(raw) % kind.itemsize:
        raise _odd_length(raw, f"a multiple of {kind.itemsize} bytes", where)
    return np.frombuffer(raw, kind)


def _odd_length(raw: bytes, expected: str, where: object) -> DataError:
    return damaged("the .bi5 file is truncated: its last record is not whole", where, expected=expected, got=len(raw))


def _candles(records: npt.NDArray[np.void], start: datetime, price_scale: float) -> pl.DataFrame:
    # Dividing the stored integer gives the double nearest to the decimal price; multiplying by 1e-5 would not.
    prices = {name: records[name].astype(np.float64) / price_scale for name in PRICE_COLUMNS}
    stamps = _stamps(records["s"], 1_000_000, start)
    frame = pl.DataFrame({"Datetime": stamps, **prices, "Volume": records["Volume"].astype(np.float64)})
    return frame.select(BAR_COLUMNS)


def _ticks(records: npt.NDArray[np.void], start: datetime, price_scale: float) -> pl.DataFrame:
    bid = records["Bid"].astype(np.float64) / price_scale
    stamps = _stamps(records["ms"], 1_000, start)
    return pl.DataFrame({"Datetime": stamps, "Bid": bid, "Volume": records["BidVolume"].astype(np.float64)})


def _stamps(counts: npt.NDArray[np.uint32], microseconds: int, start: datetime) -> pl.Series:
    return pl.Series(counts.astype(np.int64) * microseconds).cast(pl.Duration("us")) + start
