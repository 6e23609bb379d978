"""The weights of a windowed decoder, prepared for NumPy: linear operations are folded into adjacent
products.

Enters: a configuration and the tensors of its checkpoint. Leaves: `FoldedWeights`, with which
`incremental` computes the same outputs from fewer operations. Not in the paper.

- A norm's scale and shift are part of the product that follows it.
- What is added to hidden states has mean 0 over their width, so that norms need not subtract it.
- Columns of queries and keys are ordered so that the two values that a rotation mixes are adjacent:
  a pair is one complex number.
- Biases are the last row of a product's weights, (in + 1, out): its inputs end with a 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.model.config import ModelConfig

Array = npt.NDArray[np.float32]

GELU_SCALE = np.float32(0.5**0.5)
"""GELU(x) = c g(c x) with c = sqrt(1/2) and g(u) = u (1 + erf(u)): the products before and after a
GELU absorb c, and `gelu` computes g alone."""


@dataclass(frozen=True, eq=False, slots=True)
class FoldedLayer:
    """One block of the decoder, for a width of D."""

    to_qkv: Array
    """(D + 1, 3D): queries, divided by the root of a head's size, keys and values."""
    from_attention: Array
    """(D + 1, D)"""
    to_feed: Array
    """(D + 1, 4D): inputs of the GELU, scaled by c."""
    from_feed: Array
    """(4D, D)"""
    feed_bias: Array
    """(D,)"""


class FoldedWeights:
    """All weights that an output of the return head depends on."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Array]) -> None:
        self._tensors = {name: np.asarray(array, np.float32) for name, array in tensors.items()}
        self._config = config
        self.tables = [
            self._tensors[f"encoder.embeddings.{name}.weight"] for name in config.embedded
        ]
        self.first = self._linear("encoder.first") * GELU_SCALE
        self.continuous: Array | None = None
        """Of the hybrid branch: the product of its fields, before they meet the embeddings."""
        if config.input == "hybrid":
            self.continuous = self._linear("encoder.continuous") * GELU_SCALE
            self.first[: config.width] *= GELU_SCALE
        self.second = self._to_residual("encoder.second")
        self.second[:-1] *= GELU_SCALE
        self.layers = [self._layer(number) for number in range(config.num_layers)]
        # State and return come first among the heads; auxiliary heads serve training alone.
        self.num_states = config.num_states if config.return_head == "moms" else 0
        used = self.num_states + NUM_RETURN_BUCKETS * (self.num_states or 1)
        projection = self._after_norm("backbone.norm", "heads.projection")
        self.projection = np.ascontiguousarray(projection[:, :used])
        self.norm_scale = self._tensors["backbone.norm.weight"] * np.float32(config.width**0.5)
        self.norm_shift = self._tensors["backbone.norm.bias"]

    def _layer(self, number: int) -> FoldedLayer:
        """One block, folded."""
        name = f"backbone.blocks.{number}"
        width = self._config.width
        size = width // self._config.num_heads
        to_qkv = self._after_norm(f"{name}.attention_norm", f"{name}.query_key_value")
        to_qkv[:, :width] *= size**-0.5
        # Rotations mix value e of the first half of a head with value e of the second half.
        pairs = np.arange(size).reshape(2, -1).T.ravel()
        rotated = to_qkv[:, : 2 * width].reshape(len(to_qkv), -1, size)
        to_qkv[:, : 2 * width] = rotated[..., pairs].reshape(len(to_qkv), -1)
        from_feed = self._to_residual(f"{name}.feed_out")
        return FoldedLayer(
            to_qkv=to_qkv,
            from_attention=self._to_residual(f"{name}.attention_out"),
            to_feed=self._after_norm(f"{name}.feed_norm", f"{name}.feed_in") * GELU_SCALE,
            from_feed=from_feed[:-1] * GELU_SCALE,
            feed_bias=from_feed[-1],
        )

    def _linear(self, linear: str) -> Array:
        """(in + 1, out), the bias last: the fastest layout for a few rows."""
        weight = self._tensors[f"{linear}.weight"]
        bias = self._tensors[f"{linear}.bias"]
        return np.ascontiguousarray(np.concatenate([weight.T, bias[None]]))

    def _after_norm(self, norm: str, linear: str) -> Array:
        """A product that includes the scale and shift of the norm before it.

        Its inputs are hidden states over the root of their sum (not mean) of squares.
        """
        weights = self._linear(linear)
        scale = self._tensors[f"{norm}.weight"]
        weights[-1] += self._tensors[f"{norm}.bias"] @ weights[:-1]
        weights[:-1] *= scale[:, None] * np.float32(len(scale) ** 0.5)
        return weights

    def _to_residual(self, linear: str) -> Array:
        """A product whose outputs have mean 0 and are added to hidden states."""
        weights = self._linear(linear)
        weights -= weights.mean(axis=1, keepdims=True)
        return weights


_ERF = np.array(
    [
        1.5896005e-07,
        -5.985688e-06,
        8.9712573e-05,
        -6.2571954e-04,
        -1.8438373e-04,
        0.10276548,
        1.1283797,
    ],
    np.float32,
)
"""Coefficients of a polynomial p in x squared with erf(x) = tanh(x p(x^2)), fitted to 2e-7."""
_ERF_END = np.float32(4.2**2)
"""Beyond this square, erf is 1 or -1 to rounding."""


def gelu(values: Array) -> Array:
    """u (1 + erf(u)), elementwise: what is left of a GELU beside `GELU_SCALE`."""
    out = erf(values)
    out += 1
    out *= values
    return out


def erf(values: Array) -> Array:
    """The error function to 2e-7, four times as fast on a window as SciPy's."""
    squares = values * values
    np.minimum(squares, _ERF_END, out=squares)
    out = squares * _ERF[0]
    for factor in _ERF[1:-1]:
        out += factor
        out *= squares
    out += _ERF[-1]
    out *= values
    return np.asarray(np.tanh(out, out=out))
