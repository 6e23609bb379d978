"""The return distribution against the explicit mixture, and each switch of the heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from small_models import CHOICES, events, tiny_model

from reference.losses_loop import mixture
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import INPUT_LIMIT

finite = st.floats(-60, 60, width=32)


@given(data=st.data(), states=st.sampled_from([1, 4, 8, 16]))
def test_moms_equals_the_explicit_mixture(data: st.DataObject, states: int) -> None:
    state = data.draw(st_numpy.arrays(np.float32, states, elements=finite))
    components = data.draw(st_numpy.arrays(np.float32, (states, 16), elements=finite))
    logits = {
        "state": torch.from_numpy(state)[None],
        "return": torch.from_numpy(components).reshape(1, -1),
    }
    probs = return_log_probs(logits)[0].double().exp().numpy()
    np.testing.assert_allclose(probs, mixture(state.tolist(), components.tolist()), atol=1e-6)
    assert probs.sum() == pytest.approx(1.0, abs=1e-5)


def test_the_logarithm_stays_finite_where_the_mixture_underflows() -> None:
    logits = {"state": torch.zeros(1, 4), "return": torch.zeros(1, 64)}
    logits["return"][0, ::16] = 300.0  # bucket 1 takes everything, in every state
    log_probs = return_log_probs(logits)[0]
    assert log_probs[0].item() == pytest.approx(0.0, abs=1e-6)
    assert log_probs[1:].tolist() == pytest.approx([-300.0] * 15)


@pytest.mark.parametrize("head", ["moms", "independent"])
def test_a_model_gives_distributions(head: str) -> None:
    model = tiny_model(return_head=head).eval()
    log_probs = model.log_probs(*events(model, 5, 9))
    assert log_probs.shape == (5, 16)
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(5))


def test_logits_are_fp32_under_autocast() -> None:
    model = tiny_model()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(*events(model, 1, 3))
    assert {values.dtype for values in logits.values()} == {torch.float32}


def test_hybrid_encoder_is_the_concatenation_of_the_paper() -> None:
    model = tiny_model(input="hybrid")
    encoder: Any = model.encoder
    x, meta = events(model, 3, 5)
    continuous = torch.nn.functional.gelu(encoder.continuous(x.clamp(-32, 32)))
    embedded = torch.cat(
        [table(meta[:, i]) for i, table in enumerate(encoder.embeddings.values())], dim=-1
    )
    joined = torch.cat([continuous, embedded[:, None].expand(-1, 5, -1)], dim=-1)
    expected = encoder.second(torch.nn.functional.gelu(encoder.first(joined)))
    torch.testing.assert_close(encoder(x, meta), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("input_", ["cont", "hybrid"])
def test_inputs_are_clipped_on_entry(input_: str) -> None:
    model = tiny_model(input=input_).eval()
    x, meta = events(model, 1, 4)
    far = x.clone()
    limit = x.clone()
    far[0, 1, 0], limit[0, 1, 0] = float("inf"), INPUT_LIMIT
    assert torch.equal(model(far, meta)["return"], model(limit, meta)["return"])


@pytest.mark.parametrize("input_", CHOICES["input"])
def test_metadata_matters_where_the_branch_has_it(input_: str) -> None:
    model = tiny_model(input=input_).eval()
    x, meta = events(model, 1, 4)
    same = torch.equal(model(x, meta)["return"], model(x, meta + torch.tensor([1, 0, 0]))["return"])
    assert same == (input_ != "hybrid")  # DiscIn reads it among its fields, ContIn not at all
