"""A corpus on a device: windows to train on, and a model's predictions for any of its events.

Enters: a corpus, and the rows that are asked for. Leaves: batches of windows with their targets, or
log-probabilities of the next return bucket, one row for each event.
Paper: Methods, "Supervision Scope", "Optimization" (seeded sampler) and "Evaluation and Ablation
Protocol".

Shapes: B windows or chunks, T rows of each, F fields, M = 3 metadata, D width, K = 16 buckets,
N rows of the corpus, n rows that are asked for.
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
from vaiom.errors import DataError
from vaiom.features.fields import MIN_PROBABILITY, NUM_RETURN_BUCKETS, SIGNED_FIELDS, bucket_of
from vaiom.files import Progress
from vaiom.model.config import ModelConfig
from vaiom.model.heads import class_ids, return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import ALONE, OnRows, ProcessGroup, autocast, record_graph, resolve_type

Rows = npt.NDArray[np.int64]
"""Row numbers of a corpus."""

CHUNK_ROWS = 4_096
"""Rows of a chunk: many more than the receptive field by which chunks overlap."""
_WINDOWS_PER_BATCH = {"cpu": 64, "cuda": 512}
_CHUNKS_PER_BATCH = {"cpu": 1, "cuda": 32}


@dataclass(frozen=True, eq=False)
class Windows:
    """A batch to train on."""

    x_BTF: Tensor
    meta_BM: Tensor
    targets: dict[str, Tensor]
    """(B, T) bucket ids by task, 0 where there is no target."""
    teacher_BTK: Tensor | None = None
    """Probabilities of the teachers."""


class DeviceCorpus:
    """The inputs that a model reads and all targets, on a device."""

    def __init__(
        self, corpus: Corpus, model: ModelConfig, device: torch.device, mirror: float = 0.0
    ) -> None:
        """With `mirror`, windows are mirrored with that probability: signed fields change their
        sign, and targets become the buckets of the opposite moves.
        """
        self.context = model.context
        self.mirror = mirror
        self.device = device
        self.teacher: Tensor | None = None
        """(1, N, K) probabilities of the teachers after each row; (2, N, K) with those after the
        mirrored rows, if windows are mirrored."""
        self.x = torch.from_numpy(corpus.inputs(model)).to(device)
        self.meta = torch.from_numpy(corpus.meta.astype(np.int64)).to(device)
        self.targets = {
            "return": self._target(corpus, corpus.target_return),
            "gap": self._target(corpus, corpus.target_gap),
            "vol_regime": self._target(corpus, corpus.target_vol_regime),
        }
        bounds = [(rows.start, rows.stop) for rows in corpus.asset_slices.values()]
        self.asset_bounds = np.array(bounds)
        self._back_T = torch.arange(1 - self.context, 1, device=device)
        if mirror:
            signs = [-1.0 if name in SIGNED_FIELDS else 1.0 for name in model.input_fields]
            self._sign_F = torch.tensor(signs, device=device)
            self._mirrored_targets = {
                "return": self._mirrored_target(corpus, "return", "ret_z"),
                "gap": self._mirrored_target(corpus, "gap", "gap_z"),
            }

    def _target(self, corpus: Corpus, buckets: npt.NDArray[np.integer]) -> Tensor:
        """(N,) buckets of the rows whose next return is a valid event, 0 elsewhere."""
        valid = np.where(corpus.valid_base, buckets, 0).astype(np.uint8)
        return torch.from_numpy(valid).to(self.device)

    def _mirrored_target(self, corpus: Corpus, task: str, column: str) -> Tensor:
        """(N,) buckets of the opposite next moves, 0 where the task has no target."""
        next_moves = np.roll(corpus.columns[column], -1)
        opposite = -next_moves.astype(np.float64)
        buckets = torch.from_numpy(bucket_of(corpus.edges[task], opposite))
        return buckets.to(self.device) * (self.targets[task] > 0)

    def windows(self, ends: Tensor) -> Windows:
        """The windows that end with these rows, mirrored at random if the corpus is."""
        rows_BT = self._rows(ends)
        x_BTF = self.x[rows_BT]
        targets = {task: target[rows_BT] for task, target in self.targets.items()}
        teacher_BTK = None
        if self.teacher is not None:
            teacher_BTK = self.teacher[0][rows_BT]
        if self.mirror:
            drawn_B = torch.rand(len(ends), device=ends.device)
            mirrored_B1 = (drawn_B < self.mirror)[:, None]
            mirrored_B11 = mirrored_B1[:, None]
            x_BTF = torch.where(mirrored_B11, x_BTF * self._sign_F, x_BTF)
            for task, target in self._mirrored_targets.items():
                targets[task] = torch.where(mirrored_B1, target[rows_BT], targets[task])
            if self.teacher is not None and teacher_BTK is not None:
                opposite_BTK = self.teacher[1][rows_BT]
                teacher_BTK = torch.where(mirrored_B11, opposite_BTK, teacher_BTK)
        return Windows(x_BTF, self.meta[ends], targets, teacher_BTK)

    def mirrored(self) -> DeviceCorpus:
        """The corpus with mirrored inputs, for scoring."""
        other = copy.copy(self)
        other.x = self.x * self._sign_F
        return other

    def inputs(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Events (B, T, F) and metadata (B, M) of the windows that end with these rows."""
        return self.x[self._rows(ends)], self.meta[ends]

    def chunks(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Events (B, length, F) and metadata (B, M) of the chunks that start with these rows.

        Past the end of the corpus they hold copies of its last row, which nobody reads.
        """
        last = len(self.x) - 1
        rows_BT = starts[:, None] + torch.arange(length, device=starts.device)
        return self.x[rows_BT.clamp(max=last)], self.meta[starts]

    def _rows(self, ends: Tensor) -> Tensor:
        """(B, T) rows of the windows that end with these rows."""
        return ends[:, None] + self._back_T


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws Train endpoints uniformly with replacement.

    What is drawn for a step depends on the seed and the step alone.
    """

    endpoints: Rows
    seed: int
    windows_per_step: int

    def draw(self, step: int) -> Rows:
        """Endpoints (windows_per_step,) of the windows of a step, counted from 1."""
        generator = np.random.default_rng([self.seed, step])
        places = generator.integers(0, len(self.endpoints), self.windows_per_step)
        return self.endpoints[places]


def train_sampler(corpus: Corpus, context: int, seed: int, windows_per_step: int) -> Sampler:
    """The sampler of a corpus; a window with any target outside Train is an error."""
    endpoints = corpus.endpoints(TRAIN, context)
    if not len(endpoints):
        raise DataError(
            "Train has no window to learn from",
            expected=f"{context} consecutive bars of an asset before {corpus.splits.train_end}",
            fix="bring in a longer history, or choose a shorter context",
        )
    outside = corpus.split_codes != corpus.splits.code(TRAIN)
    num_outside = np.concatenate([[0], np.cumsum(outside)])
    stops = endpoints + 1
    foreign = endpoints[num_outside[stops] > num_outside[stops - context]]
    if len(foreign):
        raise DataError(
            "a Train window holds a target outside Train",
            where=f"the window that ends at {corpus.timestamps[foreign[0]]}",
            fix="build the corpus again",
        )
    return Sampler(endpoints, seed, windows_per_step)


def plan_chunks(rows: Rows, asset_bounds: npt.NDArray[np.int64], warmup: int, length: int) -> Rows:
    """The first row of the chunk that scores each of these sorted rows.

    A chunk starts `warmup` rows before the first row that it scores, or with its asset, whose first
    row and end are a row of `asset_bounds`; it scores all rows that its `length` holds.
    """
    starts = np.empty(len(rows), np.int64)
    assets = np.searchsorted(asset_bounds[:, 1], rows, side="right")
    done = 0
    while done < len(rows):
        asset_start, asset_end = asset_bounds[assets[done]]
        start = max(asset_start, rows[done] - warmup)
        end = min(start + length, asset_end)
        stop = int(np.searchsorted(rows, end))
        starts[done:stop] = start
        done = stop
    return starts


def predict_probabilities(
    model: Vaiom,
    corpus: Corpus,
    rows: npt.NDArray[np.integer],
    device: torch.device,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """(n, K) probabilities of the return bucket after each row, from rows up to it."""
    data = DeviceCorpus(corpus, model.config, device)
    scorer = Scorer(model, data, resolve_type("auto", device))
    log_probs = scorer.predict(rows.astype(np.int64), progress)
    probs = log_probs.double().exp()
    return np.asarray(probs.cpu().numpy())


def hidden_states(
    model: Vaiom, corpus: Corpus, rows: Rows, device: torch.device, progress: Progress | None = None
) -> Tensor:
    """(n, D) on the device: the inputs of the heads at each row, in FP32."""
    data = DeviceCorpus(corpus, model.config, device)
    scorer = Scorer(model, data, torch.float32, hidden=True, record=False)
    return scorer.predict(rows, progress)


class Scorer:
    """Predictions of one model for any rows of a corpus.

    Without an attention window, each row is the end of a window of its own. With one, the model
    runs over chunks in which each row is computed once; chunks overlap by the receptive field.
    """

    def __init__(
        self,
        model: Vaiom,
        data: DeviceCorpus,
        dtype: torch.dtype,
        *,
        record: bool = True,
        hidden: bool = False,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        """Args:
        record: On a GPU, compile the forward pass and replay it as a CUDA graph.
        hidden: Predictions are hidden states (n, D) instead of log-probabilities (n, K).
        """
        self.model = model
        self.data = data
        self.device = data.device
        self.dtype = dtype
        self.hidden = hidden
        self.in_chunks = bool(model.config.attention_window)
        self.warmup = model.config.receptive_field - 1
        self.length = max(chunk_rows, 2 * model.config.receptive_field)
        per_batch = _CHUNKS_PER_BATCH if self.in_chunks else _WINDOWS_PER_BATCH
        self.batch_size = per_batch[self.device.type]
        self.record = record and self.device.type == "cuda"
        self._graph: OnRows | None = None

    def compile(self) -> None:
        """Compile now instead of in the first prediction; nothing on a CPU."""
        if self.record and not self._graph:
            self.predict(np.full(1, self.data.context - 1))

    def predict(self, rows: Rows, progress: Progress | None = None) -> Tensor:
        """(n, K) log-probabilities after these rows, or (n, D) hidden states, on the device."""
        rows = np.ascontiguousarray(rows)
        order, begins, pass_of_row, place = self._plan(rows)
        size = self.model.config.width if self.hidden else NUM_RETURN_BUCKETS
        out = torch.empty(len(rows), size, device=self.device)
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(begins), self.batch_size):
                stop = start + self.batch_size
                first, done = np.searchsorted(pass_of_row, [start, stop])
                rows_of_batch = self._on_device(order[first:done])
                passes = self._on_device(pass_of_row[first:done] - start)
                places = self._on_device(place[first:done])
                num_positions = int(place[first:done].max()) + 1
                outputs = self._run(begins[start:stop], num_positions)
                out[rows_of_batch] = outputs[passes, places]
                if progress:
                    progress(int(done), len(rows), "events")
        self.model.train(training)
        return out

    def _plan(self, rows: Rows) -> tuple[Rows, Rows, Rows, Rows]:
        """How rows (n,) are scored in passes over windows that end with them, or over chunks.

        Returns the order of the rows (n,), the row by which each pass is called, and for each row
        in that order the number of its pass (n,) and its position in the output of it (n,).
        """
        if not self.in_chunks:
            order = np.arange(len(rows))
            return order, rows, order, np.zeros_like(order)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        chunk_of_row = plan_chunks(ordered, self.data.asset_bounds, self.warmup, self.length)
        begins, pass_of_row = np.unique(chunk_of_row, return_inverse=True)
        return order, begins, pass_of_row, ordered - chunk_of_row

    def _run(self, begins: Rows, num_positions: int) -> Tensor:
        """Outputs (B, T, .) of one batch of passes, with at least the first `num_positions`."""
        # A recorded graph needs batches of one size: the last is padded.
        padding = np.repeat(begins[:1], self.batch_size - len(begins))
        padded = self._on_device(np.concatenate([begins, padding]))
        if self.record and not self._graph:
            self._graph = record_graph(self.model.compiled(self._pass), padded)
        if self._graph:
            return self._graph(padded)
        return self._pass(padded, num_positions)

    def mean_bits(self, rows: Rows, group: ProcessGroup = ALONE) -> float:
        """Bits per event over all rows, mean of -log2 p of the bucket that came.

        Processes of a group share the work. No loss exceeds that of an evaluation, which floors
        probabilities at `MIN_PROBABILITY`.
        """
        own = rows[group.rank :: group.size]
        buckets = self.data.targets["return"][self._on_device(own)]
        classes = class_ids(buckets)
        log_probs = self.predict(own).gather(1, classes[:, None]).double()
        floored = log_probs.clamp(min=math.log(MIN_PROBABILITY))
        nats = group.sum(-floored.sum())
        return float(nats) / len(rows) / math.log(2)

    def _on_device(self, rows: Rows) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _pass(self, begins: Tensor, length: int | None = None) -> Tensor:
        """One forward pass: (B, T, .) of the chunks of this length that start with these rows, or
        (B, 1, .) of the windows that end with them.
        """
        with autocast(self.device, self.dtype):
            if self.in_chunks:
                x_BTF, meta_BM = self.data.chunks(begins, length or self.length)
            else:
                x_BTF, meta_BM = self.data.inputs(begins)
            hidden_BTD = self.model.hidden(x_BTF, meta_BM, last_only=not self.in_chunks)
            if self.hidden:
                return hidden_BTD.float()
            logits = self.model.heads(hidden_BTD)
            return return_log_probs(logits)
