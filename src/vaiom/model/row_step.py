"""A few more rows through a decoder whose layers see a window of rows, in NumPy.

Enters: the memory of the rows before, events (R, F) and their metadata (3,). Leaves: the memory after each row, and in
it the probabilities of the next return bucket, as `Vaiom` gives them for a window that ends there. One row is too
little work to pay for PyTorch's dispatch; the time goes into reading the weights, which rows share.
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

from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.model.decoder import Decoder, rotary_speeds
from vaiom.model.encoders import INPUT_LIMIT
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom

Array = npt.NDArray[np.float32]
Weights = tuple[Array, Array]
Probabilities = npt.NDArray[np.float64]
_EPSILON = np.float32(1e-5)
"""Of PyTorch's layer norms."""
MOST_ROWS = 64
"""At once; more are cheaper in a pass of the network."""


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
        self.model, self.window = model, config.window
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
        self.projection = np.ascontiguousarray(weight[:, :used]), bias[:used]

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

    def step(self, memory: RowMemory | None, events_RF: Array, meta_M: npt.NDArray[np.int64]) -> list[RowMemory]:
        """The memories after each of a few more rows, in place of any that followed; of none, from the first row on."""
        if memory is None:
            memory = RowMemory(buffer=self._buffer(None), end=0, position=0, probs=np.empty(0))
        assert memory.intact
        assert 0 < len(events_RF) <= MOST_ROWS
        buffer, end, number = memory.buffer, memory.end, len(events_RF)
        low = max(0, end + 1 - self.window)
        if end + number > buffer.rows.shape[3]:
            full, buffer = buffer, self._buffer(buffer.rows[:, :, :, low:end])
            buffer.answers += full.answers[low:end]
            low, end = 0, end - low
        new, seen = slice(end, end + number), slice(low, end + number)
        distance = np.arange(end, end + number)[:, None] - np.arange(low, end + number)
        unseen_RN = np.where((distance < 0) | (distance >= self.window), np.float32(-np.inf), np.float32(0))
        angles = (memory.position + np.arange(number))[:, None, None, None] * self.speeds
        turn = np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
        hidden = self._encode(events_RF, meta_M)
        for (keys, values), block in zip(buffer.rows.swapaxes(0, 1), self.blocks, strict=True):
            qkv = _apply(block[0], self._normed(hidden)).reshape(number, 3, self.num_heads, self.size)
            query, keys[:, new] = _rotate(qkv[:, :2], turn).transpose(1, 2, 0, 3)
            values[:, new] = qkv[:, 2].swapaxes(0, 1)
            scores = query @ keys[:, seen].swapaxes(1, 2)
            if number > 1:
                scores += unseen_RN
            mixed = (_softmax(scores) @ values[:, seen]).swapaxes(0, 1).reshape(number, self.width)
            hidden = hidden + _apply(block[1], mixed)
            hidden = hidden + _apply(block[3], _gelu(_apply(block[2], self._normed(hidden))))
        probs = self._probs(_apply(self.projection, self._normed(hidden)))
        buffer.answers[end:] = list(probs)
        return [
            RowMemory(buffer=buffer, end=end + row, position=memory.position + row, probs=buffer.answers[end + row - 1])
            for row in range(1, number + 1)
        ]

    def _buffer(self, rows: Array | None) -> _Buffer:
        """Room for a window of rows, which come first in it, and for those that follow; then it is copied."""
        buffer = _Buffer((2, len(self.blocks), self.num_heads, self.window + MOST_ROWS, self.size))
        if rows is not None:
            buffer.rows[:, :, :, : rows.shape[3]] = rows
        return buffer

    def _encode(self, events_RF: Array, meta_M: npt.NDArray[np.int64]) -> Array:
        if self.model.config.input == "disc":
            ids = events_RF.T.astype(np.int64)
            inputs = np.concatenate([table[at] for table, at in zip(self.tables, ids, strict=True)], axis=1)
        else:
            inputs = np.clip(events_RF, -INPUT_LIMIT, INPUT_LIMIT)
        if self.continuous is not None:
            embedded = np.concatenate([table[at] for table, at in zip(self.tables, meta_M, strict=True)])
            repeated = np.broadcast_to(embedded, (len(events_RF), len(embedded)))
            inputs = np.concatenate([_gelu(_apply(self.continuous, inputs)), repeated], axis=1)
        return _apply(self.second, _gelu(_apply(self.first, inputs)))

    def _normed(self, hidden: Array) -> Array:
        centred = hidden - (hidden @ self._mean)[:, None]
        variance = (centred * centred) @ self._mean
        return np.asarray(centred / np.sqrt(variance + _EPSILON)[:, None])

    def _probs(self, logits_RK: Array) -> Probabilities:
        logits = logits_RK.astype(np.float64)
        components = _softmax(logits[:, self.num_states :].reshape(len(logits), -1, NUM_RETURN_BUCKETS))
        weights = _softmax(logits[:, : self.num_states]) if self.num_states else np.ones((len(logits), 1))
        probs = (weights[:, None] @ components)[:, 0]
        return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def _block_weights(block: Any, size: int) -> tuple[Weights, Weights, Weights, Weights]:
    """Queries, keys and values; what attention gives; the feed-forward network, in and out."""
    weight, bias = _after_norm(block.attention_norm, block.query_key_value)
    scale = np.ones(len(bias), np.float32)
    scale[: len(bias) // 3] = size**-0.5
    return (
        (weight * scale, bias * scale),
        _weights(block.attention_out),
        _after_norm(block.feed_norm, block.feed_in),
        _weights(block.feed_out),
    )


def _after_norm(norm: nn.LayerNorm, linear: nn.Linear) -> Weights:
    """A product that takes normed values before the norm's own scale and shift, which it includes."""
    weight, bias = _weights(linear)
    return weight * _array(norm.weight)[:, None], bias + _array(norm.bias) @ weight


def _weights(linear: nn.Linear) -> Weights:
    """(in, out) and (out,): a few rows times this is the fastest product."""
    return _array(linear.weight.T), _array(linear.bias)


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _apply(weights: Weights, values: Array) -> Array:
    out: Array = values @ weights[0]
    out += weights[1]
    return out


def _rotate(parts: Array, turn: Array) -> Array:
    """`decoder.rotate`."""
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
