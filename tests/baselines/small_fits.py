"""Every baseline as the registry makes it, but with few trees; a corpus with other columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from vaiom.baselines.base import Baseline, baseline
from vaiom.baselines.lightgbm import LightGBM, TreeConfig
from vaiom.corpus.store import Corpus

FEW_TREES = TreeConfig(rounds=15, learning_rate=0.1, min_child_samples=60)


def small(name: str, config: TreeConfig = FEW_TREES) -> Baseline:
    made = baseline(name)
    return LightGBM(name, config) if isinstance(made, LightGBM) else made


def with_columns(corpus: Corpus, **columns: np.ndarray) -> Corpus:
    """The corpus with some stored columns replaced."""
    changed: dict[str, Any] = {**corpus.columns, **columns}
    return dataclasses.replace(corpus, columns=changed)
