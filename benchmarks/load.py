"""Clients that ask a server as fast as it answers: wrk where it is installed, else threads of this process.

Enters: a port, request bodies, a number of clients, a time. Leaves: answers a second and their times.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from vaiom.errors import VaiomError

# Each thread of wrk goes through all bodies; what is written at the end is read by `_wrk`.
_SCRIPT = """
local bodies, turn = {}, 0
function init(args)
  for index = 1, #args do
    local file = assert(io.open(args[index], "rb"))
    bodies[index] = wrk.format("POST", nil, {["Content-Type"] = "application/json"}, file:read("*a"))
    file:close()
  end
end
function request()
  turn = turn % #bodies + 1
  return bodies[turn]
end
function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format("measured %d %d %d %d %d", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    per_second: float
    p50_ms: float
    p99_ms: float
    client: str


def run_load(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    """POST the bodies in turn from several clients at once, each waiting for its answer."""
    load = _wrk if shutil.which("wrk") else _threads
    return load(port, path, bodies, clients, seconds)


def _wrk(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "bodies.lua"
        script.write_text(_SCRIPT)
        files = [Path(name) / f"body-{number}" for number in range(len(bodies))]
        for file, body in zip(files, bodies, strict=True):
            file.write_bytes(body)
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--timeout", "30s", "-s", str(script)]
        result = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{path}", "--", *map(str, files)], capture_output=True, text=True
        )
    line = next((line for line in result.stdout.splitlines() if line.startswith("measured ")), None)
    if line is None:
        raise VaiomError(f"wrk did not measure anything: {result.stdout[-300:]}{result.stderr[-300:]}")
    requests, microseconds, p50, p99, errors = map(int, line.split()[1:])
    _require_clean(errors, requests)
    return Load(per_second=1e6 * requests / microseconds, p50_ms=p50 / 1e3, p99_ms=p99 / 1e3, client="wrk")


def _threads(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    taken: list[float] = []
    errors: list[object] = []
    end = time.perf_counter() + seconds

    def ask(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        turn = first
        while (start := time.perf_counter()) < end:
            try:
                connection.request("POST", path, bodies[turn % len(bodies)], {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                errors.append(error)
                return
            if answer.status != 200:
                errors.append(answer.status)
            taken.append(time.perf_counter() - start)
            turn += clients
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _require_clean(len(errors), len(taken))
    p50, p99 = (1e3 * float(np.quantile(taken, level)) for level in (0.5, 0.99))
    return Load(per_second=len(taken) / (time.perf_counter() - start), p50_ms=p50, p99_ms=p99, client="threads")


def _require_clean(errors: int, requests: int) -> None:
    if errors or not requests:
        raise VaiomError(f"{errors} of {requests} requests failed: there is nothing to measure")
