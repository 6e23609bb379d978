"""The forecasting benchmark runs on small sizes, and its equality check can fail."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import predict
from vaiom.errors import VaiomError
from vaiom.model.config import ModelConfig

MODEL = ModelConfig(width=16, num_heads=2, num_layers=1, context=32)


def test_all_ways_are_measured() -> None:
    measured = predict.measure(MODEL, repeats=2)
    assert measured.ratio == pytest.approx(measured.reference_seconds / measured.ours_seconds)
    assert measured.extra["ratio_torch_2"] > 0
    assert measured.extra["p99_ms_plain"] > 0
    assert measured.extra["push_ms"] > 0


def test_another_answer_is_noticed() -> None:
    even = np.full(16, 1 / 16)
    with pytest.raises(VaiomError, match="differ"):
        predict.require_equal({"plain": even, "torch_1": even + 1e-4})
