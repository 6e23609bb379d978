"""Bars -> corpus folder, one pass per asset.

Enters: a bar folder and the configuration. Leaves: a corpus folder, whole or not at all.
Paper: Methods, "Corpus Construction and Split Protocol"; everything fitted is fitted on Train events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vaiom import __version__
from vaiom.errors import ConfigError, DataError
from vaiom.events.buckets import fit_regime_edges, fit_signed_edges
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
from vaiom.events.inputs import BAD_GAP, BAD_RETURN, has_flag
from vaiom.events.rows import COLUMN_TYPES, Rows, rows_of
from vaiom.events.scales import ScaleState
from vaiom.events.schema import CLASSES, NUM_RETURN_BUCKETS, default_class
from vaiom.events.splits import SplitConfig
from vaiom.events.tokenizer import Tokenizer
from vaiom.files import canonical_json, sha256_file, sha256_of, staged_folder, write_json
from vaiom.market.bars import seen_timeframe, timeframe_of
from vaiom.market.folder import read_file, require_ordered, symbols_in

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
    """The rows of one asset, the state after them and where they came from."""

    rows: Rows
    state: ScaleState
    source: dict[str, Any]


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
    pieces = [part.rows.columns(tokenizer) for part in parts.values()]
    return Corpus(
        manifest={},
        tokenizer=tokenizer,
        splits=config.splits,
        columns={name: np.concatenate([piece[name] for piece in pieces]) for name in COLUMN_TYPES},
        asset_slices=slices_of({symbol: len(part.rows) for symbol, part in parts.items()}),
    )


def fit_tokenizer(rows: Mapping[str, Rows], config: CorpusConfig) -> Tokenizer:
    """Fit edges and zero shares on Train events: unmasked row, valid own target, target time inside Train."""
    symbols = sorted(rows)
    train_end = int(np.datetime64(config.splits.train_end, "s").astype(np.int64))
    returns, gaps, regimes, zero_share = [], [], [], []
    for symbol in symbols:
        asset = rows[symbol]
        event = asset.unmasked[:-1] & (asset.timestamp[1:] < train_end)
        flags = asset.flags[1:]
        good = event & (~has_flag(flags, BAD_RETURN))
        zero = event & (asset.log_ret[1:] == 0)
        returns.append(asset.ret_z[1:][good])
        gaps.append(asset.gap_z[1:][event & (~has_flag(flags, BAD_GAP))])
        regimes.append(asset.relative_log_vol[1:][event])
        zero_share.append(float(zero.sum() / max(1, (zero | good).sum())))
    pooled = {name: _finite(np.concatenate(values)) for name, values in (("r", returns), ("g", gaps), ("v", regimes))}
    edges = {
        "return": fit_signed_edges(pooled["r"]),
        "gap": fit_signed_edges(pooled["g"]),
        "vol_regime": fit_regime_edges(pooled["v"]),
    }
    if len(edges["return"]) != NUM_RETURN_BUCKETS + 1:
        raise DataError(
            "the Train returns are too coarse for the return buckets: some quantiles coincide",
            expected=f"{NUM_RETURN_BUCKETS} buckets",
            got=len(edges["return"]) - 1,
            fix="bring in prices with more digits, or more history before the end of Train",
        )
    return Tokenizer(
        symbols=tuple(symbols),
        classes=tuple(config.class_of(symbol) for symbol in symbols),
        timeframe=config.timeframe,
        edges=edges,
        zero_share=tuple(zero_share),
    )


def _read_parts(bars: Path, config: CorpusConfig, progress: Progress | None) -> dict[str, Part]:
    symbols = symbols_in(bars)
    parts = {}
    for done, symbol in enumerate(symbols):
        if progress:
            progress(done, len(symbols), symbol)
        file = bars / f"{symbol}.parquet"
        frame = ordered_bars(file, config)
        rows, state = rows_of(frame, where=file)
        parts[symbol] = Part(rows=rows, state=state, source=source_entry(symbol, file, len(rows)))
    if progress:
        progress(len(symbols), len(symbols), "")
    return parts


def ordered_bars(file: Path, config: CorpusConfig) -> pl.DataFrame:
    frame = read_file(file)
    require_ordered(frame["Datetime"], file)
    seen, wanted = seen_timeframe(frame["Datetime"]), timeframe_of(config.timeframe)
    if seen is not None and seen != wanted:
        finer = seen < wanted
        raise DataError(
            "the bars are of another timeframe",
            where=file,
            expected=f"{config.timeframe} bars",
            got=f"bars mostly {seen} apart",
            fix=("`vaiom data resample`, or " if finer else "") + "name the right --timeframe",
        )
    return frame


def write_generation(
    path: Path, corpus: Corpus, states: Mapping[str, ScaleState], inputs: list[dict[str, Any]]
) -> None:
    """Write the columns to a folder of their own, then the manifest that names it: until then the old one stands."""
    columns, tokenizer = corpus.columns, corpus.tokenizer
    digest = sha256_of(b"".join(columns[name].tobytes() for name in COLUMN_TYPES))
    folder = path / f"rows-{digest[:16]}"
    if not folder.exists():
        with staged_folder(folder) as staged:
            for name, dtype in COLUMN_TYPES.items():
                np.save(staged / f"{name}.npy", np.ascontiguousarray(columns[name], dtype=dtype), allow_pickle=False)
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


def source_entry(symbol: str, file: Path, rows: int) -> dict[str, Any]:
    return {"symbol": symbol, "file": file.name, "sha256": sha256_file(file), "rows_taken": rows}


def _finite(values: Any) -> Any:
    return values[np.isfinite(values)]
