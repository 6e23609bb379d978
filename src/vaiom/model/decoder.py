"""The backbones: a pre-norm causal decoder, and a GRU of the same interface to compare it with.

Enters: event vectors (B, T, D). Leaves: hidden states (B, T, D), or (B, 1, D) at the last position;
a hidden state has seen the events up to its own alone.
Paper: Methods, "VAIOM Backbone". Rotary positions (Su et al., 2021), attention windows and
stochastic depth (Huang et al., 2016) are additions, off in the paper's model.

Shapes: B windows, T positions, D width, H heads, E = D / H values a head.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from vaiom.model.config import FEED_FORWARD_FACTOR, ROTARY_BASE, ModelConfig

if torch.cuda.is_available():
    from vaiom.model import attention_gpu

POSITION_SCALE = 0.02
"""Standard deviation of learned positions at the start."""
_TABLE_ROWS = 8_192
"""Positions with precomputed rotations; longer passes compute their own."""
_QUERY_BLOCK = 64
"""Queries that attend together where no fused kernel does: few enough to skip most unseen keys."""
_GPU_BLOCK = 64
"""Lengths that GPU kernels support are multiples of this."""
# Unstructured odd multipliers, as signed 32-bit numbers.
_SPREAD = -1640531535
_MIX = 739982445


class Decoder(nn.Module):
    """Causal Transformer blocks over event vectors with positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.learned = config.positions == "learned"
        if self.learned:
            positions = torch.empty(config.context, config.width).normal_(0, POSITION_SCALE)
            self.positions = nn.Parameter(positions)
        else:
            table = rotations(max(config.context, _TABLE_ROWS), config.width // config.num_heads)
            self.register_buffer("_table_2TE", table, persistent=False)
        self.window = config.window if config.attention_window else 0
        self.any_length = False
        self.blocks = nn.ModuleList(
            Block(config, config.stochastic_depth * number / config.num_layers)
            for number in range(1, config.num_layers + 1)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        """Hidden states at every position, or (B, 1, D) at the last.

        For the last position alone, a layer computes only what later layers see of it.
        """
        length = h_BTD.shape[1]
        rotated = None if self.learned else self._rotations(length)
        if self.learned:
            h_BTD = h_BTD + self.positions[:length].to(h_BTD.dtype)
        trim = last_only and not self.any_length
        num_later = len(self.blocks)
        for block in self.blocks:
            num_later -= 1
            # Outputs of this layer that the last position sees through later ones.
            num_needed = 1 + num_later * (self.window - 1)
            if trim and self.window:
                num_inputs = num_needed + self.window - 1
                h_BTD = h_BTD[:, -(-(-num_inputs // _GPU_BLOCK) * _GPU_BLOCK) :]
            if rotated is not None:
                rotated = rotated[:, -h_BTD.shape[1] :]
            skips = trim and (num_later == 0 or (self.window > 0 and not h_BTD.is_cuda))
            h_BTD = block(h_BTD, rotated, num_needed if skips else 0)
        hidden: Tensor = self.norm(h_BTD[:, -1:] if last_only else h_BTD)
        return hidden

    def _rotations(self, length: int) -> Tensor:
        """(2, T, E/2): those of the first positions."""
        table_2TE = self.get_buffer("_table_2TE")
        if length <= table_2TE.shape[1]:
            return table_2TE[:, :length]
        return rotations(length, 2 * table_2TE.shape[2]).to(table_2TE)

    def accept_any_length(self) -> None:
        """Use operations whose graph holds for any length, for export; results are the same."""
        for part in (self, *self.blocks):
            part.any_length = True


class Gru(nn.Module):
    """Stacked GRU layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.layers = nn.ModuleList(
            nn.GRU(config.width, config.width, batch_first=True) for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        """Hidden states at every position, or (B, 1, D) at the last."""
        rate = self.dropout if self.training else 0.0
        for layer in self.layers:
            h_BTD = drop(layer(h_BTD)[0], rate)
        hidden: Tensor = self.norm(h_BTD[:, -1:] if last_only else h_BTD)
        return hidden


class Block(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and a residual connection:
    x + attend(norm(x)), then x + feed(norm(x)) with feed(y) = W2 GELU(W1 y).
    """

    def __init__(self, config: ModelConfig, depth_rate: float = 0.0) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.depth_rate = depth_rate
        self.window = config.window
        self.any_length = False
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, FEED_FORWARD_FACTOR * width)
        self.feed_out = nn.Linear(FEED_FORWARD_FACTOR * width, width)

    def forward(self, h_BTD: Tensor, rotated: Tensor | None = None, last: int = 0) -> Tensor:
        """Outputs at every position, or at that many last ones."""
        rate = self.dropout if self.training else 0.0
        normed = self.attention_norm(h_BTD)
        if last:
            mixed = self._attend_last(normed, rotated, rate, last)
            h_BTD = h_BTD[:, -last:]
        else:
            mixed = self._attend(normed, rotated, rate)
        h_BTD = h_BTD + self._drop_path(self.attention_out(mixed))
        fed = self.feed_out(gelu(self.feed_in(self.feed_norm(h_BTD))))
        return h_BTD + self._drop_path(drop(fed, rate))

    def _drop_path(self, change: Tensor) -> Tensor:
        """Stochastic depth: skip a layer for random windows, and scale the others up."""
        if not self.training or not self.depth_rate:
            return change
        keep = torch.rand(change.shape[0], 1, 1, device=change.device) >= self.depth_rate
        return change * (keep / (1 - self.depth_rate)).to(change.dtype)

    def _attend(self, normed: Tensor, rotated: Tensor | None, rate: float) -> Tensor:
        """(B, T, D) attention of all positions."""
        qkv = self.query_key_value(normed).unflatten(-1, (3 * self.num_heads, -1))
        if rotated is not None:
            queries_keys, values = qkv.split([2 * self.num_heads, self.num_heads], dim=2)
            qkv = torch.cat([rotate(queries_keys, rotated), values], dim=2)
        qkv_BT3HE = qkv.unflatten(2, (3, self.num_heads))
        return causal_attention(qkv_BT3HE, rate, self.window, self.any_length).flatten(-2)

    def _attend_last(
        self, normed: Tensor, rotated: Tensor | None, rate: float, last: int
    ) -> Tensor:
        """(B, last, D) attention of the last positions to all keys and values that they see."""
        normed = normed[:, -(last + self.window - 1) :]
        width = normed.shape[-1]
        query_weight, rest_weight = self.query_key_value.weight.split([width, 2 * width])
        query_bias, rest_bias = self.query_key_value.bias.split([width, 2 * width])
        q = linear(normed[:, -last:], query_weight, query_bias)
        k, v = linear(normed, rest_weight, rest_bias).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in (q, k, v))
        if rotated is not None:
            q = rotate(q, rotated[:, -q.shape[1] :])
            k = rotate(k, rotated[:, -k.shape[1] :])
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if last == 1:  # operations that can be exported
            mixed = scaled_dot_product_attention(q, k, v, dropout_p=rate)
        else:
            mixed = attend_in_blocks(q, k, v, rate, self.window)
        return mixed.transpose(1, 2).flatten(-2)


def rotations(length: int, size: int) -> Tensor:
    """(2, T, E/2) cosines and sines of the angles position * base^(-2e/E).

    Angles are computed in double precision: exact at positions in the millions.
    """
    speeds = ROTARY_BASE ** (-torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / size)
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * speeds
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(part_BTHE: Tensor, rotations_2TE: Tensor) -> Tensor:
    """Rotate queries or keys by their positions.

    Value e of the first half of a head and value e of the second are a point in a plane; the dot
    product of a query and a key then depends on the distance between their positions alone.
    """
    cos, sin = rotations_2TE[:, :, None].to(part_BTHE.dtype)
    first, second = part_BTHE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def causal_attention(
    qkv_BT3HE: Tensor, rate: float, window: int, any_length: bool = False
) -> Tensor:
    """(B, T, H, E) softmax(q k / sqrt(E)) v over the last `window` positions, the own included.

    Weights are dropped with probability `rate`.
    """
    if qkv_BT3HE.is_cuda and not any_length and attention_gpu.fits(qkv_BT3HE):
        return attention_gpu.causal_attention(qkv_BT3HE, rate, window)
    q, k, v = (part.transpose(1, 2) for part in qkv_BT3HE.unbind(2))
    if any_length:  # one masked product, whose graph holds for any length
        positions = torch.arange(qkv_BT3HE.shape[1])
        distance = positions[:, None] - positions
        visible = (distance >= 0) & (distance < window)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=rate)
    elif window < q.shape[-2] or (rate and not qkv_BT3HE.is_cuda):
        mixed = attend_in_blocks(q, k, v, rate, window)
    else:
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
    return mixed.transpose(1, 2)


def attend_in_blocks(
    q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, rate: float, window: int
) -> Tensor:
    """Attention of all or the last queries in blocks, where dropout or a window rule out the fused
    kernel.
    """
    length, size = k_BHTE.shape[-2:]
    num_unasked = length - q_BHTE.shape[-2]
    out = []
    for start in range(num_unasked, length, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, length)
        first_seen = max(0, start - window + 1)
        q = q_BHTE[..., start - num_unasked : stop - num_unasked, :]
        k = k_BHTE[..., first_seen:stop, :]
        v = v_BHTE[..., first_seen:stop, :]
        mask = None
        if stop - start > 1:  # a single query sees all of these keys
            mask = _mask(stop - start, start - first_seen, window, q.dtype, q.device)
        if rate:
            scores = q * size**-0.5 @ k.transpose(-1, -2)
            if mask is not None:
                scores = scores + mask
            out.append(drop(scores.softmax(dim=-1), rate) @ v)
        else:
            out.append(scaled_dot_product_attention(q, k, v, attn_mask=mask))
    return torch.cat(out, dim=-2)


@lru_cache(maxsize=32)
def _mask(
    length: int, before: int, window: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(length, before + length): -inf where a query does not see a key, before the block
    or in it.
    """
    with torch.inference_mode(False):  # else a training pass could not use it
        keys = torch.arange(before + length, device=device)
        distance = keys[before:, None] - keys
        unseen = (distance < 0) | (distance >= window)
        zeros = torch.zeros(distance.shape, dtype=dtype, device=device)
        return zeros.masked_fill_(unseen, float("-inf"))


def drop(values: Tensor, rate: float) -> Tensor:
    """Dropout from cheap random bits, kept values scaled up by 1 / (1 - rate).

    A decision takes sixteen random bits on CPUs, and a short integer hash on GPUs.
    """
    if not rate:
        return values
    if not values.is_cuda:
        words = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: values.numel()].view_as(values)
        kept = bits >= round(rate * 2**16) - 2**15
        return values * kept.to(values.dtype).mul_(1 / (1 - rate))
    seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=values.device, dtype=torch.int32)
    kept = hashed_choice(values.numel(), seed, rate).view_as(values)
    return torch.where(kept, values / (1 - rate), 0.0)


def hashed_choice(number: int, seed: Tensor, rate: float) -> Tensor:
    """(number,) which values dropout keeps, from a short integer hash of a seed (1,) and
    the place.
    """
    key = (torch.arange(number, device=seed.device, dtype=torch.int32) ^ seed) * _SPREAD
    key = (key ^ ((key >> 15) & 0x1FFFF)) * _MIX
    key = key ^ ((key >> 16) & 0xFFFF)
    return key >= int(rate * 2**32) - 2**31
