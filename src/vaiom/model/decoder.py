"""The pre-normalised causal decoder: position s sees positions up to s and nothing later.

Enters: event vectors (B, T, D). Leaves: hidden states (B, T, D), or (B, 1, D) where only the last position is wanted.
Paper: Methods, "VAIOM Backbone".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

from vaiom.model.config import FEED_FORWARD_FACTOR, ModelConfig

_QUERY_BLOCK = 128


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
        batch, _, width = h_BTD.shape
        heads = (batch, -1, self.num_heads, width // self.num_heads)
        normed = self.attention_norm(h_BTD)
        if last_only:
            # Keys and values of the whole window, a query for its last position alone.
            query_weight, rest_weight = self.query_key_value.weight.split([width, 2 * width])
            query_bias, rest_bias = self.query_key_value.bias.split([width, 2 * width])
            q = nn.functional.linear(normed[:, -1:], query_weight, query_bias)
            k, v = nn.functional.linear(normed, rest_weight, rest_bias).chunk(2, dim=-1)
            h_BTD = h_BTD[:, -1:]
        else:
            q, k, v = self.query_key_value(normed).chunk(3, dim=-1)
        q, k, v = (part.view(heads).transpose(1, 2) for part in (q, k, v))
        mixed = attend(q, k, v, rate, causal=not last_only)
        h_BTD = h_BTD + self.attention_out(mixed.transpose(1, 2).reshape(batch, -1, width))
        fed = self.feed_out(gelu(self.feed_in(self.feed_norm(h_BTD))))
        return h_BTD + dropout(fed, rate, self.training)


def attend(q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, rate: float, causal: bool) -> Tensor:
    """Scaled dot-product attention with dropout on the weights."""
    if rate and q_BHTE.device.type == "cpu" and causal:
        return _attend_in_blocks(q_BHTE, k_BHTE, v_BHTE, rate)
    return scaled_dot_product_attention(q_BHTE, k_BHTE, v_BHTE, dropout_p=rate, is_causal=causal)


def _attend_in_blocks(q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, rate: float) -> Tensor:
    """The same for CPUs, where dropout leaves the fused path: blocks of queries against the keys they may see."""
    length, size = q_BHTE.shape[-2:]
    q_BHTE = q_BHTE * size**-0.5
    out = []
    for start in range(0, length, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, length)
        scores = q_BHTE[..., start:stop, :] @ k_BHTE[..., :stop, :].transpose(-1, -2)
        future = torch.ones(stop - start, stop - start, dtype=torch.bool, device=scores.device).triu(1)
        scores[..., start:] = scores[..., start:].masked_fill(future, float("-inf"))
        weights = dropout(scores.softmax(dim=-1), rate)
        out.append(weights @ v_BHTE[..., :stop, :])
    return torch.cat(out, dim=-2)
