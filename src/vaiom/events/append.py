"""New bars appended to a corpus without touching its history; the result equals a full build.

Enters: a corpus folder and a bar folder. Leaves: the grown corpus, or the old one as it was. What an asset's late bars
change in other assets' rows, the cross fields at their stamps, is made anew.
Paper: Methods, "Corpus Construction and Split Protocol": recursive states go on, nothing is refitted.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.events.build import (
    CorpusConfig,
    Part,
    Progress,
    joined_columns,
    ordered_bars,
    source_entry,
    write_generation,
)
from vaiom.events.calendar import step_seconds
from vaiom.events.corpus import STATE_NAME, Corpus, open_corpus, slices_of
from vaiom.events.extra import AssetState, asset_rows
from vaiom.events.manifest import damaged
from vaiom.events.rows import COLUMN_TYPES
from vaiom.events.schema import CROSS_FIELDS
from vaiom.files import read_json
from vaiom.market.folder import symbols_in


def append_bars(path: Path, bars: Path, *, progress: Progress | None = None) -> Corpus:
    """Add the bars after a corpus's last rows; what it holds already must agree and stays as it is."""
    old = open_corpus(path)
    config = CorpusConfig(
        timeframe=old.tokenizer.timeframe,
        splits=old.splits,
        classes=dict(zip(old.tokenizer.symbols, old.tokenizer.classes, strict=True)),
    )
    states = _states(old, path / old.manifest["folder"] / STATE_NAME)
    unknown = [symbol for symbol in symbols_in(bars) if symbol not in old.tokenizer.symbols]
    if unknown:
        raise DataError(
            "an asset that the corpus does not have cannot be appended",
            where=bars / f"{unknown[0]}.parquet",
            expected=", ".join(old.tokenizer.symbols),
            fix="build the corpus again: asset ids and the tokenizer are fitted on all assets",
        )
    parts: dict[str, Part] = {}
    new_symbols = symbols_in(bars)
    for done, symbol in enumerate(new_symbols):
        if progress:
            progress(done, len(new_symbols), symbol)
        parts[symbol] = _new_part(old, symbol, bars / f"{symbol}.parquet", states[symbol], config)
    if not any(len(part.rows) for part in parts.values()):
        _drop_stale(old, path)
        return old
    assets = {}
    for symbol, rows in old.asset_slices.items():
        assets[symbol] = {name: old.columns[name][rows] for name in COLUMN_TYPES if name not in CROSS_FIELDS}
        if symbol in parts:
            fresh = parts[symbol].columns(old.tokenizer)
            assets[symbol] = {name: np.concatenate([known, fresh[name]]) for name, known in assets[symbol].items()}
    sizes = {symbol: len(columns["timestamp"]) for symbol, columns in assets.items()}
    grown = replace(old, columns=joined_columns(assets), asset_slices=slices_of(sizes))
    write_generation(
        path,
        grown,
        states | {symbol: part.state for symbol, part in parts.items()},
        [*old.manifest["inputs"], *(part.source for part in parts.values() if len(part.rows))],
    )
    current = open_corpus(path, verify=False)
    _drop_stale(current, path)
    return current


def _states(old: Corpus, file: Path) -> dict[str, AssetState]:
    """Where the recursions of each asset stand."""
    values = read_json(file)
    if not isinstance(values, dict) or list(values) != list(old.asset_slices):
        raise damaged(file)
    states = {symbol: AssetState.from_json(value) for symbol, value in values.items()}
    step = step_seconds(old.tokenizer.timeframe)
    if any(state.extra.season.step != step for state in states.values()):
        raise damaged(file)
    return states


def _drop_stale(current: Corpus, path: Path) -> None:
    """Remove the rows that the manifest no longer names, or that a killed append wrote and never named."""
    for stale in path.glob("rows-*"):
        if stale.name != current.manifest["folder"]:
            shutil.rmtree(stale, ignore_errors=True)


def _new_part(old: Corpus, symbol: str, file: Path, state: AssetState, config: CorpusConfig) -> Part:
    frame = ordered_bars(file, config)
    history = old.asset_slices[symbol]
    last = old.timestamps[history.stop - 1].astype("datetime64[us]").item()
    fresh = frame.filter(pl.col("Datetime") > last)
    _require_same_history(old, history, frame.filter(pl.col("Datetime") <= last), file)
    if len(fresh) and fresh["Datetime"][0] < config.splits.train_end:
        raise DataError(
            "bars before the end of Train cannot be appended: bucket edges would have to be fitted again",
            where=f"{file}, {fresh['Datetime'][0]}",
            expected=f"new bars at or after {config.splits.train_end}",
            fix="build the corpus again from all bars",
        )
    rows, own, after = asset_rows(fresh, state, file)
    return Part(rows=rows, own=own, state=after, source=source_entry(symbol, file, len(rows)))


def _require_same_history(old: Corpus, history: slice, overlap: pl.DataFrame, file: Path) -> None:
    """Bars that the corpus has already must be the same bars: same stamps, same close-to-close returns."""
    if not len(overlap):
        return
    count = min(len(overlap), history.stop - history.start)
    stamps = overlap["Datetime"].tail(count).to_numpy().astype("datetime64[s]")
    known = slice(history.stop - count, history.stop)
    close = overlap["Close"].tail(count).to_numpy()
    close = np.where(close > 0, close, np.nan)
    same = stamps == old.timestamps[known]
    same[1:] &= _equal(np.log(close[1:] / close[:-1]), old.columns["log_ret"][known][1:])
    if len(overlap) > count or not same.all():
        row = 0 if len(overlap) > count else int((~same).argmax())
        raise DataError(
            "the bars differ from the history that the corpus was built from",
            where=f"{file}, {overlap['Datetime'].tail(count)[row]}",
            fix="build the corpus again, or append a folder with the new bars alone",
        )


def _equal(a: Any, b: Any) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))
