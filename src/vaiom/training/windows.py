"""Windows of a corpus: the whole corpus lives on the device, and windows are gathered there by their last rows.

Enters: an open corpus. Leaves: tensors on a device; the row numbers that each optimizer step draws.
Paper: Methods, "Supervision Scope" (targets are 0 where `valid_base` fails) and "Optimization" (seeded sampler).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.schema import CONT_FIELDS, DISC_FIELDS, EXTRA_FIELDS
from vaiom.events.splits import TRAIN
from vaiom.model.config import ModelConfig

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Windows:
    """A batch: events (B, T, F), metadata (B, 3), targets (B, T) by name."""

    x_BTF: Tensor
    meta_BM: Tensor
    targets: dict[str, Tensor]


def model_inputs(corpus: Corpus, model: ModelConfig) -> npt.NDArray[Any]:
    """(N, F): the fields that a model reads, in its order."""
    if model.input == "disc":
        return np.ascontiguousarray(corpus.disc[:, [DISC_FIELDS.index(name) for name in model.input_fields]])
    if not set(model.input_fields) & set(EXTRA_FIELDS):
        return np.ascontiguousarray(corpus.cont[:, [CONT_FIELDS.index(name) for name in model.input_fields]])
    columns = {name: corpus.cont[:, column] for column, name in enumerate(CONT_FIELDS)}
    columns |= {name: corpus.extra[:, column] for column, name in enumerate(EXTRA_FIELDS)}
    return np.stack([columns[name] for name in model.input_fields], axis=1)


class DeviceCorpus:
    """The inputs that a model reads and all targets, on a device."""

    def __init__(self, corpus: Corpus, model: ModelConfig, device: torch.device) -> None:
        self.context = context = model.context
        self.x = torch.from_numpy(model_inputs(corpus, model)).to(device)
        self.meta = torch.from_numpy(corpus.meta.astype(np.int64)).to(device)
        targets = {
            "return": corpus.target_return,
            "gap": corpus.target_gap,
            "vol_regime": corpus.target_vol_regime,
        }
        self.targets = {
            name: torch.from_numpy(np.where(corpus.valid_base, target, 0).astype(np.uint8)).to(device)
            for name, target in targets.items()
        }
        self._back = torch.arange(1 - context, 1, device=device)

    def windows(self, ends: Tensor) -> Windows:
        """The windows that end at these rows, their last row included."""
        index = ends[:, None] + self._back
        return Windows(self.x[index], self.meta[ends], {name: target[index] for name, target in self.targets.items()})

    def inputs(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[ends[:, None] + self._back], self.meta[ends]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Train endpoints drawn uniformly with replacement; a step's draw depends on the seed and the step alone."""

    endpoints: Rows
    seed: int
    windows_per_step: int

    def draw(self, step: int) -> Rows:
        chosen = np.random.default_rng([self.seed, step]).integers(0, len(self.endpoints), self.windows_per_step)
        return self.endpoints[chosen]


def train_sampler(corpus: Corpus, context: int, seed: int, windows_per_step: int) -> Sampler:
    """The sampler of a corpus, after proof that none of its windows holds a target outside Train."""
    endpoints = corpus.endpoints(TRAIN, context)
    if not len(endpoints):
        raise DataError(
            "Train has no window to learn from",
            expected=f"{context} consecutive bars of an asset before {corpus.splits.train_end}",
            fix="bring in a longer history, or choose a shorter context",
        )
    foreign = np.concatenate([[0], np.cumsum(corpus.split_codes != corpus.splits.code(TRAIN))])
    touched = foreign[endpoints + 1] - foreign[endpoints + 1 - context] > 0
    if touched.any():
        row = int(endpoints[touched][0])
        raise DataError(
            "a Train window holds a target outside Train",
            where=f"the window that ends at {corpus.timestamps[row]}",
            fix="the corpus is inconsistent: build it again",
        )
    return Sampler(endpoints, seed, windows_per_step)
