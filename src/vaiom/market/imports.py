"""Files of other tools become a bar folder, all of it or none, whose manifest says where every bar came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import Progress, staging_folder
from vaiom.market import folder
from vaiom.market.folder import infer_timeframe, require_calendar, require_ordered
from vaiom.market.formats.read import FORMATS, read_source
from vaiom.market.formats.table import REPAIR, ROW, SORT_FIX, FileBars, Options, Origin, count_out_of_place
from vaiom.market.symbols import find_symbol
from vaiom.market.timeframes import format_span

SUFFIXES = (".bi5", ".csv", ".gz", ".parquet", ".txt", ".zip", ".zst")
# A handful of steps around a weekend or a hole says nothing about the timeframe.
FEWEST_STEPS = 10


def import_files(
    paths: Sequence[Path], out: Path, *, replace: bool = False, progress: Progress | None = None, **options: Any
) -> dict[str, Any]:
    """Read and check all files, as `Options` say, then write their bars to `out`; the manifest of these comes back."""
    bars, entries = read_files(paths, Options(**options), progress)
    _write(out, bars, entries, replace=replace)
    return {"symbols": entries}


def read_files(
    paths: Sequence[Path], options: Options, progress: Progress | None = None
) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """The bars of all files by symbol, in order, and where each symbol's came from."""
    _require_sense(options)
    grouped: dict[str, list[FileBars]] = {}
    for path in folder.counted(list_files(paths), progress, lambda path: path.name):
        symbol, source = read_one(path, options)
        grouped.setdefault(symbol, []).append(source)
    named = {one.symbol for sources in grouped.values() for one in sources if one.symbol}
    if list(grouped) == [options.symbol] and len(named) > 1:
        got, way_out = ", ".join(sorted(named)), "import each symbol by itself, or leave --symbol out"
        raise DataError("the files are of several symbols", expected=f"files of {options.symbol}", got=got, fix=way_out)
    combined = {name: combine(name, own, options) for name, own in sorted(grouped.items())}
    return {name: bars for name, (bars, _) in combined.items()}, {name: entry for name, (_, entry) in combined.items()}


def given_symbol(path: Path, options: Options) -> str | None:
    """The symbol that the user gives a file."""
    named = options.symbol
    return find_symbol(named, path.name) if named and "*" in named else named


def read_one(path: Path, options: Options) -> tuple[str, FileBars]:
    """The symbol that the user gives a file, or that it says itself, and its bars."""
    file, wanted = Origin(path=path), given_symbol(path, options)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("the file cannot be read", where=path, got=error.strerror) from error
    if options.symbol and not wanted:
        raise file.error("the file's name does not fit the pattern", expected=f"--symbol {options.symbol!r}")
    source = read_source(file, data, changed(options, symbol=wanted))
    symbol = wanted or source.symbol
    if symbol is None:
        expected = "a currency pair in the file name, or a symbol column"
        way_out = "pass --symbol, with * in its place where the names of several files have it"
        raise source.file.error("the file does not say its symbol", expected=expected, fix=way_out)
    return folder.check_symbol(symbol), source


def combine(symbol: str, sources: Sequence[FileBars], options: Options) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The files of a symbol as one table in order, and its manifest entry: where it came from, what was changed."""
    sources = sorted(sources, key=lambda one: one.bars["Datetime"].min() or datetime.max)
    filled = [one for one in sources if len(one.bars)]
    if not filled:
        names = ", ".join(one.file.path.name for one in sources[:8])
        raise DataError(f"no bars of {symbol} in all its files", where=names, expected="at least one bar")
    shared_timeframe = _require_alike(filled, repair=options.repair)
    together = pl.concat([one.bars.select(folder.BAR_COLUMNS) for one in filled])
    ordered = together.sort("Datetime", maintain_order=True).unique("Datetime", keep="last", maintain_order=True)
    timeframe = shared_timeframe or _own_timeframe(ordered["Datetime"])
    bars = ordered.with_columns(pl.col("Datetime") + options.shift)
    require_calendar(bars["Datetime"], lambda row: f"{symbol}, bar {row + 1}, moved by {format_span(options.shift)}")
    changes: Counter[str] = sum((one.changes for one in sources), Counter())
    return bars, {
        **folder.describe(bars),
        "timeframe": format_span(timeframe) if timeframe else None,
        "clock": {"shift": format_span(options.shift), "utc": options.utc},
        "flat_dropped": changes["flat_dropped"],
        "repairs": {
            "rows_reordered": changes["rows_reordered"] + count_out_of_place(together["Datetime"]),
            "repeated_stamps_dropped": len(together) - len(ordered),
            "unusable_rows_dropped": changes["unusable_rows_dropped"],
            "volumes_blanked": changes["volumes_blanked"],
        },
        "sources": [one.record for one in sources],
    }


def _require_alike(sources: Sequence[FileBars], *, repair: bool) -> timedelta | None:
    """Files of one symbol share a timeframe, which is returned, and a side; without repair they do not overlap."""
    known = [(step, one) for one in sources if (step := _own_timeframe(one.bars["Datetime"])) is not None]
    for step, one in known:
        if step != known[0][0]:  # bars of several in one table would hide among each other
            where, expected = f"{known[0][1].file.label} and {one.file.label}", f"{format_span(known[0][0])} in both"
            problem, way_out = "files of one symbol have different timeframes", "import each into a folder of its own"
            raise DataError(problem, where=where, expected=expected, got=format_span(step), fix=way_out)
    sides = {side: one.file.label for one in sources if (side := one.file.side)}
    if len(sides) > 1:
        both = " and ".join(sides.values())
        raise DataError("files of one symbol mix bid and ask prices", where=both, fix="import one side only")
    for one in [] if repair else sources:
        require_ordered(one.bars["Datetime"], lambda row, one=one: one.file.at(one.bars[ROW][row]), fix=SORT_FIX)
    for earlier, later in [] if repair else pairwise(sources):
        last, first = earlier.bars["Datetime"][-1], later.bars["Datetime"][0]
        if first <= last:
            row, expected = later.bars[ROW][0], f"a stamp after {last}, the last of {earlier.file.label}"
            way_out = REPAIR.format("keep the row of the later file where stamps repeat")
            raise later.file.error("two files overlap in time", row=row, expected=expected, got=first, fix=way_out)
    return known[0][0] if known else None


def _own_timeframe(stamps: pl.Series) -> timedelta | None:
    """The step that most rows keep; nothing where there are too few rows, or too many holes, to tell."""
    return infer_timeframe(stamps, fewest_steps=FEWEST_STEPS, least_share=0.5)


def _require_sense(options: Options) -> None:
    if options.format not in FORMATS:
        raise ConfigError("no such format", expected=", ".join(FORMATS), got=repr(options.format))
    if options.columns and options.format not in ("auto", "table"):
        got = f"--format {options.format}"
        raise ConfigError("a column map is for tables only", expected="--format table", got=got)
    if options.start is not None and options.start.tzinfo is not None:
        raise ConfigError("the start must not carry an offset", expected="YYYY-MM-DD", got=options.start)
    if options.price_scale is not None and not 0 < options.price_scale < float("inf"):
        raise ConfigError("the price scale must be a positive number", got=options.price_scale)


def list_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those below the folders named that can hold bars; each once."""
    files: dict[Path, None] = {}
    for path in paths:
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        if path.is_dir():
            found = [f for f in found if f.suffix.lower() in SUFFIXES and f.is_file() and not f.name.startswith(".")]
            if not found:
                raise DataError("nothing to import in this folder", where=path, expected="files: " + " ".join(SUFFIXES))
        elif not found:
            raise DataError("no such file or folder", where=path)
        files.update(dict.fromkeys(found))
    if not files:
        raise ConfigError("nothing to import", expected="files or folders")
    return list(files)


def _write(out: Path, bars: Mapping[str, pl.DataFrame], entries: dict[str, Any], *, replace: bool) -> None:
    """All symbols and the manifest appear together; what the folder held before stays."""
    if out.exists() and not out.is_dir():
        raise DataError("the output is a file, not a folder", where=out, fix="choose another --out")
    for symbol in bars:
        file = out / f"{symbol}.parquet"
        if not replace and file.exists():
            way_out = "pass --replace, or choose another --out"
            raise DataError(f"the folder already holds {symbol}", where=file, fix=way_out)
    manifest = folder.open_manifest(out)
    manifest["symbols"] = dict(sorted({**manifest["symbols"], **entries}.items()))
    with staging_folder(out if out.exists() else out.parent) as staged:
        for symbol, frame in bars.items():
            folder.write_symbol(staged, symbol, frame)
        folder.write_manifest(staged, manifest)
        if not out.exists():
            staged.rename(out)
            return
        # The manifest goes last: until then the folder describes what it held before.
        for path in sorted(staged.iterdir(), key=lambda path: path.name == folder.MANIFEST_NAME):
            path.replace(out / path.name)
