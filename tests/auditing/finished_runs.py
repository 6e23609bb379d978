"""Fixtures of a tiny run that was trained and evaluated, for `tests/` and `verification/`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evaluation.simulated_market import tiny_corpus
from training.tiny_runs import TINY
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.report.page import write_report
from vaiom.training.loop import train


@contextmanager
def drawing_little() -> Iterator[None]:
    """Confidence sets and figures are made again by every audit; both take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 50)
        patch.setattr("vaiom.report.drawing.Drawing.to_svg", lambda drawing: "<svg></svg>")
        yield


@pytest.fixture(scope="module", autouse=True)
def little_drawing() -> Iterator[None]:
    """For files that import this alone: a worker goes on with others."""
    with drawing_little():
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
    with drawing_little():
        for split in ("validation", "test-h1", "test-h2"):
            evaluate_run(folder / "seed17", corpus, split, device="cpu")
    return folder


@pytest.fixture(scope="session")
def reported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with another seed beside it on Validation, and a page."""
    folder = tmp_path_factory.mktemp("reported") / "place"
    shutil.copytree(finished, folder)
    corpus = open_corpus(folder / "corpus")
    with drawing_little():
        evaluate_run(folder / "seed29", corpus, "validation", device="cpu")
        others = [folder / "seed29"]
        evaluate_run(folder / "seed17", corpus, "validation", device="cpu", other_seeds=others)
        write_report(folder / "seed17", corpus=folder / "corpus")
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(finished, tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def spoiled(reported: Path, tmp_path: Path) -> Path:
    """A copy of the reported run that a test may spoil."""
    shutil.copytree(reported, tmp_path / "spoiled")
    return tmp_path / "spoiled"
