"""Finer bars become coarser ones, by bins of the stored clock that begin at midnight or on Monday.

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
from vaiom.market.sessions import FIRST_MONDAY
from vaiom.market.timeframes import format_span, timeframe_of

BATCH_ROWS = 1 << 20

_MICROSECOND = timedelta(microseconds=1)
_ORIGIN = timedelta(seconds=FIRST_MONDAY)
"""Where bins of a week begin, since 1970; shorter ones are at midnight all the same."""

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def resample(
    bars: pl.DataFrame, to: str, *, where: Path = Path("bars"), step: timedelta | None = None
) -> pl.DataFrame:
    """One asset's bars at the timeframe `to`, such as `1h`.

    Parameters
    ----------
    bars : ordered, at a finer timeframe that divides `to`
    where : what errors call them
    step : their length, if it is known; otherwise the commonest step of the stamps
    """
    target = timeframe_of(to)
    folder.conform(bars.clear(), where)
    bars = _bar_columns(bars)
    step = step or _checked_step(bars["Datetime"], target, where)
    return _binned(bars, step, target, where)


def resample_file(source: Path, to: str, *, batch_rows: int = BATCH_ROWS) -> pl.DataFrame:
    """One asset's bars from a Parquet file, of which prices are read a batch at a time.

    Stamps are read first and all at once, so that what cannot be resampled is refused before any
    price is read.
    """
    import pyarrow.parquet as pq

    target = timeframe_of(to)
    with folder.readable_parquet(source), pq.ParquetFile(source) as file:
        empty = file.schema_arrow.empty_table()
        folder.conform(pl.DataFrame(pl.from_arrow(empty)), source)
        stored_stamps = folder.read_file(source, ["Datetime"])["Datetime"]
        step = _checked_step(stored_stamps.cast(STAMP), target, source)
        names = [name for name in folder.BAR_COLUMNS if name in file.schema_arrow.names]
        done = []
        held = pl.DataFrame(schema=folder.BAR_SCHEMA)
        for batch in file.iter_batches(batch_size=batch_rows, columns=names):
            read = pl.DataFrame(pl.from_arrow(batch))
            rows = pl.concat([held, _bar_columns(read)])
            # The last bin of a batch may continue in the next one.
            batch_stamps = rows["Datetime"]
            last_bin = _left_edge(batch_stamps[-1], target)
            cut = batch_stamps.search_sorted(last_bin)
            done.append(_binned(rows[:cut], step, target, source))
            held = rows[cut:]
    done.append(_binned(held, step, target, source))
    return pl.concat(done)


def resample_folder(
    source: Path, to: str, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Resample every asset of a bar folder into another one; returns the manifest written there."""
    timeframe_of(to)  # an unknown one is refused before any work
    if source.resolve().is_relative_to(out.resolve()):
        problem = "the output folder is the source, or holds it"
        raise ConfigError(problem, where=out, fix="choose another --out")
    file = source / folder.MANIFEST_NAME
    entries = {}
    with staged_folder(out, overwrite=overwrite) as staged:
        for symbol in folder.counted(folder.symbols_in(source), progress):
            path = source / f"{symbol}.parquet"
            bars = resample_file(path, to)
            folder.write_symbol(staged, symbol, bars)
            entries[symbol] = {
                **folder.describe(bars),
                "source": "resample",
                "source_sha256": sha256_file(path),
            }
        manifest = {
            "timeframe": to.lower(),
            "symbols": entries,
            "resampled_from": read_json(file) if file.exists() else None,
        }
        write_json(staged / folder.MANIFEST_NAME, manifest)
    return manifest


def _left_edge(stamp: datetime, target: timedelta) -> datetime:
    """The beginning of the bin that holds a stamp."""
    since_origin = stamp - datetime(1970, 1, 1) - _ORIGIN
    return stamp - since_origin % target


def _checked_step(stamps: pl.Series, target: timedelta, where: Path) -> timedelta:
    """The timeframe of ordered stamps, which must divide the target; zero if they do not tell it.

    One stamp has no step, and two may lie around a weekend or a hole.
    """
    require_ordered(stamps, where)
    step = infer_timeframe(stamps)
    if step is None:
        return timedelta(0)
    if not target % step:
        return step
    if len(stamps) == 2:
        return timedelta(0)
    problem = "the bars do not divide the target's clock bins"
    expected = f"bars of a length that divides {format_span(target)}"
    fix = "choose another timeframe, or start from finer bars"
    if step > target:
        problem = "bars cannot be made finer"
        expected = f"bars of at most {format_span(target)}"
        fix = "choose a coarser timeframe, or start from finer bars"
    got = f"bars of {format_span(step)}"
    raise DataError(problem, where=where, expected=expected, got=got, fix=fix)


def _binned(bars: pl.DataFrame, step: timedelta, target: timedelta, where: Path) -> pl.DataFrame:
    """Aggregate ordered rows by bin; the rows of a bin are neighbours, so that columns are reduced
    in one sweep.

    A bar that reaches over the edge of its bin is an error: its part beyond belongs to the next
    bin.
    """
    if bars.is_empty():
        return bars.cast(folder.BAR_SCHEMA)  # type: ignore[arg-type]
    width = target // _MICROSECOND
    origin = _ORIGIN // _MICROSECOND
    stamps = bars["Datetime"].to_physical().to_numpy()
    bins = (stamps - origin) // width
    is_first = np.concatenate(([True], bins[1:] != bins[:-1]))
    starts = np.flatnonzero(is_first)
    stops = np.append(starts[1:], len(bins))
    left = bins[starts] * width + origin
    last_ends = stamps[stops - 1] + step // _MICROSECOND
    is_over = last_ends > left + width
    if is_over.any():
        row = int(stops[is_over.argmax()]) - 1
        stamp = bars["Datetime"][row]
        length = format_span(step)
        bin_length = format_span(target)
        raise DataError(
            "a bar reaches over the edge of its clock bin",
            where=where,
            expected=f"bars of {length} inside bins of {bin_length} that start at midnight",
            got=f"a bar at {stamp}",
            fix="move the clock with `vaiom data import --shift`",
        )
    opens, highs, lows, closes, volumes = (bars[name].to_numpy() for name in folder.NUMBER_COLUMNS)
    columns = {
        "Datetime": left,
        "Open": _first_known(opens, starts, stops),
        "High": np.fmax.reduceat(highs, starts),
        "Low": np.fmin.reduceat(lows, starts),
        "Close": _last_known(closes, starts, stops),
        "Volume": _total(volumes, starts),
    }
    frame = pl.DataFrame(columns).cast(folder.BAR_SCHEMA)  # type: ignore[arg-type]
    return frame.with_columns(pl.col(folder.NUMBER_COLUMNS).fill_nan(None))


def _total(values: Floats, starts: Places) -> Floats:
    """The sum of each bin; what is missing counts as zero, unless a bin has nothing else."""
    total = np.add.reduceat(values, starts)
    if np.isnan(total).any():
        is_missing = np.isnan(values)
        known = np.where(is_missing, 0.0, values)
        total = np.add.reduceat(known, starts)
        is_empty = np.logical_and.reduceat(is_missing, starts)
        total[is_empty] = np.nan
    return np.asarray(total)


def _first_known(values: Floats, starts: Places, stops: Places) -> Floats:
    """The first value of each bin that is not NaN, or NaN."""
    first = values[starts]
    if np.isnan(first).any():
        num_rows = len(values)
        known = np.flatnonzero(~np.isnan(values))
        known = np.append(known, num_rows)
        row = known[np.searchsorted(known, starts)]
        row = np.where(row < stops, row, num_rows)
        first = np.append(values, np.nan)[row]
    return first


def _last_known(values: Floats, starts: Places, stops: Places) -> Floats:
    """The last value of each bin that is not NaN, or NaN."""
    backwards = values[::-1]
    new_starts = len(values) - stops[::-1]
    new_stops = len(values) - starts[::-1]
    from_end = _first_known(backwards, new_starts, new_stops)
    return from_end[::-1]


def _bar_columns(bars: pl.DataFrame) -> pl.DataFrame:
    """The columns of a checked frame, cast; NaN stays, because NumPy reads null as NaN too."""
    if "Volume" not in bars.columns:
        bars = bars.with_columns(Volume=pl.lit(None))
    return bars.select(folder.BAR_COLUMNS).cast(folder.BAR_SCHEMA)  # type: ignore[arg-type]
