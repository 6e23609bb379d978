"""What each stage costs by the row on a simulated market: `python -m benchmarks.scale OUT --assets
N --bars N`.

Each stage is a command of its own, whose seconds, processor seconds and peak of memory are taken:
of all its processes together, pages that they share counted for each. Leaves: one JSON object on
stdout; stages whose folder is there already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SAMPLE_SECONDS = 0.1
STAGES = ("simulate", "build", "show", "baselines", "train", "evaluate", "score")
SETTINGS = (
    "width=32",
    "num_layers=2",
    "context=64",
    "validate_every=2",
)  # a model of about the demo's size


def measure(words: Sequence[object]) -> dict[str, Any]:
    """Run `vaiom` with these words; what it took."""
    start = time.perf_counter()
    peak = 0
    command = [sys.executable, "-m", "vaiom", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(os.wait4(process.pid, 0)))
    waiting.start()
    while waiting.is_alive():
        peak = max(peak, resident_bytes(process.pid))
        waiting.join(SAMPLE_SECONDS)
    _, status, used = ended[0]
    if status:
        raise SystemExit(
            f"{' '.join(command)} failed with status {os.waitstatus_to_exitcode(status)}"
        )
    return {
        "command": " ".join(map(str, ["vaiom", *words])),
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": round(peak / 2**20),
    }


def resident_bytes(root: int) -> int:
    """Resident memory of a process and its descendants, from Linux's /proc."""
    parents = {}
    pages = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(values[1])
        pages[pid] = int(values[21])
    family = {root}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family = family | more
        grown = bool(more)
    return sum(pages.get(pid, 0) for pid in family) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages on simulated assets, and print time and peak memory of each."""
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "out", type=Path, help="Folder for the market, its corpus, a run and baselines."
    )
    parser.add_argument("--assets", type=int, default=100)
    parser.add_argument("--bars", type=int, default=6000)
    parser.add_argument("--timeframe", default="1h")
    parser.add_argument("--workers", type=int, default=1, help="Processes that build the corpus.")
    parser.add_argument("--engine", default="local", help="How the corpus is built: local or ray.")
    parser.add_argument(
        "--only", default=",".join(STAGES), help="Stages to run, separated by commas."
    )
    args = parser.parse_args(arguments)
    bars = args.out / "bars"
    corpus = args.out / "corpus"
    run = args.out / "run"
    market = ("--assets", args.assets, "--bars", args.bars, "--timeframe", args.timeframe)
    engine = ("--workers", args.workers, "--engine", args.engine)
    held_out = ("--corpus", corpus, "--split", "test-h1")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    stages: dict[str, tuple[Path | None, tuple[object, ...]]] = {
        "simulate": (bars, ("data", "simulate", "--out", bars, *market)),
        "build": (corpus, ("corpus", "build", bars, "--out", corpus, *engine)),
        "show": (None, ("corpus", "show", corpus)),
        "baselines": (
            args.out / "baselines",
            ("baselines", corpus, "--out", args.out / "baselines"),
        ),
        "train": (
            run,
            ("train", corpus, "--experiment", "demo", "--steps", 2, "--out", run, *settings),
        ),
        "evaluate": (None, ("evaluate", run, *held_out)),
        "score": (None, ("score", run / "events-test-h1.parquet", "--against", run, *held_out)),
    }
    rows = args.assets * args.bars
    costs = {}
    for name in args.only.split(","):
        folder, words = stages[name]
        if folder is None or not folder.exists():
            costs[name] = measure(words)
            costs[name]["cpu_microseconds_a_row"] = round(
                1e6 * costs[name]["cpu_seconds"] / rows, 2
            )
            print(json.dumps({name: costs[name]}), file=sys.stderr)
    used = shutil.disk_usage(args.out)
    print(
        json.dumps(
            {"assets": args.assets, "rows": rows, "stages": costs, "disk_free": used.free}, indent=2
        )
    )


if __name__ == "__main__":
    main()
