"""`vaiom forecast`, `models`, `card`, `predict`, `risk`, `export`, `serve`, `follow`, `state`: a model in use."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import vaiom
from vaiom.cli import console
from vaiom.cli.console import Answer, Device, Json, ModelPath, Symbol, answers, date, note, parse_span, progress_bar
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.files import write_bytes
from vaiom.report.tables import Column, Table, bits, count, prose, text
from vaiom.run import DEFAULT_MODEL, find_run, packaged_models

SOURCES = "dukascopy, its layout at an http address, ccxt:EXCHANGE, a file or a folder."
Now = Annotated[datetime | None, date("A moment of the bars' clock instead of the present, in UTC.")]
Markdown = Annotated[Path | None, typer.Option(help="The Markdown file to write; else it is printed.")]
FewDevice = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N, by PyTorch; else what answers soonest.")
]
Plot = Annotated[Path | None, typer.Option(help="A picture of each distribution: .png, .svg or .pdf.")]
UtcOffset = Annotated[str, typer.Option(help="How far the clock of the bars is ahead of UTC, as in 2h.")]

if TYPE_CHECKING:
    from vaiom.events.joint import Portfolio
    from vaiom.market.findings import Finding


@answers
def forecast(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Any file that `vaiom data import` reads.")],
    model: Annotated[str, typer.Option(help="A packaged model's name, a run folder or a model file.")] = DEFAULT_MODEL,
    symbol: Symbol = None,
    now: Now = None,
    plot: Plot = None,
    device: FewDevice = None,
) -> Answer:
    """Forecast the bar after the last one of price files, with a model that is part of the package."""
    forecaster = vaiom.Forecaster.load(model, device)
    from vaiom.forecast.bars import coarsened
    from vaiom.market.check import check_bars
    from vaiom.market.formats.table import Options
    from vaiom.market.imports import read_files

    with progress_bar("reading") as progress:
        read, entries = read_files(files, Options(symbol=symbol, utc=True, repair=True), progress=progress)
    frames = {name: coarsened(bars, name, forecaster.tokenizer.timeframe) for name, bars in read.items()}
    dists = forecaster.predict(frames, now=now).values()
    notes = [
        describe_quality(name, check_bars(name, bars).findings, entries[name]["repairs"])
        for name, bars in frames.items()
    ]
    if plot:
        _draw(list(dists), plot)
    return describe_forecasts(forecaster, list(dists), [words for words in notes if words])


@answers
def models() -> Answer:
    """List the models that are part of the package."""
    known = [{"name": name, **vaiom.Forecaster.pretrained(name, None).describe()} for name in packaged_models()]
    columns = [
        Column("name", text, itemgetter("name")),
        Column("purpose", text, itemgetter("purpose")),
        Column("bars", text, itemgetter("timeframe")),
        Column("assets", prose, lambda each: ", ".join(each["symbols"])),
        Column("Train before", text, lambda each: each["splits"]["train_end"][:10]),
        Column("Validation bits", bits, itemgetter("validation_bits")),
    ]
    return Answer(json={"models": known}, shown=[Table.of("Models in the package", columns, known)])


@answers
def card(run: ModelPath, out: Markdown = None) -> Answer:
    """Describe a model: what it is, what it was made from, how it scored, its limits."""
    from vaiom.report.page import render_card

    page = render_card(find_run(run))
    if out:
        write_bytes(out, page.encode())
    return Answer(json={"card": page}, shown=[] if out else [page.removesuffix("\n")])


def predict(
    run: ModelPath,
    bars: Annotated[Path, typer.Option(help="A bar folder, or one asset's Parquet file.")],
    symbol: Annotated[str | None, typer.Option(help="One asset of the folder; or what the file's asset is.")] = None,
    horizon: Annotated[int, typer.Option(help="Over so many next bars, of those the run was taught.")] = 1,
    now: Now = None,
    device: FewDevice = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="A line per asset, for other programs.")] = False,
) -> None:
    """Forecast the next return of each asset, given that it is not zero."""
    if json and csv:
        raise ConfigError("one form of output at a time", expected="--json or --csv", got="both")
    forecaster = vaiom.Forecaster.load(run, device)
    from vaiom.forecast.bars import newest_bars, utc_now
    from vaiom.forecast.distribution import as_csv

    frames = newest_bars(bars, symbol, forecaster.reads)
    dists = forecaster.forecast(forecaster.windows(frames, symbol), now or utc_now(), horizon=horizon)
    answer = describe_forecasts(forecaster, dists)
    console.print_answer(replace(answer, shown=[as_csv(dists).removesuffix("\n")], notes=[]) if csv else answer, json)


@answers
def risk(
    run: ModelPath,
    bars: Annotated[Path, typer.Option(help="A bar folder with the assets of the positions.")],
    positions: Annotated[Path, typer.Option(help="Amounts of money: symbol,amount lines, short where negative.")],
    horizon: Annotated[int, typer.Option(min=1, help="Bars ahead; `vaiom horizons` teaches more than one.")] = 1,
    level: Annotated[float, typer.Option(help="Of value at risk and expected shortfall.")] = 0.99,
    given: Annotated[list[str] | None, typer.Option(metavar="SYMBOL=R", help="What if: a log return.")] = None,
    draws: Annotated[int, typer.Option(min=100, help="More of them make the sampling error smaller.")] = 50_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    now: Now = None,
    plot: Plot = None,
    device: FewDevice = None,
) -> Answer:
    """The distribution of a portfolio's profit and loss: risk, and which position contributes how much."""
    forecaster = vaiom.Forecaster.load(run, device)
    from vaiom.forecast.bars import newest_bars
    from vaiom.forecast.portfolio import read_positions

    amounts = read_positions(positions)
    try:
        known = {symbol: float(value) for symbol, value in (text.split("=") for text in given or ())}
    except ValueError as error:
        expected, got = "--given XAUUSD=-0.02, a log return", ", ".join(given or ())
        raise ConfigError("not a log return of an asset", expected=expected, got=got) from error
    frames = newest_bars(bars, next(iter(amounts)), [*amounts, *known, *forecaster.reads])
    joint = forecaster.joint(frames, horizon=horizon, now=now)
    sure = {symbol: amounts.pop(symbol, 0.0) * math.expm1(value) for symbol, value in known.items()}
    portfolio = (joint.given(known) if known else joint).portfolio(amounts, draws, seed)
    found = portfolio.to_dict(level)
    columns = [Column("position"), *(Column(name, "{:,.2f}".format) for name in ("amount", "VaR", "ES"))]
    parts = ("amount", "value_at_risk", "expected_shortfall")
    rows = [[symbol, *(each[part] for part in parts)] for symbol, each in found["contributions"].items()]
    rows.append(["all", sum(portfolio.positions.values()), *(found[part] for part in parts[1:])])
    if plot:
        _draw([portfolio], plot)
    errors = " and ".join(f"{each:,.2f}" for each in found["standard_errors"].values())
    caption = f"Loss over {horizon} bars after {joint.as_of}, {level:.2%}; sampling errors {errors}"
    certain = [f"{symbol} makes {profit:,.2f} for sure" for symbol, profit in sure.items()]
    what_if = {symbol: {"log_return": value, "profit": sure[symbol]} for symbol, value in known.items()}
    return Answer(
        json={"as_of": joint.as_of, "horizon": horizon, "given": what_if, **found},
        shown=[Table(caption, columns, rows)],
        notes=["\n" + "\n".join([*certain, *joint.notes])],
    )


def describe_forecasts(
    forecaster: vaiom.Forecaster, dists: Sequence[vaiom.ReturnDistribution], notes: Sequence[str] = ()
) -> Answer:
    """Forecasts as a table, with what to know about them."""
    from vaiom.forecast.distribution import notes_of

    rows = [dist.summary() for dist in dists]
    columns = [Column(name, text if index < 4 else str) for index, name in enumerate(rows[0])]
    span = "bar" if dists[0].horizon == 1 else f"{dists[0].horizon} bars"
    caption = f"The next {span}, in basis points of log return, given that it is not zero"
    notes = [*notes, *notes_of(dists)]
    return Answer(
        json={"model": forecaster.describe(), "forecasts": [dist.to_dict() for dist in dists]},
        shown=[Table(caption, columns, [list(row.values()) for row in rows])],
        notes=["\n" + "\n".join(notes)] if notes else [],
    )


def describe_quality(symbol: str, findings: Sequence[Finding], repairs: Mapping[str, int]) -> str:
    """What is wrong with an asset's prices, in one line; nothing where nothing is."""
    found = [f"{each.kind} {each.count:,}" for each in findings if each.severity != "info"]
    found += [f"{name.replace('_', ' ')} {number:,}" for name, number in repairs.items() if number]
    return f"{symbol}: quality: {', '.join(found)} (`vaiom data check` says more)" if found else ""


def _draw(dists: Sequence[vaiom.ReturnDistribution | Portfolio], file: Path) -> None:
    """The distributions below each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4 * len(dists)), layout="constrained")
    for dist, axis in zip(dists, figure.subplots(len(dists), squeeze=False)[:, 0], strict=True):
        dist.plot(axis)
    try:
        figure.savefig(file)
    except ValueError as error:
        raise ConfigError("not a picture's name", where=file, expected=".png, .svg or .pdf", got=str(error)) from error


@answers
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint.")],
    onnx: Annotated[Path, typer.Option(help="The file to write.")],
    corpus: Annotated[Path | None, typer.Option(help="Real windows for the check; else the run's corpus.")] = None,
) -> Answer:
    """Write the selected model as ONNX, once it gives PyTorch's answers."""
    from vaiom.forecast.torch_engine import export_run

    made = export_run(run, onnx, corpus)
    windows = f"{made.random_windows} made-up and {made.real_windows} real windows"
    equal = f"probabilities within {made.largest_difference:.1g} of PyTorch's on {windows}"
    return Answer(json=asdict(made), notes=[f"{made.file}: {made.bytes / 2**20:.1f} MiB; {equal}"])


def serve(
    run: ModelPath,
    bars: Annotated[Path | None, typer.Option(help="A bar folder whose assets are live from the start.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine unless told.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    allow_host: Annotated[list[str] | None, typer.Option(help="A name that requests may be sent to.")] = None,
    state: Annotated[Path | None, typer.Option(help="What survives a restart; beside the model unless named.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="API keys, one a line; without it all are let in.")] = None,
    rate_limit: Annotated[str | None, typer.Option(help="For each key or address, as in 600/min.")] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    body_seconds: Annotated[float, typer.Option(help="Time for a request to arrive.")] = 10.0,
    alert_bits: Annotated[float, typer.Option(help="Alert where the model loses to Frequency by more.")] = 0.0,
    backfill: Annotated[int, typer.Option(min=0, help="Bars of --bars whose forecasts are made again.")] = 96,
    ledger: Annotated[Path | None, typer.Option(help="Put each forecast on record here before its bar.")] = None,
    follow: Annotated[str | None, typer.Option(metavar="SOURCE", help="Take its new bars: " + SOURCES)] = None,
    utc_offset: UtcOffset = "0h",
    device: Device = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the model.")] = None,
) -> None:
    """Serve forecasts, live assets and a dashboard."""
    # The bars of a request are few: more threads for them would only take processors from the model.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from vaiom.serve.run import ServeConfig, default_state, parse_rate, read_keys
    from vaiom.serve.run import serve as run_service

    options: dict[str, Any] = {"run": run, "bars": bars, "ledger": ledger, "device": device, "threads": threads}
    options |= {"max_body": max_body, "body_seconds": body_seconds, "alert_bits": alert_bits, "backfill": backfill}
    config = ServeConfig(
        **options,
        state=state or default_state(run),
        api_keys=read_keys(api_key_file) if api_key_file else (),
        hosts=(host, *(allow_host or ())),
        rate_limit=parse_rate(rate_limit) if rate_limit else None,
        follow=follow,
        utc_offset=parse_span(utc_offset),
    )
    run_service(config, host, port, lambda address: note(f"serving {run} at {address} (Ctrl+C stops it)"))


def follow(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCES)],
    url: Annotated[str, typer.Option(help="The service.")] = "http://127.0.0.1:8000",
    symbol: Annotated[str | None, typer.Option(help="The asset, or * where names of files have it.")] = None,
    shift: Annotated[str, typer.Option(help="Move the clock of files, for example 2h or -30min.")] = "0h",
    utc_offset: UtcOffset = "0h",
    api_key_file: Annotated[Path | None, typer.Option(help="A file whose first line is the API key.")] = None,
) -> None:
    """Push the new bars of a source, such as a folder that another program writes to, to a running service."""
    from vaiom.market.feeds import open_feed
    from vaiom.market.formats.table import Options
    from vaiom.serve.follow import Follower, HttpService
    from vaiom.serve.run import read_keys

    options = Options(symbol=symbol, shift=parse_span(shift), utc=True, repair=True, whole_lines=True)
    ahead, service = parse_span(utc_offset), HttpService(url, read_keys(api_key_file)[0] if api_key_file else None)
    follower = Follower(open_feed(source, service.timeframe, options), service, utc_offset=ahead)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a push is taken whole or not at all
    note(f"following {source} for {', '.join(service.symbols)} at {url} (Ctrl+C stops it)")
    follower.run()


@answers
def state(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The --state of a service that does not run.")],
    after: Annotated[datetime | None, date("Remove the bars after this moment, and what they settled.")] = None,
    symbol: Annotated[str | None, typer.Option(help="Remove bars of this asset alone.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Let the next start replay all stored bars.")] = False,
) -> Answer:
    """Look at the bars that a service has stored, remove some, or have its state computed again."""
    from vaiom.serve.run import open_state

    with open_state(folder) as store:
        from vaiom.serve.store import StoredAsset

        known = [each.symbol for each in store.assets()]
        if symbol and symbol not in known:
            raise ConfigError("no such asset is stored", where=folder, expected=", ".join(known), got=symbol)
        removed = store.cut([symbol] if symbol else known, after) if after else 0
        if rebuild:
            store.rewind()
        assets = [to_json(each._asdict()) for each in store.assets()]
    columns = [Column(name, count if name in ("bars", "scored") else text) for name in StoredAsset._fields]
    table = Table("Stored bars", columns, [list(asset.values()) for asset in assets])
    notes = [f"{removed} bars removed"] * (after is not None)
    return Answer(json={"assets": assets, "removed": removed}, shown=[table], notes=notes)
