"""Files of other tools, as `vaiom data import` reads them: recognised, decoded, put in order, one
table per symbol.
"""

from __future__ import annotations

import io
import json
import lzma
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.market.formats.read import read_source
from vaiom.market.formats.source import Options, SourceFile
from vaiom.market.imports import combine
from verification.fuzz.mutations import Mutate, spoil_bytes, spoil_text

START = datetime(2019, 2, 4, 22)
CANDLES_NAME = "EURUSD_2019_01_04_BID_candles_min_1.bi5"
TICKS_NAME = "EURUSD_2019_01_04_22h_ticks.bi5"

Entry = tuple[Sequence[bytes], Mutate, Callable[[bytes], object], int]


def targets() -> dict[str, Entry]:
    rows = [
        (START + timedelta(minutes=n), 1.1 + n * 1e-4, 1.2, 1.0, 1.1, 100.0 + n) for n in range(12)
    ]
    candles = b"".join(
        struct.pack(">IIIIIf", 60 * n, 110_000, 110_003, 109_990, 110_009, 1.5) for n in range(12)
    )
    ticks = b"".join(struct.pack(">IIIff", 700 * n, 110_002, 110_000, 1.0, 2.0) for n in range(40))
    histdata = _text(rows, "%Y%m%d %H%M%S", ";")
    metatrader = b"<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\n" + _text(
        rows, "%Y.%m.%d\t%H:%M", "\t"
    )
    jforex = b"Gmt time,Open,High,Low,Close,Volume\n" + _text(rows, "%d.%m.%Y %H:%M:%S.000", ",")
    node = b"timestamp,askPrice,bidPrice,askVolume,bidVolume\n" + _ticks_text(rows)
    table = b"time,open,high,low,close,volume\n" + _text(rows, "%Y-%m-%d %H:%M", ",")
    zoned = b"# a comment\ntime,open,high,low,close,symbol\n" + _text(
        rows, "%Y-%m-%dT%H:%M:%SZ", ","
    )
    frame = pl.DataFrame(
        rows, schema=["Datetime", "Open", "High", "Low", "Close", "Volume"], orient="row"
    )
    return {
        "bi5 candles": ([_packed(candles)], spoil_bytes, _reader(CANDLES_NAME), 25),
        "bi5 candles, records": ([candles], spoil_bytes, _packed_reader(CANDLES_NAME), 15),
        "bi5 ticks": ([_packed(ticks)], spoil_bytes, _reader(TICKS_NAME), 20),
        "bi5 ticks, records": ([ticks], spoil_bytes, _packed_reader(TICKS_NAME), 15),
        "histdata": ([histdata], spoil_text, _reader("DAT_ASCII_EURUSD_M1_2019.csv"), 11),
        "metatrader": (
            [metatrader, metatrader.split(b"\n", 1)[1]],
            spoil_text,
            _reader("EURUSD_M1.csv"),
            11,
        ),
        "dukascopy csv": ([jforex, node], spoil_text, _reader("EURUSD_BID.csv"), 11),
        "table": (
            [table, zoned, "\ufeff".encode("utf-16-le") + table.decode().encode("utf-16-le")],
            spoil_text,
            _reader("table.csv"),
            11,
        ),
        "parquet table": (
            [_parquet(frame), _parquet(frame.cast({"Datetime": pl.String}))],
            spoil_bytes,
            _reader("EURUSD.parquet"),
            20,
        ),
        "zip": ([_zipped(table), _zipped(histdata)], spoil_bytes, _reader("EURUSD.zip"), 15),
    }


def _reader(name: str) -> Callable[[bytes], object]:
    """What an import does with a file of this name, under options that the content chooses."""

    def read(data: bytes) -> object:
        chance = random.Random(len(data))
        repair, utc = bool(chance.randrange(2)), bool(chance.randrange(2))
        symbol = chance.choice([None, "EURUSD"])
        options = Options(symbol=symbol, utc=utc, repair=repair, shift=timedelta(hours=2))
        sources = read_source(SourceFile(path=Path(name)), data, options)
        entries = [combine("EURUSD", [source], options)[1] for source in sources]
        return json.dumps(entries, allow_nan=False)

    return read


def _packed_reader(name: str) -> Callable[[bytes], object]:
    """Past the compression: what is inside is spoiled, the container is whole."""
    read = _reader(name)
    return lambda records: read(_packed(records))


def _packed(records: bytes) -> bytes:
    return lzma.compress(records, format=lzma.FORMAT_ALONE, preset=0)


def _text(rows: Sequence[tuple[Any, ...]], stamp: str, delimiter: str) -> bytes:
    lines = (
        delimiter.join([when.strftime(stamp), *(repr(value) for value in values)])
        for when, *values in rows
    )
    return "\n".join(lines).encode() + b"\n"


def _ticks_text(rows: Sequence[tuple[Any, ...]]) -> bytes:
    stamps = (round(when.replace(tzinfo=UTC).timestamp() * 1000) for when, *_ in rows)
    return "\n".join(f"{stamp},1.10002,1.10000,1,2" for stamp in stamps).encode()


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def _zipped(table: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("EURUSD.csv", table)
    return buffer.getvalue()
