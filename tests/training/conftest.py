"""A small corpus of a random walk, made once; one thread, so that sums keep their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import SPLITS

from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus
from vaiom.market.folder import write_symbol


@pytest.fixture(scope="package")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bars")
    for seed, symbol in enumerate(("EURUSD", "XAUUSD")):
        write_symbol(folder, symbol, random_bars(1_700, seed))
    return folder


@pytest.fixture(scope="package")
def corpus(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return build_corpus(
        bars, tmp_path_factory.mktemp("corpora") / "corpus", CorpusConfig(splits=SPLITS)
    )
