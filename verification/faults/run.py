"""The long fault run: `PYTHONPATH=tests python -m verification.faults.run --kills 1000`. Prints a
table by stage, then totals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from market import feed_server
from verification.faults.kills import Tally, quiet_run, torment
from verification.faults.serving import make_served, torment_service, undisturbed
from verification.faults.stages import make_inputs, stages

SERVING, SERVING_WEIGHT = "serving", 4
TOGETHER = 10
"""Kills of one stage that a worker makes, in a folder of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kill every stage at random moments and finish it."
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", action="append", help="this one alone; may be repeated")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=7_200.0, help="no kills begin after this")
    options = parser.parse_args()
    began = time.monotonic()
    until = began + options.seconds
    with tempfile.TemporaryDirectory() as name, feed_server.running() as server:
        folder = Path(name)
        inputs = make_inputs(folder / "inputs")
        known, served = stages(inputs, server), make_served(inputs)
        weights = {
            **{title: stage.weight for title, stage in known.items()},
            SERVING: SERVING_WEIGHT,
        }
        chosen = options.stage or list(weights)
        whole = sum(weights[title] for title in chosen)

        def work(title: str, part: int, kills: int) -> Tally:
            # One folder for the quiet run and the others: what names it names the same.
            own = folder / f"{title.replace(' ', '-')}-{part}"
            chance = random.Random(f"{options.seed} {title} {part}")
            if time.monotonic() >= until:
                return Tally()
            try:
                if title == SERVING:
                    tally = torment_service(
                        served, undisturbed(served, own), own, kills, chance, until
                    )
                else:
                    tally = torment(
                        known[title], quiet_run(known[title], own), own, kills, chance, until
                    )
            except Exception:
                tally = Tally(failures=[f"part {part}: {traceback.format_exc()}"])
            print(
                f"{title}: {tally.kills} kills, {len(tally.failures)} failures",
                file=sys.stderr,
                flush=True,
            )
            return tally

        tasks = []
        for title in chosen:
            count = -(-options.kills * weights[title] // whole)
            tasks += [(title, at, min(TOGETHER, count - at)) for at in range(0, count, TOGETHER)]
        tallies = dict.fromkeys(chosen, Tally())
        with ThreadPoolExecutor(options.workers) as pool:
            # Parts of one stage are apart, so that a limit of time cuts off the last of all.
            tasks.sort(key=lambda task: task[1])
            for (title, *_), tally in zip(
                tasks, pool.map(lambda task: work(*task), tasks), strict=True
            ):
                tallies[title] += tally
    return _summarise(tallies, time.monotonic() - began)


def _summarise(tallies: dict[str, Tally], seconds: float) -> int:
    print(
        "| stage | kills | rows of kills | ended in the same bytes | refused first, with the way "
        "out | failures |"
    )
    print("|---|---|---|---|---|---|")
    for name, each in tallies.items():
        counts = (each.kills, each.rows, each.finishes, each.refusals, len(each.failures))
        print(f"| {name} | {' | '.join(map(str, counts))} |")
    kills, late = (
        sum(getattr(each, name) for each in tallies.values()) for name in ("kills", "too_late")
    )
    failures = [f"{name}: {failure}" for name, each in tallies.items() for failure in each.failures]
    print("\n".join(failures), file=sys.stderr, flush=True)
    totals = {"kills": kills, "too_late": late, "stages": len(tallies), "failures": len(failures)}
    print(json.dumps({**totals, "seconds": round(seconds)}))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
