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
            length = max(config.context, _TABLE_ROWS)
            head_size = config.width // config.num_heads
            table = rotations(length, head_size)
            self.register_buffer("_table_2TE", table, persistent=False)
        self.window = config.window if config.attention_window else 0
        self.any_length = False
        self.blocks = nn.ModuleList()
        for number in range(1, config.num_layers + 1):
            depth_rate = config.stochastic_depth * number / config.num_layers
            self.blocks.append(Block(config, depth_rate))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        """Hidden states (B, T, D) at every position, or (B, 1, D) at the last.

        For the last position alone, a layer computes only what later layers see of it.
        """
        length = h_BTD.shape[1]
        rotations_2TE = None
        if self.learned:
            positions_TD = self.positions[:length]
            h_BTD = h_BTD + positions_TD.to(h_BTD.dtype)
        else:
            rotations_2TE = self._rotations(length)
        trim = last_only and not self.any_length
        num_later = len(self.blocks)
        for block in self.blocks:
            num_later -= 1
            # Outputs of this layer that the last position sees through later ones.
            num_needed = 1 + num_later * (self.window - 1)
            if trim and self.window:
                num_inputs = num_needed + self.window - 1
                num_blocks = 1 + (num_inputs - 1) // _GPU_BLOCK
                h_BTD = h_BTD[:, -num_blocks * _GPU_BLOCK :]
            if rotations_2TE is not None:
                rotations_2TE = rotations_2TE[:, -h_BTD.shape[1] :]
            num_last = 0
            if trim and (num_later == 0 or (self.window and not h_BTD.is_cuda)):
                num_last = num_needed
            h_BTD = block(h_BTD, rotations_2TE, num_last)
        if last_only:
            h_BTD = h_BTD[:, -1:]
        hidden: Tensor = self.norm(h_BTD)
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
        self.layers = nn.ModuleList()
        for _ in range(config.num_layers):
            self.layers.append(nn.GRU(config.width, config.width, batch_first=True))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        """Hidden states (B, T, D) at every position, or (B, 1, D) at the last."""
        rate = self.dropout if self.training else 0.0
        for layer in self.layers:
            outputs_BTD, _ = layer(h_BTD)
            h_BTD = drop(outputs_BTD, rate)
        if last_only:
            h_BTD = h_BTD[:, -1:]
        hidden: Tensor = self.norm(h_BTD)
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
        inner_width = FEED_FORWARD_FACTOR * width
        self.feed_in = nn.Linear(width, inner_width)
        self.feed_out = nn.Linear(inner_width, width)

    def forward(
        self, h_BTD: Tensor, rotations_2TE: Tensor | None = None, num_last: int = 0
    ) -> Tensor:
        """Outputs (B, num_last, D) at the last positions, or (B, T, D) at all if `num_last` is 0.

        `rotations_2TE` are those of the input positions; None with learned positions.
        """
        rate = self.dropout if self.training else 0.0
        normed_BTD = self.attention_norm(h_BTD)
        if num_last:
            mixed_BTD = self._attend_last(normed_BTD, rotations_2TE, rate, num_last)
            h_BTD = h_BTD[:, -num_last:]
        else:
            mixed_BTD = self._attend(normed_BTD, rotations_2TE, rate)
        attended_BTD = self.attention_out(mixed_BTD)
        h_BTD = h_BTD + self._drop_path(attended_BTD)
        normed_BTD = self.feed_norm(h_BTD)
        inner = gelu(self.feed_in(normed_BTD))
        fed_BTD = drop(self.feed_out(inner), rate)
        return h_BTD + self._drop_path(fed_BTD)

    def _drop_path(self, change_BTD: Tensor) -> Tensor:
        """Stochastic depth: skip a layer for random windows, and scale the others up by
        1 / (1 - rate), so that the mean stays.
        """
        if not self.training or not self.depth_rate:
            return change_BTD
        drawn_B11 = torch.rand(len(change_BTD), 1, 1, device=change_BTD.device)
        kept_B11 = drawn_B11 >= self.depth_rate
        scale_B11 = kept_B11 / (1 - self.depth_rate)
        return change_BTD * scale_B11.to(change_BTD.dtype)

    def _attend(self, normed_BTD: Tensor, rotations_2TE: Tensor | None, rate: float) -> Tensor:
        """(B, T, D) attention of all positions."""
        num_heads = self.num_heads
        qkv = self.query_key_value(normed_BTD)
        qkv = qkv.unflatten(-1, (3 * num_heads, -1))
        if rotations_2TE is not None:
            queries_keys, values = qkv.split([2 * num_heads, num_heads], dim=2)
            rotated = rotate(queries_keys, rotations_2TE)
            qkv = torch.cat([rotated, values], dim=2)
        qkv_BT3HE = qkv.unflatten(2, (3, num_heads))
        mixed_BTHE = causal_attention(qkv_BT3HE, rate, self.window, self.any_length)
        return mixed_BTHE.flatten(-2)

    def _attend_last(
        self, normed_BTD: Tensor, rotations_2TE: Tensor | None, rate: float, num_last: int
    ) -> Tensor:
        """(B, num_last, D) attention of the last positions to all keys and values that they
        see.
        """
        num_seen = num_last + self.window - 1
        seen_BTD = normed_BTD[:, -num_seen:]
        width = seen_BTD.shape[-1]
        sizes = [width, 2 * width]
        query_weight, key_value_weight = self.query_key_value.weight.split(sizes)
        query_bias, key_value_bias = self.query_key_value.bias.split(sizes)
        q = linear(seen_BTD[:, -num_last:], query_weight, query_bias)
        key_value = linear(seen_BTD, key_value_weight, key_value_bias)
        k, v = key_value.chunk(2, dim=-1)
        heads = (self.num_heads, -1)
        q = q.unflatten(-1, heads)
        k = k.unflatten(-1, heads)
        v = v.unflatten(-1, heads)
        if rotations_2TE is not None:
            q = rotate(q, rotations_2TE[:, -q.shape[1] :])
            k = rotate(k, rotations_2TE[:, -k.shape[1] :])
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        if num_last == 1:  # operations that can be exported
            mixed_BHTE = scaled_dot_product_attention(q, k, v, dropout_p=rate)
        else:
            mixed_BHTE = attend_in_blocks(q, k, v, rate, self.window)
        return mixed_BHTE.transpose(1, 2).flatten(-2)


def rotations(length: int, size: int) -> Tensor:
    """(2, T, E/2) cosines and sines of the angles position * base^(-2e/E).

    Angles are computed in double precision: exact at positions in the millions.
    """
    places_E = torch.arange(0, size, 2, dtype=torch.float64, device="cpu")
    frequencies_E = ROTARY_BASE ** (-places_E / size)
    positions_T = torch.arange(length, dtype=torch.float64, device="cpu")
    angles_TE = positions_T[:, None] * frequencies_E
    table_2TE = torch.stack([angles_TE.cos(), angles_TE.sin()])
    return table_2TE.float()


def rotate(part_BTHE: Tensor, rotations_2TE: Tensor) -> Tensor:
    """Rotate queries or keys by their positions.

    Value e of the first half of a head and value e of the second are a point in a plane; the dot
    product of a query and a key then depends on the distance between their positions alone.
    """
    cos, sin = rotations_2TE[:, :, None].to(part_BTHE.dtype)
    first, second = part_BTHE.chunk(2, dim=-1)
    new_first = first * cos - second * sin
    new_second = first * sin + second * cos
    return torch.cat([new_first, new_second], dim=-1)


def causal_attention(
    qkv_BT3HE: Tensor, rate: float, window: int, any_length: bool = False
) -> Tensor:
    """(B, T, H, E) softmax(q k / sqrt(E)) v over the last `window` positions, the own included.

    Weights are dropped with probability `rate`.
    """
    if qkv_BT3HE.is_cuda and not any_length and attention_gpu.fits(qkv_BT3HE):
        return attention_gpu.causal_attention(qkv_BT3HE, rate, window)
    q_BTHE, k_BTHE, v_BTHE = qkv_BT3HE.unbind(2)
    q = q_BTHE.transpose(1, 2)
    k = k_BTHE.transpose(1, 2)
    v = v_BTHE.transpose(1, 2)
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
    num_queries, size = q_BHTE.shape[-2:]
    start = k_BHTE.shape[-2] - num_queries
    parts = []
    for q in q_BHTE.split(_QUERY_BLOCK, dim=-2):
        length = q.shape[-2]
        stop = start + length
        first_seen = max(0, start - window + 1)
        k = k_BHTE[..., first_seen:stop, :]
        v = v_BHTE[..., first_seen:stop, :]
        mask = None
        if length > 1:  # a single query sees all of these keys
            mask = _mask(length, start - first_seen, window, q.dtype, q.device)
        if rate:
            scaled_q = q * size**-0.5
            scores = scaled_q @ k.transpose(-1, -2)
            if mask is not None:
                scores = scores + mask
            weights = drop(scores.softmax(dim=-1), rate)
            mixed = weights @ v
        else:
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        parts.append(mixed)
        start = stop
    return torch.cat(parts, dim=-2)


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
    number = values.numel()
    if values.is_cuda:
        limit = 2**31
        seed = torch.randint(-limit, limit - 1, (1,), device=values.device, dtype=torch.int32)
        kept = hashed_choice(number, seed, rate).view_as(values)
        return torch.where(kept, values / (1 - rate), 0.0)
    num_words = (number + 3) // 4  # a word of 64 bits holds four decisions
    words = torch.empty(num_words, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:number]
    drop_below = round(rate * 2**16) - 2**15
    kept = bits.view_as(values) >= drop_below
    scale = kept.to(values.dtype).mul_(1 / (1 - rate))
    return values * scale


def hashed_choice(number: int, seed: Tensor, rate: float) -> Tensor:
    """(number,) which values dropout keeps, from a short integer hash of a seed (1,) and
    the place.
    """
    places = torch.arange(number, device=seed.device, dtype=torch.int32)
    key = (places ^ seed) * _SPREAD
    key = (key ^ ((key >> 15) & 0x1FFFF)) * _MIX
    key = key ^ ((key >> 16) & 0xFFFF)
    return key >= int(rate * 2**32) - 2**31
