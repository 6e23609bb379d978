"""`vaiom predict`: the next bar of each asset as a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaiom.cli.console import note, parse_date, print_json

if TYPE_CHECKING:
    from vaiom.forecast.distribution import ReturnDistribution


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a checkpoint or an exported model.")],
    bars: Annotated[Path, typer.Option(help="A bar folder, or one asset's Parquet file.")],
    symbol: Annotated[str | None, typer.Option(help="One asset of the folder; or what the file's asset is.")] = None,
    now: Annotated[str | None, typer.Option(help="A moment of the bars' clock; older bars are called stale.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="A line per asset, for other programs.")] = False,
) -> None:
    """Forecast the next return of each asset, given that it is not zero."""
    from vaiom.errors import ConfigError
    from vaiom.forecast.forecaster import Forecaster
    from vaiom.forecast.summary import as_csv, newest_bars

    if json and csv:
        raise ConfigError("one form of output at a time", expected="--json or --csv", got="both")
    moment = None if now is None else parse_date(now)
    forecaster = Forecaster.load(run, device)
    frames = newest_bars(bars, symbol, forecaster.reads)
    dists = forecaster.forecast(forecaster.windows(frames, symbol), moment)
    if json:
        print_json({"model": forecaster.describe(), "forecasts": [dist.to_dict() for dist in dists]})
    elif csv:
        print(as_csv(dists), end="")
    else:
        _print_table(dists)


def _print_table(dists: Sequence[ReturnDistribution]) -> None:
    from vaiom.cli.tables import show, table
    from vaiom.forecast.summary import TABLE_COLUMNS, table_row

    show(
        table(
            "The next bar, in basis points of log return, given that it is not zero",
            TABLE_COLUMNS,
            [table_row(dist) for dist in dists],
            left=4,
        )
    )
    notes = [f"{dist.symbol}: {words}" for dist in dists for words in dist.notes]
    if notes:
        note("\n" + "\n".join(notes))
