"""What a finished run leads to: its configuration through the newest bars, a model for use; heads for more bars.

The protocol is moved to the end of the data: the last half-year selects, everything before it is Train, and no test is
left. Selecting looks at whatever test splits of the corpus the last half-year holds, and their ledger says so. The
checkpoint says that it is for use, and evaluation refuses to score it on what it has learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from vaiom.errors import ConfigError
from vaiom.evaluation.ledger import record_look
from vaiom.evaluation.predictor import require_tokenizer, seen_by
from vaiom.events.corpus import Corpus, under_splits
from vaiom.events.horizons import HORIZONS
from vaiom.events.splits import VALIDATION, SplitConfig
from vaiom.files import Progress
from vaiom.market.timeframes import step_seconds
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.model.horizons import FittedHorizons
from vaiom.run import Run
from vaiom.training.devices import is_rank_0, resolve_device
from vaiom.training.experiment import experiment_of_checkpoint
from vaiom.training.horizons import train_horizons
from vaiom.training.loop import Report, TrainResult, train

SELECTING = timedelta(weeks=26)
"""Half a year, in whole weeks: markets have no half ones."""


def refit(
    run: Path,
    corpus: Corpus,
    out: Path,
    *,
    until: datetime | None = None,
    device: str = "auto",
    resume: bool = False,
    report: Report | None = None,
) -> TrainResult:
    """Train what `run` was trained with on all bars of a corpus, or on those before `until`."""
    checkpoint = load_checkpoint(Run(run).best)
    shifted = shifted_corpus(corpus, until)
    # A folder that holds a run is resumed, its looks being recorded, or refused.
    if is_rank_0() and not Run(out).exists:
        _record_looks(corpus, shifted, checkpoint, out.name)
    return train(
        shifted, experiment_of_checkpoint(checkpoint), out, device=device, resume=resume, report=report, purpose=USE
    )


def fit_horizons(
    run: Path,
    corpus: Corpus,
    horizons: Sequence[int] = HORIZONS,
    *,
    seed: int = 17,
    device: str = "auto",
    progress: Progress | None = None,
) -> FittedHorizons:
    """Give a run heads for sums of the next bars, into its folder; the model itself stays as it is."""
    checkpoint = load_checkpoint(Run(run).best)
    own = corpus
    if checkpoint.provenance.purpose == USE:
        own = seen_by(checkpoint, corpus)
        _record_looks(corpus, own, checkpoint, run.name)
    require_tokenizer(own, checkpoint)
    made = train_horizons(checkpoint, own, horizons, seed=seed, device=resolve_device(device), progress=progress)
    made.save(Run(run).horizons)
    return made.fitted


def _record_looks(corpus: Corpus, shifted: Corpus, checkpoint: Checkpoint, run: str) -> None:
    """Validation events of a shifted protocol that are held-out events of the corpus's own are looked at."""
    codes = corpus.split_codes[shifted.endpoints(VALIDATION, checkpoint.model.config.history)]
    for code, split in enumerate(corpus.splits.names):
        if num_events := int((codes == code).sum()):
            record_look(corpus, split, run=run, checkpoint_sha256=checkpoint.sha256, num_events=num_events)


def shifted_corpus(corpus: Corpus, until: datetime | None = None) -> Corpus:
    """The corpus under boundaries at its end, or at `until`; it still says where its folder is."""
    last: datetime = corpus.timestamps.max().astype("datetime64[us]").item()
    end = last + timedelta(seconds=step_seconds(corpus.tokenizer.timeframe))  # when the last bar has closed
    if until is not None and until > end:
        raise ConfigError("the data end before this", where="--until", expected=f"{end} or earlier", got=until)
    end = until or end
    splits = SplitConfig(train_end=end - SELECTING, validation=(end - SELECTING, end), tests=(), seal=end)
    return replace(under_splits(corpus, splits), path=corpus.path)
