"""The default simulated market with its oracle, and tiny trained runs; made once."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_market import Market, TinyRuns, tiny_corpus

from training.tiny_runs import TINY
from vaiom.corpus.build import build_corpus
from vaiom.evaluation.inference import asset_months
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.simulation.oracle import Oracle
from vaiom.training.loop import train

SCORED = ("validation", "test-h1", "test-h2")


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Market:
    folder = tmp_path_factory.mktemp("market")
    config = MarketConfig()
    write_market(config, folder / "bars")
    corpus = build_corpus(folder / "bars", folder / "corpus")
    oracle = Oracle.load(folder / "bars")
    rows = np.concatenate([corpus.endpoints(split) for split in SCORED])
    return Market(
        bars=folder / "bars",
        corpus=corpus,
        oracle=oracle,
        train=corpus.endpoints("train"),
        rows=rows,
        buckets=corpus.target_return[rows],
        clusters=asset_months(corpus.meta[rows, 0], corpus.target_timestamps[rows]),
        probs=oracle.predict_proba(corpus, rows),
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRuns:
    """Two seeds of a tiny model on a random walk with two test splits and a sealed one."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = tiny_corpus(folder)
    runs = [folder / "seed17", folder / "seed29"]
    for seed, run in zip((17, 29), runs, strict=True):
        train(corpus, TINY.with_changes(seed=seed, steps=4, num_layers=1), run, device="cpu")
    assert corpus.path is not None
    return TinyRuns(bars=folder / "bars", corpus=corpus.path, runs=runs)
