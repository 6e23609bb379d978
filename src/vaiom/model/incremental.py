"""Incremental inference in NumPy for decoders with windowed attention: a new row uses the cached
keys and values of the rows before it.

Enters: new rows of one or several assets, with their caches. Leaves: caches, each with the
probabilities after its row. One row is too little work to pay for PyTorch's dispatch: most time
goes into reading the weights, which rows of several assets share, and into NumPy's calls, which are
few. Not in the paper; it needs an attention window and rotary positions.

Shapes: R rows, F fields, D width, L layers, H heads, E = D / H values a head, S rows that are seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.model.checkpoint import arrays_of
from vaiom.model.config import INPUT_LIMIT, ROTARY_BASE, ModelConfig
from vaiom.model.folded import Array, FoldedLayer, FoldedWeights, gelu

if TYPE_CHECKING:
    from vaiom.model.vaiom import Vaiom

Probabilities = npt.NDArray[np.float64]
Turns = npt.NDArray[np.complex64]
"""Rotations (R, 1, E / 2) of rows, as complex numbers of length 1."""

MAX_ROWS = 64
"""Rows of an asset that `decode_batch` takes at once; for more, `prefill` is cheaper."""
_FEW_ROWS = 3
"""Up to this many rows, a product for each takes half the time of one product for all."""
_NORM_EPSILON = 1e-5
"""That of PyTorch's layer norms."""


@dataclass(eq=False, slots=True)
class _Buffer:
    """Keys and values of rows (L, 2, H, rows, E), which several caches of an asset share.

    `probs` are the probabilities after each row. Caches that continue the same rows in different
    ways write to the same place: whose a row is, is told by the identity of its probabilities.
    """

    rows: Array
    probs: list[Probabilities] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class KVCache:
    """Keys and values of an asset's last rows, and the outputs of the last one."""

    buffer: _Buffer
    length: int
    """Number of its rows in the buffer."""
    position: int
    """Number of rows so far, those that left the window included."""
    probs: Probabilities
    """(16,) probabilities of the next return bucket."""
    hidden: Array
    """(D,) last hidden state, which the heads read."""

    @property
    def intact(self) -> bool:
        """Whether no other continuation has overwritten its rows."""
        owners = self.buffer.probs
        return self.length == 0 or (
            self.length <= len(owners) and owners[self.length - 1] is self.probs
        )


NewRows = tuple[KVCache | None, Array, npt.NDArray[np.int64]]
"""The cache of an asset, if it has any rows yet, its new events (R, F), and its metadata (3,)."""


@dataclass(eq=False, slots=True)
class _Slot:
    """Where the new rows of an asset go, and what they see."""

    buffer: _Buffer
    low: int
    """First row of the buffer that a new row sees."""
    start: int
    stop: int
    """The new rows are those from `start` to `stop`."""
    position: int
    """Number of rows before the new ones."""


class IncrementalDecoder:
    """A trained model as a function of new rows and cached ones; the weights never change."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Array]) -> None:
        """Prepare the tensors of a checkpoint."""
        assert config.attention_window
        self.config = config
        self.weights = FoldedWeights(config, tensors)
        self.window = config.window
        self.width = config.width
        self.num_heads = config.num_heads
        self.size = config.width // config.num_heads
        self._speeds = 1j * ROTARY_BASE ** (-np.arange(0, self.size, 2) / self.size)
        # Those of a receptive field, which no prefill exceeds.
        offsets = np.arange(config.receptive_field - 1)[:, None, None]
        self._turns = np.exp(offsets * self._speeds)
        self._ones = np.ones((max(self.width, self.window + MAX_ROWS), 1), np.float32)
        self._epsilon = np.float32(self.width * _NORM_EPSILON)
        self._biases: dict[tuple[int, ...], Array] = {}

    @classmethod
    def of(cls, network: Vaiom) -> IncrementalDecoder:
        """Prepare the weights of a PyTorch network."""
        return cls(network.config, arrays_of(network.state_dict()))

    def prefill(
        self, events_TF: Array, meta_M: npt.NDArray[np.int64], num_before: int = 0
    ) -> KVCache:
        """The cache after a window of an asset that had `num_before` rows before it.

        A layer computes only the rows that later layers see: of the last of `L` layers the last
        row, of the one below it a window, and so on down to the receptive field.
        """
        reach = self.window - 1
        events_before = events_TF[-self.config.receptive_field : -1]
        num_rows = len(events_before)
        position = num_before + len(events_TF) - 1
        kept = min(num_rows, reach)
        turn_to_position = np.exp((position - num_rows) * self._speeds)
        turns = (self._turns[:num_rows] * turn_to_position).astype(np.complex64)
        buffer = self._new_buffer()
        hidden = self._encode([(None, events_before, meta_M)]).reshape(-1, self.width)
        for number, layer in enumerate(self.weights.layers):
            num_later = len(self.weights.layers) - number - 1
            unneeded = max(0, len(hidden) - reach * num_later)
            normed = self._normed(hidden)
            keys_values = normed.dot(layer.to_qkv[:, self.width :])
            keys_values = keys_values.reshape(-1, 2, self.num_heads, self.size)
            queries = normed[unneeded:].dot(layer.to_qkv[:, : self.width])
            queries = queries.reshape(-1, self.num_heads, self.size)
            _rotate(keys_values[:, 0], turns)
            _rotate(queries, turns)
            keys_values = np.ascontiguousarray(keys_values.transpose(1, 2, 0, 3))
            keys, values = keys_values
            buffer.rows[number, :, :, :kept] = keys_values[:, :, len(hidden) - kept :]
            for start in range(unneeded, len(hidden), MAX_ROWS):
                block = hidden[start : start + MAX_ROWS]
                stop = start + len(block)
                low = max(0, start - reach)
                mask = _mask(start - low, len(block), self.window)
                mixed_HRE = self._attend(
                    queries[start - unneeded : stop - unneeded].swapaxes(0, 1),
                    keys[:, low:stop].swapaxes(1, 2),
                    values[:, low:stop],
                    None if mask is None else mask.reshape(len(block), -1),
                )
                mixed = mixed_HRE.swapaxes(0, 1).reshape(block.shape)
                block += _apply(layer.from_attention, mixed)
                _feed(block, self._normed(block), layer)
            hidden = hidden[unneeded:]
        cache = _without_output(buffer, kept, position)
        return self.decode(cache, events_TF[-1:], meta_M)[0]

    def decode(
        self, cache: KVCache | None, events_TF: Array, meta_M: npt.NDArray[np.int64]
    ) -> list[KVCache]:
        """The caches after each of any number of new rows, which replace earlier continuations."""
        caches: list[KVCache] = []
        for start in range(0, len(events_TF), MAX_ROWS):
            [more] = self.decode_batch([(cache, events_TF[start : start + MAX_ROWS], meta_M)])
            caches += more
            cache = more[-1]
        return caches

    def decode_batch(self, batch: Sequence[NewRows]) -> list[list[KVCache]]:
        """`decode` for several assets, which share each reading of the weights.

        Each may have from 1 to `MAX_ROWS` new rows.
        """
        slots = [self._slot(cache, len(events_RF)) for cache, events_RF, _ in batch]
        counts = [slot.stop - slot.start for slot in slots]
        ends = np.cumsum(counts).tolist()
        rows_of = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
        hidden = self._encode(batch)
        num_rows = ends[-1]
        positions = [
            slot.position + row for slot, n in zip(slots, counts, strict=True) for row in range(n)
        ]
        turns = np.exp(np.array(positions)[:, None, None, None] * self._speeds)
        turns = turns.astype(np.complex64)
        # Rows end with a 1, which the bias of a product is multiplied by.
        normed, mixed = np.ones((2, *hidden.shape[:-1], self.width + 1), np.float32)
        normed_RD = normed[..., :-1]
        mixed_HRE = mixed[..., :-1].reshape(num_rows, self.num_heads, self.size).swapaxes(0, 1)
        # What attention reads and writes in every layer: there are many small calls.
        views = []
        for slot, rows, count in zip(slots, rows_of, counts, strict=True):
            shape = (self.num_heads, *_product_shape(count), self.size)
            seen_L2H1SE = slot.buffer.rows[:, :, :, None, slot.low : slot.stop]
            keys_LH1ES = seen_L2H1SE[:, 0].swapaxes(3, 4)
            values_LH1SE = seen_L2H1SE[:, 1]
            new_L2HRE = slot.buffer.rows[:, :, :, slot.start : slot.stop]
            mask = _mask(slot.start - slot.low, count, self.window)
            out = mixed_HRE[:, rows].reshape(shape)
            views.append((rows, shape, keys_LH1ES, values_LH1SE, new_L2HRE, mask, out))
        for number, layer in enumerate(self.weights.layers):
            self._norm(hidden, normed_RD)
            qkv = (normed @ layer.to_qkv).reshape(num_rows, 3, self.num_heads, self.size)
            rotated = qkv.view(np.complex64)[:, :2]
            rotated *= turns
            qkv_3HRE = qkv.transpose(1, 2, 0, 3)
            for rows, shape, keys, values, new, mask, out in views:
                own = qkv_3HRE[:, :, rows]
                new[number] = own[1:]
                self._attend(own[0].reshape(shape), keys[number], values[number], mask, out)
            hidden += mixed @ layer.from_attention
            self._norm(hidden, normed_RD)
            _feed(hidden, normed, layer)
        self._norm(hidden, normed_RD)
        probs = self._probs((normed @ self.weights.projection).reshape(num_rows, -1))
        last_hidden = normed_RD * self.weights.norm_scale + self.weights.norm_shift
        last_hidden = last_hidden.reshape(num_rows, -1)
        caches = []
        for slot, rows in zip(slots, rows_of, strict=True):
            own_probs = [*probs[rows]]
            slot.buffer.probs[slot.start :] = own_probs
            outputs = enumerate(zip(own_probs, last_hidden[rows], strict=True), start=1)
            caches.append(
                [
                    KVCache(slot.buffer, slot.start + count, slot.position + count, *output)
                    for count, output in outputs
                ]
            )
        return caches

    def _slot(self, cache: KVCache | None, count: int) -> _Slot:
        """Where new rows go: behind those of the cache, or into a new buffer if its own is full."""
        assert 0 < count <= MAX_ROWS
        cache = cache or _without_output(self._new_buffer(), 0, 0)
        assert cache.intact
        buffer = cache.buffer
        start = cache.length
        low = max(0, start + 1 - self.window)
        if start + count > buffer.rows.shape[3]:
            buffer = self._new_buffer()
            buffer.rows[:, :, :, : start - low] = cache.buffer.rows[:, :, :, low:start]
            buffer.probs += cache.buffer.probs[low:start]
            start -= low
            low = 0
        return _Slot(buffer, low, start, start + count, cache.position)

    def _new_buffer(self) -> _Buffer:
        """A buffer for a window and the rows of one batch."""
        shape = (len(self.weights.layers), 2, self.num_heads, self.window + MAX_ROWS, self.size)
        return _Buffer(np.empty(shape, np.float32))

    def _encode(self, batch: Sequence[NewRows]) -> Array:
        """Hidden states of the new rows before the first layer, shaped for products."""
        events = [events_RF for _, events_RF, _ in batch]
        events_RF = events[0] if len(batch) == 1 else np.concatenate(events)
        if self.config.input == "disc":
            ids_FR = events_RF.T.astype(np.int64)
            embedded = [table[ids] for table, ids in zip(self.weights.tables, ids_FR, strict=True)]
            x = np.concatenate(embedded, axis=1)
        else:
            x = np.minimum(np.maximum(events_RF, -INPUT_LIMIT), INPUT_LIMIT)
        x = x.reshape(*_product_shape(len(x)), x.shape[1])
        if self.weights.continuous is None:
            first = _apply(self.weights.first, x)
        else:
            first = gelu(_apply(self.weights.continuous, x)) @ self.weights.first[: self.width]
            biases = [self._bias_of(*meta_M.tolist()) for _, _, meta_M in batch]
            if len(batch) == 1:
                first += biases[0]
            else:
                counts = [len(each) for each in events]
                first += np.repeat(biases, counts, axis=0).reshape(first.shape)
        return _apply(self.weights.second, gelu(first))

    def _bias_of(self, *meta: int) -> Array:
        """(D,): what an asset's metadata add to the first product, the same for all its rows."""
        if meta not in self._biases:
            embedded = [table[row] for table, row in zip(self.weights.tables, meta, strict=True)]
            first = self.weights.first
            self._biases[meta] = np.concatenate(embedded) @ first[self.width : -1] + first[-1]
        return self._biases[meta]

    def _attend(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        mask: Array | None,
        out: Array | None = None,
    ) -> Array:
        """Attention of queries (..., R, E) to keys (..., E, S) and values (..., S, E)."""
        scores = queries @ keys
        if mask is not None:
            scores += mask
        weights = _exponentials(scores)
        sums = weights.dot(self._ones[: weights.shape[-1]])
        mixed: Array = np.divide(weights @ values, sums, out=out)
        return mixed

    def _norm(self, hidden: Array, out: Array) -> None:
        """Divide hidden states by the root of their sum of squares."""
        squares = (hidden * hidden).dot(self._ones[: self.width])
        squares += self._epsilon
        np.divide(hidden, np.sqrt(squares, out=squares), out=out)

    def _normed(self, hidden: Array) -> Array:
        """(R, D + 1): `_norm` with a last column of ones, which biases are multiplied by."""
        normed = np.ones((len(hidden), self.width + 1), np.float32)
        self._norm(hidden, normed[:, :-1])
        return normed

    def _probs(self, logits_RK: Array) -> Probabilities:
        """(R, 16): the mixture of the states' distributions, in double precision."""
        num_rows = len(logits_RK)
        num_states = self.weights.num_states
        logits = logits_RK.astype(np.float64)
        returns = logits[:, num_states:].reshape(num_rows, -1, NUM_RETURN_BUCKETS)
        components = _exponentials(returns)
        weights = 1 / np.add.reduce(components, axis=-1)
        if num_states:
            weights *= _exponentials(logits[:, :num_states])
        probs: Probabilities = (weights[:, None] @ components)[:, 0]
        probs /= np.add.reduce(probs, axis=1, keepdims=True)
        return probs


def _without_output(buffer: _Buffer, length: int, position: int) -> KVCache:
    """A cache of rows whose outputs were not computed."""
    nothing = np.empty(0)
    buffer.probs += [nothing] * length
    return KVCache(buffer, length, position, nothing, nothing.astype(np.float32))


def _product_shape(num_rows: int) -> tuple[int, int]:
    """How rows are batched in products: (number of products, rows of each)."""
    return (num_rows, 1) if num_rows <= _FEW_ROWS else (1, num_rows)


@lru_cache
def _mask(num_before: int, num_rows: int, window: int) -> Array | None:
    """(*_product_shape, num_before + num_rows): -inf where a new row does not see a row.

    A single row sees all.
    """
    if num_rows == 1:
        return None
    own = num_before + np.arange(num_rows).reshape(*_product_shape(num_rows), 1)
    distance = own - np.arange(num_before + num_rows)
    unseen = (distance < 0) | (distance >= window)
    return np.where(unseen, np.float32(-np.inf), np.float32(0))


def _rotate(part_RHE: Array, turns: Turns) -> None:
    """Rotate pairs of values by their positions, in place; rows are the last ones of `turns`."""
    pairs = part_RHE.view(np.complex64)
    pairs *= turns[len(turns) - len(pairs) :]


def _feed(hidden: Array, normed: Array, layer: FoldedLayer) -> None:
    """Add the output of the feed-forward network to hidden states."""
    hidden += gelu(normed @ layer.to_feed) @ layer.from_feed
    hidden += layer.feed_bias


def _apply(weights: Array, values: Array) -> Array:
    """A product of values without a column of ones."""
    out: Array = values @ weights[:-1]
    out += weights[-1]
    return out


def _exponentials(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Softmax that is not normalised yet, in place."""
    logits -= np.maximum.reduce(logits, axis=-1, keepdims=True)
    return np.asarray(np.exp(logits, out=logits))
