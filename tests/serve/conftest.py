"""A tiny trained run, made once; one thread, because everything here is small."""

from __future__ import annotations

import polars as pl
import pytest
from serve_runs import CONTEXT, SYMBOLS, TinyRun, as_json

from strategies import random_bars
from training.tiny_runs import SPLITS, TINY
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.market.folder import write_symbol
from vaiom.training.loop import train

LATER = 120


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("serve")
    history, later = {}, {}
    for seed, symbol in enumerate(SYMBOLS):
        bars = random_bars(1_700, seed)
        bars = bars.with_columns(
            High=pl.max_horizontal("Open", "Close") * 1.0003,
            Low=pl.min_horizontal("Open", "Close") * 0.9997,
        )
        history[symbol], later[symbol] = bars[:-LATER], as_json(bars[-LATER:])
        write_symbol(folder / "bars", symbol, history[symbol])
    corpus = build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=SPLITS))
    train(corpus, TINY.with_changes(context=CONTEXT, steps=4), folder / "run", device="cpu")
    return TinyRun(bars=folder / "bars", run=folder / "run", later=later, history=history)
