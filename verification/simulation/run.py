"""The long simulation: `PYTHONPATH=tests python -m verification.simulation.run --histories 10000`;
`--planted` finds planted bugs.

A history is decided by its seed: `--seed SEED --histories 1` runs it again and says what happened
in it.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from verification.simulation.history import run_history
from verification.simulation.models import MODELS, Model, load_model, make_models
from verification.simulation.planted import BUGS, planted

TOGETHER = 20
"""Histories that a worker runs before it says how they went."""
MOST_FOR_A_BUG = 1_000

_models: list[Model] = []


def prepare(folder: Path) -> list[Model]:
    """What a process needs to run histories."""
    torch.set_num_threads(1)
    logging.getLogger("vaiom.serve").setLevel(logging.CRITICAL + 1)
    _models[:] = [load_model(folder, name) for name in MODELS]
    return _models


def run_some(seeds: Sequence[int]) -> tuple[int, dict[int, str]]:
    """How many histories there were, and what went wrong by seed."""
    wrong = {}
    for seed in seeds:
        try:
            run_history(seed, _models)
        except Exception:
            wrong[seed] = traceback.format_exc()
    return len(seeds), wrong


def find_bug(
    name: str, seeds: Sequence[int], models: list[Model] = _models
) -> tuple[str, int, str]:
    """A planted bug, how many histories it took to find it, 0 where they were not enough, and what
    was found.
    """
    with planted(name):
        for number, seed in enumerate(seeds, start=1):
            try:
                run_history(seed, models)
            except Exception as error:
                return name, number, str(error).partition("\n")[0]
    return name, 0, ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the service on a simulated machine that fails."
    )
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first history; the others follow"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, default=3_600.0, help="no histories begin after this"
    )
    parser.add_argument(
        "--planted", action="store_true", help="find planted bugs, in the histories each at most"
    )
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        make_models(Path(name))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, context, prepare, (Path(name),)) as pool:
            run = _find_bugs if options.planted else _run_histories
            totals, wrong = run(pool, options, began + options.seconds)
    totals |= {
        "violations": len(wrong),
        "seconds": round(time.monotonic() - began),
        "seed": options.seed,
    }
    print(json.dumps(totals))
    return int(bool(wrong))


def _run_histories(
    pool: ProcessPoolExecutor, options: argparse.Namespace, deadline: float
) -> tuple[dict[str, int], list[int]]:
    seeds = range(options.seed, options.seed + options.histories)
    parts = (seeds[at : at + TOGETHER] for at in range(0, len(seeds), TOGETHER))
    total, wrong = 0, list[int]()
    running = {
        pool.submit(run_some, part)
        for _, part in zip(range(2 * options.workers), parts, strict=False)
    }
    while running:
        done = next(as_completed(running))
        running.remove(done)
        number, found = done.result()
        total += number
        for seed, words in found.items():
            print(
                f"{words}\nseed {seed}: run again with python -m verification.simulation.run "
                f"--seed {seed} --histories 1\n",
                flush=True,
            )
        wrong += found
        part = next(parts, None) if time.monotonic() < deadline else None
        if part:
            running.add(pool.submit(run_some, part))
        if total % 500 < TOGETHER or not running:
            print(
                f"{total:,} of {options.histories:,} histories, {len(wrong)} violations",
                file=sys.stderr,
                flush=True,
            )
    return {"histories": total}, wrong


def _find_bugs(
    pool: ProcessPoolExecutor, options: argparse.Namespace, deadline: float
) -> tuple[dict[str, int], list[str]]:
    seeds = range(options.seed, options.seed + min(options.histories, MOST_FOR_A_BUG))
    missed = []
    for each in as_completed([pool.submit(find_bug, name, seeds) for name in BUGS]):
        name, number, words = each.result()
        print(
            f"{name}: " + (f"found in history {number}: {words}" if number else "NOT FOUND"),
            flush=True,
        )
        missed += [] if number else [name]
    return {"bugs": len(BUGS), "found": len(BUGS) - len(missed)}, missed


if __name__ == "__main__":
    sys.exit(main())
