"""Files of other tools become a bar folder with a manifest that says where every bar came from.

Enters: paths of files and folders. Leaves: `<SYMBOL>.parquet` and `manifest.json`, all of them or none.
Paper: "Market Data, Price Convention and Bar Construction" (timestamps as stored, nothing filled).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import ConfigError, DataError
from vaiom.files import sha256_of, staged_folder, staging_folder
from vaiom.market.folder import MANIFEST_NAME, check_symbol, open_manifest, write_manifest, write_symbol
from vaiom.market.sources.assemble import Source, assemble
from vaiom.market.sources.detect import FORMATS, read_any
from vaiom.market.sources.piece import Options, Origin

__all__ = ["FORMATS", "import_files"]

SUFFIXES = (".bi5", ".csv", ".parquet", ".txt", ".zip")


def import_files(
    paths: Sequence[Path],
    out: Path,
    *,
    format: str = "auto",
    symbol: str | None = None,
    start: datetime | None = None,
    shift: timedelta = timedelta(0),
    utc: bool = False,
    columns: Mapping[str, str] | None = None,
    price_scale: float | None = None,
    repair: bool = False,
    replace: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Read and check all files, then write their bars to `out`; returns the manifest of the symbols imported.

    `symbol`, `start` and `price_scale` say what a file does not; `columns` maps bar columns to those of a table.
    """
    options = Options(symbol=symbol, start=start, utc=utc, columns=columns, price_scale=price_scale, repair=repair)
    _require_sense(format, options)
    files = _files_of(paths)
    sources = []
    for done, path in enumerate(files):
        if progress:
            progress(done, len(files), path.name)
        sources.append(_read(path, format, options))
    if progress:
        progress(len(files), len(files), "read")

    bars: dict[str, pl.DataFrame] = {}
    entries: dict[str, Any] = {}
    for name, own in sorted(_by_symbol(sources, symbol).items()):
        bars[name], entries[name] = assemble(name, own, shift=shift, utc=utc, repair=repair)
    _write(out, bars, entries, replace=replace)
    return {"symbols": entries}


def _require_sense(format: str, options: Options) -> None:
    if format not in FORMATS:
        raise ConfigError("no such format", expected=", ".join(FORMATS), got=repr(format))
    if options.columns and format not in ("auto", "table"):
        raise ConfigError("a column map is for tables only", expected="--format table", got=f"--format {format}")
    if options.symbol is not None:
        check_symbol(options.symbol)
    if options.start is not None and options.start.tzinfo is not None:
        raise ConfigError("the start must not carry an offset", expected="YYYY-MM-DD", got=options.start)
    if options.price_scale is not None and not 0 < options.price_scale < float("inf"):
        raise ConfigError("the price scale must be a positive number", got=options.price_scale)


def _files_of(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those below the folders named that can hold bars; each once."""
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            below = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()]
            found = [file for file in below if not file.name.startswith(".")]
            if not found:
                raise DataError("nothing to import in this folder", where=path, expected="files: " + " ".join(SUFFIXES))
        elif path.is_file():
            found = [path]
        else:
            raise DataError("no such file or folder", where=path)
        files.update(dict.fromkeys(found))
    if not files:
        raise ConfigError("nothing to import", expected="files or folders")
    return list(files)


def _read(path: Path, format: str, options: Options) -> Source:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("the file cannot be read", where=path, got=error.strerror) from error
    return Source(piece=read_any(Origin(path=path), data, format, options), sha256=sha256_of(data), num_bytes=len(data))


def _by_symbol(sources: Sequence[Source], wanted: str | None) -> dict[str, list[Source]]:
    """Sources under the symbol that they say, or all under the one that the user says."""
    said = {source.piece.symbol for source in sources if source.piece.symbol}
    if wanted is not None and len(said) > 1:
        raise DataError(
            "the files are of several symbols",
            expected=f"files of {wanted}",
            got=", ".join(sorted(said)),
            fix="import each symbol by itself, or leave --symbol out",
        )
    grouped: dict[str, list[Source]] = {}
    for source in sources:
        symbol = wanted or source.piece.symbol
        if symbol is None:
            raise DataError(
                "the file does not say its symbol",
                where=source.piece.file.label,
                expected="a currency pair in the file name, or a symbol column",
                fix="pass --symbol",
            )
        grouped.setdefault(check_symbol(symbol), []).append(source)
    return grouped


def _write(out: Path, bars: Mapping[str, pl.DataFrame], entries: dict[str, Any], *, replace: bool) -> None:
    """All symbols and the manifest appear together; what the folder held before stays."""
    if out.exists() and not out.is_dir():
        raise DataError("the output is a file, not a folder", where=out, fix="choose another --out")
    for symbol in bars:
        if not replace and (out / f"{symbol}.parquet").exists():
            raise DataError(
                f"the folder already holds {symbol}",
                where=out / f"{symbol}.parquet",
                fix="pass --replace, or choose another --out",
            )
    manifest = open_manifest(out)
    manifest["symbols"] = dict(sorted({**manifest["symbols"], **entries}.items()))
    with _staged(out) as staged:
        for symbol, frame in bars.items():
            write_symbol(staged, symbol, frame)
        write_manifest(staged, manifest)


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder whose files move into `out` when the block ends well; `out` itself is new or stays as it is."""
    if not out.exists():
        with staged_folder(out) as staged:
            yield staged
        return
    with staging_folder(out) as staged:
        yield staged
        # The manifest goes last: until then the folder describes what it held before.
        for path in sorted(staged.iterdir(), key=lambda path: path.name == MANIFEST_NAME):
            path.replace(out / path.name)
