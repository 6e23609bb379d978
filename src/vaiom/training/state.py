"""What a run needs to go on after it was killed: optimizer moments, loss scale, random states. Safetensors, no pickle.

Enters: a `TrainStep` and the record of the run. Leaves: a file beside the checkpoint, or the same state restored.
On a CPU the resumed run repeats the uninterrupted one to the bit.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from vaiom.errors import CheckpointError
from vaiom.files import write_bytes
from vaiom.model.checkpoint import read_tensors, tensors_sha256
from vaiom.training.step import TrainStep

FORMAT = "vaiom-training-state"
FORMAT_VERSION = 1
_STEP = re.compile(r"step-(\d+)\.state\.safetensors")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """How far a run is and what was best so far."""

    step: int = 0
    best_step: int = 0
    best_bits: float | None = None
    stale_validations: int = 0
    config_sha256: str = ""
    corpus_sha256: str = ""


def checkpoint_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:07d}.safetensors"


def state_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:07d}.state.safetensors"


def save_state(path: Path, step: TrainStep, record: RunRecord) -> None:
    tensors = {f"model/{name}": value.detach().cpu() for name, value in step.model.state_dict().items()}
    for name, parameter in step.model.named_parameters():
        for key, value in step.optimizer.state[parameter].items():
            tensors[f"optimizer/{key}/{name}"] = value.detach().cpu()
    tensors["rng/cpu"] = torch.get_rng_state()
    if step.device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(step.device)
    # A file of its own memory: safetensors refuses tensors that share any.
    tensors = {name: value.contiguous().clone() for name, value in tensors.items()}
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "record": asdict(record),
        "scaler": step.scaler.state_dict() if step.scaler.is_enabled() else {},
        "tensors_sha256": tensors_sha256(tensors),
    }
    write_bytes(path, save(tensors, {"vaiom": json.dumps(header, sort_keys=True)}))


def load_state(path: Path, step: TrainStep) -> RunRecord:
    """Restore model, optimizer, scaler and random states in place."""
    header, tensors = read_tensors(path, FORMAT, FORMAT_VERSION)
    try:
        names = list(step.model.state_dict())
        step.model.load_state_dict({name: tensors[f"model/{name}"] for name in names})
        for name, parameter in step.model.named_parameters():
            prefix, state = "optimizer/", {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                value = tensors[f"{prefix}{key}/{name}"]
                on_device = key != "step" or step.device.type == "cuda"
                state[key] = value.to(step.device) if on_device else value
            step.optimizer.state[parameter] = state
        if header["scaler"]:
            step.scaler.load_state_dict(header["scaler"])
        torch.set_rng_state(tensors["rng/cpu"])
        if step.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["rng/cuda"], step.device)
        return RunRecord(**header["record"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            "the training state does not fit this run",
            where=path,
            got=str(error).splitlines()[0],
            fix="resume with the configuration and device type the run was started with, or start a new run",
        ) from error


def latest_state(run: Path) -> Path | None:
    """The newest training state of a run folder."""
    found = {int(m[1]): path for path in (run / "checkpoints").glob("*.safetensors") if (m := _STEP.match(path.name))}
    return found[max(found)] if found else None
