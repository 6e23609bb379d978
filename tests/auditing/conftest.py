"""Markets for the leaky pipelines, and a tiny run that was trained and evaluated; made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from auditing.markets import Market, real_market, simulated_market
from evaluation.simulated_market import tiny_corpus
from training.tiny_runs import TINY
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.training.loop import train


@pytest.fixture(scope="session")
def simulated() -> Market:
    return simulated_market()


@pytest.fixture(scope="session")
def real(shared_data: Path) -> Market:
    return real_market(shared_data / "bars_1h")


@contextmanager
def drawing_few_replicates() -> Iterator[None]:
    """Confidence sets are made again by every audit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 50)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_replicates() -> Iterator[None]:
    """For these files alone: a worker goes on with others."""
    with drawing_few_replicates():
        yield


@pytest.fixture(scope="session")
def finished(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bars`, `corpus`, two seeds `seed17` and `seed29`; the first is evaluated on Validation and
    both tests.
    """
    folder = tmp_path_factory.mktemp("finished")
    corpus = tiny_corpus(folder)
    for seed in (17, 29):
        experiment = TINY.with_changes(seed=seed, steps=8, num_layers=1, validate_every=4)
        train(corpus, experiment, folder / f"seed{seed}", device="cpu")
    with drawing_few_replicates():
        for split in ("validation", "test-h1", "test-h2"):
            evaluate_run(folder / "seed17", corpus, split, device="cpu")
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(finished, tmp_path / "place")
    return tmp_path / "place"
