"""Configure and run the service.

Enters: the options of `vaiom serve`. Leaves: a server that runs until it is stopped; options,
model, state and bars are checked before it takes the first request.
"""

from __future__ import annotations

import gc
import re
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from vaiom.errors import EXTRAS, ConfigError, DataError, require_installed

if TYPE_CHECKING:
    from vaiom.serve.bar_store import Store

GUESSABLE_KEY = 16
"""Keys of fewer characters than this may be found by trying."""
WINDOW = 500
"""Scored bars that drift is measured over: fewer leave a gain of a tenth of a bit to chance."""
STOP_SECONDS = 10
"""On shutdown, idle clients are not waited for longer than this."""
SWITCH_SECONDS = 2e-4
"""A pass through the model needs the GIL at every operation, and may wait this long each time for
the thread that reads requests.
"""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What a service serves, where it keeps its state, and what it allows its clients."""

    run: Path
    """Run folder, checkpoint or exported file."""
    state: Path
    """Folder of the persistent state."""
    bars: Path | None = None
    """Bar folder whose assets are live from the start."""
    ledger: Path | None = None
    """File that records every live forecast before its bar."""
    follow: str | None = None
    """Source of new bars."""
    utc_offset: timedelta = timedelta(0)
    """How far the clock of the bars is ahead of UTC."""
    device: str = "cpu"
    threads: int | None = None
    api_keys: tuple[str, ...] = ()
    """None: no authentication."""
    hosts: tuple[str, ...] | None = None
    """Allowed host names besides IP addresses and this machine's own names; None: any."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For names the client; others' is ignored.
    """
    rate_limit: int | None = None
    """Requests per minute and key, or address without keys."""
    max_body: int = 1 << 20
    """Bytes per request."""
    body_seconds: float = 10.0
    """Time limit for receiving a request."""
    max_waiting: int = 256
    """Forecasts that may wait for the model."""
    alert_bits: float = 0.0
    """Alert if the recent mean loss exceeds Frequency's by more than this and than chance explains.
    """
    backfill: int = WINDOW
    """Bars of each asset of `bars` whose forecasts are replayed at the start."""

    def __post_init__(self) -> None:
        if not self.body_seconds > 0:
            raise ConfigError("body_seconds must be positive", got=self.body_seconds)
        for proxy in self.proxies:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise ConfigError(
                    "not the address of a proxy",
                    expected="an IP address or a network, as in 10.0.0.5 or 10.0.0.0/24",
                    got=str(error),
                ) from error


def parse_rate(text: str) -> int:
    """Requests per minute, as in 600/min."""
    match = re.fullmatch(r"(\d+)\s*/\s*min", text.strip())
    if not match or int(match[1]) == 0:
        raise ConfigError("not a rate", expected="requests a minute, as in 600/min", got=repr(text))
    return int(match[1])


def read_keys(path: Path) -> tuple[str, ...]:
    """API keys of a file, one per line; blank lines and lines that begin with # are ignored."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the API keys cannot be read", where=path, got=str(error)) from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError("the file holds no API key", where=path, expected="one key a line")
    if any(not key.isascii() or not key.isprintable() for key in keys):
        raise ConfigError("a key must be printable ASCII: it travels in an HTTP header", where=path)
    return keys


def default_state(run: Path) -> Path:
    """Beside the model: a folder in the run, or one named after the file."""
    return run / "live" if run.is_dir() else run.with_name(f"{run.stem}-live")


def open_state(folder: Path) -> closing[Store]:
    """The store of a service that is not running, also one that has lost its last bars."""
    require_installed(*EXTRAS["serve"])
    from vaiom.serve.bar_store import FILE_NAME, Store

    if not (folder / FILE_NAME).is_file():
        raise DataError(
            "no such state folder",
            where=folder,
            expected=f"a folder with {FILE_NAME}",
            fix="name the --state of the service; by default RUN/live",
        )
    return closing(Store(folder, "", accept_loss=True))


def serve(config: ServeConfig, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve on an address; port 0 picks a free one, which `announce` receives."""
    require_installed(*EXTRAS["serve"])
    import uvicorn

    from vaiom.serve.app import make_app
    from vaiom.serve.protocol import BoundedProtocol
    from vaiom.serve.service import Service

    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol named TCP: only then does the event loop disable Nagle's algorithm.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # clients wait while the model loads instead of being refused
    except (OSError, OverflowError) as error:
        raise ConfigError(
            "cannot listen here",
            where=f"{host}:{port}",
            got=str(error),
            fix="choose another --host or --port",
        ) from error
    service = Service(config)
    shown = f"[{host}]" if ":" in host else host
    announce(f"http://{shown}:{listening.getsockname()[1]}")
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(service),
            http=BoundedProtocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=bool(config.proxies),
            forwarded_allow_ips=list(config.proxies),
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    gc.freeze()  # long-lived objects: garbage collection skips them
    service.give_up = lambda: setattr(server, "should_exit", True)
    server.run(sockets=[listening])
    if service.failure:
        raise service.failure
