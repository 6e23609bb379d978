"""Exact parameter counts of the family."""

from __future__ import annotations

import pytest
from small_models import VOCABULARY, tiny_model

from vaiom.model.config import PAPER_VOCABULARY, RUNGS, ModelConfig
from vaiom.model.vaiom import count_parameters


@pytest.mark.parametrize(
    ("input_", "rung", "count"),
    [
        ("hybrid", "0.9M", 911_582),
        ("cont", "0.9M", 891_878),
        ("cont", "5M", 4_968_806),
        ("cont", "15M", 14_590_182),
        ("disc", "0.9M", 909_494),
        ("disc", "5M", 5_039_280),
        ("disc", "15M", 14_741_632),
    ],
)
def test_counts_of_the_specification(input_: str, rung: str, count: int) -> None:
    assert count_parameters(ModelConfig(input=input_, **RUNGS[rung]), PAPER_VOCABULARY) == count


def test_independent_head() -> None:
    assert count_parameters(ModelConfig(input="cont", return_head="independent"), PAPER_VOCABULARY) == 885_170


def test_the_gap_head_follows_the_corpus() -> None:
    assert count_parameters(ModelConfig(), {**PAPER_VOCABULARY, "gap_bucket": 17}) == 911_840


@pytest.mark.parametrize("states", [4, 8, 16])
@pytest.mark.parametrize("context", [512, 1024])
def test_states_and_context_add_exactly_their_own_weights(states: int, context: int) -> None:
    config = ModelConfig(num_states=states, context=context)
    added = (states - 4) * 17 * (config.width + 1) + (context - 512) * config.width
    assert count_parameters(config, PAPER_VOCABULARY) == 911_582 + added


def test_counting_agrees_with_a_model_that_is_there() -> None:
    model = tiny_model()
    assert sum(p.numel() for p in model.parameters()) == count_parameters(model.config, VOCABULARY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "tokens"}, "disc, cont, hybrid"),
        ({"return_head": "softmax"}, "moms, independent"),
        ({"auxiliaries": ("gap", "volume")}, "gap, vol_regime, ordinal"),
        ({"auxiliaries": ("gap", "gap")}, "repeat"),
        ({"num_heads": 3}, "multiple"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
        ({"num_states": 0}, "num_states"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**change)  # type: ignore[arg-type]
