"""The figures of an evaluation that are functions of its events, computed once more by the plainest
code for each.

Enters: scored events. Leaves: values as the evaluation file spells them. One event, one block, one
replicate after another; no code is shared with the room that wrote the file.
Paper: Methods, "Paired Test Uncertainty"; Results, main Test table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.evaluation.scores import MODEL, ScoredEvents

REPLICATES, SEED, SHARES = 10_000, 17, (0.025, 0.975)
SET_REPLICATES, SET_SIZE = 1_000, 0.10
TAILS = {
    "negative": (1, 2, 3, 4),
    "positive": (13, 14, 15, 16),
    "both": (1, 2, 3, 4, 13, 14, 15, 16),
}
NUM_BUCKETS = 16

Floats = npt.NDArray[np.float64]
Figures = dict[str, Any]
Blocks = dict[tuple[str, ...], list[float]]


def mean(values: Sequence[float] | Floats) -> float:
    return math.fsum(values) / len(values)


def months_of(events: ScoredEvents) -> list[str]:
    return [str(month) for month in events.target_times.astype("datetime64[M]")]


def hours_of(events: ScoredEvents) -> list[int]:
    return [int(time.astype("datetime64[h]").astype(np.int64)) % 24 for time in events.target_times]


def means_by_label(bits: Mapping[str, Floats], labels: Sequence[Any]) -> list[Figures]:
    return [
        {
            "group": str(label),
            "num_events": len(chosen),
            "bits": {name: mean(losses[chosen]) for name, losses in bits.items()},
        }
        for label, chosen in positions(labels).items()
    ]


def positions(labels: Sequence[Any]) -> dict[Any, list[int]]:
    """Where each label stands, in the labels' order."""
    found: dict[Any, list[int]] = {}
    for position, label in enumerate(labels):
        found.setdefault(label, []).append(position)
    return {label: found[label] for label in sorted(found)}


def against(events: ScoredEvents) -> list[Figures]:
    """The model beside each baseline."""
    out = []
    for name in (name for name in events.bits if name != MODEL):
        gains = events.bits[name] - events.bits[MODEL]
        tails = {side: gains[np.isin(events.buckets, buckets)] for side, buckets in TAILS.items()}
        out.append(
            {
                "baseline": name,
                "gain": {
                    "num_events": len(gains),
                    "gain_bits": mean(gains),
                    "asset_months": bootstrap(blocks_of(gains, months_of(events), events.symbols)),
                    "months": bootstrap(blocks_of(gains, months_of(events))),
                    "tails": {
                        side: {
                            "num_events": len(part),
                            "gain_bits": mean(part) if len(part) else None,
                        }
                        for side, part in tails.items()
                    },
                },
                "diebold_mariano": _diebold_mariano(gains, events.target_times),
            }
        )
    return out


def blocks_of(gains: Floats, *labels: Sequence[Any] | npt.NDArray[Any]) -> Blocks:
    """Gains by what labels them: months first, then symbols, because the draws number the blocks
    so.
    """
    blocks = Blocks()
    for gain, *key in zip(gains, *labels, strict=True):
        blocks.setdefault(tuple(key), []).append(gain)
    return {key: blocks[key] for key in sorted(blocks)}


def bootstrap(blocks: Blocks) -> Figures:
    """One replicate after another: draw as many blocks as there are, add up their gains and their
    events.
    """
    sums = np.array([math.fsum(gains) for gains in blocks.values()])
    sizes = np.array([len(gains) for gains in blocks.values()], np.float64)
    wins = int((sums > 0).sum())
    out: Figures = {"num_blocks": len(sums), "block_wins": wins, "win_rate": wins / len(sums)}
    if len(sums) < 2:
        return {**out, "interval": None, "win_rate_interval": None}
    rng = np.random.default_rng(SEED)
    means, rates = [], []
    for _ in range(REPLICATES):
        drawn = rng.integers(0, len(sums), len(sums))
        means.append(sums[drawn].sum() / sizes[drawn].sum())
        rates.append((sums[drawn] > 0).sum() / len(sums))
    return {
        **out,
        "interval": [float(np.quantile(means, share)) for share in SHARES],
        "win_rate_interval": [float(np.quantile(rates, share)) for share in SHARES],
    }


def _diebold_mariano(gains: Floats, times: npt.NDArray[np.datetime64]) -> Figures:
    series = _by_time(gains, times)
    count, level = len(series), mean(series)
    lags = min(int(4 * (count / 100) ** (2 / 9)), count - 1)
    centred = np.array(series) - level
    variance = math.fsum(centred**2)
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * math.fsum(centred[lag:] * centred[:-lag])
    variance /= count
    statistic = level / math.sqrt(variance / count) if variance > 0 else None
    return {
        "mean_gain_bits": level,
        "statistic": statistic,
        "p_value": None if statistic is None else math.erfc(abs(statistic) / math.sqrt(2)),
        "num_times": count,
        "num_lags": lags,
    }


def _by_time(losses: Floats, times: npt.NDArray[np.datetime64]) -> list[float]:
    return [mean(losses[chosen]) for chosen in positions(list(times)).values()]


def confidence_set(events: ScoredEvents) -> Figures:
    """The model confidence set: the worst model leaves until one is left, each with the largest
    p-value so far.
    """
    series = {name: _by_time(losses, events.target_times) for name, losses in events.bits.items()}
    # Models with the same losses stand or fall together: the first of them is tested for all.
    stands_for = {
        name: next(first for first in series if series[first] == series[name]) for name in series
    }
    names = list(dict.fromkeys(stands_for.values()))
    losses = np.array([series[name] for name in names])
    count = losses.shape[1]
    block_size = max(1, round(count ** (1 / 3)))
    level = losses.mean(axis=1)
    rng = np.random.default_rng(SEED)
    drawn = np.array(
        [
            (losses - level[:, None])[:, _stretches(count, block_size, rng)].mean(axis=1)
            for _ in range(SET_REPLICATES)
        ]
    )
    left, so_far, p_values = list(range(len(names))), 0.0, dict[str, float]()
    while len(left) > 1:
        simulated = drawn[:, left] - drawn[:, left].mean(axis=1, keepdims=True)
        deviations = np.sqrt((simulated**2).mean(axis=0))
        worse = (level[left] - level[left].mean()) / deviations
        share = float(((simulated / deviations).max(axis=1) > worse.max()).mean())
        so_far = max(so_far, share)
        p_values[names[left.pop(int(worse.argmax()))]] = so_far
    p_values[names[left[0]]] = 1.0
    own = {name: p_values[first] for name, first in stands_for.items()}
    return {
        "included": [name for name, value in own.items() if value > SET_SIZE],
        "p_values": own,
        "size": SET_SIZE,
        "block_size": block_size,
    }


def _stretches(count: int, block_size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A stationary bootstrap of positions: each follows the one before, or with some probability
    begins anew.
    """
    anywhere, chance = rng.integers(count, size=count), rng.random(count)
    begins = np.flatnonzero((chance <= 1 / block_size) | (np.arange(count) == 0))
    lengths = np.diff([*begins, count])
    return np.concatenate(
        [
            (anywhere[begin] + np.arange(length)) % count
            for begin, length in zip(begins, lengths, strict=True)
        ]
    )


def seeds(events: ScoredEvents, runs: Mapping[str, Floats]) -> dict[str, Figures]:
    """Several runs on the same events, by baseline; `runs` are the model's bits in each."""
    out = {}
    for name in (name for name in events.bits if name != MODEL):
        average = np.array([mean(bits) for bits in zip(*runs.values(), strict=True)])
        blocks = blocks_of(events.bits[name] - average, months_of(events), events.symbols)
        gain = mean(events.bits[name] - average)
        own = {run: mean(bits) for run, bits in runs.items()}
        spread = math.fsum((each - mean(list(own.values()))) ** 2 for each in own.values())
        squares = math.fsum(
            math.fsum(each - gain for each in block) ** 2 for block in blocks.values()
        )
        out[name] = {
            "bits": own,
            "mean_bits": mean(list(own.values())),
            "seed_sd_bits": math.sqrt(spread / (len(own) - 1)),
            "mean_gain_bits": gain,
            "sampling_error_bits": math.sqrt(len(blocks) / (len(blocks) - 1) * squares)
            / len(events),
            "seeds_that_win": sum(each < mean(events.bits[name]) for each in own.values()),
            "average": bootstrap(blocks),
        }
    return out


def figures_of(events: ScoredEvents) -> Figures:
    """What follows from the events alone, as the evaluation file spells it."""
    labels: dict[str, list[Any]] = {
        "asset": events.symbols.tolist(),
        "month": months_of(events),
        "hour": hours_of(events),
        "bucket": events.buckets.tolist(),
    }
    return {
        "num_events": len(events),
        "bits": {name: mean(losses) for name, losses in events.bits.items()},
        "against": against(events),
        "by": {name: means_by_label(events.bits, values) for name, values in labels.items()},
    }
