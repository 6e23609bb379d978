"""The long fault run: `PYTHONPATH=tests python -m faults.run --kills 200`. Prints a table by stage."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults.kills import Tally, quiet_run, torment
from faults.serving import make_served, torment_service, undisturbed
from faults.stages import make_inputs, stages
from market import feed_server

SERVING, SERVING_WEIGHT = "serving", 4


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill every stage at random moments and finish it.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", action="append", help="this one alone; may be repeated")
    parser.add_argument("--workers", type=int, default=2, help="stages at a time")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, feed_server.running() as server:
        folder = Path(name)
        inputs = make_inputs(folder / "inputs")
        known = stages(inputs, server)
        weights = {**{title: stage.weight for title, stage in known.items()}, SERVING: SERVING_WEIGHT}
        chosen = options.stage or list(weights)
        whole = sum(weights[title] for title in chosen)

        def work(title: str) -> Tally:
            # One folder for the quiet run and the others: what names it names the same.
            own, chance = folder / title.replace(" ", "-"), random.Random(f"{options.seed} {title}")
            count = -(-options.kills * weights[title] // whole)
            if title == SERVING:
                served = make_served(inputs)
                tally = torment_service(served, undisturbed(served, own), own, count, chance)
            else:
                tally = torment(known[title], quiet_run(known[title], own), own, count, chance)
            print(f"{title}: {tally.kills} kills, {len(tally.failures)} failures", file=sys.stderr, flush=True)
            return tally

        with ThreadPoolExecutor(options.workers) as pool:
            tallies = dict(zip(chosen, pool.map(work, chosen), strict=True))
    return _summarise(tallies, time.monotonic() - began)


def _summarise(tallies: dict[str, Tally], seconds: float) -> int:
    print("| stage | kills | rows of kills | ended in the same bytes | refused first, with the way out | failures |")
    print("|---|---|---|---|---|---|")
    for name, each in tallies.items():
        counts = (each.kills, each.rows, each.finishes, each.refusals, len(each.failures))
        print(f"| {name} | {' | '.join(map(str, counts))} |")
    kills, late = (sum(getattr(each, name) for each in tallies.values()) for name in ("kills", "too_late"))
    failures = [f"{name}: {failure}" for name, each in tallies.items() for failure in each.failures]
    print(f"\n{kills} kills in {seconds:,.0f} s ({late} more came too late), {len(failures)} failures")
    print("\n".join(failures), file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
