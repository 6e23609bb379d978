"""Other boundaries over stored rows give the corpus that a build with those boundaries would have
given.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus, corpus_in_memory
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.market.folder import write_symbol

BEFORE = SplitConfig(
    train_end=datetime(2023, 12, 10),
    validation=(datetime(2023, 12, 20), datetime(2024, 1, 10)),
    tests=((datetime(2024, 1, 10), datetime(2024, 1, 20)),),
    seal=datetime(2024, 2, 3),
)
AFTER = SplitConfig(
    train_end=datetime(2023, 11, 25),
    validation=(datetime(2023, 12, 1), datetime(2023, 12, 15)),
    tests=((datetime(2023, 12, 15), datetime(2024, 1, 2)),),
    seal=datetime(2024, 1, 2),
)


def require_same(moved: Corpus, built: Corpus, rounding: float) -> None:
    assert moved.splits == built.splits
    for name, edges in moved.edges.items():
        assert_allclose(edges, built.edges[name], rtol=1e-6, atol=1e-7)
    assert_array_equal(moved.edges["return"], built.edges["return"])
    assert_array_equal(moved.target_return, built.target_return)
    assert moved.tokenizer.zero_share == built.tokenizer.zero_share
    for split in built.splits.names:
        rows = moved.endpoints(split, 16, unseal=True)
        assert_array_equal(rows, built.endpoints(split, 16, unseal=True))
    for name in ("gap_bucket", "vol_regime"):
        other = np.mean(moved.columns[name] != built.columns[name])
        assert other <= rounding, name


def test_on_bars_with_holes(tmp_path: Path) -> None:
    for seed, symbol in enumerate(("EURUSD", "XAUUSD")):
        write_symbol(tmp_path / "bars", symbol, random_bars(2_400, seed))
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=BEFORE))
    moved = corpus.with_splits(AFTER)
    require_same(
        moved, corpus_in_memory(tmp_path / "bars", CorpusConfig(splits=AFTER)), rounding=0.001
    )
    assert moved.sha256 != corpus.sha256
    assert moved.tokenizer.sha256 != corpus.tokenizer.sha256
    # Nothing was written, and the corpus itself did not move.
    assert moved.path is None
    assert_array_equal(corpus.with_splits(BEFORE).target_return, corpus.target_return)


def test_on_real_bars(shared_data: Path, tmp_path: Path) -> None:
    bars = tmp_path / "bars"
    bars.mkdir()
    for symbol in ("EURJPY", "XAUUSD"):
        (bars / f"{symbol}.parquet").symlink_to(shared_data / "bars_1h" / f"{symbol}.parquet")
    corpus = build_corpus(bars, tmp_path / "corpus")
    earlier = corpus.splits.shifted_to(datetime(2017, 1, 1))
    require_same(
        corpus.with_splits(earlier),
        corpus_in_memory(bars, CorpusConfig(splits=earlier)),
        rounding=1e-4,
    )


def test_later_rows_do_not_enter_the_fit(tmp_path: Path) -> None:
    bars = random_bars(2_400, 3)
    moved = []
    for name, frame in (("whole", bars), ("cut", bars.head(1_600))):
        write_symbol(tmp_path / name, "EURUSD", frame)
        config = CorpusConfig(splits=BEFORE)
        corpus = build_corpus(tmp_path / name, tmp_path / f"{name}-corpus", config)
        moved.append(corpus.with_splits(AFTER))
    whole, cut = moved
    assert whole.tokenizer.sha256 == cut.tokenizer.sha256
    assert len(whole) > len(cut)
