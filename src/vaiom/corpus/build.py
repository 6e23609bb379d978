"""Build a corpus from bars, as a folder or in memory, and append new bars to a folder.

Enters: bars by asset, and the configuration. Leaves: a corpus. An append equals a full build:
recursions go on, nothing is refitted, and only the cross fields of earlier rows change, where late
bars have joined their stamps.
Paper: Methods, "Corpus Construction and Split Protocol" (everything fitted is fitted on Train
events alone).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from vaiom import __version__, files
from vaiom.corpus import store as corpus
from vaiom.corpus.rows import EXACT, Rows, bars_of, blocks_of
from vaiom.corpus.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus, count_events, damaged, open_corpus
from vaiom.corpus.tokenizer import Tokenizer, bucket_of, fit_on_train
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import (
    BUCKETED,
    MIN_CLEAN_RETURNS,
    Columns,
    stored,
    timestamps_of,
)
from vaiom.features.recursions import AssetState, Bars
from vaiom.market.folder import (
    count_bars,
    counted,
    infer_timeframe,
    read_ordered,
    read_stamps,
    symbols_in,
)
from vaiom.market.hidden_bars import find_higher_timeframe_bars
from vaiom.market.symbols import default_class
from vaiom.market.timeframes import format_span, step_seconds, timeframe_of

ROWS_PER_TASK = 1_000_000
"""Assets are grouped into tasks of about this many rows: starting a process takes a second."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The settings of a corpus."""

    timeframe: str = ""
    """Inferred from the bars if empty."""
    splits: SplitConfig = field(default_factory=SplitConfig)
    classes: Mapping[str, str] = field(default_factory=dict)
    like: Tokenizer | None = None
    """The tokenizer whose bucket edges are reused, so that its model can be scored and trained on
    this corpus.
    """

    def __post_init__(self) -> None:
        if self.timeframe:
            timeframe_of(self.timeframe)
        for symbol, name in self.classes.items():
            if not re.fullmatch(r"\w[\w -]{0,31}", name):
                raise ConfigError(
                    "not usable as an asset class", where=symbol, expected="a word", got=repr(name)
                )


class Engine(Protocol):
    """Runs tasks in other processes, as `vaiom.experiments.tasks` does, and reports why some
    failed.
    """

    def run(
        self,
        tasks: Sequence[_SomeAssets],
        perform: Any,
        finished: int = 0,
        report: files.Progress | None = None,
    ) -> dict[str, str]: ...


def build_corpus(
    bars: Path,
    out: Path,
    config: CorpusConfig | None = None,
    *,
    overwrite: bool = False,
    covered: bool = False,
    engine: Engine | None = None,
    progress: files.Progress | None = None,
) -> Corpus:
    """Build a corpus folder from a bar folder and open it; `covered` requires bars in Train and
    Validation.

    Memory holds one asset's bars per process, then one quantity of all of Train.
    """
    config = _with_timeframe(config or CorpusConfig(), bars)
    with files.staged_folder(out, overwrite=overwrite) as staged:
        sizes = {symbol: count_bars(bars / f"{symbol}.parquet") for symbol in symbols_in(bars)}
        with files.staging_folder(staged) as folder:
            rows = Rows.create(sizes, folder.resolve())
            written = _write_folder(rows, bars.resolve(), config.timeframe, engine, progress)
            if covered:
                _require_covered(rows, config.splits)
            built = _with_buckets(rows, config)
            files.write_json(staged / corpus.TOKENIZER_NAME, built.tokenizer.to_json())
            states = {symbol: state for symbol, (state, _) in written.items()}
            _write_generation(
                staged, rows, built, states, [source for _, source in written.values()]
            )
        corpus.keep_ledger(out, staged)
    return open_corpus(out, verify=False)


def propose_splits(bars: Path) -> SplitConfig:
    """Split boundaries that fit the bars of a folder."""
    stamps = (read_stamps(bars / f"{symbol}.parquet") for symbol in symbols_in(bars))
    first, last = zip(*((each[0], each[-1]) for each in stamps), strict=True)
    return SplitConfig.covered_by(min(first), max(last))


def _require_covered(rows: Rows, splits: SplitConfig) -> None:
    """Refuse boundaries that leave Train or Validation without a bar, and propose others."""
    stamps = [timestamps_of(rows.read(["timestamp"], inside)) for inside in rows.slices.values()]
    first, last = min(each[0] for each in stamps).item(), max(each[-1] for each in stamps).item()
    for name in (TRAIN, VALIDATION):
        if not any((splits.codes(each) == splits.code(name)).any() for each in stamps):
            fix = SplitConfig.covered_by(first, last).to_options()
            raise DataError(
                f"no bar lies in {name.title()}", got=f"bars from {first} to {last}", fix=fix
            )


def corpus_in_memory(
    bars: Path | Mapping[str, pl.DataFrame],
    config: CorpusConfig | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Build the corpus of a bar folder or of unchecked frames in memory; with a tokenizer nothing
    is fitted.
    """
    config = _with_timeframe(config or CorpusConfig(), bars)
    if isinstance(bars, Path):
        bars = {
            symbol: _read_checked(bars / f"{symbol}.parquet", config.timeframe)
            for symbol in symbols_in(bars)
        }
    rows = Rows.create({symbol: len(bars[symbol]) for symbol in sorted(bars)})
    for symbol in rows.slices:
        _write_rows(
            rows,
            symbol,
            bars_of(bars[symbol], symbol),
            AssetState.empty(timeframe_of(config.timeframe)),
        )
    rows.write_cross()
    return _with_buckets(rows, config, tokenizer)


def append_bars(path: Path, bars: Path, *, progress: files.Progress | None = None) -> Corpus:
    """Append the bars after a corpus's last rows; bars that it already has must agree and stay as
    they are.
    """
    with files.hold_folder(path):
        old = open_corpus(path)
        tokenizer = old.tokenizer
        unknown = [symbol for symbol in symbols_in(bars) if symbol not in tokenizer.symbols]
        if unknown:
            problem, where = (
                "an asset that the corpus does not have cannot be appended",
                bars / f"{unknown[0]}.parquet",
            )
            fix = "build the corpus again: asset ids and the tokenizer are fitted on all assets"
            raise DataError(problem, where=where, expected=", ".join(tokenizer.symbols), fix=fix)
        file, step = (
            path / old.manifest["folder"] / corpus.STATE_NAME,
            step_seconds(tokenizer.timeframe),
        )
        stored_states = files.read_json(file)
        if not isinstance(stored_states, dict) or list(stored_states) != list(old.asset_slices):
            raise damaged(file)
        states = {symbol: AssetState.from_json(value) for symbol, value in stored_states.items()}
        if any(state.slots is None or state.slots.step != step for state in states.values()):
            raise damaged(file)
        fresh, sources = {}, []
        sizes = {symbol: inside.stop - inside.start for symbol, inside in old.asset_slices.items()}
        for symbol in counted(symbols_in(bars), progress):
            file = bars / f"{symbol}.parquet"
            frame = _new_bars(old, symbol, _read_checked(file, tokenizer.timeframe), file)
            if len(frame):
                fresh[symbol] = bars_of(frame, file)
                sizes[symbol] += len(frame)
                sources.append(_source(file, len(frame)))
        if fresh:
            with files.staging_folder(path) as folder:
                rows = Rows.create(sizes, folder.resolve(), old.columns)
                for symbol, inside in old.asset_slices.items():
                    known = {name: old.columns[name][inside] for name in rows.stored}
                    rows.write(rows.slices[symbol].start, known)
                for symbol, added in fresh.items():
                    states[symbol] = _write_rows(rows, symbol, added, states[symbol])
                    stop = rows.slices[symbol].stop
                    _write_buckets(rows, slice(stop - len(added.seconds), stop), tokenizer)
                _write_generation(path, rows, old, states, [*old.manifest["inputs"], *sources])
            old = open_corpus(path, verify=False)
        # Rows that the manifest no longer names, or that a killed append left.
        for stale in path.glob("rows-*"):
            if stale.name != old.manifest["folder"]:
                shutil.rmtree(stale, ignore_errors=True)
        return old


def _with_timeframe(config: CorpusConfig, bars: Path | Mapping[str, pl.DataFrame]) -> CorpusConfig:
    """The configuration with its timeframe in canonical spelling, taken from the longest history if
    it has none.
    """
    if config.timeframe:
        return replace(config, timeframe=format_span(timeframe_of(config.timeframe)))
    if isinstance(bars, Path):
        longest = max(symbols_in(bars), key=lambda symbol: count_bars(bars / f"{symbol}.parquet"))
        stamps = read_stamps(bars / f"{longest}.parquet")
    else:
        longest, frame = max(bars.items(), key=lambda each: len(each[1]))
        stamps = frame["Datetime"]
    inferred = infer_timeframe(stamps)
    try:
        return replace(config, timeframe=format_span(inferred) if inferred else "1h")
    except ConfigError as error:
        problem, fix = "no corpus has such bars", "`vaiom data resample` makes coarser bars"
        raise DataError(
            problem, where=longest, expected=error.expected, got=error.got, fix=fix
        ) from None


@dataclass(frozen=True)
class _SomeAssets:
    """The task of one process: write the rows of these assets, and their states and sources into a
    file.
    """

    id: str
    label: str
    symbols: tuple[str, ...]
    bars: Path
    rows: Rows
    timeframe: str
    file: Path
    runs: tuple[str, ...] = ()


def _write_folder(
    rows: Rows, bars: Path, timeframe: str, engine: Engine | None, progress: files.Progress | None
) -> dict[str, tuple[AssetState, dict[str, Any]]]:
    """Write the rows of a bar folder, here or in the engine's processes; return each asset's last
    state and source.
    """
    if engine is None:
        return {
            symbol: _write_file(rows, bars, symbol, timeframe)
            for symbol in counted([*rows.slices], progress)
        }
    assert rows.folder
    tasks = []
    for number, group in groupby(
        rows.slices, lambda symbol: rows.slices[symbol].start // ROWS_PER_TASK
    ):
        symbols, file = tuple(group), rows.folder / f"task-{number}.json"
        tasks.append(_SomeAssets(str(number), symbols[-1], symbols, bars, rows, timeframe, file))
    for reason in engine.run(tasks, _perform, report=progress).values():
        raise RuntimeError(reason) if reason.startswith("Traceback") else DataError(reason)
    written = {
        symbol: each for task in tasks for symbol, each in files.read_json(task.file).items()
    }
    return {
        symbol: (AssetState.from_json(state), source) for symbol, (state, source) in written.items()
    }


def _perform(task: _SomeAssets, _device: str) -> None:
    written = {
        symbol: _write_file(task.rows, task.bars, symbol, task.timeframe) for symbol in task.symbols
    }
    files.write_json(
        task.file,
        {symbol: [state.to_json(), source] for symbol, (state, source) in written.items()},
    )


def _write_file(
    rows: Rows, folder: Path, symbol: str, timeframe: str
) -> tuple[AssetState, dict[str, Any]]:
    file, inside = folder / f"{symbol}.parquet", rows.slices[symbol]
    bars = bars_of(_read_checked(file, timeframe), file)
    if len(bars.seconds) != inside.stop - inside.start:
        raise DataError("the file changed while it was read", where=file, fix="build again")
    state = _write_rows(rows, symbol, bars, AssetState.empty(timeframe_of(timeframe)))
    return state, _source(file, len(bars.seconds))


def _source(file: Path, rows_taken: int) -> dict[str, Any]:
    return {
        "symbol": file.stem,
        "file": file.name,
        "sha256": files.sha256_file(file),
        "rows_taken": rows_taken,
    }


def _write_rows(rows: Rows, symbol: str, bars: Bars, state: AssetState) -> AssetState:
    """Write an asset's rows, without what Train fits; return the state after them."""
    place = rows.slices[symbol].stop - len(bars.seconds)
    for columns, after in blocks_of(bars, state):
        rows.write(
            place, stored(columns) | {column: columns[value] for value, column in EXACT.items()}
        )
        place, state = place + len(columns["timestamp"]), after
    return state


def _write_buckets(rows: Rows, inside: slice, tokenizer: Tokenizer) -> None:
    for name, (of, value) in BUCKETED.items():
        exact = rows.read([EXACT[value]], inside)[EXACT[value]]
        rows.write(inside.start, {name: bucket_of(tokenizer.edges[of], exact)})


def _with_buckets(rows: Rows, config: CorpusConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """Fit a tokenizer, unless one is given, and write the buckets of all rows."""

    def own_values(symbol: str) -> Columns:
        columns = rows.read(("timestamp", "flags", "log_ret", *EXACT.values()), rows.slices[symbol])
        return columns | {value: columns[column] for value, column in EXACT.items()}

    if tokenizer is None:
        classes = {
            symbol: config.classes.get(symbol, default_class(symbol)) for symbol in rows.slices
        }
        tokenizer = fit_on_train(
            own_values, config.splits.train_end, config.timeframe, classes, config.like
        )
    for inside in rows.slices.values():
        _write_buckets(rows, inside, tokenizer)
    return Corpus(
        manifest={"like": config.like.sha256} if config.like else {},
        tokenizer=tokenizer,
        splits=config.splits,
        columns={name: rows.arrays[name] for name in rows.stored if name in rows.arrays},
        asset_slices=rows.slices,
    )


def _read_checked(file: Path, timeframe: str) -> pl.DataFrame:
    frame = read_ordered(file)
    inferred, expected = infer_timeframe(frame["Datetime"]), timeframe_of(timeframe)
    # A few bars may span a weekend: too far apart proves nothing then, too close always does.
    if inferred and (
        inferred < expected or (inferred > expected and len(frame) > MIN_CLEAN_RETURNS)
    ):
        problem, got = "the bars are of another timeframe", f"bars mostly {inferred} apart"
        fix = (
            "`vaiom data resample`, or " if inferred < expected else ""
        ) + "name the right --timeframe"
        raise DataError(problem, where=file, expected=f"{timeframe} bars", got=got, fix=fix)
    for stretch in frame.iter_slices(1 << 18):  # in stretches: memory stays bounded
        hidden, _ = find_higher_timeframe_bars(stretch, int(expected.total_seconds()))
        if hidden.any():
            raise DataError(
                "rows hold the range of a longer period, most of it in their future: the range "
                "fields would see it",
                where=f"{file}, {stretch['Datetime'][int(hidden.argmax())]}",
                expected=f"the High, Low and Volume of {timeframe} bars",
                got=f"{int(hidden.sum())} such rows, as `vaiom data check` reports them",
                fix="remove these rows, or empty their High, Low and Volume",
            )
    return frame


def _new_bars(old: Corpus, symbol: str, frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    """The bars after a corpus's last row; bars that it already has must be the same."""
    history = old.asset_slices[symbol]
    last = old.timestamps[history.stop - 1].astype("datetime64[us]").item()
    fresh, overlap = (
        frame.filter(pl.col("Datetime") > last),
        frame.filter(pl.col("Datetime") <= last),
    )
    # Same stamps, same close-to-close returns, from the first bar of both on.
    stamps, close = (
        overlap["Datetime"].to_numpy().astype("datetime64[s]"),
        overlap["Close"].to_numpy(),
    )
    start = (
        history.start + int((old.timestamps[history] < stamps[0]).sum())
        if len(stamps)
        else history.stop
    )
    known, close = old.timestamps[start : history.stop], np.where(close > 0, close, np.nan)
    count = min(len(stamps), len(known))
    same = np.append(stamps[:count] == known[:count], len(stamps) == len(known))
    log_ret, known_ret = (
        np.log(close[1:count] / close[: count - 1]),
        old.columns["log_ret"][start + 1 : start + count],
    )
    same[1:count] &= (log_ret == known_ret) | (np.isnan(log_ret) & np.isnan(known_ret))
    if not same.all():
        row = slice(first := int(same.argmin()), first + 1)
        where = f"{file}, {np.concatenate([stamps[row], known[row]]).min().item()}"
        problem = "the bars differ from the history that the corpus was built from"
        raise DataError(
            problem,
            where=where,
            fix="build the corpus again, or append a folder with the new bars alone",
        )
    if len(fresh) and fresh["Datetime"][0] < old.splits.train_end:
        problem = (
            "bars before the end of Train cannot be appended: bucket edges would have to be "
            "fitted again"
        )
        where, expected = (
            f"{file}, {fresh['Datetime'][0]}",
            f"new bars at or after {old.splits.train_end}",
        )
        raise DataError(
            problem, where=where, expected=expected, fix="build the corpus again from all bars"
        )
    return fresh


def _write_generation(
    path: Path,
    rows: Rows,
    built: Corpus,
    states: Mapping[str, AssetState],
    inputs: list[dict[str, Any]],
) -> None:
    """Write the finished rows into a new folder, then the manifest that names it; until then the
    old one is valid.
    """
    assert rows.folder
    rows.write_cross()
    files.write_json(
        rows.folder / corpus.STATE_NAME,
        {symbol: state.to_json() for symbol, state in states.items()},
    )
    digest = rows.sha256()
    for file in rows.folder.iterdir():
        if file.stem not in rows.stored and file.name != corpus.STATE_NAME:
            file.unlink()
    folder = path / f"rows-{digest[:16]}"
    # Left by a killed append: its bytes cannot be trusted.
    shutil.rmtree(folder, ignore_errors=True)
    rows.folder.rename(folder)
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in rows.stored}
    built, tokenizer = replace(built, columns=columns, asset_slices=rows.slices), built.tokenizer
    classes, assets = dict(zip(tokenizer.symbols, tokenizer.classes, strict=True)), {}
    for symbol, inside in rows.slices.items():
        ends = {"timestamp": columns["timestamp"][[inside.start, inside.stop - 1]]}
        first, last = timestamps_of(ends).astype(str).tolist()
        size = inside.stop - inside.start
        assets[symbol] = {"class": classes[symbol], "rows": size, "first": first, "last": last}
    manifest: dict[str, Any] = {
        "format": corpus.FORMAT,
        "format_version": corpus.FORMAT_VERSION,
        "vaiom_version": __version__,
        "timeframe": tokenizer.timeframe,
        "symbols": list(assets),
        "classes": classes,
        "assets": assets,
        "rows": len(built),
        "splits": built.splits.to_json(),
        "events": {name: sum(counts.values()) for name, counts in count_events(built).items()},
        "edges": tokenizer.to_json()["inner_edges"],
        "tokenizer_sha256": tokenizer.sha256,
        **({"like": built.manifest["like"]} if built.like else {}),
        "inputs": inputs,
        "folder": folder.name,
        "arrays": {
            name: {"dtype": rows.types[name], "sha256": files.sha256_file(folder / f"{name}.npy")}
            for name in rows.stored
        },
        "state_sha256": files.sha256_file(folder / corpus.STATE_NAME),
    }
    manifest["manifest_sha256"] = files.sha256_of(files.canonical_json(manifest))
    files.write_json(path / corpus.MANIFEST_NAME, manifest)
