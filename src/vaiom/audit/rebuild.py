"""Proof that the bars at hand are those of the corpus: building again gives the corpus's own hash.

Enters: an open corpus, the same as the examined run saw it, a bar folder. Leaves: a `Proof`; without it the other
proofs would examine a stranger. The pipeline that they examine must give the same columns too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from vaiom.audit.pipeline import Bars, Fitted, ProductPipeline
from vaiom.audit.proof import Claim, Proof, proving
from vaiom.events.build import CorpusConfig, build_corpus
from vaiom.events.corpus import Corpus

REBUILD = Claim(
    "rebuild", "building the corpus again from these bars gives its hash, and the examined pipeline its columns"
)


def config_of(corpus: Corpus) -> CorpusConfig:
    """What a corpus says that it was built with."""
    tokenizer = corpus.tokenizer
    classes = dict(zip(tokenizer.symbols, tokenizer.classes, strict=True))
    return CorpusConfig(timeframe=tokenizer.timeframe, splits=corpus.splits, classes=classes)


def prove_rebuild(
    corpus: Corpus, seen: Corpus, folder: Path, bars: Bars, pipeline: ProductPipeline, fitted: Fitted
) -> Proof:
    with proving(REBUILD) as proof:
        with tempfile.TemporaryDirectory() as name:
            again = build_corpus(folder, Path(name) / "corpus", config_of(corpus))
            proof.check(again.sha256 == corpus.sha256, f"the bars of {folder} give another corpus")
        columns = pipeline.corpus(bars, fitted.state).columns
        for name, ours in seen.columns.items():
            same = name in columns and np.array_equal(columns[name], ours, equal_nan=True)
            proof.check(same, f"the examined pipeline gives another {name}", len(ours))
    return proof
