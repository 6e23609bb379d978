"""Whether the forecast tails would have served as risk limits: value at risk and expected shortfall, after the fact.

Returns are in units of the scale through t, as the buckets are. Inside a bucket the probability is spread evenly, so
the distribution function is linear between edges; the two outermost buckets have no outer edge, and where a level's
quantile lies in one, the grid does not define it: those events are left out and their share is reported. The short
side is the long side of the mirrored returns.

Kupiec tests that the limit is exceeded as often as its level says; Christoffersen that exceedances do not cluster
(transitions between successive events of one asset) and both together. Expected shortfall is tested by Acerbi and
Szekely's second statistic, Z = sum of exceeding returns over (events x level x forecast shortfall) - 1, positive when
losses beyond the limit were more frequent or larger than forecast. Its standard deviation follows from the forecasts
themselves, event by event, so its p-value needs no simulation. The outermost bucket enters the shortfall with the
moments that Train events had there.

Enters: probabilities (n, K), edges with the infinities, realised returns over their scale, assets. Leaves: `TailTest`s.
Paper: has no backtests; an addition. NumPy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.evaluation.likelihood import Floats, clipped

LEVELS = (0.01, 0.05)
SIDES = ("long", "short")


@dataclass(frozen=True, kw_only=True)
class OuterMoments:
    """Mean and mean square of the returns in the lowest bucket and, mirrored, in the highest; in scales."""

    low: tuple[float, float]
    high: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TailTest:
    """One side at one level; p-values are None where their statistic does not exist."""

    group: str
    side: str
    level: float
    num_events: int
    undefined_share: float
    exceedances: int
    exceedance_rate: float | None
    kupiec_p: float | None
    independence_p: float | None
    conditional_coverage_p: float | None
    shortfall_z2: float | None
    shortfall_p: float | None
    """One-sided: small when losses were worse than forecast."""


@dataclass(frozen=True, eq=False)
class TailForecast:
    """Lower tails, (n,) each: quantile, expectation and mean square of what lies below it times its indicator."""

    quantile: Floats
    partial_mean: Floats
    partial_square: Floats
    defined: npt.NDArray[np.bool_]


def outer_moments(z_next: Floats, edges: Floats) -> OuterMoments:
    """Moments of Train returns in the two outermost buckets; the edge itself where Train has none there."""

    def moments(values: Floats, edge: float) -> tuple[float, float]:
        beyond = values[values <= edge]
        return (float(beyond.mean()), float((beyond**2).mean())) if len(beyond) else (float(edge), float(edge) ** 2)

    return OuterMoments(low=moments(z_next, edges[1]), high=moments(-z_next, -edges[-2]))


def tail_forecast(probs: Floats, edges: Floats, level: float, outer: tuple[float, float]) -> TailForecast:
    """The lower tail of each forecast at `level`; `outer` are the moments of the lowest bucket."""
    shares = clipped(probs)
    below = np.cumsum(shares, axis=1)
    own = np.minimum((below < level).sum(axis=1), shares.shape[1] - 1)
    rows = np.arange(len(shares))
    defined = (own > 0) & (own < shares.shape[1] - 1)
    inner = np.where(defined, own, 1)
    left, right = edges[inner], edges[inner + 1]
    inside = level - (below[rows, inner] - shares[rows, inner])
    quantile = left + (right - left) * inside / shares[rows, inner]
    # First and second moments of a uniform law on each bucket; the lowest has its own.
    a, b = edges[1:-2], edges[2:-1]
    means = np.concatenate([[outer[0]], (a + b) / 2])
    squares = np.concatenate([[outer[1]], (a * a + a * b + b * b) / 3])
    whole = np.where(np.arange(shares.shape[1] - 1) < inner[:, None], shares[:, :-1], 0.0)
    return TailForecast(
        quantile=quantile,
        partial_mean=whole @ means + inside * (left + quantile) / 2,
        partial_square=whole @ squares + inside * (left * left + left * quantile + quantile * quantile) / 3,
        defined=defined,
    )


def tail_tests(
    probs: Floats,
    edges: Floats,
    z_next: Floats,
    assets: npt.NDArray[Any],
    outer: OuterMoments,
    group: str = "all",
) -> list[TailTest]:
    """Both sides at all levels; events (n,) of one asset must be in the order of time."""
    mirrored = (probs[:, ::-1], -edges[::-1], -z_next)
    out = []
    for level in LEVELS:
        for side, (p, e, z), moments in zip(
            SIDES, ((probs, edges, z_next), mirrored), (outer.low, outer.high), strict=True
        ):
            out.append(_tail_test(tail_forecast(p, e, level, moments), z, assets, group, side, level))
    return out


def tail_tests_by_group(
    probs: Floats,
    edges: Floats,
    z_next: Floats,
    assets: npt.NDArray[Any],
    outer: OuterMoments,
    groups: npt.NDArray[Any],
) -> list[TailTest]:
    """`tail_tests` for the events of each label in `groups` (n,)."""
    out = []
    for label in np.unique(groups):
        own = groups == label
        out += tail_tests(probs[own], edges, z_next[own], assets[own], outer, str(label))
    return out


def kupiec(exceeded: npt.NDArray[np.bool_], level: float) -> float:
    """Likelihood ratio of the observed rate against the level; chi-square with one degree of freedom."""
    hits, count = int(exceeded.sum()), len(exceeded)
    return -2.0 * (_log_likelihood(hits, count - hits, level) - _log_likelihood(hits, count - hits, hits / count))


def christoffersen(exceeded: npt.NDArray[np.bool_], assets: npt.NDArray[Any]) -> float | None:
    """Likelihood ratio of a chain with memory against none, one degree of freedom; None without transitions of both."""
    same = assets[1:] == assets[:-1]
    before, after = exceeded[:-1][same], exceeded[1:][same]
    if not before.any() or before.all():
        return None
    hits_after_calm, calm = int((after & ~before).sum()), int((~before).sum())
    hits_after_hit, hit = int((after & before).sum()), int(before.sum())
    rate = (hits_after_calm + hits_after_hit) / (calm + hit)
    memory = _log_likelihood(hits_after_calm, calm - hits_after_calm, hits_after_calm / calm)
    memory += _log_likelihood(hits_after_hit, hit - hits_after_hit, hits_after_hit / hit)
    none = _log_likelihood(hits_after_calm + hits_after_hit, calm + hit - hits_after_calm - hits_after_hit, rate)
    return max(-2.0 * (none - memory), 0.0)


def _tail_test(
    forecast: TailForecast, z_next: Floats, assets: npt.NDArray[Any], group: str, side: str, level: float
) -> TailTest:
    known = forecast.defined
    z, quantile = z_next[known], forecast.quantile[known]
    exceeded = z < quantile
    coverage = kupiec(exceeded, level) if len(z) else None
    independence = christoffersen(exceeded, assets[known]) if len(z) else None
    z2, p_value = _shortfall(forecast, z, exceeded, level) if len(z) else (None, None)
    return TailTest(
        group=group,
        side=side,
        level=level,
        num_events=len(z),
        undefined_share=float(1 - known.mean()),
        exceedances=int(exceeded.sum()),
        exceedance_rate=float(exceeded.mean()) if len(z) else None,
        kupiec_p=None if coverage is None else chi_square_tail(coverage, 1),
        independence_p=None if independence is None else chi_square_tail(independence, 1),
        conditional_coverage_p=(
            None if coverage is None or independence is None else chi_square_tail(coverage + independence, 2)
        ),
        shortfall_z2=z2,
        shortfall_p=p_value,
    )


def _shortfall(
    forecast: TailForecast, z: Floats, exceeded: npt.NDArray[np.bool_], level: float
) -> tuple[float | None, float | None]:
    """Acerbi and Szekely's second statistic and its one-sided p-value."""
    mean, square = forecast.partial_mean[forecast.defined], forecast.partial_square[forecast.defined]
    # The forecast shortfall is partial_mean / level, so level x shortfall is partial_mean.
    if not (mean < 0).all():
        return None, None
    z2 = float(np.mean(np.where(exceeded, z, 0.0) / mean)) - 1.0
    deviation = math.sqrt(float(np.sum(square / mean**2 - 1.0))) / len(z)
    return z2, 0.5 * math.erfc(z2 / deviation / math.sqrt(2))


def chi_square_tail(value: float, degrees: int) -> float:
    """P(chi-square > value) for one or two degrees of freedom, in closed form."""
    if degrees == 1:
        return math.erfc(math.sqrt(max(value, 0.0) / 2))
    assert degrees == 2
    return math.exp(-max(value, 0.0) / 2)


def _log_likelihood(hits: int, misses: int, rate: float) -> float:
    return (hits * math.log(rate) if hits else 0.0) + (misses * math.log1p(-rate) if misses else 0.0)
