"""Bits per event: how well a prediction of return buckets did, event by event and over groups of events.

The loss of an event is minus the base-2 logarithm of the probability that its bucket was given before it was known.
Paper: Methods, "Baselines" (clipping and renormalisation) and the evaluation protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Baseline, Floats, Predictor, Rows
from vaiom.events.corpus import Corpus
from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.events.splits import TRAIN
from vaiom.model.config import class_of

Buckets = npt.NDArray[np.integer]
Labels = npt.NDArray[Any]

MIN_PROBABILITY = 1e-12
TAIL_BUCKETS = 4
"""Buckets beyond the fixed cutoffs on each side."""


@dataclass(frozen=True, kw_only=True)
class GroupBits:
    """Mean bits per event of every predictor over the events with one label."""

    group: str
    num_events: int
    bits: dict[str, float]


def class_ids(buckets: Buckets, num_buckets: int) -> npt.NDArray[np.int64]:
    """Bucket ids 1..K as positions 0..K-1; an event without a bucket has no likelihood."""
    ids: npt.NDArray[np.int64] = class_of(buckets.astype(np.int64))
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_buckets):
        raise ValueError(f"buckets must lie in 1..{num_buckets}, got {buckets.min()}..{buckets.max()}")
    return ids


def clip_probabilities(probs: Floats) -> Floats:
    """Probabilities raised to the smallest one that is scored, and renormalised."""
    raised = np.maximum(probs, MIN_PROBABILITY)
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def event_bits(probs: Floats, buckets: Buckets) -> Floats:
    """The loss of every event in bits, shape (n,)."""
    if not np.isfinite(probs).all():
        raise ValueError("probabilities must be finite")
    ids = class_ids(buckets, probs.shape[-1])[:, None]
    return -np.log2(np.take_along_axis(clip_probabilities(probs), ids, axis=-1)[:, 0])


def losses_of(predictors: Iterable[Predictor], corpus: Corpus, rows: Rows, context: int) -> dict[str, Floats]:
    """Losses of the events at these rows by predictor; a baseline that is not fitted yet is fitted on Train first."""
    out = {}
    for each in predictors:
        if isinstance(each, Baseline) and not each.is_fitted:
            each.fit(corpus, corpus.endpoints(TRAIN, context))
        out[each.name] = event_bits(each.predict_proba(corpus, rows), corpus.target_return[rows])
    return out


def bits_by_group(bits: Mapping[str, Floats], groups: Labels) -> list[GroupBits]:
    """Means over the events of each label in `groups` (n,), in the labels' order; labels that never come are absent."""
    labels, group_of, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = {name: np.bincount(group_of, weights=losses, minlength=len(labels)) for name, losses in bits.items()}
    return [
        GroupBits(
            group=str(label),
            num_events=int(count),
            bits={name: float(total[index] / count) for name, total in sums.items()},
        )
        for index, (label, count) in enumerate(zip(labels, counts, strict=True))
    ]


def tail_masks(buckets: Buckets) -> dict[str, npt.NDArray[np.bool_]]:
    """Which events (n,) ended in the negative tail, in the positive one, in either."""
    negative, positive = buckets <= TAIL_BUCKETS, buckets > NUM_RETURN_BUCKETS - TAIL_BUCKETS
    return {"negative": negative, "positive": positive, "both": negative | positive}
