"""The training benchmark runs on small sizes, and its equality check can fail."""

from __future__ import annotations

import pytest
import torch

from benchmarks import train
from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus
from vaiom.errors import VaiomError
from vaiom.market.folder import write_symbol
from vaiom.model.config import ModelConfig
from vaiom.training.experiment import TrainConfig

MODEL = ModelConfig(width=16, num_heads=2, num_layers=2, context=32)
TRAIN = TrainConfig(micro_batch=4, num_micro_batches=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("bench")
    write_symbol(folder / "bars", "EURUSD", random_bars(1200))
    return build_corpus(folder / "bars", folder / "corpus", CorpusConfig())


def test_both_sides_are_measured(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    measured = train.measure(corpus, "a random walk", MODEL, TRAIN, repeats=1)
    assert measured.ours_seconds > 0
    assert measured.ratio == pytest.approx(measured.reference_seconds / measured.ours_seconds)
    assert measured.extra["flop_floor_ms"] > 0


def test_the_plain_model_has_the_products_loss(corpus: Corpus) -> None:
    assert "nats" in train.require_equal(corpus, MODEL, TRAIN, CPU, torch.float32)


def test_another_loss_is_noticed(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.train_plain.WEIGHT", 0.2)
    with pytest.raises(VaiomError, match="the losses differ"):
        train.require_equal(corpus, MODEL, TRAIN, CPU, torch.float32)
