"""A corpus on a device: windows to train on, and a model's predictions for any of its events, in
batches.

Paper: Methods, "Supervision Scope", "Optimization" (seeded sampler) and "Evaluation and Ablation
Protocol".
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import bucket_of
from vaiom.errors import DataError
from vaiom.features.fields import MIN_PROBABILITY, NUM_RETURN_BUCKETS, SIGNED_FIELDS
from vaiom.files import Progress
from vaiom.model.config import ModelConfig
from vaiom.model.heads import class_ids, return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import ALONE, OnRows, ProcessGroup, autocast, record_graph, resolve_type

Rows = npt.NDArray[np.int64]

_WINDOWS, _STRETCHES = {"cpu": 64, "cuda": 512}, {"cpu": 1, "cuda": 32}
"""How many of each are scored in one batch."""
_STRETCH_ROWS = 4_096


@dataclass(frozen=True, eq=False)
class Windows:
    """A batch: events (B, T, F), metadata (B, 3), targets (B, T) by name, teachers' probabilities
    (B, T, 16).
    """

    x_BTF: Tensor
    meta_BM: Tensor
    targets: dict[str, Tensor]
    teacher_BTK: Tensor | None = None


class DeviceCorpus:
    """The inputs that a model reads and all targets, on a device."""

    def __init__(
        self, corpus: Corpus, model: ModelConfig, device: torch.device, mirror: float = 0.0
    ) -> None:
        self.context, self.mirror, self.device = model.context, mirror, device
        self.teacher: Tensor | None = None
        """(1 or 2, N, 16) teachers' probabilities at each row and, if windows are mirrored, at the
        mirrored row.
        """
        self.x = torch.from_numpy(corpus.inputs(model)).to(device)
        self.meta = torch.from_numpy(corpus.meta.astype(np.int64)).to(device)
        targets = {
            "return": corpus.target_return,
            "gap": corpus.target_gap,
            "vol_regime": corpus.target_vol_regime,
        }
        self.targets = {
            name: torch.from_numpy(np.where(corpus.valid_base, target, 0).astype(np.uint8)).to(
                device
            )
            for name, target in targets.items()
        }
        self._back = torch.arange(1 - self.context, 1, device=device)
        self.asset_bounds = np.array(
            [(part.start, part.stop) for part in corpus.asset_slices.values()]
        )
        if mirror:
            signs = [-1.0 if name in SIGNED_FIELDS else 1.0 for name in model.input_fields]
            self._signs = torch.tensor(signs, device=device)
            # The buckets of the opposite moves; invalid targets stay 0.
            self._mirrored = dict(self.targets)
            for name, column in (("return", "ret_z"), ("gap", "gap_z")):
                opposite = -np.roll(corpus.columns[column], -1).astype(np.float64)
                buckets = torch.from_numpy(bucket_of(corpus.edges[name], opposite)).to(device)
                self._mirrored[name] = buckets * (self.targets[name] > 0)

    def windows(self, ends: Tensor) -> Windows:
        """The windows that end with these rows, some of them mirrored at random if the
        corpus is.
        """
        index = ends[:, None] + self._back
        x_BTF, targets = (
            self.x[index],
            {name: target[index] for name, target in self.targets.items()},
        )
        teacher = None if self.teacher is None else self.teacher[0][index]
        if self.mirror:
            flipped_B = torch.rand(len(ends), device=ends.device) < self.mirror
            x_BTF = torch.where(flipped_B[:, None, None], x_BTF * self._signs, x_BTF)
            for name, target in self._mirrored.items():
                targets[name] = torch.where(flipped_B[:, None], target[index], targets[name])
            if self.teacher is not None:
                teacher = torch.where(
                    flipped_B[:, None, None], self.teacher[1][index], self.teacher[0][index]
                )
        return Windows(x_BTF, self.meta[ends], targets, teacher)

    def mirrored(self) -> DeviceCorpus:
        """The corpus with mirrored inputs, for scoring."""
        other = copy.copy(self)
        other.x = self.x * self._signs
        return other

    def stretches(self, firsts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The `length` rows from each of these on; past the end of the corpus, unused copies of its
        last row.
        """
        index = (firsts[:, None] + torch.arange(length, device=firsts.device)).clamp(
            max=len(self.x) - 1
        )
        return self.x[index], self.meta[firsts]

    def inputs(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[ends[:, None] + self._back], self.meta[ends]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Train endpoints drawn uniformly with replacement; a step's draw depends on the seed and the
    step alone.
    """

    endpoints: Rows
    seed: int
    windows_per_step: int

    def draw(self, step: int) -> Rows:
        chosen = np.random.default_rng([self.seed, step]).integers(
            0, len(self.endpoints), self.windows_per_step
        )
        return self.endpoints[chosen]


def train_sampler(corpus: Corpus, context: int, seed: int, windows_per_step: int) -> Sampler:
    """The sampler of a corpus, after proof that none of its windows holds a target outside
    Train.
    """
    endpoints = corpus.endpoints(TRAIN, context)
    if not len(endpoints):
        expected = f"{context} consecutive bars of an asset before {corpus.splits.train_end}"
        fix = "bring in a longer history, or choose a shorter context"
        raise DataError("Train has no window to learn from", expected=expected, fix=fix)
    foreign = np.concatenate([[0], np.cumsum(corpus.split_codes != corpus.splits.code(TRAIN))])
    touched = foreign[endpoints + 1] - foreign[endpoints + 1 - context] > 0
    if touched.any():
        where, fix = (
            f"the window that ends at {corpus.timestamps[endpoints[touched][0]]}",
            "build the corpus again",
        )
        raise DataError("a Train window holds a target outside Train", where=where, fix=fix)
    return Sampler(endpoints, seed, windows_per_step)


def plan_stretches(
    rows: Rows, asset_bounds: npt.NDArray[np.int64], run_up: int, length: int
) -> Rows:
    """First row of the stretch that scores each of the sorted rows: `run_up` rows before, or its
    asset's first row.
    """
    firsts = np.empty(len(rows), np.int64)
    bounds = asset_bounds[np.searchsorted(asset_bounds[:, 1], rows, side="right")]
    at = 0
    while at < len(rows):
        begin, end = bounds[at]
        first = max(begin, rows[at] - run_up)
        stop = int(np.searchsorted(rows, min(first + length, end)))
        firsts[at:stop] = first
        at = stop
    return firsts


def predict_probabilities(
    model: Vaiom,
    corpus: Corpus,
    rows: npt.NDArray[np.integer],
    device: torch.device,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """Probabilities (n, 16) of the next return bucket of each row, from rows up to it."""
    scorer = Scorer(model, DeviceCorpus(corpus, model.config, device), resolve_type("auto", device))
    return np.asarray(scorer.answers(rows.astype(np.int64), progress).double().exp().cpu().numpy())


def hidden_states(
    model: Vaiom, corpus: Corpus, rows: Rows, device: torch.device, progress: Progress | None = None
) -> Tensor:
    """(n, D) on the device: the trunk's last hidden state at each row."""
    data = DeviceCorpus(corpus, model.config, device)
    return Scorer(model, data, torch.float32, hidden=True, record=False).answers(rows, progress)


class Scorer:
    """Scores events with one model; on a GPU, `record` compiles the forward pass and replays it as
    a graph.

    A model with windowed attention runs over stretches, in which each row is computed once. With
    `hidden`, results are the trunk's last hidden states instead of log-probabilities.
    """

    def __init__(
        self,
        model: Vaiom,
        data: DeviceCorpus,
        dtype: torch.dtype,
        *,
        record: bool = True,
        hidden: bool = False,
    ) -> None:
        self.model, self.data, self.device, self.dtype, self.hidden = (
            model,
            data,
            data.device,
            dtype,
            hidden,
        )
        self.in_stretches = bool(model.config.attention_window)
        self.run_up = model.config.receptive_field - 1
        self.length = max(_STRETCH_ROWS, 2 * model.config.receptive_field)
        self.batch = (_STRETCHES if self.in_stretches else _WINDOWS)[self.device.type]
        self._forward: OnRows | None = (
            None if record and self.device.type == "cuda" else self._answers
        )

    def compile(self) -> None:
        """Compile now instead of in the first call; nothing on a CPU."""
        if self._forward is None:
            self.answers(np.full(1, self.data.context - 1))

    def answers(self, rows: Rows, progress: Progress | None = None) -> Tensor:
        """(n, 16) log-probabilities of the rows, or (n, D) hidden states, on the device."""
        rows = np.ascontiguousarray(rows)
        # An order of the rows, where passes begin, and for each row in that order its pass and its
        # place there.
        if self.in_stretches:
            order = np.argsort(rows, kind="stable")
            firsts = plan_stretches(rows[order], self.data.asset_bounds, self.run_up, self.length)
            begins, pass_of_row = np.unique(firsts, return_inverse=True)
            place = rows[order] - firsts
        else:
            begins, order = rows, np.arange(len(rows))
            pass_of_row, place = order, np.zeros_like(order)
        size = self.model.config.width if self.hidden else NUM_RETURN_BUCKETS
        out = torch.empty(len(rows), size, device=self.device)
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(begins), self.batch):
                part = begins[start : start + self.batch]
                # All batches have one size: the last is padded with its first row.
                full = np.concatenate([part, np.repeat(part[:1], self.batch - len(part))])
                starts = torch.from_numpy(full).to(self.device)
                if self._forward is None:
                    self._forward = record_graph(self.model.compiled(self._answers), starts)
                scored = slice(*np.searchsorted(pass_of_row, [start, start + self.batch]))
                indices = (order[scored], pass_of_row[scored] - start, place[scored])
                at, passes, places = (torch.from_numpy(index).to(self.device) for index in indices)
                if self._forward == self._answers:  # without a graph, no pass is longer than needed
                    out[at] = self._answers(starts, int(place[scored].max()) + 1)[passes, places]
                else:
                    out[at] = self._forward(starts)[passes, places]
                if progress:
                    progress(scored.stop, len(rows), "events")
        self.model.train(training)
        return out

    def mean_bits(self, rows: Rows, group: ProcessGroup = ALONE) -> float:
        """Bits per event over all rows; processes of a group share the work."""
        own = rows[group.rank :: group.size]
        buckets = self.data.targets["return"][torch.from_numpy(own).to(self.device)]
        log_probs = self.answers(own).gather(1, class_ids(buckets)[:, None]).double()
        # However wrong a forecast is, no loss exceeds that of an evaluation.
        nats = -log_probs.clamp(min=math.log(MIN_PROBABILITY)).sum()
        return float(group.sum(nats)) / len(rows) / math.log(2)

    def _answers(self, begins: Tensor, length: int | None = None) -> Tensor:
        """(B, T, 16) of the stretches that begin at these rows, or (B, 1, 16) of the windows that
        end there.
        """
        with autocast(self.device, self.dtype):
            seen = (
                self.data.stretches(begins, length or self.length)
                if self.in_stretches
                else self.data.inputs(begins)
            )
            hidden = self.model.hidden(*seen, last_only=not self.in_stretches)
            return hidden.float() if self.hidden else return_log_probs(self.model.heads(hidden))
