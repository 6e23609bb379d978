"""The pre-normalised causal decoder with learned positions: position s sees positions up to s and nothing later.

Enters: event vectors (B, T, D). Leaves: hidden states (B, T, D), or (B, 1, D) where only the last position is wanted.
Paper: Methods, "VAIOM Backbone"; positions are drawn from N(0, 0.02).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from vaiom.model.attention import causal_attention, drop
from vaiom.model.config import FEED_FORWARD_FACTOR, ModelConfig

POSITION_SCALE = 0.02


class Decoder(nn.Module):
    """Blocks over the sum of events and their positions in the window."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(config.context, config.width).normal_(0, POSITION_SCALE))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        h_BTD = h_BTD + self.positions[: h_BTD.shape[1]].to(h_BTD.dtype)
        for number, block in enumerate(self.blocks, start=1):
            h_BTD = block(h_BTD, last_only=last_only and number == len(self.blocks))
        hidden: Tensor = self.norm(h_BTD)
        return hidden


class Block(nn.Module):
    """Attention and a feed-forward network, each behind its LayerNorm and beside a residual path."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, FEED_FORWARD_FACTOR * width)
        self.feed_out = nn.Linear(FEED_FORWARD_FACTOR * width, width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        rate = self.dropout if self.training else 0.0
        normed = self.attention_norm(h_BTD)
        if last_only:
            mixed = self._attend_last(normed, rate)
            h_BTD = h_BTD[:, -1:]
        else:
            qkv = self.query_key_value(normed).unflatten(-1, (3, self.num_heads, -1))
            mixed = causal_attention(qkv, rate).flatten(-2)
        h_BTD = h_BTD + self.attention_out(mixed)
        fed = self.feed_out(gelu(self.feed_in(self.feed_norm(h_BTD))))
        return h_BTD + drop(fed, rate)

    def _attend_last(self, normed: Tensor, rate: float) -> Tensor:
        """Keys and values of the whole window, a query for its last position alone: (B, 1, D)."""
        width = normed.shape[-1]
        query_weight, rest_weight = self.query_key_value.weight.split([width, 2 * width])
        query_bias, rest_bias = self.query_key_value.bias.split([width, 2 * width])
        q = linear(normed[:, -1:], query_weight, query_bias)
        k, v = linear(normed, rest_weight, rest_bias).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
        return scaled_dot_product_attention(q, k, v, dropout_p=rate).transpose(1, 2).flatten(-2)
