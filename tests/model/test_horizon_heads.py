"""Heads of longer horizons: their probabilities against PyTorch, and a file that only their own
model reads.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_checkpoint import PROVENANCE, TOKENIZER, header_of, model_of
from torch.nn.functional import gelu, linear

from vaiom.codec import to_json
from vaiom.corpus.targets import fit_of_next_bar
from vaiom.errors import CheckpointError, ConfigError
from vaiom.model import horizon_heads
from vaiom.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from vaiom.model.horizon_heads import (
    LEAST_SPREAD,
    WIDTH,
    FittedHorizons,
    HorizonHeads,
    load_horizons,
)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("trunk") / "model.safetensors"
    save_checkpoint(path, model_of("hybrid"), TOKENIZER, PROVENANCE)
    return load_checkpoint(path)


def heads_of(card: Checkpoint) -> HorizonHeads:
    rng = np.random.default_rng(0)
    fields = card.config.num_continuous
    shapes = {"first.weight": (WIDTH, card.config.width + fields), "first.bias": (WIDTH,)}
    shapes |= {"second.weight": (32, WIDTH), "second.bias": (32,), "centre": (fields,)}
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    tensors["spread"] = rng.uniform(0.5, 2, fields).astype(np.float32)
    tensors["spread"][2] = LEAST_SPREAD  # a field that Train has but one value of
    fits = tuple(replace(fit_of_next_bar(TOKENIZER), bars=bars) for bars in (4, 8))
    about = {
        "checkpoint_sha256": card.sha256,
        "corpus_sha256": "c0",
        "seed": 3,
        "validation_bits": {"4": 1.5},
    }
    return HorizonHeads(fitted=FittedHorizons(fits=fits, **about), tensors=tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [3, 65_536])
def test_probabilities_are_those_of_the_network(
    card: Checkpoint, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon_heads, "ROWS_AT_ONCE", block)
    heads = heads_of(card)
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(5, 2, card.config.width)).astype(np.float32)
    inputs = rng.normal(0, 30, (5, 2, card.config.num_continuous)).astype(np.float32)
    weights = {name: torch.from_numpy(array) for name, array in heads.tensors.items()}
    x = (torch.from_numpy(inputs).clamp(-32, 32) - weights["centre"]) / weights["spread"]
    x[..., 2] = 0
    first = gelu(
        linear(
            torch.cat([torch.from_numpy(hidden), x], -1),
            weights["first.weight"],
            weights["first.bias"],
        )
    )
    logits = linear(first, weights["second.weight"], weights["second.bias"]).double()
    for number, bars in enumerate((4, 8)):
        expected = logits[..., 16 * number : 16 * number + 16].softmax(dim=-1).numpy()
        np.testing.assert_allclose(heads.probs(hidden, inputs, bars), expected, atol=1e-5)
        np.testing.assert_allclose(
            heads.probs(hidden[0, 0], inputs[0, 0], bars), expected[0, 0], atol=1e-5
        )
    with pytest.raises(ConfigError, match=r"1, 4, 8 bars[\s\S]*5[\s\S]*--horizons 4,8,5"):
        heads.probs(hidden, inputs, 5)


def test_heads_are_read_for_their_own_model_alone(card: Checkpoint, tmp_path: Path) -> None:
    heads = heads_of(card)
    path = tmp_path / "horizons.safetensors"
    heads.save(path)
    assert (header_of(path)["format"], header_of(path)["format_version"]) == ("vaiom-horizons", 1)
    again = load_horizons(path, card)
    assert to_json(again.fitted) == to_json(heads.fitted)
    for name, array in heads.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
    with pytest.raises(CheckpointError, match="another checkpoint"):
        load_horizons(path, replace(card, sha256="other"))
    for name, array in heads.tensors.items():
        less = {each: value for each, value in heads.tensors.items() if each != name}
        for wrong in (less, {**less, name: array[1:]}):
            replace(heads, tensors=wrong).save(path)
            with pytest.raises(
                CheckpointError, match=r"not the horizons of a model[\s\S]*other heads"
            ):
                load_horizons(path, card)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_horizons(tmp_path / "nothing", card)
