"""What the tests of this folder share: a tiny run and what it was made from, and forecasters with
random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from training.tiny_runs import SPLITS, TINY
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus
from vaiom.distribution.returns import ReturnDistribution
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.torch_backend import TorchBackend
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import ModelCard, Provenance
from vaiom.model.vaiom import Vaiom
from vaiom.training.loop import train

CONTEXT = 48
WORLDLY_FIELDS = (*CONT_FIELDS, *EXTRA_FIELDS)


@dataclass(frozen=True, eq=False)
class TinyRun:
    bars: Path
    corpus: Corpus
    run: Path


def tiny_run(folder: Path, bars: Mapping[str, pl.DataFrame], **changes: object) -> TinyRun:
    """A few steps of training on these bars."""
    for symbol, frame in bars.items():
        write_symbol(folder / "bars", symbol, frame)
    corpus = build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=SPLITS))
    train(
        corpus, TINY.with_changes(context=CONTEXT, steps=6, **changes), folder / "run", device="cpu"
    )
    return TinyRun(bars=folder / "bars", corpus=corpus, run=folder / "run")


def untrained(corpus: Corpus, **changes: object) -> Forecaster:
    """A forecaster with random weights: enough where only the way in is looked at."""
    config = TINY.with_changes(**{"context": CONTEXT, **changes}).model
    model = Vaiom(config, corpus.tokenizer.vocabulary_sizes)
    nowhere = Provenance(
        vaiom_version="0",
        corpus_sha256="",
        inputs=[],
        splits={},
        experiment="",
        train={},
        seed=0,
        step=0,
        validation_bits=None,
    )
    return Forecaster(
        TorchBackend(model),
        ModelCard(config=config, tokenizer=corpus.tokenizer, provenance=nowhere, sha256=""),
    )


def assert_same_forecast(
    made: ReturnDistribution | None, wanted: ReturnDistribution, tolerance: float = TOLERANCE
) -> None:
    """The same forecast of the same return, but for rounding inside the model."""
    assert made is not None
    np.testing.assert_allclose(made.probs, wanted.probs, atol=tolerance)
    for name in ("sigma", "as_of", "target_time", "horizon", "context", "missing_assets"):
        assert getattr(made, name) == getattr(wanted, name), name
