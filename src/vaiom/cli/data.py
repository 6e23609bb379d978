"""`vaiom data`: download, import, resample, simulate and check bars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vaiom.cli.console import Answer, Overwrite, answers, date, parse_span, progress_bar
from vaiom.codec import to_json
from vaiom.errors import ConfigError, DataError
from vaiom.report import data_tables

app = typer.Typer(help="Prices in: download, import, resample, simulate, check.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="The bar folder to write: one <SYMBOL>.parquet per asset.")]
BarsDir = Annotated[Path, typer.Argument(metavar="DIR", help="A bar folder.")]


@app.command()
@answers
def download(
    symbols: Annotated[list[str], typer.Argument(metavar="SYMBOL", help="For example EURUSD XAUUSD.")],
    first: Annotated[datetime, date("First day, YYYY-MM-DD.", "--from")],
    last: Annotated[datetime, date("The day after the last, YYYY-MM-DD.", "--to")],
    out: Out,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Requests under way at once.")] = 4,
    base_url: Annotated[str, typer.Option(help="Another server with the same layout.")] = "",
) -> Answer:
    """Fetch 1-minute candles from Dukascopy; the same command goes on after an interruption."""
    from vaiom.market import download

    url = base_url or download.DUKASCOPY_URL
    with progress_bar("downloading") as progress:
        days = first.date(), last.date()
        manifest = download.download(symbols, *days, out, base_url=url, workers=workers, progress=progress)
    unsettled = manifest["days_unsettled"]
    late = f"note: {unsettled} days are not settled at the source yet; run the command again later"
    return _answer(manifest, out, [late] if unsettled else [])


@app.command("import")
@answers
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files, or folders of files.")],
    out: Out,
    format_: Annotated[str, typer.Option("--format", help="Known by content; naming one makes sure of it.")] = "auto",
    symbol: Annotated[str, typer.Option(help="The asset, or * where names of files have it.")] = "",
    start: Annotated[datetime | None, date("Start of a .bi5 file's period, where its path does not say it.")] = None,
    shift: Annotated[str, typer.Option(help="Move the stored clock, for example 2h or -30min.")] = "0h",
    utc: Annotated[bool, typer.Option("--utc", help="Take stamps that carry an offset as UTC.")] = False,
    column: Annotated[list[str], typer.Option(help="Column map of a table, as Close=last; repeatable.")] = [],  # noqa: B006
    price_scale: Annotated[float | None, typer.Option(help="Integer price units per 1.0 in .bi5 files.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Sort; drop repeated and unusable rows.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace assets that the folder has already.")] = False,
) -> Answer:
    """Read files of other tools into a bar folder; the clock stays as stored unless --shift or --utc moves it."""
    from vaiom.market.imports import import_files

    with progress_bar("importing") as progress:
        manifest = import_files(
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
            replace=replace,
            progress=progress,
        )
    return _answer(manifest, out)


@app.command()
@answers
def resample(
    bars: BarsDir,
    to: Annotated[str, typer.Option(help="15min, 1h, 4h, 1d, 1w and the like.")],
    out: Out,
    overwrite: Overwrite = False,
) -> Answer:
    """Finer bars become coarser ones by fixed clock bins; empty bins stay empty."""
    from vaiom.market.resample import resample_folder

    with progress_bar("resampling") as progress:
        manifest = resample_folder(bars, to, out, overwrite=overwrite, progress=progress)
    return _answer(manifest, out)


@app.command()
@answers
def simulate(
    out: Out,
    assets: Annotated[int | None, typer.Option(min=1, help="Number of assets.")] = None,
    bars: Annotated[int | None, typer.Option(min=1, help="Bars per asset.")] = None,
    timeframe: Annotated[str | None, typer.Option(help="1h unless told, or a part of it, as in 1min.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same market.")] = None,
    correlation: Annotated[
        float | None, typer.Option(help="Of any two assets in the same hour; 0 unless told.")
    ] = None,
    overwrite: Overwrite = False,
) -> Answer:
    """Make a market whose true distribution of the next return is known; its oracle is the best any model can do."""
    from vaiom.simulate import market

    chosen: dict[str, Any] = {"assets": assets, "bars": bars, "timeframe": timeframe, "seed": seed}
    chosen |= {"correlation": correlation}
    try:
        config = market.MarketConfig(**{name: value for name, value in chosen.items() if value is not None})
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with progress_bar("simulating") as progress:
        manifest = market.write_market(config, out, overwrite=overwrite, progress=progress)
    return _answer(manifest, out)


@app.command()
@answers
def check(bars: BarsDir) -> Answer:
    """Report what is wrong, odd or missing in prices, and what the masks make of them."""
    from vaiom.events.build import corpus_in_memory
    from vaiom.events.corpus import few_train_events, split_quality
    from vaiom.market.check import check_folder
    from vaiom.market.findings import Finding, Severity

    with progress_bar("checking") as progress:
        report = check_folder(bars, progress)
    kind, summary = "few_train_events", "events before the end of Train: too few to learn the asset from"
    few, problem = partial(Finding, kind=kind, severity=Severity.WARNING, summary=summary), {}
    try:
        corpus = corpus_in_memory(bars)
        report = report.plus({name: [few(count=n)] for name, n in few_train_events(corpus).items()})
        splits = split_quality(corpus)
    except DataError as error:
        # Bars that cannot become a corpus are still worth a report; the reason belongs in it.
        splits, problem = [], {"corpus_problem": str(error)}
    notes = [f"note: these bars cannot become a corpus yet.\n{text}" for text in problem.values()]
    shown = [*data_tables.price_quality(report), *([data_tables.split_quality(splits)] if splits else [])]
    return Answer(json={**report.to_json(), **problem, "splits": to_json(splits)}, shown=shown, notes=notes)


def _column_map(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if not all(pair.partition("=")):
            raise ConfigError("not a column map", expected="NAME=COLUMN, as in Close=last", got=repr(pair))
    return dict(pair.split("=", 1) for pair in pairs)


def _answer(manifest: dict[str, Any], out: Path, warnings: Sequence[str] = ()) -> Answer:
    return Answer(json=manifest, shown=data_tables.bar_folder(manifest, out), warnings=warnings)
