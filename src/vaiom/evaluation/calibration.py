"""Calibration of forecasts: the PIT and its test, reliability, proper scores, tails, risk
backtests.

Enters: forecasts and outcomes of events. Leaves: a `Calibration` and `TailTest`s, overall and by
group. `docs/evaluation.md` defines each figure. The paper reports no calibration.
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
"""Tail probabilities of the value-at-risk backtests."""
PIT_BINS = 20
RELIABILITY_BINS = 10
"""Equal-sized groups of events, by forecast."""
_LEAST_KUIPER = 0.4
"""Below, the series converges slowly and the p-value is one to many digits."""
_KUIPER_TERMS = 100

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
    """Calibration and backtests of forecasts (n, K), overall and by labels (n,).

    `served` are their distributions, `buckets` and `log_ret` (n,) the outcomes.
    """
    pit = np.asarray(served.cdf(log_ret))
    tails = forecast_tails(served, log_ret)
    everything = np.full(len(assets), "all")
    return {
        "calibration": calibrate(probs, buckets, pit),
        "calibration_by": {
            name: score_groups(probs, buckets, pit, groups) for name, groups in by.items()
        },
        "backtests": tail_tests(tails, assets, everything),
        "backtests_by": {name: tail_tests(tails, assets, groups) for name, groups in by.items()},
    }


def calibrate(probs: Floats, buckets: Buckets, pit: Floats) -> Calibration:
    """Measure forecasts (n, K) against the realised buckets (n,) and the PIT (n,) of the
    returns.
    """
    shares = clip_probabilities(probs)
    hits = one_hot(buckets, shares.shape[1])
    below = np.cumsum(shares, axis=1)
    hits_below = np.cumsum(hits, axis=1)
    in_bucket = []
    up_to_edge = []
    for place, bucket in enumerate(range(1, shares.shape[1] + 1)):
        in_bucket.append(measure_reliability(str(bucket), shares[:, place], hits[:, place]))
        up_to_edge.append(
            measure_reliability(f"<= {bucket}", below[:, place], hits_below[:, place])
        )
    low = shares[:, :TAIL_BUCKETS].sum(axis=1)
    high = shares[:, -TAIL_BUCKETS:].sum(axis=1)
    predicted = {"negative": low, "positive": high, "both": low + high}
    occurred = tail_masks(buckets)
    return Calibration(
        overall=score_group("all", probs, buckets, pit),
        pit=kuiper_test(pit),
        pit_histogram=np.histogram(pit, bins=PIT_BINS, range=(0, 1))[0].tolist(),
        buckets=in_bucket,
        cumulative=up_to_edge[:-1],
        tails=[
            measure_reliability(name, share, occurred[name].astype(np.float64))
            for name, share in predicted.items()
        ],
    )


def one_hot(buckets: Buckets, num_buckets: int) -> Floats:
    """(n, K) 1 in the column of the realised bucket, 0 elsewhere."""
    return np.eye(num_buckets)[class_ids(buckets, num_buckets)]


def score_group(group: str, probs: Floats, buckets: Buckets, pit: Floats) -> Scores:
    """The proper scores, sharpness and tail coverage of some events."""
    shares = clip_probabilities(probs)
    misses = shares - one_hot(buckets, shares.shape[1])
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
    scores = []
    for label in np.unique(groups):
        own = groups == label
        scores.append(score_group(str(label), probs[own], buckets[own], pit[own]))
    return scores


def measure_reliability(outcome: str, predicted: Floats, occurred: Floats) -> Reliability:
    """Compare forecast probabilities (n,) with whether the outcome occurred (n,), 1 or 0."""
    order = np.argsort(predicted, kind="stable")
    bins = []
    for part in np.array_split(order, min(RELIABILITY_BINS, len(order))):
        bins.append((float(predicted[part].mean()), float(occurred[part].mean()), len(part)))
    distance = sum(size * abs(forecast - share) for forecast, share, size in bins)
    return Reliability(
        outcome=outcome,
        predicted=float(predicted.mean()),
        observed=float(occurred.mean()),
        error=distance / len(predicted),
        bins=bins,
    )


def kuiper_test(pit: Floats) -> CalibrationTest:
    """Kuiper's (1960) test that the values are independent and uniform on (0, 1).

    With the statistic V and x = V (sqrt(n) + 0.155 + 0.24 / sqrt(n)) (Stephens 1970), the p-value
    is 2 sum_j (4 j^2 x^2 - 1) exp(-2 j^2 x^2).
    """
    count = len(pit)
    if not count:
        raise ValueError("a calibration test needs at least one event")
    ordered = np.sort(pit)
    steps = np.arange(count + 1) / count
    statistic = float(np.max(steps[1:] - ordered) + np.max(ordered - steps[:-1]))
    root = count**0.5
    scaled = statistic * (root + 0.155 + 0.24 / root)
    p_value = 1.0
    if scaled >= _LEAST_KUIPER:
        squares = (np.arange(1, _KUIPER_TERMS + 1) * scaled) ** 2
        p_value = 2.0 * float(np.sum((4.0 * squares - 1.0) * np.exp(-2.0 * squares)))
    return CalibrationTest(
        statistic=statistic, p_value=min(max(p_value, 0.0), 1.0), num_events=count
    )


@dataclass(frozen=True, kw_only=True)
class TailTest:
    """One side at one level; p-values are None where their statistic does not exist."""

    group: str
    side: str
    level: float
    num_events: int
    undefined_share: float = 0.0
    """Share of events without a limit: the served distribution has one for each."""
    exceedances: int
    exceedance_rate: float | None
    kupiec_p: float | None
    """Of the rate against the level."""
    independence_p: float | None
    """Of exceedances that follow each other."""
    conditional_coverage_p: float | None
    """Of both together."""
    shortfall_z2: float | None
    """Mean loss beyond the limit over the forecast one, less one (Acerbi and Szekely 2014)."""
    shortfall_p: float | None
    """One-sided: small when losses were worse than forecast."""


def forecast_tails(served: BucketDistribution, log_ret: Floats) -> dict[tuple[str, float], Floats]:
    """By side and level (4, n), in log returns: the realised loss, value at risk, and mean and mean
    square of the loss beyond it.
    """
    tails = {}
    for level in LEVELS:
        for side, loss in zip(SIDES, (-log_ret, log_ret), strict=True):
            limit = served.value_at_risk(1 - level, side)
            mean = served.expected_shortfall(1 - level, side)
            square = served.expected_shortfall(1 - level, side, power=2)
            tails[side, level] = np.stack([loss, limit, mean, square])
    return tails


def tail_tests(
    tails: dict[tuple[str, float], Floats], assets: Labels, groups: Labels
) -> list[TailTest]:
    """Test the events of each label in `groups` (n,); those of one asset must be in time order."""
    tests = []
    for label in np.unique(groups):
        own = groups == label
        for (side, level), tail in tails.items():
            tests.append(_test_tail(str(label), side, level, tail[:, own], assets[own]))
    return tests


def _test_tail(group: str, side: str, level: float, tail: Floats, assets: Labels) -> TailTest:
    """Test one tail (4, n) of `forecast_tails`."""
    loss, limit, shortfall, square = tail
    exceeded = loss > limit
    coverage = kupiec(exceeded, level)
    independence = christoffersen(exceeded, assets)
    both = None if independence is None else coverage + independence
    z2 = None
    shortfall_p = None
    if (shortfall > 0).all():
        # Acerbi and Szekely (2014), their second test.
        z2 = float(np.mean(np.where(exceeded, loss, 0.0) / (level * shortfall))) - 1.0
        # Of each event's term: its mean square under the forecast less its squared mean, one.
        variance = float(np.sum(square / (level * shortfall**2) - 1.0)) / len(loss) ** 2
        shortfall_p = 0.5 * math.erfc(z2 / math.sqrt(2 * variance))
    return TailTest(
        group=group,
        side=side,
        level=level,
        num_events=len(loss),
        exceedances=int(exceeded.sum()),
        exceedance_rate=float(exceeded.mean()),
        kupiec_p=chi_square_tail(coverage, 1),
        independence_p=chi_square_tail(independence, 1),
        conditional_coverage_p=chi_square_tail(both, 2),
        shortfall_z2=z2,
        shortfall_p=shortfall_p,
    )


def kupiec(exceeded: Flags, level: float) -> float:
    """Kupiec's (1995) likelihood ratio of the observed rate against the level, chi-square with one
    degree of freedom.
    """
    hits = int(exceeded.sum())
    count = len(exceeded)
    observed = _log_likelihood(hits, count, hits / count)
    return -2.0 * (_log_likelihood(hits, count, level) - observed)


def christoffersen(exceeded: Flags, assets: Labels) -> float | None:
    """Christoffersen's (1998) likelihood ratio of a chain with memory against none, chi-square with
    one degree of freedom; None unless events follow both hits and misses of their asset.
    """
    same = assets[1:] == assets[:-1]
    before = exceeded[:-1][same]
    after = exceeded[1:][same]
    if not before.any() or before.all():
        return None
    memory = 0.0
    for state in (~before, before):
        memory += _log_likelihood_at_rate(after[state])
    return max(-2.0 * (_log_likelihood_at_rate(after) - memory), 0.0)


def chi_square_tail(value: float | None, degrees: int) -> float | None:
    """P(chi-square > value) for one or two degrees of freedom, in closed form; None for None."""
    if value is None:
        return None
    assert degrees in (1, 2)
    half = max(value, 0.0) / 2
    return math.erfc(math.sqrt(half)) if degrees == 1 else math.exp(-half)


def _log_likelihood_at_rate(exceeded: Flags) -> float:
    """The log likelihood of independent hits at their own rate."""
    hits = int(exceeded.sum())
    return _log_likelihood(hits, len(exceeded), hits / len(exceeded))


def _log_likelihood(hits: int, count: int, rate: float) -> float:
    """The log likelihood of so many independent hits at a rate."""
    misses = count - hits
    of_hits = hits * math.log(rate) if hits else 0.0
    of_misses = misses * math.log1p(-rate) if misses else 0.0
    return of_hits + of_misses
