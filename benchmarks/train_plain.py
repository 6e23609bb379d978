"""The main model as most papers ship it: stock PyTorch layers, an explicit mask, windows sliced on
the host.

It is the yardstick of `vaiom bench train` and shares nothing with the product but the
configuration: the same architecture, dropout sites, losses and reduction, written in the most
common way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus

BUCKETS = 16
STATES = 4
WEIGHT = 0.1


class PlainModel(nn.Module):
    """HybridContIn with MoMS and all auxiliary heads."""

    def __init__(
        self, width: int, heads: int, layers: int, context: int, dropout: float, corpus: Corpus
    ) -> None:
        super().__init__()
        sizes = corpus.tokenizer.num_buckets
        self.continuous = nn.Linear(25, width)
        self.asset = nn.Embedding(len(corpus.tokenizer.symbols) + 1, 8)
        self.asset_class = nn.Embedding(2, 8)
        self.timeframe = nn.Embedding(1, 8)
        self.fusion = nn.Sequential(
            nn.Linear(width + 24, width), nn.GELU(), nn.Linear(width, width)
        )
        self.positions = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        for block in self.encoder.layers:
            # The paper drops attention weights and the feed-forward output, nothing else.
            block.dropout.p = 0.0
            block.dropout1.p = 0.0
        self.states = nn.Linear(width, STATES)
        self.components = nn.Linear(width, STATES * BUCKETS)
        self.gap = nn.Linear(width, sizes["gap"])
        self.vol_regime = nn.Linear(width, sizes["vol_regime"])
        self.ordinal = nn.Linear(width, BUCKETS - 1)

    def forward(self, x: Tensor, meta: Tensor) -> dict[str, Tensor]:
        length = x.shape[1]
        c = functional.gelu(self.continuous(x.clamp(-32, 32)))
        e = torch.cat(
            [
                c,
                self.asset(meta[..., 0]),
                self.asset_class(meta[..., 1]),
                self.timeframe(meta[..., 2]),
            ],
            -1,
        )
        h = self.fusion(e) + self.positions(torch.arange(length, device=x.device))
        mask = torch.triu(torch.full((length, length), float("-inf"), device=x.device), diagonal=1)
        h = self.encoder(h, mask=mask)
        return {
            "states": self.states(h),
            "components": self.components(h),
            "gap": self.gap(h),
            "vol_regime": self.vol_regime(h),
            "ordinal": self.ordinal(h),
        }


def plain_loss(out: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
    """Return, Gap, VolReg and Ordinal, each one mean over the valid positions of the
    micro-batch.
    """
    valid = y["return"] > 0
    target = y["return"][valid] - 1
    states = out["states"][valid].float().log_softmax(-1)
    components = out["components"][valid].float().view(-1, STATES, BUCKETS).log_softmax(-1)
    log_probs = torch.logsumexp(states[..., None] + components, dim=1)
    loss = functional.nll_loss(log_probs, target)
    passed = torch.arange(1, BUCKETS, device=target.device) < (target + 1)[:, None]
    loss = loss + WEIGHT * functional.binary_cross_entropy_with_logits(
        out["ordinal"][valid].float(), passed.float()
    )
    for name in ("gap", "vol_regime"):
        known = y[name] > 0
        if known.any():
            loss = loss + WEIGHT * functional.cross_entropy(
                out[name][known].float(), y[name][known] - 1
            )
    return loss


class PlainTrainer:
    """Four micro-batches of 32 windows, sliced from NumPy arrays and copied to the device one after
    another.
    """

    def __init__(
        self, corpus: Corpus, model: PlainModel, context: int, device: torch.device, seed: int = 17
    ) -> None:
        self.model = model.to(device)
        self.context = context
        self.device = device
        self.cont = corpus.cont
        self.meta = corpus.meta.astype(np.int64)
        valid = corpus.valid_base
        named = {
            "return": corpus.target_return,
            "gap": corpus.target_gap,
            "vol_regime": corpus.target_vol_regime,
        }
        self.targets = {
            name: np.where(valid, target, 0).astype(np.int64) for name, target in named.items()
        }
        self.endpoints = corpus.endpoints(TRAIN, context)
        self.rng = np.random.default_rng(seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.01)
        self.half = device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half)

    def batch(self, ends: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        index = ends[:, None] + np.arange(1 - self.context, 1)

        def take(array: Any) -> Tensor:
            return torch.from_numpy(array[index]).to(self.device)

        return (
            take(self.cont),
            take(self.meta),
            {name: take(target) for name, target in self.targets.items()},
        )

    def loss(self, ends: Any) -> Tensor:
        x, meta, y = self.batch(ends)
        with torch.autocast(self.device.type, dtype=torch.float16, enabled=self.half):
            out = self.model(x, meta)
        return plain_loss(out, y)

    def step(self, micro_batch: int = 32, accumulate: int = 4) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        for _ in range(accumulate):
            loss = self.loss(self.rng.choice(self.endpoints, micro_batch))
            self.scaler.scale(loss / accumulate).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
