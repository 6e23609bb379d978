"""What the latent states of a MoMS head do: whether they are used, differ, and last.

What each figure is, `docs/evaluation.md` says. States are not identified: their numbers mean nothing across runs.
Paper: Methods, "Output Heads"; the diagnostics are an addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from vaiom.baselines.base import Floats, Rows
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.events.corpus import Corpus
from vaiom.model.heads import state_log_probs
from vaiom.training.windows import DeviceCorpus

NUM_STRETCHES = 16
STRETCH_EVENTS = 128

_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class MixtureReport:
    """Over `num_events` events; lists are by state."""

    num_events: int
    mean_weight: list[float]
    heaviest_share: list[float]
    effective_states: float
    """Two to the entropy of the mean weights: how many equally used states would be as varied."""
    separation_bits: float
    pair_separation_bits: list[list[float]]
    persistence: float | None
    """None where no two successive events are of one asset."""
    persistence_if_independent: float


def stretches(rows: Rows) -> Rows:
    """A few runs of successive events spread over a split: enough for shares, and cheap."""
    if len(rows) <= NUM_STRETCHES * STRETCH_EVENTS:
        return rows
    starts = np.linspace(0, len(rows) - STRETCH_EVENTS, NUM_STRETCHES).astype(np.int64)
    return np.asarray(rows[(starts[:, None] + np.arange(STRETCH_EVENTS)).ravel()])


def diagnose_mixture(model: ModelPredictor, corpus: Corpus, rows: Rows) -> MixtureReport | None:
    """Diagnose a model on stretches of these events; None where its head is no mixture."""
    network = model.checkpoint.model.eval()
    if "state" not in network.heads.sizes:
        return None
    data, rows = DeviceCorpus(model.read(corpus), network.config, model.device), stretches(rows)
    weights, components = [], []
    with torch.no_grad():
        for start in range(0, len(rows), _BATCH):
            ends = torch.from_numpy(rows[start : start + _BATCH]).to(model.device)
            log_weights, log_components = state_log_probs(network(*data.inputs(ends), last_only=True))
            weights.append(log_weights[:, -1].double().exp().cpu().numpy())
            components.append(log_components[:, -1].double().exp().cpu().numpy())
    return mixture_report(np.concatenate(weights), np.concatenate(components), corpus.meta[rows, 0])


def mixture_report(weights: Floats, components: Floats, assets: Rows) -> MixtureReport:
    """Diagnose states (n, S), (n, S, K) of events (n,) in the order of time within each asset."""
    num_states = weights.shape[1]
    heaviest = weights.argmax(axis=1)
    share = np.bincount(heaviest, minlength=num_states) / len(heaviest)
    use = weights.mean(axis=0)
    follows = assets[1:] == assets[:-1]
    states, halves = range(num_states), np.full(2, 0.5)
    pairs = [[float(_jensen_shannon(halves, components[:, [i, j]]).mean()) for j in states] for i in states]
    return MixtureReport(
        num_events=len(weights),
        mean_weight=use.tolist(),
        heaviest_share=share.tolist(),
        effective_states=float(2 ** _entropy(use)),
        separation_bits=float(_jensen_shannon(weights, components).mean()),
        pair_separation_bits=pairs,
        persistence=float((heaviest[1:] == heaviest[:-1])[follows].mean()) if follows.any() else None,
        persistence_if_independent=float((share**2).sum()),
    )


def _jensen_shannon(weights: Floats, components: Floats) -> Floats:
    """Entropy of the mixture less the mean entropy of its components, per event; never below zero."""
    mixed = (weights[..., None] * components).sum(axis=-2)
    return np.asarray(np.maximum(_entropy(mixed) - (weights * _entropy(components)).sum(axis=-1), 0.0))


def _entropy(probs: Floats) -> Floats:
    """Bits, along the last axis."""
    bits: Floats = -(probs * np.log2(np.where(probs > 0, probs, 1.0))).sum(axis=-1)
    return bits
