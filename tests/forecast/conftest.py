"""A tiny trained run on a random walk of two assets, made once; one thread, because everything here is small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from forecast_runs import CONTEXT, TinyRun

from strategies import random_bars
from training.tiny_runs import SPLITS, TINY
from vaiom.events.build import CorpusConfig, build_corpus
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import write_symbol
from vaiom.training.loop import train


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("forecast")
    for seed, symbol in enumerate(("EURUSD", "XAUUSD")):
        write_symbol(folder / "bars", symbol, random_bars(1_700, seed))
    corpus = build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=SPLITS))
    train(corpus, TINY.with_changes(context=CONTEXT, steps=6), folder / "run", device="cpu")
    return TinyRun(bars=folder / "bars", corpus=corpus, run=folder / "run")


@pytest.fixture(scope="package")
def forecaster(tiny: TinyRun) -> Forecaster:
    return Forecaster.load(tiny.run)
