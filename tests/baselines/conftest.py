"""A small simulated market and its corpus, made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vaiom.corpus.build import build_corpus
from vaiom.corpus.store import Corpus
from vaiom.simulation.market import MarketConfig, write_market

# Threads that spin while they wait make small fits many times slower where tests share the
# processors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baselines") / "bars"
    config = MarketConfig(assets=2, bars=16_000)
    write_market(config, folder)
    return folder


@pytest.fixture(scope="session")
def corpus(bars: Path) -> Corpus:
    return build_corpus(bars, bars.parent / "corpus")
