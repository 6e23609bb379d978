"""Row by row is the network's own answer: from the first row on, past many windows, at the
ten-millionth row.
"""

from __future__ import annotations

import math
from itertools import cycle

import numpy as np
import pytest
import torch
from small_models import events, tiny_model

from vaiom.model import incremental as row_step
from vaiom.model.incremental import RowMemory, RowStep, erf
from vaiom.model.vaiom import Vaiom

WINDOW, LENGTH = 8, 70
BRANCHES = [
    {"input": "hybrid"},
    {"input": "cont"},
    {"input": "disc"},
    {"return_head": "independent"},
]


def windowed_model(**changes: object) -> Vaiom:
    model = tiny_model(positions="rotary", attention_window=WINDOW, num_layers=3, **changes).eval()
    with torch.no_grad():
        # Norms as training leaves them, and logits that are not nearly even.
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.heads.projection.weight.mul_(4)
    return model


def answers(model: Vaiom, x: torch.Tensor, meta: torch.Tensor) -> np.ndarray:
    """(T, 16) of each beginning of a window, by the network alone."""
    with torch.no_grad():
        return np.stack(
            [
                model.log_probs(x[:, :stop], meta)[0].double().exp().numpy()
                for stop in range(1, x.shape[1] + 1)
            ]
        )


def walk(
    step: RowStep, memory: RowMemory | None, rows: np.ndarray, meta: np.ndarray
) -> list[RowMemory]:
    memories: list[RowMemory] = []
    sizes, at = cycle([1, 1, 2, 3, 4, 5]), 0
    while at < len(rows):
        memories += step.step(
            memories[-1] if memories else memory, rows[at : at + (size := next(sizes))], meta
        )
        at += size
    return memories


@pytest.mark.parametrize("changes", BRANCHES)
def test_every_row_from_the_first_on(changes: dict[str, object]) -> None:
    model = windowed_model(**changes)
    x, meta = events(model, 1, LENGTH)
    expected = answers(model, x, meta)
    memories = walk(RowStep.of(model), None, x[0].float().numpy(), meta[0].numpy())
    np.testing.assert_allclose([each.probs for each in memories], expected, atol=1e-6, rtol=0)
    assert memories[-1].position == LENGTH
    with torch.no_grad():
        hidden = model.hidden(x, meta)[0].numpy()
    np.testing.assert_allclose([each.hidden for each in memories], hidden, atol=2e-5)


@pytest.mark.parametrize("most_rows", [5, 64])
def test_a_walk_goes_through_any_number_of_rows(
    most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_step, "MOST_ROWS", most_rows)
    model = windowed_model()
    x, meta = events(model, 1, LENGTH)
    memories = list(RowStep.of(model).walk(x[0].numpy(), meta[0].numpy(), 1_000))
    np.testing.assert_allclose(
        [each.probs for each in memories], answers(model, x, meta), atol=1e-5, rtol=0
    )
    assert [each.position for each in memories] == [*range(1_001, 1_001 + LENGTH)]
    [first] = RowStep.of(model).walk(x[0, :1].numpy(), meta[0].numpy())
    assert (first.position, first.end) == (1, 1)
    assert list(RowStep.of(model).walk(x[0, :0].numpy(), meta[0].numpy())) == []


@pytest.mark.parametrize("head", ["moms", "independent"])
def test_logits_of_any_size_are_a_distribution(head: str) -> None:
    model = windowed_model(return_head=head)
    x, meta = events(model, 1, 3)
    expected = answers(model, x, meta)
    with torch.no_grad():
        model.heads.projection.bias.add_(3_000)
    memories = walk(RowStep.of(model), None, x[0].numpy(), meta[0].numpy())
    np.testing.assert_allclose([each.probs for each in memories], expected, atol=1e-3)


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, 22, 40])
@pytest.mark.parametrize(("first", "most_rows"), [(0, 64), (10_000_000, 64), (0, 5)])
def test_a_window_begins_what_rows_go_on_with(
    length: int, first: int, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receptive field is 22 rows: with fewer the network itself sees a beginning."""
    monkeypatch.setattr(row_step, "MOST_ROWS", most_rows)
    model = windowed_model()
    x, meta = events(model, 1, LENGTH)
    rows, asset = x[0].numpy(), meta[0].numpy()
    expected, step = answers(model, x, meta), RowStep.of(model)
    memory = step.begin(rows[:length], asset, first)
    np.testing.assert_allclose(memory.probs, expected[length - 1], atol=1e-6, rtol=0)
    later = walk(step, memory, rows[length:], asset)
    np.testing.assert_allclose([each.probs for each in later], expected[length:], atol=1e-5, rtol=0)
    assert later[-1].position == first + LENGTH


def test_the_error_function_of_many_values() -> None:
    x = np.append(np.linspace(-6, 6, 1201, dtype=np.float32), np.float32([-1e15, 1e15]))
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(erf(x), [math.erf(each) for each in x], atol=2e-7)


def test_a_window_of_a_receptive_field_is_enough() -> None:
    model = windowed_model()
    x, meta = events(model, 1, LENGTH)
    rows, asset = x[0].numpy(), meta[0].numpy()
    expected, step = answers(model, x, meta), RowStep.of(model)
    memory = step.begin(rows[10 : 10 + model.config.receptive_field], asset)
    later = walk(step, memory, rows[10 + model.config.receptive_field :], asset)
    np.testing.assert_allclose(
        [each.probs for each in later], expected[10 + model.config.receptive_field :], atol=1e-6
    )


def test_the_last_row_may_come_again_in_another_form() -> None:
    """Whoever went on from the first form is told; the rows before it, and what follows the second,
    are right.
    """
    model = windowed_model()
    x, meta = events(model, 1, LENGTH)
    other, _ = events(model, 1, LENGTH, seed=1)
    rows, asset, step = x[0].numpy(), meta[0].numpy(), RowStep.of(model)
    expected, memory, shared = answers(model, x, meta), None, 0
    for number, (row, another) in enumerate(zip(rows, other[0].numpy(), strict=True)):
        [left] = step.step(memory, another[None], asset)
        [farther] = step.step(left, another[None], asset)
        [right] = step.step(memory, row[None], asset)
        assert right.intact
        for abandoned in (left, farther):
            assert abandoned.intact == (abandoned.buffer is not right.buffer)
        assert memory is None or memory.intact
        assert np.abs(left.probs - right.probs).max() > 1e-5
        np.testing.assert_allclose(right.probs, expected[number], atol=1e-6)
        shared += left.buffer is right.buffer
        memory = right
    assert shared > LENGTH - 10


def test_rows_of_several_assets_are_those_of_each_alone() -> None:
    """However many rows each has had and gets."""
    model = windowed_model()
    x, meta = events(model, 4, LENGTH)
    rows, assets, step = x.numpy(), meta.numpy(), RowStep.of(model)
    expected = [answers(model, x[[one]], meta[[one]]) for one in range(4)]
    memories: list[RowMemory | None] = [
        None,
        *(step.begin(rows[one, :at], assets[one]) for one, at in ((1, 5), (2, 22))),
    ]
    memories.append(walk(step, None, rows[3, :50], assets[3])[-1])
    for sizes in ((1, 3, 2, 1), (4, 1, 1, 2)):
        at = [each.position if each else 0 for each in memories]
        more = [
            (memories[one], rows[one, at[one] : at[one] + sizes[one]], assets[one])
            for one in range(4)
        ]
        made = step.step_all(more)
        for one, after in enumerate(made):
            assert len(after) == sizes[one]
            known = expected[one][at[one] : at[one] + sizes[one]]
            np.testing.assert_allclose([each.probs for each in after], known, atol=1e-6, rtol=0)
        memories = [after[-1] for after in made]
