"""Drift monitor: the model's losses on live bars against Frequency's, and its calibration.

Enters: forecasts, and the rows before and of the bars that settled them. Leaves: settled forecasts
with their bits and PIT, and figures of the last ones. Frequency is the pooled Train share of each
bucket if Train bars are stored, else the share among the bars scored so far, with Laplace
smoothing.
Paper: Methods, "Baselines" and "Evaluation and Ablation Protocol" (bits per event).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import smooth
from vaiom.distribution.buckets import BucketDistribution
from vaiom.evaluation.scores import Buckets, event_bits
from vaiom.features.events import is_event
from vaiom.features.fields import INVALID
from vaiom.features.typing import Columns
from vaiom.forecast.bars import moment_of
from vaiom.model.config import class_of
from vaiom.serve.schemas import Drift, LiveCalibration, SettledForecast

MIN_SCORED = 50
"""Scored bars that an alert needs."""
ALERT_ERRORS = 2.0
"""Standard errors by which the mean loss must be too large for an alert."""
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of a settled forecast that are kept for the dashboard."""
COVERAGES = (0.5, 0.8, 0.9, 0.98)
"""Central intervals whose coverage is measured."""
PIT_BINS = 10
ROW_COLUMNS = ("timestamp", "flags", "log_ret", "return_bucket", "sigma20")
"""What settling needs of a row."""

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.float64]


class FrequencyBaseline:
    """Bucket probabilities from the Train events among the bars, or, without any, from the bars
    scored so far.
    """

    def __init__(self, num_buckets: int, scored: Mapping[int, int]) -> None:
        """`scored` has how often each bucket came among the scored bars."""
        self.num_buckets = num_buckets
        self._train: dict[str, Counts] = {}
        """(buckets,) Train events by symbol."""
        self._scored = self._counts_of(scored)

    @property
    def name(self) -> str:
        """Where the probabilities are from."""
        return "Train shares" if self._train else "shares of the scored bars"

    @property
    def counts(self) -> Counts:
        """(buckets,) events of each bucket."""
        return np.sum([*self._train.values()], axis=0) if self._train else self._scored

    def bits(self, buckets: Buckets) -> Floats:
        """(n,) losses in bits of bucket ids."""
        return event_bits(np.tile(smooth(self.counts), (len(buckets), 1)), buckets)

    def count_train(self, symbol: str, buckets: Buckets) -> None:
        """Count Train events of an asset by their bucket ids."""
        if len(buckets):
            counts = np.bincount(class_of(buckets), minlength=self.num_buckets).astype(np.float64)
            self._train[symbol] = self._train.get(symbol, 0) + counts

    def learn(self, settled: Iterable[SettledForecast]) -> None:
        """Count settled bars, as far as they were scored."""
        scored = Counter(each.bucket for each in settled if each.model_bits is not None)
        self._scored = self._scored + self._counts_of(scored)

    def reset(self, symbol: str, scored: Mapping[int, int]) -> None:
        """Forget an asset's Train events, and count the scored bars anew."""
        self._train.pop(symbol, None)
        self._scored = self._counts_of(scored)

    def _counts_of(self, scored: Mapping[int, int]) -> Counts:
        """Counts by bucket id as an array by class."""
        counts = np.zeros(self.num_buckets)
        for bucket, number in scored.items():
            counts[class_of(bucket)] += number
        return counts


def rows_at(places: Sequence[tuple[Columns, int]]) -> dict[str, npt.NDArray[Any]]:
    """What settling needs of single rows of several assets, (n,) each."""
    return {name: np.array([columns[name][row] for columns, row in places]) for name in ROW_COLUMNS}


def settle(
    dists: BucketDistribution,
    before: Columns,
    after: Columns,
    frequency: FrequencyBaseline,
    *,
    replayed: bool = False,
) -> list[SettledForecast]:
    """Score n forecasts made at the rows `before` by the bars of the rows `after`."""
    scorable = is_event(before["flags"], after["flags"])
    buckets = after["return_bucket"][scorable]
    columns = {
        "log_return": after["log_ret"],
        "bucket": np.where(scorable, after["return_bucket"], INVALID),
        "model_bits": _spread(event_bits(dists.probs[scorable], buckets), scorable),
        "frequency_bits": _spread(frequency.bits(buckets), scorable),
        "pit": np.where(scorable, dists.cdf(np.nan_to_num(after["log_ret"])), np.nan),
    }
    figures = zip(*(column.tolist() for column in columns.values()), strict=True)
    stamps = zip(before["timestamp"].tolist(), after["timestamp"].tolist(), strict=True)
    fans = dists.quantile(FAN_LEVELS).tolist()
    settled = []
    for (as_of, target), fan, values in zip(stamps, fans, figures, strict=True):
        known = [each if math.isfinite(each) else None for each in values]
        settled.append(
            SettledForecast.model_construct(
                as_of=moment_of(as_of),
                target_time=moment_of(target),
                replayed=replayed,
                quantiles=dict(zip(map(str, FAN_LEVELS), fan, strict=True)),
                **dict(zip(columns, known, strict=True)),
            )
        )
    return settled


def _spread(values: Floats, where: npt.NDArray[np.bool_]) -> Floats:
    """Values at the places that are True, NaN elsewhere."""
    spread = np.full(len(where), np.nan)
    spread[where] = values
    return spread


def measure_drift(settled: Sequence[SettledForecast], alert_bits: float) -> Drift:
    """Mean losses in bits, and whether the model's exceeds Frequency's by more than `alert_bits`
    and than chance explains.
    """
    pairs = [(each.model_bits, each.frequency_bits) for each in settled]
    bits = np.array([pair for pair in pairs if None not in pair], np.float64)
    if not len(bits):
        return Drift(scored=0, model_bits=None, frequency_bits=None, gain_bits=None, alert=False)
    model, frequency = (sum(losses) / len(bits) for losses in bits.T.tolist())
    error = float((bits[:, 0] - bits[:, 1]).std()) / math.sqrt(len(bits))
    is_worse = model - frequency - alert_bits > ALERT_ERRORS * error
    return Drift(
        scored=len(bits),
        model_bits=model,
        frequency_bits=frequency,
        gain_bits=frequency - model,
        gain_error=error if len(bits) > 1 else None,
        alert=is_worse and len(bits) >= MIN_SCORED,
    )


def measure_calibration(settled: Sequence[SettledForecast]) -> LiveCalibration:
    """PIT bins, even for a calibrated model, and coverage of the central intervals."""
    pits = np.array([each.pit for each in settled if each.pit is not None])
    counts, _ = np.histogram(pits, PIT_BINS, (0.0, 1.0))
    coverage: dict[str, float | None] = dict.fromkeys(map(str, COVERAGES))
    if len(pits):
        for level in COVERAGES:
            coverage[str(level)] = float((np.abs(pits - 0.5) <= level / 2).mean())
    return LiveCalibration(scored=len(pits), pit_counts=counts.tolist(), coverage=coverage)
