"""The pipeline that the proofs of leakage examine: from bars to what a model is shown and learns.

It is the product's own code under names that a proof, or a test with a planted leak, can ask for
one by one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vaiom.auditing.proof import QUICK_BASELINES
from vaiom.baselines.base import Predictor, Rows, baseline
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS
from vaiom.files import sha256_of
from vaiom.model.config import ModelConfig
from vaiom.training.experiment import TrainConfig
from vaiom.training.windows import Sampler, train_sampler

if TYPE_CHECKING:
    import polars as pl

    from vaiom.corpus.build import CorpusConfig

Array = npt.NDArray[Any]
Bars = Mapping[str, "pl.DataFrame"]
"""Bars by symbol."""


@dataclass
class Pipeline:
    """From bars to a corpus, and to what a model is shown, learns from and answers."""

    config: CorpusConfig | None
    """None where there are no bars."""
    model: ModelConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    predictor: Predictor | None = None
    baselines: Sequence[str] = QUICK_BASELINES
    moved: bool = False
    """Whether the run has other split boundaries than its corpus was built with."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        """The corpus of these bars, with the given tokenizer or one fitted on them."""
        # Building needs a dataframe library, as bars do.
        from vaiom.corpus.build import corpus_in_memory

        assert self.config is not None
        built = corpus_in_memory(bars, self.config, tokenizer=tokenizer)
        if not self.moved:
            return built
        manifest = {"arrays": {}, "like": self.config.like is not None}
        return replace(built, manifest=manifest).with_splits(self.config.splits, tokenizer)

    def hashes(self, corpus: Corpus) -> dict[str, str]:
        """SHA-256 of what Train fits: the tokenizer, and everything that each baseline stores."""
        train = corpus.endpoints(TRAIN, self.model.history)
        hashes = {"tokenizer": corpus.tokenizer.sha256}
        for name in self.baselines:
            with tempfile.TemporaryDirectory() as folder:
                baseline(name).fit(corpus, train).save(Path(folder))
                files = sorted(file for file in Path(folder).rglob("*") if file.is_file())
                hashes[name] = sha256_of(b"".join(file.read_bytes() for file in files))
        return hashes

    def splits(self, corpus: Corpus) -> dict[str, Rows]:
        """Row numbers of the events of each split, earliest split first."""
        names = (TRAIN, VALIDATION, *corpus.splits.test_names)
        return {name: corpus.endpoints(name, self.model.history) for name in names}

    def sampler(self, corpus: Corpus) -> Sampler:
        """Draws the windows that a training step learns from."""
        return train_sampler(
            corpus, self.model.context, self.train.seed, self.train.windows_per_step
        )

    def windows(self, corpus: Corpus, rows: Rows) -> Array:
        """What a model is shown of the events of these rows, (n, context, ...)."""
        places = rows[:, None] + np.arange(1 - self.model.context, 1)
        return np.asarray(corpus.inputs(self.model)[places])


def widest_model(context: int, corpus: Corpus | None = None) -> ModelConfig:
    """A model that reads every continuous field that a corpus has, to audit it without a run."""
    absent = corpus.absent_columns if corpus else ()
    extra = [name for name in EXTRA_FIELDS if name not in absent]
    return ModelConfig(input="cont", fields=(*CONT_FIELDS, *extra), context=context)
