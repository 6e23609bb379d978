"""Training of the heads for longer horizons on a frozen trunk's hidden states.

Enters: a checkpoint and a corpus. Leaves: `HorizonHeads`, selected on Validation. Not in the paper.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, nll_loss

from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import HORIZONS
from vaiom.errors import DataError
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.files import Progress
from vaiom.model.checkpoint import Checkpoint, arrays_of
from vaiom.model.config import INPUT_LIMIT, ModelConfig, class_of
from vaiom.model.horizon_heads import LEAST_SPREAD, LEAST_USED, WIDTH, FittedHorizons, HorizonHeads
from vaiom.training.windows import Rows, hidden_states

EPOCHS = 3
"""Passes over Train."""
CHECKS = 8
"""Validations in each epoch."""
STEPS = 800
"""Approximate number of steps, by which the batch is chosen."""
BATCHES = (256, 4_096)
"""The smallest and the largest batch."""
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.05
DROPOUT = 0.4
EMA_DECAY = 0.99
_WARMUP_SHARE = 0.05
_OUTPUT_SCALE = 0.1
"""Of the initial output weights: training starts near the shares of the buckets."""
_NO_EVENT = -1
"""Class of a row that is no event of a horizon."""


class HorizonNetwork(nn.Module):
    """The network of `HorizonHeads` for training: log-probabilities (N, H, 16)."""

    def __init__(self, config: ModelConfig, num_horizons: int, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate
        self.num_fields = config.num_continuous
        self.first = nn.Linear(config.width + self.num_fields, WIDTH)
        self.second = nn.Linear(WIDTH, num_horizons * NUM_RETURN_BUCKETS)
        self.register_buffer("centre", torch.zeros(self.num_fields))
        self.register_buffer("spread", torch.ones(self.num_fields))

    def forward(self, h_ND: Tensor, x_NF: Tensor) -> Tensor:
        """Log-probabilities (N, H, 16) from the trunk's hidden states and the fields it read."""
        known_NF = x_NF[..., : self.num_fields].float()
        clipped_NF = known_NF.clamp(-INPUT_LIMIT, INPUT_LIMIT)
        centre = self.get_buffer("centre")
        spread = self.get_buffer("spread")
        scaled_NF = (clipped_NF - centre) / spread
        own_NF = torch.where(spread > LEAST_USED, scaled_NF, 0.0)
        entering = torch.cat([h_ND.float(), own_NF], dim=-1)
        middle = dropout(gelu(self.first(entering)), self.rate, self.training)
        logits = self.second(middle).unflatten(-1, (-1, NUM_RETURN_BUCKETS))
        log_probs_NHK: Tensor = logits.log_softmax(dim=-1)
        return log_probs_NHK

    @torch.no_grad()
    def start_from(self, events: HorizonEvents, draw: torch.Generator) -> None:
        """Random weights, the inputs standardised, the outputs at the shares of their buckets."""
        for weight in (self.first.weight, self.second.weight):
            # Drawn on the CPU: the same start on every device.
            drawn = torch.randn(weight.shape, generator=draw)
            weight.copy_(drawn * weight.shape[1] ** -0.5)
        self.second.weight.mul_(_OUTPUT_SCALE)
        self.first.bias.zero_()
        bias_HK = self.second.bias.view(-1, NUM_RETURN_BUCKETS)
        for place, class_N in enumerate(events.class_NH.T):
            counts = torch.bincount(class_N - _NO_EVENT, minlength=NUM_RETURN_BUCKETS + 1)
            smoothed_K = counts[1:] + 1.0  # the first counts rows without an event
            shares_K = smoothed_K / smoothed_K.sum()
            bias_HK[place] = shares_K.log()
        known_NF = events.x_NF[:, : self.num_fields].float()
        self.get_buffer("centre").copy_(known_NF.mean(dim=0))
        self.get_buffer("spread").copy_(known_NF.std(dim=0) + LEAST_SPREAD)

    @torch.no_grad()
    def mean_bits(self, events: HorizonEvents) -> list[float]:
        """Mean bits per event of each horizon."""
        log_probs = self(events.h_ND, events.x_NF)
        bits = []
        for place, class_N in enumerate(events.class_NH.T):
            nats = nll_loss(log_probs[:, place], class_N, ignore_index=_NO_EVENT)
            bits.append(float(nats) / math.log(2))
        return bits


class HorizonEvents(NamedTuple):
    """Rows that are an event of some horizon, on a device."""

    h_ND: Tensor
    """Hidden states of the trunk."""
    x_NF: Tensor
    """The fields that the trunk read."""
    class_NH: Tensor
    """Classes by horizon, `_NO_EVENT` where a row is no event of it."""


def train_horizons(
    checkpoint: Checkpoint,
    corpus: Corpus,
    horizons: Sequence[int] = HORIZONS,
    *,
    seed: int = 17,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> HorizonHeads:
    """Fit scale, buckets and shape of each horizon on Train, then the heads, selected on
    Validation.

    `horizons` are numbers of bars. The trunk does not change.
    """
    device = torch.device(device)
    config = checkpoint.config
    views = [corpus.with_target(bars) for bars in sorted(set(horizons))]
    train_rows, train_classes = _targets(views, TRAIN, config.history)
    held_out_rows, held_out_classes = _targets(views, VALIDATION, config.history)
    rows = np.concatenate([train_rows, held_out_rows])
    h_ND = hidden_states(checkpoint.model.to(device), corpus, rows, device, progress)
    x_NF = torch.from_numpy(corpus.inputs(config)[rows]).to(device)
    classes = np.concatenate([train_classes, held_out_classes])
    class_NH = torch.from_numpy(classes).to(device)
    size = len(train_rows)
    train = HorizonEvents(h_ND[:size], x_NF[:size], class_NH[:size])
    held_out = HorizonEvents(h_ND[size:], x_NF[size:], class_NH[size:])
    network = HorizonNetwork(config, len(views), DROPOUT).to(device)
    best = _learn(network, train, held_out, seed)
    names = [str(view.horizon) for view in views]
    bits = best.mean_bits(held_out)
    fitted = FittedHorizons(
        checkpoint_sha256=checkpoint.sha256,
        corpus_sha256=corpus.sha256,
        seed=seed,
        validation_bits=dict(zip(names, bits, strict=True)),
        fits=tuple(view.target().fit for view in views),
    )
    return HorizonHeads(fitted=fitted, tensors=arrays_of(best.state_dict()))


def _targets(views: Sequence[Corpus], split: str, history: int) -> tuple[Rows, Rows]:
    """Rows (n,) that are an event of any horizon, and their classes (n, H)."""
    endpoints = [view.endpoints(split, history) for view in views]
    rows = np.unique(np.concatenate(endpoints))
    classes = np.full((len(rows), len(views)), _NO_EVENT, np.int64)
    for place, (view, own) in enumerate(zip(views, endpoints, strict=True)):
        if not len(own):
            problem = f"{split} holds no event of {view.horizon} bars"
            raise DataError(problem, where=view.path, fix="a shorter horizon")
        buckets = view.target_return[own].astype(np.int64)
        found = np.searchsorted(rows, own)
        classes[found, place] = class_of(buckets)
    return rows, classes


def _learn(
    network: HorizonNetwork, train: HorizonEvents, held_out: HorizonEvents, seed: int
) -> HorizonNetwork:
    """The averaged weights that were best on the held-out rows, of all validations."""
    size = len(train.h_ND)
    draw = torch.Generator().manual_seed(seed)
    network.start_from(train, draw)
    averaged = copy.deepcopy(network).eval()
    best = averaged
    least = math.inf
    smallest, largest = BATCHES
    wanted = EPOCHS * size // STEPS
    batch = min(max(wanted, smallest), largest, size)
    steps_per_check = max(1, size // batch // CHECKS)
    steps = steps_per_check * CHECKS * EPOCHS
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=_WARMUP_SHARE
    )
    network.train()
    torch.manual_seed(seed)
    for step in range(1, steps + 1):
        drawn = torch.randint(size, (batch,), generator=draw)
        rows = drawn.to(train.h_ND.device)
        log_probs_NHK = network(train.h_ND[rows], train.x_NF[rows])
        classes = train.class_NH[rows].flatten()
        loss = nll_loss(log_probs_NHK.flatten(0, 1), classes, ignore_index=_NO_EVENT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, new in zip(averaged.parameters(), network.parameters(), strict=True):
                kept.lerp_(new, 1 - EMA_DECAY)
        if step % steps_per_check == 0:
            bits = sum(averaged.mean_bits(held_out))
            if bits < least:
                best = copy.deepcopy(averaged)
                least = bits
    return best
