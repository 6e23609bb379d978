"""Heads for the sum of the next h returns on a frozen trunk, and the file that stores them; not in
the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.codec import from_json, to_json
from vaiom.corpus.targets import TargetFit
from vaiom.errors import CheckpointError, ConfigError
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.model.checkpoint import ModelCard, Tensors, read_tensors, write_tensors
from vaiom.model.config import INPUT_LIMIT
from vaiom.model.folded import GELU_SCALE, gelu

Floats = npt.NDArray[np.floating[Any]]

FORMAT, FORMAT_VERSION = "vaiom-horizons", 1
WIDTH = 256
LEAST_SPREAD = 1e-3
"""Added to the standard deviation of each field."""
LEAST_USED = 1.01 * LEAST_SPREAD
"""Fields that are constant on Train are ignored, such as masks, which never precede a target there.
"""
_BLOCK = 65_536
"""Rows per pass through the heads."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedHorizons:
    """What is fitted for the horizons of a run."""

    checkpoint_sha256: str
    """Hash of the trunk."""
    corpus_sha256: str
    seed: int
    validation_bits: dict[str, float]
    """By number of bars."""
    fits: tuple[TargetFit, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class HorizonHeads:
    """Trained heads: one hidden layer shared by all horizons, as in
    `training.horizon_training.HorizonNetwork`.
    """

    fitted: FittedHorizons
    tensors: Tensors

    def probs(self, hidden: Floats, inputs: Floats, bars: int) -> npt.NDArray[np.float64]:
        """(..., 16) probabilities of one horizon, normalised in double precision."""
        known = [each.bars for each in self.fitted.fits]
        if bars not in known:
            raise unknown_horizon(bars, known)
        outputs = slice(
            known.index(bars) * NUM_RETURN_BUCKETS, (known.index(bars) + 1) * NUM_RETURN_BUCKETS
        )
        second, bias = self.tensors["second.weight"][outputs], self.tensors["second.bias"][outputs]
        centre, spread = self.tensors["centre"], self.tensors["spread"]
        h_ND, x_NF = (each.reshape(-1, each.shape[-1]) for each in (hidden, inputs))
        logits = np.empty((len(h_ND), NUM_RETURN_BUCKETS))
        for start in range(0, len(logits), _BLOCK):
            rows = slice(start, start + _BLOCK)
            x = np.clip(x_NF[rows, : len(centre)].astype(np.float32), -INPUT_LIMIT, INPUT_LIMIT)
            x = np.where(spread > LEAST_USED, (x - centre) / spread, np.float32(0))
            first = np.concatenate([h_ND[rows], x], axis=1) @ self.tensors["first.weight"].T
            logits[rows] = (
                gelu((first + self.tensors["first.bias"]) * GELU_SCALE) @ (second.T * GELU_SCALE)
                + bias
            )
        probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(probs / probs.sum(axis=-1, keepdims=True)).reshape(*hidden.shape[:-1], -1)

    def save(self, path: Path) -> str:
        """Write atomically; returns the hash of the tensors."""
        return write_tensors(path, FORMAT, FORMAT_VERSION, to_json(self.fitted), self.tensors)


def unknown_horizon(bars: object, known: list[int]) -> ConfigError:
    expected = f"{', '.join(map(str, [1, *known]))} bars"
    fix = f"vaiom horizons RUN --horizons {','.join(map(str, [*known, bars]))}"
    return ConfigError("the model has no such horizon", expected=expected, got=bars, fix=fix)


def load_horizons(path: Path, card: ModelCard) -> HorizonHeads:
    """Load the heads of this very model, or raise an error that says why they cannot be trusted."""
    header, tensors = read_tensors(path, FORMAT, FORMAT_VERSION)
    try:
        fitted = from_json(
            FittedHorizons, {name: header[name] for name in FittedHorizons.__dataclass_fields__}
        )
        num_fields, outputs = card.config.num_continuous, len(fitted.fits) * NUM_RETURN_BUCKETS
        shapes = {"first.weight": (WIDTH, card.config.width + num_fields), "first.bias": (WIDTH,)}
        shapes |= {"second.weight": (outputs, WIDTH), "second.bias": (outputs,)}
        shapes |= {"centre": (num_fields,), "spread": (num_fields,)}
        if {name: array.shape for name, array in tensors.items()} != shapes:
            raise ValueError("tensors of other heads")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        got = str(error).splitlines()[0]
        raise CheckpointError(
            "not the horizons of a model", where=path, got=got, fix="vaiom horizons RUN"
        ) from error
    if fitted.checkpoint_sha256 != card.sha256:
        problem = "the horizons were fitted to another checkpoint than the run's best one"
        got = fitted.checkpoint_sha256
        raise CheckpointError(
            problem, where=path, expected=card.sha256, got=got, fix="vaiom horizons RUN"
        )
    return HorizonHeads(fitted=fitted, tensors=tensors)
