"""The long fuzzing run: `PYTHONPATH=tests python -m verification.fuzz.run --executions 10000000`.

Parts of every target run in processes of their own, so that one that dies, hangs or eats the memory
is seen and named. An execution is decided by the seed, the target and its number: `--target NAME
--only NUMBER` repeats it alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaiom.errors import UserError
from verification.fuzz.materials import make_materials
from verification.fuzz.targets import Target, targets

LONGEST_S = 20
"""No single execution may take longer, on a busy machine."""
TOGETHER = 15_000
"""Executions of a part for each of a thousand that its target gets: slow ones have small parts."""
MOST_MEMORY = 2 << 30
"""How much a target may grow beyond what it needed to start."""


@dataclass
class Outcome:
    """What became of the executions of one target."""

    executions: int = 0
    accepted: int = 0
    refused: int = 0
    crashes: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    """The first of each kind of crash, by where it came from."""
    seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        for name in ("executions", "accepted", "refused", "crashes", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples |= {
            kind: example for kind, example in other.examples.items() if kind not in self.examples
        }


class HungError(BaseException):
    """An execution took too long."""


def execute(target: Target, data: bytes) -> bool:
    """Whether the parser accepted what it was given; anything but a `UserError` comes through."""
    try:
        target.parse(data)
    except UserError:
        return False
    return True


def fuzz(name: str, target: Target, numbers: range, seed: int, at: Any, deadline: float) -> Outcome:
    """Run some numbered executions of one target, until a moment at the latest."""
    outcome, began = Outcome(), time.monotonic()
    _bound_memory()
    signal.signal(signal.SIGALRM, _hung)
    for number in numbers:
        if time.monotonic() > deadline:
            break
        at.value = number
        data = target.mutate(target.seeds, random.Random(f"{seed} {name} {number}"))
        outcome.executions += 1
        signal.alarm(LONGEST_S)
        try:
            accepted = execute(target, data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of a native library has no better base
            outcome.crashes += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} {last.filename}:{last.lineno}"
            outcome.examples.setdefault(kind, f"execution {number}\n{traceback.format_exc()}")
            continue
        finally:
            signal.alarm(0)
        outcome.accepted += accepted
        outcome.refused += not accepted
    outcome.seconds = time.monotonic() - began
    return outcome


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _hung(*_: object) -> None:
    raise HungError(f"longer than {LONGEST_S} s")


def _child(
    folder: Path, name: str, numbers: range, seed: int, at: Any, deadline: float, sender: Any
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        sender.send(
            fuzz(
                name,
                targets(folder / "materials", Path(scratch))[name],
                numbers,
                seed,
                at,
                deadline,
            )
        )


def _in_process(folder: Path, name: str, numbers: range, seed: int, deadline: float) -> Outcome:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    at = context.Value("q", -1)
    process = context.Process(
        target=_child, args=(folder, name, numbers, seed, at, deadline, sender)
    )
    process.start()
    sender.close()
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join()
        died = f"execution {at.value}: the process ended with code {process.exitcode}"
        outcome = Outcome(
            executions=max(at.value + 1 - numbers.start, 0), crashes=1, examples={"died": died}
        )
    process.join()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every reader of foreign bytes.")
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", help="this one alone; may be repeated")
    parser.add_argument(
        "--only", type=int, help="this execution alone, in this process; needs --target"
    )
    parser.add_argument("--least", type=int, default=0, help="executions of each target at least")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, default=7_200.0, help="no target begins an execution after this"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_materials(folder / "materials")
        known = targets(folder / "materials", folder)
        if options.only is not None:
            (name,) = options.target
            chance, target = random.Random(f"{options.seed} {name} {options.only}"), known[name]
            print("accepted" if execute(target, target.mutate(target.seeds, chance)) else "refused")
            return 0
        chosen = options.target or list(known)
        whole = sum(known[each].share for each in chosen)
        deadline = time.monotonic() + options.seconds

        def work(part: tuple[str, range]) -> Outcome:
            each, numbers = part
            if time.monotonic() > deadline:
                return Outcome()
            outcome = _in_process(folder, each, numbers, options.seed, deadline)
            print(
                f"{each}, from {numbers.start:,}: {outcome.crashes} crashes",
                file=sys.stderr,
                flush=True,
            )
            return outcome

        parts = []
        for each in chosen:
            count = max(options.least, -(-options.executions * known[each].share // whole))
            size = TOGETHER * known[each].share
            parts += [(each, range(at, min(at + size, count))) for at in range(0, count, size)]
        # Parts of one target are apart, so that a limit of time cuts off the last of all.
        parts.sort(key=lambda part: part[1].start / known[part[0]].share)
        outcomes = {each: Outcome() for each in chosen}
        with ThreadPoolExecutor(options.workers) as pool:
            for (each, _), outcome in zip(parts, pool.map(work, parts), strict=True):
                outcomes[each].add(outcome)
    return _summarise(outcomes)


def _summarise(outcomes: dict[str, Outcome]) -> int:
    print("| reader | executions | accepted | refused | crashes |\n|---|---|---|---|---|")
    for name, each in sorted(outcomes.items()):
        print(
            f"| {name} | {each.executions:,} | {each.accepted:,} | {each.refused:,} | "
            f"{each.crashes} |"
        )
    total = sum(each.executions for each in outcomes.values())
    crashes = sum(each.crashes for each in outcomes.values())
    for name, each in outcomes.items():
        for example in each.examples.values():
            print(f"\n{name}, {example}", file=sys.stderr, flush=True)
    totals = {
        "executions": total,
        "readers": len(outcomes),
        "least": min(each.executions for each in outcomes.values()),
    }
    seconds = round(sum(each.seconds for each in outcomes.values()))
    print(json.dumps({**totals, "crashes": crashes, "seconds_of_work": seconds}))
    return int(crashes > 0)


if __name__ == "__main__":
    sys.exit(main())
