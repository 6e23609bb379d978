"""`vaiom data`: download, import, resample, simulate and check bars; `vaiom corpus`: build, grow,
show and pack.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
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
    """Download 1-minute candles from Dukascopy, one day of one asset at a time.

    Every day is fetched as the server has it, checked to be whole, and kept with a ledger in the
    folder `raw` of the output. Run the same command again to continue after an interruption:
    finished days are not requested again, and bars are written once all days of an asset are there.

    Example: vaiom data download EURUSD XAUUSD --from 2019-01-01 --to 2020-01-01 --out bars-1min
    """
    from vaiom.market.download import download

    options: dict[str, Any] = {"base_url": base_url} if base_url else {}
    answer = _make_bars(
        "downloading",
        out,
        download,
        symbols,
        first.date(),
        last.date(),
        out,
        workers=workers,
        **options,
    )
    num_days = answer.json["days_unsettled"]
    warning = f"note: {num_days} days are not settled at the source yet; run again later"
    return replace(answer, warnings=[warning] if num_days else [])


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

    Files may be CSV, JSON, Parquet or .bi5, also packed by zip, gzip or zstd; their kind is
    recognised by content. Rows that go back in time, repeat a stamp or have no usable price are
    refused with their place in the file, or repaired with --repair. All assets appear together or
    not at all, and the manifest records the source of each and what was changed.

    Example: vaiom data import EURUSD_2019.csv --shift 2h --out bars
    """
    from vaiom.market.imports import describe_naming, import_files, list_others

    answer = _make_bars(
        "importing",
        out,
        import_files,
        paths,
        out,
        format=format_,
        symbol=symbol or None,
        start=start,
        shift=parse_span(shift),
        utc=utc,
        columns=_column_map(column),
        price_scale=price_scale,
        repair=repair,
        replace=overwrite,
    )
    named = describe_naming(answer.json["symbols"]).items()
    notes = [f"note: {symbol} is {words}" for symbol, words in named]
    if others := list_others(paths):
        shown = ", ".join(file.name for file in others[:8])
        skipped = f"{len(others)} files of other kinds were passed over: {shown}"
        notes.append(f"note: {skipped}; name those that hold bars")
    return replace(answer, notes=notes)


def _column_map(pairs: list[str]) -> dict[str, str]:
    """Columns by role, from texts such as `Close=last`."""
    columns = {}
    for pair in pairs:
        role, _, name = pair.partition("=")
        if not (role and name):
            expected = "NAME=COLUMN, as in Close=last"
            raise ConfigError("not a column map", expected=expected, got=repr(pair))
        columns[role] = name
    return columns


@answers
def resample(bars: BarsDir, to: Timeframe, out: Out, overwrite: Overwrite = False) -> Answer:
    """Build coarser bars from finer ones, by fixed times of the clock; no bar is made where there
    are none.

    Bins begin at midnight, those of a week on Monday. The length of the given bars must divide the
    length asked for.

    Example: vaiom data resample bars-1min --to 1h --out bars-1h
    """
    from vaiom.market.resample import resample_folder

    return _make_bars("resampling", out, resample_folder, bars, to, out, overwrite=overwrite)


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

    The bars have weekends, holidays, sessions, hidden states, volatility that follows the past, and
    a few faults of a feed. The truth is stored beside them, so that any model can be measured
    against it.

    Example: vaiom data simulate --assets 6 --bars 64000 --out simulated
    """
    from vaiom.simulation import market

    config = override(
        market.MarketConfig(),
        {
            "assets": assets,
            "bars": bars,
            "timeframe": timeframe,
            "seed": seed,
            "correlation": correlation,
        },
    )
    return _make_bars("simulating", out, market.write_market, config, out, overwrite=overwrite)


@answers
def check(bars: BarsDir) -> Answer:
    """Check prices for errors, oddities and gaps, and show how many rows would be masked.

    Findings come with a few examples each. Errors are reasons not to train on the bars, warnings
    are reasons to look, and facts such as gaps are no fault. The clock of the timestamps is
    inferred from when the weeks open and close.

    Example: vaiom data check bars-1h
    """
    from vaiom.corpus.build import corpus_in_memory
    from vaiom.corpus.split_quality import few_train_events, split_quality
    from vaiom.market.check import check_folder
    from vaiom.market.findings import Finding, Severity

    with progress_bar("checking") as progress:
        report = check_folder(bars, progress)
    try:
        corpus = corpus_in_memory(bars)
    except DataError as error:
        # Bars that cannot become a corpus still get a report, with the reason in it.
        last_train = f"{vaiom.SplitConfig().train_end:%Y-%m-%d}"
        note = (
            f"note: with the default boundaries (Train ends {last_train}) these bars cannot become "
            f"a corpus.\n{error}"
        )
        return Answer(
            json={**report.to_json(), "corpus_problem": str(error), "splits": []},
            shown=data_tables.price_quality(report),
            notes=[note],
        )
    summary = "events before the end of Train: too few to learn the asset from"
    few = {}
    for symbol, number in few_train_events(corpus).items():
        few[symbol] = [
            Finding(
                kind="few_train_events", severity=Severity.WARNING, count=number, summary=summary
            )
        ]
    report = report.plus(few)
    splits = split_quality(corpus)
    shown = data_tables.price_quality(report)
    if splits:
        shown = [*shown, data_tables.split_quality(splits)]
    return Answer(json={**report.to_json(), "splits": to_json(splits)}, shown=shown)


def _make_bars(
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

    With --like, buckets are those of a trained model, so that it can be scored and trained further
    on these bars. Splits that would be empty are refused, with dates that suit the bars.

    Example: vaiom corpus build bars-1h --out corpus-1h
    """
    from vaiom.corpus.split_quality import few_train_events
    from vaiom.corpus.splits import VALIDATION
    from vaiom.experiments.tasks import TaskRunner

    options: dict[str, Any] = {}
    if classes:
        options["classes"] = _class_table(classes)
    if (engine, workers) != ("local", 1):
        options["runner"] = TaskRunner(name=engine, workers=workers, device="cpu")
    with progress_bar("building") as progress:
        corpus = vaiom.build_corpus(
            bars,
            out,
            timeframe=timeframe.lower(),
            splits=_splits(train_end, validation, test, seal),
            like=like,
            overwrite=overwrite,
            covered=True,
            progress=progress,
            **options,
        )
    notes = []
    num_events = corpus.manifest["events"]
    empty = [name for name in (VALIDATION, *corpus.splits.test_names) if not num_events[name]]
    if empty:
        last = max(asset["last"] for asset in corpus.manifest["series"].values())
        names = ", ".join(empty)
        notes.append(f"note: no event with full context in {names}; the bars end {last[:10]}")
    for symbol, number in few_train_events(corpus).items():
        notes.append(f"note: {symbol} has {number:,} Train events")
    return _corpus_answer(corpus, *notes)


@answers
def append(
    corpus: CorpusPath, bars: Annotated[Path, argument("BARS_DIR", "Bar folder with new bars.")]
) -> Answer:
    """Add new bars to a corpus; nothing is rebuilt, and the result equals a full build.

    The folder may hold all bars or only new ones. Buckets, splits and what was fitted on Train stay
    as they are.

    Example: vaiom corpus append corpus-1h bars-1h
    """
    from vaiom.corpus.append import append_bars

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
    """Pack a corpus into one file, to move it; an existing file is replaced.

    The file is a zip archive that any machine with Python can unpack.
    """
    from vaiom.corpus.pack import pack as pack_corpus

    size = pack_corpus(corpus, file)
    return Answer(
        json={"file": str(file), "bytes": size}, shown=[f"{file}: {size / 2**20:.1f} MiB"]
    )


@answers
def unpack(file: PackedFile, folder: CorpusPath, overwrite: Overwrite = False) -> Answer:
    """Unpack a corpus and verify every byte against its manifest."""
    from vaiom.corpus.pack import unpack as unpack_corpus

    return _corpus_answer(unpack_corpus(file, folder, overwrite=overwrite))


def _splits(train_end: str, validation: str, test: str, seal: str) -> vaiom.SplitConfig | None:
    """The boundaries that were given, and the usual others; None if none were."""
    changes: dict[str, Any] = {}
    if train_end:
        changes["train_end"] = parse_date(train_end)
    if validation:
        changes["validation"] = _interval(validation)
    if test:
        changes["tests"] = tuple(_interval(part) for part in test.split(","))
        changes["seal"] = changes["tests"][-1][1]
    if seal:
        changes["seal"] = parse_date(seal)
    if not changes:
        return None
    usual = vaiom.SplitConfig()
    try:
        if list(changes) == ["train_end"]:
            return usual.shifted_to(changes["train_end"])
        return replace(usual, **changes)
    except ValueError as error:
        given = {"train-end": train_end, "validation": validation, "test": test, "seal": seal}
        raise ConfigError(
            str(error),
            got=" ".join(f"--{name} {value}" for name, value in given.items() if value),
            fix="name --train-end, --validation, --test and --seal together, or --train-end alone "
            "to move them all",
        ) from error


def _interval(text: str) -> tuple[datetime, datetime]:
    """The start and the end of an interval, from a text such as `2024-07-01:2025-01-01`."""
    start, colon, end = text.partition(":")
    if not colon:
        expected = "D:D, as in 2024-07-01:2025-01-01"
        raise ConfigError("not an interval", expected=expected, got=repr(text))
    return parse_date(start), parse_date(end)


def _class_table(file: Path) -> dict[str, str]:
    """Asset classes by symbol, in capitals."""
    try:
        text = file.read_text(encoding="utf-8")
        table = parse_json(text) if file.suffix == ".json" else tomllib.loads(text)
        classes = from_json(dict[str, str], table)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            "the class table cannot be read",
            where=file,
            expected='EURUSD = "FX", one line per symbol',
            got=str(error),
        ) from error
    return {symbol: name.upper() for symbol, name in classes.items()}


def _corpus_answer(corpus: vaiom.Corpus, *warnings: str, quality: bool = False) -> Answer:
    """Assets, splits and buckets of a corpus, with its data quality in JSON and if asked for."""
    from vaiom.corpus.split_quality import split_quality

    splits = split_quality(corpus)
    tables = data_tables.corpus_tables(corpus)
    if quality:
        tables = [*tables, data_tables.split_quality(splits)]
    return Answer(
        json={**corpus.manifest, "sha256": corpus.sha256, "quality": to_json(splits)},
        shown=tables,
        warnings=warnings,
    )
