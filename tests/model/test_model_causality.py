"""Position s knows nothing of what comes after it: every branch, every head, both
attention paths.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import CHOICES, events, tiny_model
from torch import Tensor

from vaiom.model import decoder
from vaiom.model.decoder import rotate, rotations
from vaiom.model.vaiom import Vaiom

LENGTH = 11


def logits_of(model: Vaiom, x: Tensor, meta: Tensor) -> Tensor:
    """All heads side by side; dropout, if on, decides the same every time."""
    torch.manual_seed(5)
    return torch.cat(list(model(x, meta).values()), dim=-1).detach()


@pytest.fixture(params=["whole", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Query blocks shorter than the window, so that every kind of block boundary is met."""
    monkeypatch.setattr(decoder, "_QUERY_BLOCK", 4)
    return bool(request.param == "in blocks")


BRANCHES = [
    {"input": input_, "return_head": head, "backbone": backbone}
    for input_ in CHOICES["input"]
    for head in CHOICES["return_head"]
    for backbone in CHOICES["backbone"]
]
ADDITIONS = [
    {"positions": "rotary"},
    {"stochastic_depth": 0.3},
    {"positions": "rotary", "stochastic_depth": 0.3},
]


@pytest.mark.parametrize("changes", BRANCHES + ADDITIONS, ids=str)
def test_logits_up_to_s_do_not_move_when_the_future_does(
    changes: dict[str, Any], blocks: bool
) -> None:
    model = tiny_model(dropout=0.2, **changes)
    model.train(blocks)  # with dropout a CPU attends in blocks
    x, meta = events(model, 2, LENGTH)
    other, _ = events(model, 2, LENGTH, seed=1)
    before = logits_of(model, x, meta)
    for s in range(LENGTH - 1):
        for changed in (slice(s + 1, s + 2), slice(s + 1, None)):
            altered = x.clone()
            altered[:, changed] = other[:, changed]
            after = logits_of(model, altered, meta)
            assert torch.equal(after[:, : s + 1], before[:, : s + 1])
            if "stochastic_depth" not in changes:
                assert not torch.equal(after[:, s + 1], before[:, s + 1])


def test_rotated_vectors_know_their_distance_and_nothing_else() -> None:
    torch.manual_seed(3)
    q = torch.randn(1, 1, 1, 8)
    k = torch.randn(1, 1, 1, 8)

    def turned(vector: torch.Tensor, at: int) -> torch.Tensor:
        return rotate(vector, rotations(at + 1, 8)[:, at:])

    def product(at: int, of: int) -> float:
        return (turned(q, at) * turned(k, of)).sum().item()

    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-5)
    assert product(7, 3) == pytest.approx(product(1_000_004, 1_000_000), abs=1e-5)
    assert product(7, 3) != pytest.approx(product(7, 4), abs=1e-3)
    assert turned(q, 9).norm().item() == pytest.approx(q.norm().item(), rel=1e-6)


@pytest.mark.parametrize("backbone", CHOICES["backbone"])
@pytest.mark.parametrize("input_", CHOICES["input"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_last_position_alone_equals_the_full_pass(
    input_: str, layers: int, backbone: str
) -> None:
    model = tiny_model(input=input_, num_layers=layers, backbone=backbone).eval()
    for length in (1, 7, 32):
        x, meta = events(model, 3, length)
        full = model(x, meta)
        last = model(x, meta, last_only=True)
        assert list(full) == list(last)
        for name, values in last.items():
            assert values.shape[1] == 1
            torch.testing.assert_close(values[:, 0], full[name][:, -1], atol=1e-5, rtol=1e-5)


def test_attention_in_blocks_drops_at_its_rate_and_keeps_the_mean() -> None:
    torch.manual_seed(2)
    qkv = torch.randn(64, 130, 3, 2, 4)
    qkv[:, :, 2] = 1.0  # with equal values the result is the sum of the kept weights
    kept = decoder.causal_attention(qkv, 0.25, 512)
    assert kept[:, 64:].mean().item() == pytest.approx(1.0, abs=5e-3)
    # The first position has one weight: dropped or scaled up.
    first = kept[:, 0]
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.12)
