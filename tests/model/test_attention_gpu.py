"""The GPU kernels against attention written out, with the very dropout decisions that the kernels
take.

Without a GPU, `make check-kernels` runs the same kernels in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [pytest.mark.gpu] if INTERPRETED else [pytest.mark.gpu, on_a_gpu]

SEED = 1_234_567


def written_out(qkv: torch.Tensor, kept: torch.Tensor, rate: float, window: int) -> torch.Tensor:
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    length = q.shape[-2]
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = torch.ones(length, length, dtype=torch.bool, device=qkv.device).tril().triu(1 - window)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1) * kept / (1 - rate)
    return (weights @ v).transpose(1, 2)


def kept_weights(seed: int, batch: int, heads: int, length: int, rate: float) -> torch.Tensor:
    """The dropout decisions of the kernels, written plainly: True where a weight is kept, (B, H, T,
    T).
    """
    full = 0xFFFFFFFF
    head = torch.arange(batch * heads)[:, None]
    key = (((head * length + torch.arange(length)) * 0x9E3779B1) & full) ^ seed
    key = key ^ (key >> 15)
    key = (key * 0x2C1B3C6D) & full
    key = key ^ (key >> 16)
    column = (torch.arange(length) * 0x85EBCA77) & full
    mixed = key[:, :, None] ^ column[None, None, :]
    mixed = (mixed * 0x85EBCA6B) & full
    mixed = mixed ^ (mixed >> 13)
    mixed = (mixed * 0xC2B2AE35) & full
    return (mixed >= int(rate * 2**32)).view(batch, heads, length, length)


@pytest.mark.parametrize(
    ("heads", "size", "length"), [(4, 32, 512), (2, 32, 64), (6, 64, 192), (4, 64, 1024)]
)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("window", [1024, 256, 100, 1])
def test_values_and_gradients(heads: int, size: int, length: int, rate: float, window: int) -> None:
    from vaiom.model import attention_gpu

    torch.manual_seed(0)
    qkv = torch.randn(
        2, length, 3, heads, size, device=DEVICE, dtype=torch.float16, requires_grad=True
    )
    seed = torch.tensor([SEED], device=DEVICE, dtype=torch.int32)
    out, _ = attention_gpu._forward_op(qkv, seed, rate, window)
    gradient = torch.randn_like(out)
    out.backward(gradient)

    exact = qkv.detach().float().requires_grad_(True)
    kept = kept_weights(SEED, 2, heads, length, rate).to(DEVICE)
    expected = written_out(exact, kept, rate, window)
    expected.backward(gradient.float())
    torch.testing.assert_close(out.float(), expected, atol=5e-3, rtol=5e-3)
    assert qkv.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(qkv.grad.float(), exact.grad, atol=1e-2, rtol=1e-2)


def test_decisions_are_balanced_and_unrelated() -> None:
    first, second = (kept_weights(seed, 8, 4, 256, 0.1).double() for seed in (1, 2))
    assert first.mean().item() == pytest.approx(0.9, abs=2e-3)
    for other in (second, first.roll(1, 0), first.roll(1, 2), first.roll(1, 3)):
        joint = ((first - 0.9) * (other - 0.9)).mean().item() / 0.09
        assert abs(joint) < 5e-3


@on_a_gpu
def test_dropout_keeps_the_mean() -> None:
    from vaiom.model.decoder import drop

    values = torch.ones(4096, 512, device="cuda")
    dropped = drop(values, 0.1)
    assert dropped.mean().item() == pytest.approx(1.0, abs=2e-3)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.1, abs=2e-3)
    assert not torch.equal(dropped, drop(values, 0.1))
