"""A few more rows through a decoder whose layers see a window of rows, in NumPy.

Enters: the memory of the rows before, events (R, F) and their metadata (3,), of one asset or of several. Leaves: the
memory after each row, and in it the probabilities of the next return bucket, as `Vaiom` gives them for a window that
ends there. One row is too little work to pay for PyTorch's dispatch: the time goes into reading the weights, which
rows share, and into calls of NumPy, of which there are as few as can be.
Paper: none; it follows from attention over a window of rows and rotary positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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
Probabilities = npt.NDArray[np.float64]
_EPSILON = 1e-5
"""Of PyTorch's layer norms."""
_GELU = np.float32(0.5**0.5)
"""GELU of x is c u (1 + erf(u)) where u is c x: products beside it take both factors."""
MOST_ROWS = 64
"""At once; more are cheaper in a pass of the network."""


class _Buffer:
    """Keys and values (layers, 2, heads, rows, size), and whose each row is: the answer that was given after it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rows: Array = np.empty(shape, np.float32)
        self.answers: list[Probabilities] = []


class RowMemory:
    """What a model remembers of an asset: the beginning of a buffer that its successors write on in."""

    def __init__(self, buffer: _Buffer, end: int, position: int, probs: Probabilities, hidden: Array) -> None:
        self.buffer = buffer
        self.end = end
        """How many rows of the buffer belong to it."""
        self.position = position
        """How many rows there were."""
        self.probs = probs
        """(16,) of the return bucket that follows the last of them."""
        self.hidden = hidden
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
    stop: int
    position: int


class RowStep:
    """The weights of a model, ready for rows: whatever is linear is part of the products beside it.

    Hidden states have mean 0 here, which norms would take away; pairs of values that positions turn are neighbours.
    Weights are (in + 1, out), the bias last.
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
        self._ones = np.ones(max(self.width, self.window + MOST_ROWS), np.float32)
        self.blocks = [self._block(block) for block in decoder.blocks]
        encoder: Any = model.encoder
        self.tables = [_array(table.weight) for table in getattr(encoder, "embeddings", {}).values()]
        self.first, self.continuous = _weights(encoder.first) * _GELU, None
        self._biases = dict[tuple[int, ...], Array]()
        if config.input == "hybrid":
            self.continuous = _weights(encoder.continuous) * _GELU
            self.first[: self.width] *= _GELU
        self.second = _to_hidden(encoder.second, _GELU)
        # State and return come first among the heads; auxiliary ones are for learning alone.
        self.num_states = heads.sizes.get("state", 0)
        used = self.num_states + heads.sizes["return"]
        self.projection = np.ascontiguousarray(_after_norm(decoder.norm, heads.projection)[:, :used])
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
        return RowMemory(buffer, rows.shape[3], first + len(events_TF), answer, last)

    def step(self, memory: RowMemory | None, events_RF: Array, meta_M: npt.NDArray[np.int64]) -> list[RowMemory]:
        """The memories after each of a few more rows, in place of any that followed; of none, from the first row on."""
        return self.step_all([(memory, events_RF, meta_M)])[0]

    def step_all(self, more: Sequence[MoreRows]) -> list[list[RowMemory]]:
        """A step of several assets, which share the reading of the weights."""
        places = [self._place(memory, len(events_RF)) for memory, events_RF, _ in more]
        positions = [place.position + row for place in places for row in range(place.stop - place.end)]
        turns = np.exp(np.array(positions)[:, None, None, None] * self.speeds).astype(np.complex64)
        unseen = [_unseen(place.end - place.low, place.stop - place.end, self.window) for place in places]
        hidden, number = self._encode(more), len(positions)
        normed, mixed = _ending_with_1(number, self.width), _ending_with_1(number, self.width)
        mixed_HRE = mixed[:, :-1].reshape(number, self.num_heads, self.size).swapaxes(0, 1)
        for layer, (to_qkv, from_mixed, to_feed, from_feed, bias) in enumerate(self.blocks):
            qkv = self._norm(hidden, normed).dot(to_qkv).reshape(number, 3, self.num_heads, self.size)
            turned = qkv.view(np.complex64)[:, :2]
            turned *= turns
            qkv_3HRE, start = qkv.transpose(1, 2, 0, 3), 0
            for place, hide in zip(places, unseen, strict=True):
                rows = slice(start, start := start + place.stop - place.end)
                kept, own = place.buffer.rows[layer], qkv_3HRE[:, :, rows]
                kept[:, :, place.end : place.stop] = own[1:]
                keys, values = kept[:, :, place.low : place.stop]
                scores = own[0] @ keys.swapaxes(1, 2)
                if hide is not None:
                    scores += hide
                weights = _powers(scores)
                sums = weights.dot(self._ones[: place.stop - place.low])
                np.divide(weights @ values, sums[:, :, None], out=mixed_HRE[:, rows])
            hidden += mixed.dot(from_mixed)
            hidden += _gelu(self._norm(hidden, normed).dot(to_feed)).dot(from_feed)
            hidden += bias
        probs = self._probs(self._norm(hidden, normed).dot(self.projection))
        seen = normed[:, :-1] * self.norm[0] + self.norm[1]
        made, start = [], 0
        for place in places:
            count = place.stop - place.end
            place.buffer.answers[place.end :] = answers = [*probs[start : start + count]]
            made.append(
                [
                    RowMemory(
                        place.buffer, place.end + row, place.position + row, answers[row - 1], seen[start + row - 1]
                    )
                    for row in range(1, count + 1)
                ]
            )
            start += count
        return made

    def _place(self, memory: RowMemory | None, number: int) -> _Place:
        """Where more rows are written, in a copy of the last window where the buffer is full."""
        assert 0 < number <= MOST_ROWS
        if memory is None:
            return _Place(self._buffer(None), 0, 0, number, 0)
        assert memory.intact
        buffer, end = memory.buffer, memory.end
        low = max(0, end + 1 - self.window)
        if end + number > buffer.rows.shape[3]:
            full, buffer = buffer, self._buffer(buffer.rows[:, :, :, low:end])
            buffer.answers += full.answers[low:end]
            low, end = 0, end - low
        return _Place(buffer, low, end, end + number, memory.position)

    def _buffer(self, rows: Array | None) -> _Buffer:
        """Room for a window of rows, which come first in it, and for those that follow; then it is copied."""
        buffer = _Buffer((len(self.blocks), 2, self.num_heads, self.window + MOST_ROWS, self.size))
        if rows is not None:
            buffer.rows[:, :, :, : rows.shape[3]] = rows
        return buffer

    def _block(self, block: Any) -> tuple[Array, ...]:
        """To queries, keys and values; from what attention gives; to the feed-forward network, and from it."""
        qkv = _after_norm(block.attention_norm, block.query_key_value)
        qkv[:, : self.width] *= self.size**-0.5
        turned = qkv[:, : 2 * self.width].reshape(len(qkv), -1, self.size)
        qkv[:, : 2 * self.width] = turned[..., self.pairs].reshape(len(qkv), -1)
        feed = _after_norm(block.feed_norm, block.feed_in) * _GELU
        out = _to_hidden(block.feed_out, _GELU)
        return qkv, _to_hidden(block.attention_out), feed, out[:-1], out[-1]

    def _encode(self, more: Sequence[MoreRows]) -> Array:
        events = [events_RF for _, events_RF, _ in more]
        events_RF = events[0] if len(more) == 1 else np.concatenate(events)
        if self.model.config.input == "disc":
            ids = events_RF.T.astype(np.int64)
            seen = np.concatenate([table[at] for table, at in zip(self.tables, ids, strict=True)], axis=1)
        else:
            seen = np.minimum(np.maximum(events_RF, -INPUT_LIMIT), INPUT_LIMIT)
        if self.continuous is None:
            first = _apply(self.first, seen)
        else:
            first = _gelu(_apply(self.continuous, seen)).dot(self.first[: self.width])
            biases = [self._bias_of(*meta_M.tolist()) for _, _, meta_M in more]
            first += biases[0] if len(more) == 1 else np.repeat(biases, [len(each) for each in events], axis=0)
        return _apply(self.second, _gelu(first))

    def _bias_of(self, *meta: int) -> Array:
        """What an asset's metadata add to the fused product, the same at every row."""
        if meta not in self._biases:
            embedded = np.concatenate([table[at] for table, at in zip(self.tables, meta, strict=True)])
            self._biases[meta] = embedded @ self.first[self.width : -1] + self.first[-1]
        return self._biases[meta]

    def _norm(self, hidden: Array, out: Array) -> Array:
        """With what `_after_norm` has made of the norm."""
        squares = (hidden * hidden).dot(self._ones[: self.width])
        squares += self.width * _EPSILON
        np.divide(hidden, np.sqrt(squares)[:, None], out=out[:, :-1])
        return out

    def _probs(self, logits_RK: Array) -> Probabilities:
        logits = logits_RK.astype(np.float64)
        components = _powers(logits[:, self.num_states :].reshape(len(logits), -1, NUM_RETURN_BUCKETS))
        weights = 1 / np.add.reduce(components, axis=-1)
        if self.num_states:
            weights *= _powers(logits[:, : self.num_states])
        probs: Probabilities = (weights[:, None] @ components)[:, 0]
        probs /= np.add.reduce(probs, axis=1, keepdims=True)
        return probs


@lru_cache
def _unseen(before: int, number: int, window: int) -> Array | None:
    """(number, before + number): what each new row does not see of those before and of the new ones."""
    if number == 1:
        return None
    distance = before + np.arange(number)[:, None] - np.arange(before + number)
    return np.where((distance < 0) | (distance >= window), np.float32(-np.inf), np.float32(0))


def _after_norm(norm: nn.LayerNorm, linear: nn.Linear) -> Array:
    """A product of values over the root of their sum of squares that includes the rest of the norm."""
    weights = _weights(linear)
    weights[-1] += _array(norm.bias) @ weights[:-1]
    weights[:-1] *= _array(norm.weight)[:, None] * np.float32(len(norm.weight) ** 0.5)
    return weights


def _to_hidden(linear: nn.Linear, scale: np.float32 | None = None) -> Array:
    """A product that adds to hidden states of mean 0."""
    weights = _weights(linear)
    weights -= weights.mean(axis=1, keepdims=True)
    if scale is not None:
        weights[:-1] *= scale
    return weights


def _weights(linear: nn.Linear) -> Array:
    """(in + 1, out), the bias last: a few rows times this is the fastest product."""
    return np.concatenate([_array(linear.weight.T), _array(linear.bias)[None]])


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.detach().float().cpu().numpy(), order="C")


def _ending_with_1(number: int, width: int) -> Array:
    """Room for rows whose product with weights has the bias in it."""
    return np.ones((number, width + 1), np.float32)


def _apply(weights: Array, values: Array) -> Array:
    out: Array = values.dot(weights[:-1])
    out += weights[-1]
    return out


def _powers(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Softmax but for a factor, in place."""
    logits -= np.maximum.reduce(logits, axis=-1, keepdims=True)
    return np.asarray(np.exp(logits, out=logits))


def _gelu(values: Array) -> Array:
    """Of what it is asked for times `_GELU`, and to be multiplied by it again."""
    out: Array = erf(values)
    out += 1
    out *= values
    return out
