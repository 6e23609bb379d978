"""A small model learns the simulated market: it closes most of the distance between Frequency and
the true law.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vaiom.baselines.counts import Frequency, Markov
from vaiom.corpus.build import build_corpus
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import losses_of
from vaiom.experiments.registry import experiment
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.simulation.oracle import Oracle
from vaiom.training.loop import train

LEAST_SHARE = 0.8


@pytest.fixture(autouse=True)
def all_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Corpus]:
    folder = tmp_path_factory.mktemp("market")
    config = MarketConfig()
    write_market(config, folder / "bars")
    return folder / "bars", build_corpus(folder / "bars", folder / "corpus")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [17, 29, 43])
def test_a_small_model_learns_the_market(
    market: tuple[Path, Corpus], tmp_path: Path, seed: int
) -> None:
    bars, corpus = market
    result = train(corpus, experiment("demo").with_changes(seed=seed), tmp_path / "run")
    model = ModelPredictor.load(tmp_path / "run" / "best.safetensors")
    history = model.checkpoint.config.history
    predictors = [Frequency(), Markov(), model, Oracle.load(bars)]
    losses = losses_of(predictors, corpus, corpus.endpoints(VALIDATION, history), history)
    bits = {name: float(each.mean()) for name, each in losses.items()}
    share = (bits["frequency"] - bits["model"]) / (bits["frequency"] - bits["oracle"])
    print(f"\nseed {seed}: share {share:.3f}, bits {bits}, {result.seconds:.0f} s")
    assert share >= LEAST_SHARE
    assert bits["oracle"] < bits["model"] < bits["markov"]
