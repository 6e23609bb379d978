"""Which events a checkpoint may be scored on as held out, and which would be a lie.

Enters: a corpus, a split's name, a checkpoint. Leaves: row numbers of the split's events, after these refusals: a split
that is not for scoring, the sealed interval unless it is named, another tokenizer, targets that the checkpoint was
trained on or, for a test, selected on.
Paper: Methods, "Corpus Construction and Split Protocol" and "Evaluation and Ablation Protocol".
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
import numpy.typing as npt

from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.corpus import Corpus
from vaiom.events.splits import SEALED, VALIDATION, SplitConfig
from vaiom.model.checkpoint import USE, Checkpoint, Provenance


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
