"""`vaiom forecast`, `models`, `card`, `predict`, `risk`, `export`, `serve`, `follow`, `state`: a
model in use.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import vaiom
from vaiom.cli import console
from vaiom.cli.console import Answer, answers, note, progress_bar
from vaiom.cli.options import Device, Json, ModelPath, Symbol, argument, date, option, parse_span
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.files import atomic_file, write_bytes
from vaiom.report.tables import Column, Table, bits, count, prose, text
from vaiom.run import DEFAULT_MODEL, find_run, packaged_models

SOURCES = "dukascopy, a URL with its file layout, ccxt:EXCHANGE, a file or a folder."
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
UtcOffset = Annotated[str, option("How far the clock of the bars is ahead of UTC, for example 2h.")]

if TYPE_CHECKING:
    from vaiom.distribution.portfolio import Portfolio


@answers
def forecast(
    files: Annotated[list[Path], argument("FILE", "Price files that `vaiom data import` reads.")],
    model: Annotated[
        str, option("Name of a packaged model, run folder or model file.")
    ] = DEFAULT_MODEL,
    symbol: Symbol = None,
    now: Now = None,
    plot: Plot = None,
    device: FewDevice = None,
) -> Answer:
    """Forecast the next bar of price files with a model that comes with the package."""
    forecaster = vaiom.Forecaster.load(model, device)
    from vaiom.forecast.bars import resample_if_finer
    from vaiom.market.check import check_bars, describe_problems
    from vaiom.market.formats.source import Options
    from vaiom.market.imports import read_files

    with progress_bar("reading") as progress:
        read, entries = read_files(
            files, Options(symbol=symbol, utc=True, repair=True), progress=progress
        )
    coarse = {
        name: resample_if_finer(bars, name, forecaster.tokenizer.timeframe)
        for name, bars in read.items()
    }
    frames = {name: bars for name, (bars, _) in coarse.items()}
    dists = forecaster.predict(frames, now=now).values()
    notes = [
        describe_problems(name, check_bars(name, frames[name]).findings, entries[name]["repairs"])
        for name in frames
    ]
    notes += [
        f"{name}: unfinished: the last bar has prices until {end} only"
        for name, (_, end) in coarse.items()
        if end
    ]
    if plot:
        _draw(list(dists), plot)
    return describe_forecasts(forecaster, list(dists), [note for note in notes if note])


@answers
def models() -> Answer:
    """List the models that come with the package."""
    models = [
        {"name": name, **vaiom.Forecaster.pretrained(name, None).describe()}
        for name in packaged_models()
    ]
    columns = [
        Column("name", text, itemgetter("name")),
        Column("purpose", text, itemgetter("purpose")),
        Column("bars", text, itemgetter("timeframe")),
        Column("assets", prose, lambda model: ", ".join(model["symbols"])),
        Column("Train before", text, lambda model: model["splits"]["train_end"][:10]),
        Column("Validation bits", bits, itemgetter("validation_bits")),
    ]
    return Answer(
        json={"models": models}, shown=[Table.of("Models in the package", columns, models)]
    )


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
    """Forecast the next return of each asset, given that it is not zero."""
    if json and csv:
        raise ConfigError("one form of output at a time", expected="--json or --csv", got="both")
    forecaster = vaiom.Forecaster.load(run, device)
    from vaiom.distribution.returns import as_csv
    from vaiom.forecast.bars import newest_bars, utc_now

    frames = newest_bars(bars, symbol, forecaster.reads)
    dists = forecaster.forecast(
        forecaster.windows(frames, symbol), now or utc_now(), horizon=horizon
    )
    answer = describe_forecasts(forecaster, dists)
    console.print_answer(
        replace(answer, shown=[as_csv(dists).removesuffix("\n")], notes=[]) if csv else answer, json
    )


@answers
def risk(
    run: ModelPath,
    bars: Annotated[Path, option("Bar folder with the assets of the positions.")],
    positions: Annotated[Path, option("File of symbol,amount lines in money; negative is short.")],
    horizon: Annotated[int, option("Bars ahead; more than 1 needs `vaiom horizons`.", min=1)] = 1,
    level: Annotated[
        float, option("Confidence level of value at risk and expected shortfall.")
    ] = 0.99,
    given: Annotated[
        list[str] | None, option("Scenario: a log return; repeatable.", metavar="SYMBOL=R")
    ] = None,
    draws: Annotated[
        int, option("Number of samples; more of them reduce the sampling error.", min=100)
    ] = 50_000,
    seed: Annotated[int, option("Random seed of the samples.", min=0)] = 0,
    now: Now = None,
    plot: Plot = None,
    device: FewDevice = None,
) -> Answer:
    """Show the risk of a portfolio: value at risk, expected shortfall, and what each position
    contributes.
    """
    forecaster = vaiom.Forecaster.load(run, device)
    from vaiom.distribution.portfolio import read_positions
    from vaiom.forecast.bars import newest_bars

    amounts = read_positions(positions)
    try:
        scenario = {
            symbol: float(value) for symbol, value in (text.split("=") for text in given or ())
        }
    except ValueError as error:
        expected, got = "--given XAUUSD=-0.02, a log return", ", ".join(given or ())
        raise ConfigError("not a log return of an asset", expected=expected, got=got) from error
    frames = newest_bars(bars, next(iter(amounts)), [*amounts, *scenario, *forecaster.reads])
    joint = forecaster.joint(frames, horizon=horizon, now=now)
    profits = {
        symbol: amounts.pop(symbol, 0.0) * math.expm1(value) for symbol, value in scenario.items()
    }
    portfolio = (joint.given(scenario) if scenario else joint).portfolio(amounts, draws, seed)
    result = portfolio.to_dict(level)
    columns = [
        Column("position"),
        *(Column(name, "{:,.2f}".format) for name in ("amount", "VaR", "ES")),
    ]
    parts = ("amount", "value_at_risk", "expected_shortfall")
    rows = [
        [symbol, *(position[part] for part in parts)]
        for symbol, position in result["contributions"].items()
    ]
    rows.append(["all", sum(portfolio.positions.values()), *(result[part] for part in parts[1:])])
    if plot:
        _draw([portfolio], plot)
    errors = " and ".join(f"{error:,.2f}" for error in result["standard_errors"].values())
    span = "the next bar" if horizon == 1 else f"the next {horizon} bars"
    caption = f"Loss over {span} after {joint.as_of}, {level:.2%}; sampling errors {errors}"
    certain = [
        f"{symbol}: profit {profit:,.2f} at the given return, not in the table"
        for symbol, profit in profits.items()
    ]
    what_if = {
        symbol: {"log_return": value, "profit": profits[symbol]}
        for symbol, value in scenario.items()
    }
    return Answer(
        json={"as_of": joint.as_of, "horizon": horizon, "given": what_if, **result},
        shown=[Table(caption, columns, rows)],
        notes=["\n" + "\n".join([*certain, *joint.notes])],
    )


def describe_forecasts(
    forecaster: vaiom.Forecaster,
    dists: Sequence[vaiom.ReturnDistribution],
    notes: Sequence[str] = (),
) -> Answer:
    """Forecasts as a table with notes."""
    from vaiom.distribution.returns import notes_of

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


def _draw(dists: Sequence[vaiom.ReturnDistribution | Portfolio], file: Path) -> None:
    """Draw the distributions one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4 * len(dists)), layout="constrained")
    for dist, axis in zip(dists, figure.subplots(len(dists), squeeze=False)[:, 0], strict=True):
        dist.plot(axis)
    try:
        with atomic_file(file) as staged:
            figure.savefig(staged)
    except ValueError as error:
        raise ConfigError(
            "not a picture's name", where=file, expected=".png, .svg or .pdf", got=str(error)
        ) from error
    note(f"wrote {file}")


@answers
def export(
    run: Annotated[Path, argument("RUN", "Run folder, or checkpoint file.")],
    onnx: Annotated[Path, option("File to write.")],
    corpus: Annotated[Path | None, option("Corpus to check it on; by default, the run's.")] = None,
) -> Answer:
    """Export a model as ONNX, after a check that it answers as PyTorch does."""
    from vaiom.forecast.export import export_run

    exported = export_run(run, onnx, corpus)
    windows = f"{exported.random_windows} made-up and {exported.real_windows} real windows"
    equal = f"probabilities within {exported.largest_difference:.1g} of PyTorch's on {windows}"
    return Answer(
        json=asdict(exported), notes=[f"{exported.file}: {exported.bytes / 2**20:.1f} MiB; {equal}"]
    )


def serve(
    run: ModelPath,
    bars: Annotated[Path | None, option("Bar folder; its assets are live from the start.")] = None,
    host: Annotated[
        str, option("Address to listen on; by default, only this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port to listen on; 0 picks a free one.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None, option("Further host name of the service; repeatable.")
    ] = None,
    state: Annotated[
        Path | None, option("Folder that survives restarts; by default, beside the model.")
    ] = None,
    api_key_file: Annotated[
        Path | None, option("File of API keys, one per line; without it, anyone may ask.")
    ] = None,
    rate_limit: Annotated[
        str | None, option("Limit per key or address, for example 600/min.")
    ] = None,
    max_body: Annotated[int, option("Largest request, in bytes.", min=1)] = 1 << 20,
    body_seconds: Annotated[
        float, option("Longest time for a request to arrive, in seconds.")
    ] = 10.0,
    alert_bits: Annotated[
        float, option("Alert if the model is worse than Frequency by more bits than this.")
    ] = 0.0,
    backfill: Annotated[
        int, option("Last bars of --bars to forecast and score at the start.", min=0)
    ] = 96,
    ledger: Annotated[
        Path | None, option("Record each forecast here before its bar is known.")
    ] = None,
    follow: Annotated[str | None, option("Take new bars from " + SOURCES, metavar="SOURCE")] = None,
    utc_offset: UtcOffset = "0h",
    device: Device = "cpu",
    threads: Annotated[int | None, option("CPU threads of the model.", min=1)] = None,
) -> None:
    """Serve forecasts and live assets over HTTP, with a dashboard."""
    # The bars of a request are few: more threads for them would only take processors from the
    # model.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from vaiom.serve.run import ServeConfig, default_state, parse_rate, read_keys
    from vaiom.serve.run import serve as run_service

    options: dict[str, Any] = {
        "run": run,
        "bars": bars,
        "ledger": ledger,
        "device": device,
        "threads": threads,
    }
    options |= {
        "max_body": max_body,
        "body_seconds": body_seconds,
        "alert_bits": alert_bits,
        "backfill": backfill,
    }
    config = ServeConfig(
        **options,
        state=state or default_state(run),
        api_keys=read_keys(api_key_file) if api_key_file else (),
        hosts=(host, *(allow_host or ())),
        rate_limit=parse_rate(rate_limit) if rate_limit else None,
        follow=follow,
        utc_offset=parse_span(utc_offset),
    )
    run_service(
        config, host, port, lambda address: note(f"serving {run} at {address} (Ctrl+C stops it)")
    )


def follow(
    source: Annotated[str, argument("SOURCE", "Where new bars come from: " + SOURCES)],
    url: Annotated[str, option("Address of the service.")] = "http://127.0.0.1:8000",
    symbol: Annotated[
        str | None, option("Name of the asset, or * to take it from file names.")
    ] = None,
    shift: Annotated[str, option("Move all timestamps, for example 2h or -30min.")] = "0h",
    utc_offset: UtcOffset = "0h",
    api_key_file: Annotated[Path | None, option("File whose first line is the API key.")] = None,
) -> None:
    """Send new bars from a source, such as a folder that another program writes to, to a running
    service.
    """
    from vaiom.market.feeds import open_feed
    from vaiom.market.formats.source import Options
    from vaiom.serve.follow import Follower, HttpService
    from vaiom.serve.run import read_keys

    options = Options(
        symbol=symbol, shift=parse_span(shift), utc=True, repair=True, whole_lines=True
    )
    ahead, service = (
        parse_span(utc_offset),
        HttpService(url, read_keys(api_key_file)[0] if api_key_file else None),
    )
    follower = Follower(open_feed(source, service.timeframe, options), service, utc_offset=ahead)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a push is taken whole or not at all
    note(f"following {source} for {', '.join(service.symbols)} at {url} (Ctrl+C stops it)")
    follower.run()


@answers
def state(
    folder: Annotated[Path, argument("FOLDER", "The --state folder of a stopped service.")],
    after: Annotated[
        datetime | None, date("Remove the bars after this time, and their scores.")
    ] = None,
    symbol: Annotated[str | None, option("Remove bars of this asset only.")] = None,
    ledger: Annotated[
        Path | None, option("Ledger of the service: record the removal there too.")
    ] = None,
    rebuild: Annotated[
        bool, option("Check the whole file and write it anew.", "--rebuild")
    ] = False,
) -> Answer:
    """Show the bars that a service has stored, remove some, or check and rebuild the file."""
    from vaiom.forecast.ledger import ForecastLedger
    from vaiom.serve.run import open_state

    with open_state(folder) as store:
        from vaiom.serve.store import StoredAsset

        symbols, removed = [asset.symbol for asset in store.assets()], 0
        if symbol and symbol not in symbols:
            raise ConfigError(
                "no such asset is stored", where=folder, expected=", ".join(symbols), got=symbol
            )
        if after:
            chosen = [symbol] if symbol else symbols
            with store.transaction("nothing was removed"):
                removed = store.cut(chosen, after)
                if ledger:
                    with closing(ForecastLedger(ledger, "")) as record:
                        for each in chosen:
                            record.remove(each, after)
        if rebuild:
            store.rebuild()
        assets = [to_json(asset._asdict()) for asset in store.assets()]
    columns = [
        Column(name, count if name in ("bars", "settled") else text) for name in StoredAsset._fields
    ]
    table = Table("Stored bars", columns, [list(asset.values()) for asset in assets])
    notes = [f"{removed} bars removed"] * (after is not None)
    return Answer(json={"assets": assets, "removed": removed}, shown=[table], notes=notes)
