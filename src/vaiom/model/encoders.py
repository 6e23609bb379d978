"""The three input branches: an event becomes a vector of the model's width.

Enters: events (B, T, F) continuous or discrete, and the window's metadata (B, 3): windows never cross
assets, so their metadata does not change inside one. Leaves: (B, T, D).
Paper: Methods, "Input Representations" and "VAIOM Backbone".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear

from vaiom.events.fields import CROSS_FIELDS, META_FIELDS, UNKNOWN_ASSET
from vaiom.model.config import ModelConfig, Vocabulary

INPUT_LIMIT = 32.0
"""Continuous inputs are clipped to this on entry to the model, and nowhere else."""


class ContinuousEncoder(nn.Module):
    """Pure ContIn: F -> D -> D."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.first = nn.Linear(len(config.input_fields), config.width)
        self.second = nn.Linear(config.width, config.width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        hidden: Tensor = self.second(gelu(self.first(_clipped(x_BTF))))
        return hidden


class HybridEncoder(nn.Module):
    """HybridContIn: the continuous projection beside three metadata embeddings, fused by an MLP."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        width, sizes = config.width, vocabulary.sizes
        self.asset_dropout, self.cross_dropout = config.asset_dropout, config.cross_dropout
        if self.cross_dropout:
            own = torch.tensor([name not in CROSS_FIELDS for name in config.input_fields], device="cpu")
            self.register_buffer("_own_F", own, persistent=False)
        self.continuous = nn.Linear(len(config.input_fields), width)
        self.embeddings = _tables(META_FIELDS, sizes, config)
        self.first = nn.Linear(width + len(META_FIELDS) * config.embedding_width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        if self.training and self.cross_dropout:
            # Zero is what these fields are where no other asset has a bar.
            alone_B = _draw(self.cross_dropout, x_BTF)
            x_BTF = x_BTF * (self.get_buffer("_own_F") | ~alone_B[:, None, None])
        if self.training and self.asset_dropout:
            unknown_B = _draw(self.asset_dropout, meta_BM)
            meta_BM = torch.cat([meta_BM[:, :1].masked_fill(unknown_B[:, None], UNKNOWN_ASSET), meta_BM[:, 1:]], dim=1)
        continuous = gelu(self.continuous(_clipped(x_BTF)))
        embedded = torch.cat([table(meta_BM[:, field]) for field, table in enumerate(self.embeddings.values())], dim=-1)
        # The concatenation of the paper, with the constant part of the product computed once per window.
        for_events, for_window = self.first.weight.split([continuous.shape[-1], embedded.shape[-1]], dim=1)
        fused = linear(continuous, for_events) + linear(embedded, for_window, self.first.bias)[:, None]
        hidden: Tensor = self.second(gelu(fused))
        return hidden


class DiscreteEncoder(nn.Module):
    """DiscIn: an embedding per categorical field, concatenated, then an MLP."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.embeddings = _tables(config.input_fields, vocabulary.sizes, config)
        self.first = nn.Linear(len(config.input_fields) * config.embedding_width, config.width)
        self.second = nn.Linear(config.width, config.width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        parts = [_looked_up(table, x_BTF[..., field]) for field, table in enumerate(self.embeddings.values())]
        hidden: Tensor = self.second(gelu(self.first(torch.cat(parts, dim=-1))))
        return hidden


def make_encoder(config: ModelConfig, vocabulary: Vocabulary) -> nn.Module:
    if config.input == "disc":
        return DiscreteEncoder(config, vocabulary)
    return HybridEncoder(config, vocabulary) if config.input == "hybrid" else ContinuousEncoder(config)


def _looked_up(table: nn.Module, index_BT: Tensor) -> Tensor:
    """Rows of a table; while learning on a GPU as a product, whose gradient is one too instead of a scatter."""
    assert isinstance(table, nn.Embedding)
    if not index_BT.is_cuda or not torch.is_grad_enabled():
        return embedding(index_BT.long(), table.weight)
    one_hot = index_BT[..., None] == torch.arange(table.num_embeddings, device=index_BT.device)
    return one_hot.to(table.weight.dtype) @ table.weight


def _tables(names: tuple[str, ...], sizes: dict[str, int], config: ModelConfig) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Embedding(sizes[name], config.embedding_width) for name in names})


def _draw(rate: float, batch: Tensor) -> Tensor:
    """(B,) True at this rate, drawn for each window."""
    return torch.rand(len(batch), device=batch.device) < rate


def _clipped(x_BTF: Tensor) -> Tensor:
    return x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT)
