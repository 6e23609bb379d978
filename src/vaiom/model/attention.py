"""Causal attention and dropout, each by the fastest way the device has.

Enters: packed queries, keys and values (B, T, 3, H, E). Leaves: (B, T, H, E).
Paper: Methods, "VAIOM Backbone" (strictly causal mask; dropout on attention weights and on the feed-forward output).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if torch.cuda.is_available():
    from vaiom.model import attention_gpu

_QUERY_BLOCK = 64
# Odd multipliers without structure, as signed 32-bit numbers.
_SPREAD, _MIX = -1640531535, 739982445


def causal_attention(qkv_BT3HE: Tensor, rate: float, window: int) -> Tensor:
    """Attention to the last `window` positions, the own one included; a weight is dropped with probability `rate`."""
    if qkv_BT3HE.is_cuda and attention_gpu.fits(qkv_BT3HE):
        return attention_gpu.causal_attention(qkv_BT3HE, rate, window)
    q, k, v = (part.transpose(1, 2) for part in qkv_BT3HE.unbind(2))
    if window < q.shape[-2] or (rate and not qkv_BT3HE.is_cuda):
        mixed = attend_in_blocks(q, k, v, rate, window)
    else:
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
    return mixed.transpose(1, 2)


def attend_any_length(qkv_BT3HE: Tensor, rate: float, window: int) -> Tensor:
    """One masked product, whose graph holds for windows of any length."""
    q, k, v = (part.transpose(1, 2) for part in qkv_BT3HE.unbind(2))
    at = torch.arange(qkv_BT3HE.shape[1])
    distance = at[:, None] - at
    seen = (distance >= 0) & (distance < window)
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=rate).transpose(1, 2)


def attend_in_blocks(q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, rate: float, window: int) -> Tensor:
    """Where dropout or a window leave the fused path: blocks of queries against the keys that they may see.

    There may be queries of the last positions alone.
    """
    length, size = k_BHTE.shape[-2:]
    out, begin = [], length - q_BHTE.shape[-2]
    for start in range(begin, length, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, length)
        first = max(0, start - window + 1)
        q, k, v = q_BHTE[..., start - begin : stop - begin, :], k_BHTE[..., first:stop, :], v_BHTE[..., first:stop, :]
        unseen = _unseen(stop - start, start - first, window, q.dtype, q.device) if stop - start > 1 else None
        if rate:
            scores = q * size**-0.5 @ k.transpose(-1, -2)
            out.append(drop((scores if unseen is None else scores + unseen).softmax(dim=-1), rate) @ v)
        else:
            out.append(scaled_dot_product_attention(q, k, v, attn_mask=unseen))
    return torch.cat(out, dim=-2)


@lru_cache(maxsize=32)
def _unseen(length: int, before: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(length, before + length): -inf where a query does not see a key, of those before the block and in it."""
    with torch.inference_mode(False):  # or a pass that learns could not use it
        keys = torch.arange(before + length, device=device)
        distance = keys[before:, None] - keys
        return torch.zeros(distance.shape, dtype=dtype, device=device).masked_fill_(
            (distance < 0) | (distance >= window), float("-inf")
        )


def drop(values: Tensor, rate: float) -> Tensor:
    """Dropout, by decisions that cost little: sixteen random bits each on CPUs, a short integer hash on GPUs."""
    if not rate:
        return values
    if not values.is_cuda:
        words = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: values.numel()].view_as(values)
        return values * (bits >= round(rate * 2**16) - 2**15).to(values.dtype).mul_(1 / (1 - rate))
    seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=values.device, dtype=torch.int32)
    key = (torch.arange(values.numel(), device=values.device, dtype=torch.int32) ^ seed) * _SPREAD
    key = (key ^ ((key >> 15) & 0x1FFFF)) * _MIX
    key = key ^ ((key >> 16) & 0xFFFF)
    keep = (key >= int(rate * 2**32) - 2**31).view_as(values)
    return torch.where(keep, values / (1 - rate), 0.0)
