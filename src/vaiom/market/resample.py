"""Finer bars become coarser ones, by fixed clock bins.

Enters: one asset's ordered bars as a frame, a Parquet file or a bar folder. Leaves: the same at a coarser timeframe.
Paper: "Market Data, Price Convention and Bar Construction".

Bins are anchored at midnight of the stored clock, and a bar is stamped with the left edge of its bin. A bin without
rows stays empty. A bin with rows gives one bar: the earliest Open, the highest High, the lowest Low, the latest Close
and the sum of the Volumes, each of what is available and null if nothing is. So a bin whose rows lack every price still
gives a bar of nulls: the row was observed, and the event masks call it missing. A non-positive price is a value here;
judging prices is the masks' work.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import read_json, sha256_file, staged_folder
from vaiom.market.folder import (
    BAR_COLUMNS,
    BAR_SCHEMA,
    MANIFEST_NAME,
    Progress,
    conform,
    describe,
    parquet_frame,
    readable_parquet,
    require_bars,
    symbols_in,
    write_manifest,
    write_symbol,
)
from vaiom.market.stamps import infer_timeframe, require_ordered, timeframe_of

BATCH_ROWS = 1 << 20
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Rows = np.ndarray[tuple[int], np.dtype[np.intp]]


def resample(bars: pl.DataFrame, to: str, *, where: Path = Path("bars")) -> pl.DataFrame:
    """One asset's bars at the timeframe `to`; `where` is what errors call the frame."""
    target = timeframe_of(to)
    conform(bars.clear(), where)
    bars = _bar_columns(bars)
    step = _checked_step(bars["Datetime"], target, where)
    return _binned(bars, step, target, where)


def resample_file(source: Path, to: str, *, batch_rows: int = BATCH_ROWS) -> pl.DataFrame:
    """One asset's bars from a Parquet file; prices pass through memory a batch at a time, stamps as a whole."""
    target = timeframe_of(to)
    step = _checked_step(_stamps(source), target, source)
    done: list[pl.DataFrame] = []
    held: pl.DataFrame | None = None
    for batch in _batches(source, batch_rows):
        rows = batch if held is None else pl.concat([held, batch])
        # The last bin of a batch may go on in the next one.
        latest = rows["Datetime"][-1]
        cut = rows["Datetime"].search_sorted(latest - (latest - _EPOCH) % target)
        done.append(_binned(rows[:cut], step, target, source))
        held = rows[cut:]
    assert held is not None
    return pl.concat([*done, _binned(held, step, target, source)])


def resample_folder(
    source: Path,
    to: str,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Resample every asset of a bar folder into another one; returns the manifest written there."""
    timeframe_of(to)
    symbols = symbols_in(source)
    if source.resolve().is_relative_to(out.resolve()):
        raise ConfigError("the output folder is the source, or holds it", where=out, fix="choose another --out")
    before = source / MANIFEST_NAME
    manifest: dict[str, Any] = {
        "timeframe": to.lower(),
        "symbols": {},
        "resampled_from": read_json(before) if before.exists() else None,
    }
    with staged_folder(out, overwrite=overwrite) as staged:
        for done, symbol in enumerate(symbols):
            if progress:
                progress(done, len(symbols), symbol)
            path = source / f"{symbol}.parquet"
            bars = resample_file(path, to)
            write_symbol(staged, symbol, bars)
            manifest["symbols"][symbol] = {
                **describe(bars),
                "source": "resample",
                "source_sha256": sha256_file(path),
            }
        write_manifest(staged, manifest)
    if progress:
        progress(len(symbols), len(symbols), "")
    return manifest


def _checked_step(stamps: pl.Series, target: timedelta, where: Path) -> timedelta:
    """The source's own timeframe, once it is known to be ordered and to fit the target; zero for a single row."""
    require_ordered(stamps, where)
    step = infer_timeframe(stamps)
    if step is None:
        return timedelta(0)
    if step > target:
        raise DataError(
            "bars cannot be made finer",
            where=where,
            expected=f"bars of at most {target}",
            got=f"bars of {step}",
            fix="choose a coarser timeframe, or start from finer bars",
        )
    if target % step:
        raise DataError(
            "the bars do not divide the target's clock bins",
            where=where,
            expected=f"a bar length that divides {target}",
            got=f"bars of {step}",
            fix="choose another timeframe, or start from finer bars",
        )
    return step


def _binned(bars: pl.DataFrame, step: timedelta, target: timedelta, where: Path) -> pl.DataFrame:
    """Aggregate ordered rows by bin; the rows of a bin are neighbours, so each column is reduced in one sweep."""
    if bars.is_empty():
        return bars.cast(BAR_SCHEMA)  # type: ignore[arg-type]
    width = target // _MICROSECOND
    stamps = bars["Datetime"].to_physical().to_numpy()
    bins = stamps // width
    starts = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))
    stops = np.append(starts[1:], len(bins))
    left = bins[starts] * width
    over = stamps[stops - 1] + step // _MICROSECOND > left + width
    if over.any():
        raise DataError(
            "a bar reaches over the edge of its clock bin",
            where=where,
            expected=f"bars of {step} inside bins of {target} that start at midnight",
            got=f"a bar at {bars['Datetime'][int(stops[over.argmax()]) - 1]}",
            fix="move the clock with `vaiom data import --shift`",
        )
    opens, highs, lows, closes, volumes = (bars[name].to_numpy() for name in BAR_COLUMNS[1:])
    columns = (
        _earliest(opens, starts, stops),
        np.fmax.reduceat(highs, starts),
        np.fmin.reduceat(lows, starts),
        _earliest(closes[::-1], len(bins) - stops[::-1], len(bins) - starts[::-1])[::-1],
        _total(volumes, starts),
    )
    frame = pl.DataFrame(dict(zip(BAR_COLUMNS, (left, *columns), strict=True)))
    return frame.cast(BAR_SCHEMA).with_columns(pl.col(BAR_COLUMNS[1:]).fill_nan(None))  # type: ignore[arg-type]


def _earliest(values: Floats, starts: Rows, stops: Rows) -> Floats:
    """The first value of each bin that is not NaN, or NaN."""
    first = values[starts]
    if np.isnan(first).any():
        available = np.append(np.flatnonzero(~np.isnan(values)), len(values))
        row = available[np.searchsorted(available, starts)]
        first = np.append(values, np.nan)[np.where(row < stops, row, len(values))]
    return first


def _total(values: Floats, starts: Rows) -> Floats:
    """The sum of each bin's values that are not NaN, or NaN where there is none."""
    total: Floats = np.add.reduceat(values, starts)
    missing = np.isnan(values) if np.isnan(total).any() else None
    if missing is not None:
        total = np.add.reduceat(np.where(missing, 0.0, values), starts)
        total[np.logical_and.reduceat(missing, starts)] = np.nan
    return total


def _bar_columns(bars: pl.DataFrame) -> pl.DataFrame:
    """Bring a checked frame to the bar columns and types; NaN stays, because the sweeps read null as NaN."""
    if "Volume" not in bars.columns:
        bars = bars.with_columns(Volume=pl.lit(None))
    return bars.select(BAR_COLUMNS).cast(BAR_SCHEMA)  # type: ignore[arg-type]


def _stamps(source: Path) -> pl.Series:
    """All stamps of a Parquet file of bars, whose columns and types are checked first."""
    import pyarrow.parquet as pq

    with readable_parquet(source):
        schema = pq.read_schema(source)
    conform(pl.DataFrame(pl.from_arrow(schema.empty_table())), source)
    with readable_parquet(source):
        stamps = require_bars(parquet_frame(source, ["Datetime"]), source)["Datetime"]
    return stamps.cast(BAR_SCHEMA["Datetime"])


def _batches(source: Path, rows: int) -> Iterator[pl.DataFrame]:
    import pyarrow.parquet as pq

    with readable_parquet(source), pq.ParquetFile(source) as file:
        names = [name for name in BAR_COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=rows, columns=names):
            yield _bar_columns(pl.DataFrame(pl.from_arrow(batch)))
