"""A trained model as a predictor, the held-out events that it may be scored on, and the losses of
baselines.

Paper: Methods, "Corpus Construction and Split Protocol", "Baselines" and "Evaluation and Ablation
Protocol".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from vaiom.baselines.base import Baseline, Floats, Rows, baseline, require_known
from vaiom.baselines.store import fit_or_load, load_losses, losses_file, save_losses
from vaiom.corpus.splits import BUFFER, SEALED, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus, under_splits
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.ledger import NO_CHECKPOINT, record_look
from vaiom.evaluation.scores import event_bits
from vaiom.files import Progress
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.training.devices import resolve_device
from vaiom.training.windows import predict_probabilities


class ModelPredictor:
    """A trained model under the contract of a baseline, so that both are scored by the
    same code.
    """

    name = "model"

    def __init__(
        self, checkpoint: Checkpoint, device: str = "auto", progress: Progress | None = None
    ) -> None:
        self.checkpoint, self.progress, self.device = checkpoint, progress, resolve_device(device)
        checkpoint.model.to(self.device)

    @classmethod
    def load(
        cls, path: Path, device: str = "auto", progress: Progress | None = None
    ) -> ModelPredictor:
        """From a checkpoint file."""
        return cls(load_checkpoint(path), device, progress)

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """Probabilities (n, K) of the next return bucket of each row, from the window that ends
        there.
        """
        network, progress = self.checkpoint.model, self.progress
        return predict_probabilities(
            network, self.read(corpus), rows, self.device, progress=progress
        )

    def read(self, corpus: Corpus) -> Corpus:
        """The corpus with the model's tokenizer, whose buckets must be the same."""
        require_tokenizer(corpus, self.checkpoint)
        return replace(corpus, tokenizer=self.checkpoint.tokenizer)


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
        corpus
        if splits == corpus.splits
        else replace(under_splits(corpus, splits), path=corpus.path)
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
            record_look(
                corpus, split, run=name, checkpoint_sha256=NO_CHECKPOINT, num_events=len(rows)
            )
            losses = event_bits(predictor.predict_proba(corpus, rows), corpus.target_return[rows])
        save_losses(out, corpus, split, {name: losses}, context)
        bits[name] = float(losses.mean())
    return bits
