"""What the tests of this folder share: a tiny run and what it was made from, and forecasters with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.tiny_runs import TINY
from vaiom.events.corpus import Corpus
from vaiom.forecast.engine import Card, TorchEngine
from vaiom.forecast.forecaster import Forecaster
from vaiom.model.checkpoint import Provenance
from vaiom.model.config import Vocabulary
from vaiom.model.vaiom import Vaiom

CONTEXT = 48


@dataclass(frozen=True, eq=False)
class TinyRun:
    bars: Path
    corpus: Corpus
    run: Path


def untrained(corpus: Corpus, **changes: object) -> Forecaster:
    """A forecaster with random weights: enough where only the way in is looked at."""
    config = TINY.with_changes(context=CONTEXT, **changes).model
    model = Vaiom(config, Vocabulary.of(corpus.tokenizer))
    nowhere = Provenance(
        vaiom_version="0", corpus_sha256="", inputs=[], splits={}, experiment="", train={}, seed=0, step=0,
        validation_bits=None,
    )  # fmt: skip
    return Forecaster(
        TorchEngine(model), Card(config=config, tokenizer=corpus.tokenizer, provenance=nowhere, sha256="")
    )
