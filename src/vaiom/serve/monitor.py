"""Does the model still know more than nothing? Its losses on the bars that came, against Frequency's.

Enters: a forecast, and the row of the bar that settled it. Leaves: bits of both, where the return fell in the forecast,
running means, and an alert. Frequency is the pooled Train share of each bucket where the service was given Train bars,
else the share among the bars scored so far; both with Laplace's count.
Paper: Methods, "Baselines" (Frequency) and "Evaluation and Ablation Protocol" (bits per event).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import smooth
from vaiom.events.inputs import ANY_MASK, BAD_RETURN, has_flag
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.serve.store import Scored, moment_of

WINDOW = 500
"""Scored bars of an asset that its running means look at."""
MIN_SCORED = 50
"""Fewer say too little for an alert."""
ALERT_ERRORS = 2.0
"""Standard errors by which the mean loss must be too large: less is chance."""
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
COVERAGES = (0.5, 0.8, 0.9, 0.98)
PIT_BINS = 10

_LEAST_PROBABILITY = 1e-12

Columns = Mapping[str, npt.NDArray[Any]]


class FrequencyRival:
    """Probabilities of the buckets from counts: of Train, or of what has been scored."""

    def __init__(self, num_buckets: int, train_counts: list[int] | None) -> None:
        self.of_train = train_counts is not None
        self.counts = np.array(train_counts if train_counts is not None else [0] * num_buckets, np.float64)

    @property
    def name(self) -> str:
        return "Train shares" if self.of_train else "shares of the scored bars"

    def bits(self, bucket: int) -> float:
        return -math.log2(float(smooth(self.counts)[bucket - 1]))

    def learn(self, scored: Iterable[Scored]) -> None:
        """Count settled bars, unless Train has been counted."""
        if not self.of_train:
            for each in scored:
                if each.model_bits is not None:
                    self.counts[each.bucket - 1] += 1


def train_counts(columns: Columns, train_end: datetime, context: int, num_buckets: int) -> npt.NDArray[np.int64]:
    """Buckets of the Train events of one asset: full context, an unmasked row, a valid return after it."""
    flags, stamps = columns["flags"], columns["timestamp"]
    event = ~has_flag(flags[:-1], ANY_MASK) & ~has_flag(flags[1:], BAD_RETURN)
    event &= stamps[1:].astype(np.int64) < (train_end - moment_of(0)).total_seconds()
    event[: context - 1] = False
    return np.bincount(columns["return_bucket"][1:][event], minlength=num_buckets + 1)[1:]


def settle(
    dist: ReturnDistribution, row: Columns, frequency: FrequencyRival, model: str, *, replayed: bool = False
) -> Scored:
    """Score a forecast by the row (its last) of the bar that came after it."""
    masked = any(note.startswith("masked") for note in dist.notes)
    scorable = not masked and not row["flags"][-1] & BAD_RETURN
    log_ret, bucket = float(row["log_ret"][-1]), int(row["return_bucket"][-1])
    return Scored(
        as_of=dist.as_of,
        target=moment_of(int(row["timestamp"][-1])),
        model=model,
        replayed=replayed,
        quantiles={str(level): dist.quantile(level) for level in FAN_LEVELS},
        log_ret=log_ret if math.isfinite(log_ret) else None,
        bucket=bucket if scorable else 0,
        model_bits=-math.log2(max(float(dist.probs[bucket - 1]), _LEAST_PROBABILITY)) if scorable else None,
        frequency_bits=frequency.bits(bucket) if scorable else None,
        pit=dist.cdf(log_ret) if scorable else None,
    )


@dataclass(eq=False)
class AssetMonitor:
    """The settled forecasts of one asset that are remembered, oldest first."""

    alert_bits: float
    recent: tuple[Scored, ...] = ()

    def add(self, settled: Iterable[Scored]) -> None:
        """Those that are made again come late: order is that of time. Replaced at once, for readers' sake."""
        self.recent = tuple(sorted((*self.recent, *settled), key=lambda each: each.as_of)[-WINDOW:])

    @property
    def pits(self) -> list[float]:
        return [each.pit for each in self.recent if each.pit is not None]

    def drift(self) -> dict[str, Any]:
        ours = [each.model_bits for each in self.recent if each.model_bits is not None]
        rival = [each.frequency_bits for each in self.recent if each.frequency_bits is not None]
        if not ours:
            return {"scored": 0, "model_bits": None, "frequency_bits": None, "gain_bits": None, "alert": False}
        model, frequency = sum(ours) / len(ours), sum(rival) / len(rival)
        excess = np.subtract(ours, rival) - self.alert_bits
        chance = ALERT_ERRORS * float(excess.std()) / math.sqrt(len(ours))
        return {
            "scored": len(ours),
            "model_bits": model,
            "frequency_bits": frequency,
            "gain_bits": frequency - model,
            "alert": len(ours) >= MIN_SCORED and float(excess.mean()) > chance,
        }

    def calibration(self) -> dict[str, Any]:
        """A calibrated model fills the bins evenly and covers what it promises."""
        pits = np.array(self.pits)
        counts = np.histogram(pits, PIT_BINS, (0.0, 1.0))[0]
        coverage = {
            str(level): float((np.abs(pits - 0.5) <= level / 2).mean()) if len(pits) else None for level in COVERAGES
        }
        return {"scored": len(pits), "pit_counts": counts.tolist(), "coverage": coverage}
