"""Run the service until it is told to stop.

Enters: a `ServeConfig`, an address. Leaves: nothing; what can be wrong with model, state and bars is found before the
address is bound.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

from vaiom.errors import ConfigError
from vaiom.serve.settings import ServeConfig

# A client that neither reads nor writes is not waited for longer than this when the service stops.
_STOP_SECONDS = 10
# A pass through the model asks for the interpreter at every operation, and may wait this long each time for a thread
# that reads requests.
_SWITCH_SECONDS = 2e-4


def serve(config: ServeConfig, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve on an address; port 0 takes a free one, which `announce` is told."""
    try:
        import uvicorn

        from vaiom.serve.app import make_app
    except ImportError as error:
        raise ConfigError(
            "the service needs FastAPI and uvicorn", got=str(error), fix="pip install 'vaiom[serve]'"
        ) from error
    from vaiom.serve.service import Service

    sys.setswitchinterval(_SWITCH_SECONDS)
    listening = _bound(host, port)
    service = Service(config)
    shown = f"[{host}]" if ":" in host else host
    announce(f"http://{shown}:{listening.getsockname()[1]}")
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(service),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
    )
    server.run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Named as TCP: the event loop sends small answers at once on such sockets alone.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # whoever comes while the model loads waits instead of being turned away
    except (OSError, OverflowError) as error:
        raise ConfigError(
            "cannot listen here", where=f"{host}:{port}", got=str(error), fix="choose another --host or --port"
        ) from error
    return listening
