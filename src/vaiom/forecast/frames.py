"""Tables of bars that users pass: pandas or Polars, in the spellings that files have too.

Enters: a frame of one asset, or a long frame of many. Leaves: Polars frames with the column names
of a bar folder, whose types `vaiom.forecast.bars` checks. pandas is
imported for those alone who use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import BAR_COLUMNS
from vaiom.market.formats.columns import guess_roles
from vaiom.market.symbols import usual_symbol

_UTC_NAMES = ("UTC", "Etc/UTC", "GMT")


def is_pandas(frame: Any) -> bool:
    """Whether it is a pandas frame."""
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def require_table(frame: Any, where: str) -> Any:
    """A pandas or Polars DataFrame; a lazy one of Polars is collected."""
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if is_pandas(frame) or isinstance(frame, pl.DataFrame):
        return frame
    expected = "a pandas or Polars DataFrame"
    raise DataError("not a table of bars", where=where, expected=expected, got=type(frame))


def frames_by_symbol(bars: Any, symbol: str | None, known: Collection[str]) -> dict[str, Any]:
    """Frames by symbol, from such a mapping or from the frame of the asset `symbol`.

    Symbols may be spelled in any way (`usual_symbol`); those of the result are the usual ones.
    """
    if not isinstance(bars, Mapping):
        if symbol is None:
            expected = 'symbol="EURUSD", or {"EURUSD": frame}'
            raise ConfigError("whose bars are these?", expected=expected)
        return {usual_symbol(symbol, known): bars}
    spellings: dict[str, str] = {}
    for name in bars:
        usual = usual_symbol(name, known) if isinstance(name, str) else name
        earlier = spellings.setdefault(usual, name)
        if earlier != name:
            problem = "two names stand for one asset"
            raise DataError(problem, got=f"{earlier} and {name}", fix="leave one out")
    if symbol is not None and usual_symbol(symbol, known) not in spellings:
        expected = ", ".join(bars)
        raise ConfigError("no bars of this asset", expected=expected, got=f"symbol={symbol!r}")
    return {usual: bars[name] for usual, name in spellings.items()}


def table_like(frame: Any, columns: dict[str, list[Any]]) -> Any:
    """A pandas DataFrame if the frame is one, else a Polars DataFrame."""
    library: Any = import_module("pandas") if is_pandas(frame) else pl
    return library.DataFrame(columns)


def split_assets(frame: Any, id_column: str, timestamp_column: str) -> dict[str, Any]:
    """Split a long frame into a frame per asset, in order of appearance; stamps in `Datetime`."""
    frame = require_table(frame, "bars of many assets")
    is_column = timestamp_column in frame.columns
    if is_pandas(frame) and frame.index.name == timestamp_column and not is_column:
        frame = frame.reset_index()
    new_names = {timestamp_column: "Datetime"}
    _require_once(frame.columns, (id_column, timestamp_column), new_names)
    if is_pandas(frame):
        groups = frame.rename(columns=new_names).groupby(
            id_column, sort=False, dropna=False, observed=True
        )
        parts = {symbol: part.drop(columns=id_column) for symbol, part in groups}
    else:
        groups = frame.rename(new_names).partition_by(
            id_column, as_dict=True, include_key=False, maintain_order=True
        )
        parts = {symbol: part for (symbol,), part in groups.items()}
    for symbol in parts:
        if symbol is None or symbol != symbol:
            fix = "remove the rows, or name their asset"
            raise DataError("a symbol is missing", where=f"column {id_column}", fix=fix)
    return {str(symbol): part for symbol, part in parts.items()}


def _require_once(
    columns: Sequence[Any], required: Sequence[str], new_names: dict[str, str]
) -> None:
    """Refuse a table without a required column, or in which a new name would be there twice."""
    renamed = [new_names.get(name, name) for name in columns]
    for name in required:
        new_name = new_names.get(name, name)
        if name not in columns:
            problem = f"column {name!r} is missing"
            fix = "name them with id_column= and timestamp_column="
        elif renamed.count(new_name) > 1:
            problem = f"column {new_name!r} is there twice"
            fix = "leave one out"
        else:
            continue
        got = ", ".join(map(str, columns))
        raise DataError(problem, expected=", ".join(required), got=got, fix=fix)


def as_polars(frame: Any, symbol: str, where: str) -> pl.DataFrame:
    """One asset's bars as a Polars frame with the names of a bar folder and stamps without a zone.

    Other columns are left out.
    """
    frame = require_table(frame, where)
    if is_pandas(frame):
        bars, zone = _from_pandas(_of_one_asset(frame, symbol, where), where)
    else:
        names = _bar_columns(frame.columns, where)
        bars = pl.DataFrame({name: frame.get_column(old) for name, old in names.items()})
        zone = getattr(bars.schema.get("Datetime"), "time_zone", None)
    if zone is None:
        return bars
    if str(zone) not in _UTC_NAMES:
        raise DataError(
            "stamps must be naive, on the clock that the model was trained on",
            where=f"{where}, column Datetime",
            got=f"stamps with the zone {zone}",
            fix="convert them to that clock: tz_convert('UTC') for bars in UTC, else drop the "
            "zone too",
        )
    return bars.with_columns(pl.col("Datetime").dt.replace_time_zone(None))


def _from_pandas(frame: Any, where: str) -> tuple[pl.DataFrame, Any]:
    """The bars of a pandas frame, with stamps in UTC if they have a zone; and that zone."""
    frame = frame.rename(columns=str)
    names = _bar_columns(frame.columns, where)
    if "Datetime" not in names and frame.index.dtype.kind == "M":
        frame = frame.reset_index(names="Datetime")
        names = _bar_columns(frame.columns, where)
    columns = {}
    zone = None
    for name, old in names.items():
        dtype = frame[old].dtype
        place = f"{where}, column {old}"
        if name != "Datetime":
            if dtype.kind not in "iuf":
                raise DataError("a price column must be numeric", where=place, got=dtype)
            columns[name] = frame[old].to_numpy(dtype=np.float64, na_value=np.nan)
            continue
        if dtype.kind != "M":
            fix = "convert them with pandas.to_datetime"
            raise DataError("stamps must be datetimes", where=place, got=dtype, fix=fix)
        zone = getattr(getattr(dtype, "pyarrow_dtype", dtype), "tz", None)
        columns[name] = frame[old].to_numpy(dtype="datetime64[us]")
    return pl.DataFrame(columns), zone


def _bar_columns(names: Sequence[str], where: str) -> dict[str, str]:
    """The columns of a bar folder and what this table calls them, by the aliases of imports."""
    roles = {role: name for role, name in guess_roles(list(names)).items() if role in BAR_COLUMNS}
    chosen = set(roles.values())
    for number, name in enumerate(names):
        rival = roles.get(name.capitalize(), name)
        is_repeated = name in chosen and name in names[:number]
        if rival != name or is_repeated:
            raise DataError("a column is there twice", where=where, got=f"{rival} and {name}")
    return roles


def _of_one_asset(frame: Any, symbol: str, where: str) -> Any:
    """A pandas frame with one level of column names; yfinance has tickers above or below them."""
    levels = frame.columns.nlevels
    if levels == 1:
        return frame
    if levels > 2:
        expected = "names, or names and tickers"
        raise DataError(
            "columns of too many levels", where=where, expected=expected, got=f"{levels} levels"
        )
    first_names = {str(name).lower() for name in frame.columns.levels[0]}
    ticker_level = 1 if "close" in first_names else 0
    tickers = {}
    for ticker in frame.columns.unique(level=ticker_level):
        tickers[usual_symbol(str(ticker))] = ticker
    if len(tickers) > 1 and symbol not in tickers:
        got = ", ".join(tickers)
        raise DataError("columns of several assets", where=where, expected=symbol, got=got)
    own = tickers.get(symbol, next(iter(tickers.values())))
    return frame.xs(own, axis=1, level=ticker_level)
