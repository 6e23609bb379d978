"""`vaiom data`: download, import, resample, simulate and check bars; `vaiom corpus`: build, grow,
show and pack.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import vaiom
from vaiom.cli.console import Answer, answers, progress_bar
from vaiom.cli.options import CorpusPath, Overwrite, argument, date, option, parse_date, parse_span
from vaiom.codec import from_json, override, to_json
from vaiom.errors import ConfigError, DataError
from vaiom.files import parse_json
from vaiom.report import data_tables

Out = Annotated[Path, option("Bar folder to write: one <SYMBOL>.parquet per asset.")]
BarsDir = Annotated[Path, argument("DIR", "Bar folder.")]
Timeframe = Annotated[str, option("Length of a bar: 15min, 1h, 4h, 1d, 1w and the like.")]
PackedFile = Annotated[Path, argument("FILE", "The packed corpus, a zip file.")]


@answers
def download(
    symbols: Annotated[list[str], argument("SYMBOL", "Assets, for example EURUSD XAUUSD.")],
    first: Annotated[datetime, date("First day, YYYY-MM-DD.", "--from")],
    last: Annotated[datetime, date("Day after the last, YYYY-MM-DD.", "--to")],
    out: Out,
    workers: Annotated[int, option("Number of parallel requests.", min=1, max=16)] = 4,
    base_url: Annotated[str, option("Another server with the same file layout.")] = "",
) -> Answer:
    """Download 1-minute candles from Dukascopy; run it again to continue after an interruption."""
    from vaiom.market import download

    options: dict[str, Any] = {"base_url": base_url or download.DUKASCOPY_URL, "workers": workers}
    answer = _bars(
        "downloading", out, download.download, symbols, first.date(), last.date(), out, **options
    )
    unsettled = answer.json["days_unsettled"]
    warning = (
        f"note: {unsettled} days are not settled at the source yet; run the command again later"
    )
    return replace(answer, warnings=[warning] if unsettled else [])


@answers
def import_(
    paths: Annotated[list[Path], argument("PATH", "Files, or folders of files.")],
    out: Out,
    format_: Annotated[
        str, option("auto, dukascopy, histdata, metatrader or table.", "--format")
    ] = "auto",
    symbol: Annotated[str, option("Name of the asset, or * to take it from file names.")] = "",
    start: Annotated[
        datetime | None, date("Start of a .bi5 file's period, if its path does not say it.")
    ] = None,
    shift: Annotated[str, option("Move all timestamps, for example 2h or -30min.")] = "0h",
    utc: Annotated[bool, option("Convert timestamps with an offset to UTC.", "--utc")] = False,
    column: Annotated[list[str], option("Column name in a table, as Close=last; repeatable.")] = [],  # noqa: B006
    price_scale: Annotated[float | None, option("Price units per 1.0 in .bi5 files.")] = None,
    repair: Annotated[
        bool, option("Sort rows; drop repeated and unusable ones.", "--repair")
    ] = False,
    overwrite: Annotated[
        bool, option("Replace assets that the folder already has.", "--replace")
    ] = False,
) -> Answer:
    """Import files of other tools into a bar folder; timestamps stay as they are without --shift or
    --utc.
    """
    from vaiom.market.imports import import_files, list_files

    if wrong := [pair for pair in column if not all(pair.partition("="))]:
        raise ConfigError(
            "not a column map", expected="NAME=COLUMN, as in Close=last", got=repr(wrong[0])
        )
    options: dict[str, Any] = {
        "symbol": symbol or None,
        "start": start,
        "utc": utc,
        "repair": repair,
    }
    options |= {"columns": dict(pair.split("=", 1) for pair in column), "shift": parse_span(shift)}
    options |= {"price_scale": price_scale, "format": format_, "replace": overwrite}
    others = {file for path in paths for file in path.rglob("[!.]*") if file.is_file()}.difference(
        list_files(paths)
    )
    shown = ", ".join(sorted(file.name for file in others)[:8])
    note = (
        f"note: {len(others)} files of other kinds were passed over: {shown}; name those that "
        f"hold bars"
    )
    return replace(
        _bars("importing", out, import_files, paths, out, **options), notes=[note] if others else []
    )


@answers
def resample(bars: BarsDir, to: Timeframe, out: Out, overwrite: Overwrite = False) -> Answer:
    """Build coarser bars from finer ones, by fixed times of the clock; no bar is made where there
    are none.
    """
    from vaiom.market.resample import resample_folder

    return _bars("resampling", out, resample_folder, bars, to, out, overwrite=overwrite)


@answers
def simulate(
    out: Out,
    assets: Annotated[int, option("Number of assets.", min=1)] = 6,
    bars: Annotated[int, option("Bars per asset.", min=1)] = 64_000,
    timeframe: Annotated[str, option("Length of a bar: 1h, or a part of it such as 1min.")] = "1h",
    seed: Annotated[int, option("The same seed gives the same market.", min=0)] = 17,
    correlation: Annotated[float, option("Correlation between assets in the same hour.")] = 0.0,
    overwrite: Overwrite = False,
) -> Answer:
    """Simulate a market whose true distributions are known; its oracle has the best score a model
    can reach.
    """
    from vaiom.simulation import market

    chosen = {
        "assets": assets,
        "bars": bars,
        "timeframe": timeframe,
        "seed": seed,
        "correlation": correlation,
    }
    config = override(market.MarketConfig(), chosen)
    return _bars("simulating", out, market.write_market, config, out, overwrite=overwrite)


@answers
def check(bars: BarsDir) -> Answer:
    """Check prices for errors, oddities and gaps, and show how many rows would be masked."""
    from vaiom.corpus.build import corpus_in_memory
    from vaiom.corpus.store import few_train_events, split_quality
    from vaiom.market.check import check_folder
    from vaiom.market.findings import Finding, Severity

    with progress_bar("checking") as progress:
        report = check_folder(bars, progress)
    problem = {}
    try:
        corpus = corpus_in_memory(bars)
        summary = "events before the end of Train: too few to learn the asset from"
        few = partial(Finding, kind="few_train_events", severity=Severity.WARNING, summary=summary)
        report = report.plus(
            {symbol: [few(count=number)] for symbol, number in few_train_events(corpus).items()}
        )
        splits = split_quality(corpus)
    except DataError as error:
        # Bars that cannot become a corpus still get a report, with the reason in it.
        splits, problem = [], {"corpus_problem": str(error)}
    boundaries = f"the default boundaries (Train ends {vaiom.SplitConfig().train_end:%Y-%m-%d})"
    notes = [
        f"note: with {boundaries} these bars cannot become a corpus.\n{text}"
        for text in problem.values()
    ]
    shown = [
        *data_tables.price_quality(report),
        *([data_tables.split_quality(splits)] if splits else []),
    ]
    return Answer(
        json={**report.to_json(), **problem, "splits": to_json(splits)}, shown=shown, notes=notes
    )


def _bars(
    title: str, out: Path, make: Callable[..., dict[str, Any]], *args: Any, **options: Any
) -> Answer:
    """Make a bar folder with a progress bar, and show its manifest."""
    with progress_bar(title) as progress:
        manifest = make(*args, **options, progress=progress)
    return Answer(json=manifest, shown=data_tables.bar_folder(manifest, out))


@answers
def build(
    bars: Annotated[Path, argument("BARS_DIR", "Bar folder: one <SYMBOL>.parquet per asset.")],
    out: Annotated[Path, option("Corpus folder to write.")],
    timeframe: Annotated[
        str, option("Length of a bar, such as 1h, as a check; by default, that of the bars.")
    ] = "",
    train_end: Annotated[str, option("End of Train; alone, it moves all other dates too.")] = "",
    validation: Annotated[str, option("Validation as START:END; the end is excluded.")] = "",
    test: Annotated[
        str, option("Tests as START:END,START:END; they are named test-h1, test-h2, ...")
    ] = "",
    seal: Annotated[str, option("From this date on, events are scored only with --unseal.")] = "",
    like: Annotated[
        Path | None, option("Use the buckets of this model, and its dates if none are given.")
    ] = None,
    classes: Annotated[
        Path | None, option('TOML or JSON file of asset classes, as in EURUSD = "FX".')
    ] = None,
    engine: Annotated[
        str, option("local, or ray for the cluster that `ray start` began.")
    ] = "local",
    workers: Annotated[
        int, option("Number of local processes; each holds an asset in memory.", min=1)
    ] = 1,
    overwrite: Overwrite = False,
) -> Answer:
    """Build a corpus: features, masks, targets, buckets fitted on Train, splits by target time.

    Default dates: --train-end 2024-01-01 --validation 2024-07-01:2025-01-01 --test
    2025-01-01:2025-07-01,2025-07-01:2026-01-01 --seal 2026-01-01.
    """
    from vaiom.corpus.splits import VALIDATION
    from vaiom.corpus.store import few_train_events
    from vaiom.experiments.tasks import TaskRunner

    runner = TaskRunner(name=engine, workers=workers, device="cpu")
    options: dict[str, Any] = {"timeframe": timeframe.lower(), "like": like, "overwrite": overwrite}
    options |= {"classes": _class_table(classes)} if classes else {}
    options |= {"engine": runner} if runner != TaskRunner(device="cpu") else {}
    options |= (
        {"splits": _splits(train_end, validation, test, seal)}
        if train_end or validation or test or seal
        else {}
    )
    with progress_bar("building") as progress:
        corpus = vaiom.build_corpus(bars, out, covered=True, progress=progress, **options)
    empty = [
        name
        for name in (VALIDATION, *corpus.splits.test_names)
        if not corpus.manifest["events"][name]
    ]
    last = max(asset["last"] for asset in corpus.manifest["assets"].values())
    notes = (
        [f"note: no event with full context in {', '.join(empty)}; the bars end {last[:10]}"]
        if empty
        else []
    )
    notes += [
        f"note: {symbol} has {n:,} Train events" for symbol, n in few_train_events(corpus).items()
    ]
    return _corpus_answer(corpus, *notes)


@answers
def append(
    corpus: CorpusPath, bars: Annotated[Path, argument("BARS_DIR", "Bar folder with new bars.")]
) -> Answer:
    """Add new bars to a corpus; nothing is rebuilt, and the result equals a full build."""
    from vaiom.corpus.build import append_bars

    before = len(vaiom.open_corpus(corpus, verify=False))
    with progress_bar("appending") as progress:
        grown = append_bars(corpus, bars, progress=progress)
    return _corpus_answer(grown, f"{len(grown) - before:,} rows added")


@answers
def show(corpus: CorpusPath) -> Answer:
    """Show what a corpus holds: assets, splits, bucket edges, data quality, origin."""
    return _corpus_answer(vaiom.open_corpus(corpus), quality=True)


@answers
def pack(corpus: CorpusPath, file: PackedFile) -> Answer:
    """Pack a corpus into one file, to move it; an existing file is replaced."""
    from vaiom.corpus.pack import pack as pack_corpus

    size = pack_corpus(corpus, file)
    return Answer(
        json={"file": str(file), "bytes": size}, shown=[f"{file}: {size / 2**20:.1f} MiB"]
    )


@answers
def unpack(file: PackedFile, folder: CorpusPath, overwrite: Overwrite = False) -> Answer:
    """Unpack a corpus and verify every byte."""
    from vaiom.corpus.pack import unpack as unpack_corpus

    return _corpus_answer(unpack_corpus(file, folder, overwrite=overwrite))


def _splits(train_end: str, validation: str, test: str, seal: str) -> vaiom.SplitConfig:
    changes: dict[str, Any] = {"train_end": parse_date(train_end)} if train_end else {}
    changes |= {"validation": _interval(validation)} if validation else {}
    changes |= {"tests": tuple(_interval(part) for part in test.split(","))} if test else {}
    if seal or test:
        changes["seal"] = parse_date(seal) if seal else changes["tests"][-1][1]
    try:
        if list(changes) == ["train_end"]:
            return vaiom.SplitConfig().shifted_to(changes["train_end"])
        return replace(vaiom.SplitConfig(), **changes)
    except ValueError as error:
        given = {"train-end": train_end, "validation": validation, "test": test, "seal": seal}
        got = " ".join(f"--{name} {value}" for name, value in given.items() if value)
        fix = (
            "name --train-end, --validation, --test and --seal together, or --train-end alone "
            "to move them all"
        )
        raise ConfigError(str(error), got=got, fix=fix) from error


def _interval(text: str) -> tuple[datetime, datetime]:
    start, colon, end = text.partition(":")
    if not colon:
        raise ConfigError(
            "not an interval", expected="D:D, as in 2024-07-01:2025-01-01", got=repr(text)
        )
    return parse_date(start), parse_date(end)


def _class_table(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
        table = from_json(
            dict[str, str], parse_json(text) if file.suffix == ".json" else tomllib.loads(text)
        )
    except (OSError, ValueError, RecursionError) as error:
        expected = 'EURUSD = "FX", one line per symbol'
        raise ConfigError(
            "the class table cannot be read", where=file, expected=expected, got=str(error)
        ) from error
    return {symbol: name.upper() for symbol, name in table.items()}


def _corpus_answer(corpus: vaiom.Corpus, *warnings: str, quality: bool = False) -> Answer:
    from vaiom.corpus.store import split_quality

    splits = split_quality(corpus)
    return Answer(
        json={**corpus.manifest, "sha256": corpus.sha256, "quality": to_json(splits)},
        shown=[
            *data_tables.corpus_tables(corpus),
            *([data_tables.split_quality(splits)] if quality else []),
        ],
        warnings=warnings,
    )
