"""Tiny runs that were trained and judged once for all tests of this folder."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime

import pytest
from judged_runs import BASELINES, CONTEXT, Judged, few_trees

from evaluation.simulated_market import tiny_corpus
from training.tiny_runs import TINY
from vaiom.corpus.splits import SplitConfig
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import score_baselines
from vaiom.training.loop import train

SPLITS = ("validation", "test-h1", "test-h2")
ONE_MONTH = SplitConfig(
    train_end=datetime(2023, 12, 10),
    validation=(datetime(2023, 12, 20), datetime(2024, 1, 1)),
    tests=((datetime(2024, 1, 1), datetime(2024, 1, 20)),),
    seal=datetime(2024, 1, 20),
)


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Two assets, three splits, all kinds of baselines, and another seed beside the run on
    Validation.
    """
    folder = tmp_path_factory.mktemp("judged")
    corpus = tiny_corpus(folder)
    run, other, stored = folder / "run", folder / "other", folder / "baselines"
    for seed, place in ((17, run), (29, other)):
        train(corpus, TINY.with_changes(seed=seed, steps=8, num_layers=1), place, device="cpu")
    evaluations = {}
    for split in SPLITS:
        score_baselines(
            corpus,
            BASELINES,
            stored,
            split,
            CONTEXT,
            lambda _: nullcontext(lambda *_: None),
            few_trees,
        )
        seeds = []
        if split == "validation":
            evaluate_run(other, corpus, split, baselines=stored, device="cpu")
            seeds = [other]
        evaluations[split] = evaluate_run(
            run, corpus, split, baselines=stored, other_seeds=seeds, device="cpu"
        )
    assert corpus.path is not None
    return Judged(corpus.path, run, evaluations)


@pytest.fixture(scope="session")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """One asset, a test of one month, the two plain baselines."""
    folder = tmp_path_factory.mktemp("lonely")
    corpus = tiny_corpus(folder, ("EURUSD",), ONE_MONTH)
    run = folder / "run"
    train(corpus, TINY.with_changes(steps=4, num_layers=1), run, device="cpu")
    evaluation = evaluate_run(run, corpus, "test-h1", device="cpu")
    assert corpus.path is not None
    return Judged(corpus.path, run, {"test-h1": evaluation})
