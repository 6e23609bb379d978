"""Resample one bar folder to hours and print seconds and peak memory as JSON: run as a process of
its own.

Enters: source and output folder as arguments. Leaves: {"folder_seconds", "peak_mib"} on stdout.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from vaiom.market.resample import resample_folder


def peak_mib() -> float:
    """The most resident memory this process has held."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count what the parent held when it started us.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def main(source: Path, out: Path) -> None:
    """Resample a folder in this process, and print its time and peak memory."""
    start = time.perf_counter()
    resample_folder(source, "1h", out)
    print(
        json.dumps({"folder_seconds": time.perf_counter() - start, "peak_mib": round(peak_mib())})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
