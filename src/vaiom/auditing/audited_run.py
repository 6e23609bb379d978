"""A run under examination: its model, its corpus, and what several proofs ask of both.

A run folder and a corpus enter. Roundings and fits of baselines are made once and kept.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vaiom.auditing.proof import AuditConfig
from vaiom.auditing.rounding import (
    MEASURED_EVENTS,
    MEASURED_TOGETHER,
    Rounding,
    measure_rounding,
)
from vaiom.baselines.base import BASELINES, FOR_GPUS, Baseline, Floats, Rows, baseline
from vaiom.baselines.stored_losses import find_fit
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import ModelPredictor, seen_by
from vaiom.files import read_json
from vaiom.model.horizon_heads import HorizonHeads
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run
from vaiom.training.windows import DeviceCorpus, Scorer

SAMPLED = 4_096
"""Events of a split that are scored again where each needs a window of its own."""


class AuditedRun:
    """A run with its model and the corpus under its splits."""

    def __init__(self, folder: Path, corpus: Corpus, config: AuditConfig) -> None:
        self.files = Run(folder)
        self.config = config
        self.model = ModelPredictor.load(self.files.best, "cpu")
        self.checkpoint = self.model.checkpoint
        self.history = self.checkpoint.config.history
        self.corpus = seen_by(self.checkpoint, corpus)
        self.scores_together = bool(self.checkpoint.config.attention_window)
        """Whether a pass computes successive events together, so that all of them are cheap."""
        self.rounding = cache(self._measure)
        self.rounding_ahead = cache(self._measure_ahead)
        self.fitted = cache(self._fit)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluation files by split, as they are stored."""
        splits = self.files.evaluated_splits()
        return {split: read_json(self.files.evaluation(split)) for split in splits}

    def draw(self, rows: Rows, *, at_least: int = 0) -> Rows:
        """The places of the events among these rows that are scored again, drawn by the seed.

        All of them if a pass computes successive events together, otherwise `SAMPLED`, unless the
        user set another number; never fewer than `at_least`.
        """
        limit = self.config.rescore
        if limit is None:
            limit = len(rows) if self.scores_together else SAMPLED
        limit = max(limit, at_least)
        if len(rows) <= limit:
            return np.arange(len(rows))
        rng = np.random.default_rng(self.config.seed)
        return np.sort(rng.choice(len(rows), limit, replace=False))

    def _fit(self, name: str, folder: Path | None) -> Baseline | None:
        """A baseline fitted again on Train, or else its stored fit, if there is one."""
        if name in self.config.baselines:
            return baseline(name).fit(self.corpus, self.corpus.endpoints(TRAIN, self.history))
        # A GPU may have rounded the others otherwise.
        exact = name in BASELINES and name not in FOR_GPUS
        return find_fit(name, self.corpus, self.history, folder) if exact else None

    def _measured_rows(self, corpus: Corpus, split: str) -> npt.NDArray[np.int64]:
        """Some events of a split, successive ones where a pass computes them together."""
        rows = corpus.endpoints(split, self.history, unseal=True).astype(np.int64)
        rng = np.random.default_rng(self.config.seed)
        if self.scores_together:
            start = int(rng.integers(max(1, len(rows) - MEASURED_TOGETHER)))
            return rows[start : start + MEASURED_TOGETHER]
        size = min(MEASURED_EVENTS, len(rows))
        return np.sort(rng.choice(rows, size, replace=False))

    def _measure(self, split: str, precision: str | None) -> Rounding:
        """How far rounding moves forecasts of the next bar, scored in this precision."""
        rows = self._measured_rows(self.corpus, split)
        data = DeviceCorpus(self.corpus, self.checkpoint.config, torch.device("cpu"))

        def answer(network: Vaiom, dtype: torch.dtype) -> Floats:
            return Scorer(network, data, dtype).predict(rows).numpy().astype(np.float64)

        return self._rounding_of(answer, self.corpus, rows, precision or "float16")

    def _measure_ahead(self, split: str, heads: HorizonHeads, view: Corpus) -> Rounding:
        """The same for forecasts of several bars; their heads read hidden states in FP32."""
        rows = self._measured_rows(view, split)
        data = DeviceCorpus(view, self.checkpoint.config, torch.device("cpu"))
        inputs = view.inputs(self.checkpoint.config)[rows]

        def answer(network: Vaiom, dtype: torch.dtype) -> Floats:
            hidden = Scorer(network, data, dtype, hidden=True).predict(rows).numpy()
            return np.log(heads.probs(hidden, inputs, view.horizon))

        return self._rounding_of(answer, view, rows, "float32")

    def _rounding_of(self, answer: Any, corpus: Corpus, rows: Rows, precision: str) -> Rounding:
        network = self.checkpoint.model
        buckets = corpus.target_return[rows]
        return measure_rounding(network, answer, buckets, precision, self.config.seed)
