"""Whether the served distributions would have served as risk limits: value at risk and expected shortfall, backtested.

Enters: the distributions that users get from a `ReturnDistribution`, realised log returns and assets of events. Leaves:
`TailTest`s by Kupiec, Christoffersen, Acerbi and Szekely on both sides; what they ask, `docs/evaluation.md` says.
Paper: has no backtests; an addition. NumPy alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats
from vaiom.evaluation.scores import Labels
from vaiom.events.distribution import SIDES, ReturnDistributions

LEVELS = (0.01, 0.05)

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class TailTest:
    """One side at one level; p-values are None where their statistic does not exist."""

    group: str
    side: str
    level: float
    num_events: int
    undefined_share: float
    """Events without a limit: none, since the served distribution has one for each."""
    exceedances: int
    exceedance_rate: float | None
    kupiec_p: float | None
    independence_p: float | None
    conditional_coverage_p: float | None
    shortfall_z2: float | None
    shortfall_p: float | None
    """One-sided: small when losses were worse than forecast."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TailForecast:
    """One side at one level, (n,) each, in log returns; positive numbers are losses."""

    side: str
    level: float
    loss: Floats
    value_at_risk: Floats
    shortfall: Floats
    """The mean loss beyond the value at risk."""
    square: Floats
    """The mean squared loss beyond it."""


def forecast_tails(distributions: ReturnDistributions, log_ret: Floats) -> list[TailForecast]:
    """What was forecast of both sides at all levels, and the losses (n,) that came."""
    return [
        TailForecast(
            side=side,
            level=level,
            loss=-log_ret if side == "long" else log_ret,
            value_at_risk=distributions.value_at_risk(1 - level, side),
            shortfall=distributions.expected_shortfall(1 - level, side),
            square=distributions.expected_shortfall(1 - level, side, power=2),
        )
        for level in LEVELS
        for side in SIDES
    ]


def tail_tests(tails: Sequence[TailForecast], assets: Labels, groups: Labels | None = None) -> list[TailTest]:
    """Test all events, or those of each label in `groups` (n,); events of one asset must be in the order of time."""
    if groups is None:
        groups = np.full(len(assets), "all")
    members = {str(label): groups == label for label in np.unique(groups)}
    return [_test_tail(tail, assets, label, own) for label, own in members.items() for tail in tails]


def kupiec(exceeded: Flags, level: float) -> float:
    """Likelihood ratio of the observed rate against the level; chi-square with one degree of freedom."""
    hits, count = int(exceeded.sum()), len(exceeded)
    return -2.0 * (_log_likelihood(hits, count, level) - _log_likelihood(hits, count, hits / count))


def christoffersen(exceeded: Flags, assets: Labels) -> float | None:
    """Likelihood ratio of a chain with memory against none, one degree of freedom; None without transitions of both."""
    same = assets[1:] == assets[:-1]
    before, after = exceeded[:-1][same], exceeded[1:][same]
    if not before.any() or before.all():
        return None
    parts = [(int(after[state].sum()), int(state.sum())) for state in (~before, before)]
    memory = sum(_log_likelihood(hits, count, hits / count) for hits, count in parts)
    hits, count = (sum(each) for each in zip(*parts, strict=True))
    return max(-2.0 * (_log_likelihood(hits, count, hits / count) - memory), 0.0)


def chi_square_tail(value: float | None, degrees: int) -> float | None:
    """P(chi-square > value) for one or two degrees of freedom, in closed form; None of nothing."""
    if value is None:
        return None
    assert degrees in (1, 2)
    half = max(value, 0.0) / 2
    return math.erfc(math.sqrt(half)) if degrees == 1 else math.exp(-half)


def _test_tail(tail: TailForecast, assets: Labels, group: str, own: Flags) -> TailTest:
    loss, shortfall, square = tail.loss[own], tail.shortfall[own], tail.square[own]
    exceeded = loss > tail.value_at_risk[own]
    coverage, independence = kupiec(exceeded, tail.level), christoffersen(exceeded, assets[own])
    z2, shortfall_p = None, None
    if (shortfall > 0).all():
        z2 = float(np.mean(np.where(exceeded, loss, 0.0) / (tail.level * shortfall))) - 1.0
        # Of the term of each event: its mean square under the forecast less its squared mean, which is one.
        variance = float(np.sum(square / (tail.level * shortfall**2) - 1.0)) / len(loss) ** 2
        shortfall_p = 0.5 * math.erfc(z2 / math.sqrt(2 * variance))
    return TailTest(
        group=group,
        side=tail.side,
        level=tail.level,
        num_events=len(loss),
        undefined_share=0.0,
        exceedances=int(exceeded.sum()),
        exceedance_rate=float(exceeded.mean()),
        kupiec_p=chi_square_tail(coverage, 1),
        independence_p=chi_square_tail(independence, 1),
        conditional_coverage_p=chi_square_tail(None if independence is None else coverage + independence, 2),
        shortfall_z2=z2,
        shortfall_p=shortfall_p,
    )


def _log_likelihood(hits: int, count: int, rate: float) -> float:
    misses = count - hits
    return (hits * math.log(rate) if hits else 0.0) + (misses * math.log1p(-rate) if misses else 0.0)
