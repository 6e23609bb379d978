"""`vaiom export`: a run's model as a file that other runtimes load."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note, print_json


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint.")],
    onnx: Annotated[Path, typer.Option(help="The file to write.")],
    corpus: Annotated[
        Path | None, typer.Option(help="Where to take real windows from for the check; else the run's corpus.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Write the selected model as ONNX, once it gives PyTorch's answers."""
    from vaiom.forecast.export import export_run

    made = export_run(run, onnx, corpus)
    if json:
        print_json(asdict(made))
        return
    note(
        f"{made.file}: {made.bytes / 2**20:.1f} MiB; probabilities within {made.largest_difference:.1g} of PyTorch's "
        f"on {made.random_windows} made-up and {made.real_windows} real windows"
    )
