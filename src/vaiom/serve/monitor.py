"""Drift monitor: the model's losses on live bars against Frequency's, its calibration, and
Prometheus metrics.

Frequency is the pooled Train share of each bucket if Train bars are given, else the share among the
bars scored so far, with Laplace smoothing. Paper: Methods, "Baselines" and "Evaluation and Ablation
Protocol" (bits per event).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from vaiom.baselines.base import smooth
from vaiom.corpus.rows import Columns
from vaiom.distribution.returns import ReturnDistribution, stack
from vaiom.features.events import is_event
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

_LEAST_PROBABILITY = 1e-12
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
        "How far the source's clock is ahead of model_bits.",
    ),
}


class FrequencyBaseline:
    """Bucket probabilities from counts of Train, or of the bars scored so far."""

    def __init__(self, num_buckets: int, train_counts: list[int] | None) -> None:
        self.name = "shares of the scored bars" if train_counts is None else "Train shares"
        self.counts = np.array(train_counts or [0] * num_buckets, np.float64)
        self._of_train = train_counts is not None

    def bits(self, bucket: int) -> float:
        return -math.log2(float(smooth(self.counts)[class_of(bucket)]))

    def learn(self, settled: Iterable[SettledForecast]) -> None:
        """Count settled bars, unless Train was counted."""
        for each in settled:
            if not self._of_train and each.model_bits is not None:
                self.counts[class_of(each.bucket)] += 1


def settle(
    due: Sequence[tuple[ReturnDistribution, Columns, Columns]],
    frequency: FrequencyBaseline,
    *,
    replayed: bool = False,
) -> list[SettledForecast]:
    """Score forecasts made at the last rows of the first columns by the bars of the last rows of
    the second.
    """
    if not due:
        return []
    every = stack([dist for dist, _, _ in due])
    returns, settled = np.array([after["log_ret"][-1] for _, _, after in due]), []
    pits = every.cdf(np.nan_to_num(returns))
    figures = zip(
        due, returns.tolist(), every.quantile(FAN_LEVELS).tolist(), pits.tolist(), strict=True
    )
    for (dist, before, after), log_ret, quantiles, pit in figures:
        scorable = bool(is_event(before["flags"][-1], after["flags"][-1]))
        bucket = int(after["return_bucket"][-1])
        probability = (
            max(float(dist.probs[class_of(bucket)]), _LEAST_PROBABILITY) if scorable else math.nan
        )
        settled.append(
            SettledForecast(
                as_of=dist.as_of,
                target_time=moment_of(int(after["timestamp"][-1])),
                replayed=replayed,
                quantiles=dict(zip(map(str, FAN_LEVELS), quantiles, strict=True)),
                log_return=log_ret if math.isfinite(log_ret) else None,
                bucket=bucket if scorable else 0,
                model_bits=-math.log2(probability) if scorable else None,
                frequency_bits=frequency.bits(bucket) if scorable else None,
                pit=pit if scorable else None,
            )
        )
    return settled


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
        disable_created_metrics()
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="vaiom", registry=self.registry)
        gauge = partial(Gauge, namespace="vaiom", registry=self.registry)
        histogram = partial(Histogram, namespace="vaiom", registry=self.registry)
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
