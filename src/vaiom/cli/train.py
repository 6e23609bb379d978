"""`vaiom train`: an experiment learns a corpus and is selected on Validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaiom.cli.console import Progress, note, print_json, progress_bar

if TYPE_CHECKING:
    from vaiom.training.loop import TrainResult

TENSORBOARD_FOLDER = "tensorboard"


def train(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus folder.")],
    experiment: Annotated[str, typer.Option(help="A name from `vaiom experiments`.")],
    out: Annotated[Path, typer.Option(help="The run folder.")],
    seed: Annotated[int | None, typer.Option(help="Instead of the experiment's.")] = None,
    steps: Annotated[int | None, typer.Option(help="Instead of the experiment's.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Train an experiment and keep the model with the fewest Validation bits per event.

    Several processes share the work under `torchrun --nproc-per-node N --no-python vaiom train ...`.
    """
    from vaiom.events.corpus import open_corpus
    from vaiom.experiments.registry import experiment as named
    from vaiom.training.distributed import is_leader
    from vaiom.training.loop import train as run_training

    shortcuts = [f"{key}={value}" for key, value in (("seed", seed), ("steps", steps)) if value is not None]
    chosen = named(experiment).with_settings([*(settings or []), *shortcuts])
    with training_report("training", out) as report:
        result = run_training(open_corpus(corpus), chosen, out, device=device, resume=resume, report=report)
    if not is_leader():
        return
    if json:
        print_json(vars(result))
    else:
        summarise(result)


@contextmanager
def training_report(title: str, run: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What a run calls with each line of its metrics: progress for people, event files for TensorBoard."""
    with progress_bar(title) as progress, _event_files(run / TENSORBOARD_FOLDER) as write_events:
        rate = _Rate()

        def report(entry: dict[str, Any]) -> None:
            _show(entry, rate(entry), progress)
            write_events(entry)

        yield report


def _show(entry: dict[str, Any], steps_per_second: float | None, progress: Progress) -> None:
    done, total = entry["step"], entry["steps"]
    parts = [f"loss {entry['loss_nats']:.4f} nats"]
    if "validation_bits" in entry:
        parts.append(f"{entry['validation_bits']:.4f} bits")
    if entry["best_bits"] is not None:
        parts.append(f"best {entry['best_bits']:.4f}")
    if steps_per_second:
        parts.append(f"{steps_per_second:.1f} steps/s")
        if not sys.stderr.isatty():  # the bar of a terminal says it itself
            parts.append(f"{timedelta(seconds=round((total - done) / steps_per_second))} left")
    progress(done, total, ", ".join(parts))


class _Rate:
    """Steps per second since the line before."""

    def __init__(self) -> None:
        self._before: tuple[int, float] | None = None

    def __call__(self, entry: dict[str, Any]) -> float | None:
        before, self._before = self._before, (entry["step"], entry["seconds"])
        if before is None or entry["seconds"] <= before[1]:
            return None
        return float((entry["step"] - before[0]) / (entry["seconds"] - before[1]))


@contextmanager
def _event_files(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A writer of TensorBoard event files, or of nothing where the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda entry: None
        return
    writer: Any = None

    def write(entry: dict[str, Any]) -> None:
        nonlocal writer
        if writer is None:
            # A resumed run repeats what was shown after its state: those points give way.
            writer = SummaryWriter(str(folder), purge_step=entry["step"])
        for key in ("loss_nats", "validation_bits"):
            if key in entry:
                writer.add_scalar(key, entry[key], entry["step"])

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def summarise(result: TrainResult) -> None:
    from vaiom.cli.tables import show, table
    from vaiom.training.loop import BEST_NAME

    rows = [
        ["best step", f"{result.best_step:,}"],
        ["best Validation bits/event", f"{result.best_bits:.4f}"],
        ["last step", f"{result.last_step:,}"],
        ["Validation bits/event there", f"{result.last_bits:.4f}"],
        ["seconds, compilation apart", f"{result.seconds:.1f}"],
    ]
    if result.peak_gpu_mib is not None:
        rows.append(["peak GPU memory", f"{result.peak_gpu_mib:,.0f} MiB"])
    show(table(f"Run {result.run}", ["what", "value"], rows))
    note(f"\nThe model is {result.run / BEST_NAME}.")
