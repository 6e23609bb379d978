"""Heads for the sums of the next h returns, on a trunk that stays as it is; the file that keeps them.

Enters: the trunk's last hidden states (N, D) and the rows' own inputs (N, F). Leaves: log-probabilities (N, H, 16);
`horizons.safetensors` beside a checkpoint, with all that Train fits of each horizon. The paper predicts one bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu

from vaiom.codec import from_json, to_json
from vaiom.errors import CheckpointError, ConfigError
from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.events.horizons import Horizon
from vaiom.model.checkpoint import ModelCard, read_tensors, write_tensors
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import INPUT_LIMIT

FORMAT, FORMAT_VERSION = "vaiom-horizons", 1
WIDTH = 256
LEAST_SPREAD = 1e-3
"""Added to the standard deviation of each field."""


class HorizonHeads(nn.Module):
    """One hidden layer for all horizons; ids of discrete inputs are left to the trunk."""

    def __init__(self, config: ModelConfig, num_horizons: int, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate
        self.num_fields = 0 if config.input == "disc" else len(config.input_fields)
        self.first = nn.Linear(config.width + self.num_fields, WIDTH)
        self.second = nn.Linear(WIDTH, num_horizons * NUM_RETURN_BUCKETS)
        self.register_buffer("centre", torch.zeros(self.num_fields))
        self.register_buffer("spread", torch.ones(self.num_fields))

    def forward(self, h_ND: Tensor, x_NF: Tensor) -> Tensor:
        x_NF = x_NF[..., : self.num_fields].float().clamp(-INPUT_LIMIT, INPUT_LIMIT)
        spread = self.get_buffer("spread")
        # What never changed on Train tells nothing: masks are set on rows that no target follows there.
        own = torch.where(spread > 1.01 * LEAST_SPREAD, (x_NF - self.get_buffer("centre")) / spread, 0.0)
        hidden = dropout(gelu(self.first(torch.cat([h_ND.float(), own], dim=-1))), self.rate, self.training)
        log_probs: Tensor = self.second(hidden).unflatten(-1, (-1, NUM_RETURN_BUCKETS)).log_softmax(dim=-1)
        return log_probs


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedHorizons:
    """What a run knows beyond the next bar."""

    checkpoint_sha256: str
    """Of the trunk."""
    corpus_sha256: str
    seed: int
    validation_bits: dict[str, float]
    """By number of bars."""
    fits: tuple[Horizon, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Horizons:
    """Heads with what they were fitted from."""

    fitted: FittedHorizons
    heads: HorizonHeads

    def probs(self, hidden: Any, inputs: Any, bars: int) -> npt.NDArray[np.float64]:
        """(..., 16) of one horizon from tensors or arrays; their sum is 1 in double precision."""
        known, device = [each.bars for each in self.fitted.fits], self.heads.first.weight.device
        if bars not in known:
            raise unknown_horizon(bars, known)
        with torch.inference_mode():
            seen = (torch.as_tensor(each, device=device) for each in (hidden, inputs))
            log_probs = self.heads(*seen)[..., known.index(bars), :].double().cpu().numpy()
        probs = np.exp(log_probs)
        return np.asarray(probs / probs.sum(axis=-1, keepdims=True))

    def save(self, path: Path) -> str:
        """Write atomically; returns the hash of the tensors."""
        return write_tensors(path, FORMAT, FORMAT_VERSION, to_json(self.fitted), self.heads.state_dict())


def unknown_horizon(bars: object, known: list[int]) -> ConfigError:
    return ConfigError(
        "nobody trained this horizon",
        expected=f"{', '.join(map(str, [1, *known]))} bars",
        got=bars,
        fix=f"vaiom horizons RUN --horizons {','.join(map(str, [*known, bars]))}",
    )


def load_horizons(path: Path, card: ModelCard) -> Horizons:
    """Read heads back, or say why they cannot be trusted; they must be of this very model."""
    header, tensors = read_tensors(path, FORMAT, FORMAT_VERSION)
    try:
        known = {name: header[name] for name in FittedHorizons.__dataclass_fields__}
        fitted = from_json(FittedHorizons, known)
        heads = HorizonHeads(card.config, len(fitted.fits))
        heads.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        got = str(error).splitlines()[0]
        raise CheckpointError("not the horizons of a model", where=path, got=got, fix="vaiom horizons RUN") from error
    if fitted.checkpoint_sha256 != card.sha256:
        raise CheckpointError(
            "the horizons were fitted to another checkpoint than the run's best one",
            where=path,
            expected=card.sha256,
            got=fitted.checkpoint_sha256,
            fix="vaiom horizons RUN",
        )
    return Horizons(fitted=fitted, heads=heads.eval())
