"""Baselines fitted on Train and scored on a split; their per-event losses are stored beside their fits.

Enters: a corpus, names of baselines, a folder. Leaves: mean bits per event, and files that `vaiom evaluate` reads.
Paper: Methods, "Baselines".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from vaiom.baselines.base import Baseline, Progress
from vaiom.baselines.registry import baseline, require_known
from vaiom.baselines.store import fit_or_load, load_losses, losses_file, save_losses
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.ledger import NO_CHECKPOINT, record_look
from vaiom.evaluation.scores import event_bits
from vaiom.events.corpus import Corpus
from vaiom.events.splits import BUFFER, SEALED


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
    """Mean bits per event by baseline; each one's losses are stored as soon as it is scored.

    A scoring of a test split is recorded in the corpus. `make` may give some of the known baselines other settings than
    the registry does.
    """
    require_known(list(names))
    if split == BUFFER:
        raise ConfigError(
            "the buffer is never scored", expected=", ".join(n for n in corpus.splits.names if n != split)
        )
    if unseal is not None and unseal != split:
        raise ConfigError("--unseal must name the split that is scored", expected=SEALED, got=unseal)
    opened = unseal == SEALED
    rows = corpus.endpoints(split, context, unseal=opened)
    if not len(rows):
        raise DataError(
            "no events in this split",
            where=f"{corpus.path}, {split}",
            fix="`vaiom corpus show` lists those that have some",
        )
    if losses_file(out, split).exists():  # another corpus's folder is refused before anything is fitted
        load_losses(out, corpus, split, context, unseal=opened)
    bits = {}
    for name in names:
        with progress(name) as report:
            predictor = fit_or_load(make(name, report), corpus, context, out)
            record_look(corpus, split, run=name, checkpoint_sha256=NO_CHECKPOINT, num_events=len(rows))
            losses = event_bits(predictor.predict_proba(corpus, rows), corpus.target_return[rows])
        save_losses(out, corpus, split, {name: losses}, context, unseal=opened)
        bits[name] = float(losses.mean())
    return bits
