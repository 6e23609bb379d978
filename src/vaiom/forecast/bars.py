"""Check the bars that users pass as frames, files or single bars; row masks handle missing and
non-positive prices.
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
from vaiom.features.recursions import Bars
from vaiom.market import folder
from vaiom.market.folder import (
    BAR_COLUMNS,
    NUMBER_COLUMNS,
    PRICE_COLUMNS,
    check_symbol,
    infer_timeframe,
)
from vaiom.market.formats.columns import guess_roles
from vaiom.market.resample import resample
from vaiom.market.symbols import find_pair
from vaiom.market.timeframes import format_span, timeframe_of

MIN_BARS = MIN_CLEAN_RETURNS + 2
"""Bars until a row can be unmasked."""
CLOCK_ALLOWANCE = timedelta(hours=15)
"""Bars may be this far ahead of UTC: time zones reach 14 hours, and clocks may be off by minutes.
"""

_CHECKED_STEPS = 2_000
_EPOCH = datetime(1970, 1, 1)


def newest_bars(
    path: Path, symbol: str | None = None, others: Sequence[str] = ()
) -> dict[str, pl.DataFrame]:
    """The bars of a folder, or of one asset in it and the `others` it has, or of a file, named by
    `symbol` if given.
    """
    if symbol is None:
        return folder.read_bars(path)
    if path.is_file():
        return {check_symbol(symbol): folder.read_file(path)}
    known = folder.symbols_in(path)
    if symbol not in known:
        raise DataError(
            "no such asset in the bar folder", where=path, expected=", ".join(known), got=symbol
        )
    return {
        each: folder.read_file(path / f"{each}.parquet")
        for each in known
        if each in (symbol, *others)
    }


def prepare_bars(frame: Any, symbol: str, timeframe: str, min_bars: int = MIN_BARS) -> pl.DataFrame:
    """One asset's bars as a Polars frame with `BAR_COLUMNS`."""
    where = f"bars of {check_symbol(symbol)}"
    bars = folder.conform(_as_polars(frame, symbol, where), Path(where))
    folder.require_ordered(bars["Datetime"], where)
    for name in PRICE_COLUMNS:
        infinite = np.isinf(bars[name].to_numpy())
        if infinite.any():
            place = f"{where}, {name}, row {int(infinite.argmax()) + 1}"
            fix = "leave the price out (null or NaN): its row is then masked as missing"
            raise DataError(
                "a price is infinite", where=place, got=bars[name][int(infinite.argmax())], fix=fix
            )
    if len(bars) < min_bars:
        expected = f"{min_bars} at least; as many as the model's context, or more, are better"
        fix = "bring in a longer history"
        raise DataError(
            "too few bars for a forecast", where=where, expected=expected, got=len(bars), fix=fix
        )
    seen, step = infer_timeframe(bars["Datetime"].tail(_CHECKED_STEPS)), timeframe_of(timeframe)
    # A few bars may span a weekend: too far apart proves nothing then, too close always does.
    if seen is not None and (seen < step or (seen > step and len(bars) >= MIN_BARS)):
        raise wrong_timeframe(where, timeframe, seen)
    return bars


def resample_if_finer(
    bars: pl.DataFrame, symbol: str, timeframe: str
) -> tuple[pl.DataFrame, datetime | None]:
    """An asset's bars at a model's timeframe, resampled if finer; when they end, if a tenth of the
    last is missing.
    """
    step, whole = infer_timeframe(bars["Datetime"].tail(_CHECKED_STEPS)), timeframe_of(timeframe)
    if step is None or step >= whole:
        return bars, None
    coarse, end = (
        resample(bars, timeframe, where=Path(f"bars of {symbol}")),
        bars["Datetime"][-1] + step,
    )
    return coarse, end if coarse["Datetime"][-1] + whole - end >= whole / 10 else None


def split_assets(frame: Any, id_column: str, timestamp_column: str) -> dict[str, Any]:
    """Split a long frame into a frame per asset, in order of appearance."""
    frame = _require_table(frame, "bars of many assets")
    if (
        is_pandas(frame)
        and timestamp_column == frame.index.name
        and timestamp_column not in frame.columns
    ):
        frame = frame.reset_index()
    names = {timestamp_column: "Datetime"}
    renamed = [names.get(name, name) for name in frame.columns]
    for name in (id_column, timestamp_column):
        new, there = names.get(name, name), name in frame.columns
        if not there or renamed.count(new) > 1:
            problem = f"column {new!r} is there twice" if there else f"column {name!r} is missing"
            expected, got = f"{id_column}, {timestamp_column}", ", ".join(map(str, frame.columns))
            fix = "leave one out" if there else "name them with id_column= and timestamp_column="
            raise DataError(problem, expected=expected, got=got, fix=fix)
    if is_pandas(frame):
        groups = frame.rename(columns=names).groupby(
            id_column, sort=False, dropna=False, observed=True
        )
        parts = {symbol: part.drop(columns=id_column) for symbol, part in groups}
    else:
        groups = frame.rename(names).partition_by(
            id_column, as_dict=True, include_key=False, maintain_order=True
        )
        parts = {symbol: part for (symbol,), part in groups.items()}
    if any(symbol is None or symbol != symbol for symbol in parts):
        raise DataError(
            "a symbol is missing",
            where=f"column {id_column}",
            fix="remove the rows, or name their asset",
        )
    return {check_symbol(str(symbol)): part for symbol, part in parts.items()}


def is_pandas(frame: Any) -> bool:
    """Whether it is a pandas frame, without importing pandas."""
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def parse_bar(bar: Mapping[str, Any], symbol: str) -> Bars:
    """One bar as NumPy scalars; names in any case, High, Low and Volume as in a bar folder."""
    values = {str(name).lower(): value for name, value in bar.items()}
    where = f"a bar of {check_symbol(symbol)}"
    stamps = [values[name] for name in ("datetime", "date", "time", "timestamp") if name in values]
    missing = [name for name in PRICE_COLUMNS if name.lower() not in values]
    if missing or not stamps:
        name, expected = (
            missing[0] if stamps else "Datetime",
            ", ".join(("Datetime", *PRICE_COLUMNS)),
        )
        raise DataError(f"{name!r} is missing", where=where, expected=expected)
    if not _is_utc(stamps[0]):
        raise DataError(
            "a stamp must be a datetime without a zone, or in UTC", where=where, got=repr(stamps[0])
        )
    stamp = stamps[0].replace(tzinfo=None)
    seconds, fraction = divmod(stamp - _EPOCH, timedelta(seconds=1))
    if fraction or not 0 <= seconds <= LAST_SECOND:
        expected = "whole seconds between 1970 and 2106"
        raise DataError("a bar's stamp cannot be stored", where=where, expected=expected, got=stamp)
    numbers: Any = [_number(values.get(name.lower()), where, name) for name in NUMBER_COLUMNS]
    return Bars(np.int64(seconds), *numbers)  # type: ignore[arg-type]


def moment_or_now(now: object) -> datetime:
    """A moment of the bars' clock as given, without its zone where that is UTC, or the present."""
    if now is None:
        return utc_now()
    if not _is_utc(now):
        expected = "a datetime without a zone, or in UTC"
        raise ConfigError("not a moment of the bars' clock", expected=expected, got=repr(now))
    return cast(datetime, now).replace(tzinfo=None)


def utc_now() -> datetime:
    """The current UTC time without a zone, like stamps."""
    return datetime.now(UTC).replace(tzinfo=None)


def moment_of(seconds: int) -> datetime:
    """A stored stamp as a naive datetime."""
    return _EPOCH + timedelta(seconds=seconds)


def seconds_of(moment: datetime) -> int:
    """A naive datetime as a stored stamp."""
    return (moment - _EPOCH) // timedelta(seconds=1)


def wrong_timeframe(where: str, timeframe: str, seen: timedelta) -> DataError:
    """The error for bars of another timeframe."""
    finer = seen < timeframe_of(timeframe)
    fix = (
        "`vaiom data resample` makes coarser bars"
        if finer
        else "bring in finer bars, or train a model on these"
    )
    problem, got = (
        "the bars are of another timeframe than the model's",
        f"bars mostly {format_span(seen)} apart",
    )
    return DataError(problem, where=where, expected=f"{timeframe} bars", got=got, fix=fix)


def _is_utc(moment: object) -> bool:
    """Whether it is a datetime without a zone or in UTC; a missing one of pandas is unequal to
    itself.
    """
    return isinstance(moment, datetime) and moment == moment and not moment.utcoffset()


def _number(value: Any, where: str, name: str) -> np.float64:
    # What a frame may have: None, pandas' own missing value, and an infinite volume, which no field
    # reads.
    if value is None or type(value).__name__ == "NAType" or (name, value) == ("Volume", math.inf):
        return np.float64(math.nan)
    if (
        not isinstance(value, (int, float, np.integer, np.floating))
        or isinstance(value, bool)
        or math.isinf(value)
    ):
        raise DataError(
            "a price must be a finite number, or missing", where=f"{where}, {name}", got=repr(value)
        )
    return np.float64(value)


def _require_table(frame: Any, where: str) -> Any:
    """A frame of pandas or Polars."""
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if is_pandas(frame) or isinstance(frame, pl.DataFrame):
        return frame
    raise DataError(
        "not a table of bars", where=where, expected="a pandas or Polars DataFrame", got=type(frame)
    )


def _as_polars(frame: Any, symbol: str, where: str) -> pl.DataFrame:
    """A Polars frame with our column names; other columns are dropped."""
    frame = _require_table(frame, where)
    if is_pandas(frame):
        frame = _of_one_asset(frame, symbol, where).rename(columns=str)
        # The index holds the stamps if no column does.
        if (
            "Datetime" not in _canonical(list(frame.columns), where)
            and frame.index.dtype.kind == "M"
        ):
            frame = frame.reset_index(names="Datetime")
    names, zone = _canonical(list(frame.columns), where), None
    if is_pandas(frame):
        for new, old in names.items():
            got, place = frame[old].dtype, f"{where}, column {old}"
            if new == "Datetime" and got.kind != "M":
                fix = "convert them with pandas.to_datetime"
                raise DataError("stamps must be datetimes", where=place, got=got, fix=fix)
            if new != "Datetime" and got.kind not in "iuf":
                raise DataError("a price column must be numeric", where=place, got=got)
            zone = getattr(getattr(got, "pyarrow_dtype", got), "tz", zone)
        kinds, price = (
            {"Datetime": {"dtype": "datetime64[us]"}},
            {"dtype": np.float64, "na_value": np.nan},
        )
        frame = pl.DataFrame(
            {new: frame[old].to_numpy(**kinds.get(new, price)) for new, old in names.items()}
        )
    # A lazy query costs more than a short frame, and waits for the library's threads.
    elif frame.columns != list(names):
        frame = frame.select(pl.col(old).alias(new) for new, old in names.items())
    zone = zone or getattr(frame.schema.get("Datetime"), "time_zone", None)
    if zone is None:
        return pl.DataFrame(frame)
    if str(zone) not in ("UTC", "Etc/UTC", "GMT"):
        problem = "stamps must be naive, on the clock that the model was trained on"
        fix = (
            "convert them to that clock: tz_convert('UTC') for bars in UTC, else drop the zone too"
        )
        raise DataError(
            problem, where=f"{where}, column Datetime", got=f"stamps with the zone {zone}", fix=fix
        )
    return pl.DataFrame(frame).with_columns(pl.col("Datetime").dt.replace_time_zone(None))


def _canonical(names: Sequence[str], where: str) -> dict[str, str]:
    """Our column names and those of the frame, with the aliases of file imports."""
    roles = {role: name for role, name in guess_roles(names).items() if role in BAR_COLUMNS}
    for number, name in enumerate(names):
        if (known := roles.get(name.capitalize(), name)) != name or (
            name in roles.values() and name in names[:number]
        ):
            raise DataError("a column is there twice", where=where, got=f"{known} and {name}")
    return roles


def _of_one_asset(frame: Any, symbol: str, where: str) -> Any:
    """A pandas frame with one level of column names; yfinance adds tickers above or below."""
    if frame.columns.nlevels == 1:
        return frame
    if frame.columns.nlevels > 2:
        expected, got = "names, or names and tickers", f"{frame.columns.nlevels} levels"
        raise DataError("columns of too many levels", where=where, expected=expected, got=got)
    prices = next(
        (n for n in range(2) if "close" in {str(name).lower() for name in frame.columns.levels[n]}),
        0,
    )
    tickers = {
        find_pair(str(name)) or str(name): name for name in frame.columns.unique(level=1 - prices)
    }
    if len(tickers) > 1 and symbol not in tickers:
        raise DataError(
            "columns of several assets", where=where, expected=symbol, got=", ".join(tickers)
        )
    return frame.xs(tickers.get(symbol, next(iter(tickers.values()))), axis=1, level=1 - prices)
