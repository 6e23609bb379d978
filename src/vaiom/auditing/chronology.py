"""Proofs (c) chronology and (d) neighbours: what a model learns from, is scored on, and answers.

A corpus and a pipeline enter, proofs leave. Which events a split must hold is worked out here from
the stored columns, by a rule of its own: the code that evaluates may be what is wrong. Paper:
Methods, "Corpus Construction and Split Protocol" and "Supervision Scope".
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import pairwise

import numpy as np

from vaiom.auditing.pipeline import Array, Pipeline
from vaiom.auditing.proof import Proof, claim
from vaiom.baselines.base import Rows
from vaiom.corpus.splits import SEALED, TRAIN, VALIDATION, SplitConfig
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
    """Splits are in the order of time, lack nothing, and the sampler draws from Train alone.

    A target belongs to a split by its own time, not by that of its row. An event that is in two
    splits, one that was dropped because it was hard to predict, and a window that reaches over the
    end of Train are all found.
    """
    splits = pipeline.splits(corpus)
    times = corpus.target_timestamps
    train_end = corpus.splits.train_end
    present = [(name, times[rows]) for name, rows in splits.items() if len(rows)]
    for (name, own), (later, later_times) in pairwise(present):
        late = np.sum(own >= later_times.min())
        problem = f"{late} {name} events have a target at or after the first of {later}"
        proof.check(late == 0, problem, len(own))
    _check_unique(proof, corpus, np.concatenate(list(splits.values())))
    in_train = times[splits[TRAIN]]
    outside = np.sum(in_train >= np.datetime64(train_end))
    problem = f"{outside} Train events have a target at or after {train_end}"
    proof.check(outside == 0, problem, len(in_train))
    for name, rows in splits.items():
        expected = valid_targets(corpus, name, pipeline.model.history)
        lacking = np.setdiff1d(expected, rows)
        first = ", ".join(map(str, times[lacking[:1]]))
        problem = f"{name} lacks {len(lacking)} valid targets, the first at {first}"
        proof.check(len(lacking) == 0, problem, len(rows))
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
    repeated = np.sum(counts > 1)
    problem = f"{repeated} events of an asset and a target time are there more than once"
    proof.check(repeated == 0, problem, len(rows))


def _check_sampler(proof: Proof, pipeline: Pipeline, corpus: Corpus) -> None:
    """Every window of every training step lies in one asset and has its targets in Train."""
    sampler = pipeline.sampler(corpus)
    starts = np.array([part.start for part in corpus.asset_slices.values()])
    train_end = np.datetime64(corpus.splits.train_end)
    for step in range(1, pipeline.train.steps + 1):
        ends = sampler.draw(step)
        first = ends - pipeline.model.context + 1
        crosses = np.sum(first < starts[_asset_of(corpus, ends)])
        problem = f"step {step}: {crosses} windows begin before their asset"
        proof.check(crosses == 0, problem, len(ends))
        # The last target of a window is the latest; one that is not there yet is outside too.
        targets = corpus.target_timestamps[ends]
        late = targets[~(targets < train_end)]
        named = ", ".join(map(str, late[:1]))
        problem = f"step {step}: a window holds the target at {named}, after Train"
        proof.check(len(late) == 0, problem, len(ends))
    proof.note(f"{pipeline.train.steps} steps of the sampler")


def valid_targets(corpus: Corpus, split: str, history: int) -> Rows:
    """Row numbers of the events that a split must hold, by the paper's rule and the stored columns.

    A row with `history` bars up to it, whose own masks are clear, is an event if the next bar has
    prices and a return that is finite, not zero and not beyond the largest move.
    """
    begin, end = _span_of(corpus.splits, split)
    flags = corpus.columns["flags"]
    events = []
    for rows in corpus.asset_slices.values():
        row = np.arange(rows.start + history - 1, rows.stop - 1)
        following = row + 1
        move = np.abs(corpus.columns["log_ret"][following])
        usable = np.isfinite(move) & (move != 0)
        usable &= move <= MAX_LOG_MOVE
        usable &= flags[row] & ANY_MASK == 0
        usable &= flags[following] & MASK_BITS["missing"] == 0
        stamps = corpus.timestamps[following]
        usable &= (stamps >= begin) & (stamps < end)
        events.append(row[usable])
    return np.concatenate(events)


def _span_of(bounds: SplitConfig, split: str) -> tuple[np.datetime64, np.datetime64]:
    """The half-open interval of a split's targets."""
    spans = dict(zip(bounds.test_names, bounds.tests, strict=True))
    spans[TRAIN] = (datetime.min, bounds.train_end)
    spans[VALIDATION] = bounds.validation
    spans[SEALED] = (bounds.seal, datetime.max)
    begin, end = spans[split]
    return np.datetime64(begin), np.datetime64(end)


@claim("d. neighbours", "probabilities of an event alone, in order and among shuffled strangers")
def prove_neighbours(proof: Proof, pipeline: Pipeline, corpus: Corpus, seed: int) -> None:
    """A forecast must not depend on the other events that are computed with it.

    A network that normalises over its batch, or mixes rows of a window with those of another, gives
    an event other probabilities in other company. Some events of all splits are asked for in
    several companies, and alone.
    """
    assert pipeline.predictor is not None
    predict = partial(pipeline.predictor.predict_proba, corpus)
    rng = np.random.default_rng(seed)
    events = np.concatenate(list(pipeline.splits(corpus).values()))
    size = min(ASKED_TOGETHER, len(events))
    rows = np.sort(rng.choice(events, size, replace=False))
    order = rng.permutation(size)
    half = size // 2
    few = rng.choice(size, min(ASKED_ALONE, size), replace=False)
    together = predict(rows)
    pairs = {
        "in another order": (together[order], predict(rows[order])),
        "with half of its neighbours": (together[:half], predict(rows[:half])),
        "with the other half": (together[half:], predict(rows[half:])),
    }
    alone = [predict(rows[[at]]) for at in few]
    pairs["alone"] = (together[few], np.concatenate(alone))
    largest = 0.0
    for how, (one, other) in pairs.items():
        difference = np.abs(one - other).max(axis=1, initial=0)
        bad = np.sum(~(difference <= PROBABILITY_TOLERANCE))  # NaN is bad too
        problem = f"{bad} of {len(one)} events have other probabilities {how}"
        proof.check(bad == 0, problem, len(one))
        largest = max(largest, float(difference.max(initial=0)))
    proof.note(
        f"largest difference of a probability {largest:.1e}, tolerance {PROBABILITY_TOLERANCE:.0e}"
    )
