"""A run's distributions of the return over several bars, in bits per event against baselines.

Enters: a model with heads for longer horizons, their events in a split, stored fits of baselines.
Leaves: a `HorizonScore` of each horizon and the losses of its events. The targets of neighbouring
rows overlap, which blocks of asset-months and months allow for. Longer horizons are not in the
paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.baselines.base import Floats, Rows
from vaiom.baselines.counts import Frequency, HourOfWeek
from vaiom.baselines.stored_losses import find_fit
from vaiom.corpus.splits import SEALED
from vaiom.corpus.store import Corpus
from vaiom.distribution.buckets import BucketDistribution
from vaiom.evaluation.inference import PairedGain, paired_gain
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import (
    MODEL,
    ScoredEvents,
    TargetEvents,
    TargetScore,
    event_bits,
    losses_of,
    score_events,
    score_target,
    served_distributions,
)
from vaiom.features.fields import UNKNOWN_ASSET
from vaiom.model.horizon_heads import HorizonHeads

ROOT_OF_TIME = "root_of_time"
"""The baseline that scales the model's own forecast of one bar by the root of their number."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the forecast quantiles that are reported."""
CENTRAL = 0.9
"""Probability of the central interval whose width is compared between horizons."""
STORED = ("garch_t", "garch_t_seasonal", "lightgbm_lags")
"""Baselines that are scored where `vaiom baselines` has fitted them; the trees with its --horizon.
"""


@dataclass(frozen=True, kw_only=True)
class HorizonScore(TargetScore):
    """The model and its baselines on the events of one horizon."""

    bars: int
    gains: dict[str, PairedGain]
    """By baseline."""
    not_fitted: list[str]
    """Baselines without a stored fit."""
    wider: float
    """Share of events whose central interval is wider than that of the next shorter horizon."""
    variance_of_steps: float
    """Mean variance of the forecasts over that of the forecasts of one bar that were made along
    the way, summed.
    """
    variance_realised: float
    """Mean square of the realised returns over the mean variance of their forecasts."""
    quantiles: dict[str, float]
    """The median over events of each forecast quantile, in units of sigma20."""


def events_name(split: str, bars: int) -> str:
    """Stands for the split in the name of the file with a horizon's events."""
    return f"{split}-{bars}-bars"


def horizon_events(
    model: ModelPredictor,
    heads: HorizonHeads,
    corpus: Corpus,
    split: str,
    unseal: str | None = None,
) -> list[TargetEvents]:
    """The events of each horizon in a split.

    Baselines and labels count the corpus's own assets, which the model may number differently.
    """
    tokenizer = model.checkpoint.tokenizer
    ids = [tokenizer.asset_id(symbol) for symbol in corpus.tokenizer.symbols]
    history = model.checkpoint.config.history
    targets = []
    for fit in heads.fitted.fits:
        view = corpus.with_target(fit.renumbered([UNKNOWN_ASSET, *ids]))
        rows = view.endpoints(split, history, unseal=unseal == SEALED)
        targets.append(TargetEvents(view, rows))
    return targets


def rows_along_the_way(targets: Sequence[TargetEvents]) -> Rows:
    """The rows before each bar of all targets, from which one bar each was forecast."""
    steps = [rows_of_steps(target).ravel() for target in targets]
    return np.unique(np.concatenate(steps))


def rows_of_steps(target: TargetEvents) -> Rows:
    """(n, h): the rows before each of the bars that the target of an event spans."""
    return np.asarray(target.rows[:, None] + np.arange(target.corpus.horizon))


def judge_horizons(
    model: ModelPredictor,
    heads: HorizonHeads,
    corpus: Corpus,
    targets: Sequence[TargetEvents],
    *,
    baselines: Path | None = None,
) -> Iterator[tuple[HorizonScore, ScoredEvents, Rows]]:
    """Score every horizon that has events: its score, its events, and their rows.

    `baselines` is a folder of stored fits.
    """
    history = model.checkpoint.config.history
    steps = rows_along_the_way(targets)
    one_bar = model.predict_proba(corpus, steps)
    served = served_distributions(corpus, steps, one_bar)
    variance = served.std() ** 2
    shorter_width = _width(served)
    for target in targets:
        view, rows = target
        if not len(rows):
            continue
        at = np.searchsorted(steps, rows)
        hidden = model.hidden(corpus, rows).cpu().numpy()
        probs = heads.probs(hidden, model.inputs(corpus, rows), view.horizon)
        stored = [find_fit(name, view, history, baselines) for name in STORED]
        fitted = [fit for fit in stored if fit]
        losses = losses_of([Frequency(), HourOfWeek(), *fitted], view, rows, history)
        scaled = root_of_time(view, rows, one_bar[at])
        losses[ROOT_OF_TIME] = event_bits(scaled, view.target_return[rows])
        events = score_events(view, rows, losses, probs)
        direct = served_distributions(view, rows, probs)
        direct_variance = direct.std() ** 2
        along_the_way = variance[np.searchsorted(steps, rows_of_steps(target))].sum(axis=1)
        width = np.full(len(steps), np.nan)
        width[at] = _width(direct)
        both = np.isfinite(shorter_width[at])
        wider = width[at][both] > shorter_width[at][both]
        realised = view.log_ret_next[rows]
        score = HorizonScore(
            **figures_of_horizon(view, rows, events),
            wider=float(np.mean(wider)),
            variance_of_steps=float(np.mean(direct_variance) / np.mean(along_the_way)),
            variance_realised=float(np.mean(realised**2) / np.mean(direct_variance)),
        )
        yield score, events, rows
        shorter_width = width


def _width(dists: BucketDistribution) -> Floats:
    """(n,) widths of the central intervals, in log returns."""
    low, high = dists.interval(CENTRAL)
    return np.asarray(high - low)


def figures_of_horizon(view: Corpus, rows: Rows, events: ScoredEvents) -> dict[str, Any]:
    """The figures of a `HorizonScore` that follow from the losses and forecasts of its events."""
    assert events.probs is not None
    quantiles = served_distributions(view, rows, events.probs).quantile(LEVELS)
    medians = np.median(quantiles / view.sigma20[rows][:, None], axis=0)
    baselines = [name for name in events.bits if name != MODEL]
    return {
        **score_target(view, rows, events),
        "bars": view.horizon,
        "gains": {name: paired_gain(events, name) for name in baselines},
        "not_fitted": [name for name in STORED if name not in events.bits],
        "quantiles": dict(zip(map(str, LEVELS), medians.tolist(), strict=True)),
    }


def root_of_time(view: Corpus, rows: Rows, one_bar: Floats) -> Floats:
    """Bucket probabilities (n, 16) if the sum of h returns were the next return times the root of
    h, given those of the next bar.
    """
    next_bar = view.with_target(1)
    scaled = served_distributions(next_bar, rows, one_bar, math.sqrt(view.horizon))
    bounds = view.edges["return"][1:-1] * view.target_scale[rows][:, None]
    return np.diff(scaled.cdf(bounds), axis=1, prepend=0.0, append=1.0)
