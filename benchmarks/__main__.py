"""`python -m benchmarks [NAME...]`, which is `vaiom bench`: each benchmark by name, as a table or
as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from vaiom.cli.console import print_json, progress_bar, user_errors
from vaiom.errors import ConfigError

# Each name is a module beside this one with a function `run`, imported when it is needed.
BENCHMARKS = {
    "events": "bars to the 25 continuous inputs, against plain pandas",
    "bars": "minute to hour bars, against pandas.resample, and the peak memory of a large folder",
    "startup": "`vaiom --help`, against an empty Python",
    "bootstrap": "10,000 block-bootstrap replicates, against a plain loop",
    "evaluate": "scoring held-out windows, against a full pass over all their positions",
    "predict": "one forecast of the main model, against a plain full pass; a live bar, model apart",
    "stream": "a live bar to its forecast where layers see a window, against a pass over that "
    "window; scoring likewise",
    "serve": "served forecasts, against a server that runs one pass for each request",
    "train": "an optimizer step of the main model, against plain PyTorch",
}


def run(
    names: Sequence[str] = (),
    bars: Path | None = None,
    corpus: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> list[dict[str, Any]]:
    """Run the named benchmarks, or all of them, on `bars` or `corpus` where they can use them."""
    for name in names:
        if name not in BENCHMARKS:
            raise ConfigError("unknown benchmark", expected=", ".join(BENCHMARKS), got=repr(name))
    chosen = list(names or BENCHMARKS)
    results = []
    for done, name in enumerate(chosen):
        progress(done, len(chosen), name)
        results.append(asdict(import_module(f"benchmarks.{name}").run(bars, corpus)))
    progress(len(chosen), len(chosen), "")
    return results


def main(words: Sequence[str] | None = None, program: str = "python -m benchmarks") -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        program,
        usage="%(prog)s [OPTIONS] [NAME]...",
        description="Measure speed and memory against plain reference code; use a quiet machine.",
    )
    about = "; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"Benchmarks to run; by default, all. {about}."
    )
    parser.add_argument(
        "--bars", type=Path, help="Bar folder to measure on; by default, a simulated market."
    )
    parser.add_argument(
        "--corpus", type=Path, help="Corpus to train on; by default, one of a simulated market."
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="Print one JSON object on stdout, and nothing else there.",
    )
    args = parser.parse_args(words)
    with progress_bar("measuring") as progress:
        results = run(args.names, args.bars, args.corpus, progress)
    if args.json:
        print_json({"benchmarks": results})
        return
    print("Ratios against plain references, measured in turns")
    for result in results:
        print(
            f"\n{result['name']}: {result['ratio']:.2f} times faster\n"
            f"  input        {result['input']}\n"
            f"  ours         {result['ours_seconds']:.4f} s\n"
            f"  reference    {result['reference_seconds']:.4f} s\n"
            f"  found equal  {result['equal']}"
        )
        for key, value in result["extra"].items():
            print(f"  {key}  {value}")


if __name__ == "__main__":
    with user_errors("benchmarks"):
        main()
