"""A trained model as a predictor, and the events that it may be scored on as held out.

Enters: a checkpoint file, a corpus, a split's name. Leaves: probabilities (n, 16) of the next return bucket for any
events of a corpus whose tokenizer is the model's; row numbers of the split's events, after these refusals: a split that
is not for scoring, the sealed interval unless it is named, another tokenizer, targets that the checkpoint was trained
on or, for a test, selected on.
Paper: Methods, "Corpus Construction and Split Protocol" and "Evaluation and Ablation Protocol".
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats, Rows
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.corpus import Corpus
from vaiom.events.splits import SEALED, VALIDATION, SplitConfig
from vaiom.model.checkpoint import USE, Checkpoint, Provenance, load_checkpoint
from vaiom.training.devices import resolve_device, resolve_type
from vaiom.training.scoring import Progress, Scorer
from vaiom.training.windows import DeviceCorpus


class ModelPredictor:
    """A trained model under the contract of a baseline, so that both are scored by the same code."""

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


def heldout_rows(
    corpus: Corpus, split: str, checkpoint: Checkpoint, *, unseal: str | None = None
) -> npt.NDArray[np.int64]:
    """Row numbers of the events of `split` with the checkpoint's full context; `unseal` must name a sealed split."""
    allowed = (VALIDATION, *corpus.splits.test_names, SEALED)
    if split not in allowed:
        raise ConfigError("this split is not held out", expected=", ".join(allowed), got=split)
    if unseal is not None and unseal != split:
        raise ConfigError("--unseal must name the split that is scored", expected=SEALED, got=unseal)
    context = checkpoint.model.config.context
    rows = corpus.endpoints(split, context, unseal=unseal == SEALED)
    if not len(rows):
        raise DataError(
            "the split has no event to score",
            where=f"{corpus.path}, {split}",
            expected=f"valid targets with {context} bars of history",
            fix="append newer bars, or score a split that the corpus covers (vaiom corpus show)",
        )
    # Before the tokenizers are compared: a refit has another one and would be refused for the lesser reason.
    _require_unseen(corpus, split, rows, checkpoint.provenance)
    require_tokenizer(corpus, checkpoint)
    return rows


def require_tokenizer(corpus: Corpus, checkpoint: Checkpoint) -> None:
    """The checkpoint's buckets, scales and asset ids are those of the corpus."""
    if corpus.tokenizer.sha256 != checkpoint.tokenizer.sha256:
        raise CheckpointError(
            "the model was trained with another tokenizer than the corpus has",
            where=corpus.path,
            expected=checkpoint.tokenizer.sha256,
            got=corpus.tokenizer.sha256,
            fix="score it on the corpus it was trained on, or on one that was appended to",
        )


def _require_unseen(corpus: Corpus, split: str, rows: npt.NDArray[np.int64], origin: Provenance) -> None:
    trained = SplitConfig.from_json(origin.splits)
    first: datetime = corpus.target_timestamps[rows].min().astype("datetime64[us]").item()
    used, what = (trained.train_end, "trained") if split == VALIDATION else (trained.validation[1], "selected")
    if first < used:
        raise DataError(
            f"the model was {what} on targets of this split: they are not held out",
            where=f"{corpus.path}, {split}",
            expected=f"targets at or after {used}",
            got=f"first target {first}",
            fix=(
                "it is a refit, for use and not for evidence: score the run that it was refitted from"
                if origin.purpose == USE
                else "score a later split, or train on a corpus whose boundaries lie before it"
            ),
        )
