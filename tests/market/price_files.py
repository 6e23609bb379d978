"""Files as other tools write them, made from bars: the inverse of the importers, kept as plain as
possible.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

Bar = tuple[datetime, float, float, float, float, float]
COLUMNS = ("Datetime", "Open", "High", "Low", "Close", "Volume")


def some_bars(
    count: int = 30, start: datetime = datetime(2019, 2, 4, 22), step_min: int = 1
) -> list[Bar]:
    """Bars whose every number is different, so that a swapped column shows."""
    rows = []
    for i in range(count):
        low = round(1.1 + i * 1e-4, 5)
        prices = (low + 1e-5, low + 5e-5, low, low + 3e-5)
        rows.append(
            (
                start + timedelta(minutes=i * step_min),
                *(round(p, 5) for p in prices),
                float(100 + i),
            )
        )
    return rows


def frame_of(bars: Sequence[Bar]) -> pl.DataFrame:
    return pl.DataFrame(list(bars), schema=list(COLUMNS), orient="row").with_columns(
        pl.col("Datetime").cast(pl.Datetime("us"))
    )


def bi5(records: Iterable[tuple[float, ...]], layout: str) -> bytes:
    raw = b"".join(struct.pack(layout, *record) for record in records)
    return lzma.compress(raw, format=lzma.FORMAT_ALONE)


def candles_bi5(bars: Sequence[Bar], start: datetime, scale: float = 1e5) -> bytes:
    def record(bar: Bar) -> tuple[float, ...]:
        stamp, *prices, volume = bar
        o, h, low, c = (round(price * scale) for price in prices)
        return (int((stamp - start).total_seconds()), o, c, low, h, volume)

    return bi5((record(bar) for bar in bars), ">IIIIIf")


def write_rows(
    path: Path, bars: Sequence[Bar], stamp: str, *, header: str = "", separator: str = ","
) -> Path:
    """One line a bar; `stamp` is a strftime pattern, in which a separator may stand."""
    lines = [header] if header else []
    for when, *numbers in bars:
        lines.append(separator.join([when.strftime(stamp), *(repr(number) for number in numbers)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def epoch_ms(when: datetime) -> int:
    return round(when.replace(tzinfo=UTC).timestamp() * 1000)
