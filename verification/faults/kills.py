"""Kill -9 at random moments: what is visible is whole at once, and going on ends in the bytes of a
quiet run.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from dataclasses import dataclass, field, fields
from pathlib import Path

from verification.faults.commands import Ended, kill_at_random, require_clean, run
from verification.faults.stages import Contents, Stage

MOST_IN_A_ROW = 5


@dataclass
class Tally:
    """What became of the kills of one stage."""

    kills: int = 0
    too_late: int = 0
    """The command had ended before the kill."""
    rows: int = 0
    """Kills in a row, after which the work was finished."""
    finishes: int = 0
    """Of these, those that ended in the bytes of the quiet run."""
    refusals: int = 0
    """Going on without what the refusal asks for was refused, as it should be."""
    failures: list[str] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )


@dataclass(frozen=True)
class Quiet:
    """An undisturbed run of a stage."""

    ended: Ended
    result: Contents


def quiet_run(stage: Stage, folder: Path) -> Quiet:
    stage.before(_new(folder))
    ended = run(stage.arguments(folder, again=False))
    assert ended.code == 0, ended.err
    return Quiet(ended, stage.result(folder))


def torment(
    stage: Stage,
    quiet: Quiet,
    folder: Path,
    kills: int,
    chance: random.Random,
    until: float = math.inf,
) -> Tally:
    """Kill a stage some times, a few in a row, and finish it after each row; no row begins after a
    moment.
    """
    tally = Tally()
    while tally.kills < kills and time.monotonic() < until:
        stage.before(_new(folder))
        again = False
        for _ in range(min(chance.randint(1, MOST_IN_A_ROW), kills - tally.kills)):
            killed = kill_at_random(stage.arguments(folder, again), quiet.ended, chance)
            tally.kills += killed
            tally.too_late += not killed
            again = True
            try:
                stage.whole(folder)
            except Exception as error:
                tally.failures.append(
                    f"after {tally.kills} kills something visible is not whole: {error!r}"
                )
        tally.rows += 1
        _finish(stage, quiet, folder, tally)
    return tally


def _finish(stage: Stage, quiet: Quiet, folder: Path, tally: Tally) -> None:
    """First the same command, as somebody would who does not know; then, where it refuses, as it
    says.
    """
    ended = run(stage.arguments(folder, again=False))
    require_clean(ended)
    if ended.code == 2:
        tally.refusals += 1
        ended = run(stage.arguments(folder, again=True))
    if ended.code != 0:
        tally.failures.append(f"after {tally.kills} kills going on fails: {ended.err}")
        return
    result = stage.result(folder)
    names = sorted(
        name for name in {*result, *quiet.result} if result.get(name) != quiet.result.get(name)
    )
    tally.finishes += not names
    if names:
        tally.failures.append(f"after {tally.kills} kills another result: {', '.join(names[:5])}")


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
