"""Which events the checkpoint answers once more, and how far honest arithmetic may lie from its answers.

The allowed distance is measured on the checkpoint itself and never on the file that is judged.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from vaiom.baselines.base import Floats, Rows
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import class_ids
from vaiom.events.corpus import Corpus
from vaiom.training.scoring import Scorer
from vaiom.training.windows import DeviceCorpus

SAMPLED = 4_096
"""Events that are scored again where each costs a window of its own; where rows share their passes, all are."""
MEASURED_WINDOWS, MEASURED_IN_STRETCHES = 64, 1_024
"""Events on which rounding is measured."""
FARTHEST, FARTHER = 8, 3
"""How many times as far as measured an event, and all of them together, may be: another machine has other kernels."""
UNIT = 2**-23
"""Relative distance of neighbouring FP32 numbers."""


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The largest differences that arithmetic explains, margin included."""

    precision: str
    bits: float
    """Of one event."""
    rms_bits: float
    mean_bits: float
    """Rounding errors have no preferred sign."""
    probability: float

    def explains(self, bits: Floats) -> bool:
        """Whether the differences of losses, event by event, can be those of arithmetic."""
        largest, rms = np.abs(bits).max(initial=0), np.sqrt(np.mean(bits**2))
        return bool(largest <= self.bits and rms <= self.rms_bits and abs(bits.mean()) <= self.mean_bits)

    def __str__(self) -> str:
        return (
            f"{self.precision} arithmetic explains {self.bits:.1e} bits of an event, {self.mean_bits:.1e} of their mean"
        )


class Rescorer:
    """Scores events of one corpus with one model; which of them, the seed says."""

    def __init__(self, model: ModelPredictor, corpus: Corpus, *, rescore: int | None, seed: int) -> None:
        self.model, self.corpus, self.limit, self.seed = model, corpus, rescore, seed
        self.in_stretches = bool(model.checkpoint.model.config.attention_window)
        self.rounding = cache(self._measure)

    def draw(self, rows: Rows, *, whole: bool = False, at_least: int = 0) -> Rows:
        """Which of the events are scored again; `whole` asks for all of them, unless the user set a limit."""
        limit = self.limit if self.limit is not None else len(rows) if whole or self.in_stretches else SAMPLED
        limit = max(limit, at_least)
        if len(rows) <= limit:
            return np.arange(len(rows))
        return np.sort(np.random.default_rng(self.seed).choice(len(rows), limit, replace=False))

    def _measure(self, split: str, precision: str | None) -> Rounding:
        """Score a sample with parameters moved in their last digit and, unless `precision` is FP32, in FP16; None
        stands for a file that does not say."""
        network = self.model.checkpoint.model
        rows = self.corpus.endpoints(split, network.config.history, unseal=True)
        rng = np.random.default_rng(self.seed)
        if self.in_stretches:
            start = int(rng.integers(max(1, len(rows) - MEASURED_IN_STRETCHES)))
            rows = rows[start : start + MEASURED_IN_STRETCHES]
        else:
            rows = np.sort(rng.choice(rows, min(MEASURED_WINDOWS, len(rows)), replace=False))
        cpu = torch.device("cpu")
        data = DeviceCorpus(self.corpus, network.config, cpu)
        # Each parameter moves to about its neighbour, as other orders of adding would move sums.
        moved, generator = copy.deepcopy(network), torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.mul_(1 + UNIT * (2 * torch.rand(parameter.shape, generator=generator) - 1))
        passes = [(network, torch.float32), (moved, torch.float32)]
        passes += [] if precision == "float32" else [(network, torch.float16)]
        now, *others = (Scorer(each, data, cpu, dtype).log_probs(rows).double().numpy() for each, dtype in passes)
        ids = class_ids(self.corpus.target_return[rows], now.shape[1])[:, None]
        bits = [(now - other) / np.log(2) for other in others]
        means = [abs(np.take_along_axis(each, ids, 1).mean()) + each.std() / np.sqrt(len(rows)) for each in bits]
        return Rounding(
            precision=precision or "float16",
            bits=FARTHEST * max(float(np.abs(each).max()) for each in bits),
            rms_bits=FARTHER * max(float(np.sqrt(np.mean(each**2))) for each in bits),
            mean_bits=FARTHER * float(max(means)),
            probability=FARTHEST * max(float(np.abs(np.exp(now) - np.exp(other)).max()) for other in others),
        )
