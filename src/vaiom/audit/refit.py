"""Proof (b): what Train fits is the same when the world ends with Train.

Enters: a pipeline, bars, what it fitted on them. Leaves: a `Proof`. Everything is fitted again on bars of which those
at or after the end of Train were removed, and again with them scrambled; each part must have the same hash.
Paper: Methods, "Corpus Construction and Split Protocol" (fitted on Train, never refitted).
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from vaiom.audit.future import vandalise
from vaiom.audit.pipeline import Bars, Fitted, Pipeline
from vaiom.audit.proof import Proof, proving

NAME = "b. refit"
ABOUT = "everything fitted again with the bars after Train removed or scrambled: the same hashes"


def prove_refit(pipeline: Pipeline, bars: Bars, fitted: Fitted, *, seed: int) -> Proof:
    rng = np.random.default_rng(seed)
    last = np.datetime64(pipeline.train_end - timedelta(microseconds=1))
    with proving(NAME, ABOUT) as proof:
        for how in ("deleted", "scrambled"):
            changed = {symbol: frame for symbol, frame in vandalise(bars, last, how, rng).items() if len(frame)}
            try:
                again = pipeline.fit(changed).hashes
            except Exception as error:  # whatever a pipeline misses when later bars are gone, it had used them
                proof.check(False, f"later bars {how}: nothing could be fitted: {str(error).splitlines()[0]}")
                continue
            for name, digest in fitted.hashes.items():
                proof.check(again.get(name) == digest, f"later bars {how}: {name} was fitted otherwise")
        proof.notes.append(", ".join(fitted.hashes))
    return proof
