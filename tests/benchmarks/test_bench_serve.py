"""The serving benchmark runs on small sizes with both kinds of client, and its equality check can fail."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from benchmarks import serve
from vaiom.errors import VaiomError
from vaiom.model.config import ModelConfig

MODEL = ModelConfig(width=16, num_heads=2, num_layers=1, context=32)


def test_both_servers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PUSHED_BARS", 10)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "wrk" else which(name))
    measured = serve.measure(MODEL, rounds=1, seconds=0.5)
    assert measured.ratio == pytest.approx(measured.reference_seconds / measured.ours_seconds)
    assert measured.extra["client"] == "threads"
    assert 0 < measured.extra["p50_ms"] <= measured.extra["p99_ms"]
    assert measured.extra["push_bar_ms"] > 0


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_wrk_notices_failures(tmp_path: Path) -> None:
    from benchmarks.load import run_load

    # Held and never listened on: whoever connects is turned away.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(VaiomError):
            run_load(held.getsockname()[1], "/", [b"{}"], 1, 1.0)


def test_another_answer_is_noticed() -> None:
    with pytest.raises(VaiomError, match="differ"):
        serve.require_equal([[0.5, 0.5]], [[0.4, 0.6]])
