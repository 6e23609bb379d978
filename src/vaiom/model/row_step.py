"""One more row through a decoder whose layers see a window of rows, in NumPy.

Enters: the memory of the rows before, an event (F,) and its metadata (3,). Leaves: the memory with that row, and in it
the probabilities of the next return bucket, as `Vaiom` gives them for a window that ends there. One row is too little
work to pay for PyTorch's dispatch, and memories of different lengths do not batch.
Paper: none; it follows from attention over a window of rows and rotary positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import erf  # type: ignore[import-untyped]
from torch import Tensor, nn

from vaiom.events.fields import META_FIELDS, NUM_RETURN_BUCKETS
from vaiom.model.decoder import Decoder, rotary_speeds
from vaiom.model.encoders import INPUT_LIMIT
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom

Array = npt.NDArray[np.float32]
Weights = tuple[Array, Array]
Probabilities = npt.NDArray[np.float64]
_EPSILON = 1e-5
"""Of PyTorch's layer norms."""


class _Buffer:
    """Keys and values (2, layers, heads, rows, size), and whose each row is: the answer that was given after it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rows: Array = np.empty(shape, np.float32)
        self.answers: list[Probabilities] = []


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMemory:
    """What a model remembers of an asset: the beginning of a buffer that its successors write on in."""

    buffer: _Buffer
    end: int
    """How many rows of the buffer belong to it."""
    position: int
    """How many rows there were."""
    probs: Probabilities
    """(16,) of the return bucket that follows the last of them."""

    @property
    def intact(self) -> bool:
        """Whether nobody has gone on from an earlier row since, in another way."""
        answers = self.buffer.answers
        return self.end <= len(answers) and (self.end == 0 or answers[self.end - 1] is self.probs)


class RowStep:
    """The weights of a model, ready for rows; norms and the scale of attention are part of the products after them."""

    def __init__(self, model: Vaiom) -> None:
        config, decoder, heads = model.config, model.backbone, model.heads
        assert isinstance(decoder, Decoder)
        assert config.attention_window
        self.model, self.window = model, config.attention_window
        self.num_heads, self.width = config.num_heads, config.width
        self.size = config.width // config.num_heads
        self.speeds = rotary_speeds(self.size).numpy()
        self._mean = np.full(self.width, 1 / self.width, np.float32)
        self.blocks = [_block_weights(block, self.size) for block in decoder.blocks]
        encoder: Any = model.encoder
        self.first, self.second = _weights(encoder.first), _weights(encoder.second)
        self.continuous = _weights(encoder.continuous) if config.input == "hybrid" else None
        self.tables = [_array(table.weight) for table in getattr(encoder, "embeddings", {}).values()]
        # State and return come first among the heads; auxiliary ones are for learning alone.
        self.num_states = heads.sizes.get("state", 0)
        used = self.num_states + heads.sizes["return"]
        weight, bias = _after_norm(decoder.norm, heads.projection)
        self.projection = weight[:used].copy(), bias[:used].copy()

    def begin(self, events_TF: Array, meta_M: npt.NDArray[np.int64], first: int = 0) -> RowMemory:
        """The memory of a window of rows, by one pass of the network; `first` rows of the asset came before."""
        device = next(self.model.parameters()).device
        inputs = (torch.from_numpy(np.ascontiguousarray(each[None])).to(device) for each in (events_TF, meta_M))
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.inference_mode():
            hidden = self.model.backbone(self.model.encoder(*inputs), last_only=True, first=first, kept=kept)
            probs = return_log_probs(self.model.heads(hidden))[0, -1].double().exp().cpu().numpy()
            # (2, layers, heads, rows, size), as a buffer has them.
            rows = torch.stack([torch.cat(pair).transpose(1, 2) for pair in kept], dim=1).cpu().numpy()
        buffer, answer = self._buffer(rows), np.asarray(probs / probs.sum())
        buffer.answers += [answer] * rows.shape[3]
        return RowMemory(buffer=buffer, end=rows.shape[3], position=first + len(events_TF), probs=answer)

    def step(self, memory: RowMemory | None, event_F: Array, meta_M: npt.NDArray[np.int64]) -> RowMemory:
        """The memory with one more row, in place of any that followed it; of none, with the first."""
        if memory is None:
            memory = RowMemory(buffer=self._buffer(None), end=0, position=0, probs=np.empty(0))
        assert memory.intact
        buffer, end = memory.buffer, memory.end
        if end == buffer.rows.shape[3]:
            start = end + 1 - self.window
            full, buffer, end = buffer, self._buffer(buffer.rows[:, :, :, start:]), self.window - 1
            buffer.answers += full.answers[start:]
        seen = slice(max(0, end + 1 - self.window), end + 1)
        angles = memory.position * self.speeds
        turn = np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
        hidden = self._encode(event_F, meta_M)
        for (keys, values), block in zip(buffer.rows.swapaxes(0, 1), self.blocks, strict=True):
            qkv = _apply(block[0], self._normed(hidden)).reshape(3, self.num_heads, self.size)
            query, keys[:, end] = _rotate(qkv[:2], turn)
            values[:, end] = qkv[2]
            scores = (keys[:, seen] @ query[:, :, None])[:, :, 0]
            weights = _softmax(scores)
            mixed = (weights[:, None] @ values[:, seen]).reshape(self.width)
            hidden = hidden + _apply(block[1], mixed)
            hidden = hidden + _apply(block[3], _gelu(_apply(block[2], self._normed(hidden))))
        probs = self._probs(_apply(self.projection, self._normed(hidden)))
        buffer.answers[end:] = [probs]
        return RowMemory(buffer=buffer, end=end + 1, position=memory.position + 1, probs=probs)

    def _buffer(self, rows: Array | None) -> _Buffer:
        """Room for two windows of rows, so that old rows are copied once in a window; these come first in it."""
        buffer = _Buffer((2, len(self.blocks), self.num_heads, 2 * self.window, self.size))
        if rows is not None:
            buffer.rows[:, :, :, : rows.shape[3]] = rows
        return buffer

    def _encode(self, event_F: Array, meta_M: npt.NDArray[np.int64]) -> Array:
        if self.model.config.input == "disc":
            inputs = np.concatenate([table[int(at)] for table, at in zip(self.tables, event_F, strict=True)])
        else:
            inputs = np.clip(event_F, -INPUT_LIMIT, INPUT_LIMIT)
        if self.continuous is not None:
            embedded = [table[meta_M[field]] for field, table in zip(range(len(META_FIELDS)), self.tables, strict=True)]
            inputs = np.concatenate([_gelu(_apply(self.continuous, inputs)), *embedded])
        return _apply(self.second, _gelu(_apply(self.first, inputs)))

    def _normed(self, hidden: Array) -> Array:
        centred = hidden - self._mean.dot(hidden)
        return np.asarray(centred * np.float32(1 / np.sqrt(centred.dot(centred) / self.width + _EPSILON)))

    def _probs(self, logits: Array) -> Probabilities:
        components = _softmax(logits[self.num_states :].astype(np.float64).reshape(-1, NUM_RETURN_BUCKETS))
        weights = _softmax(logits[None, : self.num_states].astype(np.float64))[0] if self.num_states else np.ones(1)
        probs = weights @ components
        return np.asarray(probs / probs.sum())


def _block_weights(block: Any, size: int) -> tuple[Weights, Weights, Weights, Weights]:
    """Queries, keys and values; what attention gives; the feed-forward network, in and out."""
    weight, bias = _after_norm(block.attention_norm, block.query_key_value)
    scale = np.ones(len(bias), np.float32)
    scale[: len(bias) // 3] = size**-0.5
    return (
        (weight * scale[:, None], bias * scale),
        _weights(block.attention_out),
        _after_norm(block.feed_norm, block.feed_in),
        _weights(block.feed_out),
    )


def _after_norm(norm: nn.LayerNorm, linear: nn.Linear) -> Weights:
    """A product that takes normed values before the norm's own scale and shift, which it includes."""
    weight, bias = _weights(linear)
    return weight * _array(norm.weight), bias + weight @ _array(norm.bias)


def _weights(linear: nn.Linear) -> Weights:
    return _array(linear.weight), _array(linear.bias)


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _apply(weights: Weights, values: Array) -> Array:
    return np.asarray(weights[0] @ values + weights[1])


def _rotate(parts: Array, turn: Array) -> Array:
    """`decoder.rotate` for one position."""
    half, (cos, sin) = parts.shape[-1] // 2, turn
    first, second, out = parts[..., :half], parts[..., half:], np.empty_like(parts)
    out[..., :half] = first * cos - second * sin
    out[..., half:] = first * sin + second * cos
    return out


def _softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _gelu(values: Array) -> Array:
    return np.asarray(values * (0.5 + 0.5 * erf(values * np.float32(0.5**0.5))), np.float32)
