"""The backbones against plain ones, position by position without blocks or kernels, and what
training drops.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_models import events, tiny_model
from torch import Tensor
from torch.nn.functional import gelu

from vaiom.model import decoder
from vaiom.model.config import ROTARY_BASE
from vaiom.model.decoder import Block, drop, hashed_choice
from vaiom.model.vaiom import Vaiom

KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"positions": "rotary"},
    "windowed": {"positions": "rotary", "attention_window": 8, "num_layers": 3},
}


def turned(part: Tensor, position: int) -> Tensor:
    """(..., E) with its halves as real and imaginary parts, each pair turned at its own speed."""
    size = part.shape[-1]
    speeds = ROTARY_BASE ** (-torch.arange(0, size, 2).double() / size)
    pairs = torch.complex(*part.double().chunk(2, dim=-1)) * torch.exp(1j * position * speeds)
    return torch.cat([pairs.real, pairs.imag], dim=-1).float()


def plain_decoder(model: Vaiom, h: Tensor) -> Tensor:
    config = model.config
    backbone = model.backbone
    assert isinstance(backbone, decoder.Decoder)
    length = h.shape[1]
    heads = config.num_heads
    size = config.width // config.num_heads
    if config.positions == "learned":
        h = h + backbone.positions[:length]
    for block in backbone.blocks:
        assert isinstance(block, Block)
        q, k, v = (
            p.unflatten(-1, (heads, size))
            for p in block.query_key_value(block.attention_norm(h)).chunk(3, -1)
        )
        if config.positions == "rotary":
            q, k = (
                torch.stack([turned(part[:, at], at) for at in range(length)], dim=1)
                for part in (q, k)
            )
        mixed = torch.empty_like(h)
        for at in range(length):
            seen = slice(max(0, at - config.window + 1), at + 1)
            weights = (
                torch.einsum("bhe,bthe->bht", q[:, at], k[:, seen]) / math.sqrt(size)
            ).softmax(dim=-1)
            mixed[:, at] = torch.einsum("bht,bthe->bhe", weights, v[:, seen]).flatten(1)
        h = h + block.attention_out(mixed)
        h = h + block.feed_out(gelu(block.feed_in(block.feed_norm(h))))
    return torch.as_tensor(backbone.norm(h))


@pytest.mark.parametrize("length", [1, 7, 32, 150])
@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_is_what_each_position_makes_of_those_it_sees(
    kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in one product whose graph holds for any length, and beyond the rotations that
    are kept.
    """
    if kind == "learned" and length > 32:
        return
    monkeypatch.setattr(decoder, "_TABLE_ROWS", 40)
    model = tiny_model(**KINDS[kind]).eval()
    h = torch.randn(2, length, 16)
    with torch.no_grad():
        expected = plain_decoder(model, h)
        for _ in range(2):
            torch.testing.assert_close(model.backbone(h), expected, atol=2e-5, rtol=0)
            torch.testing.assert_close(
                model.backbone(h, last_only=True), expected[:, -1:], atol=2e-5, rtol=0
            )
            assert isinstance(model.backbone, decoder.Decoder)
            model.backbone.accept_any_length()


@pytest.mark.parametrize("kind", [*KINDS, "gru"])
def test_dropout_that_drops_nothing_changes_nothing(kind: str) -> None:
    """At such a rate no draw is small enough: training goes through its own operations to the same
    answer.
    """
    model = tiny_model(dropout=1e-9, **KINDS.get(kind, {"backbone": "gru"}))
    h = torch.randn(2, 32, 16)
    trained = model.train().backbone(h)
    torch.testing.assert_close(trained, model.eval().backbone(h), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", [*KINDS, "gru"])
def test_dropout_acts_in_training_alone(kind: str) -> None:
    model = tiny_model(dropout=0.5, **KINDS.get(kind, {"backbone": "gru"}))
    h = torch.randn(1, 9, 16)
    assert not torch.equal(model.train().backbone(h), model.backbone(h))
    assert torch.equal(model.eval().backbone(h), model.backbone(h))


def test_a_gru_is_its_layers_one_after_another() -> None:
    model = tiny_model(backbone="gru").eval()
    h = expected = torch.randn(2, 9, 16)
    backbone: Any = model.backbone
    for layer in backbone.layers:
        expected = layer(expected)[0]
    torch.testing.assert_close(backbone(h), backbone.norm(expected))
    torch.testing.assert_close(backbone(h, last_only=True), backbone.norm(expected)[:, -1:])
    assert model.compiled(len) is len


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_what_is_kept_is_scaled_up(rate: float) -> None:
    torch.manual_seed(0)
    dropped = drop(torch.full((301, 103), 2.0), rate)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.01)
    torch.testing.assert_close(dropped[kept], torch.full((int(kept.sum()),), 2 / (1 - rate)))
    same = torch.ones(3)
    assert drop(same, 0.0) is same


def test_hashed_choices_are_those_of_a_plain_hash() -> None:
    """With numbers that wrap at 32 bits, as those of a GPU do; seeds and neighbours make no
    difference to the share.
    """

    def signed(value: int) -> int:
        return (value + 2**31) % 2**32 - 2**31

    for seed in (0, 12_345, -987_654_321):
        kept = hashed_choice(40_000, torch.tensor([seed], dtype=torch.int32), 0.1)
        assert kept.float().mean().item() == pytest.approx(0.9, abs=0.005)
        assert (kept[1:] & kept[:-1]).float().mean().item() == pytest.approx(0.81, abs=0.01)
        for place in (0, 1, 17, 39_999):
            key = signed(signed(place ^ seed) * -1_640_531_535)
            key = signed((key ^ ((key % 2**32) >> 15)) * 739_982_445)
            key = signed(key ^ ((key % 2**32) >> 16))
            assert bool(kept[place]) is (key >= int(0.1 * 2**32) - 2**31)


def test_later_layers_are_skipped_more_often_and_scaled_up_where_they_are_not() -> None:
    model = tiny_model(stochastic_depth=0.5, dropout=0.0)
    blocks: Any = model.backbone.blocks
    assert [block.depth_rate for block in blocks] == [0.25, 0.5]
    torch.manual_seed(1)
    h = torch.randn(1, 5, 16)
    block = blocks[1]
    with torch.no_grad():
        one = block.eval()(h)
        assert torch.equal(block(h), one)
        made = block.train()(h.expand(400, -1, -1))

        def fed(values: Tensor) -> Tensor:
            return values + 2 * block.feed_out(gelu(block.feed_in(block.feed_norm(values))))

        # The attention's change follows from the layer without its feed-forward network.
        bias = block.feed_out.bias.clone()
        weight = block.feed_out.weight.clone()
        block.feed_out.bias.zero_(), block.feed_out.weight.zero_()
        attended = h + 2 * (block.eval()(h) - h)
        block.feed_out.bias.copy_(bias), block.feed_out.weight.copy_(weight)
        for possible in (h, attended, fed(h), fed(attended)):
            alike = torch.isclose(made, possible, atol=1e-5).all(dim=(1, 2))
            assert alike.float().mean().item() == pytest.approx(0.25, abs=0.08)


FIELDS = ("ret_z", "cross_abs", "usd_factor", "gap_z")


@pytest.mark.parametrize("what", ["asset_dropout", "cross_dropout"])
def test_windows_lose_their_asset_or_the_other_assets_in_training(what: str) -> None:
    model = tiny_model(fields=FIELDS, dropout=0.0, **{what: 0.3})
    x, meta = events(model, 1, 4)
    hidden_x = x.clone()
    hidden_meta = meta.clone()
    if what == "asset_dropout":
        hidden_meta[:, 0] = 0
    else:
        hidden_x[..., 1:3] = 0
    torch.manual_seed(0)
    with torch.no_grad():
        known = model.eval().encoder(x, meta)
        hidden = model.encoder(hidden_x, hidden_meta)
        made = model.train().encoder(x.expand(600, -1, -1), meta.expand(600, -1))
    shares = [
        torch.isclose(made, each, atol=1e-5).all(dim=(1, 2)).float().mean().item()
        for each in (known, hidden)
    ]
    assert shares == pytest.approx([0.7, 0.3], abs=0.06)
    assert sum(shares) == pytest.approx(1)


def test_an_asset_that_training_hid_keeps_its_row() -> None:
    for rate in (0.0, 0.3):
        model = tiny_model(asset_dropout=rate)
        own = model.state_dict()["encoder.embeddings.asset_id.weight"]
        saved = model.saved_tensors()["encoder.embeddings.asset_id.weight"]
        assert torch.equal(saved[0], own[0] if rate else own[1:].mean(dim=0))
        assert torch.equal(saved[1:], own[1:])
