"""Networks as baselines, trained as the model is: a GRU over the events, a decoder that sees return tokens alone."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from vaiom.baselines.base import Baseline, Floats, Rows, rows_by_asset
from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.splits import TRAIN
from vaiom.files import Progress, write_bytes
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train
from vaiom.training.windows import predict_probabilities

SELECTION_MONTHS = 6

_SELECTED: dict[str, Any] = {"validate_every": 250, "keep_last": 1}
_GRU = {"backbone": "gru", "num_layers": 2, "width": 256, "learning_rate": 1e-3, "steps": 4_000, "patience": 4}
_TOKENS = {"input": "disc", "fields": ("return_bucket",), "return_head": "independent", "auxiliaries": ()}

EXPERIMENTS = {
    "gru": Experiment(
        name="gru", about="A recurrent network over the main model's events, of about its size."
    ).with_changes(**_SELECTED, **_GRU),
    "return_tokens": Experiment(
        name="return_tokens", about="A decoder over return buckets alone, in the manner of StockGPT."
    ).with_changes(**_SELECTED, **_TOKENS, steps=5_500, patience=6),
}


class Neural(Baseline):
    """An experiment of the trainer, by its name, under the contract of the baselines."""

    checkpoint_: Checkpoint

    def __init__(self, name: str, progress: Progress | None = None, *, device: str = "auto", **changes: Any) -> None:
        super().__init__(name, progress)
        self.experiment, self.device = EXPERIMENTS[name].with_changes(**changes), device

    def config(self) -> dict[str, Any]:
        return {**self.experiment.identity(), "selection_months": SELECTION_MONTHS}

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        context, progress = self.experiment.model.context, self.progress
        if not np.array_equal(rows, corpus.endpoints(TRAIN, context)):
            raise DataError(
                f"{self.name} learns from all Train events with its own context",
                expected=f"the endpoints of Train with {context} rows",
                got=f"{len(rows):,} other events",
                fix=f"--context {context}",
            )

        def report(entry: dict[str, Any]) -> None:
            if progress:
                progress(entry["step"], entry["steps"], f"steps, {entry['loss_nats']:.4f} nats")

        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(inside_train(corpus), self.experiment, run, device=self.device, report=report)
            self.load(run)

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        device, context = resolve_device(self.device), self.experiment.model.context
        for symbol, part in rows_by_asset(corpus, rows).items():
            short = rows[part] < corpus.asset_slices[symbol].start + context - 1
            if short.any():
                raise DataError(
                    f"{self.name} was not fitted for events with less history",
                    where=f"{symbol}, {corpus.timestamps[rows[part][short][0]]}",
                    expected=f"{context} bars of history",
                )
        model, precision = self.checkpoint_.model.to(device), self.experiment.train.precision
        return predict_probabilities(model, corpus, rows, device, precision, self.progress)

    def save(self, folder: Path) -> None:
        write_bytes(Run(folder).best, self._bytes)

    def load(self, folder: Path) -> Self:
        self.checkpoint_ = load_checkpoint(Run(folder).best)
        self._bytes = Run(folder).best.read_bytes()
        return self


def inside_train(corpus: Corpus) -> Corpus:
    """The same rows with Train's last months as the Validation split, and no later target of any use."""
    splits = corpus.splits
    start = splits.shifted_by(-SELECTION_MONTHS).train_end
    return replace(corpus, splits=replace(splits, train_end=start, validation=(start, splits.train_end)))
