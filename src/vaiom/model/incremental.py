"""Incremental inference in NumPy for decoders with windowed attention: new rows use cached keys and
values.

One row is too little work to pay for PyTorch's dispatch: reading the weights, which rows of several
assets share, and the NumPy calls, which are few, take the time. Not in the paper; it needs an
attention window and rotary positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.model.checkpoint import arrays_of
from vaiom.model.config import INPUT_LIMIT, ROTARY_BASE, ModelConfig

if TYPE_CHECKING:
    from vaiom.model.vaiom import Vaiom

Array = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]
GELU = np.float32(0.5**0.5)
"""GELU(x) is c u (1 + erf(u)) with u = c x: adjacent products absorb both factors."""
MOST_ROWS = 64
"""Rows of one step; more are cheaper layer by layer, as in `begin`."""
_FEW_ROWS = 3
"""Up to this many rows are multiplied one by one, which BLAS does in half the time of one product.
"""
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
_ERF_END = np.float32(4.2**2)
"""erf(x) is tanh of x times a polynomial in x squared, and 1 to rounding beyond the end."""


@dataclass(eq=False, slots=True)
class _Buffer:
    """Cached keys and values (layers, 2, heads, rows, size), and the output that owns each row."""

    rows: Array
    answers: list[Probabilities] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class RowMemory:
    """A model's cache for one asset: the first rows of a buffer that later memories extend."""

    buffer: _Buffer
    end: int
    """Number of its rows in the buffer."""
    position: int
    """Number of rows so far."""
    probs: Probabilities
    """(16,) probabilities of the next return bucket."""
    hidden: Array
    """(D,) last hidden state, which heads read."""

    @property
    def intact(self) -> bool:
        """Whether no other continuation has overwritten its rows."""
        answers = self.buffer.answers
        return self.end <= len(answers) and (self.end == 0 or answers[self.end - 1] is self.probs)


MoreRows = tuple[RowMemory | None, Array, npt.NDArray[np.int64]]
"""The memory so far, the asset's next events (R, F), and their metadata (3,)."""


class RowStep:
    """The weights of a model, prepared for row steps: linear operations are folded into adjacent
    products.

    Hidden states have mean 0, which norms would subtract; rotated pairs of values are adjacent.
    Weights are (in + 1, out), the bias last.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Array]) -> None:
        """From the tensors of a checkpoint."""
        assert config.attention_window
        self.config, self.window = config, config.window
        self._tensors = {name: np.asarray(array, np.float32) for name, array in tensors.items()}
        self.num_heads, self.width = config.num_heads, config.width
        self.size = config.width // config.num_heads
        self.speeds = 1j * ROTARY_BASE ** (-np.arange(0, self.size, 2) / self.size)
        # For as many rows as any output depends on.
        self._turns = np.exp(np.arange(config.receptive_field - 1)[:, None, None] * self.speeds)
        self.pairs = np.arange(self.size).reshape(2, -1).T.ravel()
        self._ones = np.ones((max(self.width, self.window + MOST_ROWS), 1), np.float32)
        self._width_ones = self._ones[: self.width]
        self._epsilon = np.float32(self.width * 1e-5)  # that of PyTorch's layer norms
        self.blocks = [
            self._block(f"backbone.blocks.{number}") for number in range(config.num_layers)
        ]
        self.tables = [
            self._tensors[f"encoder.embeddings.{name}.weight"] for name in config.embedded
        ]
        self.first, self.continuous = self._weights("encoder.first") * GELU, None
        self._biases = dict[tuple[int, ...], Array]()
        if config.input == "hybrid":
            self.continuous = self._weights("encoder.continuous") * GELU
            self.first[: self.width] *= GELU
        self.second = self._to_hidden("encoder.second", GELU)
        # State and return come first among the heads; auxiliary heads are used in training alone.
        self.num_states = config.num_states if config.return_head == "moms" else 0
        used = self.num_states + NUM_RETURN_BUCKETS * (self.num_states or 1)
        self.projection = np.ascontiguousarray(
            self._after_norm("backbone.norm", "heads.projection")[:, :used]
        )
        scale, shift = (self._tensors[f"backbone.norm.{name}"] for name in ("weight", "bias"))
        self.norm = scale * np.float32(self.width**0.5), shift

    @classmethod
    def of(cls, network: Vaiom) -> RowStep:
        """From a PyTorch network."""
        return cls(network.config, arrays_of(network.state_dict()))

    def begin(self, events_TF: Array, meta_M: npt.NDArray[np.int64], first: int = 0) -> RowMemory:
        """The memory after a window and `first` earlier rows; layers compute only rows that later
        layers see.
        """
        reach, width = self.window - 1, self.width
        before = events_TF[max(0, len(events_TF) - self.config.receptive_field) : -1]
        position, kept = first + len(events_TF) - 1, min(len(before), reach)
        turns = (
            self._turns[: len(before)] * np.exp((position - len(before)) * self.speeds)
        ).astype(np.complex64)
        buffer, hidden = self._buffer(), self._encode([(None, before, meta_M)]).reshape(-1, width)
        for layer, (to_qkv, from_mixed, to_feed, from_feed, bias) in enumerate(self.blocks):
            idle = max(0, len(hidden) - reach * (len(self.blocks) - layer - 1))
            normed = self._normed(hidden)
            keys_values = normed.dot(to_qkv[:, width:]).reshape(-1, 2, self.num_heads, self.size)
            queries = normed[idle:].dot(to_qkv[:, :width]).reshape(-1, self.num_heads, self.size)
            for part in (keys_values[:, 0], queries):
                turned = part.view(np.complex64)
                turned *= turns[len(turns) - len(part) :]
            keys, values = both = np.ascontiguousarray(keys_values.transpose(1, 2, 0, 3))
            buffer.rows[layer, :, :, :kept] = both[:, :, len(hidden) - kept :]
            for start in range(idle, len(hidden), MOST_ROWS):
                own, low = hidden[start : start + MOST_ROWS], max(0, start - reach)
                own_queries, seen = (
                    queries[start - idle :][: len(own)],
                    slice(low, start + len(own)),
                )
                scores = own_queries.swapaxes(0, 1) @ keys[:, seen].swapaxes(1, 2)
                if (mask := _unseen(start - low, len(own), self.window)) is not None:
                    scores += mask.reshape(len(own), -1)
                weights = _powers(scores)
                mixed_HRE = weights @ values[:, seen] / weights.dot(self._ones[: weights.shape[-1]])
                own += _apply(from_mixed, mixed_HRE.swapaxes(0, 1).reshape(own.shape))
                own += gelu(self._normed(own).dot(to_feed)).dot(from_feed)
                own += bias
            hidden = hidden[idle:]
        return self.step(_without_output(buffer, kept, position), events_TF[-1:], meta_M)[0]

    def walk(
        self, events_TF: Array, meta_M: npt.NDArray[np.int64], first: int = 0
    ) -> Iterator[RowMemory]:
        """The memories after each of any number of rows; `first` rows of the asset came before and
        are not visible.
        """
        memory = _without_output(self._buffer(), 0, first)
        for start in range(0, len(events_TF), MOST_ROWS):
            memories = self.step(memory, events_TF[start : start + MOST_ROWS], meta_M)
            yield from memories
            memory = memories[-1]

    def step(
        self, memory: RowMemory | None, events_RF: Array, meta_M: npt.NDArray[np.int64]
    ) -> list[RowMemory]:
        """The memories after each of a few new rows, which replace any earlier continuation."""
        return self.step_all([(memory, events_RF, meta_M)])[0]

    def step_all(self, more: Sequence[MoreRows]) -> list[list[RowMemory]]:
        """A step of several assets, which read the weights once."""
        places = [self._place(memory, len(events_RF)) for memory, events_RF, _ in more]
        positions = [
            position + row for _, _, end, stop, position in places for row in range(stop - end)
        ]
        turns = np.exp(np.array(positions)[:, None, None, None] * self.speeds).astype(np.complex64)
        number, hidden = len(positions), self._encode(more)
        # Rows end with 1, so that the bias is part of a product.
        normed, mixed = np.ones((2, *hidden.shape[:-1], self.width + 1), np.float32)
        inside = normed[..., :-1]
        mixed_HRE = mixed[..., :-1].reshape(number, self.num_heads, self.size).swapaxes(0, 1)
        # Views of every layer are made once: there are many small calls.
        views, start = [], 0
        for buffer, low, end, stop, _ in places:
            rows = slice(start, start := start + stop - end)
            shape = (self.num_heads, *_batching(stop - end), self.size)
            new, seen_L2H1NE = buffer.rows[:, :, :, end:stop], buffer.rows[:, :, :, None, low:stop]
            keys, values = seen_L2H1NE[:, 0].swapaxes(3, 4), seen_L2H1NE[:, 1]
            mask, ones = _unseen(end - low, stop - end, self.window), self._ones[: stop - low]
            views.append(
                (rows, shape, new, keys, values, mask, ones, mixed_HRE[:, rows].reshape(shape))
            )
        for layer, (to_qkv, from_mixed, to_feed, from_feed, bias) in enumerate(self.blocks):
            self._norm(hidden, inside)
            qkv = (normed @ to_qkv).reshape(number, 3, self.num_heads, self.size)
            turned = qkv.view(np.complex64)[:, :2]
            turned *= turns
            qkv_3HRE = qkv.transpose(1, 2, 0, 3)
            for rows, shape, new, keys, values, mask, ones, out in views:
                own = qkv_3HRE[:, :, rows]
                new[layer] = own[1:]
                scores = own[0].reshape(shape) @ keys[layer]
                if mask is not None:
                    scores += mask
                weights = _powers(scores)
                np.divide(weights @ values[layer], weights.dot(ones), out=out)
            hidden += mixed @ from_mixed
            self._norm(hidden, inside)
            hidden += gelu(normed @ to_feed) @ from_feed
            hidden += bias
        self._norm(hidden, inside)
        probs = self._probs((normed @ self.projection).reshape(number, -1))
        last_hidden = (inside * self.norm[0] + self.norm[1]).reshape(number, -1)
        memories, start = [], 0
        for buffer, _, end, stop, position in places:
            rows = slice(start, start := start + stop - end)
            buffer.answers[end:] = answers = [*probs[rows]]
            outputs = enumerate(zip(answers, last_hidden[rows], strict=True), start=1)
            memories.append(
                [
                    RowMemory(buffer, end + count, position + count, *output)
                    for count, output in outputs
                ]
            )
        return memories

    def _place(self, memory: RowMemory | None, number: int) -> tuple[_Buffer, int, int, int, int]:
        """Buffer of new rows, a copy of the last window if it was full; first visible, first new,
        end; position.
        """
        assert 0 < number <= MOST_ROWS
        memory = memory or _without_output(self._buffer(), 0, 0)
        assert memory.intact
        buffer, end = memory.buffer, memory.end
        low = max(0, end + 1 - self.window)
        if end + number > buffer.rows.shape[3]:
            full, buffer = buffer, self._buffer()
            buffer.rows[:, :, :, : end - low] = full.rows[:, :, :, low:end]
            buffer.answers += full.answers[low:end]
            low, end = 0, end - low
        return buffer, low, end, end + number, memory.position

    def _buffer(self) -> _Buffer:
        shape = (len(self.blocks), 2, self.num_heads, self.window + MOST_ROWS, self.size)
        return _Buffer(np.empty(shape, np.float32))

    def _block(self, name: str) -> tuple[Array, ...]:
        """Weights to queries, keys and values; from attention; to and from the feed-forward
        network.
        """
        qkv = self._after_norm(f"{name}.attention_norm", f"{name}.query_key_value")
        qkv[:, : self.width] *= self.size**-0.5
        turned = qkv[:, : 2 * self.width].reshape(len(qkv), -1, self.size)
        qkv[:, : 2 * self.width] = turned[..., self.pairs].reshape(len(qkv), -1)
        feed = self._after_norm(f"{name}.feed_norm", f"{name}.feed_in") * GELU
        out = self._to_hidden(f"{name}.feed_out", GELU)
        return qkv, self._to_hidden(f"{name}.attention_out"), feed, out[:-1], out[-1]

    def _weights(self, linear: str) -> Array:
        """(in + 1, out), the bias last: the fastest layout for a few rows."""
        weight, bias = (self._tensors[f"{linear}.{name}"] for name in ("weight", "bias"))
        return np.ascontiguousarray(np.concatenate([weight.T, bias[None]]))

    def _after_norm(self, norm: str, linear: str) -> Array:
        """A product that includes the norm's scale and shift, for values over the root of their sum
        of squares.
        """
        weights, scale = self._weights(linear), self._tensors[f"{norm}.weight"]
        weights[-1] += self._tensors[f"{norm}.bias"] @ weights[:-1]
        weights[:-1] *= scale[:, None] * np.float32(len(scale) ** 0.5)
        return weights

    def _to_hidden(self, linear: str, scale: np.float32 | None = None) -> Array:
        """A product whose output is added to hidden states of mean 0."""
        weights = self._weights(linear)
        weights -= weights.mean(axis=1, keepdims=True)
        if scale is not None:
            weights[:-1] *= scale
        return weights

    def _encode(self, more: Sequence[MoreRows]) -> Array:
        events = [events_RF for _, events_RF, _ in more]
        events_RF = events[0] if len(more) == 1 else np.concatenate(events)
        if self.config.input == "disc":
            ids = events_RF.T.astype(np.int64)
            seen = np.concatenate(
                [table[at] for table, at in zip(self.tables, ids, strict=True)], axis=1
            )
        else:
            seen = np.minimum(np.maximum(events_RF, -INPUT_LIMIT), INPUT_LIMIT)
        seen = seen.reshape(*_batching(len(seen)), seen.shape[1])
        if self.continuous is None:
            first = _apply(self.first, seen)
        else:
            first = gelu(_apply(self.continuous, seen)) @ self.first[: self.width]
            biases = [self._bias_of(*meta_M.tolist()) for _, _, meta_M in more]
            counts = [len(each) for each in events]
            first += (
                biases[0]
                if len(more) == 1
                else np.repeat(biases, counts, axis=0).reshape(first.shape)
            )
        return _apply(self.second, gelu(first))

    def _bias_of(self, *meta: int) -> Array:
        """The part of the fused product from an asset's metadata, constant over rows."""
        if meta not in self._biases:
            embedded = np.concatenate(
                [table[at] for table, at in zip(self.tables, meta, strict=True)]
            )
            self._biases[meta] = embedded @ self.first[self.width : -1] + self.first[-1]
        return self._biases[meta]

    def _norm(self, hidden: Array, out: Array) -> None:
        """The part of the norm that `_after_norm` does not include."""
        squares = (hidden * hidden).dot(self._width_ones)
        squares += self._epsilon
        np.divide(hidden, np.sqrt(squares, out=squares), out=out)

    def _normed(self, hidden: Array) -> Array:
        """(N, D + 1), with a last column of ones for the bias."""
        normed = np.ones((len(hidden), self.width + 1), np.float32)
        self._norm(hidden, normed[:, :-1])
        return normed

    def _probs(self, logits_RK: Array) -> Probabilities:
        logits = logits_RK.astype(np.float64)
        components = _powers(
            logits[:, self.num_states :].reshape(len(logits), -1, NUM_RETURN_BUCKETS)
        )
        weights = 1 / np.add.reduce(components, axis=-1)
        if self.num_states:
            weights *= _powers(logits[:, : self.num_states])
        probs: Probabilities = (weights[:, None] @ components)[:, 0]
        probs /= np.add.reduce(probs, axis=1, keepdims=True)
        return probs


def _without_output(buffer: _Buffer, end: int, position: int) -> RowMemory:
    """A memory of rows whose outputs were not computed."""
    nothing = np.empty(0)
    buffer.answers += [nothing] * end
    return RowMemory(buffer, end, position, nothing, nothing.astype(np.float32))


def _batching(number: int) -> tuple[int, int]:
    """How rows are batched in products: (number of products, rows of each)."""
    return (number, 1) if number <= _FEW_ROWS else (1, number)


@lru_cache
def _unseen(before: int, number: int, window: int) -> Array | None:
    """(*_batching(number), before + number): mask of the earlier and new rows that each new row
    does not see.
    """
    if number == 1:
        return None
    distance = (
        before + np.arange(number).reshape(*_batching(number), 1) - np.arange(before + number)
    )
    return np.where((distance < 0) | (distance >= window), np.float32(-np.inf), np.float32(0))


def _apply(weights: Array, values: Array) -> Array:
    out: Array = values @ weights[:-1]
    out += weights[-1]
    return out


def _powers(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Unnormalised softmax, in place."""
    logits -= np.maximum.reduce(logits, axis=-1, keepdims=True)
    return np.asarray(np.exp(logits, out=logits))


def gelu(values: Array) -> Array:
    """GELU of inputs multiplied by `GELU`, whose output is still to be multiplied by it."""
    out = erf(values)
    out += 1
    out *= values
    return out


def erf(values: Array) -> Array:
    """The error function to 2e-7; a window takes a quarter of the time that it takes with SciPy."""
    squares = values * values
    np.minimum(squares, _ERF_END, out=squares)
    out = squares * _ERF[0]
    for factor in _ERF[1:-1]:
        out += factor
        out *= squares
    out += _ERF[-1]
    out *= values
    return np.asarray(np.tanh(out, out=out))
