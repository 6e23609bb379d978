"""`vaiom forecast`, `models`, `card`, `predict`, `risk`, `export`: a model in use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import vaiom
from vaiom.cli.console import Answer, answers, note, print_answer, progress_bar
from vaiom.cli.options import Json, ModelPath, Symbol, argument, date, option
from vaiom.errors import ConfigError
from vaiom.files import atomic_file, write_bytes
from vaiom.report.tables import Column, Table, bits, prose, text
from vaiom.run import DEFAULT_MODEL, find_run, packaged_models

WORDS = ("asset", "bar", "chances", "caution")
"""Columns of a summary that are words and stamps; the others are numbers."""
RISKS = ("VaR99 long", "ES99 long", "VaR99 short", "ES99 short", "caution")
"""Columns of the second table, so that each fits a terminal of 80 characters."""

Now = Annotated[
    datetime | None, date("Time to forecast at, on the clock of the bars; by default now, in UTC.")
]
Markdown = Annotated[
    Path | None, option("Write the card to this Markdown file instead of printing it.")
]
FewDevice = Annotated[
    str | None, option("auto, cpu, cuda or cuda:N; by default, what answers first.", "--device")
]
Plot = Annotated[Path | None, option("Draw each distribution into this .png, .svg or .pdf file.")]

if TYPE_CHECKING:
    from vaiom.distribution.portfolio import Portfolio


@answers
def forecast(
    files: Annotated[list[Path], argument("FILE", "Price files that `vaiom data import` reads.")],
    model: Annotated[
        str, option("Name of a packaged model, run folder or model file.")
    ] = DEFAULT_MODEL,
    symbol: Symbol = None,
    horizon: Annotated[
        int, option("Bars that the return spans, one of the model's horizons.", min=1)
    ] = 1,
    now: Now = None,
    plot: Plot = None,
    device: FewDevice = None,
) -> Answer:
    """Forecast the next bar of price files with a model that comes with the package.

    Files are read as `vaiom data import` reads them, and finer bars are resampled to those of the
    model. What is doubtful about them, such as an old last bar, is said below the table.

    Example: vaiom forecast EURUSD_1h.csv --plot forecast.png
    """
    forecaster = vaiom.Forecaster.load(model, device)
    from vaiom.forecast.bars import resample_if_finer
    from vaiom.market.check import check_bars, describe_problems
    from vaiom.market.formats.source import Options
    from vaiom.market.imports import describe_naming, read_files

    with progress_bar("reading") as progress:
        options = Options(symbol=symbol, utc=True, repair=True)
        read, entries = read_files(files, options, progress=progress)
    frames = {}
    notes = []
    for name, bars in read.items():
        frame, unfinished_since = resample_if_finer(bars, name, forecaster.tokenizer.timeframe)
        frames[name] = frame
        findings = check_bars(name, frame).findings
        notes.append(describe_problems(name, findings, entries[name]["repairs"]))
        if unfinished_since:
            notes.append(
                f"{name}: unfinished: the last bar has prices until {unfinished_since} only"
            )
    named = describe_naming(entries)
    found = forecaster.predict(frames, horizon=horizon, now=now)
    dists = [
        replace(dist, notes=(named[name], *dist.notes)) if name in named else dist
        for name, dist in found.items()
    ]
    if plot:
        _draw(dists, plot)
    return describe_forecasts(forecaster, dists, [note for note in notes if note])


@answers
def models() -> Answer:
    """List the models that come with the package; their names stand for runs in every command."""
    models = []
    for name in packaged_models():
        about = vaiom.Forecaster.pretrained(name, None).describe()
        models.append({"name": name, **about})
    columns = [
        Column("name", text, itemgetter("name")),
        Column("purpose", text, itemgetter("purpose")),
        Column("bars", text, itemgetter("timeframe")),
        Column("assets", prose, lambda model: ", ".join(model["symbols"])),
        Column("Train before", text, lambda model: model["splits"]["train_end"][:10]),
        Column("Validation bits", bits, itemgetter("validation_bits")),
    ]
    table = Table.of("Models in the package", columns, models)
    return Answer(json={"models": models}, shown=[table])


@answers
def card(run: ModelPath, out: Markdown = None) -> Answer:
    """Show a model card: what the model is, what it was trained on, its scores and its limits."""
    from vaiom.report.page import render_card

    page = render_card(find_run(run))
    if out:
        write_bytes(out, page.encode())
    return Answer(json={"card": page}, shown=[] if out else [page.removesuffix("\n")])


def predict(
    run: ModelPath,
    bars: Annotated[Path, option("Bar folder, or Parquet file of one asset.")],
    symbol: Annotated[
        str | None, option("One asset of the folder, or the asset of the file.")
    ] = None,
    horizon: Annotated[int, option("Bars ahead; more than 1 needs `vaiom horizons`.", min=1)] = 1,
    now: Now = None,
    device: FewDevice = None,
    json: Json = False,
    csv: Annotated[bool, option("Print one CSV line per asset.", "--csv")] = False,
) -> None:
    """Forecast the next return of each asset, given that it is not zero.

    Unlike `vaiom forecast` it takes a run and a bar folder, with the bars as the model reads them.

    Example: vaiom predict runs/main --bars bars-1h --json
    """
    if json and csv:
        raise ConfigError("one form of output at a time", expected="--json or --csv", got="both")
    forecaster = vaiom.Forecaster.load(run, device)
    from vaiom.distribution.returns import as_csv
    from vaiom.forecast.bars import newest_bars, utc_now

    symbol = forecaster.symbol_of(symbol) if symbol else None
    frames = newest_bars(bars, symbol, forecaster.reads)
    windows = forecaster.windows(frames, symbol)
    dists = list(forecaster.forecast(windows, now or utc_now(), horizon=horizon).values())
    answer = describe_forecasts(forecaster, dists)
    if csv:
        answer = replace(answer, shown=[as_csv(dists).removesuffix("\n")], notes=[])
    print_answer(answer, json)


@answers
def risk(
    run: ModelPath,
    bars: Annotated[Path, option("Bar folder with the assets of the positions.")],
    positions: Annotated[
        Path, option("CSV or JSON: symbol and amount of money, or quantity and price.")
    ],
    horizon: Annotated[int, option("Bars ahead; more than 1 needs `vaiom horizons`.", min=1)] = 1,
    level: Annotated[
        float, option("Confidence level of value at risk and expected shortfall.")
    ] = 0.99,
    given: Annotated[
        list[str] | None, option("Scenario: a log return; repeatable.", metavar="SYMBOL=R")
    ] = None,
    draws: Annotated[
        int | None,
        option("Number of samples; by default, as many as half a percent of ES needs.", min=100),
    ] = None,
    seed: Annotated[int, option("Random seed of the samples.", min=0)] = 0,
    now: Now = None,
    plot: Plot = None,
    device: FewDevice = None,
) -> Answer:
    """Show the risk of a portfolio: value at risk, expected shortfall, and what each position
    contributes.

    Profits are sampled from the joint distribution of the positions' assets over the horizon. With
    --given, the distribution is that after certain returns of some assets, as a stress scenario.

    Example: vaiom risk runs/main --bars bars-1h --positions positions.csv --level 0.975
    """
    forecaster = vaiom.Forecaster.load(run, device)
    from vaiom.distribution.positions import read_positions
    from vaiom.forecast.bars import newest_bars

    amounts = read_positions(positions, forecaster.symbols)
    scenario = {
        forecaster.symbol_of(name): value for name, value in _parse_scenario(given or []).items()
    }
    frames = newest_bars(bars, next(iter(amounts)), [*amounts, *scenario, *forecaster.reads])
    joint = forecaster.joint(frames, horizon=horizon, now=now)
    # Positions in assets of the scenario have a certain profit, and are not in the portfolio.
    certain = {
        symbol: {"log_return": value, "profit": amounts.pop(symbol, 0.0) * math.expm1(value)}
        for symbol, value in scenario.items()
    }
    if scenario:
        joint = joint.given(scenario)
    portfolio = joint.portfolio(amounts, draws, seed, level)
    result = portfolio.to_dict(level)
    if plot:
        _draw([portfolio], plot)
    span = "the next bar" if horizon == 1 else f"the next {horizon} bars"
    errors = " and ".join(f"{error:,.2f}" for error in result["standard_errors"].values())
    caption = f"Loss over {span} after {joint.as_of}, {level:.2%}; sampling errors {errors}"
    parts = ("amount", "value_at_risk", "expected_shortfall")
    rows = []
    for symbol, position in result["contributions"].items():
        rows.append([symbol, *(position[part] for part in parts)])
    total = sum(portfolio.positions.values())
    rows.append(["all", total, result["value_at_risk"], result["expected_shortfall"]])
    money = "{:z,.2f}".format
    columns = [Column("position"), Column("amount", money), Column("VaR", money)]
    columns.append(Column("ES", money))
    notes = [
        f"{symbol}: profit {each['profit']:,.2f} at the given return, not in the table"
        for symbol, each in certain.items()
    ]
    return Answer(
        json={"as_of": joint.as_of, "horizon": horizon, "given": certain, **result},
        shown=[Table(caption, columns, rows)],
        notes=["\n" + "\n".join([*notes, *result["notes"]])],
    )


def _parse_scenario(pairs: Sequence[str]) -> dict[str, float]:
    """Log returns by symbol, from texts such as `XAUUSD=-0.02`."""
    scenario = {}
    for pair in pairs:
        symbol, _, value = pair.partition("=")
        try:
            scenario[symbol] = float(value)
        except ValueError as error:
            problem = "not a log return of an asset"
            expected = "--given XAUUSD=-0.02, a log return"
            raise ConfigError(problem, expected=expected, got=", ".join(pairs)) from error
    return scenario


def describe_forecasts(
    forecaster: vaiom.Forecaster,
    dists: Sequence[vaiom.ReturnDistribution],
    notes: Sequence[str] = (),
) -> Answer:
    """Forecasts as a table of quantiles, with the notes of all of them below.

    JSON has the whole distributions, and the description of the model.
    """
    from vaiom.distribution.returns import notes_of

    summaries = [dist.summary() for dist in dists]

    def table(caption: str, names: Sequence[str]) -> Table:
        columns = [Column(name, text if name in WORDS else str) for name in names]
        return Table(caption, columns, [[each[name] for name in names] for each in summaries])

    span = "bar" if dists[0].horizon == 1 else f"{dists[0].horizon} bars"
    caption = f"The next {span}, in basis points of log return, given that it is not zero"
    first = [name for name in summaries[0] if name not in RISKS]
    tables = [table(caption, first), table("Risk, in basis points", ["asset", *RISKS])]
    notes = [*notes, *notes_of(dists)]
    return Answer(
        json={"model": forecaster.describe(), "forecasts": [dist.to_dict() for dist in dists]},
        shown=tables,
        notes=["\n" + "\n".join(notes)] if notes else [],
    )


def _draw(dists: Sequence[vaiom.ReturnDistribution | Portfolio], file: Path) -> None:
    """Draw the distributions one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4 * len(dists)), layout="constrained")
    axes = figure.subplots(len(dists), squeeze=False)[:, 0]
    for dist, axis in zip(dists, axes, strict=True):
        dist.plot(axis)
    try:
        with atomic_file(file) as staged:
            figure.savefig(staged)
    except ValueError as error:
        problem = "not a picture's name"
        expected = ".png, .svg or .pdf"
        raise ConfigError(problem, where=file, expected=expected, got=str(error)) from error
    note(f"wrote {file}")


@answers
def export(
    run: Annotated[Path, argument("RUN", "Run folder, or checkpoint file.")],
    onnx: Annotated[Path, option("File to write.")],
    corpus: Annotated[Path | None, option("Corpus to check it on; by default, the run's.")] = None,
) -> Answer:
    """Export a model as ONNX, after a check that it answers as PyTorch does.

    The file runs wherever ONNX Runtime does.

    Example: vaiom export runs/main --onnx main.onnx
    """
    from vaiom.forecast.export import export_run

    exported = export_run(run, onnx, corpus)
    size = f"{exported.bytes / 2**20:.1f} MiB"
    windows = f"{exported.random_windows} made-up and {exported.real_windows} real windows"
    equal = f"probabilities within {exported.largest_difference:.1g} of PyTorch's on {windows}"
    return Answer(json=asdict(exported), notes=[f"{exported.file}: {size}; {equal}"])
