"""Find a model's file and open it in the backend that suits it.

Enters: what a user calls a model: a run folder, a packaged model's name, a checkpoint or an
exported file. Leaves: a `Backend` and the model card.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vaiom.errors import CheckpointError, ConfigError, require_installed
from vaiom.forecast import onnx_backend
from vaiom.forecast.backend import Backend, NumpyBackend, random_windows
from vaiom.model.checkpoint import ModelCard, Tensors, network, read_checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.model.incremental import IncrementalDecoder
from vaiom.run import BEST_NAME, Run, find_run

if TYPE_CHECKING:
    from vaiom.model.vaiom import Vaiom

_CPU = (None, "cpu", "auto")


def find_model_file(path: str | Path) -> Path:
    """The file of a model: a folder has a selected checkpoint, or one exported file."""
    file = find_run(Path(path))
    if file.is_file():
        return file
    best = Run(file).best
    if best.is_file():
        return best
    exported = list(file.glob(f"*{onnx_backend.SUFFIX}"))
    if len(exported) == 1:
        return exported[0]
    kinds = f"a run folder with {best.name}, a folder with one {onnx_backend.SUFFIX} file"
    got = "neither"
    fix = "`vaiom train` makes a run, `vaiom models` lists packaged ones"
    if exported:
        got = f"{len(exported)} exported files"
        fix = "name one"
    expected = f"{kinds}, or such a file"
    raise CheckpointError("no model to load here", where=file, expected=expected, got=got, fix=fix)


def open_model(
    file: Path, device: str | None = "cpu", threads: int | None = None
) -> tuple[Backend, ModelCard]:
    """Open a checkpoint in PyTorch or NumPy, with heads for longer horizons beside a run's best
    one; an exported file in ONNX Runtime.

    Without a device, models with windowed attention run in NumPy: importing PyTorch takes longer
    than a few forecasts.
    """
    if file.suffix == onnx_backend.SUFFIX:
        if device not in _CPU:
            got = f"device={device}"
            raise ConfigError("exported models run on CPUs", got=got, fix="load the run folder")
        return onnx_backend.open_exported(file, threads)
    if device not in _CPU:
        require_installed("torch")
    without_torch = device is None or not find_spec("torch")

    def make(card: ModelCard, tensors: Tensors) -> IncrementalDecoder | Vaiom:
        if without_torch and card.config.attention_window:
            return _make_decoder(card, tensors)
        require_installed("torch")
        return network(card, tensors)

    card, model = read_checkpoint(file, make)
    run = Run(file.parent)
    has_horizons = file.name == BEST_NAME and run.horizons.is_file()
    horizons = load_horizons(run.horizons, card) if has_horizons else None
    if isinstance(model, IncrementalDecoder):
        return NumpyBackend(model, horizons), card
    from vaiom.forecast.torch_backend import TorchBackend

    return TorchBackend(model, device or "cpu", threads, horizons), card


def _make_decoder(card: ModelCard, tensors: Tensors) -> IncrementalDecoder:
    """A decoder with these tensors; fails here if they do not fit the model."""
    decoder = IncrementalDecoder(card.config, tensors)
    events, meta = random_windows(card, 1, seed=0)
    decoder.decode(None, events[0, :1], meta[0])
    return decoder
