"""`vaiom data`: download, import, resample, simulate and check bars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaiom.cli.console import Answer, Overwrite, answers, parse_date, parse_span, progress_bar
from vaiom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vaiom.market.check import QualityReport
    from vaiom.report.tables import Table

app = typer.Typer(help="Prices in: download, import, resample, simulate, check.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="The bar folder to write: one <SYMBOL>.parquet per asset.")]
BarsDir = Annotated[Path, typer.Argument(metavar="DIR", help="A bar folder.")]


@app.command()
@answers
def download(
    symbols: Annotated[list[str], typer.Argument(metavar="SYMBOL", help="For example EURUSD XAUUSD.")],
    first: Annotated[str, typer.Option("--from", help="First day, YYYY-MM-DD.")],
    last: Annotated[str, typer.Option("--to", help="The day after the last, YYYY-MM-DD.")],
    out: Out,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Requests under way at once.")] = 4,
    base_url: Annotated[str, typer.Option(help="Another server with the same layout.")] = "",
) -> Answer:
    """Fetch 1-minute candles from Dukascopy; the same command goes on after an interruption."""
    from vaiom.market.download import DUKASCOPY_URL
    from vaiom.market.download import download as fetch

    with progress_bar("downloading") as progress:
        manifest = fetch(
            symbols,
            parse_date(first).date(),
            parse_date(last).date(),
            out,
            base_url=base_url or DUKASCOPY_URL,
            workers=workers,
            progress=progress,
        )
    unsettled = manifest["days_unsettled"]
    late = f"note: {unsettled} days are not settled at the source yet; run the command again later"
    return _answer(manifest, out, [late] if unsettled else [])


@app.command("import")
@answers
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files, or folders of files.")],
    out: Out,
    format_: Annotated[str, typer.Option("--format", help="auto, dukascopy, histdata, metatrader or table.")] = "auto",
    symbol: Annotated[str, typer.Option(help="The asset, where a file does not say it.")] = "",
    start: Annotated[str, typer.Option(help="Start of a .bi5 file's period, where its path does not say it.")] = "",
    shift: Annotated[str, typer.Option(help="Move the stored clock, for example 2h or -30min.")] = "",
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
            start=parse_date(start) if start else None,
            shift=parse_span(shift) if shift else timedelta(0),
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
    to: Annotated[str, typer.Option(help="10min, 1h, 4h or 1d.")],
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
    out: Annotated[Path | None, typer.Option(help="The bar folder to write.")] = None,
    assets: Annotated[int | None, typer.Option(min=1, help="Number of assets.")] = None,
    bars: Annotated[int | None, typer.Option(min=1, help="Bars per asset.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same market.")] = None,
    compare: Annotated[Path | None, typer.Option(metavar="DIR", help="Set it beside the bars of a folder.")] = None,
    overwrite: Overwrite = False,
) -> Answer:
    """Make a market whose true distribution of the next return is known; its oracle is the best any model can do."""
    from vaiom.report.data_tables import bar_folder, market_comparison
    from vaiom.simulate.market import MarketConfig, write_market
    from vaiom.simulate.market import simulate as make_market

    if out is None and compare is None:
        raise ConfigError("nothing to do", expected="--out DIR, --compare DIR or both")
    chosen: dict[str, Any] = {"assets": assets, "bars": bars, "seed": seed}
    try:
        config = MarketConfig(**{name: value for name, value in chosen.items() if value is not None})
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with progress_bar("simulating") as progress:
        market = make_market(config, progress)
    answer: dict[str, Any] = {}
    shown: list[Table] = []
    if out is not None:
        answer = write_market(market, config, out, overwrite=overwrite)
        shown += bar_folder(answer, out)
    if compare is not None:
        answer["comparison"] = _compare(market, config, compare)
        shown.append(market_comparison(answer["comparison"], compare))
    return Answer(json=answer, shown=shown)


@app.command()
@answers
def check(bars: BarsDir) -> Answer:
    """Report what is wrong, odd or missing in prices, and what the masks make of them."""
    from vaiom.events.build import CorpusConfig, corpus_in_memory
    from vaiom.events.quality import split_quality, to_json
    from vaiom.market.check import check_folder
    from vaiom.report import data_tables

    with progress_bar("checking") as progress:
        report = check_folder(bars, progress)
    answer = report.to_json()
    shown, notes = data_tables.price_quality(report), []
    try:
        splits = split_quality(corpus_in_memory(bars, CorpusConfig(timeframe=_timeframe_of(report))))
        shown.append(data_tables.split_quality(splits))
    except DataError as error:
        # Bars that cannot become a corpus are still worth a report; the reason belongs in it.
        splits, answer["corpus_problem"] = [], str(error)
        notes.append(f"note: these bars cannot become a corpus yet.\n{error}")
    return Answer(json={**answer, "splits": to_json(splits)}, shown=shown, notes=notes)


def _timeframe_of(report: QualityReport) -> str:
    """The timeframe of a corpus of these bars; minutes are to be resampled first, to the paper's main one."""
    from vaiom.market.stamps import TIMEFRAMES

    seen = {asset.timeframe_seconds for asset in report.assets}
    fitting = (name for name, step in TIMEFRAMES.items() if step.total_seconds() in seen and name != "1min")
    return next(fitting, "1h")


def _compare(market: Any, config: Any, real: Path) -> list[dict[str, Any]]:
    """Measure the simulated market and real bars by the definitions of the corpus."""
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from vaiom.evaluation.simulated import compare_markets
    from vaiom.events.build import corpus_in_memory
    from vaiom.simulate.market import write_market
    from vaiom.simulate.oracle import Oracle

    with TemporaryDirectory() as folder:
        simulated = Path(folder) / "bars"
        write_market(market, config, simulated)
        table = compare_markets(corpus_in_memory(simulated), Oracle.load(simulated), corpus_in_memory(real))
    return [asdict(row) for row in table]


def _column_map(pairs: list[str]) -> dict[str, str]:
    table = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise ConfigError("not a column map", expected="NAME=COLUMN, as in Close=last", got=repr(pair))
        table[ours] = theirs
    return table


def _answer(manifest: dict[str, Any], out: Path, warnings: Sequence[str] = ()) -> Answer:
    from vaiom.report.data_tables import bar_folder

    return Answer(json=manifest, shown=bar_folder(manifest, out), warnings=warnings)
