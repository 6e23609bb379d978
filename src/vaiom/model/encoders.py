"""The input branches: an event becomes a vector of the model's width.

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


class Encoder(nn.Module):
    """DiscIn is an embedding per field; pure ContIn the fields themselves; HybridContIn a projection of them beside
    embeddings of the metadata. An MLP makes the vector."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.input, width, num_fields = config.input, config.width, len(config.input_fields)
        self.asset_dropout, self.cross_dropout = config.asset_dropout, config.cross_dropout
        if self.cross_dropout:
            own = torch.tensor([name not in CROSS_FIELDS for name in config.input_fields], device="cpu")
            self.register_buffer("_own_F", own, persistent=False)
        if self.input == "hybrid":
            self.continuous = nn.Linear(num_fields, width)
        embedded = {"disc": config.input_fields, "cont": (), "hybrid": META_FIELDS}[self.input]
        size, sizes = config.embedding_width, vocabulary.sizes
        self.embeddings = nn.ModuleDict({name: nn.Embedding(sizes[name], size) for name in embedded})
        entering = {"disc": 0, "cont": num_fields, "hybrid": width}[self.input]
        self.first = nn.Linear(entering + len(embedded) * size, width)
        self.second = nn.Linear(width, width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        tables = list(self.embeddings.values())
        if self.input == "disc":
            parts = [_looked_up(table, x_BTF[..., field]) for field, table in enumerate(tables)]
            fused = self.first(torch.cat(parts, dim=-1))
        elif self.input == "cont":
            fused = self.first(x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT))
        else:
            x_BTF, meta_BM = self._left_out(x_BTF, meta_BM) if self.training else (x_BTF, meta_BM)
            continuous = gelu(self.continuous(x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT)))
            embedded = torch.cat([table(meta_BM[:, field]) for field, table in enumerate(tables)], dim=-1)
            # The concatenation of the paper, with the constant part of the product computed once per window.
            for_events, for_window = self.first.weight.split([continuous.shape[-1], embedded.shape[-1]], dim=1)
            fused = linear(continuous, for_events) + linear(embedded, for_window, self.first.bias)[:, None]
        hidden: Tensor = self.second(gelu(fused))
        return hidden

    def _left_out(self, x_BTF: Tensor, meta_BM: Tensor) -> tuple[Tensor, Tensor]:
        """Some windows without other assets' bars, some as of an unknown asset."""
        if self.cross_dropout:
            # Zero is what these fields are where no other asset has a bar.
            alone_B = torch.rand(len(x_BTF), device=x_BTF.device) < self.cross_dropout
            x_BTF = x_BTF * (self.get_buffer("_own_F") | ~alone_B[:, None, None])
        if self.asset_dropout:
            unknown_B = torch.rand(len(meta_BM), device=meta_BM.device) < self.asset_dropout
            meta_BM = torch.cat([meta_BM[:, :1].masked_fill(unknown_B[:, None], UNKNOWN_ASSET), meta_BM[:, 1:]], dim=1)
        return x_BTF, meta_BM


def _looked_up(table: nn.Module, index_BT: Tensor) -> Tensor:
    """Rows of a table; while learning on a GPU as a product, whose gradient is one too instead of a scatter."""
    assert isinstance(table, nn.Embedding)
    if not index_BT.is_cuda or not torch.is_grad_enabled():
        return embedding(index_BT.long(), table.weight)
    one_hot = index_BT[..., None] == torch.arange(table.num_embeddings, device=index_BT.device)
    return one_hot.to(table.weight.dtype) @ table.weight
