"""The command line as a user has it, run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaiom.simulation.market import MarketConfig, write_market


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hourly bars of two assets that reach from before the end of Train to the seal."""
    folder = tmp_path_factory.mktemp("market") / "bars"
    config = MarketConfig(assets=2, bars=14_000)
    write_market(config, folder)
    return folder


@pytest.fixture(scope="session")
def corpus(market: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vaiom.corpus.build import build_corpus

    folder = tmp_path_factory.mktemp("corpora") / "corpus"
    build_corpus(market, folder)
    return folder
