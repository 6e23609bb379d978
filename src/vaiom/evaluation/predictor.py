"""A trained model as a predictor: the same contract as a baseline, so that both are scored by the same code.

Enters: a checkpoint file. Leaves: probabilities (n, 16) of the next return bucket for any events of a corpus whose
tokenizer is the model's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vaiom.baselines.base import Floats, Rows
from vaiom.evaluation.heldout import require_tokenizer
from vaiom.events.corpus import Corpus
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.training.precision import resolve_device, resolve_type
from vaiom.training.scoring import Progress, Scorer
from vaiom.training.windows import DeviceCorpus


class ModelPredictor:
    """A trained model as a predictor: `predict_proba` as a baseline has it."""

    name = "model"

    def __init__(self, checkpoint: Checkpoint, device: str = "auto", progress: Progress | None = None) -> None:
        self.checkpoint, self.progress = checkpoint, progress
        self.device = resolve_device(device)
        checkpoint.model.to(self.device)

    @classmethod
    def load(cls, path: Path, device: str = "auto", progress: Progress | None = None) -> ModelPredictor:
        """From a checkpoint file."""
        return cls(load_checkpoint(path), device, progress)

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """Probabilities (n, K) of the next return bucket of each row, from the window that ends there."""
        model = self.checkpoint.model
        require_tokenizer(corpus, self.checkpoint)
        data = DeviceCorpus(corpus, model.config, self.device)
        scorer = Scorer(model, data, self.device, resolve_type("auto", self.device))
        probs: Floats = scorer.log_probs(rows.astype(np.int64), self.progress).double().exp().cpu().numpy()
        return probs
