"""`vaiom --help`, against a Python that does nothing.

Enters: nothing. Leaves: a `Measurement` whose `extra` holds the difference, which is what a user
waits for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.race import Measurement, race
from vaiom.errors import VaiomError

REPEATS = 15
# What the installed `vaiom` script runs, without depending on where it was installed.
HELP = (sys.executable, "-c", "from vaiom.cli.main import main; main()", "--help")
NOTHING = (sys.executable, "-c", "pass")


def run(
    _bars: Path | None = None, _corpus: Path | None = None, repeats: int = REPEATS
) -> Measurement:
    """Time `vaiom --help` against an empty Python."""
    equal = require_help(_output(HELP))
    ours_seconds, reference_seconds = race(lambda: _output(HELP), lambda: _output(NOTHING), repeats)
    return Measurement(
        name="startup",
        input="vaiom --help",
        ours_seconds=ours_seconds,
        reference_seconds=reference_seconds,
        equal=equal,
        extra={"difference_seconds": ours_seconds - reference_seconds},
    )


def require_help(text: str) -> str:
    """A command that prints nothing would be fast."""
    if "Usage:" not in text or "data" not in text:
        raise VaiomError(f"`vaiom --help` printed no help: {text[:200]!r}")
    return "the help was printed"


def _output(command: tuple[str, ...]) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
