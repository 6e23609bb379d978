"""Windows of a corpus: the whole corpus lives on the device, and windows are gathered there by their last rows.

Paper: Methods, "Supervision Scope" (targets are 0 where `valid_base` fails) and "Optimization" (seeded sampler).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.fields import SIGNED_FIELDS
from vaiom.events.fit import bucket_of
from vaiom.events.splits import TRAIN
from vaiom.model.config import ModelConfig

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Windows:
    """A batch: events (B, T, F), metadata (B, 3), targets (B, T) by name, what teachers say (B, T, 16)."""

    x_BTF: Tensor
    meta_BM: Tensor
    targets: dict[str, Tensor]
    teacher_BTK: Tensor | None = None


class DeviceCorpus:
    """The inputs that a model reads and all targets, on a device."""

    def __init__(self, corpus: Corpus, model: ModelConfig, device: torch.device, mirror: float = 0.0) -> None:
        self.context, self.mirror = model.context, mirror
        self.teacher: Tensor | None = None
        """(1 or 2, N, 16) what teachers say at each row as it is and, where one mirrors, mirrored."""
        self.x = torch.from_numpy(corpus.inputs(model)).to(device)
        self.meta = torch.from_numpy(corpus.meta.astype(np.int64)).to(device)
        targets = {"return": corpus.target_return, "gap": corpus.target_gap, "vol_regime": corpus.target_vol_regime}
        self.targets = {
            name: torch.from_numpy(np.where(corpus.valid_base, target, 0).astype(np.uint8)).to(device)
            for name, target in targets.items()
        }
        self._back = torch.arange(1 - self.context, 1, device=device)
        self.asset_bounds = np.array([(part.start, part.stop) for part in corpus.asset_slices.values()])
        if mirror:
            signs = [-1.0 if name in SIGNED_FIELDS else 1.0 for name in model.input_fields]
            self._signs = torch.tensor(signs, device=device)
            # The buckets that targets would have if the move were the other way round; where there is none, anything.
            moves = {"return": corpus.columns["ret_z"], "gap": corpus.columns["gap_z"]}
            opposite = {
                name: torch.from_numpy(bucket_of(corpus.edges[name], -np.roll(z, -1).astype(np.float64))).to(device)
                for name, z in moves.items()
            }
            self._mirrored = {name: opposite.get(name, target) * (target > 0) for name, target in self.targets.items()}

    def windows(self, ends: Tensor) -> Windows:
        """The windows that end at these rows, their last row included; some of them upside down where one mirrors."""
        index = ends[:, None] + self._back
        x_BTF, targets = self.x[index], {name: target[index] for name, target in self.targets.items()}
        teacher = None if self.teacher is None else self.teacher[0][index]
        if self.mirror:
            flipped_B = torch.rand(len(ends), device=ends.device) < self.mirror
            x_BTF = torch.where(flipped_B[:, None, None], x_BTF * self._signs, x_BTF)
            mirrored = {name: target[index] for name, target in self._mirrored.items()}
            targets = {name: torch.where(flipped_B[:, None], mirrored[name], targets[name]) for name in targets}
            if self.teacher is not None:
                teacher = torch.where(flipped_B[:, None, None], self.teacher[1][index], self.teacher[0][index])
        return Windows(x_BTF, self.meta[ends], targets, teacher)

    def mirrored(self) -> DeviceCorpus:
        """The inputs upside down, for scoring."""
        other = copy.copy(self)
        other.x = self.x * self._signs
        return other

    def stretches(self, firsts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The `length` rows from each of these on; past the corpus its last row is repeated, which nobody reads."""
        index = (firsts[:, None] + torch.arange(length, device=firsts.device)).clamp(max=len(self.x) - 1)
        return self.x[index], self.meta[firsts]

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
        expected = f"{context} consecutive bars of an asset before {corpus.splits.train_end}"
        fix = "bring in a longer history, or choose a shorter context"
        raise DataError("Train has no window to learn from", expected=expected, fix=fix)
    foreign = np.concatenate([[0], np.cumsum(corpus.split_codes != corpus.splits.code(TRAIN))])
    touched = foreign[endpoints + 1] - foreign[endpoints + 1 - context] > 0
    if touched.any():
        where, fix = f"the window that ends at {corpus.timestamps[endpoints[touched][0]]}", "build the corpus again"
        raise DataError("a Train window holds a target outside Train", where=where, fix=fix)
    return Sampler(endpoints, seed, windows_per_step)
