"""Proof that the bars at hand are those of the corpus: building again gives the corpus's own hash.

Enters: an open corpus, a bar folder. Leaves: a `Proof`; without it the other proofs would examine a stranger. The
pipeline that they examine must give the same columns too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from vaiom.audit.pipeline import Bars, Fitted, ProductPipeline
from vaiom.audit.proof import Proof, proving
from vaiom.events.build import build_corpus
from vaiom.events.corpus import Corpus

NAME = "rebuild"
ABOUT = "building the corpus again from these bars gives its hash, and the examined pipeline its columns"


def prove_rebuild(corpus: Corpus, folder: Path, bars: Bars, pipeline: ProductPipeline, fitted: Fitted) -> Proof:
    with proving(NAME, ABOUT) as proof:
        with tempfile.TemporaryDirectory() as name:
            again = build_corpus(folder, Path(name) / "corpus", pipeline.config)
            proof.check(again.sha256 == corpus.sha256, f"the bars of {folder} give another corpus")
        columns = pipeline.corpus(bars, fitted.state).columns
        for name, ours in corpus.columns.items():
            same = name in columns and np.array_equal(columns[name], ours, equal_nan=True)
            proof.check(same, f"the examined pipeline gives another {name}", len(ours))
    return proof
