"""Heads for the sum of the next h returns on a frozen trunk, and the file that stores them.

Enters: the trunk's last hidden state and its inputs. Leaves: probabilities of buckets. NumPy alone.
Not in the paper.
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

FORMAT = "vaiom-horizons"
FORMAT_VERSION = 1
WIDTH = 256
"""Of the hidden layer that all horizons share."""
LEAST_SPREAD = 1e-3
"""Added to the standard deviation of each field."""
LEAST_USED = 1.01 * LEAST_SPREAD
"""Fields that are constant on Train are ignored, such as masks, which never precede a target there.
"""
ROWS_AT_ONCE = 65_536
"""Rows per pass through the heads; bounds the memory."""


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
    """Trained heads, for forecasts: one hidden layer that all horizons share, and an output layer.

    `training.horizon_training.HorizonNetwork` is the same network for training.
    """

    fitted: FittedHorizons
    tensors: Tensors

    def probs(self, hidden: Floats, inputs: Floats, bars: int) -> npt.NDArray[np.float64]:
        """Probabilities (..., 16) of the sum over so many bars, normalised in double precision.

        `hidden` (..., D) is the trunk's last hidden state, `inputs` (..., F) the fields it read.
        """
        known = [fit.bars for fit in self.fitted.fits]
        if bars not in known:
            raise unknown_horizon(bars, known)
        first_output = known.index(bars) * NUM_RETURN_BUCKETS
        outputs = slice(first_output, first_output + NUM_RETURN_BUCKETS)
        second = self.tensors["second.weight"][outputs].T
        second_bias = self.tensors["second.bias"][outputs]
        h_ND = hidden.reshape(-1, hidden.shape[-1])
        x_NF = inputs.reshape(-1, inputs.shape[-1])
        logits = np.empty((len(h_ND), NUM_RETURN_BUCKETS))
        for start in range(0, len(logits), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            own_NF = self._standardised(x_NF[rows])
            entering = np.concatenate([h_ND[rows], own_NF], axis=1)
            middle = entering @ self.tensors["first.weight"].T + self.tensors["first.bias"]
            activated = gelu(middle * GELU_SCALE)
            logits[rows] = activated @ (second * GELU_SCALE) + second_bias
        probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        return np.asarray(probs.reshape(*hidden.shape[:-1], -1))

    def _standardised(self, x_NF: Floats) -> Floats:
        """(N, F) clipped fields in units of their spread on Train, 0 where they were constant."""
        centre = self.tensors["centre"]
        spread = self.tensors["spread"]
        known_NF = x_NF[:, : len(centre)].astype(np.float32)
        clipped_NF = np.clip(known_NF, -INPUT_LIMIT, INPUT_LIMIT)
        scaled_NF = (clipped_NF - centre) / spread
        return np.where(spread > LEAST_USED, scaled_NF, np.float32(0))

    def save(self, path: Path) -> str:
        """Write atomically; returns the hash of the tensors."""
        return write_tensors(path, FORMAT, FORMAT_VERSION, to_json(self.fitted), self.tensors)


def unknown_horizon(bars: object, known: list[int], is_run: bool = True) -> ConfigError:
    """The error of a number of bars for which the model has no head.

    Heads can be added to a training run alone, not to a packaged model or an exported file.
    """
    wanted = ",".join(map(str, [*known, bars]))
    fix = f"vaiom horizons RUN --horizons {wanted}"
    if not is_run:
        fix = "take one of those; others can be added to a run of your own (`vaiom train`) alone"
    has = ", ".join(map(str, [1, *known]))
    return ConfigError(
        "the model has no such horizon",
        expected=f"{has} bars",
        got=bars,
        fix=fix,
    )


def load_horizons(path: Path, card: ModelCard) -> HorizonHeads:
    """Load the heads of this very model, or raise an error that says why they cannot be trusted."""
    header, tensors = read_tensors(path, FORMAT, FORMAT_VERSION)
    fix = "vaiom horizons RUN"
    try:
        names = FittedHorizons.__dataclass_fields__
        fitted = from_json(FittedHorizons, {name: header[name] for name in names})
        num_fields = card.config.num_continuous
        num_outputs = len(fitted.fits) * NUM_RETURN_BUCKETS
        shapes = {
            "first.weight": (WIDTH, card.config.width + num_fields),
            "first.bias": (WIDTH,),
            "second.weight": (num_outputs, WIDTH),
            "second.bias": (num_outputs,),
            "centre": (num_fields,),
            "spread": (num_fields,),
        }
        found = {name: array.shape for name, array in tensors.items()}
        if found != shapes:
            raise ValueError("tensors of other heads")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        got = str(error).splitlines()[0]
        raise CheckpointError(
            "not the horizons of a model", where=path, got=got, fix=fix
        ) from error
    if fitted.checkpoint_sha256 != card.sha256:
        raise CheckpointError(
            "the horizons were fitted to another checkpoint than the run's best one",
            where=path,
            expected=card.sha256,
            got=fitted.checkpoint_sha256,
            fix=fix,
        )
    return HorizonHeads(fitted=fitted, tensors=tensors)
