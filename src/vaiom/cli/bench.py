"""`vaiom bench`: ratios against plain references measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import print_json, progress_bar


def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="All, unless named.")] = None,
    bars: Annotated[Path | None, typer.Option(help="A bar folder to measure on; else the simulated market.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="A corpus to train on; else one of the simulated market.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Measure speed and memory against plain references; run it on a quiet machine."""
    from vaiom.bench.registry import run

    with progress_bar("measuring") as progress:
        results = run(names or [], bars, corpus, progress)
    if json:
        print_json({"benchmarks": results})
        return
    from vaiom.cli.tables import print_benchmarks

    print_benchmarks(results)
