"""Baselines fitted on Train and scored on a split; their per-event losses are stored beside their fits.

Enters: a corpus, names of baselines, a folder. Leaves: mean bits per event, and files that `vaiom evaluate` reads.
Paper: Methods, "Baselines".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from vaiom.baselines.base import Progress
from vaiom.baselines.cache import fitted
from vaiom.baselines.registry import BASELINES, Factory, require_known
from vaiom.baselines.store import load_losses, losses_file, save_losses
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.likelihood import event_bits
from vaiom.events.corpus import Corpus
from vaiom.events.splits import BUFFER


def score_baselines(
    corpus: Corpus,
    names: Sequence[str],
    out: Path,
    split: str,
    context: int,
    progress: Callable[[str], AbstractContextManager[Progress]],
    factories: Mapping[str, Factory] = BASELINES,
) -> dict[str, float]:
    """Mean bits per event by baseline; each one's losses are stored as soon as it is scored.

    `factories` may make some of the known baselines with other settings than the registry's.
    """
    require_known(list(names))
    if split == BUFFER:
        raise ConfigError(
            "the buffer is never scored", expected=", ".join(n for n in corpus.splits.names if n != split)
        )
    rows = corpus.endpoints(split, context)
    if not len(rows):
        raise DataError(
            "no events in this split",
            where=f"{corpus.path}, {split}",
            fix="`vaiom corpus show` lists those that have some",
        )
    if losses_file(out, split).exists():
        load_losses(out, corpus, split, context)  # another corpus's folder is refused before anything is fitted
    bits = {}
    for name in names:
        with progress(name) as report:
            predictor = fitted(factories[name](report), corpus, context, out)
            losses = event_bits(predictor.predict_proba(corpus, rows), corpus.target_return[rows])
        save_losses(out, corpus, split, {name: losses}, context)
        bits[name] = float(losses.mean())
    return bits
