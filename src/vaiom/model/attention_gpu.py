"""Causal attention with dropout for GPUs: Triton kernels for short windows and narrow heads, in
FP16 or BF16.

Unlike stock fused kernels, dropout is a short integer hash of (seed, head, row, column), recomputed
in the backward pass instead of stored, and queries, keys and values stay packed (B, T, 3, H, E), as
do their gradients.
Softmax and its gradient go through blocks of keys, as in FlashAttention-2 (Dao, 2023), with powers
of 2. Paper: Methods, "VAIOM Backbone" (causal mask, attention dropout).

Shapes: B windows, T positions, H heads, E values a head, D = H E; W is the attention window, BM and
BN are rows and columns of a block of scores.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


@triton.jit
def _row_keys(seed, head, rows, T):
    """A key per row of scores, different for every head and seed, by standard integer
    finalisers.
    """
    key = ((head * T + rows).to(tl.uint32) * 0x9E3779B1) ^ seed.to(tl.uint32)
    key ^= key >> 15
    key *= 0x2C1B3C6D
    return key ^ (key >> 16)


@triton.jit
def _mix(key):
    """The last steps of the hash of a row's key and a column: a weight is dropped where it is below
    the threshold.
    """
    key *= 0x85EBCA6B
    key ^= key >> 13
    return key * 0xC2B2AE35


@triton.jit
def _forward(
    QKV,
    OUT,
    LSE,
    SEED,
    scale,
    drop_below,
    keep_scale,
    T: tl.constexpr,
    H: tl.constexpr,
    E: tl.constexpr,
    W: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Outputs (B, T, H, E) of a block of rows of one head.

    LSE (B H, T) keeps the base-2 logarithm of each row's sum of weights for the backward pass.
    """
    # Late rows see the most keys, so they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    D: tl.constexpr = H * E
    base = QKV + (head // H).to(tl.int64) * T * 3 * D + (head % H) * E
    rows = block * BM + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    e = tl.arange(0, E)
    q = tl.load(base + rows[:, None] * (3 * D) + e[None, :])
    keys = _row_keys(tl.load(SEED), head, rows, T)
    top = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, E], tl.float32)
    # Keys older than the window of the block's first row are visible to none of its rows.
    for start in range(tl.maximum(block * BM - W + 1, 0) // BN * BN, (block + 1) * BM, BN):
        at = start + columns
        k = tl.load(base + D + at[:, None] * (3 * D) + e[None, :])
        v = tl.load(base + 2 * D + at[:, None] * (3 * D) + e[None, :])
        scores = tl.dot(q, tl.trans(k)) * scale
        if (start + BN > block * BM) | (start <= (block + 1) * BM - 1 - W):
            distance = rows[:, None] - at[None, :]
            scores = tl.where((distance >= 0) & (distance < W), scores, -1e30)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        keep = _mix(keys[:, None] ^ (at.to(tl.uint32) * 0x85EBCA77)[None, :]) >= drop_below
        weights = tl.where(keep, weights, 0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        top = higher
    mixed = mixed * (keep_scale / total)[:, None]
    out = OUT + (head // H).to(tl.int64) * T * D + (head % H) * E
    tl.store(out + rows[:, None] * D + e[None, :], mixed.to(OUT.dtype.element_ty))
    tl.store(LSE + head * T + rows, top + tl.log2(total))


@triton.jit
def _backward_queries(
    QKV,
    OUT,
    GRAD,
    LSE,
    DELTA,
    DQKV,
    SEED,
    scale,
    drop_below,
    keep_scale,
    T: tl.constexpr,
    H: tl.constexpr,
    E: tl.constexpr,
    W: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Gradients of a block of queries of one head.

    DELTA (B H, T) keeps each row's sum of gradient times output for `_backward_keys`.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    D: tl.constexpr = H * E
    base = QKV + (head // H).to(tl.int64) * T * 3 * D + (head % H) * E
    narrow = (head // H).to(tl.int64) * T * D + (head % H) * E
    rows = block * BM + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    e = tl.arange(0, E)
    q = tl.load(base + rows[:, None] * (3 * D) + e[None, :])
    grad = tl.load(GRAD + narrow + rows[:, None] * D + e[None, :])
    out = tl.load(OUT + narrow + rows[:, None] * D + e[None, :])
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + head * T + rows, delta)
    lse = tl.load(LSE + head * T + rows)
    keys = _row_keys(tl.load(SEED), head, rows, T)
    dq = tl.zeros([BM, E], tl.float32)
    # Keys older than the window of the block's first row are visible to none of its rows.
    for start in range(tl.maximum(block * BM - W + 1, 0) // BN * BN, (block + 1) * BM, BN):
        at = start + columns
        k = tl.load(base + D + at[:, None] * (3 * D) + e[None, :])
        v = tl.load(base + 2 * D + at[:, None] * (3 * D) + e[None, :])
        weights = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        if (start + BN > block * BM) | (start <= (block + 1) * BM - 1 - W):
            distance = rows[:, None] - at[None, :]
            weights = tl.where((distance >= 0) & (distance < W), weights, 0.0)
        dw = tl.dot(grad, tl.trans(v)) * keep_scale
        keep = _mix(keys[:, None] ^ (at.to(tl.uint32) * 0x85EBCA77)[None, :]) >= drop_below
        ds = weights * (tl.where(keep, dw, 0.0) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    dq *= scale / 1.4426950408889634
    target = DQKV + (head // H).to(tl.int64) * T * 3 * D + (head % H) * E
    tl.store(target + rows[:, None] * (3 * D) + e[None, :], dq.to(DQKV.dtype.element_ty))


@triton.jit
def _backward_keys(
    QKV,
    GRAD,
    LSE,
    DELTA,
    DQKV,
    SEED,
    scale,
    drop_below,
    keep_scale,
    T: tl.constexpr,
    H: tl.constexpr,
    E: tl.constexpr,
    W: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Gradients of a block of keys and of their values of one head."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    D: tl.constexpr = H * E
    base = QKV + (head // H).to(tl.int64) * T * 3 * D + (head % H) * E
    narrow = (head // H).to(tl.int64) * T * D + (head % H) * E
    at = block * BN + tl.arange(0, BN)
    within = tl.arange(0, BM)
    e = tl.arange(0, E)
    k = tl.load(base + D + at[:, None] * (3 * D) + e[None, :])
    v = tl.load(base + 2 * D + at[:, None] * (3 * D) + e[None, :])
    seed = tl.load(SEED)
    column_keys = at.to(tl.uint32) * 0x85EBCA77
    dk = tl.zeros([BN, E], tl.float32)
    dv = tl.zeros([BN, E], tl.float32)
    for start in range((block * BN) // BM * BM, tl.minimum((block + 1) * BN + W - 1, T), BM):
        rows = start + within
        q = tl.load(base + rows[:, None] * (3 * D) + e[None, :])
        grad = tl.load(GRAD + narrow + rows[:, None] * D + e[None, :])
        lse = tl.load(LSE + head * T + rows)
        delta = tl.load(DELTA + head * T + rows)
        weights = tl.exp2(tl.dot(k, tl.trans(q)) * scale - lse[None, :])
        if (start < (block + 1) * BN) | (start + BM > block * BN + W):
            distance = rows[None, :] - at[:, None]
            weights = tl.where((distance >= 0) & (distance < W), weights, 0.0)
        keep = _mix(_row_keys(seed, head, rows, T)[None, :] ^ column_keys[:, None]) >= drop_below
        dv += tl.dot(tl.where(keep, weights, 0.0).to(grad.dtype), grad)
        dw = tl.where(keep, tl.dot(v, tl.trans(grad)) * keep_scale, 0.0)
        ds = weights * (dw - delta[None, :])
        dk += tl.dot(ds.to(q.dtype), q)
    dk *= scale / 1.4426950408889634
    dv *= keep_scale
    target = DQKV + (head // H).to(tl.int64) * T * 3 * D + (head % H) * E
    tl.store(target + D + at[:, None] * (3 * D) + e[None, :], dk.to(DQKV.dtype.element_ty))
    tl.store(target + 2 * D + at[:, None] * (3 * D) + e[None, :], dv.to(DQKV.dtype.element_ty))


_BLOCK = 64
# The fastest of 24 shapes on an H200 at the main model's sizes.
_LAUNCH: dict[str, Any] = {"BM": _BLOCK, "BN": _BLOCK, "num_warps": 4, "num_stages": 3}


def fits(qkv: Tensor) -> bool:
    """Whether the kernels support this tensor."""
    _, length, _, _, size = qkv.shape
    return (
        qkv.dtype in (torch.float16, torch.bfloat16)
        and size in (16, 32, 64)
        and length % _BLOCK == 0
        and qkv.is_contiguous()
    )


def _numbers(qkv: Tensor, rate: float) -> tuple[float, int, float]:
    """Scale of scores in base 2, threshold of dropped hashes, and factor of kept weights."""
    return qkv.shape[-1] ** -0.5 * LOG2_E, min(int(rate * 2**32), 2**32 - 1), 1 / (1 - rate)


@torch.library.custom_op("vaiom::attention_forward", mutates_args=())
def _forward_op(qkv: Tensor, seed: Tensor, rate: float, window: int) -> tuple[Tensor, Tensor]:
    batch, length, _, heads, size = qkv.shape
    out = torch.empty(batch, length, heads, size, dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty(batch * heads, length, dtype=torch.float32, device=qkv.device)
    grid = (length // _BLOCK, batch * heads)
    _forward[grid](
        qkv, out, lse, seed, *_numbers(qkv, rate), T=length, H=heads, E=size, W=window, **_LAUNCH
    )
    return out, lse


@_forward_op.register_fake
def _(qkv: Tensor, seed: Tensor, rate: float, window: int) -> tuple[Tensor, Tensor]:
    batch, length, _, heads, size = qkv.shape
    return qkv.new_empty(batch, length, heads, size), qkv.new_empty(
        batch * heads, length, dtype=torch.float32
    )


@torch.library.custom_op("vaiom::attention_backward", mutates_args=())
def _backward_op(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, seed: Tensor, rate: float, window: int
) -> Tensor:
    batch, length, _, heads, size = qkv.shape
    dqkv, delta = torch.empty_like(qkv), torch.empty_like(lse)
    numbers = _numbers(qkv, rate)
    sizes = {"T": length, "H": heads, "E": size, "W": window}
    grid = (length // _BLOCK, batch * heads)
    _backward_queries[grid](qkv, out, grad, lse, delta, dqkv, seed, *numbers, **sizes, **_LAUNCH)
    _backward_keys[grid](qkv, grad, lse, delta, dqkv, seed, *numbers, **sizes, **_LAUNCH)
    return dqkv


@_backward_op.register_fake
def _(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, seed: Tensor, rate: float, window: int
) -> Tensor:
    return torch.empty_like(qkv)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, seed, ctx.rate, ctx.window = inputs
    ctx.save_for_backward(qkv, *output, seed)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    qkv, out, lse, seed = ctx.saved_tensors
    return (
        _backward_op(grad.contiguous(), qkv, out, lse, seed, ctx.rate, ctx.window),
        None,
        None,
        None,
    )


_forward_op.register_autograd(_differentiate, setup_context=_save)


def causal_attention(qkv_BT3HE: Tensor, rate: float, window: int) -> Tensor:
    """(B, T, H, E) attention to the last `window` positions; a weight is dropped with probability
    `rate`.
    """
    seed = torch.randint(0, 2**31 - 1, (1,), device=qkv_BT3HE.device, dtype=torch.int32)
    out: Tensor = _forward_op(qkv_BT3HE, seed, rate, min(window, qkv_BT3HE.shape[1]))[0]
    return out
