"""The backend in PyTorch, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from vaiom.forecast.backend import Backend, Events, Meta, Probabilities, normalise
from vaiom.model.heads import return_log_probs
from vaiom.model.horizon_heads import HorizonHeads
from vaiom.model.incremental import IncrementalDecoder
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import resolve_device

CHUNK_ROWS = 4_096
"""Rows of a history whose probabilities one pass through a model with windowed attention gives."""


class TorchBackend(Backend):
    """A network in PyTorch, on any device."""

    name = "torch"

    def __init__(
        self,
        model: Vaiom,
        device: str = "cpu",
        threads: int | None = None,
        horizons: HorizonHeads | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self.device = resolve_device(device)
        self.model = model.to(self.device).eval()
        self.threads = threads
        self.horizons = horizons
        self.chunk_rows = chunk_rows
        self.decoder = IncrementalDecoder.of(model) if model.config.attention_window else None

    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        return np.asarray(self._probs(events, meta, horizon, last_only=True)[:, -1])

    def probs_of_prefixes(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        # The decoder is causal, so one pass covers every prefix.
        return np.asarray(self._probs(events[None], meta[None], horizon, last_only=False)[0])

    def probs_after_each(
        self, events: Events, meta: Meta, context: int, horizon: int = 1
    ) -> Probabilities:
        config = self.model.config
        if not config.attention_window:
            return super().probs_after_each(events, meta, context, horizon)
        # Chunks overlap by the receptive field, so that no row lacks what it depends on.
        probs = []
        for start in range(0, len(events), self.chunk_rows):
            first = max(0, start - config.receptive_field + 1)
            chunk = events[first : start + self.chunk_rows]
            probs.append(self.probs_of_prefixes(chunk, meta, horizon)[start - first :])
        return np.concatenate(probs)

    def _probs(self, events: Events, meta: Meta, horizon: int, *, last_only: bool) -> Probabilities:
        """(B, T, 16), or (B, 1, 16) after the last row."""
        with torch.inference_mode(), _num_threads(self.threads):
            x_BTF = torch.from_numpy(events).to(self.device)
            meta_BM = torch.from_numpy(meta).to(self.device)
            hidden = self.model.hidden(x_BTF, meta_BM, last_only)
            if horizon == 1:
                log_probs = return_log_probs(self.model.heads(hidden))
                return normalise(log_probs.double().cpu().numpy())
            assert self.horizons
            num_rows = hidden.shape[1]
            hidden_BTD = hidden.float().cpu().numpy()
            return self.horizons.probs(hidden_BTD, events[:, -num_rows:], horizon)


@contextmanager
def _num_threads(number: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads, which the whole process shares, for one pass."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
