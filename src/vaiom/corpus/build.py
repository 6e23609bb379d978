"""Build a corpus from bars, as a folder or in memory.

Enters: bars by asset, and the configuration. Leaves: a corpus. Rows are made one asset at a time,
here or in other processes; then Train is fitted, and buckets are written. Paper: Methods, "Corpus
Construction and Split Protocol" (everything fitted is fitted on Train events alone).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from vaiom import files
from vaiom.codec import from_json, to_json
from vaiom.corpus.generation import write_generation
from vaiom.corpus.manifest import TOKENIZER_NAME, InputFile, keep_ledger
from vaiom.corpus.series import Series
from vaiom.corpus.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.tokenizer import Tokenizer, fit_on_train
from vaiom.corpus.writer import EXACT, CorpusWriter
from vaiom.errors import ConfigError, DataError
from vaiom.features.asset_state import AssetState
from vaiom.features.fields import BUCKETED, MIN_CLEAN_RETURNS, bucket_of
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import bars_of, blocks_of, stored
from vaiom.features.typing import AnyArray
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
from vaiom.market.timeframes import format_span, timeframe_of

ROWS_PER_TASK = 1_000_000
"""Assets are grouped into tasks of about this many rows: starting a process takes a second."""
ROWS_PER_CHECK = 1 << 18
"""Rows searched for bars of a longer period at once, so that memory stays bounded."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The settings of a corpus."""

    timeframe: str = ""
    """Inferred from the bars if empty."""
    splits: SplitConfig = field(default_factory=SplitConfig)
    classes: Mapping[str, str] = field(default_factory=dict)
    """Asset classes by symbol, where they are not the usual ones."""
    like: Tokenizer | None = None
    """The tokenizer whose bucket edges are reused, so that its model can be scored and trained on
    this corpus.
    """

    def __post_init__(self) -> None:
        for symbol, name in self.classes.items():
            if not re.fullmatch(r"\w[\w -]{0,31}", name):
                raise ConfigError(
                    "not usable as an asset class", where=symbol, expected="a word", got=repr(name)
                )

        if self.timeframe:
            # A timeframe has one spelling.
            object.__setattr__(self, "timeframe", format_span(timeframe_of(self.timeframe)))

    def with_timeframe_of(self, stamps: pl.Series, where: object) -> CorpusConfig:
        """The configuration with the timeframe of these bars; 1h for a single one."""
        inferred = infer_timeframe(stamps) or timeframe_of("1h")
        try:
            return replace(self, timeframe=format_span(inferred))
        except ConfigError as error:
            raise DataError(
                "no corpus has such bars",
                where=where,
                expected=error.expected,
                got=error.got,
                fix="`vaiom data resample` makes coarser bars",
            ) from None

    def series_of(self, symbol: str) -> Series:
        """The series of a symbol's bars."""
        asset_class = self.classes.get(symbol, default_class(symbol))
        return Series(symbol=symbol, asset_class=asset_class, timeframe=self.timeframe)


class Runner(Protocol):
    """Runs tasks in other processes, as `vaiom.experiments.tasks` does, and reports why some
    failed.
    """

    def run(
        self,
        tasks: Sequence[_SomeAssets],
        perform: Any,
        finished: int = 0,
        report: files.Progress | None = None,
    ) -> dict[str, str]:
        """Perform the tasks; returns the reason of each that failed, by its id."""


def build_corpus(
    bars: Path,
    out: Path,
    config: CorpusConfig | None = None,
    *,
    overwrite: bool = False,
    covered: bool = False,
    runner: Runner | None = None,
    rows_per_task: int = ROWS_PER_TASK,
    progress: files.Progress | None = None,
) -> Corpus:
    """Build a corpus folder from a bar folder and open it; `covered` requires bars in Train and
    Validation.

    Memory holds one asset's bars per process, then one quantity of all of Train.
    """
    paths = bar_files(bars.resolve())
    config = config or CorpusConfig()
    with files.staged_folder(out, overwrite=overwrite) as staged:
        sizes = {symbol: count_bars(path) for symbol, path in paths.items()}
        if not config.timeframe:
            longest = paths[max(sizes, key=lambda symbol: sizes[symbol])]
            config = config.with_timeframe_of(read_stamps(longest), longest)
        with files.staging_folder(staged) as folder:
            writer = CorpusWriter.create(sizes, folder.resolve())
            if runner is None:
                written = {
                    symbol: _write_file(writer, paths[symbol], config.timeframe)
                    for symbol in counted([*paths], progress)
                }
            else:
                tasks = _tasks(writer, paths, config.timeframe, rows_per_task)
                written = _perform_in_processes(runner, tasks, progress)
            if covered:
                _require_covered(paths.values(), config.splits)
            built = _with_buckets(writer, config)
            files.write_json(staged / TOKENIZER_NAME, built.tokenizer.to_json())
            states = {symbol: each.state for symbol, each in written.items()}
            sources = [each.source for each in written.values()]
            write_generation(staged, writer, built, states, sources)
        keep_ledger(out, staged)
    return open_corpus(out, verify=False)


def corpus_in_memory(
    bars: Path | Mapping[str, pl.DataFrame],
    config: CorpusConfig | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Build the corpus of a bar folder or of unchecked frames in memory; with a tokenizer nothing
    is fitted.
    """
    config = config or CorpusConfig()
    paths = bar_files(bars) if isinstance(bars, Path) else {}
    frames = {symbol: read_ordered(path) for symbol, path in paths.items()} if paths else bars
    assert not isinstance(frames, Path)
    if not config.timeframe:
        longest = max(frames, key=lambda symbol: len(frames[symbol]))
        config = config.with_timeframe_of(frames[longest]["Datetime"], longest)
    for symbol, path in paths.items():
        require_timeframe(frames[symbol], config.timeframe, path)
    writer = CorpusWriter.create({symbol: len(frames[symbol]) for symbol in sorted(frames)})
    for symbol in writer.slices:
        start = AssetState.empty(timeframe_of(config.timeframe))
        write_rows(writer, symbol, bars_of(frames[symbol], symbol), start)
    writer.write_cross()
    return _with_buckets(writer, config, tokenizer)


def bar_files(folder: Path) -> dict[str, Path]:
    """The files of a bar folder by symbol."""
    return {symbol: folder / f"{symbol}.parquet" for symbol in symbols_in(folder)}


def propose_splits(bars: Path) -> SplitConfig:
    """Split boundaries that fit the bars of a folder."""
    stamps = [read_stamps(path) for path in bar_files(bars).values()]
    first = min(each[0] for each in stamps)
    return SplitConfig.covered_by(first, max(each[-1] for each in stamps))


def _require_covered(paths: Iterable[Path], splits: SplitConfig) -> None:
    """Refuse boundaries that leave Train or Validation without a bar, and propose others."""
    stamps = [read_stamps(path).to_numpy() for path in paths]
    first = min(each[0] for each in stamps).astype("datetime64[us]").item()
    last = max(each[-1] for each in stamps).astype("datetime64[us]").item()
    for name in (TRAIN, VALIDATION):
        if not any((splits.codes(each) == splits.code(name)).any() for each in stamps):
            raise DataError(
                f"no bar lies in {name.title()}",
                got=f"bars from {first} to {last}",
                fix=SplitConfig.covered_by(first, last).to_options(),
            )


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What writing an asset's rows leaves besides them."""

    state: AssetState
    source: InputFile


@dataclass(frozen=True)
class _SomeAssets:
    """The task of one process: write the rows of these files, and their states and sources into
    another.
    """

    id: str
    label: str
    paths: tuple[Path, ...]
    writer: CorpusWriter
    timeframe: str
    file: Path
    runs: tuple[str, ...] = ()


def _tasks(
    writer: CorpusWriter, paths: Mapping[str, Path], timeframe: str, rows_per_task: int
) -> list[_SomeAssets]:
    """One task for each run of assets that begin within as many rows."""
    assert writer.folder
    tasks = []
    for number, group in groupby(
        writer.slices, key=lambda symbol: writer.slices[symbol].start // rows_per_task
    ):
        own = [paths[symbol] for symbol in group]
        file = writer.folder / f"task-{number}.json"
        task = _SomeAssets(str(number), own[-1].stem, tuple(own), writer, timeframe, file)
        tasks.append(task)
    return tasks


def _perform_in_processes(
    runner: Runner, tasks: list[_SomeAssets], progress: files.Progress | None
) -> dict[str, _Written]:
    """Write the rows in the runner's processes."""
    for reason in runner.run(tasks, _perform, report=progress).values():
        raise RuntimeError(reason) if reason.startswith("Traceback") else DataError(reason)
    written = {}
    for task in tasks:
        for symbol, each in files.read_json(task.file).items():
            written[symbol] = from_json(_Written, each)
    return written


def _perform(task: _SomeAssets, _device: str) -> None:
    """What a process does for a task."""
    written = {path.stem: _write_file(task.writer, path, task.timeframe) for path in task.paths}
    files.write_json(task.file, to_json(written))


def _write_file(writer: CorpusWriter, path: Path, timeframe: str) -> _Written:
    """Write the rows of a bar file."""
    frame = read_ordered(path)
    require_timeframe(frame, timeframe, path)
    bars = bars_of(frame, path)
    rows = writer.slices[path.stem]
    if len(frame) != rows.stop - rows.start:
        raise DataError("the file changed while it was read", where=path, fix="build again")
    state = write_rows(writer, path.stem, bars, AssetState.empty(timeframe_of(timeframe)))
    return _Written(state=state, source=source_of(path, len(frame)))


def source_of(file: Path, rows_taken: int) -> InputFile:
    """What the manifest tells of a file of bars."""
    sha256 = files.sha256_file(file)
    return InputFile(symbol=file.stem, file=file.name, sha256=sha256, rows_taken=rows_taken)


def write_rows(writer: CorpusWriter, symbol: str, bars: BarArrays, state: AssetState) -> AssetState:
    """Write an asset's last rows, without what Train fits; return the state after them."""
    start = writer.slices[symbol].stop - len(bars.seconds)
    for columns, after in blocks_of(bars, state):
        exact = {column: columns[value] for value, column in EXACT.items()}
        writer.write(start, stored(columns) | exact)
        start += len(columns["timestamp"])
        state = after
    return state


def write_buckets(writer: CorpusWriter, rows: slice, tokenizer: Tokenizer) -> None:
    """Write the bucket columns of some rows."""
    for name, (edges, value) in BUCKETED.items():
        exact = writer.read(EXACT[value], rows)
        writer.write(rows.start, {name: bucket_of(tokenizer.edges[edges], exact)})


def _with_buckets(
    writer: CorpusWriter, config: CorpusConfig, tokenizer: Tokenizer | None = None
) -> Corpus:
    """Fit a tokenizer, unless one is given, and write the buckets of all rows."""

    def own_values(symbol: str) -> dict[str, AnyArray]:
        sources = {name: name for name in ("timestamp", "flags", "log_ret")} | EXACT
        rows = writer.slices[symbol]
        return {name: writer.read(column, rows) for name, column in sources.items()}

    if tokenizer is None:
        series = {symbol: config.series_of(symbol) for symbol in writer.slices}
        tokenizer = fit_on_train(own_values, config.splits.train_end, series, config.like)
    for rows in writer.slices.values():
        write_buckets(writer, rows, tokenizer)
    return Corpus(
        manifest={"like": config.like.sha256 if config.like else None},
        tokenizer=tokenizer,
        splits=config.splits,
        columns={name: array for name, array in writer.arrays.items() if name in writer.stored},
        asset_slices=writer.slices,
    )


def require_timeframe(frame: pl.DataFrame, timeframe: str, file: Path) -> None:
    """Raise an error unless bars are of this timeframe and none holds the range of a longer one."""
    expected = timeframe_of(timeframe)
    inferred = infer_timeframe(frame["Datetime"]) or expected
    is_finer = inferred < expected
    # A few bars may span a weekend: too far apart proves nothing then, too close always does.
    is_coarser = inferred > expected and len(frame) > MIN_CLEAN_RETURNS
    if is_finer or is_coarser:
        resample = "`vaiom data resample`, or " if is_finer else ""
        raise DataError(
            "the bars are of another timeframe",
            where=file,
            expected=f"{timeframe} bars",
            got=f"bars mostly {inferred} apart",
            fix=f"{resample}name the right --timeframe",
        )
    for chunk in frame.iter_slices(ROWS_PER_CHECK):
        hidden, _ = find_higher_timeframe_bars(chunk, int(expected.total_seconds()))
        if hidden.any():
            raise DataError(
                "rows hold the range of a longer period, most of it in their future: the range "
                "fields would see it",
                where=f"{file}, {chunk['Datetime'][int(hidden.argmax())]}",
                expected=f"the High, Low and Volume of {timeframe} bars",
                got=f"{int(hidden.sum())} such rows, as `vaiom data check` reports them",
                fix="remove these rows, or empty their High, Low and Volume",
            )
