"""A trained model as a predictor, the held-out events that it may be scored on, and the losses of
baselines.

Paper: Methods, "Corpus Construction and Split Protocol", "Baselines" and "Evaluation and Ablation
Protocol".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vaiom.baselines.base import Baseline, Floats, Rows, baseline, require_known
from vaiom.baselines.stored_losses import fit_or_load, load_losses, losses_file, save_losses
from vaiom.corpus.splits import BUFFER, SEALED, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.access_ledger import NO_CHECKPOINT, record_access
from vaiom.evaluation.scores import losses_of
from vaiom.features.fields import CROSS_FIELDS
from vaiom.files import Progress
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.model.heads import return_log_probs, state_log_probs
from vaiom.training.devices import autocast, resolve_device, resolve_type
from vaiom.training.windows import DeviceCorpus, Scorer


@dataclass(frozen=True, eq=False)
class ComputedRows:
    """Rows of a corpus that a model has computed."""

    corpus: Corpus
    data: DeviceCorpus
    rows: Rows
    """Sorted, (n,)."""
    hidden: Tensor
    """(n, D) the last hidden state of each."""


class ModelPredictor:
    """A trained model under the contract of a baseline, so that both are scored by the same code.

    Rows that `compute` has computed are looked up afterwards: an evaluation enters the model once
    for all its figures.
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
        self._computed: ComputedRows | None = None

    @classmethod
    def load(
        cls, path: Path, device: str = "auto", progress: Progress | None = None
    ) -> ModelPredictor:
        """From a checkpoint file."""
        return cls(load_checkpoint(path), device, progress)

    def compute(self, corpus: Corpus, rows: Rows) -> None:
        """Compute these rows now; later calls with the same corpus look them up."""
        rows = np.unique(rows).astype(np.int64)
        data = self._on_device(corpus)
        self._computed = ComputedRows(corpus, data, rows, self._hidden(data, rows))

    def hidden(self, corpus: Corpus, rows: Rows) -> Tensor:
        """(n, D) on the device: the last hidden state of each row, from the rows up to it."""
        done = self._computed
        if done and done.corpus is corpus:
            at = np.searchsorted(done.rows, rows)
            if np.array_equal(done.rows.take(at, mode="clip"), rows):
                return done.hidden[torch.from_numpy(at).to(self.device)]
        return self._hidden(self._on_device(corpus), rows)

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """Probabilities (n, 16) of the return bucket that follows each row."""
        return self._probs(self.hidden(corpus, rows))

    def predict_alone(self, corpus: Corpus, rows: Rows) -> Floats:
        """`predict_proba` as if no other asset had a bar: the fields of other assets are zero."""
        data = copy.copy(self._on_device(corpus))
        fields = self.checkpoint.config.input_fields
        others = [place for place, name in enumerate(fields) if name in CROSS_FIELDS]
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
        x = self._on_device(corpus).x[torch.from_numpy(rows).to(self.device)]
        return np.asarray(x.cpu().numpy())

    def read(self, corpus: Corpus) -> Corpus:
        """The corpus with the model's tokenizer, whose buckets must be the same."""
        require_tokenizer(corpus, self.checkpoint)
        return replace(corpus, tokenizer=self.checkpoint.tokenizer)

    def _on_device(self, corpus: Corpus) -> DeviceCorpus:
        """What the model reads of a corpus; kept of the computed one."""
        if self._computed and self._computed.corpus is corpus:
            return self._computed.data
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
    """Row numbers of a split's events with the history that a model needs.

    A split on whose targets the model was trained or selected is refused; `unseal` must name a
    sealed split.
    """
    rows = rows_of(corpus, split, checkpoint.model.config.history, unseal)
    # Before the tokenizers are compared: a refit has another one and would be refused for the
    # lesser reason.
    end = _end_of_seen(split, checkpoint)
    first = _first_target(corpus, rows)
    if first < end:
        what = "trained" if split == VALIDATION else "selected"
        fix = _way_to_heldout(corpus, checkpoint)
        if checkpoint.provenance.purpose == USE:
            fix = "it is a refit, for use and not for evidence: score the run it was refitted from"
        raise DataError(
            f"the model was {what} on targets of this split: they are not held out",
            where=f"{corpus.path}, {split}",
            expected=f"targets at or after {end}",
            got=f"first target {first}",
            fix=fix,
        )
    require_tokenizer(corpus, checkpoint)
    return rows


def _end_of_seen(split: str, checkpoint: Checkpoint) -> datetime:
    """Where a split may begin: after Train, and after Validation for a test."""
    trained = SplitConfig.from_json(checkpoint.provenance.splits)
    return trained.train_end if split == VALIDATION else trained.validation[1]


def _first_target(corpus: Corpus, rows: Rows) -> datetime:
    first: datetime = corpus.target_timestamps[rows].min().astype("datetime64[us]").item()
    return first


def _way_to_heldout(corpus: Corpus, checkpoint: Checkpoint) -> str:
    """What can be done where a split is not held out: score one that is, or train without it."""
    for split in (VALIDATION, *corpus.splits.test_names):
        rows = corpus.endpoints(split, checkpoint.model.config.history)
        if len(rows) and _first_target(corpus, rows) >= _end_of_seen(split, checkpoint):
            return f"score a later split: --split {split}"
    end = _end_of_seen(VALIDATION, checkpoint)
    own = f"vaiom train {corpus.path} --experiment demo --out RUN"
    return (
        f"no split of this corpus is later: bring in bars after {end:%Y-%m-%d}, or judge a model "
        f"that saw its Train alone ({own})"
    )


def rows_of(
    corpus: Corpus, split: str, context: int, unseal: str | None, *, heldout: bool = True
) -> Rows:
    """The events of a split, of which there must be some; `unseal` must name a sealed one.

    With `heldout`, Train and the buffer are refused.
    """
    allowed = (VALIDATION, *corpus.splits.test_names, SEALED)
    if heldout and split not in allowed:
        raise ConfigError("this split is not held out", expected=", ".join(allowed), got=split)
    if unseal not in (None, split):
        problem = "--unseal must name the split that is scored"
        raise ConfigError(problem, expected=SEALED, got=unseal)
    rows = corpus.endpoints(split, context, unseal=unseal == SEALED)
    if not len(rows):
        raise DataError(
            "no events in this split",
            where=f"{corpus.path}, {split}",
            expected=f"valid targets with {context} bars of history",
            fix="append newer bars, or score a split that the corpus covers (vaiom corpus show)",
        )
    return rows


def require_tokenizer(corpus: Corpus, checkpoint: Checkpoint) -> None:
    """Refuse a corpus with other buckets than the checkpoint's."""
    if not corpus.tokenizer.has_buckets_of(checkpoint.tokenizer):
        raise CheckpointError(
            "the model was trained with another tokenizer than the corpus has",
            where=corpus.path,
            expected=checkpoint.tokenizer.sha256,
            got=corpus.tokenizer.sha256,
            fix="score it on the corpus it was trained on, or on one that was built --like it",
        )


def seen_by(checkpoint: Checkpoint, corpus: Corpus) -> Corpus:
    """The corpus under the split boundaries of the checkpoint's training, with its own path."""
    splits = SplitConfig.from_json(checkpoint.provenance.splits)
    if splits == corpus.splits:
        return corpus
    return replace(corpus.with_splits(splits), path=corpus.path)


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
    """Fit baselines on Train and store their losses, one by one; returns mean bits by name.

    `progress` makes a progress bar from a title, `make` a baseline from its name.
    """
    require_known(list(names))
    if split == BUFFER:
        others = ", ".join(name for name in corpus.splits.names if name != split)
        raise ConfigError("the buffer is never scored", expected=others)
    rows = rows_of(corpus, split, context, unseal, heldout=False)
    if losses_file(out, split, corpus.horizon).exists():
        # Another corpus's folder is refused before anything is fitted.
        load_losses(out, corpus, split, context)
    mean_bits = {}
    for name in names:
        with progress(name) as report:
            fitted = fit_or_load(make(name, report), corpus, context, out)
            record_access(
                corpus, split, run=name, checkpoint_sha256=NO_CHECKPOINT, num_events=len(rows)
            )
            losses = losses_of([fitted], corpus, rows, context)
        save_losses(out, corpus, split, losses, context)
        mean_bits[name] = float(losses[name].mean())
    return mean_bits
