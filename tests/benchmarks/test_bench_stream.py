"""The benchmark of live bars runs on a small model and market, and its equality check can fail."""

from __future__ import annotations

import pytest

from benchmarks import stream
from vaiom.errors import VaiomError
from vaiom.experiments.registry import experiment
from vaiom.features.fields import CROSS_FIELDS
from vaiom.model.config import ModelConfig
from vaiom.simulation.market import MarketConfig

MODEL = ModelConfig(
    width=16,
    num_heads=2,
    num_layers=2,
    context=32,
    positions="rotary",
    attention_window=8,
    fields=("ret_z", *CROSS_FIELDS),
)
MARKET = MarketConfig(assets=2, bars=20_000)


def test_both_ways_are_measured_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = stream.measure(MODEL, MARKET, pushed=20, scored=8)
    assert measured.ratio == pytest.approx(measured.reference_seconds / measured.ours_seconds)
    assert 0 < measured.extra["live_p50_ms"] <= measured.extra["live_p99_ms"]
    assert measured.extra["score_ratio"] > 0
    monkeypatch.setattr(stream, "TOLERANCE", -1.0)
    with pytest.raises(VaiomError, match="differs from the window"):
        stream.measure(MODEL, MARKET, pushed=2, scored=2)


def test_the_model_measured_is_one_that_streams() -> None:
    config = experiment("best").model
    assert config.attention_window
    assert config.receptive_field <= config.context
    assert "cross_abs" in config.fields
