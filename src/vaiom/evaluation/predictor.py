"""A trained model as a predictor, the held-out events that it may be scored on, and the losses of
baselines.

Paper: Methods, "Corpus Construction and Split Protocol", "Baselines" and "Evaluation and Ablation
Protocol".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vaiom.baselines.base import Baseline, Floats, Rows, baseline, require_known
from vaiom.baselines.store import fit_or_load, load_losses, losses_file, save_losses
from vaiom.corpus.splits import BUFFER, SEALED, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.ledger import NO_CHECKPOINT, record_access
from vaiom.evaluation.scores import event_bits
from vaiom.features.fields import CROSS_FIELDS
from vaiom.files import Progress
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.model.heads import return_log_probs, state_log_probs
from vaiom.training.devices import autocast, resolve_device, resolve_type
from vaiom.training.windows import DeviceCorpus, Scorer


class ModelPredictor:
    """A trained model under the contract of a baseline, so that both are scored by the same code.

    Rows that were computed once by `compute` are looked up afterwards: an evaluation enters the
    model once for all its figures.
    """

    name = "model"

    def __init__(
        self, checkpoint: Checkpoint, device: str = "auto", progress: Progress | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.progress = progress
        self.device = resolve_device(device)
        self.precision = resolve_type("auto", self.device)
        checkpoint.model.to(self.device)
        self._computed: tuple[Corpus, DeviceCorpus, Rows, Tensor] | None = None

    @classmethod
    def load(
        cls, path: Path, device: str = "auto", progress: Progress | None = None
    ) -> ModelPredictor:
        """From a checkpoint file."""
        return cls(load_checkpoint(path), device, progress)

    def compute(self, corpus: Corpus, rows: Rows) -> None:
        """Compute these rows now and keep what later calls with the same corpus ask for."""
        rows = np.unique(rows).astype(np.int64)
        data = self._on_device(corpus)
        self._computed = (corpus, data, rows, self._hidden(data, rows))

    def hidden(self, corpus: Corpus, rows: Rows) -> Tensor:
        """(n, D) on the device: the last hidden state of each row, from the rows up to it."""
        if self._computed is None or self._computed[0] is not corpus:
            return self._hidden(self._on_device(corpus), rows)
        _, data, known, hidden = self._computed
        at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        if not np.array_equal(known[at], rows):
            return self._hidden(data, rows)
        return hidden[torch.from_numpy(at).to(self.device)]

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """Probabilities (n, 16) of the next return bucket of each row."""
        return self._probs(self.hidden(corpus, rows))

    def predict_alone(self, corpus: Corpus, rows: Rows) -> Floats:
        """`predict_proba` as if no other asset had a bar: the fields of other assets are zero."""
        data = copy.copy(self._computed[1] if self._computed else self._on_device(corpus))
        fields = self.checkpoint.config.input_fields
        others = [fields.index(name) for name in CROSS_FIELDS if name in fields]
        data.x = data.x.clone()
        data.x[:, others] = 0.0
        return self._probs(self._hidden(data, rows))

    def predict_states(self, corpus: Corpus, rows: Rows) -> tuple[Floats, Floats] | None:
        """Weights (n, S) of the latent states and the distribution (n, S, 16) of each.

        None where the head is no mixture.
        """
        if "state" not in self.checkpoint.model.heads.sizes:
            return None
        weights, components = state_log_probs(self._logits(self.hidden(corpus, rows)))
        return _probabilities_of(weights), _probabilities_of(components)

    def inputs(self, corpus: Corpus, rows: Rows) -> npt.NDArray[np.float32]:
        """(n, F): the fields that the model reads, at these rows."""
        if self._computed is None or self._computed[0] is not corpus:
            return self.read(corpus).inputs(self.checkpoint.config)[rows]
        return self._computed[1].x[torch.from_numpy(rows).to(self.device)].cpu().numpy()

    def read(self, corpus: Corpus) -> Corpus:
        """The corpus with the model's tokenizer, whose buckets must be the same."""
        require_tokenizer(corpus, self.checkpoint)
        return replace(corpus, tokenizer=self.checkpoint.tokenizer)

    def _on_device(self, corpus: Corpus) -> DeviceCorpus:
        return DeviceCorpus(self.read(corpus), self.checkpoint.config, self.device)

    def _hidden(self, data: DeviceCorpus, rows: Rows) -> Tensor:
        scorer = Scorer(self.checkpoint.model, data, self.precision, hidden=True)
        return scorer.predict(rows.astype(np.int64), self.progress)

    def _logits(self, hidden: Tensor) -> dict[str, Tensor]:
        network = self.checkpoint.model
        with torch.inference_mode(), autocast(self.device, self.precision):
            logits: dict[str, Tensor] = network.heads(hidden)
        return logits

    def _probs(self, hidden: Tensor) -> Floats:
        return _probabilities_of(return_log_probs(self._logits(hidden)))


def _probabilities_of(log_probs: Tensor) -> Floats:
    return np.asarray(log_probs.double().exp().cpu().numpy())


def heldout_rows(
    corpus: Corpus, split: str, checkpoint: Checkpoint, *, unseal: str | None = None
) -> Rows:
    """Row numbers of a split's events with the history that a model needs; `unseal` must name a
    sealed split.
    """
    rows = rows_of(corpus, split, checkpoint.model.config.history, unseal)
    # Before the tokenizers are compared: a refit has another one and would be refused for the
    # lesser reason.
    trained = SplitConfig.from_json(checkpoint.provenance.splits)
    first: datetime = corpus.target_timestamps[rows].min().astype("datetime64[us]").item()
    end, what = (
        (trained.train_end, "trained")
        if split == VALIDATION
        else (trained.validation[1], "selected")
    )
    if first < end:
        problem, where = (
            f"the model was {what} on targets of this split: they are not held out",
            corpus.path,
        )
        fix = "score a later split, or train on a corpus whose boundaries lie before it"
        if checkpoint.provenance.purpose == USE:
            fix = (
                "it is a refit, for use and not for evidence: score the run that it was "
                "refitted from"
            )
        expected, got = f"targets at or after {end}", f"first target {first}"
        raise DataError(problem, where=f"{where}, {split}", expected=expected, got=got, fix=fix)
    require_tokenizer(corpus, checkpoint)
    return rows


def rows_of(
    corpus: Corpus, split: str, context: int, unseal: str | None, *, heldout: bool = True
) -> Rows:
    """The events of a split, of which there must be some; `unseal` must name a sealed one."""
    allowed = (VALIDATION, *corpus.splits.test_names, SEALED)
    if heldout and split not in allowed:
        raise ConfigError("this split is not held out", expected=", ".join(allowed), got=split)
    if unseal is not None and unseal != split:
        raise ConfigError(
            "--unseal must name the split that is scored", expected=SEALED, got=unseal
        )
    rows = corpus.endpoints(split, context, unseal=unseal == SEALED)
    if not len(rows):
        expected, where = f"valid targets with {context} bars of history", f"{corpus.path}, {split}"
        fix = "append newer bars, or score a split that the corpus covers (vaiom corpus show)"
        raise DataError("no events in this split", where=where, expected=expected, fix=fix)
    return rows


def require_tokenizer(corpus: Corpus, checkpoint: Checkpoint) -> None:
    """Refuse a corpus with other buckets than the checkpoint's."""
    if not corpus.tokenizer.has_buckets_of(checkpoint.tokenizer):
        expected, got = checkpoint.tokenizer.sha256, corpus.tokenizer.sha256
        problem = "the model was trained with another tokenizer than the corpus has"
        fix = "score it on the corpus it was trained on, or on one that was built --like it"
        raise CheckpointError(problem, where=corpus.path, expected=expected, got=got, fix=fix)


def seen_by(checkpoint: Checkpoint, corpus: Corpus) -> Corpus:
    """The corpus under the split boundaries of the checkpoint's training; it keeps the path of its
    folder.
    """
    splits = SplitConfig.from_json(checkpoint.provenance.splits)
    return (
        corpus if splits == corpus.splits else replace(corpus.with_splits(splits), path=corpus.path)
    )


def score_baselines(
    corpus: Corpus,
    names: Sequence[str],
    out: Path,
    split: str,
    context: int,
    progress: Callable[[str], AbstractContextManager[Progress]],
    make: Callable[[str, Progress], Baseline] = baseline,
    *,
    unseal: str | None = None,
) -> dict[str, float]:
    """Fit baselines, constructed by `make`, on Train and store their losses one by one; mean bits
    per event by name.
    """
    require_known(list(names))
    if split == BUFFER:
        others = ", ".join(name for name in corpus.splits.names if name != split)
        raise ConfigError("the buffer is never scored", expected=others)
    rows = rows_of(corpus, split, context, unseal, heldout=False)
    if losses_file(
        out, split, corpus.horizon
    ).exists():  # another corpus's folder is refused before anything is fitted
        load_losses(out, corpus, split, context)
    bits = {}
    for name in names:
        with progress(name) as report:
            predictor = fit_or_load(make(name, report), corpus, context, out)
            record_access(
                corpus, split, run=name, checkpoint_sha256=NO_CHECKPOINT, num_events=len(rows)
            )
            losses = event_bits(predictor.predict_proba(corpus, rows), corpus.target_return[rows])
        save_losses(out, corpus, split, {name: losses}, context)
        bits[name] = float(losses.mean())
    return bits
