"""What the tests of this folder share: a simulated market with its oracle, and tiny runs on a
random walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.market.folder import write_symbol
from vaiom.simulation.oracle import Oracle

TINY_SPLITS = SplitConfig(
    train_end=datetime(2023, 12, 10),
    validation=(datetime(2023, 12, 20), datetime(2024, 1, 10)),
    tests=(
        (datetime(2024, 1, 10), datetime(2024, 1, 20)),
        (datetime(2024, 1, 20), datetime(2024, 2, 3)),
    ),
    seal=datetime(2024, 2, 3),
)


def tiny_corpus(
    folder: Path,
    symbols: Sequence[str] = ("EURUSD", "XAUUSD"),
    splits: SplitConfig = TINY_SPLITS,
    rows: int = 2_400,
) -> Corpus:
    """`bars` and `corpus` in a folder: a random walk of each asset."""
    for seed, symbol in enumerate(symbols):
        write_symbol(folder / "bars", symbol, random_bars(rows, seed))
    return build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=splits))


@dataclass(frozen=True, eq=False)
class Market:
    bars: Path
    corpus: Corpus
    oracle: Oracle
    train: np.ndarray
    rows: np.ndarray  # events outside Train
    buckets: np.ndarray
    clusters: np.ndarray
    probs: np.ndarray  # the oracle's, of `rows`


@dataclass(frozen=True, eq=False)
class TinyRuns:
    bars: Path
    corpus: Path
    runs: list[Path]  # seeds of one experiment


def randomised_pit(probs: np.ndarray, buckets: np.ndarray, seed: int) -> np.ndarray:
    """The PIT of forecasts that say nothing of the inside of a bucket: a uniform draw inside the
    outcome's share.
    """
    rows, ids = np.arange(len(probs)), buckets.astype(int) - 1
    below = np.cumsum(probs, axis=1)[rows, ids] - probs[rows, ids]
    return np.clip(below + np.random.default_rng(seed).random(len(probs)) * probs[rows, ids], 0, 1)
