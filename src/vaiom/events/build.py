"""Bars -> corpus: a folder, whole or not at all, or in memory; and new bars appended to a folder.

Enters: bars by asset, and the configuration. Leaves: a corpus. An append touches no history and equals a full build;
what an asset's late bars change in other assets' rows, the cross fields at their stamps, is made anew.
Paper: Methods, "Corpus Construction and Split Protocol": everything fitted is fitted on Train events alone and never
again; recursive states go on.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom import __version__, files
from vaiom.errors import ConfigError, DataError
from vaiom.events.corpus import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_NAME,
    STATE_NAME,
    TOKENIZER_NAME,
    Corpus,
    count_events,
    damaged,
    keep_ledger,
    open_corpus,
    slices_of,
)
from vaiom.events.fields import COLUMN_TYPES, CROSS_FIELDS, cross_columns, timestamps_of
from vaiom.events.fit import Tokenizer, fit_on_train
from vaiom.events.rows import Columns, bars_of, rows_of, stored_columns
from vaiom.events.scales import AssetState
from vaiom.events.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.market.findings import find_higher_timeframe_bars
from vaiom.market.folder import counted, read_bars, read_file, symbols_in
from vaiom.market.stamps import infer_timeframe, require_ordered
from vaiom.market.symbols import default_class
from vaiom.market.timeframes import format_span, step_seconds, timeframe_of

_CLASS = re.compile(r"\w[\w -]{0,31}")


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """What a corpus is built with."""

    timeframe: str = ""
    """Where it is not named it is that of the bars."""
    splits: SplitConfig = field(default_factory=SplitConfig)
    classes: Mapping[str, str] = field(default_factory=dict)
    like: Tokenizer | None = None
    """Of a model whose bucket edges are taken, so that it can be scored and trained further; else Train fits them."""

    def __post_init__(self) -> None:
        if self.timeframe:
            timeframe_of(self.timeframe)
        for symbol, name in self.classes.items():
            if not _CLASS.fullmatch(name):
                raise ConfigError("not usable as an asset class", where=symbol, expected="a word", got=repr(name))


class _Part(NamedTuple):
    """The rows of one asset, the state after them and the file that they came from."""

    rows: Columns
    state: AssetState
    source: dict[str, Any]


def build_corpus(
    bars: Path,
    out: Path,
    config: CorpusConfig | None = None,
    *,
    overwrite: bool = False,
    covered: bool = False,
    progress: files.Progress | None = None,
) -> Corpus:
    """Build a corpus folder from a bar folder and open it; `covered` wants bars in Train and Validation already."""
    config = _with_timeframe(config or CorpusConfig(), bars)
    with files.staged_folder(out, overwrite=overwrite) as staged:
        parts = _read_parts(bars, config.timeframe, progress)
        if covered:
            _require_covered(parts, config.splits)
        corpus = _assemble({symbol: part.rows for symbol, part in parts.items()}, config)
        files.write_json(staged / TOKENIZER_NAME, corpus.tokenizer.to_json())
        states = {symbol: part.state for symbol, part in parts.items()}
        _write_generation(staged, corpus, states, [part.source for part in parts.values()])
        keep_ledger(out, staged)
    return open_corpus(out, verify=False)


def propose_splits(bars: Path) -> SplitConfig:
    """Boundaries that the bars of a folder can bear."""
    ends = [(frame["Datetime"][0], frame["Datetime"][-1]) for frame in read_bars(bars).values()]
    return SplitConfig.covered_by(min(first for first, _ in ends), max(last for _, last in ends))


def _require_covered(parts: Mapping[str, _Part], splits: SplitConfig) -> None:
    """Refuse boundaries that leave Train or Validation without a bar, and name some that do not."""
    stamps = np.concatenate([timestamps_of(part.rows) for part in parts.values()])
    codes, first, last = splits.codes(stamps), stamps.min().item(), stamps.max().item()
    for name in (TRAIN, VALIDATION):
        if not (codes == splits.code(name)).any():
            fix = SplitConfig.covered_by(first, last).to_options()
            raise DataError(f"no bar lies in {name.title()}", got=f"bars from {first} to {last}", fix=fix)


def corpus_in_memory(
    bars: Path | Mapping[str, pl.DataFrame],
    config: CorpusConfig | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """The corpus that `build_corpus` would write of a bar folder, or that of frames by symbol, which are not checked.

    Nothing is fitted where a tokenizer is given.
    """
    config = _with_timeframe(config or CorpusConfig(), bars)
    if isinstance(bars, Path):
        rows = {symbol: part.rows for symbol, part in _read_parts(bars, config.timeframe).items()}
    else:
        start = AssetState.empty(timeframe_of(config.timeframe))
        rows = {symbol: rows_of(bars_of(bars[symbol], symbol), start)[0] for symbol in sorted(bars)}
    return _assemble(rows, config, tokenizer)


def append_bars(path: Path, bars: Path, *, progress: files.Progress | None = None) -> Corpus:
    """Add the bars after a corpus's last rows; what it holds already must agree and stays as it is."""
    with files.hold_folder(path):
        old = open_corpus(path)
        tokenizer = old.tokenizer
        unknown = [symbol for symbol in symbols_in(bars) if symbol not in tokenizer.symbols]
        if unknown:
            raise DataError(
                "an asset that the corpus does not have cannot be appended",
                where=bars / f"{unknown[0]}.parquet",
                expected=", ".join(tokenizer.symbols),
                fix="build the corpus again: asset ids and the tokenizer are fitted on all assets",
            )
        states = _read_states(old, path / old.manifest["folder"] / STATE_NAME)
        parts = _read_parts(bars, tokenizer.timeframe, progress, old, states)
        sources = [part.source for part in parts.values() if part.source["rows_taken"]]
        if sources:
            assets = {}
            for symbol, rows in old.asset_slices.items():
                known = {name: old.columns[name][rows] for name in COLUMN_TYPES if name not in CROSS_FIELDS}
                fresh = stored_columns(parts[symbol].rows, tokenizer) if symbol in parts else None
                joined = {name: np.concatenate([known[name], fresh[name]]) for name in known} if fresh else known
                assets[symbol] = joined
            states |= {symbol: part.state for symbol, part in parts.items()}
            _write_generation(path, replace(old, **_join(assets)), states, [*old.manifest["inputs"], *sources])
            old = open_corpus(path, verify=False)
        # Rows that the manifest no longer names, or that a killed append wrote and never named.
        for stale in path.glob("rows-*"):
            if stale.name != old.manifest["folder"]:
                shutil.rmtree(stale, ignore_errors=True)
        return old


def _with_timeframe(config: CorpusConfig, bars: Path | Mapping[str, pl.DataFrame]) -> CorpusConfig:
    """With the usual spelling of the timeframe that is named, or else of that which the first asset's bars show."""
    if config.timeframe:
        return replace(config, timeframe=format_span(timeframe_of(config.timeframe)))
    first = min(symbols_in(bars) if isinstance(bars, Path) else bars)
    frame = read_file(bars / f"{first}.parquet") if isinstance(bars, Path) else bars[first]
    seen = infer_timeframe(frame["Datetime"])
    try:
        return replace(config, timeframe=format_span(seen) if seen else "1h")
    except ConfigError as error:
        told = {"where": first, "expected": error.expected, "got": error.got}
        raise DataError("no corpus has such bars", **told, fix="`vaiom data resample` makes coarser bars") from None


def _read_parts(
    bars: Path,
    timeframe: str,
    progress: files.Progress | None = None,
    old: Corpus | None = None,
    states: Mapping[str, AssetState] | None = None,
) -> dict[str, _Part]:
    """The rows of each asset of a bar folder: all of them, or those that follow an old corpus and its states."""
    parts = {}
    for symbol in counted(symbols_in(bars), progress):
        file = bars / f"{symbol}.parquet"
        frame = _read_ordered(file, timeframe)
        if old is not None:
            frame = _new_bars(old, symbol, frame, file)
        start = states[symbol] if states else AssetState.empty(timeframe_of(timeframe))
        rows, after = rows_of(bars_of(frame, file), start)
        source = {"symbol": symbol, "file": file.name, "sha256": files.sha256_file(file), "rows_taken": len(frame)}
        parts[symbol] = _Part(rows, after, source)
    return parts


def _assemble(rows: Mapping[str, Columns], config: CorpusConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    if tokenizer is None:
        classes = {symbol: config.classes.get(symbol, default_class(symbol)) for symbol in rows}
        tokenizer = fit_on_train(rows, config.splits.train_end, config.timeframe, classes, config.like)
    return Corpus(
        manifest={"like": config.like.sha256} if config.like else {},
        tokenizer=tokenizer,
        splits=config.splits,
        **_join({symbol: stored_columns(asset, tokenizer) for symbol, asset in rows.items()}),
    )


def _join(assets: Mapping[str, Columns]) -> dict[str, Any]:
    """A corpus's columns and slices of all assets, one after another, with the fields that need the other assets."""
    cross = cross_columns(assets)
    joined = [{**columns, **cross[symbol]} for symbol, columns in assets.items()]
    return {
        "columns": {name: np.concatenate([columns[name] for columns in joined]) for name in COLUMN_TYPES},
        "asset_slices": slices_of({symbol: len(columns["timestamp"]) for symbol, columns in assets.items()}),
    }


def _read_ordered(file: Path, timeframe: str) -> pl.DataFrame:
    frame = read_file(file)
    require_ordered(frame["Datetime"], file)
    seen, wanted = infer_timeframe(frame["Datetime"]), timeframe_of(timeframe)
    if seen is not None and seen != wanted:
        finer = seen < wanted
        problem = "the bars are of another timeframe"
        fix = ("`vaiom data resample`, or " if finer else "") + "name the right --timeframe"
        raise DataError(problem, where=file, expected=f"{timeframe} bars", got=f"bars mostly {seen} apart", fix=fix)
    hidden, _ = find_higher_timeframe_bars(frame, int(wanted.total_seconds()))
    if hidden.any():
        raise DataError(
            "rows hold the range of a longer period, most of it in their future: the range fields would see it",
            where=f"{file}, {frame['Datetime'][int(hidden.argmax())]}",
            expected=f"the High, Low and Volume of {timeframe} bars",
            got=f"{int(hidden.sum())} such rows, as `vaiom data check` reports them",
            fix="remove these rows, or empty their High, Low and Volume",
        )
    return frame


def _read_states(old: Corpus, file: Path) -> dict[str, AssetState]:
    """Where the recursions of each asset stand."""
    values = files.read_json(file)
    if not isinstance(values, dict) or list(values) != list(old.asset_slices):
        raise damaged(file)
    states = {symbol: AssetState.from_json(value) for symbol, value in values.items()}
    step = step_seconds(old.tokenizer.timeframe)
    if any(state.slots is None or state.slots.step != step for state in states.values()):
        raise damaged(file)
    return states


def _new_bars(old: Corpus, symbol: str, frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    """The bars after a corpus's last row; those that it has already must be the same bars."""
    history = old.asset_slices[symbol]
    last = old.timestamps[history.stop - 1].astype("datetime64[us]").item()
    fresh, overlap = frame.filter(pl.col("Datetime") > last), frame.filter(pl.col("Datetime") <= last)
    # Same stamps, same close-to-close returns.
    count = min(len(overlap), history.stop - history.start)
    known = slice(history.stop - count, history.stop)
    close = overlap["Close"].tail(count).to_numpy()
    close = np.where(close > 0, close, np.nan)
    same = overlap["Datetime"].tail(count).to_numpy().astype("datetime64[s]") == old.timestamps[known]
    log_ret, known_ret = np.log(close[1:] / close[:-1]), old.columns["log_ret"][known][1:]
    same[1:] &= (log_ret == known_ret) | (np.isnan(log_ret) & np.isnan(known_ret))
    if len(overlap) > count or not same.all():
        row = 0 if len(overlap) > count else int((~same).argmax())
        raise DataError(
            "the bars differ from the history that the corpus was built from",
            where=f"{file}, {overlap['Datetime'].tail(count)[row]}",
            fix="build the corpus again, or append a folder with the new bars alone",
        )
    train_end = old.splits.train_end
    if len(fresh) and fresh["Datetime"][0] < train_end:
        raise DataError(
            "bars before the end of Train cannot be appended: bucket edges would have to be fitted again",
            where=f"{file}, {fresh['Datetime'][0]}",
            expected=f"new bars at or after {train_end}",
            fix="build the corpus again from all bars",
        )
    return fresh


def _write_generation(
    path: Path, corpus: Corpus, states: Mapping[str, AssetState], inputs: list[dict[str, Any]]
) -> None:
    """Write the columns to a folder of their own, then the manifest that names it: until then the old one stands."""
    columns, tokenizer = corpus.columns, corpus.tokenizer
    digest = files.sha256_of(b"".join(columns[name].tobytes() for name in COLUMN_TYPES))
    folder = path / f"rows-{digest[:16]}"
    # Left by an append that was killed: nobody vouches for its bytes.
    shutil.rmtree(folder, ignore_errors=True)
    with files.staged_folder(folder) as staged:
        for name, dtype in COLUMN_TYPES.items():
            _save_array(staged / f"{name}.npy", np.ascontiguousarray(columns[name], dtype=dtype))
        files.write_json(staged / STATE_NAME, {symbol: state.to_json() for symbol, state in states.items()})
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
        **({"like": corpus.manifest["like"]} if corpus.like else {}),
        "inputs": inputs,
        "folder": folder.name,
        "arrays": {
            name: {"dtype": dtype, "sha256": files.sha256_file(folder / f"{name}.npy")}
            for name, dtype in COLUMN_TYPES.items()
        },
        "state_sha256": files.sha256_file(folder / STATE_NAME),
    }
    manifest["manifest_sha256"] = files.sha256_of(files.canonical_json(manifest))
    files.write_json(path / MANIFEST_NAME, manifest)


def _save_array(file: Path, array: npt.NDArray[Any]) -> None:
    """As `np.save`, whose own writer does not say that the disk is full, only that something is missing."""
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(array.data)
