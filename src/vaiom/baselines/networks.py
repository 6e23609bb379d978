"""Networks that are trained as the model is: a GRU over the events (Cho et al. 2014), and a decoder
that sees return tokens alone.

Paper: Methods, "Baselines".
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from vaiom.baselines.base import Baseline, Floats, Rows, rows_by_asset
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.files import Progress, write_bytes
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train
from vaiom.training.windows import predict_probabilities

SELECTION_MONTHS = 6
"""Months at the end of Train on which the checkpoint is selected."""


def _experiment(name: str, **changes: Any) -> Experiment:
    """The settings of a baseline: those of the main model but for the changes."""
    return Experiment(name=name).with_changes(validate_every=250, keep_last=1, **changes)


EXPERIMENTS = {
    # A recurrent network over the main model's events, of about its size.
    "gru": _experiment(
        "gru",
        backbone="gru",
        num_layers=2,
        width=256,
        learning_rate=1e-3,
        steps=4_000,
        patience=4,
    ),
    # A decoder over return buckets alone, in the manner of StockGPT (Mai 2024).
    "return_tokens": _experiment(
        "return_tokens",
        input="disc",
        fields=("return_bucket",),
        return_head="independent",
        auxiliaries=(),
        steps=5_500,
        patience=6,
    ),
}
"""By baseline."""


class TrainedNetwork(Baseline):
    """A network that `vaiom.training` trains, as a baseline.

    Attributes:
        checkpoint_: the selected weights.
    """

    checkpoint_: Checkpoint

    def __init__(
        self, name: str, progress: Progress | None = None, *, device: str = "auto", **changes: Any
    ) -> None:
        super().__init__(name, progress)
        self.experiment = EXPERIMENTS[name].with_changes(**changes)
        self.device = device

    def config(self) -> dict[str, Any]:
        return {**self.experiment.identity(), "selection_months": SELECTION_MONTHS}

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        context = self.experiment.model.context
        if not np.array_equal(rows, corpus.endpoints(TRAIN, context)):
            raise DataError(
                f"{self.name} learns from all Train events with its own context",
                expected=f"the endpoints of Train with {context} rows",
                got=f"{len(rows):,} other events",
                fix=f"--context {context}",
            )
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            own = inside_train(corpus)
            train(own, self.experiment, run, device=self.device, report=self._report)
            self.load(run)

    def _report(self, entry: dict[str, Any]) -> None:
        """Tell the progress of the steps from an entry of the training log."""
        if self.progress:
            self.progress(entry["step"], entry["steps"], f"steps, {entry['loss_nats']:.4f} nats")

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        context = self.experiment.model.context
        for symbol, part in rows_by_asset(corpus, rows).items():
            own = rows[part]
            short = own < corpus.asset_slices[symbol].start + context - 1
            if short.any():
                raise DataError(
                    f"{self.name} was not fitted for events with less history",
                    where=f"{symbol}, {corpus.timestamps[own[short][0]]}",
                    expected=f"{context} bars of history",
                )
        device = resolve_device(self.device)
        network = self.checkpoint_.model.to(device)
        return predict_probabilities(network, corpus, rows, device, self.progress)

    def save(self, folder: Path) -> None:
        write_bytes(Run(folder).best, self._bytes)

    def load(self, folder: Path) -> Self:
        file = Run(folder).best
        self.checkpoint_ = load_checkpoint(file)
        self._bytes = file.read_bytes()
        return self


def inside_train(corpus: Corpus) -> Corpus:
    """The same rows with Train's last months as Validation, and no use of any later target."""
    splits = corpus.splits
    start = splits.shifted_by(-SELECTION_MONTHS).train_end
    inner = replace(splits, train_end=start, validation=(start, splits.train_end))
    return replace(corpus, splits=inner)
