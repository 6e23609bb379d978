"""A trained model goes on learning on other bars: new assets, a new market, with the same buckets.

Enters: a model, and a corpus built `--like` it. Leaves: a run folder, and whether it helped: the gain over the weights
as they were, and over runs that are named, on Validation. Validation selected the step too, so a test says more.
Paper: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaiom.evaluation.events_file import MODEL, score_events
from vaiom.evaluation.inference import PairedGain, paired_gain
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.scores import event_bits
from vaiom.events.corpus import Corpus
from vaiom.events.splits import VALIDATION
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run, find_run
from vaiom.training.experiment import Experiment, experiment_of_checkpoint
from vaiom.training.loop import Report, TrainResult, train

AS_IT_WAS = "the weights as they were"
SMALLER_STEPS = 0.2
SHORT: dict[str, Any] = {
    **{"steps": 400, "validate_every": 25, "log_every": 25, "patience": 4, "warmup_steps": 20, "schedule": "cosine"},
    **{"ema_decay": 0.98, "teachers": 0, "teacher_share": 0.0},
}
"""Minutes on a CPU, stopped as soon as Validation says so."""


@dataclass(frozen=True, kw_only=True)
class Adapted(TrainResult):
    """A finished run, and what it gained on Validation over the models that it is compared with."""

    gains: dict[str, PairedGain]

    @property
    def verdict(self) -> list[str]:
        """Whether it helped, in a sentence for each model."""
        return [_sentence(name, gain) for name, gain in self.gains.items()]


def adapted_experiment(start: Path, settings: Sequence[str] = ()) -> Experiment:
    """What a model was trained with, made short and careful, with changes as `key=value`."""
    before = experiment_of_checkpoint(load_checkpoint(start))
    rate = before.train.learning_rate * SMALLER_STEPS
    return before.with_changes(**SHORT, learning_rate=rate).with_settings(settings)


def adapt(
    corpus: Corpus,
    start: Path,
    out: Path,
    *,
    settings: Sequence[str] = (),
    against: Sequence[Path] = (),
    device: str = "auto",
    resume: bool = False,
    report: Report | None = None,
) -> Adapted:
    """Go on from a run's or a packaged model's weights, and compare what came of it."""
    start = Run(out).start if resume and Run(out).start.exists() else Run(find_run(start)).best
    chosen = adapted_experiment(start, settings)
    result = train(corpus, chosen, out, device=device, resume=resume, report=report, start=start)
    others = {AS_IT_WAS: start, **{str(run): Run(find_run(run)).best for run in against}}
    rows = heldout_rows(corpus, VALIDATION, load_checkpoint(Run(out).best))
    bits = {
        name: event_bits(ModelPredictor.load(file, device).predict_proba(corpus, rows), corpus.target_return[rows])
        for name, file in {MODEL: Run(out).best, **others}.items()
    }
    events = score_events(corpus, rows, bits)
    return Adapted(**vars(result), gains={name: paired_gain(events, name) for name in others})


def _sentence(name: str, gain: PairedGain) -> str:
    interval = gain.asset_months.interval
    if not gain.gain_bits:
        return f"It did not help: {name} stay the best on Validation."
    low, high = interval or (-abs(gain.gain_bits), abs(gain.gain_bits))
    said = "It helped" if low > 0 else "It hurt" if high < 0 else "Whether it helped is open"
    width = f" [{low:+.4f}, {high:+.4f}]" if interval else ", without an interval: one asset in one month"
    return f"{said}: {gain.gain_bits:+.4f} bits/event{width} over {name}."
