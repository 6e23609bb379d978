"""The scoring benchmark runs on small sizes, and notices another answer."""

from __future__ import annotations

import pytest
import torch

from benchmarks import evaluate
from vaiom.errors import VaiomError
from vaiom.model.config import ModelConfig

MODEL = ModelConfig(width=16, num_heads=2, num_layers=2, context=32)


def test_both_ways_are_measured() -> None:
    measured = evaluate.measure(MODEL, windows=70, repeats=1)
    assert measured.ratio == pytest.approx(measured.reference_seconds / measured.ours_seconds)
    assert measured.input.startswith("70 windows")


def test_another_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        evaluate, "return_log_probs", lambda logits: torch.zeros(len(logits["return"]), 32, 16)
    )
    with pytest.raises(VaiomError, match="differ"):
        evaluate.measure(MODEL, windows=70, repeats=1)
