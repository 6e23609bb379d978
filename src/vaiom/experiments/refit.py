"""What follows a finished run on its own assets: a model for use, heads for longer horizons.

Enters: a run and a corpus. Leaves: another run, or a file of heads beside the run's model. The
ledger of the corpus records which held-out events were learned from or selected on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vaiom.corpus.splits import VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import HORIZONS
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.access_ledger import record_access
from vaiom.evaluation.predictor import require_tokenizer, seen_by
from vaiom.market.timeframes import step_seconds
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.model.horizon_heads import FittedHorizons
from vaiom.run import Run
from vaiom.training.devices import is_rank_0, resolve_device
from vaiom.training.experiment import experiment_of_checkpoint
from vaiom.training.horizon_training import train_horizons
from vaiom.training.loop import TrainResult, train
from vaiom.training.start import require_start

SELECTION_SPAN = timedelta(weeks=26)
"""Validation of a model for use: half a year in whole weeks, as markets have them."""


def refit(
    run: Path, corpus: Corpus, out: Path, *, until: datetime | None = None, **options: Any
) -> TrainResult:
    """Train the experiment of `run` on all bars, or on those before `until`, for use.

    The last half-year selects the step; no test is left. Options are those of `train`. A run that
    started from a model's weights starts from them again.
    """
    checkpoint = load_checkpoint(Run(run).best)
    shifted = shifted_corpus(corpus, until)
    experiment = experiment_of_checkpoint(checkpoint)
    start = Run(run).start if checkpoint.provenance.start_sha256 else None
    if start:
        require_start(load_checkpoint(start), shifted, experiment)
    # A run that exists is resumed, with its accesses already recorded, or refused.
    if is_rank_0() and not Run(out).exists:
        _record_accesses(corpus, shifted, checkpoint, out.name)
    return train(shifted, experiment, out, purpose=USE, start=start, **options)


def fit_horizons(
    run: Path,
    corpus: Corpus,
    horizons: Sequence[int] = HORIZONS,
    *,
    device: str = "auto",
    **options: Any,
) -> FittedHorizons:
    """Train heads for the sum of the next h returns into a run's folder.

    The model stays as it is; `horizons` are numbers of bars h, and options those of
    `train_horizons`.
    """
    checkpoint = load_checkpoint(Run(run).best)
    own = seen_by(checkpoint, corpus)
    require_tokenizer(own, checkpoint)
    expected = _assets(checkpoint.tokenizer)
    got = _assets(own.tokenizer)
    if got != expected:
        raise DataError(
            "heads are of a model's own assets",
            where=own.path,
            expected=expected,
            got=got,
            fix="`vaiom train CORPUS --from RUN`, then horizons of that run",
        )
    _record_accesses(corpus, own, checkpoint, run.name)
    heads = train_horizons(checkpoint, own, horizons, device=resolve_device(device), **options)
    heads.save(Run(run).horizons)
    return heads.fitted


def _assets(tokenizer: Tokenizer) -> str:
    """Symbols with their classes, in words."""
    pairs = zip(tokenizer.symbols, tokenizer.classes, strict=True)
    return ", ".join(f"{symbol} {class_name}" for symbol, class_name in pairs)


def _record_accesses(corpus: Corpus, shifted: Corpus, checkpoint: Checkpoint, run: str) -> None:
    """Record in the corpus's ledger which of its held-out events are Validation of the shifted
    corpus.
    """
    rows = shifted.endpoints(VALIDATION, checkpoint.model.config.history)
    codes = corpus.split_codes[rows]
    for code, split in enumerate(corpus.splits.names):
        num_events = int((codes == code).sum())
        if num_events:
            record_access(
                corpus, split, run=run, checkpoint_sha256=checkpoint.sha256, num_events=num_events
            )


def shifted_corpus(corpus: Corpus, until: datetime | None = None) -> Corpus:
    """The corpus with its last half-year, or that before `until`, as Validation, all before as
    Train, and no test.
    """
    last: datetime = corpus.timestamps.max().astype("datetime64[us]").item()
    last_close = last + timedelta(seconds=step_seconds(corpus.tokenizer.timeframe))
    if until is not None and until > last_close:
        raise ConfigError(
            "the data end before this",
            where="--until",
            expected=f"{last_close} or earlier",
            got=until,
        )
    end = until or last_close
    start = end - SELECTION_SPAN
    splits = SplitConfig(train_end=start, validation=(start, end), tests=(), seal=end)
    return replace(corpus.with_splits(splits), path=corpus.path)
