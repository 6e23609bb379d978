"""Inference backends: from windows of inputs to probabilities of the return buckets.

Enters: inputs `events` (B, T, F) and asset metadata `meta` (B, 3) of B windows of T rows. Leaves:
float64 probabilities (B, 16). This file has the interface and the backend in NumPy;
`torch_backend` and `onnx_backend` have the others. A window shorter than the context starts at the
first position, like a training window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vaiom.model.checkpoint import ModelCard
from vaiom.model.horizon_heads import HorizonHeads
from vaiom.model.incremental import IncrementalDecoder, KVCache

TOLERANCE = 1e-6
"""Probabilities of two backends, or of two batches, differ by no more than this."""
BATCH = 32
"""Windows per pass through a model."""

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
        """(B, 16) after each window (B, T, F)."""

    def probs_of_prefixes(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        """(T, 16) after each row of one window (T, F), from all its rows so far."""
        windows = [events[None, :stop] for stop in range(1, len(events) + 1)]
        return np.concatenate([self.probs(window, meta[None], horizon) for window in windows])

    def probs_after_each(
        self, events: Events, meta: Meta, context: int, horizon: int = 1
    ) -> Probabilities:
        """(T, 16) after each row of a history (T, F), from the last `context` rows so far."""
        probs = [self.probs_of_prefixes(events[:context], meta, horizon)]
        length = min(context, len(events))
        windows_TFC = np.lib.stride_tricks.sliding_window_view(events, length, axis=0)
        for start in range(1, len(windows_TFC), BATCH):
            batch = windows_TFC[start : start + BATCH].swapaxes(1, 2).copy()
            metas = np.repeat(meta[None], len(batch), axis=0)
            probs.append(self.probs(batch, metas, horizon))
        return np.concatenate(probs)


class NumpyBackend(Backend):
    """A model with windowed attention, in NumPy."""

    name = "numpy"

    def __init__(self, decoder: IncrementalDecoder, horizons: HorizonHeads | None) -> None:
        self.decoder: IncrementalDecoder = decoder
        self.horizons = horizons

    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        caches = [self.decoder.prefill(*each) for each in zip(events, meta, strict=True)]
        return self._probs(caches, events[:, -1], horizon)

    def probs_of_prefixes(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        return self._probs(self.decoder.decode(None, events, meta), events, horizon)

    def probs_after_each(
        self, events: Events, meta: Meta, context: int, horizon: int = 1
    ) -> Probabilities:
        # No output depends on more rows than a context has.
        return self.probs_of_prefixes(events, meta, horizon)

    def _probs(self, caches: Sequence[KVCache], events: Events, horizon: int) -> Probabilities:
        if horizon == 1:
            return np.stack([cache.probs for cache in caches])
        assert self.horizons
        hidden = np.stack([cache.hidden for cache in caches])
        return self.horizons.probs(hidden, events, horizon)


def random_windows(card: ModelCard, count: int, seed: int) -> tuple[Events, Meta]:
    """Random windows of a full context, (count, context, F) and (count, 3), with values that the
    model may meet.
    """
    rng = np.random.default_rng(seed)
    names = card.config.input_fields
    sizes = card.tokenizer.vocabulary_sizes
    shape = (count, card.config.context, len(names))
    if card.config.input == "disc":
        events = rng.integers(0, [sizes[name] for name in names], shape).astype(np.float32)
    else:
        events = (3 * rng.standard_normal(shape)).astype(np.float32)
    meta = np.zeros((count, 3), np.int64)
    meta[:, 0] = rng.integers(0, sizes["asset_id"], count)
    return events, meta


def normalise(log_probs: Probabilities) -> Probabilities:
    """Probabilities from their logarithms, with a sum of 1 in double precision."""
    probs = np.exp(log_probs)
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True))
