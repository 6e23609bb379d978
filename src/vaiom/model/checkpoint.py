"""Checkpoints: safetensors, never pickle, with a header that is verified when they are read.

Enters: a model, its tokenizer and its provenance. Leaves: a file that explains itself: its header
has the configuration, the tokenizer, hashes of the data, splits, seed and step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vaiom.codec import from_json, to_json
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.errors import CheckpointError, DataError
from vaiom.files import canonical_json, sha256_of, write_bytes
from vaiom.model.config import ModelConfig
from vaiom.run import Run, find_run

if TYPE_CHECKING:
    from torch import Tensor

    from vaiom.model.vaiom import Vaiom

T = TypeVar("T")
Tensors = dict[str, npt.NDArray[Any]]

FORMAT = "vaiom-checkpoint"
FORMAT_VERSION = 2
EVIDENCE = "evidence"
USE = "use"
_BAD_CONTENTS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RuntimeError,
    DataError,
)
"""What contents raise that do not describe a model."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a model comes from and which data it has seen."""

    vaiom_version: str
    corpus_sha256: str
    inputs: list[dict[str, Any]]
    """Name, hash and number of rows of each file of bars."""
    splits: dict[str, Any]
    """Split boundaries; Train ends at `train_end`."""
    experiment: str
    train: dict[str, Any]
    seed: int
    step: int
    validation_bits: float | None
    purpose: str = EVIDENCE
    """A model for use was trained through the newest bars, so no data is left to evaluate it on."""
    start_sha256: str | None = None
    """Hash of the initial weights; None if training started from random ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCard:
    """A model's configuration, tokenizer and provenance, whatever file it was loaded from."""

    config: ModelConfig
    tokenizer: Tokenizer
    provenance: Provenance
    sha256: str
    """Hash of the trained tensors."""

    def corpus_options(self) -> dict[str, Any]:
        """Corpus settings under which other bars can be scored by the model and used to train it
        further.
        """
        splits = SplitConfig.from_json(self.provenance.splits)
        return {"like": self.tokenizer, "timeframe": self.tokenizer.timeframe, "splits": splits}


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint(ModelCard):
    """A model card with the network itself."""

    model: Vaiom


def save_checkpoint(path: Path, model: Vaiom, tokenizer: Tokenizer, provenance: Provenance) -> str:
    """Write a model atomically; returns the hash of its tensors."""
    header = {
        "model": to_json(model.config),
        "tokenizer": tokenizer.to_json(),
        "tokenizer_sha256": tokenizer.sha256,
        "provenance": to_json(provenance),
    }
    return write_tensors(path, FORMAT, FORMAT_VERSION, header, arrays_of(model.saved_tensors()))


def load_model(path: str | Path) -> Checkpoint:
    """Load the selected model of a run folder, a packaged model by name, or a checkpoint file."""
    resolved = find_run(Path(path))
    return load_checkpoint(resolved if resolved.is_file() else Run(resolved).best)


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a model, or raise an error that says why the file cannot be trusted."""
    card, model = read_checkpoint(path, network)
    return Checkpoint(**vars(card), model=model)


def network(card: ModelCard, tensors: Tensors) -> Vaiom:
    """A PyTorch model with the tensors of its checkpoint."""
    import torch

    from vaiom.model.vaiom import unallocated_model

    # Mismatches are refused before memory is allocated.
    model = unallocated_model(card.config, card.tokenizer.vocabulary_sizes)
    state = {name: torch.tensor(array) for name, array in tensors.items()}
    model.load_state_dict(state, assign=True)
    return model.eval()


def read_checkpoint(path: Path, make: Callable[[ModelCard, Tensors], T]) -> tuple[ModelCard, T]:
    """The card of a checkpoint, and the model that `make` builds from it and its tensors."""
    header, tensors = read_tensors(path, FORMAT, FORMAT_VERSION)
    try:
        card = read_card(header, path)
        return card, make(card, tensors)
    except _BAD_CONTENTS as error:
        got = f"contents that do not describe a model: {str(error).splitlines()[0]}"
        raise _foreign(path, FORMAT, FORMAT_VERSION, got) from error


def read_card(header: dict[str, Any], path: Path) -> ModelCard:
    """The model card in the header of a model file."""
    return ModelCard(
        config=from_json(ModelConfig, header["model"]),
        tokenizer=Tokenizer.from_json(header["tokenizer"], path),
        provenance=from_json(Provenance, header["provenance"]),
        sha256=header["tensors_sha256"],
    )


def arrays_of(tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors as NumPy arrays on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def write_tensors(
    path: Path, kind: str, version: int, contents: dict[str, Any], tensors: Tensors
) -> str:
    """Write a file that `read_tensors` can verify, atomically; returns the hash of the tensors."""
    digest = tensors_sha256(tensors)
    text = canonical_json(
        {"format": kind, "format_version": version, **contents, "tensors_sha256": digest}
    )
    data = save(tensors, {"vaiom": text.decode(), "vaiom_sha256": sha256_of(text)})
    # The library's order of header keys varies: they are sorted, and padded so that tensors stay
    # aligned.
    end = 8 + int.from_bytes(data[:8], "little")
    header = canonical_json(json.loads(data[8:end]))
    header += b" " * (-len(header) % 8)
    length = len(header).to_bytes(8, "little")
    write_bytes(path, length + header + data[end:])
    return digest


def read_tensors(path: Path, kind: str, version: int) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors of a file written by this package, hashes checked."""
    fix = "take another checkpoint of the run; to resume from an earlier state, remove this one"
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            # Copies: verified data must not change with the file later.
            tensors = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError("no such checkpoint", where=path) from error
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        exported = path.suffix == ".onnx"
        raise CheckpointError(
            "not a readable checkpoint: truncated, damaged, or not safetensors at all",
            where=path,
            expected="a .safetensors file written by `vaiom train`",
            got=str(error).splitlines()[0],
            fix="name the run that it was exported from" if exported else fix,
        ) from error
    try:
        header = dict(json.loads(metadata["vaiom"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _foreign(path, kind, version, "a safetensors file without a vaiom header") from error
    found = (header.get("format"), header.get("format_version"))
    if found != (kind, version):
        raise _foreign(path, kind, version, "{} version {}".format(*found))
    intact = sha256_of(metadata["vaiom"].encode()) == metadata.get("vaiom_sha256")
    if not intact or tensors_sha256(tensors) != header.get("tensors_sha256"):
        raise CheckpointError(
            "the file was altered: its contents are not what was written", where=path, fix=fix
        )
    return header, tensors


def tensors_sha256(tensors: Tensors) -> str:
    """A hash over names, types as PyTorch calls them, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} torch.{array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _foreign(path: Path, kind: str, version: int, got: str) -> CheckpointError:
    """The error of a file that is something else than was expected."""
    return CheckpointError(
        "a file of another kind or version",
        where=path,
        expected=f"{kind} version {version}",
        got=got,
        fix="train again with this version of vaiom, or use the version that wrote the file",
    )
