"""A run's distributions of the return over several bars, judged in bits per event against
baselines.

Enters: a model with horizons, a corpus, a split, stored fits of baselines. Leaves: a `HorizonScore`
of each horizon and the losses of its events. Targets overlap: asset-months are the blocks of the
first interval, months of the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.baselines.base import Floats, Rows
from vaiom.baselines.counts import Frequency, HourOfWeek
from vaiom.baselines.store import find_fit
from vaiom.corpus.splits import SEALED
from vaiom.corpus.store import Corpus
from vaiom.distribution.buckets import BucketDistribution
from vaiom.evaluation.inference import PairedGain, paired_gain
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import MODEL, ScoredEvents, event_bits, losses_of, score_events
from vaiom.features.fields import UNKNOWN_ASSET
from vaiom.model.horizon_heads import HorizonHeads

ROOT_OF_TIME = "root_of_time"
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
STORED = ("garch_t", "garch_t_seasonal", "lightgbm_lags")
"""Baselines that are scored where `vaiom baselines` has fitted them; the trees with its --horizon.
"""


@dataclass(frozen=True, kw_only=True)
class HorizonScore:
    """The model and its baselines on the events of one horizon."""

    bars: int
    num_events: int
    zero_share: float
    """Sums that were exactly zero and are therefore no events, of those that are complete."""
    bits: dict[str, float]
    """Mean per event, by predictor, the model first."""
    gains: dict[str, PairedGain]
    """By baseline."""
    not_fitted: list[str]
    """Baselines without a stored fit."""
    wider: float
    """Share of events whose central 90% is wider than that of the horizon before, the next bar at
    first.
    """
    variance_of_steps: float
    """Mean variance of the forecasts over that of the one-bar forecasts that were made along the
    way, summed.
    """
    variance_realised: float
    """Mean square of the realised returns over the mean forecast one."""
    quantiles: dict[str, float]
    """The median over events of each forecast quantile, in units of sigma20."""


def events_name(split: str, bars: int) -> str:
    """Stands for the split in the name of the file with a horizon's events."""
    return f"{split}-{bars}-bars"


HorizonEvents = list[tuple[Corpus, Rows]]
"""The corpus at each horizon, and the rows of its events in a split."""


def horizon_events(
    model: ModelPredictor,
    horizons: HorizonHeads,
    corpus: Corpus,
    split: str,
    unseal: str | None = None,
) -> HorizonEvents:
    """The events of each horizon; baselines and labels count the corpus's own assets, not the
    model's.
    """
    theirs = model.checkpoint.tokenizer
    ids = [UNKNOWN_ASSET, *map(theirs.asset_id, corpus.tokenizer.symbols)]
    views = [corpus.with_target(fit.renumbered(ids)) for fit in horizons.fitted.fits]
    history = model.checkpoint.config.history
    return [(view, view.endpoints(split, history, unseal=unseal == SEALED)) for view in views]


def rows_along_the_way(events: HorizonEvents) -> Rows:
    """The rows before every bar that a target spans, from which one bar was forecast each."""
    spans = [(own[:, None] + np.arange(view.horizon)).ravel() for view, own in events]
    return np.unique(np.concatenate(spans))


def judge_horizons(
    model: ModelPredictor,
    horizons: HorizonHeads,
    corpus: Corpus,
    events_of: HorizonEvents,
    *,
    baselines: Path | None = None,
) -> Iterator[tuple[HorizonScore, ScoredEvents, Rows]]:
    """Score every horizon on its own events; yields the score, the events and their rows."""
    history = model.checkpoint.config.history
    steps = rows_along_the_way(events_of)
    one = model.predict_proba(corpus, steps)
    hidden = model.hidden(corpus, steps).float().cpu().numpy()
    served = served_distributions(corpus, steps, one)
    low, high = served.interval(0.9)
    variance, narrower = served.std() ** 2, high - low
    for view, own in events_of:
        if not len(own):
            continue
        at = np.searchsorted(steps, own)
        probs = horizons.probs(hidden[at], model.inputs(corpus, own), view.horizon)
        fitted = [fit for name in STORED if (fit := find_fit(name, view, history, baselines))]
        losses = losses_of([Frequency(), HourOfWeek(), *fitted], view, own, history)
        losses[ROOT_OF_TIME] = event_bits(root_of_time(view, own, one[at]), view.target_return[own])
        events = score_events(view, own, losses, probs)
        further = served_distributions(view, own, probs)
        along = variance[np.searchsorted(steps, own[:, None] + np.arange(view.horizon))].sum(axis=1)
        widths, (low, high) = np.full(len(steps), np.nan), further.interval(0.9)
        widths[at] = high - low
        both = np.isfinite(narrower[at])
        score = HorizonScore(
            **figures_of_horizon(view, own, events),
            wider=float(np.mean(widths[at][both] > narrower[at][both])),
            variance_of_steps=float(np.mean(further.std() ** 2) / np.mean(along)),
            variance_realised=float(
                np.mean(view.log_ret_next[own] ** 2) / np.mean(further.std() ** 2)
            ),
        )
        yield score, events, own
        narrower = widths


def figures_of_horizon(view: Corpus, rows: Rows, events: ScoredEvents) -> dict[str, Any]:
    """The figures that follow from the losses and forecasts of the events at these rows."""
    assert events.probs is not None
    in_split = view.split_codes == view.split_codes[rows[0]]
    complete = view.log_ret_next[in_split & view.target().known]
    units = view.sigma20[rows][:, None]
    quantiles = np.median(
        np.asarray(served_distributions(view, rows, events.probs).quantile(LEVELS)) / units, axis=0
    )
    return {
        "bars": view.horizon,
        "num_events": len(events),
        "zero_share": float(np.mean(complete == 0)),
        "bits": events.mean_bits,
        "gains": {name: paired_gain(events, name) for name in events.bits if name != MODEL},
        "not_fitted": [name for name in STORED if name not in events.bits],
        "quantiles": {
            str(level): float(each) for level, each in zip(LEVELS, quantiles, strict=True)
        },
    }


def root_of_time(view: Corpus, rows: Rows, one: Floats) -> Floats:
    """Bucket probabilities (n, 16) if the sum were the next bar's return times the root of its
    number of bars.
    """
    scaled = served_distributions(view.with_target(1), rows, one, math.sqrt(view.horizon))
    bounds = view.edges["return"][1:-1] * view.target_scale[rows][:, None]
    return np.diff(scaled.cdf(bounds), axis=1, prepend=0.0, append=1.0)


def served_distributions(
    corpus: Corpus, rows: Rows, probs: Floats, times: float = 1.0
) -> BucketDistribution:
    """The forecasts served for these rows, scaled by `times`."""
    return BucketDistribution(
        probs=probs / probs.sum(axis=-1, keepdims=True),
        sigma=corpus.target_scale[rows].astype(np.float64) * times,
        shape=corpus.return_shape,
    )
