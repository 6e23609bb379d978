"""Training of the heads for longer horizons on a frozen trunk's hidden states."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

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

EPOCHS, CHECKS = 3, 8
"""Passes over Train, and Validations in each."""
STEPS, BATCHES = 800, (256, 4_096)
"""Approximate number of steps, and the smallest and largest batch that it is reached with."""
LEARNING_RATE, WEIGHT_DECAY, DROPOUT, EMA_DECAY = 2e-3, 0.05, 0.4, 0.99
_NONE = -1


class HorizonNetwork(nn.Module):
    """The network of `HorizonHeads` for training: log-probabilities (N, H, 16)."""

    def __init__(self, config: ModelConfig, num_horizons: int, rate: float = 0.0) -> None:
        super().__init__()
        self.rate, self.num_fields = rate, config.num_continuous
        self.first = nn.Linear(config.width + self.num_fields, WIDTH)
        self.second = nn.Linear(WIDTH, num_horizons * NUM_RETURN_BUCKETS)
        self.register_buffer("centre", torch.zeros(self.num_fields))
        self.register_buffer("spread", torch.ones(self.num_fields))

    def forward(self, h_ND: Tensor, x_NF: Tensor) -> Tensor:
        x_NF = x_NF[..., : self.num_fields].float().clamp(-INPUT_LIMIT, INPUT_LIMIT)
        spread = self.get_buffer("spread")
        own = torch.where(spread > LEAST_USED, (x_NF - self.get_buffer("centre")) / spread, 0.0)
        hidden = dropout(
            gelu(self.first(torch.cat([h_ND.float(), own], dim=-1))), self.rate, self.training
        )
        log_probs: Tensor = (
            self.second(hidden).unflatten(-1, (-1, NUM_RETURN_BUCKETS)).log_softmax(dim=-1)
        )
        return log_probs


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
    """
    device, config = torch.device(device), checkpoint.config
    views = [corpus.with_target(bars) for bars in sorted(set(horizons))]
    rows, targets = zip(
        *(_events(views, split, config.history) for split in (TRAIN, VALIDATION)), strict=True
    )
    inputs = corpus.inputs(config)
    hidden = hidden_states(
        checkpoint.model.to(device), corpus, np.concatenate(rows), device, progress
    )
    train, held_out = (
        (h, torch.from_numpy(inputs[at]).to(device), torch.from_numpy(classes).to(device))
        for h, at, classes in zip(
            hidden.split([len(each) for each in rows]), rows, targets, strict=True
        )
    )
    heads, bits = _learn(
        HorizonNetwork(config, len(views), DROPOUT).to(device), train, held_out, seed
    )
    fitted = FittedHorizons(
        checkpoint_sha256=checkpoint.sha256,
        corpus_sha256=corpus.sha256,
        seed=seed,
        validation_bits={str(view.horizon): each for view, each in zip(views, bits, strict=True)},
        fits=tuple(view.target().fit for view in views),
    )
    return HorizonHeads(fitted=fitted, tensors=arrays_of(heads.state_dict()))


Events = tuple[Tensor, Tensor, Tensor]
"""Hidden states (N, D), inputs (N, F) and classes (N, H), negative where a row is no event of a
horizon.
"""


def _events(views: Sequence[Corpus], split: str, history: int) -> tuple[Rows, Rows]:
    """Rows that are an event of any horizon, and their classes (n, H)."""
    endpoints = [view.endpoints(split, history) for view in views]
    rows = np.unique(np.concatenate(endpoints))
    targets = np.full((len(rows), len(views)), _NONE, np.int64)
    for place, (view, own) in enumerate(zip(views, endpoints, strict=True)):
        if not len(own):
            raise DataError(
                f"{split} holds no event of {view.horizon} bars",
                where=view.path,
                fix="a shorter horizon",
            )
        targets[np.searchsorted(rows, own), place] = class_of(
            view.target_return[own].astype(np.int64)
        )
    return rows, targets


def _learn(
    heads: HorizonNetwork, train: Events, held_out: Events, seed: int
) -> tuple[HorizonNetwork, list[float]]:
    """The averaged weights that were best on the held-out rows, and their bits per event of each
    horizon.
    """
    hidden, inputs, classes = train
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in (
            heads.first.weight,
            heads.second.weight,
        ):  # on the CPU: the same start on every device
            weight.copy_(torch.randn(weight.shape, generator=draw) * weight.shape[1] ** -0.5)
        heads.second.weight.mul_(0.1)
        heads.first.bias.zero_()
        for place in range(classes.shape[1]):
            counts = torch.bincount(classes[:, place] + 1, minlength=17)[1:] + 1.0
            heads.second.bias.view(classes.shape[1], -1)[place] = (counts / counts.sum()).log()
        own = inputs[:, : heads.num_fields].float()
        heads.get_buffer("centre").copy_(own.mean(dim=0))
        heads.get_buffer("spread").copy_(own.std(dim=0) + LEAST_SPREAD)
    mean, best, least = copy.deepcopy(heads).eval(), copy.deepcopy(heads).eval(), math.inf
    batch = min(max(EPOCHS * len(hidden) // STEPS, BATCHES[0]), BATCHES[1], len(hidden))
    every = max(1, len(hidden) // batch // CHECKS)
    steps = every * CHECKS * EPOCHS
    optimizer = torch.optim.AdamW(heads.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.05
    )
    heads.train()
    torch.manual_seed(seed)
    for step in range(1, steps + 1):
        at = torch.randint(len(hidden), (batch,), generator=draw).to(hidden.device)
        loss = nll_loss(
            heads(hidden[at], inputs[at]).flatten(0, 1), classes[at].flatten(), ignore_index=_NONE
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, new in zip(mean.parameters(), heads.parameters(), strict=True):
                kept.lerp_(new, 1 - EMA_DECAY)
        if step % every == 0 and (bits := sum(_bits(mean, held_out))) < least:
            best, least = copy.deepcopy(mean), bits
    return best, _bits(best, held_out)


def _bits(heads: HorizonNetwork, events: Events) -> list[float]:
    """Mean bits per event of each horizon."""
    hidden, inputs, classes = events
    with torch.no_grad():
        log_probs = heads(hidden, inputs)
    nats = [
        nll_loss(log_probs[:, place], classes[:, place], ignore_index=_NONE)
        for place in range(classes.shape[1])
    ]
    return [float(each) / math.log(2) for each in nats]
