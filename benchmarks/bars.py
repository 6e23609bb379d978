"""Minute to hour bars, against pandas.resample over the same frame, and the peak memory of a large
folder.

Enters: a bar folder finer than an hour, or nothing for made-up minutes. Leaves: a `Measurement`;
both ways must agree.
Paper: "Market Data, Price Convention and Bar Construction".
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.race import Measurement, race, reference_library
from vaiom.errors import VaiomError
from vaiom.market.folder import BAR_COLUMNS, BAR_SCHEMA, infer_timeframe, read_bars
from vaiom.market.resample import resample

REPEATS = 9
RACE_ROWS = 3_000_000
FOLDER_ROWS = 38_000_000
BLOCK_ROWS = 1_000_000
SEED = 17

_WEEK = 7 * 24 * 60
_TRADING_WEEK = 5 * 24 * 60
_FIRST_MONDAY = np.datetime64("1920-01-05T00:00", "us")


def run(bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """The race on a folder's minutes or made-up ones, and the memory that a long folder takes."""
    measured = measure(*race_input(bars))
    measured.extra.update(measure_folder(FOLDER_ROWS))
    return measured


def measure(bars: pl.DataFrame, source: str, repeats: int = REPEATS) -> Measurement:
    """Race both ways from rows with a stamp column to hourly bars."""
    pd = reference_library("pandas")
    frame = bars.to_pandas()
    rules = {"Open": "first", "High": "max", "Low": "min", "Close": "last", "Volume": "sum"}

    def ours() -> pl.DataFrame:
        return resample(bars, "1h")

    def reference() -> Any:
        # pandas makes a row of every empty hour; dropping them is part of the job.
        return frame.resample("1h", on="Datetime").agg(rules).dropna(subset=["Open"])

    equal = require_equal(ours(), pl.from_pandas(pd.DataFrame(reference()).reset_index()))
    ours_seconds, reference_seconds = race(ours, reference, repeats)
    return Measurement(
        name="bars",
        input=f"{len(bars):,} rows: {source}",
        ours_seconds=ours_seconds,
        reference_seconds=reference_seconds,
        equal=equal,
    )


def require_equal(ours: pl.DataFrame, reference: pl.DataFrame) -> str:
    """Say what was compared, or name the first bar that differs in any bit."""
    reference = reference.cast(BAR_SCHEMA)  # type: ignore[arg-type]
    if len(ours) != len(reference):
        raise VaiomError(f"bars differ: {len(ours)} against {len(reference)}")
    for name in BAR_COLUMNS:
        different = ours[name].ne_missing(reference[name])
        if different.any():
            row = int(different.arg_max() or 0)
            raise VaiomError(
                f"bars differ: {name} of row {row} is {ours[name][row]} against "
                f"{reference[name][row]}"
            )
    return f"all {len(ours):,} bars, exactly"


def race_input(bars: Path | None) -> tuple[pl.DataFrame, str]:
    """The first asset of the folder that is finer than the target, or made-up minutes, and what to
    call it.
    """
    for symbol, frame in read_bars(bars).items() if bars is not None else ():
        step = infer_timeframe(frame["Datetime"])
        if step is not None and step < timedelta(hours=1):
            return frame, f"{symbol} of {bars}"
    return minutes(0, RACE_ROWS), "made-up minutes"


def measure_folder(rows: int) -> dict[str, Any]:
    """Resample one file of made-up minutes, source and result on disk, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="vaiom-bench-") as name:
        folder = Path(name)
        write_minutes(folder / "minutes", rows)
        script = Path(__file__).with_name("folder_peak.py")
        command = [
            sys.executable,
            "-P",
            str(script),
            str(folder / "minutes"),
            str(folder / "hours"),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"folder_rows": rows, **json.loads(done.stdout)}


def minutes(first: int, rows: int) -> pl.DataFrame:
    """Made-up minute bars of trading weeks without end, from the row numbered `first`: a walk in
    whole ticks.
    """
    rng = np.random.default_rng([SEED, first])
    close = 1.1 + rng.integers(-9, 10, rows).cumsum() * 1e-5
    opened = close + rng.integers(-5, 6, rows) * 1e-5
    reach = rng.integers(0, 9, (2, rows)) * 1e-5
    number = np.arange(first, first + rows)
    minute = number // _TRADING_WEEK * _WEEK + number % _TRADING_WEEK
    columns = {
        "Datetime": _FIRST_MONDAY + minute * np.timedelta64(1, "m"),
        "Open": opened,
        "High": np.maximum(opened, close) + reach[0],
        "Low": np.minimum(opened, close) - reach[1],
        "Close": close,
        "Volume": rng.integers(1, 500, rows).astype(np.float64),
    }
    return pl.DataFrame(columns).cast(BAR_SCHEMA)  # type: ignore[arg-type]


def write_minutes(folder: Path, rows: int) -> None:
    """A bar folder with one asset of made-up minutes, written block by block."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    schema = minutes(0, 1).to_arrow().schema
    with pq.ParquetWriter(folder / "MADEUP.parquet", schema) as writer:
        for first in range(0, rows, BLOCK_ROWS):
            writer.write_table(minutes(first, min(BLOCK_ROWS, rows - first)).to_arrow())
