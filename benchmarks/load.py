"""Clients that ask a server as fast as it answers, each over a connection of its own.

Enters: a port, the requests of each client. Leaves: answers a second and their times.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vaiom.errors import VaiomError


@dataclass(frozen=True, kw_only=True)
class Load:
    per_second: float
    p50_ms: float
    p99_ms: float


def post(path: str, body: bytes) -> bytes:
    """A request as it goes over the wire."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def run_load(port: int, clients: Sequence[Iterator[bytes]], seconds: float = math.inf) -> Load:
    """Each client asks one request after another, until it has none left or the time is over."""

    async def ask_all() -> list[list[float]]:
        end = time.perf_counter() + seconds
        return await asyncio.gather(*(_ask_in_turn(port, requests, end) for requests in clients))

    start = time.perf_counter()
    taken = [each for client in asyncio.run(ask_all()) for each in client]
    if not taken:
        raise VaiomError("no request was answered: there is nothing to measure")
    p50, p99 = (1e3 * float(np.quantile(taken, level)) for level in (0.5, 0.99))
    return Load(per_second=len(taken) / (time.perf_counter() - start), p50_ms=p50, p99_ms=p99)


async def _ask_in_turn(port: int, requests: Iterator[bytes], end: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    while (start := time.perf_counter()) < end and (request := next(requests, None)):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(
            int(head.partition(b"content-length:")[2].split(None, 1)[0])
        )
        if head.split(None, 2)[1] != b"200":
            raise VaiomError(f"a request was refused: {body.decode()[:300]}")
        taken.append(time.perf_counter() - start)
    writer.close()
    return taken
