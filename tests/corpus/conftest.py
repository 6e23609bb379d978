"""Bars of a small market and the corpus built of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from corpus.corpora import CONFIG, ROWS
from strategies import random_bars
from vaiom.corpus.build import build_corpus
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.market.folder import write_symbol


@pytest.fixture(scope="package")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bars")
    for seed, (symbol, rows) in enumerate(ROWS.items()):
        wider = random_bars(rows, seed).with_columns(pl.col("High") * 1.001, pl.col("Low") * 0.999)
        write_symbol(folder, symbol, wider)
    return folder


@pytest.fixture(scope="package")
def built(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpora") / "corpus"
    build_corpus(bars, path, CONFIG)
    return path


@pytest.fixture(scope="package")
def corpus(built: Path) -> Corpus:
    return open_corpus(built)


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """The corpus folder, to be changed."""
    return Path(shutil.copytree(built, tmp_path / "corpus"))
