"""`vaiom serve`: a trained model over HTTP, with a dashboard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a checkpoint or an exported model.")],
    bars: Annotated[Path | None, typer.Option(help="A bar folder whose assets are live from the start.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine unless told otherwise.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    state: Annotated[Path | None, typer.Option(help="What survives a restart; beside the model unless named.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="API keys, one a line; without it all are let in.")] = None,
    rate_limit: Annotated[str | None, typer.Option(help="For each key or address, as in 600/min.")] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    body_seconds: Annotated[float, typer.Option(help="Time for a request to arrive.")] = 10.0,
    alert_bits: Annotated[float, typer.Option(help="Alert where the model loses to Frequency by more.")] = 0.0,
    backfill: Annotated[int, typer.Option(min=0, help="Bars of --bars whose forecasts are made again.")] = 96,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the model.")] = None,
) -> None:
    """Serve forecasts, live assets and a dashboard."""
    # The bars of a request are few: more threads for them would only take processors from the model.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from vaiom.serve.run import ServeConfig, default_state, parse_rate, read_keys
    from vaiom.serve.run import serve as run_service

    config = ServeConfig(
        run=run,
        state=state or default_state(run),
        bars=bars,
        device=device,
        threads=threads,
        api_keys=read_keys(api_key_file) if api_key_file else (),
        rate_limit=parse_rate(rate_limit) if rate_limit else None,
        max_body=max_body,
        body_seconds=body_seconds,
        alert_bits=alert_bits,
        backfill=backfill,
    )
    run_service(config, host, port, lambda address: note(f"serving {run} at {address} (Ctrl+C stops it)"))
