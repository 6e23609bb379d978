"""What turns rows of events into probabilities: one small contract, PyTorch behind it (ONNX Runtime: `export`).

Enters: rows of one or many assets, (T, F) or (B, T, F), and metadata, (3,) or (B, 3), as NumPy arrays. Leaves:
probabilities of the return buckets, float64. A window shorter than the context begins at the first position, as the
beginning of a training window does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import resolve_device

TOLERANCE = 1e-6
"""Probabilities of two engines, or of one engine in two batches, differ by no more than this."""
BATCH = 32
"""Windows that go through a model together."""

Events = npt.NDArray[np.float32]
Meta = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


class Engine(ABC):
    """A model that answers for the rows of windows."""

    name: str

    @abstractmethod
    def probs(self, events: Events, meta: Meta) -> Probabilities:
        """(B, 16) for what follows each window (B, T, F)."""

    @abstractmethod
    def probs_of_beginnings(self, events: Events, meta: Meta) -> Probabilities:
        """(T, 16) for what follows each beginning of one window (T, F): its first row, its first two, and so on."""

    def probs_after_each(self, events: Events, meta: Meta, context: int) -> Probabilities:
        """(T, 16) for what follows each row of a history (T, F), from it and at most `context` - 1 rows before it."""
        probs = [self.probs_of_beginnings(events[:context], meta)]
        windows = np.lib.stride_tricks.sliding_window_view(events, min(context, len(events)), axis=0)
        for start in range(1, len(windows), BATCH):
            batch = windows[start : start + BATCH].swapaxes(1, 2).copy()
            probs.append(self.probs(batch, np.repeat(meta[None], len(batch), axis=0)))
        return np.concatenate(probs)


class TorchEngine(Engine):
    """A network in PyTorch, on any device."""

    name = "torch"

    def __init__(self, model: Vaiom, device: str = "cpu", threads: int | None = None) -> None:
        self.device = resolve_device(device)
        self.model = model.to(self.device).eval()
        self.threads = threads

    def probs(self, events: Events, meta: Meta) -> Probabilities:
        with torch.inference_mode(), _threads(self.threads):
            return normalise(self.model.log_probs(*self._tensors(events, meta)).double().cpu().numpy())

    def probs_of_beginnings(self, events: Events, meta: Meta) -> Probabilities:
        # The decoder is causal, so that one pass answers for every beginning.
        with torch.inference_mode(), _threads(self.threads):
            logits = self.model(*self._tensors(events[None], meta[None]))
            return normalise(return_log_probs(logits)[0].double().cpu().numpy())

    def _tensors(self, events: Events, meta: Meta) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(events).to(self.device), torch.from_numpy(meta).to(self.device)


def normalise(log_probs: Probabilities) -> Probabilities:
    """Probabilities whose sum is 1 in double precision too."""
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
