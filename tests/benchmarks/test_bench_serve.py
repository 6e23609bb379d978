"""The serving benchmark runs on small sizes, and its equality check can fail."""

from __future__ import annotations

import socket

import pytest

from benchmarks import serve
from benchmarks.load import post, run_load
from vaiom.errors import VaiomError
from vaiom.model.config import ModelConfig
from vaiom.simulation.market import MarketConfig

PLAIN = ModelConfig(width=16, num_heads=2, num_layers=1, context=32)
MODEL = ModelConfig(
    width=16, num_heads=2, num_layers=1, context=32, positions="rotary", attention_window=8
)


def test_both_servers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "CLIENTS", 2)
    monkeypatch.setattr(serve, "MARKET", MarketConfig(assets=1, bars=20_000))
    measured = serve.measure(MODEL, PLAIN, rounds=1, seconds=0.5, alone=8)
    assert measured.ratio == pytest.approx(measured.reference_seconds / measured.ours_seconds)
    for name in ("push", "posted", "posted_again"):
        assert 0 < measured.extra[f"{name}_p50_ms"] <= measured.extra[f"{name}_p99_ms"]


def test_a_server_that_does_not_answer_is_noticed() -> None:
    # Held and never listened on: whoever connects is turned away.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="Connect"):
            run_load(held.getsockname()[1], [iter([post("/", b"{}")])], 1.0)


def test_another_answer_is_noticed() -> None:
    with pytest.raises(VaiomError, match="differ"):
        serve.require_equal([[0.5, 0.5]], [[0.4, 0.6]])
