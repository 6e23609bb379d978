"""Proofs (c) chronology and (d) neighbours: what a model learns from, is scored on, and answers.

A corpus and a pipeline enter, proofs leave. Splits are compared with the stored columns by a rule
of their own, not by the code that evaluates. Paper: Methods, "Corpus Construction and Split
Protocol" and "Supervision Scope".
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import pairwise

import numpy as np

from vaiom.auditing.pipeline import Array, Pipeline
from vaiom.auditing.proof import Proof, claim
from vaiom.baselines.base import Rows
from vaiom.corpus.splits import SEALED, TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.features.fields import ANY_MASK, MASK_BITS
from vaiom.features.quantities import MAX_LOG_MOVE

PROBABILITY_TOLERANCE = 1e-5
"""Matrix products of other shapes may round FP32 sums otherwise."""
ASKED_ALONE = 12
"""Events whose forecast is asked for by itself."""
ASKED_TOGETHER = 192
"""Events that are asked for in one call."""


@claim(
    "c. chronology",
    "splits follow each other and hold every valid target once; no sampled window holds a target "
    "outside Train",
)
def prove_chronology(proof: Proof, pipeline: Pipeline, corpus: Corpus) -> None:
    """Splits are in the order of time, lack nothing, and the sampler draws from Train alone."""
    splits = pipeline.splits(corpus)
    times = corpus.target_timestamps
    train_end = corpus.splits.train_end
    present = {name: times[rows] for name, rows in splits.items() if len(rows)}
    for (name, own), (later, later_times) in pairwise(present.items()):
        late = int((own >= later_times.min()).sum())
        problem = f"{late} {name} events have a target at or after the first of {later}"
        proof.check(not late, problem, len(own))
    _check_unique(proof, corpus, np.concatenate(list(splits.values())))
    outside = times[splits[TRAIN]] >= np.datetime64(train_end)
    problem = f"{outside.sum()} Train events have a target at or after {train_end}"
    proof.check(not outside.any(), problem, len(outside))
    for name, rows in splits.items():
        lacking = np.setdiff1d(valid_targets(corpus, name, pipeline.model.history), rows)
        first = times[lacking[0]] if len(lacking) else ""
        problem = f"{name} lacks {len(lacking)} valid targets, the first at {first}"
        proof.check(not len(lacking), problem, len(rows))
    _check_sampler(proof, pipeline, corpus)


def _asset_of(corpus: Corpus, rows: Rows) -> Array:
    """The place of each row's asset among the assets."""
    starts = [part.start for part in corpus.asset_slices.values()]
    return np.searchsorted(starts, rows, side="right") - 1


def _check_unique(proof: Proof, corpus: Corpus, rows: Rows) -> None:
    """An event is an asset and a target time, whatever its row number."""
    seconds = corpus.target_timestamps[rows].astype("datetime64[s]").astype(np.int64)
    events = np.stack([_asset_of(corpus, rows), seconds])
    _, counts = np.unique(events, axis=1, return_counts=True)
    repeated = int((counts > 1).sum())
    problem = f"{repeated} events of an asset and a target time are there more than once"
    proof.check(not repeated, problem, len(rows))


def _check_sampler(proof: Proof, pipeline: Pipeline, corpus: Corpus) -> None:
    """Every window of every training step lies in one asset and has its targets in Train."""
    sampler = pipeline.sampler(corpus)
    starts = np.array([part.start for part in corpus.asset_slices.values()])
    train_end = np.datetime64(corpus.splits.train_end)
    for step in range(1, pipeline.train.steps + 1):
        ends = sampler.draw(step)
        first = ends - pipeline.model.context + 1
        crosses = first < starts[_asset_of(corpus, ends)]
        problem = f"step {step}: {crosses.sum()} windows begin before their asset"
        proof.check(not crosses.any(), problem, len(ends))
        targets = corpus.target_timestamps[ends]  # the last ones of their windows
        late = targets[~(targets < train_end)]  # a target that is not there yet is outside too
        named = ", ".join(map(str, late[:1]))
        problem = f"step {step}: a window holds the target at {named}, after Train"
        proof.check(not len(late), problem, len(ends))
    proof.notes.append(f"{pipeline.train.steps} steps of the sampler")


def valid_targets(corpus: Corpus, split: str, history: int) -> Rows:
    """Row numbers of the events that a split must hold, by the paper's rule and the stored columns.

    A row with `history` bars up to it, whose own masks are clear, is an event if the next bar has
    prices and a return that is finite, not zero and not beyond the largest move.
    """
    bounds = corpus.splits
    spans = {TRAIN: (datetime.min, bounds.train_end), SEALED: (bounds.seal, datetime.max)}
    spans[VALIDATION] = bounds.validation
    spans |= dict(zip(bounds.test_names, bounds.tests, strict=True))
    begin, end = (np.datetime64(each) for each in spans[split])
    flags = corpus.columns["flags"]
    events = []
    for rows in corpus.asset_slices.values():
        row = np.arange(rows.start + history - 1, rows.stop - 1)
        log_ret = corpus.columns["log_ret"][row + 1]
        stamps = corpus.timestamps[row + 1]
        with np.errstate(invalid="ignore"):
            usable = np.isfinite(log_ret) & (log_ret != 0) & (np.abs(log_ret) <= MAX_LOG_MOVE)
        usable &= flags[row] & ANY_MASK == 0
        usable &= flags[row + 1] & MASK_BITS["missing"] == 0
        events.append(row[usable & (stamps >= begin) & (stamps < end)])
    return np.concatenate(events)


@claim("d. neighbours", "probabilities of an event alone, in order and among shuffled strangers")
def prove_neighbours(proof: Proof, pipeline: Pipeline, corpus: Corpus, seed: int) -> None:
    """A forecast must not depend on the other events that are computed with it."""
    assert pipeline.predictor is not None
    predict = partial(pipeline.predictor.predict_proba, corpus)
    rng = np.random.default_rng(seed)
    rows = np.concatenate(list(pipeline.splits(corpus).values()))
    rows = np.sort(rng.choice(rows, min(ASKED_TOGETHER, len(rows)), replace=False))
    order = rng.permutation(len(rows))
    half = len(rows) // 2
    few = rng.choice(len(rows), min(ASKED_ALONE, len(rows)), replace=False)
    together = predict(rows)
    pairs = {
        "in another order": (together[order], predict(rows[order])),
        "with half of its neighbours": (together[:half], predict(rows[:half])),
        "with the other half": (together[half:], predict(rows[half:])),
        "alone": (together[few], np.concatenate([predict(rows[[at]]) for at in few])),
    }
    largest = 0.0
    for how, (one, other) in pairs.items():
        difference = np.abs(one - other).max(axis=1, initial=0)
        bad = ~(difference <= PROBABILITY_TOLERANCE)  # NaN is bad too
        problem = f"{bad.sum()} of {len(bad)} events have other probabilities {how}"
        proof.check(not bad.any(), problem, len(bad))
        largest = max(largest, float(difference.max(initial=0)))
    proof.notes.append(
        f"largest difference of a probability {largest:.1e}, tolerance {PROBABILITY_TOLERANCE:.0e}"
    )
