"""What the tests of this folder share: tiny models of every kind, and events for them."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from vaiom.features.fields import CLASSES, DISC_FIELDS, META_FIELDS, vocabulary_sizes
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import Vaiom

VOCABULARY = vocabulary_sizes(
    num_assets=3, num_classes=len(CLASSES), num_gap_buckets=14, num_vol_regimes=5
)
CHOICES = {name: get_args(hint) for name, hint in get_type_hints(ModelConfig).items()}
"""Of the settings that have some."""
TINY: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "width": 16, "context": 32}


def tiny_model(seed: int = 0, **changes: Any) -> Vaiom:
    torch.manual_seed(seed)
    return Vaiom(ModelConfig(**(TINY | changes)), VOCABULARY)


def events(model: Vaiom, batch: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random inputs of the model's branch and metadata of known assets."""
    draw = torch.Generator().manual_seed(seed)
    meta = torch.stack(
        [torch.tensor([1 + b % (VOCABULARY["asset_id"] - 1), b % 2, 0]) for b in range(batch)]
    )
    if model.config.input != "disc":
        return torch.randn(batch, length, len(model.config.input_fields), generator=draw) * 3, meta
    fields = [
        torch.randint(0, size, (batch, length), generator=draw) for size in VOCABULARY.values()
    ]
    x = torch.stack(fields, dim=-1).to(torch.int16)
    first = DISC_FIELDS.index(META_FIELDS[0])
    x[..., first : first + len(META_FIELDS)] = meta[:, None]
    return x[..., [DISC_FIELDS.index(name) for name in model.config.input_fields]], meta


def random_targets(
    batch: int, length: int, seed: int = 0, invalid: float = 0.3
) -> dict[str, Tensor]:
    """Bucket ids with zeros; gap and regime are never valid where the return is not, as in a
    corpus.
    """
    draw = torch.Generator().manual_seed(seed)
    out: dict[str, Tensor] = {}
    sizes = {
        "return": 16,
        "gap": VOCABULARY["gap_bucket"] - 1,
        "vol_regime": VOCABULARY["vol_regime"] - 1,
    }
    for name, size in sizes.items():
        buckets = torch.randint(1, size + 1, (batch, length), generator=draw)
        buckets[torch.rand(batch, length, generator=draw) < invalid] = 0
        out[name] = buckets.to(torch.uint8)
    for name in ("gap", "vol_regime"):
        out[name][out["return"] == 0] = 0
    return out
