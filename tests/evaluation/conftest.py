"""The default simulated market, its corpus and its oracle, made once."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_market import Market

from vaiom.evaluation.likelihood import asset_months
from vaiom.evaluation.oracle import Oracle
from vaiom.events.build import build_corpus
from vaiom.market.synthetic import MarketConfig, simulate, write_market

SCORED = ("validation", "test-h1", "test-h2")


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Market:
    folder = tmp_path_factory.mktemp("market")
    config = MarketConfig()
    write_market(simulate(config), config, folder / "bars")
    corpus = build_corpus(folder / "bars", folder / "corpus")
    oracle = Oracle.beside(folder / "bars")
    rows = np.concatenate([corpus.endpoints(split) for split in SCORED])
    return Market(
        bars=folder / "bars",
        corpus=corpus,
        oracle=oracle,
        train=corpus.endpoints("train"),
        rows=rows,
        buckets=corpus.target_return[rows],
        clusters=asset_months(corpus, rows),
        probs=oracle.predict_proba(corpus, rows),
    )
