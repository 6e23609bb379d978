"""Import files of other tools into a bar folder, all or none; its manifest records the source of
every bar.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace as changed
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import (
    Progress,
    ensure_folder,
    read_json,
    sha256_file,
    staging_folder,
    write_json,
)
from vaiom.market import folder
from vaiom.market.folder import infer_timeframe, require_calendar, require_ordered
from vaiom.market.formats.read import FORMATS, read_source
from vaiom.market.formats.source import REPAIR, ROW, SORT_FIX, FileBars, Options, Origin
from vaiom.market.formats.table import count_out_of_place
from vaiom.market.symbols import find_pair, find_symbol
from vaiom.market.timeframes import format_span

SUFFIXES = (".bi5", ".csv", ".gz", ".parquet", ".tsv", ".txt", ".zip", ".zst")


def import_files(
    paths: Sequence[Path],
    out: Path,
    *,
    replace: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Read and check all files, as `Options` say, then write their bars to `out`; returns the
    manifest of these.

    All symbols and the manifest appear together; other symbols of the folder stay.
    """
    bars, entries = read_files(paths, Options(**options), progress)
    if out.exists() and not out.is_dir():
        raise DataError("the output is a file, not a folder", where=out, fix="choose another --out")
    for symbol in bars:
        if (file := out / f"{symbol}.parquet").exists() and not replace:
            fix = "pass --replace, or choose another --out"
            raise DataError(f"the folder already holds {symbol}", where=file, fix=fix)
    manifest = folder.open_manifest(out)
    manifest["symbols"] = dict(sorted({**manifest["symbols"], **entries}.items()))
    with staging_folder(out if out.exists() else out.parent) as staged:
        for symbol, frame in bars.items():
            folder.write_symbol(staged, symbol, frame)
        write_json(staged / folder.MANIFEST_NAME, manifest)
        if out.exists():
            # The manifest goes last: until then the folder describes what it held before.
            for path in sorted(
                staged.iterdir(), key=lambda path: path.name == folder.MANIFEST_NAME
            ):
                path.replace(out / path.name)
        else:
            staged.rename(out)
    return {"symbols": entries}


def gather_files(
    files: Sequence[Path],
    out: Path,
    *,
    symbol: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The bar folder of these files for a job in `out`: imported there, or theirs if they are one.

    `out` remembers the files' checksums, so that a job that goes on is refused other files.
    """
    listed = list_files(files)
    is_folder = len(files) == 1 and all(
        file.parent == files[0] and folder.holds_bars(file) for file in listed
    )
    bars = files[0] if is_folder else out / "bars"
    record = out / "files.json"
    hashes = {str(file.resolve()): sha256_file(file) for file in listed}
    if record.exists():
        if read_json(record) != hashes:
            raise ConfigError(
                "another run was started here",
                where=out,
                expected="the files that it had",
                fix="choose another --out, or remove that one",
            )
        return bars
    if not is_folder:
        import_files(
            files, bars, symbol=symbol, utc=True, repair=True, replace=True, progress=progress
        )
    write_json(ensure_folder(out) / record.name, hashes)
    return bars


def read_files(
    paths: Sequence[Path], options: Options, progress: Progress | None = None
) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """The bars of all files by symbol, in order, and the manifest entry of each symbol."""
    if options.format not in FORMATS:
        raise ConfigError("no such format", expected=", ".join(FORMATS), got=repr(options.format))
    if options.columns and options.format not in ("auto", "table"):
        got = f"--format {options.format}"
        raise ConfigError("a column map is for tables only", expected="--format table", got=got)
    if options.start is not None and options.start.tzinfo is not None:
        raise ConfigError(
            "the start must not carry an offset", expected="YYYY-MM-DD", got=options.start
        )
    if options.price_scale is not None and not 0 < options.price_scale < float("inf"):
        raise ConfigError("the price scale must be a positive number", got=options.price_scale)
    grouped: dict[str, list[FileBars]] = {}
    for path in folder.counted(list_files(paths), progress, lambda path: path.name):
        symbol, source = read_one(path, options)
        grouped.setdefault(symbol, []).append(source)
    named = {source.symbol for sources in grouped.values() for source in sources if source.symbol}
    if list(grouped) == [options.symbol] and len(named) > 1:
        got, fix = ", ".join(sorted(named)), "import each symbol by itself, or leave --symbol out"
        raise DataError(
            "the files are of several symbols",
            expected=f"files of {options.symbol}",
            got=got,
            fix=fix,
        )
    combined = {name: combine(name, own, options) for name, own in sorted(grouped.items())}
    return {name: bars for name, (bars, _) in combined.items()}, {
        name: entry for name, (_, entry) in combined.items()
    }


def given_symbol(path: Path, options: Options) -> str | None:
    """The symbol of a file by the options: theirs, or where it is a pattern, the matching part of
    the file name.
    """
    named = options.symbol or ""
    if "*" in named:
        return find_symbol(named, path.name)
    pair = find_pair(named)  # which may be spelled eurusd or EUR/USD
    return pair if pair == re.sub(r"(?<=\w)[-_/. ](?=\w)", "", named).upper() else named or None


def read_one(path: Path, options: Options) -> tuple[str, FileBars]:
    """The symbol of a file, by the options or its own content or name, and its bars."""
    file, wanted = Origin(path=path), given_symbol(path, options)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("the file cannot be read", where=path, got=error.strerror) from error
    if options.symbol and not wanted:
        raise file.error(
            "the file's name does not fit the pattern", expected=f"--symbol {options.symbol!r}"
        )
    source = read_source(file, data, changed(options, symbol=wanted))
    symbol = wanted or source.symbol
    if symbol is None:
        expected = "a currency pair in the file name, or a symbol column"
        fix = (
            "name it, as in --symbol AAPL; for many files a pattern of their names, as in "
            "--symbol 'BATS_*, *'"
        )
        raise source.file.error("the file does not say its symbol", expected=expected, fix=fix)
    return folder.check_symbol(symbol), source


def combine(
    symbol: str, sources: Sequence[FileBars], options: Options
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The files of a symbol as one table in order, and its manifest entry: the sources, and what
    was changed.
    """
    sources = sorted(sources, key=lambda source: source.bars["Datetime"].min() or datetime.max)
    filled = [source for source in sources if len(source.bars)]
    if not filled:
        names = ", ".join(source.file.path.name for source in sources[:8])
        raise DataError(
            f"no bars of {symbol} in all its files", where=names, expected="at least one bar"
        )
    shared_timeframe = _require_compatible(filled, repair=options.repair)
    together = pl.concat([source.bars.select(folder.BAR_COLUMNS) for source in filled])
    ordered = folder.keep_last(together.sort("Datetime", maintain_order=True))
    timeframe = shared_timeframe or infer_timeframe(ordered["Datetime"], majority=True)
    bars = ordered.with_columns(pl.col("Datetime") + options.shift)
    require_calendar(
        bars["Datetime"],
        lambda row: f"{symbol}, bar {row + 1}, moved by {format_span(options.shift)}",
    )
    changes: Counter[str] = sum((source.changes for source in sources), Counter())
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
        "sources": [source.record for source in sources],
    }


def _require_compatible(sources: Sequence[FileBars], *, repair: bool) -> timedelta | None:
    """Files of one symbol share a timeframe, which is returned, and a side; without repair they do
    not overlap.
    """
    known = [
        (step, s.file.label)
        for s in sources
        if (step := infer_timeframe(s.bars["Datetime"], majority=True))
    ]
    for step, label in known:
        if step != known[0][0]:  # in one table nothing would tell their bars apart
            where, expected = f"{known[0][1]} and {label}", f"{format_span(known[0][0])} in both"
            problem, fix = (
                "files of one symbol have different timeframes",
                "import each into a folder of its own",
            )
            raise DataError(problem, where=where, expected=expected, got=format_span(step), fix=fix)
    sides = {side: source.file.label for source in sources if (side := source.file.side)}
    if len(sides) > 1:
        where = " and ".join(sides.values())
        raise DataError(
            "files of one symbol mix bid and ask prices", where=where, fix="import one side only"
        )
    for source in [] if repair else sources:
        rows = source.bars[ROW]
        require_ordered(
            source.bars["Datetime"],
            lambda n, at=source.file.at, rows=rows: at(rows[n]),
            fix=SORT_FIX,
        )
    for earlier, later in [] if repair else pairwise(sources):
        last, first = earlier.bars["Datetime"][-1], later.bars["Datetime"][0]
        if first <= last:
            row, expected = (
                later.bars[ROW][0],
                f"a stamp after {last}, the last of {earlier.file.label}",
            )
            fix = REPAIR.format("keep the row of the later file where stamps repeat")
            raise later.file.error(
                "two files overlap in time", row=row, expected=expected, got=first, fix=fix
            )
    return known[0][0] if known else None


def list_files(paths: Sequence[Path]) -> list[Path]:
    """These files, and those below these folders that may hold bars, without repetitions."""
    files: dict[Path, None] = {}
    for path in paths:
        inside = [
            file
            for file in sorted(path.rglob("[!.]*"))
            if file.suffix.lower() in SUFFIXES and file.is_file()
        ]
        if not inside and not path.is_file():
            problem = (
                "nothing to import in this folder" if path.is_dir() else "no such file or folder"
            )
            raise DataError(
                problem,
                where=path,
                expected="a file, or a folder with files: " + " ".join(SUFFIXES),
            )
        files.update(dict.fromkeys(inside or [path]))
    if not files:
        raise ConfigError("nothing to import", expected="files or folders")
    return list(files)


def list_others(paths: Sequence[Path]) -> list[Path]:
    """Files below these folders that are not imported, because they are of other kinds."""
    inside = {file for path in paths for file in path.rglob("[!.]*") if file.is_file()}
    return sorted(inside.difference(list_files(paths)), key=lambda file: file.name)
