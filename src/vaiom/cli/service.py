"""`vaiom serve`, `follow` and `state`: a service, what feeds it, and what it has stored."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vaiom.cli.console import Answer, answers, note
from vaiom.cli.options import Device, ModelPath, argument, date, option, parse_span
from vaiom.codec import to_json
from vaiom.errors import ConfigError
from vaiom.report.tables import Column, Table, count, text

if TYPE_CHECKING:
    from vaiom.serve.bar_store import Store

SOURCES = "dukascopy, a URL with its file layout, ccxt:EXCHANGE, a file or a folder."
UtcOffset = Annotated[str, option("How far the clock of the bars is ahead of UTC, for example 2h.")]


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
    proxy: Annotated[
        list[str] | None,
        option("Address or network of a proxy whose X-Forwarded-For counts; repeatable."),
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
        int | None,
        option(
            "Last bars of --bars to score at the start; by default, as many as drift is shown of.",
            min=0,
        ),
    ] = None,
    ledger: Annotated[
        Path | None, option("Record each forecast here before its bar is known.")
    ] = None,
    follow: Annotated[str | None, option("Take new bars from " + SOURCES, metavar="SOURCE")] = None,
    utc_offset: UtcOffset = "0h",
    device: Device = "cpu",
    threads: Annotated[int | None, option("CPU threads of the model.", min=1)] = None,
) -> None:
    """Serve forecasts and live assets over HTTP, with a dashboard.

    Bars are pushed by clients, or followed from a source; every new bar settles the forecast before
    it, and the dashboard shows how well the model does. What was stored survives restarts. With a
    ledger, each forecast is on record before its bar is known.

    Example: vaiom serve runs/main --bars bars-1h --follow dukascopy
    """
    # The bars of a request are few: more threads for them would only take processors from the
    # model.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from vaiom.serve.server import (
        GUESSABLE_KEY,
        WINDOW,
        ServeConfig,
        default_state,
        parse_rate,
        read_keys,
    )
    from vaiom.serve.server import serve as run_service

    config = ServeConfig(
        run=run,
        bars=bars,
        state=state or default_state(run),
        ledger=ledger,
        device=device,
        threads=threads,
        max_body=max_body,
        body_seconds=body_seconds,
        alert_bits=alert_bits,
        backfill=WINDOW if backfill is None else backfill,
        api_keys=read_keys(api_key_file) if api_key_file else (),
        hosts=(host, *(allow_host or ())),
        proxies=tuple(proxy or ()),
        rate_limit=parse_rate(rate_limit) if rate_limit else None,
        follow=follow,
        utc_offset=parse_span(utc_offset),
    )

    if any(len(key) < GUESSABLE_KEY for key in config.api_keys):
        make = "python -c 'import secrets; print(secrets.token_urlsafe())'"
        note(
            f"a key has fewer than {GUESSABLE_KEY} characters and may be guessed; {make} makes one"
        )

    def say_where(address: str) -> None:
        note(f"serving {run} at {address} (Ctrl+C stops it)")

    run_service(config, host, port, say_where)


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

    Bars that came before are not sent twice, and a source or a service that is down for a while is
    asked again.

    Example: vaiom follow exports/ --url http://127.0.0.1:8000
    """
    from vaiom.market.feeds import open_feed
    from vaiom.market.formats.source import Options
    from vaiom.serve.follow import Follower, HttpService
    from vaiom.serve.server import read_keys

    options = Options(
        symbol=symbol, shift=parse_span(shift), utc=True, repair=True, whole_lines=True
    )
    key = read_keys(api_key_file)[0] if api_key_file else None
    service = HttpService(url, key)
    feed = open_feed(source, service.timeframe, options)
    follower = Follower(feed, service, utc_offset=parse_span(utc_offset))
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
    """Show the bars that a service has stored, remove some, or check and rebuild the file.

    The service must be stopped. Removed bars are gone with their scores; the ledger keeps its
    forecasts, and a note that the bars were removed.

    Example: vaiom state runs/main/state --after 2026-01-05
    """
    from vaiom.serve.server import open_state

    with open_state(folder) as store:
        from vaiom.serve.bar_store import StoredAsset

        symbols = [asset.symbol for asset in store.assets()]
        if symbol and symbol not in symbols:
            known = ", ".join(symbols)
            raise ConfigError("no such asset is stored", where=folder, expected=known, got=symbol)
        removed = 0
        if after:
            removed = _remove(store, [symbol] if symbol else symbols, after, ledger)
        if rebuild:
            store.rebuild()
        assets = [to_json(asset._asdict()) for asset in store.assets()]
    counts = ("bars", "settled")
    columns = [Column(name, count if name in counts else text) for name in StoredAsset._fields]
    rows = [list(asset.values()) for asset in assets]
    return Answer(
        json={"assets": assets, "removed": removed},
        shown=[Table("Stored bars", columns, rows)],
        notes=[f"{removed} bars removed"] if after else [],
    )


def _remove(store: Store, symbols: Sequence[str], after: datetime, ledger: Path | None) -> int:
    """Remove bars after a time, and note that in the ledger; returns how many there were."""
    from vaiom.forecast.ledger import ForecastLedger

    with store.transaction("nothing was removed"):
        removed = store.cut(symbols, after)
        if ledger:
            with closing(ForecastLedger(ledger, "")) as record:
                for symbol in symbols:
                    record.remove(symbol, after)
    return removed
