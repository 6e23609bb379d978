"""Finer bars become coarser ones, by clock bins that begin at midnight of the stored clock, weeks
on Monday.

A bin gives the earliest Open, highest High, lowest Low, latest Close and the sum of Volumes of what
is available, null if nothing is; without rows it stays empty. Paper: "Market Data, Price Convention
and Bar Construction".
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.errors import ConfigError, DataError
from vaiom.files import Progress, read_json, sha256_file, staged_folder, write_json
from vaiom.market import folder
from vaiom.market.folder import STAMP, infer_timeframe, require_ordered
from vaiom.market.timeframes import format_span, timeframe_of

BATCH_ROWS = 1 << 20
_MICROSECOND = timedelta(microseconds=1)
_MONDAY = datetime(
    1970, 1, 5
)  # where bins of a week begin; shorter ones are at midnight all the same

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def resample(
    bars: pl.DataFrame, to: str, *, where: Path = Path("bars"), step: timedelta | None = None
) -> pl.DataFrame:
    """One asset's bars at the timeframe `to`; `step` is their own, if known; errors name them
    `where`.
    """
    target = timeframe_of(to)
    folder.conform(bars.clear(), where)
    bars = _bar_columns(bars)
    return _binned(bars, step or _checked_step(bars["Datetime"], target, where), target, where)


def resample_file(source: Path, to: str, *, batch_rows: int = BATCH_ROWS) -> pl.DataFrame:
    """One asset's bars from a Parquet file; all stamps are in memory at once, prices a batch at a
    time.
    """
    import pyarrow.parquet as pq

    target = timeframe_of(to)
    with folder.readable_parquet(source), pq.ParquetFile(source) as file:
        folder.conform(pl.DataFrame(pl.from_arrow(file.schema_arrow.empty_table())), source)
        step = _checked_step(
            folder.read_file(source, ["Datetime"])["Datetime"].cast(STAMP), target, source
        )
        done, held = [], pl.DataFrame(schema=folder.BAR_SCHEMA)
        names = [name for name in folder.BAR_COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=batch_rows, columns=names):
            rows = pl.concat([held, _bar_columns(pl.DataFrame(pl.from_arrow(batch)))])
            # The last bin of a batch may continue in the next one.
            latest = rows["Datetime"][-1]
            cut = rows["Datetime"].search_sorted(latest - (latest - _MONDAY) % target)
            done.append(_binned(rows[:cut], step, target, source))
            held = rows[cut:]
    return pl.concat([*done, _binned(held, step, target, source)])


def resample_folder(
    source: Path, to: str, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Resample every asset of a bar folder into another one; returns the manifest written there."""
    timeframe_of(to)
    if source.resolve().is_relative_to(out.resolve()):
        raise ConfigError(
            "the output folder is the source, or holds it", where=out, fix="choose another --out"
        )
    origin = read_json(file) if (file := source / folder.MANIFEST_NAME).exists() else None
    manifest: dict[str, Any] = {"timeframe": to.lower(), "symbols": {}, "resampled_from": origin}
    with staged_folder(out, overwrite=overwrite) as staged:
        for symbol in folder.counted(folder.symbols_in(source), progress):
            path = source / f"{symbol}.parquet"
            bars = resample_file(path, to)
            folder.write_symbol(staged, symbol, bars)
            entry = {
                **folder.describe(bars),
                "source": "resample",
                "source_sha256": sha256_file(path),
            }
            manifest["symbols"][symbol] = entry
        write_json(staged / folder.MANIFEST_NAME, manifest)
    return manifest


def _checked_step(stamps: pl.Series, target: timedelta, where: Path) -> timedelta:
    """The timeframe of the source, which must be ordered and divide the target; zero for a single
    row, or two afar.
    """
    require_ordered(stamps, where)
    step = infer_timeframe(stamps)
    if step is None or (
        len(stamps) == 2 and target % step
    ):  # two may lie around a weekend or a hole
        return timedelta(0)
    if target % step:  # bars longer than the target leave a remainder as well
        finer = step > target
        problem = (
            "bars cannot be made finer"
            if finer
            else "the bars do not divide the target's clock bins"
        )
        expected = (
            f"bars of {'at most' if finer else 'a length that divides'} {format_span(target)}"
        )
        fix = f"choose {'a coarser' if finer else 'another'} timeframe, or start from finer bars"
        raise DataError(
            problem, where=where, expected=expected, got=f"bars of {format_span(step)}", fix=fix
        )
    return step


def _binned(bars: pl.DataFrame, step: timedelta, target: timedelta, where: Path) -> pl.DataFrame:
    """Aggregate ordered rows by bin; the rows of a bin are neighbours, so each column is reduced in
    one sweep.
    """
    if bars.is_empty():
        return bars.cast(folder.BAR_SCHEMA)  # type: ignore[arg-type]
    width, origin = target // _MICROSECOND, (_MONDAY - datetime(1970, 1, 1)) // _MICROSECOND
    stamps = bars["Datetime"].to_physical().to_numpy()
    bins = (stamps - origin) // width
    starts = np.flatnonzero(np.concatenate(([True], bins[1:] != bins[:-1])))
    stops = np.append(starts[1:], len(bins))
    left = bins[starts] * width + origin
    over = stamps[stops - 1] + step // _MICROSECOND > left + width
    if over.any():
        problem, fix = (
            "a bar reaches over the edge of its clock bin",
            "move the clock with `vaiom data import --shift`",
        )
        expected = (
            f"bars of {format_span(step)} inside bins of {format_span(target)} that start "
            f"at midnight"
        )
        got = f"a bar at {bars['Datetime'][int(stops[over.argmax()]) - 1]}"
        raise DataError(problem, where=where, expected=expected, got=got, fix=fix)
    opens, highs, lows, closes, volumes = (bars[name].to_numpy() for name in folder.BAR_COLUMNS[1:])
    total = np.add.reduceat(volumes, starts)
    if np.isnan(total).any():  # missing volumes count as zero, unless a bin has no others
        missing = np.isnan(volumes)
        total = np.add.reduceat(np.where(missing, 0.0, volumes), starts)
        total[np.logical_and.reduceat(missing, starts)] = np.nan
    columns = (
        _earliest(opens, starts, stops),
        np.fmax.reduceat(highs, starts),
        np.fmin.reduceat(lows, starts),
        _earliest(closes[::-1], len(bins) - stops[::-1], len(bins) - starts[::-1])[::-1],
        total,
    )
    frame = pl.DataFrame(dict(zip(folder.BAR_COLUMNS, (left, *columns), strict=True)))
    return frame.cast(folder.BAR_SCHEMA).with_columns(pl.col(folder.BAR_COLUMNS[1:]).fill_nan(None))  # type: ignore[arg-type]


def _earliest(values: Floats, starts: NDArray[np.intp], stops: NDArray[np.intp]) -> Floats:
    """The first value of each bin that is not NaN, or NaN."""
    first = values[starts]
    if np.isnan(first).any():
        available = np.append(np.flatnonzero(~np.isnan(values)), len(values))
        row = available[np.searchsorted(available, starts)]
        first = np.append(values, np.nan)[np.where(row < stops, row, len(values))]
    return first


def _bar_columns(bars: pl.DataFrame) -> pl.DataFrame:
    """Select and cast the columns of a checked frame; NaN stays, because NumPy reads null as NaN
    too.
    """
    if "Volume" not in bars.columns:
        bars = bars.with_columns(Volume=pl.lit(None))
    return bars.select(folder.BAR_COLUMNS).cast(folder.BAR_SCHEMA)  # type: ignore[arg-type]
