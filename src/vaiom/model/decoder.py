"""The backbones: a pre-normalised causal decoder, and a GRU in its place, which attention over the window must beat.

Enters: event vectors (B, T, D). Leaves: hidden states (B, T, D), or (B, 1, D) where only the last position is wanted.
Paper: Methods, "VAIOM Backbone"; learned positions are drawn from N(0, 0.02). Rotary positions and stochastic depth are
additions, off in the paper's model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from vaiom.model.attention import attend_any_length, attend_in_blocks, causal_attention, drop
from vaiom.model.config import FEED_FORWARD_FACTOR, ModelConfig

POSITION_SCALE = 0.02
ROTARY_BASE = 10_000.0
_TABLE_ROWS = 8_192
"""Positions whose rotations are at hand; longer passes compute their own."""


class Decoder(nn.Module):
    """Blocks over events that know their place in the window; position s sees positions up to s and nothing later."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.context, config.width).normal_(0, POSITION_SCALE))
        self.learned = config.positions == "learned"
        if not self.learned:
            table = rotations(0, max(config.context, _TABLE_ROWS), config.width // config.num_heads)
            self.register_buffer("_table_2TE", table, persistent=False)
        self.window, self.any_length = config.window if config.attention_window else 0, False
        self.blocks = nn.ModuleList(
            Block(config, config.stochastic_depth * number / config.num_layers)
            for number in range(1, config.num_layers + 1)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(
        self, h_BTD: Tensor, last_only: bool = False, first: int = 0, kept: list[tuple[Tensor, Tensor]] | None = None
    ) -> Tensor:
        """Row 0 is at position `first`; `kept` takes each layer's keys and values of the last window."""
        rotated = None
        if self.learned:
            h_BTD = h_BTD + self.positions[: h_BTD.shape[1]].to(h_BTD.dtype)
        else:
            rotated = self._rotations(first, h_BTD.shape[1])
        trim = last_only and not self.any_length
        for number, block in enumerate(self.blocks, start=1):
            if trim and self.window:
                # What the last position can see through the layers that are left, in blocks that GPU kernels take.
                seen = 1 + (len(self.blocks) - number + 1) * (self.window - 1)
                h_BTD = h_BTD[:, -(-(-seen // 64) * 64) :]
            rotated = None if rotated is None else rotated[:, -h_BTD.shape[1] :]
            after, some = len(self.blocks) - number, bool(self.window) and not h_BTD.is_cuda
            h_BTD = block(h_BTD, rotated, 1 + after * (self.window - 1) if trim and (some or not after) else 0, kept)
        hidden: Tensor = self.norm(h_BTD[:, -1:] if last_only else h_BTD)
        return hidden

    def accept_any_length(self) -> None:
        """Compute in a way whose graph does not depend on the length, for other programs; the answers are the same."""
        for part in (self, *self.blocks):
            part.any_length = True

    def _rotations(self, first: int, length: int) -> Tensor:
        table = self.get_buffer("_table_2TE")
        if first + length <= table.shape[1]:
            return table[:, first : first + length]
        return rotations(first, length, 2 * table.shape[2]).to(table)


class Gru(nn.Module):
    """Stacked GRU layers; state s has seen the events up to s and nothing later."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.layers = nn.ModuleList(
            nn.GRU(config.width, config.width, batch_first=True) for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        rate = self.dropout if self.training else 0.0
        for layer in self.layers:
            h_BTD = drop(layer(h_BTD)[0], rate)
        hidden: Tensor = self.norm(h_BTD[:, -1:] if last_only else h_BTD)
        return hidden


class Block(nn.Module):
    """Attention and a feed-forward network, each behind its norm and beside a residual path."""

    def __init__(self, config: ModelConfig, depth_rate: float = 0.0) -> None:
        super().__init__()
        width = config.width
        self.num_heads, self.dropout, self.depth_rate = config.num_heads, config.dropout, depth_rate
        self.window, self.any_length = config.window, False
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, FEED_FORWARD_FACTOR * width)
        self.feed_out = nn.Linear(FEED_FORWARD_FACTOR * width, width)

    def forward(
        self,
        h_BTD: Tensor,
        rotated: Tensor | None = None,
        last: int = 0,
        kept: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """With `last`, of so many last positions alone."""
        rate = self.dropout if self.training else 0.0
        normed = self.attention_norm(h_BTD)
        if last:
            mixed = self._attend_last(normed, rotated, rate, last, kept)
            h_BTD = h_BTD[:, -last:]
        else:
            qkv = self.query_key_value(normed).unflatten(-1, (3 * self.num_heads, -1))
            if rotated is not None:
                turned, v = qkv.split([2 * self.num_heads, self.num_heads], dim=2)
                qkv = torch.cat([rotate(turned, rotated), v], dim=2)
            qkv = qkv.unflatten(2, (3, self.num_heads))
            if kept is not None:
                kept.append((qkv[:, -self.window :, 1], qkv[:, -self.window :, 2]))
            attend = attend_any_length if self.any_length else causal_attention
            mixed = attend(qkv, rate, self.window).flatten(-2)
        h_BTD = h_BTD + self._drop_path(self.attention_out(mixed))
        fed = self.feed_out(gelu(self.feed_in(self.feed_norm(h_BTD))))
        return h_BTD + self._drop_path(drop(fed, rate))

    def _drop_path(self, change: Tensor) -> Tensor:
        """Stochastic depth: leave a layer's change out for whole windows at random, and scale the others up."""
        if not self.training or not self.depth_rate:
            return change
        keep = torch.rand(change.shape[0], 1, 1, device=change.device) >= self.depth_rate
        return change * (keep / (1 - self.depth_rate)).to(change.dtype)

    def _attend_last(
        self,
        normed: Tensor,
        rotated: Tensor | None,
        rate: float,
        last: int,
        kept: list[tuple[Tensor, Tensor]] | None,
    ) -> Tensor:
        """Queries of the last positions alone, keys and values of all that they see: (B, last, D)."""
        normed = normed[:, -(last + self.window - 1) :]
        width = normed.shape[-1]
        query_weight, rest_weight = self.query_key_value.weight.split([width, 2 * width])
        query_bias, rest_bias = self.query_key_value.bias.split([width, 2 * width])
        q = linear(normed[:, -last:], query_weight, query_bias)
        k, v = linear(normed, rest_weight, rest_bias).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in (q, k, v))
        if rotated is not None:
            q, k = rotate(q, rotated[:, -q.shape[1] :]), rotate(k, rotated[:, -normed.shape[1] :])
        if kept is not None:
            kept.append((k[:, -self.window :], v[:, -self.window :]))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return attend_in_blocks(q, k, v, rate, self.window).transpose(1, 2).flatten(-2)


def rotary_speeds(size: int) -> Tensor:
    """Angle from one position to the next of each pair of a head's values."""
    speeds: Tensor = ROTARY_BASE ** (-torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / size)
    return speeds


def rotations(first: int, length: int, size: int) -> Tensor:
    """(2, T, E/2) cosines and sines; of angles in double precision, which stay exact where positions are millions."""
    angles = torch.arange(first, first + length, dtype=torch.float64, device="cpu")[:, None] * rotary_speeds(size)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(part_BTHE: Tensor, rotations_2TE: Tensor) -> Tensor:
    """Rotary positions: products of two vectors then depend on the distance between their positions alone."""
    cos, sin = rotations_2TE[:, :, None].to(part_BTHE.dtype)
    first, second = part_BTHE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
