"""The bar folder: one `<SYMBOL>.parquet` per asset, naive left-edge stamps, sorted and unique.

Paper: "Market Data, Price Convention and Bar Construction" (timestamps are consumed as stored;
nothing is filled).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.files import Progress, atomic_file, read_json

STAMP = pl.Datetime("us")
PRICE_COLUMNS = ("Open", "High", "Low", "Close")
NUMBER_COLUMNS = (*PRICE_COLUMNS, "Volume")
BAR_COLUMNS = ("Datetime", *NUMBER_COLUMNS)
BAR_SCHEMA = {"Datetime": STAMP, **dict.fromkeys(NUMBER_COLUMNS, pl.Float64())}
MANIFEST_NAME = "manifest.json"

T = TypeVar("T")
Place = Callable[[int], object]
"""Names the place of a row, counted from 0, in an error."""

# Python's own calendar ends with the year 9999, and stamps are printed by it.
_FIRST_YEAR, _LAST_YEAR = 1000, 8999
_SYMBOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_REPAIR = "`vaiom data import --repair` sorts rows and keeps the last of repeated stamps"


def counted(
    items: Sequence[T], progress: Progress | None, name: Callable[[T], str] = str
) -> Iterator[T]:
    """The items in turn; `progress` is called when each begins, and when all are done."""
    for done, item in enumerate(items):
        if progress:
            progress(done, len(items), name(item))
        yield item
    if progress:
        progress(len(items), len(items), "")


def is_symbol(symbol: object) -> bool:
    """Whether it is a plain word that may name a file."""
    return isinstance(symbol, str) and _SYMBOL.fullmatch(symbol) is not None


def check_symbol(symbol: str) -> str:
    """The symbol, which must be a plain word because it names a file."""
    if is_symbol(symbol):
        return symbol
    raise DataError(
        "not usable as a symbol",
        expected="up to 32 letters, digits, '.', '_' or '-'",
        got=repr(symbol),
        fix="write it without separators, as in EURUSD",
    )


def conform(frame: pl.DataFrame, where: Path) -> pl.DataFrame:
    """Check names and types and cast to `BAR_SCHEMA`; no value changes, but NaN becomes null.

    A missing Volume becomes a column of nulls, and a Close alone stands for all prices. Stamps must
    be naive, because they are consumed as stored. The order of rows is not checked here.
    """
    if {"Close"} == {*PRICE_COLUMNS} & {*frame.columns}:
        frame = frame.with_columns(pl.col("Close").alias(name) for name in PRICE_COLUMNS)
    missing = [name for name in BAR_COLUMNS[:-1] if name not in frame.columns]
    if missing:
        raise DataError(
            f"column {missing[0]!r} is missing",
            where=where,
            expected=", ".join(BAR_COLUMNS),
            got=", ".join(frame.columns) or "no columns",
            fix="bring the file in with `vaiom data import --format table`, which maps columns",
        )
    if "Volume" not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.Float64).alias("Volume"))
    stamp = frame.schema["Datetime"]
    if not isinstance(stamp, pl.Datetime) or stamp.time_zone is not None:
        raise DataError(
            "stamps must be naive datetimes",
            where=f"{where}, column Datetime",
            got=str(stamp),
            fix="bring the file in with `vaiom data import`, with --utc if its stamps carry an "
            "offset",
        )
    for name in NUMBER_COLUMNS:
        dtype = frame.schema[name]
        if not (dtype.is_numeric() or dtype == pl.Null):
            problem = "a price column must be numeric"
            raise DataError(problem, where=f"{where}, column {name}", got=str(dtype))
    require_calendar(frame["Datetime"], lambda row: f"{where}, row {row + 1}")
    # Live bars mostly conform, and a check is much faster than a query that changes nothing.
    if frame.schema == BAR_SCHEMA and not any(_holds_nan(frame[name]) for name in NUMBER_COLUMNS):
        return frame
    return frame.select(
        pl.col("Datetime").cast(STAMP), pl.col(NUMBER_COLUMNS).cast(pl.Float64).fill_nan(None)
    )


def _holds_nan(numbers: pl.Series) -> bool:
    """Whether there is a NaN beside the nulls, which are NaN in an array too."""
    return int(np.isnan(numbers.to_numpy()).sum()) != numbers.null_count()


def infer_timeframe(stamps: pl.Series, *, majority: bool = False) -> timedelta | None:
    """The commonest step between stamps in any order, the shortest of equally common ones.

    None without steps; with `majority`, also unless most steps equal it, of at least ten: fewer may
    lie around a weekend or a hole.
    """
    ticks = stamps.drop_nulls().cast(STAMP).to_physical().to_numpy()
    steps = np.diff(ticks)
    if len(steps) and steps.min() <= 0:
        steps = np.diff(np.unique(ticks))
    if not len(steps) or (majority and len(ticks) <= 10):
        return None
    step = steps.min()
    is_most = 2 * np.count_nonzero(steps == step) > len(steps)
    if not is_most:  # counting every step is slow
        values, counts = np.unique(steps, return_counts=True)
        step = values[counts.argmax()]
        is_most = 2 * counts.max() > len(steps)
    if majority and not is_most:
        return None
    return timedelta(microseconds=int(step))


def keep_last(bars: pl.DataFrame) -> pl.DataFrame:
    """Sorted bars without those whose stamp is repeated by the next row: the last one counts."""
    return bars.filter(pl.col("Datetime").ne_missing(pl.col("Datetime").shift(-1)))


def require_ordered(
    stamps: pl.Series, where: object, *, repeats: bool = False, fix: str = _REPAIR
) -> None:
    """Stamps must be present and increase, or with `repeats` not decrease.

    `where` is the name of the series, or a function that names a row.
    """

    def place(row: int) -> object:
        return where(row) if callable(where) else f"{where}, row {row + 1}"

    if stamps.null_count():
        row = int(stamps.is_null().arg_max() or 0)
        raise DataError("a stamp is missing", where=place(row), fix="remove the row")
    later = stamps.slice(1)
    earlier = stamps.slice(0, max(len(stamps) - 1, 0))
    is_bad = later < earlier if repeats else later <= earlier
    if is_bad.any():
        row = int(is_bad.arg_max() or 0) + 1
        before = stamps[row - 1]
        after = stamps[row]
        raise DataError(
            "a stamp is repeated" if before == after else "a stamp goes back in time",
            where=place(row),
            expected=f"a stamp after {before}",
            got=after,
            fix=fix,
        )


def require_calendar(stamps: pl.Series, where: Place) -> pl.Series:
    """The stamps, which must lie in the years that Python's calendar can print."""
    first = datetime(_FIRST_YEAR, 1, 1)
    end = datetime(_LAST_YEAR + 1, 1, 1)
    is_inside = stamps.cast(STAMP).is_between(first, end, closed="left").fill_null(value=True)
    if not is_inside.all():
        raise DataError(
            "a stamp is beyond all calendars",
            where=where(int((~is_inside).arg_max() or 0)),
            expected=f"a year from {_FIRST_YEAR} to {_LAST_YEAR}",
            fix="correct or remove the row",
        )
    return stamps


def symbols_in(folder: Path) -> list[str]:
    """The symbols of a bar folder, sorted; a folder without any is an error."""
    if not folder.is_dir():
        raise DataError(
            "no such bar folder",
            where=folder,
            expected="a folder of <SYMBOL>.parquet files",
            fix="`vaiom data import` makes one of price files",
        )
    symbols = sorted(file.stem for file in folder.glob("[!.]*.parquet"))
    if not symbols:
        raise DataError(
            "the bar folder is empty",
            where=folder,
            expected="<SYMBOL>.parquet files",
            fix="make one with `vaiom data import`, `download` or `simulate`",
        )
    return [check_symbol(symbol) for symbol in symbols]


@contextmanager
def readable_parquet(where: object, kind: str = "Parquet") -> Iterator[None]:
    """Turn what readers raise for damaged files, panics included, into an error for users."""
    errors: list[type[BaseException]] = [UnicodeDecodeError, OSError, MemoryError]
    errors += [pl.exceptions.PolarsError, pl.exceptions.PanicException]
    if find_spec("pyarrow"):
        import pyarrow as pa

        errors.append(pa.ArrowException)
    try:
        yield
    except FileNotFoundError as error:
        raise DataError("no such file", where=where, expected=f"a {kind} file") from error
    except tuple(errors) as error:
        got = (str(error) or type(error).__name__).splitlines()[0]
        fix = None
        if kind == "Parquet":
            fix = "`vaiom data import` reads other formats, and `vaiom forecast` too"
        raise DataError(f"not readable as {kind}", where=where, got=got, fix=fix) from error


def read_parquet(
    source: Path | BinaryIO, where: object, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Read any Parquet file, by Arrow if it is installed.

    Damage makes other readers allocate absurd amounts of memory.
    """
    with readable_parquet(where):
        if not find_spec("pyarrow"):
            return pl.read_parquet(source, columns=None if columns is None else list(columns))
        import pyarrow.parquet as pq

        table = pq.ParquetFile(source).read(columns, use_threads=False)
        table.validate(full=True)  # invalid UTF-8 would end the process later
        return pl.DataFrame(pl.from_arrow(table))


def read_file(path: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """One asset's bars, types checked, in any order; or some `columns` as they are stored.

    An empty file is an error, because it is never what a user meant.
    """
    frame = read_parquet(path, path, columns)
    if frame.is_empty():
        raise DataError("the file holds no bars", where=path, fix="remove it, or import it again")
    return conform(frame, path) if columns is None else frame


def read_ordered(path: Path) -> pl.DataFrame:
    """One asset's bars, which must be in order and without repeated stamps."""
    frame = read_file(path)
    require_ordered(frame["Datetime"], path)
    return frame


def read_stamps(path: Path) -> pl.Series:
    """The stamps of an asset's bars; the whole file is read only if they have another type."""
    frame = read_parquet(path, path, ["Datetime"])
    if frame.is_empty() or frame.schema != {"Datetime": STAMP}:
        frame = read_file(path)
    return frame["Datetime"]


def holds_bars(path: Path) -> bool:
    """Whether a file is as a bar folder has it, by its name and schema."""
    if path.suffix != ".parquet":
        return False
    with readable_parquet(path):
        schema = pl.read_parquet_schema(path)
    if not {*PRICE_COLUMNS} <= {*schema}:
        return False
    return getattr(schema.get("Datetime"), "time_zone", "") is None


def count_bars(path: Path) -> int:
    """The number of bars in a file, from its metadata."""
    with readable_parquet(path):
        if not find_spec("pyarrow"):
            return int(pl.scan_parquet(path).select(pl.len()).collect().item())
        import pyarrow.parquet as pq

        return int(pq.ParquetFile(path).metadata.num_rows)


class BarFrames(dict[str, pl.DataFrame]):
    """The bars of assets by symbol, a Polars frame each."""

    def __repr__(self) -> str:
        num_rows = sum(len(bars) for bars in self.values())
        return f"<BarFrames of {len(self)} assets, {num_rows:,} rows: {', '.join(self)}>"


def read_bars(path: str | Path) -> BarFrames:
    """All bars of a bar folder, or of one Parquet file named by its symbol: {symbol: frame}."""
    path = Path(path)
    files = [path]
    if not path.is_file():
        files = [path / f"{symbol}.parquet" for symbol in symbols_in(path)]
    return BarFrames({check_symbol(file.stem): read_ordered(file) for file in files})


def write_symbol(folder: Path, symbol: str, frame: pl.DataFrame) -> Path:
    """Write one asset's bars atomically; the frame must be ordered and conform to `BAR_SCHEMA`.

    Returns the file. A process that reads the folder meanwhile sees the old file or the new one.
    """
    path = folder / f"{check_symbol(symbol)}.parquet"
    require_ordered(frame["Datetime"], path)
    with atomic_file(path) as staged:
        frame.select(BAR_COLUMNS).cast(BAR_SCHEMA).write_parquet(staged)  # type: ignore[arg-type]
    return path


def describe(bars: pl.DataFrame) -> dict[str, Any]:
    """The facts about an asset's bars that every manifest has."""
    first, last = bars["Datetime"][0], bars["Datetime"][-1]
    return {"rows": len(bars), "first": first.isoformat(), "last": last.isoformat()}


def open_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a bar folder; one without symbols if there is none yet.

    A file that is not such a manifest is an error, so that nothing foreign is overwritten.
    """
    file = folder / MANIFEST_NAME
    manifest: dict[str, Any] = read_json(file) if file.exists() else {"symbols": {}}
    if not isinstance(manifest, dict) or not isinstance(manifest.setdefault("symbols", {}), dict):
        raise DataError("not the manifest of a bar folder", where=file, fix="choose another --out")
    return manifest
