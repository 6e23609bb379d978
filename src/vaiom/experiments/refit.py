"""What follows a finished run: a model for use, a model adapted to other bars, heads for longer
horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vaiom.corpus.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import HORIZONS
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.access_ledger import record_access
from vaiom.evaluation.inference import PairedGain, paired_gain
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows, require_tokenizer, seen_by
from vaiom.evaluation.scores import MODEL, event_bits, score_events
from vaiom.market.timeframes import step_seconds
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.model.horizon_heads import FittedHorizons
from vaiom.run import Run, find_run
from vaiom.training.devices import is_rank_0, resolve_device
from vaiom.training.experiment import experiment_of_checkpoint
from vaiom.training.horizon_training import train_horizons
from vaiom.training.loop import TrainResult, train
from vaiom.training.start import require_start

SELECTING = timedelta(weeks=26)
"""Half a year of Validation, in whole weeks, as markets have them."""
AS_IT_WAS = "the weights as they were"
SMALLER_STEPS = 0.2
SHORT: dict[str, Any] = {
    **{
        "steps": 400,
        "validate_every": 25,
        "log_every": 25,
        "patience": 4,
        "warmup_steps": 20,
        "schedule": "cosine",
    },
    **{"ema_decay": 0.98, "teachers": 0, "teacher_share": 0.0},
}
"""Minutes on a CPU, with early stopping."""
STEPS_A_PASS = 4
"""Least number of steps per pass over Train: whole batches would overfit a short history within a
few steps.
"""


def refit(
    run: Path, corpus: Corpus, out: Path, *, until: datetime | None = None, **options: Any
) -> TrainResult:
    """Train the experiment of `run` on all bars, or on those before `until`; options are those of
    `train`.
    """
    checkpoint, shifted = load_checkpoint(Run(run).best), shifted_corpus(corpus, until)
    experiment = experiment_of_checkpoint(checkpoint)
    # What went on from a model's weights goes on from them again.
    start = Run(run).start if checkpoint.provenance.start_sha256 else None
    if start:
        require_start(load_checkpoint(start), shifted, experiment)
    # An existing run is resumed, with its looks already recorded, or refused.
    if is_rank_0() and not Run(out).exists:
        _record_looks(corpus, shifted, checkpoint, out.name)
    return train(shifted, experiment, out, purpose=USE, start=start, **options)


def fit_horizons(
    run: Path,
    corpus: Corpus,
    horizons: Sequence[int] = HORIZONS,
    *,
    device: str = "auto",
    **options: Any,
) -> FittedHorizons:
    """Train heads for sums of the next bars into a run's folder; options are those of
    `train_horizons`.
    """
    checkpoint = load_checkpoint(Run(run).best)
    own = seen_by(checkpoint, corpus)
    require_tokenizer(own, checkpoint)
    fits = (checkpoint.tokenizer, own.tokenizer)
    expected, got = (
        ", ".join(map(" ".join, zip(fit.symbols, fit.classes, strict=True))) for fit in fits
    )
    if got != expected:
        problem, fix = (
            "heads are of a model's own assets",
            "`vaiom train CORPUS --from RUN`, then horizons of that run",
        )
        raise DataError(problem, where=own.path, expected=expected, got=got, fix=fix)
    _record_looks(corpus, own, checkpoint, run.name)
    heads = train_horizons(checkpoint, own, horizons, device=resolve_device(device), **options)
    heads.save(Run(run).horizons)
    return heads.fitted


def _record_looks(corpus: Corpus, shifted: Corpus, checkpoint: Checkpoint, run: str) -> None:
    """Record looks at the corpus's own held-out events that are Validation events of the shifted
    corpus.
    """
    codes = corpus.split_codes[shifted.endpoints(VALIDATION, checkpoint.model.config.history)]
    for code, split in enumerate(corpus.splits.names):
        if num_events := int((codes == code).sum()):
            record_access(
                corpus, split, run=run, checkpoint_sha256=checkpoint.sha256, num_events=num_events
            )


def shifted_corpus(corpus: Corpus, until: datetime | None = None) -> Corpus:
    """The corpus with its last half-year, or that before `until`, as Validation, all before as
    Train, and no test.
    """
    last: datetime = corpus.timestamps.max().astype("datetime64[us]").item()
    end = last + timedelta(
        seconds=step_seconds(corpus.tokenizer.timeframe)
    )  # when the last bar has closed
    if until is not None and until > end:
        raise ConfigError(
            "the data end before this", where="--until", expected=f"{end} or earlier", got=until
        )
    end = until or end
    splits = SplitConfig(
        train_end=end - SELECTING, validation=(end - SELECTING, end), tests=(), seal=end
    )
    return replace(corpus.with_splits(splits), path=corpus.path)


@dataclass(frozen=True, kw_only=True)
class Adapted(TrainResult):
    """A finished run, and its gains on Validation over other models."""

    gains: dict[str, PairedGain]

    @property
    def verdict(self) -> list[str]:
        """Whether it helped, a sentence for each model; Validation also selected the step, so a
        test says more.
        """
        sentences = []
        for name, gain in self.gains.items():
            if not gain.gain_bits:
                sentences.append(f"It did not help: {name} stay the best on Validation.")
                continue
            interval = gain.asset_months.interval
            low, high = interval or (-abs(gain.gain_bits), abs(gain.gain_bits))
            outcome = (
                "It helped" if low > 0 else "It hurt" if high < 0 else "Whether it helped is open"
            )
            width = (
                f" [{low:+.4f}, {high:+.4f}]"
                if interval
                else ", without an interval: one asset in one month"
            )
            sentences.append(f"{outcome}: {gain.gain_bits:+.4f} bits/event{width} over {name}.")
        return sentences


def adapt(
    corpus: Corpus,
    start: Path,
    out: Path,
    *,
    settings: Sequence[str] = (),
    against: Sequence[Path] = (),
    **options: Any,
) -> Adapted:
    """Train a run's or a packaged model's weights further, briefly and with small steps, and
    compare the result.

    Settings, as `key=value`, change what the model was trained with; options are those of `train`.
    """
    start = (
        Run(out).start
        if options.get("resume") and Run(out).start.exists()
        else Run(find_run(start)).best
    )
    before = experiment_of_checkpoint(load_checkpoint(start))
    events = len(corpus.endpoints(TRAIN, before.model.history))
    windows = min(before.train.micro_batch, max(1, events // (STEPS_A_PASS * before.model.context)))
    rate = before.train.learning_rate * SMALLER_STEPS
    careful = before.with_changes(**SHORT, micro_batch=windows, learning_rate=rate).with_settings(
        settings
    )
    named = {str(run): Run(find_run(run)).best for run in against}
    # Refused before hours of training; all are compared on the events that have history enough for
    # each.
    readable = [heldout_rows(corpus, VALIDATION, load_checkpoint(file)) for file in named.values()]
    result = train(corpus, careful, out, start=start, **options)
    rows = min(
        [heldout_rows(corpus, VALIDATION, load_checkpoint(Run(out).best)), *readable], key=len
    )
    others, bits = {AS_IT_WAS: start, **named}, {}
    for name, file in {MODEL: Run(out).best, **others}.items():
        model = ModelPredictor.load(file, options.get("device", "auto"))
        bits[name] = event_bits(model.predict_proba(corpus, rows), corpus.target_return[rows])
    scored = score_events(corpus, rows, bits)
    return Adapted(**vars(result), gains={name: paired_gain(scored, name) for name in others})
