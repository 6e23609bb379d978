"""Calibration of forecasts: the PIT and its test, reliability, proper scores, tails, risk
backtests.

`docs/evaluation.md` defines each figure. The paper reports no calibration; NumPy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats
from vaiom.distribution.buckets import SIDES, BucketDistribution
from vaiom.evaluation.scores import (
    TAIL_BUCKETS,
    Buckets,
    Labels,
    class_ids,
    clip_probabilities,
    tail_masks,
)

LEVELS = (0.01, 0.05)
PIT_BINS = 20
RELIABILITY_BINS = 10

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class CalibrationTest:
    """A small p-value says that the outcomes were not drawn from the predictions."""

    statistic: float
    p_value: float
    num_events: int


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Forecast and observed share of one kind of outcome, overall and in equal-sized groups by
    forecast.
    """

    outcome: str
    predicted: float
    observed: float
    error: float
    """Mean distance between forecast and observed share over the groups, weighted by their events.
    """
    bins: list[tuple[float, float, int]]
    """(predicted, observed, events), lowest forecasts first."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Proper scores, sharpness, tails and uniformity of the PIT over one group of events."""

    group: str
    num_events: int
    brier: float
    ranked_probability_score: float
    entropy_bits: float
    tails_predicted: float
    tails_observed: float
    pit_p_value: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The calibration of one predictor on one split."""

    overall: Scores
    pit: CalibrationTest
    pit_histogram: list[int]
    buckets: list[Reliability]
    cumulative: list[Reliability]
    """Outcomes up to each inner edge."""
    tails: list[Reliability]


def judge_forecasts(
    served: BucketDistribution,
    probs: Floats,
    buckets: Buckets,
    log_ret: Floats,
    assets: Labels,
    by: dict[str, Labels],
) -> dict[str, Any]:
    """Calibration and backtests of forecasts against the realised returns (n,), overall and `by`
    labels (n,).
    """
    pit, tails = np.asarray(served.cdf(log_ret)), forecast_tails(served, log_ret)
    return {
        "calibration": calibrate(probs, buckets, pit),
        "calibration_by": {
            name: score_groups(probs, buckets, pit, groups) for name, groups in by.items()
        },
        "backtests": tail_tests(tails, assets, np.full(len(assets), "all")),
        "backtests_by": {name: tail_tests(tails, assets, groups) for name, groups in by.items()},
    }


def calibrate(probs: Floats, buckets: Buckets, pit: Floats) -> Calibration:
    """Measure forecasts (n, K) against the realised buckets (n,) and the PIT (n,) of the
    returns.
    """
    num_buckets = probs.shape[-1]
    shares = clip_probabilities(probs)
    hits = np.eye(num_buckets)[class_ids(buckets, num_buckets)]
    below, hits_below = np.cumsum(shares, axis=1), np.cumsum(hits, axis=1)
    low, high = shares[:, :TAIL_BUCKETS].sum(axis=1), shares[:, -TAIL_BUCKETS:].sum(axis=1)
    return Calibration(
        overall=score_group("all", probs, buckets, pit),
        pit=kuiper_test(pit),
        pit_histogram=np.histogram(pit, bins=PIT_BINS, range=(0, 1))[0].tolist(),
        buckets=[
            measure_reliability(str(k + 1), shares[:, k], hits[:, k]) for k in range(num_buckets)
        ],
        cumulative=[
            measure_reliability(f"<= {k + 1}", below[:, k], hits_below[:, k])
            for k in range(num_buckets - 1)
        ],
        tails=[
            measure_reliability(name, predicted, mask.astype(np.float64))
            for predicted, (name, mask) in zip(
                (low, high, low + high), tail_masks(buckets).items(), strict=True
            )
        ],
    )


def score_group(group: str, probs: Floats, buckets: Buckets, pit: Floats) -> Scores:
    """The proper scores, sharpness and tail coverage of some events."""
    shares = clip_probabilities(probs)
    misses = shares - np.eye(shares.shape[-1])[class_ids(buckets, shares.shape[-1])]
    tails = np.r_[0:TAIL_BUCKETS, shares.shape[1] - TAIL_BUCKETS : shares.shape[1]]
    return Scores(
        group=group,
        num_events=len(shares),
        brier=float((misses**2).sum(axis=1).mean()),
        ranked_probability_score=float((np.cumsum(misses, axis=1)[:, :-1] ** 2).mean()),
        entropy_bits=float(-(shares * np.log2(shares)).sum(axis=1).mean()),
        tails_predicted=float(shares[:, tails].sum(axis=1).mean()),
        tails_observed=float(tail_masks(buckets)["both"].mean()),
        pit_p_value=kuiper_test(pit).p_value,
    )


def score_groups(probs: Floats, buckets: Buckets, pit: Floats, groups: Labels) -> list[Scores]:
    """`score_group` for the events of each label in `groups` (n,)."""
    masks = {str(label): groups == label for label in np.unique(groups)}
    return [score_group(label, probs[own], buckets[own], pit[own]) for label, own in masks.items()]


def measure_reliability(outcome: str, predicted: Floats, occurred: Floats) -> Reliability:
    """Compare forecast probabilities (n,) with whether the outcome occurred (n,), 1 or 0."""
    order = np.argsort(predicted, kind="stable")
    groups = [part for part in np.array_split(order, RELIABILITY_BINS) if len(part)]
    bins = [
        (float(predicted[part].mean()), float(occurred[part].mean()), len(part)) for part in groups
    ]
    return Reliability(
        outcome=outcome,
        predicted=float(predicted.mean()),
        observed=float(occurred.mean()),
        error=sum(size * abs(forecast - share) for forecast, share, size in bins) / len(predicted),
        bins=bins,
    )


def kuiper_test(pit: Floats) -> CalibrationTest:
    """Kuiper's test that the values are independent and uniform on (0, 1)."""
    count = len(pit)
    if not count:
        raise ValueError("a calibration test needs at least one event")
    ordered = np.sort(pit)
    steps = np.arange(count + 1) / count
    statistic = float(np.max(steps[1:] - ordered) + np.max(ordered - steps[:-1]))
    root = count**0.5
    scaled = statistic * (root + 0.155 + 0.24 / root)
    # The limit of many events; for small values the series converges slowly, and the p-value is one
    # to many digits.
    squares = (np.arange(1, 101) * scaled) ** 2
    tail = (
        1.0 if scaled < 0.4 else 2.0 * float(np.sum((4.0 * squares - 1.0) * np.exp(-2.0 * squares)))
    )
    return CalibrationTest(statistic=statistic, p_value=min(max(tail, 0.0), 1.0), num_events=count)


@dataclass(frozen=True, kw_only=True)
class TailTest:
    """One side at one level; p-values are None where their statistic does not exist."""

    group: str
    side: str
    level: float
    num_events: int
    undefined_share: float = 0.0
    """Events without a limit: none, since the served distribution has one for each."""
    exceedances: int
    exceedance_rate: float | None
    kupiec_p: float | None
    independence_p: float | None
    conditional_coverage_p: float | None
    shortfall_z2: float | None
    shortfall_p: float | None
    """One-sided: small when losses were worse than forecast."""


def forecast_tails(served: BucketDistribution, log_ret: Floats) -> dict[tuple[str, float], Floats]:
    """By side and level, in log returns, (4, n): the realised loss, value at risk, mean and mean
    square beyond it.
    """
    out = {}
    for level in LEVELS:
        for side, loss in zip(SIDES, (-log_ret, log_ret), strict=True):
            means = (served.expected_shortfall(1 - level, side, power=power) for power in (1, 2))
            out[side, level] = np.stack([loss, served.value_at_risk(1 - level, side), *means])
    return out


def tail_tests(
    tails: dict[tuple[str, float], Floats], assets: Labels, groups: Labels
) -> list[TailTest]:
    """Test the events of each label in `groups` (n,); those of one asset must be in time order."""
    out = []
    for label in np.unique(groups):
        own = groups == label
        for (side, level), tail in tails.items():
            loss, limit, shortfall, square = tail[:, own]
            exceeded = loss > limit
            coverage, independence = kupiec(exceeded, level), christoffersen(exceeded, assets[own])
            z2, shortfall_p = None, None
            if (shortfall > 0).all():
                z2 = float(np.mean(np.where(exceeded, loss, 0.0) / (level * shortfall))) - 1.0
                # Of each event's term: its mean square under the forecast less its squared mean,
                # which is one.
                variance = float(np.sum(square / (level * shortfall**2) - 1.0)) / len(loss) ** 2
                shortfall_p = 0.5 * math.erfc(z2 / math.sqrt(2 * variance))
            test = TailTest(
                group=str(label),
                side=side,
                level=level,
                num_events=len(loss),
                exceedances=int(exceeded.sum()),
                exceedance_rate=float(exceeded.mean()),
                kupiec_p=chi_square_tail(coverage, 1),
                independence_p=chi_square_tail(independence, 1),
                conditional_coverage_p=chi_square_tail(
                    None if independence is None else coverage + independence, 2
                ),
                shortfall_z2=z2,
                shortfall_p=shortfall_p,
            )
            out.append(test)
    return out


def kupiec(exceeded: Flags, level: float) -> float:
    """Likelihood ratio of the observed rate against the level; chi-square with one degree of
    freedom.
    """
    hits, count = int(exceeded.sum()), len(exceeded)
    return -2.0 * (_log_likelihood(hits, count, level) - _log_likelihood(hits, count, hits / count))


def christoffersen(exceeded: Flags, assets: Labels) -> float | None:
    """Likelihood ratio of a chain with memory against none, one degree of freedom; None without
    transitions of both.
    """
    same = assets[1:] == assets[:-1]
    before, after = exceeded[:-1][same], exceeded[1:][same]
    if not before.any() or before.all():
        return None
    parts = [(int(after[state].sum()), int(state.sum())) for state in (~before, before)]
    memory = sum(_log_likelihood(hits, count, hits / count) for hits, count in parts)
    hits, count = int(after.sum()), len(after)
    return max(-2.0 * (_log_likelihood(hits, count, hits / count) - memory), 0.0)


def chi_square_tail(value: float | None, degrees: int) -> float | None:
    """P(chi-square > value) for one or two degrees of freedom, in closed form; None for None."""
    if value is None:
        return None
    assert degrees in (1, 2)
    half = max(value, 0.0) / 2
    return math.erfc(math.sqrt(half)) if degrees == 1 else math.exp(-half)


def _log_likelihood(hits: int, count: int, rate: float) -> float:
    misses = count - hits
    return (hits * math.log(rate) if hits else 0.0) + (
        misses * math.log1p(-rate) if misses else 0.0
    )
