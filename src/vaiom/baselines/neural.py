"""Networks as baselines, from the product's own parts: a GRU over the events, a decoder that sees return tokens alone.

Enters: Train events. Leaves: a checkpoint and its probabilities. The last months of Train choose the checkpoint, so
nothing after Train is used; everything else is trained exactly as the model is.
The second is in the manner of StockGPT: past return buckets as the only words, the next one as the target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from vaiom.baselines.base import Probabilities, Progress, Rows, asset_parts, require_fitted, targets_to_fit
from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.splits import TRAIN
from vaiom.files import write_bytes
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.training.experiment import Experiment
from vaiom.training.loop import BEST_NAME, train
from vaiom.training.precision import resolve_device, resolve_type
from vaiom.training.scoring import Scorer
from vaiom.training.windows import DeviceCorpus

SELECTION_MONTHS = 6

GRU = Experiment(name="gru", about="A recurrent network over the main model's events, of about its size.").with_changes(
    backbone="gru",
    num_layers=2,
    width=256,
    learning_rate=1e-3,
    steps=4_000,
    validate_every=250,
    patience=4,
    keep_last=1,
)
RETURN_TOKENS = Experiment(
    name="return_tokens", about="A decoder over return buckets alone, in the manner of StockGPT."
).with_changes(
    input="disc",
    fields=("return_bucket",),
    return_head="independent",
    auxiliaries=(),
    steps=5_500,
    validate_every=250,
    patience=6,
    keep_last=1,
)


class Neural:
    """An experiment of the trainer under the contract of the baselines."""

    checkpoint_: Checkpoint

    def __init__(self, experiment: Experiment, progress: Progress | None = None, device: str = "auto") -> None:
        self.name, self.experiment, self.progress, self.device = experiment.name, experiment, progress, device

    def config(self) -> dict[str, Any]:
        return {**self.experiment.to_json(), "selection_months": SELECTION_MONTHS}

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        targets_to_fit(corpus, rows)
        if not np.array_equal(rows, corpus.endpoints(TRAIN, self.experiment.model.context)):
            raise DataError(
                f"{self.name} learns from all Train events with its own context",
                expected=f"the endpoints of Train with {self.experiment.model.context} rows",
                got=f"{len(rows):,} other events",
                fix=f"--context {self.experiment.model.context}",
            )
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(inside_train(corpus), self.experiment, run, device=self.device, report=self._report())
            self.checkpoint_ = load_checkpoint(run / BEST_NAME)
            self._bytes = (run / BEST_NAME).read_bytes()
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        require_fitted(self)
        device = resolve_device(self.device)
        model = self.checkpoint_.model.to(device)
        self._require_context(corpus, rows)
        scorer = Scorer(
            model,
            DeviceCorpus(corpus, model.config, device),
            device,
            resolve_type(self.experiment.train.precision, device),
        )
        return scorer.log_probs(rows.astype(np.int64), self.progress).double().exp().cpu().numpy()

    def save(self, folder: Path) -> None:
        require_fitted(self)
        write_bytes(folder / BEST_NAME, self._bytes)

    def load(self, folder: Path) -> Self:
        self.checkpoint_ = load_checkpoint(folder / BEST_NAME)
        self._bytes = (folder / BEST_NAME).read_bytes()
        return self

    def _require_context(self, corpus: Corpus, rows: Rows) -> None:
        context = self.experiment.model.context
        for symbol, part in asset_parts(corpus, rows).items():
            short = rows[part] < corpus.asset_slices[symbol].start + context - 1
            if short.any():
                raise DataError(
                    f"{self.name} was not fitted for events with less history",
                    where=f"{symbol}, {corpus.timestamps[rows[part][short][0]]}",
                    expected=f"{context} bars of history",
                )

    def _report(self) -> Callable[[dict[str, Any]], None] | None:
        progress = self.progress
        if progress is None:
            return None
        return lambda entry: progress(entry["step"], entry["steps"], f"steps, {entry['loss_nats']:.4f} nats")


def inside_train(corpus: Corpus) -> Corpus:
    """The same rows with Train's last months as the Validation split, and no later target of any use."""
    splits = corpus.splits
    start = splits.shifted_by(-SELECTION_MONTHS).train_end
    return replace(corpus, splits=replace(splits, train_end=start, validation=(start, splits.train_end)))
