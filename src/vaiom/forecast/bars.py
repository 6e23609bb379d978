"""The bars a user hands over, checked: pandas or Polars, named columns, order, clock, timeframe, number.

Enters: a frame of one asset, or a single bar. Leaves: the bars as a bar folder would hold them, or a `DataError` that
names the asset, the row and the way out. Missing and non-positive prices are let through: the row masks know them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.events.calendar import LAST_SECOND
from vaiom.events.masks import MIN_CLEAN_RETURNS
from vaiom.forecast.live import LiveBar
from vaiom.market.folder import BAR_COLUMNS, PRICE_COLUMNS, conform
from vaiom.market.stamps import infer_timeframe, require_ordered, timeframe_of

MIN_BARS = MIN_CLEAN_RETURNS + 2
"""The first bar whose row can be unmasked."""

_CHECKED_STEPS = 2_000
_EPOCH = datetime(1970, 1, 1)
_NUMBERS = (*PRICE_COLUMNS, "Volume")


def checked_bars(frame: Any, symbol: str, timeframe: str, min_bars: int = MIN_BARS) -> pl.DataFrame:
    """One asset's bars as a Polars frame with `BAR_COLUMNS`."""
    where = f"bars of {symbol}"
    bars = conform(_as_polars(frame, where), Path(where))
    require_ordered(bars["Datetime"], where)
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
    _require_timeframe(bars["Datetime"], timeframe, where)
    return bars


def live_bar(bar: Mapping[str, Any], symbol: str) -> LiveBar:
    """One bar as plain numbers; names in any case, High, Low and Volume as in a bar folder."""
    values = {str(name).lower(): value for name, value in bar.items()}
    where = f"a bar of {symbol}"
    missing = [name for name in ("Datetime", *PRICE_COLUMNS) if name.lower() not in values]
    if missing:
        raise DataError(f"{missing[0]!r} is missing", where=where, expected=", ".join(("Datetime", *PRICE_COLUMNS)))
    numbers = {name.lower(): _number(values.get(name.lower()), f"{where}, {name}") for name in _NUMBERS}
    return LiveBar(seconds=_seconds(values["datetime"], where), **numbers)


def moment_of(seconds: int) -> datetime:
    """A stored stamp as a naive datetime."""
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(stamp: object, where: str) -> int:
    if not isinstance(stamp, datetime) or stamp.tzinfo is not None:
        raise DataError("a stamp must be a naive datetime", where=where, got=repr(stamp))
    seconds, fraction = divmod(stamp - _EPOCH, timedelta(seconds=1))
    if fraction or not 0 <= seconds <= LAST_SECOND:
        raise DataError(
            "a bar's stamp cannot be stored", where=where, expected="whole seconds between 1970 and 2106", got=stamp
        )
    return seconds


def _number(value: object, where: str) -> float:
    if value is None:
        return math.nan
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or abs(value) == math.inf:  # type: ignore[arg-type]
        raise DataError("a price must be a finite number, or missing", where=where, got=repr(value))
    return float(value)  # type: ignore[arg-type]


def _require_timeframe(stamps: pl.Series, timeframe: str, where: str) -> None:
    seen, wanted = infer_timeframe(stamps.tail(_CHECKED_STEPS)), timeframe_of(timeframe)
    # A few bars may lie around a weekend: too far apart is then no proof, too close always is.
    if seen is not None and (seen < wanted or (seen > wanted and len(stamps) >= MIN_BARS)):
        raise wrong_timeframe(where, timeframe, seen)


def wrong_timeframe(where: str, timeframe: str, seen: timedelta) -> DataError:
    finer = seen < timeframe_of(timeframe)
    return DataError(
        "the bars are of another timeframe than the model's",
        where=where,
        expected=f"{timeframe} bars",
        got=f"bars mostly {seen} apart",
        fix="`vaiom data resample` makes coarser bars" if finer else "bring in finer bars, or train a model on these",
    )


def _as_polars(frame: Any, where: str) -> pl.DataFrame:
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, pl.DataFrame):
        names = _canonical(frame.columns, where)
        # A query costs more than a short frame does, and waits for the library's threads.
        named = frame
        if frame.columns != list(names):
            named = frame.select(pl.col(old).alias(new) for new, old in names.items())
        stamps = named.schema.get("Datetime")
        if isinstance(stamps, pl.Datetime) and stamps.time_zone is not None:
            raise _zoned(where, stamps.time_zone)
        return named
    if type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns"):
        return _from_pandas(frame, where)
    raise DataError("not a table of bars", where=where, expected="a pandas or Polars DataFrame", got=type(frame))


def _from_pandas(frame: Any, where: str) -> pl.DataFrame:
    names = _canonical([str(name) for name in frame.columns], where)
    columns = dict(zip(map(str, frame.columns), (frame.iloc[:, i] for i in range(frame.shape[1])), strict=True))
    out: dict[str, pl.Series] = {}
    stamps = columns[names["Datetime"]] if "Datetime" in names else frame.index
    if getattr(stamps.dtype, "kind", "") == "M":
        if getattr(stamps.dtype, "tz", None) is not None:
            raise _zoned(where, stamps.dtype.tz)
        out["Datetime"] = pl.Series("Datetime", stamps.to_numpy().astype("datetime64[us]"))
    elif "Datetime" in names:
        raise DataError(
            "stamps must be datetimes",
            where=f"{where}, column {names['Datetime']}",
            got=stamps.dtype,
            fix="convert them with pandas.to_datetime",
        )
    for new, old in names.items():
        if new == "Datetime":
            continue
        if columns[old].dtype.kind not in "iuf":
            raise DataError("a price column must be numeric", where=f"{where}, column {old}", got=columns[old].dtype)
        out[new] = pl.Series(new, columns[old].to_numpy(dtype=np.float64, na_value=np.nan))
    return pl.DataFrame(out)


def _canonical(names: list[str], where: str) -> dict[str, str]:
    """Our column names and what the frame calls them, whatever the case."""
    found: dict[str, str] = {}
    for name in names:
        ours = next((known for known in BAR_COLUMNS if known.lower() == name.lower()), None)
        if ours in found:
            raise DataError("a column is there twice", where=where, got=f"{found[ours]} and {name}")
        if ours is not None:
            found[ours] = name
    return found


def _zoned(where: str, zone: object) -> DataError:
    return DataError(
        "stamps must be naive, on the clock that the model was trained on",
        where=f"{where}, column Datetime",
        got=f"stamps with the zone {zone}",
        fix="convert them to that clock and drop the zone: tz_convert('UTC').tz_localize(None) for bars in UTC",
    )
