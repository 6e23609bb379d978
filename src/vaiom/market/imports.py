"""Files of other tools become a bar folder, all or none.

Enters: files and `Options`. Leaves: bars by symbol, and a manifest that records the source of every
bar and what was changed on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from datetime import datetime, timedelta
from functools import partial
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
from vaiom.market.formats.source import REPAIR, ROW, SORT_FIX, FileBars, Options, SourceFile
from vaiom.market.formats.table import count_out_of_place
from vaiom.market.symbols import find_symbol, symbol_by_name, usual_symbol
from vaiom.market.timeframes import format_span

SYMBOL_FROM = "symbol_from"
"""Of the record of a file, where it was called by its name."""
SUFFIXES = (".bi5", ".csv", ".gz", ".parquet", ".tsv", ".txt", ".zip", ".zst")


def import_files(
    paths: Sequence[Path],
    out: Path,
    *,
    replace: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Read and check all files, as `Options` say, then write their bars to `out`.

    All symbols and the manifest appear together or not at all; other symbols of the folder stay. A
    symbol that the folder has already is an error without `replace`. Returns the manifest of the
    symbols that were read.
    """
    bars, entries = read_files(paths, Options(**options), progress)
    if out.exists() and not out.is_dir():
        raise DataError("the output is a file, not a folder", where=out, fix="choose another --out")
    for symbol in bars:
        file = out / f"{symbol}.parquet"
        if file.exists() and not replace:
            problem = f"the folder already holds {symbol}"
            raise DataError(problem, where=file, fix="pass --replace, or choose another --out")
    manifest = folder.open_manifest(out)
    manifest["symbols"] = dict(sorted({**manifest["symbols"], **entries}.items()))
    with staging_folder(out if out.exists() else out.parent) as staged:
        files = [folder.write_symbol(staged, symbol, frame) for symbol, frame in bars.items()]
        # The manifest goes last: until then the folder describes what it held before.
        files.append(staged / folder.MANIFEST_NAME)
        write_json(files[-1], manifest)
        if out.exists():
            for file in files:
                file.replace(out / file.name)
        else:
            staged.rename(out)
    return {"symbols": entries}


def read_bars(
    path: str | Path, symbol: str | None = None, *, repair: bool = False
) -> folder.BarFrames:
    """The bars of a bar folder, or of a file or a folder of files in any format: {symbol: frame}.

    Files are read as `vaiom forecast` reads them: stamps with an offset become UTC, and symbols are
    those of the content or of names, or `symbol` for all. With `repair`, rows are sorted, and
    repeated and unusable ones dropped; without it they are errors.
    """
    path = Path(path)
    if is_bar_folder(path) and symbol is None:
        return folder.read_bars(path)
    frames, _ = read_files([path], Options(symbol=symbol, utc=True, repair=repair))
    return folder.BarFrames(frames)


def is_bar_folder(path: Path) -> bool:
    """Whether all files of prices directly in a folder are as a bar folder has them."""
    if not path.is_dir():
        return False
    files = [file for file in path.glob("[!.]*") if file.suffix.lower() in SUFFIXES]
    return bool(files) and all(map(folder.holds_bars, files))


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
    """The bars of all files by symbol, in order, and the manifest entry of each symbol.

    Nothing is written; `import_files` does that. A single symbol in the options stands for all
    files, which then must not name several.
    """
    _check_options(options)
    by_symbol: dict[str, list[FileBars]] = {}
    for path in folder.counted(list_files(paths), progress, lambda path: path.name):
        for symbol, source in read_one(path, options):
            by_symbol.setdefault(symbol, []).append(source)
    if options.symbol and list(by_symbol) == [options.symbol]:
        named = {source.symbol for source in by_symbol[options.symbol] if source.symbol}
        if len(named) > 1:
            raise DataError(
                "the files are of several symbols",
                expected=f"files of {options.symbol}",
                got=", ".join(sorted(named)),
                fix="import each symbol by itself, or leave --symbol out",
            )
    bars = {}
    entries = {}
    for symbol, sources in sorted(by_symbol.items()):
        bars[symbol], entries[symbol] = combine(symbol, sources, options)
    return bars, entries


def _check_options(options: Options) -> None:
    """Refuse options that no file can be read with."""
    if options.format not in FORMATS:
        raise ConfigError("no such format", expected=", ".join(FORMATS), got=repr(options.format))
    if options.columns and options.format not in ("auto", "table"):
        got = f"--format {options.format}"
        raise ConfigError("a column map is for tables only", expected="--format table", got=got)
    if options.start is not None and options.start.tzinfo is not None:
        problem = "the start must not carry an offset"
        raise ConfigError(problem, expected="YYYY-MM-DD", got=options.start)
    scale = options.price_scale
    if scale is not None and not 0 < scale < float("inf"):
        raise ConfigError("the price scale must be a positive number", got=scale)


def given_symbol(path: Path, options: Options) -> str | None:
    """The symbol of a file by the options alone.

    Theirs, or where it is a pattern such as `BATS_*, *`, the matching part of the file name.
    """
    named = options.symbol or ""
    if "*" in named:
        return find_symbol(named, path.name)
    return usual_symbol(named) or None


def read_one(path: Path, options: Options) -> list[tuple[str, FileBars]]:
    """The bars of a file with their symbol: given, or by its own content or name.

    A symbol that was given counts before one of the file, whose content counts before its name. A
    file that says none, not even by a pair in its name, is called by its name, and its record says
    so. A file with a column of symbols has bars of each.
    """
    file = SourceFile(path=path)
    wanted = given_symbol(path, options)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("the file cannot be read", where=path, got=error.strerror) from error
    if options.symbol and not wanted:
        problem = "the file's name does not fit the pattern"
        raise file.error(problem, expected=f"--symbol {options.symbol!r}")
    found = []
    for source in read_source(file, data, changed(options, symbol=wanted)):
        symbol = wanted or source.symbol
        if symbol is None:
            symbol = _symbol_by_name(source.file)
            source = changed(source, record={**source.record, SYMBOL_FROM: "file name"})
        found.append((folder.check_symbol(symbol), source))
    return found


def _symbol_by_name(file: SourceFile) -> str:
    """The symbol of a file that holds none, by a name that could be one."""
    for symbol in map(symbol_by_name, file.names):
        if folder.is_symbol(symbol):
            return str(symbol)
    raise file.error(
        "the file does not say its symbol",
        expected="a currency pair in the file name, a name that can be a symbol, or a symbol "
        "column",
        fix="name it, as in --symbol AAPL; for many files a pattern of their names, as in "
        "--symbol 'BATS_*, *'",
    )


def describe_naming(entries: Mapping[str, Any]) -> dict[str, str]:
    """A note on each symbol, of manifest entries, that is a file's name and nothing else."""
    notes = {}
    for symbol, entry in entries.items():
        names = [each["name"] for each in entry["sources"] if SYMBOL_FROM in each]
        if names:
            notes[symbol] = f"named by its file, {names[0]}; --symbol gives it another name"
    return notes


def combine(
    symbol: str, sources: Sequence[FileBars], options: Options
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The files of a symbol as one table in order, and its manifest entry.

    Files must share a timeframe and a side, and without repair they may not overlap; with it, the
    row of the later file counts where stamps repeat. The entry has the sources, and what was
    changed on the way.
    """
    sources = sorted(sources, key=lambda source: source.bars["Datetime"].min() or datetime.max)
    filled = [source for source in sources if len(source.bars)]
    if not filled:
        names = ", ".join(source.file.path.name for source in sources[:8])
        problem = f"no bars of {symbol} in all its files"
        raise DataError(problem, where=names, expected="at least one bar")
    shared_timeframe = _shared_timeframe(filled)
    _require_one_side(filled)
    if not options.repair:
        _require_no_overlap(filled)
    together = pl.concat([source.bars.select(folder.BAR_COLUMNS) for source in filled])
    ordered = folder.keep_last(together.sort("Datetime", maintain_order=True))
    timeframe = shared_timeframe or infer_timeframe(ordered["Datetime"], majority=True)
    bars = ordered.with_columns(pl.col("Datetime") + options.shift)
    shift = format_span(options.shift)
    require_calendar(bars["Datetime"], lambda row: f"{symbol}, bar {row + 1}, moved by {shift}")
    changes: Counter[str] = sum((source.changes for source in sources), Counter())
    num_reordered = changes["rows_reordered"] + count_out_of_place(together["Datetime"])
    entry = {
        **folder.describe(bars),
        "timeframe": format_span(timeframe) if timeframe else None,
        "clock": {"shift": shift, "utc": options.utc},
        "flat_dropped": changes["flat_dropped"],
        "filled_from_close": changes["filled_from_close"],
        "repairs": {
            "rows_reordered": num_reordered,
            "repeated_stamps_dropped": len(together) - len(ordered),
            "unusable_rows_dropped": changes["unusable_rows_dropped"],
            "volumes_blanked": changes["volumes_blanked"],
        },
        "sources": [source.record for source in sources],
    }
    return bars, entry


def _shared_timeframe(sources: Sequence[FileBars]) -> timedelta | None:
    """The timeframe of all files that tell theirs, None if none does.

    Files of different timeframes are refused: in one table nothing would tell their bars apart.
    """
    shared: timedelta | None = None
    first = ""
    for source in sources:
        step = infer_timeframe(source.bars["Datetime"], majority=True)
        if step is None:
            continue
        if shared is None:
            shared = step
            first = source.file.label
        if step != shared:
            raise DataError(
                "files of one symbol have different timeframes",
                where=f"{first} and {source.file.label}",
                expected=f"{format_span(shared)} in both",
                got=format_span(step),
                fix="import each into a folder of its own",
            )
    return shared


def _require_one_side(sources: Sequence[FileBars]) -> None:
    """Refuse files of bid and of ask prices together: their bars would differ by the spread."""
    sides = {source.file.side: source.file.label for source in sources if source.file.side}
    if len(sides) > 1:
        problem = "files of one symbol mix bid and ask prices"
        where = " and ".join(sides.values())
        raise DataError(problem, where=where, fix="import one side only")


def _require_no_overlap(sources: Sequence[FileBars]) -> None:
    """Refuse files that are not in order, or begin before the one before has ended."""
    for source in sources:
        rows = source.bars[ROW]
        place = partial(_place, source.file, rows)
        require_ordered(source.bars["Datetime"], place, fix=SORT_FIX)
    for earlier, later in pairwise(sources):
        last = earlier.bars["Datetime"][-1]
        first = later.bars["Datetime"][0]
        if first <= last:
            raise later.file.error(
                "two files overlap in time",
                row=later.bars[ROW][0],
                expected=f"a stamp after {last}, the last of {earlier.file.label}",
                got=first,
                fix=REPAIR.format("keep the row of the later file where stamps repeat"),
            )


def _place(file: SourceFile, rows: pl.Series, row: int) -> str:
    """The place of a bar in its file, for errors."""
    return file.at(rows[row])


def list_files(paths: Sequence[Path]) -> list[Path]:
    """These files, and those below these folders that may hold bars, without repetitions.

    Files that are named are taken whatever their ending; those of a folder by `SUFFIXES`.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_file():
            files.append(path)
            continue
        inside = [
            file
            for file in sorted(path.rglob("[!.]*"))
            if file.suffix.lower() in SUFFIXES and file.is_file()
        ]
        if not inside:
            is_folder = path.is_dir()
            raise DataError(
                "nothing to import in this folder" if is_folder else "no such file or folder",
                where=path,
                expected="a file, or a folder with files: " + " ".join(SUFFIXES),
            )
        files += inside
    if not files:
        raise ConfigError("nothing to import", expected="files or folders")
    return list(dict.fromkeys(files))


def list_others(paths: Sequence[Path]) -> list[Path]:
    """Files below these folders that are not imported, because they are of other kinds."""
    inside = {file for path in paths for file in path.rglob("[!.]*") if file.is_file()}
    return sorted(inside.difference(list_files(paths)), key=lambda file: file.name)
