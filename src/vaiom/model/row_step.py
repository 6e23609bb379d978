"""A few more rows through a decoder whose layers see a window of rows, in NumPy.

Enters: the memory of the rows before, events (R, F) and their metadata (3,), of one asset or of several. Leaves: the
memory after each row, and in it the probabilities of the next return bucket, as `Vaiom` gives them for a window that
ends there. One row is too little work to pay for PyTorch's dispatch; the time goes into reading the weights, which
rows share.
Paper: none; it follows from attention over a window of rows and rotary positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import erf  # type: ignore[import-untyped]
from torch import Tensor, nn

from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.model.decoder import Decoder, rotary_speeds
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import INPUT_LIMIT, Vaiom

Array = npt.NDArray[np.float32]
Weights = tuple[Array, Array]
Probabilities = npt.NDArray[np.float64]
_EPSILON = np.float32(1e-5)
"""Of PyTorch's layer norms."""
_ONE, _GELU = np.float32(1), np.float32(0.5**0.5)
"""GELU of x is c u (1 + erf(u)) where u is c x: products beside it take both factors."""
MOST_ROWS = 64
"""At once; more are cheaper in a pass of the network."""


class _Buffer:
    """Keys and values (layers, 2, heads, rows, size), and whose each row is: the answer that was given after it."""

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
    hidden: Array
    """(D,) what heads read of the last of them."""

    @property
    def intact(self) -> bool:
        """Whether nobody has gone on from an earlier row since, in another way."""
        answers = self.buffer.answers
        return self.end <= len(answers) and (self.end == 0 or answers[self.end - 1] is self.probs)


MoreRows = tuple[RowMemory | None, Array, npt.NDArray[np.int64]]
"""What was there before, events (R, F) of an asset that follow it, and their metadata (3,)."""


class _Place(NamedTuple):
    """Where the rows of an asset are written: those from `low` on are seen."""

    buffer: _Buffer
    low: int
    end: int
    position: int
    number: int

    def remembered(self, probs: list[Probabilities], hidden: list[Array]) -> list[RowMemory]:
        self.buffer.answers[self.end :] = probs
        return [
            RowMemory(buffer=self.buffer, end=self.end + row, position=self.position + row, probs=each, hidden=state)
            for row, (each, state) in enumerate(zip(probs, hidden, strict=True), start=1)
        ]


class RowStep:
    """The weights of a model, ready for rows: whatever is linear is part of the products beside it.

    Hidden states have mean 0 here, which norms would take away; pairs of values that positions turn are neighbours.
    """

    def __init__(self, model: Vaiom) -> None:
        config, decoder, heads = model.config, model.backbone, model.heads
        assert isinstance(decoder, Decoder)
        assert config.attention_window
        self.model, self.window = model, config.window
        self.num_heads, self.width = config.num_heads, config.width
        self.size = config.width // config.num_heads
        self.speeds = 1j * rotary_speeds(self.size).numpy()
        self.pairs = np.arange(self.size).reshape(2, -1).T.ravel()
        self._ones = np.ones(self.width, np.float32)
        self.blocks = [self._block(block) for block in decoder.blocks]
        encoder: Any = model.encoder
        self.tables = [_array(table.weight) for table in getattr(encoder, "embeddings", {}).values()]
        first, bias = _weights(encoder.first)
        self.continuous, self._biases = None, dict[tuple[int, ...], Array]()
        if config.input == "hybrid":
            weight, own_bias = _weights(encoder.continuous)
            self.continuous = weight * _GELU, own_bias * _GELU
            first[: self.width] *= _GELU
        self.first = first * _GELU, bias * _GELU
        self.second = _to_hidden(encoder.second, _GELU)
        # State and return come first among the heads; auxiliary ones are for learning alone.
        self.num_states = heads.sizes.get("state", 0)
        used = self.num_states + heads.sizes["return"]
        weight, bias = _after_norm(decoder.norm, heads.projection)
        self.projection = np.ascontiguousarray(weight[:, :used]), bias[:used]
        self.norm = _array(decoder.norm.weight) * np.float32(self.width**0.5), _array(decoder.norm.bias)

    def begin(self, events_TF: Array, meta_M: npt.NDArray[np.int64], first: int = 0) -> RowMemory:
        """The memory of a window of rows, by one pass of the network; `first` rows of the asset came before."""
        device = next(self.model.parameters()).device
        inputs = (torch.from_numpy(np.ascontiguousarray(each[None])).to(device) for each in (events_TF, meta_M))
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.inference_mode():
            hidden = self.model.backbone(self.model.encoder(*inputs), last_only=True, first=first, kept=kept)
            probs = return_log_probs(self.model.heads(hidden))[0, -1].double().exp().cpu().numpy()
            last = hidden[0, -1].float().cpu().numpy()
            # (layers, 2, heads, rows, size), as a buffer has them.
            rows = torch.stack([torch.cat(pair).transpose(1, 2) for pair in kept]).cpu().numpy()
        rows[:, 0] = rows[:, 0][..., self.pairs]
        buffer, answer = self._buffer(rows), np.asarray(probs / probs.sum())
        buffer.answers += [answer] * rows.shape[3]
        position = first + len(events_TF)
        return RowMemory(buffer=buffer, end=rows.shape[3], position=position, probs=answer, hidden=last)

    def step(self, memory: RowMemory | None, events_RF: Array, meta_M: npt.NDArray[np.int64]) -> list[RowMemory]:
        """The memories after each of a few more rows, in place of any that followed; of none, from the first row on."""
        return self.step_all([(memory, events_RF, meta_M)])[0]

    def step_all(self, more: Sequence[MoreRows]) -> list[list[RowMemory]]:
        """A step of several assets, which share the reading of the weights."""
        places = [self._place(memory, len(events_RF)) for memory, events_RF, _ in more]
        positions = np.concatenate([place.position + np.arange(place.number) for place in places])
        turns = np.exp(positions[:, None, None, None] * self.speeds).astype(np.complex64)
        hidden, number = self._encode(more), len(positions)
        mixed = np.empty((number, self.num_heads, self.size), np.float32)
        for layer, (to_qkv, from_mixed, to_feed, from_feed) in enumerate(self.blocks):
            qkv = _apply(to_qkv, self._normed(hidden)).reshape(number, 3, self.num_heads, self.size)
            turned = qkv.view(np.complex64)[:, :2]
            turned *= turns
            start = 0
            for place in places:
                kept, own = place.buffer.rows[layer], qkv[start : start + place.number]
                kept[:, :, place.end : place.end + place.number] = own[:, 1:].transpose(1, 2, 0, 3)
                keys, values = kept[:, :, place.low : place.end + place.number]
                scores = own[:, 0].swapaxes(0, 1) @ keys.swapaxes(1, 2)
                if place.number > 1:
                    scores += _unseen(place.end - place.low, place.number, self.window)
                weights = _powers(scores)
                weighed = weights @ values
                weighed /= weights.sum(axis=-1, keepdims=True)
                mixed[start : start + place.number] = weighed.swapaxes(0, 1)
                start += place.number
            hidden += _apply(from_mixed, mixed.reshape(number, self.width))
            hidden += _apply(from_feed, _gelu(_apply(to_feed, self._normed(hidden))))
        normed = self._normed(hidden)
        both = (iter(self._probs(_apply(self.projection, normed))), iter(normed * self.norm[0] + self.norm[1]))
        return [place.remembered(*(list(islice(each, place.number)) for each in both)) for place in places]

    def _place(self, memory: RowMemory | None, number: int) -> _Place:
        """Where more rows are written, in a copy of the last window where the buffer is full."""
        assert 0 < number <= MOST_ROWS
        if memory is None:
            return _Place(self._buffer(None), 0, 0, 0, number)
        assert memory.intact
        buffer, end = memory.buffer, memory.end
        low = max(0, end + 1 - self.window)
        if end + number > buffer.rows.shape[3]:
            full, buffer = buffer, self._buffer(buffer.rows[:, :, :, low:end])
            buffer.answers += full.answers[low:end]
            low, end = 0, end - low
        return _Place(buffer, low, end, memory.position, number)

    def _buffer(self, rows: Array | None) -> _Buffer:
        """Room for a window of rows, which come first in it, and for those that follow; then it is copied."""
        buffer = _Buffer((len(self.blocks), 2, self.num_heads, self.window + MOST_ROWS, self.size))
        if rows is not None:
            buffer.rows[:, :, :, : rows.shape[3]] = rows
        return buffer

    def _block(self, block: Any) -> tuple[Weights, Weights, Weights, Weights]:
        """To queries, keys and values; from what attention gives; to the feed-forward network, and from it."""
        weight, bias = (each.copy() for each in _after_norm(block.attention_norm, block.query_key_value))
        for each in (weight, bias):
            each[..., : self.width] *= self.size**-0.5
            turned = each[..., : 2 * self.width].reshape(*each.shape[:-1], -1, self.size)
            each[..., : 2 * self.width] = turned[..., self.pairs].reshape(*each.shape[:-1], -1)
        feed_weight, feed_bias = _after_norm(block.feed_norm, block.feed_in)
        return (
            (weight, bias),
            _to_hidden(block.attention_out),
            (feed_weight * _GELU, feed_bias * _GELU),
            _to_hidden(block.feed_out, _GELU),
        )

    def _encode(self, more: Sequence[MoreRows]) -> Array:
        first = weight, _ = self.first
        events_RF = np.concatenate([events_RF for _, events_RF, _ in more])
        if self.model.config.input == "disc":
            ids = events_RF.T.astype(np.int64)
            inputs = np.concatenate([table[at] for table, at in zip(self.tables, ids, strict=True)], axis=1)
        else:
            inputs = np.minimum(np.maximum(events_RF, -INPUT_LIMIT), INPUT_LIMIT)
        if self.continuous is not None:
            inputs = _gelu(_apply(self.continuous, inputs))
            biases = [self._bias_of(*meta_M.tolist()) for _, _, meta_M in more]
            first = weight[: self.width], np.repeat(biases, [len(events_RF) for _, events_RF, _ in more], axis=0)
        return _apply(self.second, _gelu(_apply(first, inputs)))

    def _bias_of(self, *meta: int) -> Array:
        """What an asset's metadata add to the fused product, the same at every row."""
        if meta not in self._biases:
            embedded = np.concatenate([table[at] for table, at in zip(self.tables, meta, strict=True)])
            weight, bias = self.first
            self._biases[meta] = embedded @ weight[self.width :] + bias
        return self._biases[meta]

    def _normed(self, hidden: Array) -> Array:
        """With what `_after_norm` has made of the norm."""
        squares = (hidden * hidden).dot(self._ones)
        squares += self.width * _EPSILON
        return np.asarray(hidden / np.sqrt(squares)[:, None])

    def _probs(self, logits_RK: Array) -> Probabilities:
        logits = logits_RK.astype(np.float64)
        components = _powers(logits[:, self.num_states :].reshape(len(logits), -1, NUM_RETURN_BUCKETS))
        weights = 1 / components.sum(axis=-1)
        if self.num_states:
            weights *= _powers(logits[:, : self.num_states])
        probs: Probabilities = (weights[:, None] @ components)[:, 0]
        probs /= probs.sum(axis=1, keepdims=True)
        return probs


@lru_cache
def _unseen(before: int, number: int, window: int) -> Array:
    """(number, before + number): what each new row does not see of those before and of the new ones."""
    distance = before + np.arange(number)[:, None] - np.arange(before + number)
    return np.where((distance < 0) | (distance >= window), np.float32(-np.inf), np.float32(0))


def _after_norm(norm: nn.LayerNorm, linear: nn.Linear) -> Weights:
    """A product of values over the root of their sum of squares that includes the rest of the norm."""
    weight, bias = _weights(linear)
    scale = _array(norm.weight)[:, None] * np.float32(len(weight) ** 0.5)
    return weight * scale, bias + _array(norm.bias) @ weight


def _to_hidden(linear: nn.Linear, scale: np.float32 = _ONE) -> Weights:
    """A product that adds to hidden states of mean 0."""
    weight, bias = _weights(linear)
    return (weight - weight.mean(axis=1, keepdims=True)) * scale, bias - bias.mean()


def _weights(linear: nn.Linear) -> Weights:
    """(in, out) and (out,): a few rows times this is the fastest product."""
    return _array(linear.weight.T), _array(linear.bias)


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.detach().float().cpu().numpy(), order="C")


def _apply(weights: Weights, values: Array) -> Array:
    out: Array = values.dot(weights[0])
    out += weights[1]
    return out


def _powers(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Softmax but for a factor, in place."""
    logits -= logits.max(axis=-1, keepdims=True)
    return np.asarray(np.exp(logits, out=logits))


def _gelu(values: Array) -> Array:
    """Of what it is asked for times `_GELU`, and to be multiplied by it again."""
    out: Array = erf(values)
    out += 1
    out *= values
    return out
