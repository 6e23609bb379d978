"""Inference backends, from rows of events to float64 probabilities of the return buckets: the
interface, NumPy and ONNX.

A window shorter than the context starts at the first position, like a training window.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vaiom.errors import CheckpointError, DataError, require_installed
from vaiom.files import sha256_of
from vaiom.model.checkpoint import ModelCard, Tensors, network, read_card, read_checkpoint
from vaiom.model.horizon_heads import HorizonHeads, load_horizons
from vaiom.model.incremental import IncrementalDecoder, KVCache
from vaiom.run import BEST_NAME, Run

if TYPE_CHECKING:
    from vaiom.model.vaiom import Vaiom

EXPORTED_SUFFIX = ".onnx"
FORMAT = "vaiom-onnx"
FORMAT_VERSION = 1
TOLERANCE = 1e-6
"""Probabilities of two backends, or of two batches, differ by no more than this."""
BATCH = 32
"""Windows per pass through a model."""

PROBE_SEED = 0

Events = npt.NDArray[np.float32]
Meta = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


class Backend(ABC):
    """A model that maps windows of rows to probabilities."""

    name: str
    decoder: IncrementalDecoder | None = None
    """Incremental inference, if the model supports it."""
    horizons: HorizonHeads | None = None
    """Heads for longer horizons."""

    @abstractmethod
    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        """(B, 16) for what follows each window (B, T, F)."""

    def probs_of_prefixes(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        """(T, 16) for what follows each prefix of one window (T, F)."""
        prefixes = (events[None, :stop] for stop in range(1, len(events) + 1))
        return np.concatenate([self.probs(prefix, meta[None], horizon) for prefix in prefixes])

    def probs_after_each(
        self, events: Events, meta: Meta, context: int, horizon: int = 1
    ) -> Probabilities:
        """(T, 16) for what follows each row of a history (T, F), from it and at most `context` - 1
        rows before it.
        """
        probs = [self.probs_of_prefixes(events[:context], meta, horizon)]
        windows = np.lib.stride_tricks.sliding_window_view(
            events, min(context, len(events)), axis=0
        )
        for start in range(1, len(windows), BATCH):
            batch = windows[start : start + BATCH].swapaxes(1, 2).copy()
            probs.append(self.probs(batch, np.repeat(meta[None], len(batch), axis=0), horizon))
        return np.concatenate(probs)


class NumpyBackend(Backend):
    """A model with windowed attention, in NumPy."""

    name = "numpy"

    def __init__(self, step: IncrementalDecoder, horizons: HorizonHeads | None) -> None:
        self.decoder: IncrementalDecoder = step
        self.horizons = horizons

    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        memories = [self.decoder.prefill(*each) for each in zip(events, meta, strict=True)]
        return self._probs(memories, events[:, -1], horizon)

    def probs_of_prefixes(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        return self._probs(self.decoder.decode(None, events, meta), events, horizon)

    def _probs(self, memories: Sequence[KVCache], events: Events, horizon: int) -> Probabilities:
        if horizon == 1:
            return np.stack([memory.probs for memory in memories])
        assert self.horizons
        return self.horizons.probs(
            np.stack([memory.hidden for memory in memories]), events, horizon
        )

    def probs_after_each(
        self, events: Events, meta: Meta, context: int, horizon: int = 1
    ) -> Probabilities:
        # No output depends on more rows than a context has.
        return self.probs_of_prefixes(events, meta, horizon)


class OnnxBackend(Backend):
    """An exported network in ONNX Runtime, on CPUs."""

    name = "onnxruntime"

    def __init__(self, model: Path | bytes, threads: int | None = None) -> None:
        require_installed("onnxruntime")
        import onnxruntime as runtime

        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0  # 0: the runtime's choice
        source = model if isinstance(model, bytes) else str(model)
        self.session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        assert horizon == 1
        [log_probs] = self.session.run(["log_probs"], {"events": events, "meta": meta})
        return normalise(log_probs.astype(np.float64))


def open_checkpoint(
    path: Path, device: str | None = "cpu", threads: int | None = None
) -> tuple[Backend, ModelCard]:
    """Load a checkpoint into PyTorch or NumPy, with the horizons beside a run's best one.

    Without a device, models that stream run in NumPy: importing PyTorch takes longer than a few
    forecasts.
    """
    run = Run(path.parent)
    further = run.horizons if path.name == BEST_NAME and run.horizons.is_file() else None

    def make(card: ModelCard, tensors: Tensors) -> IncrementalDecoder | Vaiom:
        if (device is None or not find_spec("torch")) and card.config.attention_window:
            step, (events, meta) = (
                IncrementalDecoder(card.config, tensors),
                random_windows(card, 1, PROBE_SEED),
            )
            step.decode(None, events[0, :1], meta[0])  # tensors that do not fit fail here
            return step
        require_installed("torch")
        return network(card, tensors)

    if device not in (None, "cpu", "auto"):
        require_installed("torch")
    card, model = read_checkpoint(path, make)
    horizons = load_horizons(further, card) if further else None
    if isinstance(model, IncrementalDecoder):
        return NumpyBackend(model, horizons), card
    from vaiom.forecast.torch_backend import TorchBackend

    return TorchBackend(model, device or "cpu", threads, horizons), card


def open_exported(path: Path, threads: int | None = None) -> tuple[OnnxBackend, ModelCard]:
    """Load a file written by `vaiom export`; it must reproduce its stored answer to a
    known window.
    """
    require_installed("onnxruntime")
    try:
        backend = OnnxBackend(path, threads)
    except Exception as error:  # the runtime's errors share no other base
        got = str(error).splitlines()[0]
        raise CheckpointError(
            "not readable as an ONNX model", where=path, got=got, fix="export it again"
        ) from error
    metadata = backend.session.get_modelmeta().custom_metadata_map
    try:
        text = metadata.get("vaiom", "")
        if not text or sha256_of(text.encode()) != metadata.get("vaiom_sha256"):
            raise ValueError("an ONNX model without an intact vaiom header")
        header = json.loads(text)
        if (header["format"], header["format_version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"{header['format']} version {header['format_version']}")
        card, probe = read_card(header, path), np.array(header["probe"], np.float64)
    except (KeyError, TypeError, ValueError, DataError) as error:
        expected, got = f"{FORMAT} version {FORMAT_VERSION}", str(error).splitlines()[0]
        problem, fix = (
            "a file of another kind or schema",
            "export the run again with this version of vaiom",
        )
        raise CheckpointError(problem, where=path, expected=expected, got=got, fix=fix) from error
    difference = np.abs(backend.probs(*random_windows(card, 1, PROBE_SEED)) - probe).max()
    if not difference <= TOLERANCE:
        problem, fix = "the model does not answer as it did when it was exported", "export it again"
        expected, got = f"probabilities within {TOLERANCE:g}", f"a difference of {difference:.2g}"
        raise CheckpointError(problem, where=path, expected=expected, got=got, fix=fix)
    return backend, card


def random_windows(card: ModelCard, count: int, seed: int) -> tuple[Events, Meta]:
    """Random windows of full context with valid values for the model's inputs."""
    draw, config = np.random.default_rng(seed), card.config
    shape = (count, config.context, len(config.input_fields))
    sizes = card.tokenizer.vocabulary_sizes
    if config.input == "disc":
        events: Any = draw.integers(0, [sizes[name] for name in config.input_fields], shape)
    else:
        events = 3 * draw.standard_normal(shape)
    meta = np.zeros((count, 3), np.int64)
    meta[:, 0] = draw.integers(0, sizes["asset_id"], count)
    return events.astype(np.float32), meta


def normalise(log_probs: Probabilities) -> Probabilities:
    """Probabilities, normalised in double precision."""
    probs = np.exp(log_probs)
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True))
