"""A run beside the baselines and the oracle of a simulated market, all on the same Validation events.

Enters: a corpus of simulated bars, their folder, a run. Leaves: bits per event of each predictor, and how much of the
distance between Frequency and the true law the model has closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency, Markov
from vaiom.evaluation.likelihood import event_bits
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.events.corpus import Corpus
from vaiom.events.splits import TRAIN, VALIDATION
from vaiom.run import Run
from vaiom.simulate.oracle import Oracle, share_closed


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mean bits per event by predictor, worst known first."""

    bits: dict[str, float]
    share_closed: float


def compare_on_validation(corpus: Corpus, bars: Path, run: Path, device: str = "auto") -> Comparison:
    """Score everything on the events that the run was selected on."""
    model = ModelPredictor.load(Run(run).best, device)
    context = model.checkpoint.model.config.context
    train, rows = corpus.endpoints(TRAIN, context), corpus.endpoints(VALIDATION, context)
    predictors: tuple[Predictor, ...] = (
        Frequency().fit(corpus, train),
        Markov().fit(corpus, train),
        model,
        Oracle.beside(bars),
    )
    targets = corpus.target_return[rows]
    bits = {each.name: float(event_bits(each.predict_proba(corpus, rows), targets).mean()) for each in predictors}
    return Comparison(bits=bits, share_closed=share_closed(bits["frequency"], bits["model"], bits["oracle"]))
