"""Use and separation of the latent states of a mixture-of-market-states head (MoMS).

Enters: state weights and the distribution of each state, event by event. Leaves: a `MixtureReport`.
Paper: Results, latent market states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaiom.baselines.base import Floats, Rows
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import ModelPredictor

NUM_RUNS = 16
EVENTS_PER_RUN = 128
"""The states of so many runs of successive events are diagnosed: enough for shares, and cheap."""


@dataclass(frozen=True, kw_only=True)
class MixtureReport:
    """Use and separation of latent states, which are numbered differently in each run of training.

    Lists have one value per state.
    """

    num_events: int
    mean_weight: list[float]
    heaviest_share: list[float]
    """Share of the events in which each state has the largest weight."""
    effective_states: float
    """Two to the entropy of the mean weights: how many equally used states would be as varied."""
    separation_bits: float
    """Jensen-Shannon divergence of the states' distributions: what knowing the state would add."""
    pair_separation_bits: list[list[float]]
    """The same for each pair of states, equally weighted."""
    persistence: float | None
    """Share of successive events of an asset with the same heaviest state; None where there are no
    such events.
    """
    persistence_if_independent: float
    """The same share if each event drew its heaviest state anew."""


def diagnose_mixture(model: ModelPredictor, corpus: Corpus, rows: Rows) -> MixtureReport | None:
    """Diagnose the states of a model on some of these events; None where its head is no mixture."""
    some = successive_events(rows)
    states = model.predict_states(corpus, some)
    return mixture_report(*states, corpus.meta[some, 0]) if states else None


def successive_events(rows: Rows) -> Rows:
    """A few runs of successive events, spread evenly over a split."""
    if len(rows) <= NUM_RUNS * EVENTS_PER_RUN:
        return rows
    starts = np.linspace(0, len(rows) - EVENTS_PER_RUN, NUM_RUNS).astype(np.int64)
    places = starts[:, None] + np.arange(EVENTS_PER_RUN)
    return np.asarray(rows[places.ravel()])


def mixture_report(weights: Floats, components: Floats, assets: Rows) -> MixtureReport:
    """Diagnose state weights (n, S) and components (n, S, 16) of events (n,) in time order within
    each asset.
    """
    num_events, num_states = weights.shape
    heaviest = weights.argmax(axis=1)
    heaviest_share = np.bincount(heaviest, minlength=num_states) / num_events
    mean_weight = weights.mean(axis=0)
    follows = assets[1:] == assets[:-1]
    stays = (heaviest[1:] == heaviest[:-1])[follows]
    half = np.full(2, 0.5)
    pairs = np.zeros((num_states, num_states))
    for first in range(num_states):
        for second in range(num_states):
            pairs[first, second] = _jensen_shannon(half, components[:, [first, second]]).mean()
    return MixtureReport(
        num_events=num_events,
        mean_weight=mean_weight.tolist(),
        heaviest_share=heaviest_share.tolist(),
        effective_states=float(2 ** _entropy(mean_weight)),
        separation_bits=float(_jensen_shannon(weights, components).mean()),
        pair_separation_bits=pairs.tolist(),
        persistence=float(stays.mean()) if len(stays) else None,
        persistence_if_independent=float((heaviest_share**2).sum()),
    )


def _jensen_shannon(weights: Floats, components: Floats) -> Floats:
    """(n,) entropy of each mixture less the mean entropy of its components, in bits."""
    mixed = (weights[..., None] * components).sum(axis=-2)
    within = (weights * _entropy(components)).sum(axis=-1)
    return np.asarray(np.maximum(_entropy(mixed) - within, 0.0))


def _entropy(probs: Floats) -> Floats:
    """Entropy in bits, along the last axis."""
    bits: Floats = -(probs * np.log2(np.where(probs > 0, probs, 1.0))).sum(axis=-1)
    return bits
