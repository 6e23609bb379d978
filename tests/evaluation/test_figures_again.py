"""Every figure of an evaluation against the plainest code for it, one event after another, on any
events.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import event_figures, forecast_figures, state_figures
from vaiom.auditing.compare import compare_figures
from vaiom.auditing.proof import Proof
from vaiom.codec import to_json
from vaiom.corpus.tokenizer import fit_shape
from vaiom.distribution.buckets import BucketDistribution
from vaiom.evaluation.calibration import judge_forecasts
from vaiom.evaluation.inference import ConfidenceSet, compare, compare_seeds
from vaiom.evaluation.mixture import mixture_report
from vaiom.evaluation.scores import ScoredEvents, bits_by_group, clip_probabilities

EDGES = np.array(
    [-np.inf, -3, -2, -1.5, -1, -0.7, -0.4, -0.2, 0, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, np.inf]
)


def random_events(
    rng: np.random.Generator, count: int, num_assets: int, num_months: int
) -> ScoredEvents:
    hours = np.sort(rng.integers(0, 24 * 30 * num_months, count))
    return ScoredEvents(
        symbols=np.array(["XAUUSD", "EURUSD", "USDJPY"])[rng.integers(0, num_assets, count)],
        target_times=np.datetime64("2024-07-01T00", "s") + hours * np.timedelta64(1, "h"),
        buckets=rng.integers(1, 17, count).astype(np.uint8),
        bits={name: rng.gamma(4, 0.8, count) for name in ("model", "frequency", "markov")},
    )


def agree(ours: Any, theirs: Any) -> int:
    proof = Proof(name="figures")
    compare_figures(proof, ours, json.loads(json.dumps(theirs)), "")
    assert proof.findings == []
    return proof.count


SIZES = (st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=6)
@given(*SIZES)
def test_both_computations_from_bits_agree(
    seed: int, count: int, num_assets: int, num_months: int
) -> None:
    events = random_events(np.random.default_rng(seed), count, num_assets, num_months)
    labels = {
        "asset": events.symbols,
        "month": events.target_times.astype("datetime64[M]"),
        "hour": events.target_times.astype("datetime64[h]").astype(np.int64) % 24,
        "bucket": events.buckets,
    }
    stored = {
        "num_events": len(events),
        "bits": {name: float(losses.mean()) for name, losses in events.bits.items()},
        "against": [asdict(each) for each in compare(events)],
        "by": {
            name: [asdict(each) for each in bits_by_group(events.bits, values)]
            for name, values in labels.items()
        },
    }
    ours = {
        name: value for name, value in event_figures.figures_of(events).items() if name in stored
    }
    assert agree(ours, stored) > 60
    found = ConfidenceSet.of(events.bits, events.target_times)
    if found is not None:
        agree(event_figures.confidence_set(events), asdict(found))
    blocks = event_figures.blocks_of(
        events.bits["model"], event_figures.months_of(events), events.symbols
    )
    runs = {"a": events.bits["model"], "b": events.bits["markov"]}
    found = compare_seeds(events, runs)
    assert (found is not None) == (len(blocks) > 1)
    if found:
        agree(
            event_figures.seeds(events, runs), {name: asdict(each) for name, each in found.items()}
        )


@settings(max_examples=15)
@given(*SIZES, st.sampled_from([0.05, 1.0, 20.0]))
def test_both_computations_from_forecasts_agree(
    seed: int, count: int, num_assets: int, num_months: int, evenness: float
) -> None:
    rng = np.random.default_rng(seed)
    events = random_events(rng, count, num_assets, num_months)
    events.symbols.sort()
    probs = rng.dirichlet(np.full(16, evenness), count)
    inside = np.clip(EDGES, -5, 5)
    z_next = rng.uniform(inside[events.buckets - 1], inside[events.buckets])
    sigma = rng.uniform(1e-5, 1e-2, count)
    fitted = fit_shape(EDGES, 4 * rng.standard_t(3, int(rng.integers(1, 3_000))))
    hours = np.array(event_figures.hours_of(events))
    served = BucketDistribution(probs=clip_probabilities(probs), sigma=sigma, shape=fitted)
    groups = {"asset": events.symbols, "hour": hours}
    stored = to_json(
        judge_forecasts(served, probs, events.buckets, z_next * sigma, events.symbols, groups)
    )
    forecasts = forecast_figures.Forecasts(
        shares=[forecast_figures.clipped(each) for each in probs.tolist()],
        buckets=events.buckets.tolist(),
        z_next=z_next.tolist(),
        symbols=events.symbols.tolist(),
    )
    shape = forecast_figures.Shape(
        knots=fitted.knots.tolist(),
        lower=(fitted.lower.scale, fitted.lower.shape),
        upper=(fitted.upper.scale, fitted.upper.shape),
    )
    named = {name: labels.tolist() for name, labels in groups.items()}
    assert agree(forecast_figures.forecast_figures(forecasts, shape, named), stored) > 200


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 4))
def test_both_computations_of_states_agree(seed: int, count: int, num_states: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(num_states), count)
    components = rng.dirichlet(np.ones(16), (count, num_states))
    assets = np.sort(rng.integers(0, 2, count))
    ours = state_figures.state_figures(weights.tolist(), components.tolist(), assets.tolist())
    agree(ours, asdict(mixture_report(weights, components, assets)))
