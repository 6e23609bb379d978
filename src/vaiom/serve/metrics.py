"""What Prometheus reads of a service: counters, timings, and each asset's drift and feed."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from vaiom.serve.follow import FeedHealth
from vaiom.serve.schemas import Drift

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.1, 0.25, 1.0, 5.0)
"""Upper edges of the buckets of answer times."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Upper edges of the buckets of batch sizes."""
ASSET_GAUGES = {
    "scored": ("scored_bars", "Bars in the drift window: each had a forecast when it came."),
    "model_bits": ("model_bits", "Mean loss of the model over the drift window."),
    "frequency_bits": ("frequency_bits", "Mean loss of Frequency over the drift window."),
    "alert": ("drift_alert", "1 where the model lost to Frequency by more than is allowed."),
    "lag_seconds": ("feed_lag_seconds", "Since the end of the last bar of a followed source."),
    "failures": ("feed_failures", "Times in a row that the source had no usable answer."),
    "corrections": ("feed_corrections", "Stored bars of which the source says something else now."),
    "clock_drift_seconds": (
        "feed_clock_drift_seconds",
        "How far the source's clock is ahead of ours.",
    ),
}
"""Name and help text of an asset's gauges, by the field of `Drift` or `FeedHealth`."""


class Metrics:
    """The Prometheus metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        """Make every metric, without values."""
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
            field: gauge(name, words, ["asset"]) for field, (name, words) in ASSET_GAUGES.items()
        }

    def show(self, symbol: str, state: Drift | FeedHealth) -> None:
        """Update the gauges of an asset's drift or feed; what is not known keeps no gauge."""
        for field, value in vars(state).items():
            if field in self.of_asset and value is not None:
                self.of_asset[field].labels(symbol).set(value)
