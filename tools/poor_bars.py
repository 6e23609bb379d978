"""What poor bars cost a packaged model: bits of an asset with closes alone, and without volume.

`python tools/poor_bars.py BARS --symbol EURUSD` scores the packaged model on Validation of that
asset, forecast by itself, from the bars as they are and from what is left of them.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl

from vaiom import Forecaster
from vaiom.features.fields import ANY_MASK, BAD_RETURN, bucket_of, has_flag
from vaiom.market.folder import read_file

CLOSE = pl.col("Close")
CLOSES = {"Open": CLOSE, "High": CLOSE, "Low": CLOSE}
NO_VOLUME = {"Volume": pl.lit(0.0)}
KINDS: dict[str, dict[str, pl.Expr]] = {
    "as they are": {},
    "without volume": NO_VOLUME,
    "closes alone": CLOSES,
    "closes alone, without volume": CLOSES | NO_VOLUME,
}
BARS_BEFORE = 10_000
"""Bars before Validation: more than any recursion remembers."""


def bits_of(
    forecaster: Forecaster, bars: pl.DataFrame, symbol: str, start: datetime, end: datetime
) -> tuple[float, int]:
    """Mean bits over the events whose targets lie in the split, and how many there are."""
    history = forecaster.predict_all(bars, symbol)
    flags = history.columns["flags"]
    stamps = history.as_of[1:]
    is_event = ~has_flag(flags[:-1], ANY_MASK) & ~has_flag(flags[1:], BAD_RETURN)
    is_event &= (stamps >= np.datetime64(start)) & (stamps < np.datetime64(end))
    ret_z = history.columns["log_ret"][1:] / history.sigma[:-1]
    bucket = bucket_of(forecaster.tokenizer.edges["return"], ret_z)
    events = np.flatnonzero(is_event)
    bits = -np.log2(history.probs[events, bucket[events].astype(int) - 1])
    return float(bits.mean()), len(events)


def main() -> None:
    """Print a line a kind of bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bars", type=Path, help="bar folder")
    parser.add_argument("--symbol", default="EURUSD")
    parser.add_argument("--model", default="fx-1h-evidence")
    given = parser.parse_args()
    forecaster = Forecaster.pretrained(given.model)
    start, end = map(datetime.fromisoformat, forecaster.describe()["splits"]["validation"])
    bars = read_file(given.bars / f"{given.symbol}.parquet").filter(pl.col("Datetime") < end)
    num_bars = BARS_BEFORE + len(bars.filter(pl.col("Datetime") >= start))
    bars = bars.tail(num_bars)
    for kind, columns in KINDS.items():
        poor = bars.with_columns(**columns)
        bits, num_events = bits_of(forecaster, poor, given.symbol, start, end)
        print(f"{kind:30} {bits:.4f} bits, {num_events:,} events")


if __name__ == "__main__":
    main()
