"""Trained weights on other bars: a short training from them, and whether it helped.

Enters: a corpus and a run, or a packaged model. Leaves: a run, and its gains on Validation over the
weights as they were and over other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.evaluation.inference import PairedGain, paired_gain
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.scores import MODEL, event_bits, score_events
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run, find_run
from vaiom.training.experiment import Experiment, experiment_of_checkpoint
from vaiom.training.loop import TrainResult, train

AS_IT_WAS = "the weights as they were"
RATE_FACTOR = 0.2
"""Learning rate of adapting, as a share of that of training."""
SHORT: dict[str, Any] = {
    "steps": 400,
    "validate_every": 25,
    "log_every": 25,
    "patience": 4,
    "warmup_steps": 20,
    "schedule": "cosine",
    "ema_decay": 0.98,
    "teachers": 0,
    "teacher_share": 0.0,
}
"""Settings that take minutes on a CPU, with early stopping."""
STEPS_PER_PASS = 4
"""Least number of steps per pass over Train: whole batches would overfit a short history within a
few steps.
"""


@dataclass(frozen=True, kw_only=True)
class Adapted(TrainResult):
    """A finished run, and its gains on Validation over other models."""

    gains: dict[str, PairedGain]

    @property
    def verdict(self) -> list[str]:
        """Whether it helped: a sentence for each model that it is compared with.

        Validation also selected the step, so a test says more.
        """
        return [_sentence(name, gain) for name, gain in self.gains.items()]


def _sentence(name: str, gain: PairedGain) -> str:
    """Whether a gain helped, with its interval."""
    if not gain.gain_bits:
        return f"It did not help: {name} stay the best on Validation."
    interval = gain.asset_months.interval
    outcome = "Whether it helped is open"
    width = ", without an interval: one asset in one month"
    if interval is not None:
        low, high = interval
        width = f" [{low:+.4f}, {high:+.4f}]"
        if low > 0:
            outcome = "It helped"
        elif high < 0:
            outcome = "It hurt"
    return f"{outcome}: {gain.gain_bits:+.4f} bits/event{width} over {name}."


def adapt(
    corpus: Corpus,
    start: Path,
    out: Path,
    *,
    settings: Sequence[str] = (),
    against: Sequence[Path] = (),
    **options: Any,
) -> Adapted:
    """Train the weights of a run or a packaged model further, and compare the result.

    Args:
        corpus: Bars in the buckets of the model.
        start: Run folder, or name of a packaged model.
        out: Folder of the new run.
        settings: Changes, as `key=value`, of what the model was trained with.
        against: Other runs to compare with, besides the weights as they were.
        options: Those of `train`.

    All models are compared on the Validation events that have history enough for each.
    """
    resumes = options.get("resume") and Run(out).start.exists()
    weights = Run(out).start if resumes else Run(find_run(start)).best
    experiment = _shortened(corpus, experiment_of_checkpoint(load_checkpoint(weights)))
    others = {str(run): Run(find_run(run)).best for run in against}
    # Models that cannot read the corpus are refused before hours of training.
    readable = [heldout_rows(corpus, VALIDATION, load_checkpoint(file)) for file in others.values()]
    experiment = experiment.with_settings(settings)
    result = train(corpus, experiment, out, start=weights, **options)
    own = heldout_rows(corpus, VALIDATION, load_checkpoint(Run(out).best))
    rows = min([own, *readable], key=len)
    compared = {AS_IT_WAS: weights, **others}
    bits = {}
    for name, file in {MODEL: Run(out).best, **compared}.items():
        model = ModelPredictor.load(file, options.get("device", "auto"))
        bits[name] = event_bits(model.predict_proba(corpus, rows), corpus.target_return[rows])
    scored = score_events(corpus, rows, bits)
    return Adapted(**vars(result), gains={name: paired_gain(scored, name) for name in compared})


def _shortened(corpus: Corpus, experiment: Experiment) -> Experiment:
    """A brief, careful version: small rates, and small steps for a short history."""
    num_events = len(corpus.endpoints(TRAIN, experiment.model.history))
    per_step = max(1, num_events // (STEPS_PER_PASS * experiment.model.context))
    return experiment.with_changes(
        **SHORT,
        micro_batch=min(experiment.train.micro_batch, per_step),
        learning_rate=experiment.train.learning_rate * RATE_FACTOR,
    )
