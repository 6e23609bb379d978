"""What the tests of this folder share: a simulated market with everything that is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaiom.evaluation.oracle import Oracle
from vaiom.events.corpus import Corpus


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
