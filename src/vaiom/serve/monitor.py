"""Drift monitor: the model's losses on live bars against Frequency's, its calibration, and
Prometheus metrics.

Frequency is the pooled Train share of each bucket if Train bars are given, else the share among the
bars scored so far, with Laplace smoothing. Paper: Methods, "Baselines" and "Evaluation and Ablation
Protocol" (bits per event).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import prometheus_client as prometheus

from vaiom.baselines.base import smooth
from vaiom.distribution.buckets import BucketDistribution
from vaiom.evaluation.scores import Buckets, event_bits
from vaiom.features.events import is_event
from vaiom.features.fields import INVALID
from vaiom.features.typing import Columns
from vaiom.forecast.bars import moment_of
from vaiom.model.config import class_of
from vaiom.serve.follow import FeedHealth
from vaiom.serve.schemas import Calibration, Drift, SettledForecast

WINDOW = 500
"""Scored bars of an asset in its running means."""
MIN_SCORED = 50
"""Scored bars that an alert needs."""
ALERT_ERRORS = 2.0
"""Standard errors by which the mean loss must be too large for an alert."""
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
COVERAGES = (0.5, 0.8, 0.9, 0.98)
PIT_BINS = 10
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.1, 0.25, 1.0, 5.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.float64]

_ASSET_GAUGES = {
    "scored": ("scored_bars", "Bars in the drift window: each had a forecast when it came."),
    "model_bits": ("model_bits", "Mean loss of the model over the drift window."),
    "frequency_bits": ("frequency_bits", "Mean loss of Frequency over the drift window."),
    "alert": ("drift_alert", "1 where the model lost to Frequency by more than is allowed."),
    "lag_seconds": (
        "feed_lag_seconds",
        "Since the end of the last bar, where a source is followed.",
    ),
    "failures": ("feed_failures", "Times in a row that the source had no usable answer."),
    "corrections": ("feed_corrections", "Stored bars of which the source says something else now."),
    "clock_drift_seconds": (
        "feed_clock_drift_seconds",
        "How far the source's clock is ahead of ours.",
    ),
}


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
        counts = np.zeros(self.num_buckets)
        for bucket, number in scored.items():
            counts[class_of(bucket)] += number
        return counts


def rows_at(places: Sequence[tuple[Columns, int]]) -> dict[str, npt.NDArray[Any]]:
    """What settling needs of single rows of several assets, (n,) each."""
    names = ("timestamp", "flags", "log_ret", "return_bucket")
    return {name: np.array([columns[name][row] for columns, row in places]) for name in names}


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
    """Mean losses, and whether the model's is too large."""
    model_bits = [each.model_bits for each in settled if each.model_bits is not None]
    frequency_bits = [each.frequency_bits for each in settled if each.frequency_bits is not None]
    if not model_bits:
        return Drift(scored=0, model_bits=None, frequency_bits=None, gain_bits=None, alert=False)
    model, frequency = sum(model_bits) / len(model_bits), sum(frequency_bits) / len(frequency_bits)
    error = float(np.subtract(model_bits, frequency_bits).std()) / math.sqrt(len(model_bits))
    return Drift(
        scored=len(model_bits),
        model_bits=model,
        frequency_bits=frequency,
        gain_bits=frequency - model,
        gain_error=error if len(model_bits) > 1 else None,
        alert=len(model_bits) >= MIN_SCORED
        and model - frequency - alert_bits > ALERT_ERRORS * error,
    )


def measure_calibration(settled: Sequence[SettledForecast]) -> Calibration:
    """PIT bins, even for a calibrated model, and coverage of the central intervals."""
    pits = np.array([each.pit for each in settled if each.pit is not None])
    counts = np.histogram(pits, PIT_BINS, (0.0, 1.0))[0]
    coverage = {
        str(level): float((np.abs(pits - 0.5) <= level / 2).mean()) if len(pits) else None
        for level in COVERAGES
    }
    return Calibration(scored=len(pits), pit_counts=counts.tolist(), coverage=coverage)


class Metrics:
    """The Prometheus metrics of one service."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()
        self.registry = prometheus.CollectorRegistry()
        registry = self.registry
        counter = partial(prometheus.Counter, namespace="vaiom", registry=registry)
        gauge = partial(prometheus.Gauge, namespace="vaiom", registry=registry)
        histogram = partial(prometheus.Histogram, namespace="vaiom", registry=registry)
        self.requests = counter("requests", "Requests by route and status.", ["route", "status"])
        self.seconds = histogram(
            "request_seconds", "Time from the request to the answer.", ["route"], buckets=SECONDS
        )
        self.batches = histogram(
            "batch_windows", "Windows that went through the model together.", buckets=SIZES
        )
        self.bars = counter("bars", "Acknowledged bars since the start.", ["asset"])
        self.waiting = gauge("waiting_forecasts", "Forecasts that wait for the model.")
        self.ready = gauge("ready", "1 where the service can forecast.")
        self.e_value = gauge(
            "ledger_e_value", "Evidence on record that the model beats it; 1 is none.", ["baseline"]
        )
        self.model = gauge("model_info", "The model that is served.", ["sha256", "experiment"])
        self.last_bar = gauge(
            "last_bar_seconds", "Stamp of the last bar on its own clock, since 1970.", ["asset"]
        )
        self.of_asset = {
            field: gauge(name, words, ["asset"]) for field, (name, words) in _ASSET_GAUGES.items()
        }

    def show(self, symbol: str, state: Drift | FeedHealth) -> None:
        """Update the gauges of an asset's drift or feed."""
        for field, value in vars(state).items():
            if field in self.of_asset and value is not None:
                self.of_asset[field].labels(symbol).set(value)
