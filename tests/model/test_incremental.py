"""Incremental inference gives the network's own outputs: from the first row on, past many windows,
at the ten-millionth row.
"""

from __future__ import annotations

import math
from itertools import cycle

import numpy as np
import pytest
import torch
from small_models import events, tiny_model

from vaiom.model.folded import erf
from vaiom.model.incremental import IncrementalDecoder, KVCache
from vaiom.model.vaiom import Vaiom

WINDOW = 8
LENGTH = 70
RECEPTIVE_FIELD = 22
BRANCHES = [
    {"input": "hybrid"},
    {"input": "cont"},
    {"input": "disc"},
    {"return_head": "independent"},
]


def windowed_model(window: int = WINDOW, **changes: object) -> Vaiom:
    wide = {"positions": "rotary", "attention_window": window, "num_layers": 3, "context": 256}
    model = tiny_model(**wide, **changes).eval()
    with torch.no_grad():
        # Norms as training leaves them, and logits that are not nearly even.
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.heads.projection.weight.mul_(4)
    return model


def probs_by_network(model: Vaiom, x: torch.Tensor, meta: torch.Tensor) -> np.ndarray:
    """(T, 16) after each beginning of a window."""
    with torch.no_grad():
        log_probs = [model.log_probs(x[:, :stop], meta)[0] for stop in range(1, x.shape[1] + 1)]
    return torch.stack(log_probs).double().exp().numpy()


def decode_in_pieces(
    decoder: IncrementalDecoder, cache: KVCache | None, rows: np.ndarray, meta: np.ndarray
) -> list[KVCache]:
    """A few rows at a time, in pieces of every small size."""
    caches: list[KVCache] = []
    sizes = cycle([1, 1, 2, 3, 4, 5])
    while len(rows):
        size = next(sizes)
        caches += decoder.decode(cache, rows[:size], meta)
        cache = caches[-1]
        rows = rows[size:]
    return caches


def require_probs(caches: list[KVCache], expected: np.ndarray, atol: float = 1e-5) -> None:
    np.testing.assert_allclose([each.probs for each in caches], expected, atol=atol, rtol=0)


@pytest.mark.parametrize("changes", BRANCHES, ids=str)
def test_every_row_from_the_first_on(changes: dict[str, object]) -> None:
    model = windowed_model(**changes)
    x, meta = events(model, 1, LENGTH)
    expected = probs_by_network(model, x, meta)
    decoder = IncrementalDecoder.of(model)
    rows = x[0].float().numpy()
    asset = meta[0].numpy()
    with torch.no_grad():
        hidden = model.hidden(x, meta)[0].numpy()
    for caches in (decode_in_pieces(decoder, None, rows, asset), decoder.decode(None, rows, asset)):
        require_probs(caches, expected)
        np.testing.assert_allclose([each.hidden for each in caches], hidden, atol=2e-5)
        assert [each.position for each in caches] == [*range(1, LENGTH + 1)]
    assert decoder.decode(None, rows[:0], asset) == []


@pytest.mark.parametrize("head", ["moms", "independent"])
def test_logits_of_any_size_are_a_distribution(head: str) -> None:
    model = windowed_model(return_head=head)
    x, meta = events(model, 1, 3)
    expected = probs_by_network(model, x, meta)
    with torch.no_grad():
        model.heads.projection.bias.add_(3_000)
    decoder = IncrementalDecoder.of(model)
    require_probs(decoder.decode(None, x[0].numpy(), meta[0].numpy()), expected, atol=1e-3)


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, RECEPTIVE_FIELD, 40])
@pytest.mark.parametrize("num_before", [0, 10_000_000])
def test_decoding_goes_on_from_a_prefilled_window(length: int, num_before: int) -> None:
    model = windowed_model()
    x, meta = events(model, 1, LENGTH)
    rows = x[0].numpy()
    asset = meta[0].numpy()
    expected = probs_by_network(model, x, meta)
    decoder = IncrementalDecoder.of(model)
    cache = decoder.prefill(rows[:length], asset, num_before)
    require_probs([cache], expected[length - 1 : length], atol=1e-6)
    later = decode_in_pieces(decoder, cache, rows[length:], asset)
    require_probs(later, expected[length:])
    assert later[-1].position == num_before + LENGTH


@pytest.mark.parametrize("window", [WINDOW, 60])
def test_a_receptive_field_is_all_that_a_prefill_needs(window: int) -> None:
    """That of the wide window is longer than the blocks in which attention is computed."""
    model = windowed_model(window)
    needed = model.config.receptive_field
    x, meta = events(model, 1, needed + 20)
    rows = x[0].numpy()
    asset = meta[0].numpy()
    decoder = IncrementalDecoder.of(model)
    cache = decoder.prefill(rows[10 : 10 + needed], asset)
    caches = [cache, *decoder.decode(cache, rows[10 + needed :], asset)]
    require_probs(caches, probs_by_network(model, x, meta)[9 + needed :], atol=2e-6)


def test_the_error_function_of_many_values() -> None:
    x = np.append(np.linspace(-6, 6, 1201, dtype=np.float32), np.float32([-1e15, 1e15]))
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(erf(x), [math.erf(each) for each in x], atol=2e-7)


def test_the_last_row_may_come_again_in_another_form() -> None:
    """Whoever went on from the first form is told; the rows before it, and what follows the second,
    are right.
    """
    model = windowed_model()
    x, meta = events(model, 1, LENGTH)
    other, _ = events(model, 1, LENGTH, seed=1)
    asset = meta[0].numpy()
    expected = probs_by_network(model, x, meta)
    decoder = IncrementalDecoder.of(model)
    cache: KVCache | None = None
    num_shared = 0
    for number, (row, another) in enumerate(zip(x[0].numpy(), other[0].numpy(), strict=True)):
        [left] = decoder.decode(cache, another[None], asset)
        [farther] = decoder.decode(left, another[None], asset)
        [right] = decoder.decode(cache, row[None], asset)
        assert right.intact
        for abandoned in (left, farther):
            assert abandoned.intact == (abandoned.buffer is not right.buffer)
        assert cache is None or cache.intact
        assert np.abs(left.probs - right.probs).max() > 1e-5
        np.testing.assert_allclose(right.probs, expected[number], atol=1e-6)
        num_shared += left.buffer is right.buffer
        cache = right
    assert num_shared > LENGTH - 10  # else a buffer was full


def test_rows_of_several_assets_are_those_of_each_alone() -> None:
    """However many rows each has had and gets."""
    model = windowed_model()
    x, meta = events(model, 4, LENGTH)
    rows = x.numpy()
    assets = meta.numpy()
    decoder = IncrementalDecoder.of(model)
    expected = [probs_by_network(model, x[[one]], meta[[one]]) for one in range(4)]
    caches: list[KVCache | None] = [
        None,
        decoder.prefill(rows[1, :5], assets[1]),
        decoder.prefill(rows[2, :RECEPTIVE_FIELD], assets[2]),
        decoder.decode(None, rows[3, :50], assets[3])[-1],
    ]
    for sizes in ((1, 3, 2, 1), (4, 1, 1, 2)):
        starts = [cache.position if cache else 0 for cache in caches]
        spans = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        batch = [(caches[one], rows[one, spans[one]], assets[one]) for one in range(4)]
        decoded = decoder.decode_batch(batch)
        for one, after in enumerate(decoded):
            require_probs(after, expected[one][spans[one]], atol=1e-6)
        caches = [after[-1] for after in decoded]
