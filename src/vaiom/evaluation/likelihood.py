"""Bits per event, and the paired gain of one prediction over another.

A prediction gives each of the K return buckets a probability before the return is known. Its loss is minus the base-2
logarithm of the probability it gave to the bucket that came: the length, in bits, of the shortest code for the outcome
that someone with this prediction could use. A uniform guess costs log2(K) bits. On average the smallest loss belongs to
the true law, so a lower mean loss on events that were not fitted on means a prediction nearer to the truth. A gain of g
bits over a baseline means that the outcomes were, in geometric mean, 2**g times as probable as the baseline said.

Enters: probabilities (n, K) and the buckets that came, 1..K. Leaves: bits per event (n,), their means by
asset, month or whatever labels the events; a gain and its error.
Paper: Methods, "Baselines" (clipping and renormalisation) and the evaluation protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.corpus import Corpus
from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.model.config import class_of

Floats = npt.NDArray[np.float64]
Buckets = npt.NDArray[np.integer]

MIN_PROBABILITY = 1e-12
TAIL_BUCKETS = 4
"""Buckets beyond the fixed cutoffs on each side."""


def class_ids(buckets: Buckets, num_buckets: int) -> npt.NDArray[np.int64]:
    """Bucket ids 1..K as positions 0..K-1; an event without a bucket has no likelihood."""
    ids: npt.NDArray[np.int64] = class_of(buckets.astype(np.int64))
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_buckets):
        raise ValueError(f"buckets must lie in 1..{num_buckets}, got {buckets.min()}..{buckets.max()}")
    return ids


def clipped(probs: Floats) -> Floats:
    """Probabilities raised to the smallest one that is scored, and renormalised."""
    raised = np.maximum(probs, MIN_PROBABILITY)
    normalised: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return normalised


def event_bits(probs: Floats, buckets: Buckets) -> Floats:
    """The loss of every event in bits, shape (n,)."""
    if not np.isfinite(probs).all():
        raise ValueError("probabilities must be finite")
    chosen = np.take_along_axis(clipped(probs), class_ids(buckets, probs.shape[-1])[:, None], axis=-1)[:, 0]
    return -np.log2(chosen)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Mean of baseline bits minus model bits, with a standard error that lets events of one cluster depend."""

    gain_bits: float
    standard_error: float
    num_events: int
    num_clusters: int


def paired_gain(model_bits: Floats, baseline_bits: Floats, clusters: npt.NDArray[np.int64]) -> Gain:
    """How much better the model is than the baseline on the same events; `clusters` (n,) numbers their clusters."""
    gains = baseline_bits - model_bits
    mean = float(gains.mean())
    _, cluster_of = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster_of, weights=gains - mean)
    count = len(sums)
    if count < 2:
        raise ValueError("a standard error needs at least two clusters")
    variance = count / (count - 1) * float(np.sum(sums**2)) / len(gains) ** 2
    return Gain(gain_bits=mean, standard_error=variance**0.5, num_events=len(gains), num_clusters=count)


def asset_months(corpus: Corpus, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """A number for the asset and the calendar month of each event's target."""
    months = corpus.target_timestamps[rows].astype("datetime64[M]").astype(np.int64)
    assets = corpus.meta[rows, 0].astype(np.int64)
    numbers: npt.NDArray[np.int64] = months * (int(assets.max(initial=0)) + 1) + assets
    return numbers


@dataclass(frozen=True, kw_only=True)
class GroupBits:
    """Mean bits per event of every predictor over the events with one label."""

    group: str
    num_events: int
    bits: dict[str, float]


def bits_by_group(bits: Mapping[str, Floats], groups: npt.NDArray[Any]) -> list[GroupBits]:
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
