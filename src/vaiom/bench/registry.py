"""The benchmarks by name, and how to run them.

Enters: names and, if given, a bar folder. Leaves: one plain dictionary per benchmark, ready for a table or JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from vaiom.errors import ConfigError

# Each name is a module beside this one with a function `run`; nothing is imported before it is asked for.
BENCHMARKS = {
    "events": "bars to the 25 continuous inputs, against plain pandas",
    "bars": "minute to hour bars, against pandas.resample, and the peak memory of a large folder",
    "startup": "`vaiom --help`, against an empty Python",
    "bootstrap": "10,000 block-bootstrap replicates, against a plain loop",
    "evaluate": "scoring held-out windows, against a full pass over all their positions",
    "predict": "one forecast of the main model, against a plain full pass; a live bar, model apart",
    "serve": "served forecasts, against a server that runs one pass for each request",
    "train": "an optimizer step of the main model, against plain PyTorch",
}


def run(
    names: Sequence[str] = (),
    bars: Path | None = None,
    corpus: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[dict[str, Any]]:
    """Run the named benchmarks, or all of them, on `bars` or `corpus` where they can use them."""
    for name in names:
        if name not in BENCHMARKS:
            raise ConfigError("unknown benchmark", expected=", ".join(BENCHMARKS), got=repr(name))
    chosen = list(names or BENCHMARKS)
    results = []
    for done, name in enumerate(chosen):
        if progress:
            progress(done, len(chosen), name)
        results.append(asdict(import_module(f"vaiom.bench.{name}").run(bars, corpus)))
    if progress:
        progress(len(chosen), len(chosen), "")
    return results
