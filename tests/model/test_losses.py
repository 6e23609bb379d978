"""The objective against loops: global means, masks, skipped terms, scopes, micro-batches that run
together.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import events, random_targets, tiny_model
from torch import Tensor

from reference.losses_loop import micro_batch_loss
from vaiom.model.config import AUXILIARIES
from vaiom.model.heads import class_ids, objective, return_log_probs

WEIGHTS = {"gap": 0.1, "vol_regime": 0.3, "ordinal": 0.7}


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: values.detach().numpy() for name, values in tensors.items()}


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1_000),
    head=st.sampled_from(["moms", "independent"]),
    auxiliaries=st.sets(st.sampled_from(AUXILIARIES)),
    invalid=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_one_micro_batch_equals_the_loops(
    seed: int, head: str, auxiliaries: set[str], invalid: float
) -> None:
    model = tiny_model(seed, return_head=head, auxiliaries=tuple(sorted(auxiliaries)))
    logits = model(*events(model, 3, 6, seed))
    targets = random_targets(3, 6, seed, invalid)
    targets["return"][:, -1] = 7  # the sampler promises a valid endpoint
    total, terms = objective(logits, targets, WEIGHTS)
    expected, means = micro_batch_loss(arrays(logits), arrays(targets), WEIGHTS)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert set(terms) == {"return", *auxiliaries}
    for task, term in terms.items():
        assert term.item() == pytest.approx(means.get(task, 0.0), rel=1e-5)


@pytest.mark.parametrize("empty", ["gap", "vol_regime"])
def test_an_empty_auxiliary_is_left_out_of_its_micro_batch_alone(empty: str) -> None:
    model = tiny_model()
    logits = model(*events(model, 4, 5))
    targets = random_targets(4, 5, invalid=0.0)
    targets[empty][:2] = 0
    total, _ = objective(logits, targets, WEIGHTS, num_groups=2)
    halves = [
        micro_batch_loss(
            {name: values[part] for name, values in arrays(logits).items()},
            {name: values[part] for name, values in arrays(targets).items()},
            WEIGHTS,
        )
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert empty not in halves[0][1]
    assert total.item() == pytest.approx((halves[0][0] + halves[1][0]) / 2, rel=1e-5)
    total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_micro_batches_that_run_together_equal_accumulated_ones() -> None:
    model = tiny_model(dropout=0.0)
    x, meta = events(model, 12, 6)
    targets = random_targets(12, 6)
    targets["return"][:, -1] = 3
    objective(model(x, meta), targets, WEIGHTS, num_groups=4)[0].backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for part in torch.arange(12).split(3):
        own = {name: values[part] for name, values in targets.items()}
        (objective(model(x[part], meta[part]), own, WEIGHTS)[0] / 4).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, together[name], atol=1e-6, rtol=1e-4, msg=name)
    # One mean over all windows would be another gradient: the masks differ between micro-batches.
    model.zero_grad()
    objective(model(x, meta), targets, WEIGHTS, num_groups=1)[0].backward()
    bias = model.heads.projection.bias
    assert bias.grad is not None
    assert (bias.grad - together["heads.projection.bias"]).abs().max() > 1e-4


def test_the_last_position_scope_is_the_mean_over_windows() -> None:
    model = tiny_model().eval()
    x, meta = events(model, 5, 6)
    targets = random_targets(5, 6)
    targets["return"][:, -1] = torch.tensor([1, 16, 8, 4, 11], dtype=torch.uint8)
    last = {name: values[:, -1:] for name, values in targets.items()}
    total, _ = objective(model(x, meta, last_only=True), last, WEIGHTS)
    full = {name: values[:, -1:] for name, values in arrays(model(x, meta)).items()}
    assert total.item() == pytest.approx(micro_batch_loss(full, arrays(last), WEIGHTS)[0], rel=1e-5)


def test_class_ids_shift_by_one_and_never_below_zero() -> None:
    assert class_ids(torch.tensor([0, 1, 16], dtype=torch.uint8)).tolist() == [0, 0, 15]


def test_a_teacher_has_its_share_of_the_return_loss() -> None:
    model = tiny_model()
    logits = model(*events(model, 4, 5))
    targets = random_targets(4, 5)
    valid = targets["return"] > 0
    teacher = torch.rand(4, 5, 16).softmax(dim=-1)
    alone, terms = objective(logits, targets, WEIGHTS, 2)
    soft = -(teacher * return_log_probs(logits)).sum(dim=-1)
    means = [soft[half][valid[half]].mean() for half in (slice(0, 2), slice(2, 4))]
    taught, same = objective(logits, targets, WEIGHTS, 2, teacher, 0.4)
    expected = alone + 0.4 * (sum(means) / 2 - terms["return"])
    torch.testing.assert_close(taught, expected)
    assert same["return"].item() == terms["return"].item()
    assert objective(logits, targets, WEIGHTS, 2, teacher)[0].item() == alone.item()
