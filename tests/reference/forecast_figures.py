"""Calibration and risk backtests once more, from probabilities, by the plainest code for each.

Enters: probabilities of a split's events, the buckets and returns that came, groups. Leaves: values
as the evaluation file spells them. One event after another; no code is shared with the room that
wrote the file.
Paper: reports neither; both are additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from reference.event_figures import NUM_BUCKETS, Figures, mean, positions

SMALLEST, PIT_BINS, RELIABILITY_BINS, PIECES = 1e-12, 20, 10, 8
LEVELS = (0.01, 0.05)
LOW, HIGH = range(1, 5), range(13, 17)
TERMS, CERTAIN_BELOW = 100, 0.4
"""Of Kuiper's series, and where its sum is one to many digits."""


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """Events of a split in the order of the corpus, one entry each."""

    shares: list[list[float]]
    """Clipped and normalised."""
    buckets: list[int]
    z_next: list[float]
    """Returns over the scale that divides them, which changes no figure here: both sides of each
    test have it.
    """
    symbols: list[str]

    def chosen(self, rows: Sequence[int]) -> Forecasts:
        return Forecasts(
            shares=[self.shares[row] for row in rows],
            buckets=[self.buckets[row] for row in rows],
            z_next=[self.z_next[row] for row in rows],
            symbols=[self.symbols[row] for row in rows],
        )


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Knots in scales, eight pieces of equal mass a bucket; scale and shape of the Pareto tail
    beyond each end.
    """

    knots: list[float]
    lower: tuple[float, float]
    upper: tuple[float, float]

    def mirrored(self) -> Shape:
        return Shape(
            knots=[-knot for knot in reversed(self.knots)], lower=self.upper, upper=self.lower
        )


def clipped(probs: Sequence[float]) -> list[float]:
    raised = np.maximum(probs, SMALLEST)
    shares: list[float] = (raised / raised.sum()).tolist()
    return shares


def forecast_figures(
    forecasts: Forecasts, shape: Shape, groups: Mapping[str, Sequence[Any]]
) -> Figures:
    """Overall and by each kind of group."""
    parts = {
        name: {str(label): forecasts.chosen(rows) for label, rows in positions(labels).items()}
        for name, labels in groups.items()
    }
    return {
        "calibration": _calibration(forecasts, shape),
        "calibration_by": {
            name: [_scores(label, part, shape) for label, part in inside.items()]
            for name, inside in parts.items()
        },
        "backtests": _tail_tests("all", forecasts, shape),
        "backtests_by": {
            name: [
                test for label, part in inside.items() for test in _tail_tests(label, part, shape)
            ]
            for name, inside in parts.items()
        },
    }


def _calibration(forecasts: Forecasts, shape: Shape) -> Figures:
    pit = _pit(forecasts, shape)
    counts = [0] * PIT_BINS
    for value in pit:
        counts[min(int(value * PIT_BINS), PIT_BINS - 1)] += 1
    statistic, p_value = _kuiper(pit)
    outcomes: dict[str, dict[str, tuple[range, ...]]] = {
        "buckets": {str(k): (range(k, k + 1),) for k in range(1, NUM_BUCKETS + 1)},
        "cumulative": {f"<= {k}": (range(1, k + 1),) for k in range(1, NUM_BUCKETS)},
        "tails": {"negative": (LOW,), "positive": (HIGH,), "both": (LOW, HIGH)},
    }
    return {
        "overall": _scores("all", forecasts, shape),
        "pit": {"statistic": statistic, "p_value": p_value, "num_events": len(pit)},
        "pit_histogram": counts,
        **{
            kind: [_reliability(outcome, runs, forecasts) for outcome, runs in named.items()]
            for kind, named in outcomes.items()
        },
    }


def _scores(group: str, forecasts: Forecasts, shape: Shape) -> Figures:
    brier, ranked, entropy, tails = [], [], [], []
    for shares, bucket in zip(forecasts.shares, forecasts.buckets, strict=True):
        errors = [share - (k == bucket) for k, share in enumerate(shares, start=1)]
        brier.append(math.fsum(each**2 for each in errors))
        ranked.append(mean([each**2 for each in list(accumulate(errors))[:-1]]))
        entropy.append(-math.fsum(share * math.log2(share) for share in shares))
        tails.append(math.fsum(shares[k - 1] for k in (*LOW, *HIGH)))
    return {
        "group": group,
        "num_events": len(brier),
        "brier": mean(brier),
        "ranked_probability_score": mean(ranked),
        "entropy_bits": mean(entropy),
        "tails_predicted": mean(tails),
        "tails_observed": mean([float(bucket in (*LOW, *HIGH)) for bucket in forecasts.buckets]),
        "pit_p_value": _kuiper(_pit(forecasts, shape))[1],
    }


def _pit(forecasts: Forecasts, shape: Shape) -> list[float]:
    """The forecast probability of less than what came."""
    pairs = zip(forecasts.shares, forecasts.z_next, strict=True)
    return [_probability_below(z, shares, shape) for shares, z in pairs]


def _probability_below(z: float, shares: list[float], shape: Shape) -> float:
    if z < shape.knots[0]:
        return shares[0] * _survival(shape.knots[0] - z, *shape.lower)
    if z > shape.knots[-1]:
        return 1 - shares[-1] * _survival(z - shape.knots[-1], *shape.upper)
    below = [shares[0]]
    for (left, right), mass in zip(pairwise(shape.knots), _piece_masses(shares), strict=True):
        below.append(mass * min(max((z - left) / (right - left), 0.0), 1.0))
    return math.fsum(below)


def _piece_masses(shares: list[float]) -> list[float]:
    return [share / PIECES for share in shares[1:-1] for _ in range(PIECES)]


def _survival(excess: float, scale: float, tail_index: float) -> float:
    if tail_index == 0:
        return math.exp(-excess / scale)
    return float((1 + tail_index * excess / scale) ** (-1 / tail_index))


def _kuiper(values: Sequence[float]) -> tuple[float, float]:
    count, ordered = len(values), sorted(values)
    above = max((number + 1) / count - value for number, value in enumerate(ordered))
    below = max(value - number / count for number, value in enumerate(ordered))
    scaled = (above + below) * (math.sqrt(count) + 0.155 + 0.24 / math.sqrt(count))
    squares = [(term * scaled) ** 2 for term in range(1, TERMS + 1)]
    tail = 2 * math.fsum((4 * square - 1) * math.exp(-2 * square) for square in squares)
    return above + below, 1.0 if scaled < CERTAIN_BELOW else min(max(tail, 0.0), 1.0)


def _reliability(outcome: str, runs: Sequence[range], forecasts: Forecasts) -> Figures:
    # Each run of buckets is added up in order: another rounding would rank equal forecasts
    # otherwise.
    predicted = [
        sum(list(accumulate(shares[run.start - 1 : run.stop - 1]))[-1] for run in runs)
        for shares in forecasts.shares
    ]
    came = [float(any(bucket in run for run in runs)) for bucket in forecasts.buckets]
    order = sorted(range(len(predicted)), key=lambda event: predicted[event])
    size, more = divmod(len(order), RELIABILITY_BINS)
    ends = list(
        accumulate([size + (number < more) for number in range(RELIABILITY_BINS)], initial=0)
    )
    bins = [
        [
            mean([predicted[event] for event in order[start:end]]),
            mean([came[event] for event in order[start:end]]),
            end - start,
        ]
        for start, end in pairwise(ends)
        if end > start
    ]
    return {
        "outcome": outcome,
        "predicted": mean(predicted),
        "observed": mean(came),
        "error": math.fsum(num * abs(forecast - share) for forecast, share, num in bins)
        / len(predicted),
        "bins": bins,
    }


def _tail_tests(group: str, forecasts: Forecasts, shape: Shape) -> list[Figures]:
    reversed_shares = [shares[::-1] for shares in forecasts.shares]
    sides = {
        "long": (forecasts.shares, shape, forecasts.z_next),
        "short": (reversed_shares, shape.mirrored(), [-z for z in forecasts.z_next]),
    }
    return [
        {
            "group": group,
            "side": side,
            "level": level,
            **_tail_test(*parts, forecasts.symbols, level),
        }
        for level in LEVELS
        for side, parts in sides.items()
    ]


def _tail_test(
    all_shares: Sequence[list[float]],
    shape: Shape,
    z_next: Sequence[float],
    symbols: Sequence[str],
    level: float,
) -> Figures:
    tails = [_lower_tail(shares, shape, level) for shares in all_shares]
    hits = [z < quantile for z, (quantile, _, _) in zip(z_next, tails, strict=True)]
    count = len(hits)
    coverage = _ratio(sum(hits), count, level, sum(hits) / count)
    memory = _memory(hits, symbols)
    z2, p_value = _shortfall(list(zip(z_next, tails, strict=True)), hits)
    return {
        "num_events": count,
        "undefined_share": 0.0,
        "exceedances": sum(hits),
        "exceedance_rate": sum(hits) / count,
        "kupiec_p": math.erfc(math.sqrt(max(coverage, 0.0) / 2)),
        "independence_p": None if memory is None else math.erfc(math.sqrt(memory / 2)),
        "conditional_coverage_p": None
        if memory is None
        else math.exp(-max(coverage + memory, 0.0) / 2),
        "shortfall_z2": z2,
        "shortfall_p": p_value,
    }


def _lower_tail(shares: list[float], shape: Shape, level: float) -> tuple[float, float, float]:
    """Quantile, expectation and mean square below it."""
    scale, tail_index = shape.lower
    edge = -shape.knots[0]
    if level <= shares[0]:
        cut = _excess(level / shares[0], scale, tail_index)
        first, second = _tail_moments(edge + cut, scale + tail_index * cut, tail_index)
        return -(edge + cut), -level * first, level * second
    first, second = _tail_moments(edge, scale, tail_index)
    below, first, second = shares[0], -shares[0] * first, shares[0] * second
    for (left, right), mass in zip(pairwise(shape.knots), _piece_masses(shares), strict=True):
        part = min(mass, level - below)
        top = left + (right - left) * part / mass
        first += part * (left + top) / 2
        second += part * (left**2 + left * top + top**2) / 3
        below += part
        if part < mass:
            return top, first, second
    last, (scale, tail_index), rest = shape.knots[-1], shape.upper, 1 - level
    cut = _excess(rest / shares[-1], scale, tail_index)
    whole = _tail_moments(last, scale, tail_index)
    beyond = _tail_moments(last + cut, scale + tail_index * cut, tail_index)
    first += shares[-1] * whole[0] - rest * beyond[0]
    return last + cut, first, second + shares[-1] * whole[1] - rest * beyond[1]


def _excess(survival: float, scale: float, tail_index: float) -> float:
    """The excess that is passed with this probability."""
    return (
        -scale * math.log(survival)
        if tail_index == 0
        else scale * (survival**-tail_index - 1) / tail_index
    )


def _tail_moments(edge: float, scale: float, tail_index: float) -> tuple[float, float]:
    """Mean and mean square of an edge and the Pareto excess beyond it."""
    mean_excess = scale / (1 - tail_index)
    square_excess = 2 * scale * mean_excess / (1 - 2 * tail_index)
    return edge + mean_excess, edge**2 + 2 * edge * mean_excess + square_excess


def _ratio(hits: int, count: int, rate: float, other: float) -> float:
    """Twice the log-likelihood of `other` over that of `rate`."""
    return -2.0 * (_log_likelihood(hits, count, rate) - _log_likelihood(hits, count, other))


def _log_likelihood(hits: int, count: int, rate: float) -> float:
    misses = count - hits
    return (hits * math.log(rate) if hits else 0.0) + (
        misses * math.log1p(-rate) if misses else 0.0
    )


def _memory(hits: Sequence[bool], symbols: Sequence[str]) -> float | None:
    """Christoffersen: whether an exceedance makes the asset's next one more or less likely."""
    after: dict[bool, list[bool]] = {False: [], True: []}
    for (before, symbol), (now, other) in pairwise(zip(hits, symbols, strict=True)):
        if symbol == other:
            after[before].append(now)
    if not all(after.values()):
        return None
    together = [*after[False], *after[True]]
    apart = sum(
        _log_likelihood(sum(part), len(part), sum(part) / len(part)) for part in after.values()
    )
    pooled = _log_likelihood(sum(together), len(together), sum(together) / len(together))
    return max(-2.0 * (pooled - apart), 0.0)


def _shortfall(
    known: Sequence[tuple[float, tuple[float, float, float]]], hits: Sequence[bool]
) -> tuple[float | None, float | None]:
    """Acerbi and Szekely's second statistic and its one-sided p-value."""
    if not known or any(first >= 0 for _, (_, first, _) in known):
        return None, None
    lost = math.fsum(z / first for (z, (_, first, _)), hit in zip(known, hits, strict=True) if hit)
    z2 = lost / len(known) - 1
    deviation = math.sqrt(
        math.fsum(second / first**2 - 1 for _, (_, first, second) in known)
    ) / len(known)
    return z2, 0.5 * math.erfc(z2 / deviation / math.sqrt(2))
