"""Bars that users pass as frames, files or single bars, checked against a model.

A bar has four forms on its way to a forecast. It comes as a row of a frame or as a mapping; here it
becomes a row of a Polars frame with the columns of a bar folder (`prepare_bars`), or `Bars` of
NumPy numbers (`parse_bar`). The model's `RowMaker` turns either into a row of stored columns, and
the last rows of an asset are the `Window` that is forecast from. Missing and non-positive prices
are no errors: the masks of rows handle them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.features.calendar import LAST_SECOND
from vaiom.features.fields import MIN_CLEAN_RETURNS
from vaiom.features.quantities import BarArrays
from vaiom.forecast.frames import as_polars
from vaiom.market import folder
from vaiom.market.folder import NUMBER_COLUMNS, PRICE_COLUMNS, check_symbol, infer_timeframe
from vaiom.market.imports import is_bar_folder, read_bars
from vaiom.market.resample import resample
from vaiom.market.symbols import find_pair, usual_symbol
from vaiom.market.timeframes import format_span, timeframe_of

MIN_BARS = MIN_CLEAN_RETURNS + 2
"""Bars until a row can be unmasked."""
CLOCK_ALLOWANCE = timedelta(hours=15)
"""Bars may be this far ahead of UTC: time zones reach 14 hours, and clocks may be off by minutes.
"""

_CHECKED_STEPS = 2_000
"""The last stamps by which the timeframe of bars is told."""
_STAMP_NAMES = ("datetime", "date", "time", "timestamp")
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)


def newest_bars(
    path: Path, symbol: str | None = None, others: Sequence[str] = ()
) -> dict[str, pl.DataFrame]:
    """Read the bars of a bar folder or of files in any format, by symbol.

    With `symbol`, only this asset is read, and of `others` those that are there; a file of a single
    asset then holds the bars of this one. An asset is found however it is spelled, also in a
    file such as `BTCUSDT_1h.parquet`, if only one file fits.
    """
    if symbol is None:
        return read_bars(path)
    if is_bar_folder(path):
        frames: Mapping[str, pl.DataFrame] = {}
        known = folder.symbols_in(path)
    else:
        frames = read_bars(path)
        known = list(frames)
        if path.is_file() and len(known) == 1:
            return {check_symbol(symbol): frames[known[0]]}
    found = {each: _find_asset(each, known) for each in (symbol, *others)}
    if found[symbol] is None:
        problem = "no bars of this asset"
        raise DataError(problem, where=path, expected=", ".join(known), got=symbol)
    names = {name: stem for name, stem in sorted(found.items()) if stem}
    if frames:
        return {name: frames[stem] for name, stem in names.items()}
    return {name: folder.read_file(path / f"{stem}.parquet") for name, stem in names.items()}


def _find_asset(symbol: str, known: Sequence[str]) -> str | None:
    """Which of these names of files is an asset's; None if none is, or several may be."""
    usual = usual_symbol(symbol, known)
    if usual in known:
        return usual
    fitting = [name for name in known if find_pair(name) == usual]
    return fitting[0] if len(fitting) == 1 else None


def prepare_bars(frame: Any, symbol: str, timeframe: str, min_bars: int = MIN_BARS) -> pl.DataFrame:
    """One asset's bars as a Polars frame with the columns and types of a bar folder.

    Refuses stamps out of order, infinite prices, fewer than `min_bars` bars and bars of another
    timeframe.
    """
    where = f"bars of {check_symbol(symbol)}"
    bars = folder.conform(as_polars(frame, symbol, where), Path(where))
    folder.require_ordered(bars["Datetime"], where)
    for name in PRICE_COLUMNS:
        infinite = np.isinf(bars[name].to_numpy())
        if infinite.any():
            row = int(infinite.argmax())
            raise DataError(
                "a price is infinite",
                where=f"{where}, {name}, row {row + 1}",
                got=bars[name][row],
                fix="leave the price out (null or NaN): its row is then masked as missing",
            )
    if len(bars) < min_bars:
        raise DataError(
            "too few bars for a forecast",
            where=where,
            expected=f"{min_bars} at least; as many as the model's context, or more, are better",
            got=len(bars),
            fix="bring in a longer history",
        )
    step = timeframe_of(timeframe)
    seen = infer_timeframe(bars["Datetime"].tail(_CHECKED_STEPS))
    # A few bars may span a weekend: too far apart proves nothing then, too close always does.
    if seen is not None and (seen < step or (seen > step and len(bars) >= MIN_BARS)):
        raise wrong_timeframe(where, timeframe, seen)
    return bars


def resample_if_finer(
    bars: pl.DataFrame, symbol: str, timeframe: str
) -> tuple[pl.DataFrame, datetime | None]:
    """An asset's bars at a model's timeframe, and when they end if that cuts the last bar short.

    Bars that are not finer stay as they are. A bar is cut short if a tenth of it is missing.
    """
    step = infer_timeframe(bars["Datetime"].tail(_CHECKED_STEPS))
    whole = timeframe_of(timeframe)
    if step is None or step >= whole:
        return bars, None
    coarse = resample(bars, timeframe, where=Path(f"bars of {symbol}"))
    end = bars["Datetime"][-1] + step
    missing = coarse["Datetime"][-1] + whole - end
    return coarse, end if missing >= whole / 10 else None


def parse_bar(bar: Mapping[str, Any], symbol: str) -> BarArrays:
    """One bar as NumPy numbers. Names may have any case; a Close alone stands for all prices."""
    where = f"a bar of {check_symbol(symbol)}"
    values = {str(name).lower(): value for name, value in bar.items()}
    if {"close"} == {name.lower() for name in PRICE_COLUMNS} & {*values}:
        values |= {name.lower(): values["close"] for name in PRICE_COLUMNS}
    stamp_names = [name for name in _STAMP_NAMES if name in values]
    missing = [name for name in PRICE_COLUMNS if name.lower() not in values]
    if not stamp_names or missing:
        name = missing[0] if stamp_names else "Datetime"
        expected = ", ".join(("Datetime", *PRICE_COLUMNS))
        raise DataError(f"{name!r} is missing", where=where, expected=expected)
    seconds = _parse_stamp(values[stamp_names[0]], where)
    numbers: Any = [
        _parse_number(values.get(name.lower()), f"{where}, {name}", infinite=name == "Volume")
        for name in NUMBER_COLUMNS
    ]
    return BarArrays(np.int64(seconds), *numbers)  # type: ignore[arg-type]


def _parse_stamp(stamp: Any, where: str) -> int:
    """A stamp of whole seconds as it is stored."""
    if not _is_utc(stamp):
        problem = "a stamp must be a datetime without a zone, or in UTC"
        raise DataError(problem, where=where, got=repr(stamp))
    naive = stamp.replace(tzinfo=None)
    seconds, fraction = divmod(naive - _EPOCH, _SECOND)
    if fraction or not 0 <= seconds <= LAST_SECOND:
        expected = "whole seconds between 1970 and 2106"
        raise DataError("a bar's stamp cannot be stored", where=where, expected=expected, got=naive)
    return int(seconds)


def _parse_number(value: Any, where: str, *, infinite: bool) -> np.float64:
    """A finite number; NaN for None and pandas' missing value, and if allowed for infinity."""
    if value is None or type(value).__name__ == "NAType" or (infinite and value == math.inf):
        return np.float64(math.nan)
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or isinstance(value, bool) or math.isinf(value):
        problem = "a price must be a finite number, or missing"
        raise DataError(problem, where=where, got=repr(value))
    return np.float64(value)


def moment_or_now(now: object) -> datetime:
    """A moment on the bars' clock, without its zone if that is UTC; the present for None."""
    if now is None:
        return utc_now()
    if not _is_utc(now):
        expected = "a datetime without a zone, or in UTC"
        raise ConfigError("not a moment of the bars' clock", expected=expected, got=repr(now))
    return cast(datetime, now).replace(tzinfo=None)


def utc_now() -> datetime:
    """The current UTC time without a zone, as stamps have it."""
    return datetime.now(UTC).replace(tzinfo=None)


def moment_of(seconds: int) -> datetime:
    """A stored stamp as a datetime without a zone."""
    return _EPOCH + timedelta(seconds=seconds)


def seconds_of(moment: datetime) -> int:
    """A datetime without a zone as a stored stamp."""
    return (moment - _EPOCH) // _SECOND


def _is_utc(moment: object) -> bool:
    """Whether it is a datetime without a zone or in UTC; pandas' NaT is unequal to itself."""
    return isinstance(moment, datetime) and moment == moment and not moment.utcoffset()


def wrong_timeframe(where: str, timeframe: str, seen: timedelta) -> DataError:
    """The error for bars that are `seen` apart where a model needs `timeframe`."""
    fix = "bring in finer bars, or train a model on these"
    if seen < timeframe_of(timeframe):
        fix = "`vaiom data resample` makes coarser bars"
    return DataError(
        "the bars are of another timeframe than the model's",
        where=where,
        expected=f"{timeframe} bars",
        got=f"bars mostly {format_span(seen)} apart",
        fix=fix,
    )
