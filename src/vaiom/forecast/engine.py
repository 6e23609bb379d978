"""What runs a model: PyTorch for a checkpoint, ONNX Runtime for an exported file. One contract for both.

Enters: windows of events (B, T, F) and metadata (B, 3) as NumPy arrays. Leaves: probabilities (B, 16), float64.
A window shorter than the context begins at the first position, as the beginning of a training window does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.tokenizer import Tokenizer
from vaiom.files import canonical_json, sha256_of
from vaiom.model.checkpoint import Checkpoint, Provenance
from vaiom.model.config import ModelConfig
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.training.precision import resolve_device

FORMAT = "vaiom-onnx"
FORMAT_VERSION = 1
TOLERANCE = 1e-6
"""Probabilities of two engines, or of one engine in two batches, differ by no more than this."""

Events = npt.NDArray[np.float32]
Meta = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Card:
    """What a model is and where it comes from, whichever file it was loaded from."""

    config: ModelConfig
    tokenizer: Tokenizer
    provenance: Provenance
    sha256: str
    """Of the trained tensors."""

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.config.to_json(),
            "tokenizer": self.tokenizer.to_json(),
            "provenance": asdict(self.provenance),
            "tensors_sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], where: Path) -> Card:
        return cls(
            config=ModelConfig.from_json(value["model"]),
            tokenizer=Tokenizer.from_json(value["tokenizer"], where),
            provenance=Provenance(**value["provenance"]),
            sha256=value["tensors_sha256"],
        )

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Card:
        return cls(
            config=checkpoint.model.config,
            tokenizer=checkpoint.tokenizer,
            provenance=checkpoint.provenance,
            sha256=checkpoint.sha256,
        )


class Engine(Protocol):
    name: str

    def probs(self, events: Events, meta: Meta) -> Probabilities:
        """(B, 16) for what follows each window; all windows of a call have one length."""
        ...

    def growing_probs(self, events: Events, meta: Meta) -> Probabilities:
        """(T, 16) for what follows each beginning of one window (T, F): its first row, its first two, and so on."""
        ...


class TorchEngine:
    name = "torch"

    def __init__(self, model: Vaiom, device: str = "cpu", threads: int | None = None) -> None:
        self.device = resolve_device(device)
        self.model = model.to(self.device).eval()
        self.threads = threads

    def probs(self, events: Events, meta: Meta) -> Probabilities:
        with torch.inference_mode(), _threads(self.threads):
            return _normalised(self.model.log_probs(*self._tensors(events, meta)).double().cpu().numpy())

    def growing_probs(self, events: Events, meta: Meta) -> Probabilities:
        # The decoder is causal, so that one pass answers for every beginning.
        with torch.inference_mode(), _threads(self.threads):
            logits = self.model(*self._tensors(events[None], meta[None]))
            return _normalised(return_log_probs(logits)[0].double().cpu().numpy())

    def _tensors(self, events: Events, meta: Meta) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(events).to(self.device), torch.from_numpy(meta).to(self.device)


class OnnxEngine:
    name = "onnxruntime"

    def __init__(self, model: Path | bytes, threads: int | None = None) -> None:
        runtime = onnx_library("onnxruntime")
        options = runtime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        source = model if isinstance(model, bytes) else str(model)
        self.session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def probs(self, events: Events, meta: Meta) -> Probabilities:
        [log_probs] = self.session.run(["log_probs"], {"events": events, "meta": meta})
        return _normalised(log_probs.astype(np.float64))

    def growing_probs(self, events: Events, meta: Meta) -> Probabilities:
        beginnings = (events[None, :stop] for stop in range(1, len(events) + 1))
        return np.concatenate([self.probs(beginning, meta[None]) for beginning in beginnings])

    @property
    def metadata(self) -> dict[str, str]:
        found: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        return found


def open_exported(path: Path, threads: int | None = None) -> tuple[OnnxEngine, Card]:
    """Load a file that `vaiom export` wrote; it must still answer a known window as it did then."""
    try:
        engine = OnnxEngine(path, threads)
    except ConfigError:
        raise
    except Exception as error:  # the runtime's own errors have no common base below this
        raise CheckpointError(
            "not readable as an ONNX model", where=path, got=str(error).splitlines()[0], fix="export it again"
        ) from error
    text = engine.metadata.get("vaiom", "")
    if not text or sha256_of(text.encode()) != engine.metadata.get("vaiom_sha256"):
        raise _foreign(path, "an ONNX model without an intact vaiom header")
    try:
        header = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise _foreign(path, "a header that is no JSON object") from error
    if (header.get("format"), header.get("format_version")) != (FORMAT, FORMAT_VERSION):
        raise _foreign(path, f"{header.get('format')} version {header.get('format_version')}")
    try:
        card = Card.from_json(header, path)
        probe = np.array(header["probe"], np.float64)
    except (KeyError, TypeError, ValueError, DataError) as error:
        raise _foreign(path, f"contents that do not describe a model: {str(error).splitlines()[0]}") from error
    difference = np.abs(engine.probs(*probe_window(card)) - probe).max()
    if not difference <= TOLERANCE:
        raise CheckpointError(
            "the model does not answer as it did when it was exported",
            where=path,
            expected=f"probabilities within {TOLERANCE:g}",
            got=f"a difference of {difference:.2g}",
            fix="export it again",
        )
    return engine, card


def header_of(card: Card, probe: Probabilities) -> dict[str, str]:
    """What an exported file says of itself."""
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, **card.to_json(), "probe": probe.tolist()}
    text = canonical_json(header).decode()
    return {"vaiom": text, "vaiom_sha256": sha256_of(text.encode())}


def made_up_windows(card: Card, count: int, seed: int) -> tuple[Events, Meta]:
    """Windows of full context with values that the model's input branch can meet."""
    draw, config = np.random.default_rng(seed), card.config
    shape = (count, config.context, len(config.input_fields))
    events: npt.NDArray[Any]
    if config.input == "disc":
        sizes = card.tokenizer.vocabulary_sizes
        events = draw.integers(0, [sizes[name] for name in config.input_fields], shape)
    else:
        events = 3 * draw.standard_normal(shape)
    assets = draw.integers(0, len(card.tokenizer.symbols) + 1, count)
    return events.astype(np.float32), np.stack([assets, np.zeros_like(assets), np.zeros_like(assets)], axis=1)


def probe_window(card: Card) -> tuple[Events, Meta]:
    """The window whose answer an exported file carries."""
    return made_up_windows(card, 1, seed=0)


def onnx_library(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"exported models need {name}, which is not installed", fix="pip install 'vaiom[export]'"
        ) from error


def _normalised(log_probs: Probabilities) -> Probabilities:
    probs = np.exp(log_probs)
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True))


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """PyTorch's thread count is the process's: it is set for the pass and put back."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _foreign(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "a file of another kind or schema",
        where=path,
        expected=f"{FORMAT} version {FORMAT_VERSION}",
        got=got,
        fix="export the run again with this version of vaiom",
    )
