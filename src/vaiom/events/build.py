"""Bars -> corpus folder, one pass per asset.

Enters: a bar folder and the configuration. Leaves: a corpus folder, whole or not at all.
Paper: Methods, "Corpus Construction and Split Protocol"; everything fitted is fitted on Train events alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom import __version__
from vaiom.errors import ConfigError, DataError
from vaiom.events.corpus import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_NAME,
    STATE_NAME,
    TOKENIZER_NAME,
    Corpus,
    count_events,
    keep_ledger,
    open_corpus,
    slices_of,
)
from vaiom.events.cross import cross_fields
from vaiom.events.extra import AssetState, asset_rows
from vaiom.events.fit import fit_on_train
from vaiom.events.inputs import Halves
from vaiom.events.rows import COLUMN_TYPES, Rows
from vaiom.events.schema import CLASSES, default_class
from vaiom.events.splits import SplitConfig
from vaiom.events.tokenizer import Tokenizer
from vaiom.files import canonical_json, sha256_file, sha256_of, staged_folder, write_json
from vaiom.market.check_prices import find_higher_timeframe_bars
from vaiom.market.folder import read_file, symbols_in
from vaiom.market.stamps import infer_timeframe, require_ordered, timeframe_of

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """What a corpus is built with."""

    timeframe: str = "1h"
    splits: SplitConfig = field(default_factory=SplitConfig)
    classes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        timeframe_of(self.timeframe)
        for symbol, name in self.classes.items():
            if name not in CLASSES:
                raise ConfigError("unknown asset class", where=symbol, expected=", ".join(CLASSES), got=name)

    def class_of(self, symbol: str) -> str:
        return self.classes.get(symbol, default_class(symbol))


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The rows of one asset, their own extra fields, the state after them and where they came from."""

    rows: Rows
    own: Mapping[str, Halves]
    state: AssetState
    source: dict[str, Any]

    def columns(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """All stored columns but those that need the other assets."""
        return {**self.rows.columns(tokenizer), **self.own}


def build_corpus(
    bars: Path,
    out: Path,
    config: CorpusConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Build a corpus folder from a bar folder and open it."""
    config = config or CorpusConfig()
    with staged_folder(out, overwrite=overwrite) as staged:
        parts = _read_parts(bars, config, progress)
        corpus = _assemble(parts, config)
        write_json(staged / TOKENIZER_NAME, corpus.tokenizer.to_json())
        states = {symbol: part.state for symbol, part in parts.items()}
        write_generation(staged, corpus, states, [part.source for part in parts.values()])
        keep_ledger(out, staged)
    return open_corpus(out, verify=False)


def corpus_in_memory(bars: Path, config: CorpusConfig | None = None, progress: Progress | None = None) -> Corpus:
    """The corpus that `build_corpus` would write, without a folder or a manifest."""
    config = config or CorpusConfig()
    return _assemble(_read_parts(bars, config, progress), config)


def _assemble(parts: Mapping[str, Part], config: CorpusConfig) -> Corpus:
    tokenizer = fit_tokenizer({symbol: part.rows for symbol, part in parts.items()}, config)
    return Corpus(
        manifest={},
        tokenizer=tokenizer,
        splits=config.splits,
        columns=joined_columns({symbol: part.columns(tokenizer) for symbol, part in parts.items()}),
        asset_slices=slices_of({symbol: len(part.rows) for symbol, part in parts.items()}),
    )


def joined_columns(assets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Stored columns of all assets, one after another; the fields that need the other assets are made here."""
    cross = cross_fields(assets)
    pieces = [{**columns, **cross[symbol]} for symbol, columns in assets.items()]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in COLUMN_TYPES}


def fit_tokenizer(rows: Mapping[str, Rows], config: CorpusConfig) -> Tokenizer:
    """What Train fits, under the configuration's boundaries and classes."""
    classes = {symbol: config.class_of(symbol) for symbol in rows}
    return fit_on_train(rows, config.splits.train_end, config.timeframe, classes)


def _read_parts(bars: Path, config: CorpusConfig, progress: Progress | None) -> dict[str, Part]:
    symbols = symbols_in(bars)
    parts = {}
    for done, symbol in enumerate(symbols):
        if progress:
            progress(done, len(symbols), symbol)
        file = bars / f"{symbol}.parquet"
        frame = ordered_bars(file, config)
        rows, own, state = asset_rows(frame, AssetState.empty(timeframe_of(config.timeframe)), file)
        parts[symbol] = Part(rows=rows, own=own, state=state, source=source_entry(symbol, file, len(rows)))
    if progress:
        progress(len(symbols), len(symbols), "")
    return parts


def ordered_bars(file: Path, config: CorpusConfig) -> pl.DataFrame:
    frame = read_file(file)
    require_ordered(frame["Datetime"], file)
    seen, wanted = infer_timeframe(frame["Datetime"]), timeframe_of(config.timeframe)
    if seen is not None and seen != wanted:
        finer = seen < wanted
        raise DataError(
            "the bars are of another timeframe",
            where=file,
            expected=f"{config.timeframe} bars",
            got=f"bars mostly {seen} apart",
            fix=("`vaiom data resample`, or " if finer else "") + "name the right --timeframe",
        )
    hidden, _ = find_higher_timeframe_bars(frame, int(wanted.total_seconds()))
    if hidden.any():
        raise DataError(
            "rows hold the range of a longer period, most of it in their future: the range fields would see it",
            where=f"{file}, {frame['Datetime'][int(hidden.argmax())]}",
            expected=f"the High, Low and Volume of {config.timeframe} bars",
            got=f"{int(hidden.sum())} such rows, as `vaiom data check` reports them",
            fix="remove these rows, or empty their High, Low and Volume",
        )
    return frame


def write_generation(
    path: Path, corpus: Corpus, states: Mapping[str, AssetState], inputs: list[dict[str, Any]]
) -> None:
    """Write the columns to a folder of their own, then the manifest that names it: until then the old one stands."""
    columns, tokenizer = corpus.columns, corpus.tokenizer
    digest = sha256_of(b"".join(columns[name].tobytes() for name in COLUMN_TYPES))
    folder = path / f"rows-{digest[:16]}"
    # Left by an append that was killed: nobody vouches for its bytes.
    shutil.rmtree(folder, ignore_errors=True)
    with staged_folder(folder) as staged:
        for name, dtype in COLUMN_TYPES.items():
            _save_array(staged / f"{name}.npy", np.ascontiguousarray(columns[name], dtype=dtype))
        write_json(staged / STATE_NAME, {symbol: state.to_json() for symbol, state in states.items()})
    assets = {
        symbol: {
            "class": name,
            "rows": rows.stop - rows.start,
            "first": str(corpus.timestamps[rows.start]),
            "last": str(corpus.timestamps[rows.stop - 1]),
        }
        for (symbol, rows), name in zip(corpus.asset_slices.items(), tokenizer.classes, strict=True)
    }
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vaiom_version": __version__,
        "timeframe": tokenizer.timeframe,
        "symbols": list(assets),
        "classes": {symbol: asset["class"] for symbol, asset in assets.items()},
        "assets": assets,
        "rows": len(corpus),
        "splits": corpus.splits.to_json(),
        "events": {name: sum(counts.values()) for name, counts in count_events(corpus).items()},
        "edges": tokenizer.to_json()["inner_edges"],
        "tokenizer_sha256": tokenizer.sha256,
        "inputs": inputs,
        "folder": folder.name,
        "arrays": {
            name: {"dtype": dtype, "sha256": sha256_file(folder / f"{name}.npy")}
            for name, dtype in COLUMN_TYPES.items()
        },
        "state_sha256": sha256_file(folder / STATE_NAME),
    }
    manifest["manifest_sha256"] = sha256_of(canonical_json(manifest))
    write_json(path / MANIFEST_NAME, manifest)


def _save_array(file: Path, array: npt.NDArray[Any]) -> None:
    """As `np.save`, whose own writer does not say that the disk is full, only that something is missing."""
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(array.data)


def source_entry(symbol: str, file: Path, rows: int) -> dict[str, Any]:
    return {"symbol": symbol, "file": file.name, "sha256": sha256_file(file), "rows_taken": rows}
