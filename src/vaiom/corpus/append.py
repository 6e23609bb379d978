"""Append new bars to a corpus folder.

Enters: a corpus and a bar folder. Leaves: the corpus that a full build would give: recursions go
on, nothing is refitted, and only the cross fields of earlier rows change, where late bars have
joined their stamps.
"""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl

from vaiom import files
from vaiom.corpus.build import require_timeframe, source_of, write_buckets, write_rows
from vaiom.corpus.generation import write_generation
from vaiom.corpus.manifest import STATE_NAME, InputFile, damaged
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.writer import CorpusWriter
from vaiom.errors import DataError
from vaiom.features.asset_state import AssetState
from vaiom.features.rows import bars_of
from vaiom.market.folder import counted, read_ordered, symbols_in
from vaiom.market.timeframes import step_seconds


def append_bars(path: Path, bars: Path, *, progress: files.Progress | None = None) -> Corpus:
    """Append the bars after a corpus's last rows; bars that it already has must agree and stay as
    they are.
    """
    with files.hold_folder(path):
        old = open_corpus(path)
        _require_known(old, bars)
        states = _read_states(path, old)
        fresh = {}
        for symbol in counted(symbols_in(bars), progress):
            file = bars / f"{symbol}.parquet"
            frame = read_ordered(file)
            require_timeframe(frame, old.tokenizer.timeframe, file)
            new = _new_bars(old, symbol, frame, file)
            if len(new):
                fresh[file] = new
        if fresh:
            _write_longer(path, old, states, fresh)
        corpus = open_corpus(path, verify=False) if fresh else old
        # Rows that the manifest no longer names, or that a killed append left.
        for stale in path.glob("rows-*"):
            if stale.name != corpus.manifest["folder"]:
                shutil.rmtree(stale, ignore_errors=True)
        return corpus


def _require_known(old: Corpus, bars: Path) -> None:
    for symbol in symbols_in(bars):
        if symbol not in old.series:
            raise DataError(
                "an asset that the corpus does not have cannot be appended",
                where=bars / f"{symbol}.parquet",
                expected=", ".join(old.series),
                fix="build the corpus again: asset ids and the tokenizer are fitted on all assets",
            )


def _write_longer(
    path: Path, old: Corpus, states: dict[str, AssetState], fresh: dict[Path, pl.DataFrame]
) -> None:
    """Write the old rows and those of new bars, by their file, as the corpus's next generation."""
    sizes = {symbol: rows.stop - rows.start for symbol, rows in old.asset_slices.items()}
    for file, frame in fresh.items():
        sizes[file.stem] += len(frame)
    with files.staging_folder(path) as folder:
        writer = CorpusWriter.create(sizes, folder.resolve(), old.columns)
        for symbol, rows in old.asset_slices.items():
            known = {name: old.columns[name][rows] for name in writer.stored}
            writer.write(writer.slices[symbol].start, known)
        for file, frame in fresh.items():
            symbol = file.stem
            added = bars_of(frame, file)
            states[symbol] = write_rows(writer, symbol, added, states[symbol])
            stop = writer.slices[symbol].stop
            write_buckets(writer, slice(stop - len(frame), stop), old.tokenizer)
        sources = [InputFile(**entry) for entry in old.manifest["inputs"]]
        sources += [source_of(file, len(frame)) for file, frame in fresh.items()]
        write_generation(path, writer, old, states, sources)


def _read_states(path: Path, old: Corpus) -> dict[str, AssetState]:
    """The state of each asset after its last row."""
    file = path / old.manifest["folder"] / STATE_NAME
    stored = files.read_json(file)
    if not isinstance(stored, dict) or list(stored) != list(old.asset_slices):
        raise damaged(file)
    states = {symbol: AssetState.from_json(value) for symbol, value in stored.items()}
    step = step_seconds(old.tokenizer.timeframe)
    for state in states.values():
        if state.slots is None or state.slots.step != step:
            raise damaged(file)
    return states


def _new_bars(old: Corpus, symbol: str, frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    """The bars after a corpus's last row; bars that it already has must be the same."""
    last_row = old.asset_slices[symbol].stop - 1
    last = old.timestamps[last_row].astype("datetime64[us]").item()
    differing = _first_difference(old, symbol, frame.filter(pl.col("Datetime") <= last))
    if differing is not None:
        raise DataError(
            "the bars differ from the history that the corpus was built from",
            where=f"{file}, {differing}",
            fix="build the corpus again, or append a folder with the new bars alone",
        )
    new = frame.filter(pl.col("Datetime") > last)
    if len(new) and new["Datetime"][0] < old.splits.train_end:
        raise DataError(
            "bars before the end of Train cannot be appended: bucket edges would have to be "
            "fitted again",
            where=f"{file}, {new['Datetime'][0]}",
            expected=f"new bars at or after {old.splits.train_end}",
            fix="build the corpus again from all bars",
        )
    return new


def _first_difference(old: Corpus, symbol: str, frame: pl.DataFrame) -> datetime | None:
    """The first stamp at which bars are not those of the corpus, from the first bar of both on:
    only one of them has it, or the returns from the close before differ.
    """
    if not len(frame):
        return None
    stamps = frame["Datetime"].to_numpy().astype("datetime64[s]")
    rows = old.asset_slices[symbol]
    start = rows.start + int(old.timestamps[rows].searchsorted(stamps[0]))
    of_one = np.setxor1d(stamps, old.timestamps[start : rows.stop])
    if len(of_one):
        return cast(datetime, of_one[0].item())
    close = frame["Close"].to_numpy()
    close = np.where(close > 0, close, np.nan)
    returns = np.log(close[1:] / close[:-1])
    stored = old.columns["log_ret"][start + 1 : rows.stop]
    both_undefined = np.isnan(returns) & np.isnan(stored)
    differing = stamps[1:][(returns != stored) & ~both_undefined]
    return cast(datetime, differing[0].item()) if len(differing) else None
