"""Counts and times in the text format that Prometheus scrapes.

Enters: events of the service. Leaves: the page of `/metrics`. The format needs a dozen lines, so no library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.1, 0.25, 1.0, 5.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

Labels = tuple[tuple[str, str], ...]


class Counter:
    kind = "counter"

    def __init__(self, name: str, help_: str) -> None:
        self.name, self.help = name, help_
        self.values: dict[Labels, float] = defaultdict(float)

    def add(self, amount: float = 1, **labels: str) -> None:
        self.values[tuple(labels.items())] += amount

    def lines(self) -> Iterable[str]:
        return (f"{self.name}{_labels(labels)} {_number(value)}" for labels, value in self.values.items())


class Gauge(Counter):
    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        self.values[tuple(labels.items())] = value


class Histogram:
    kind = "histogram"

    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self.bounds = name, help_, bounds
        self.counts: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self.sums: dict[Labels, float] = defaultdict(float)

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        self.counts[key][bisect_left(self.bounds, value)] += 1
        self.sums[key] += value

    def lines(self) -> Iterable[str]:
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_labels((*labels, ('le', _number(bound))))} {total}"
            yield f"{self.name}_sum{_labels(labels)} {_number(self.sums[labels])}"
            yield f"{self.name}_count{_labels(labels)} {total}"


class Metrics:
    def __init__(self) -> None:
        self.requests = Counter("vaiom_requests_total", "Requests by route and status.")
        self.seconds = Histogram("vaiom_request_seconds", "Time from the request to the answer.", SECONDS)
        self.batches = Histogram("vaiom_batch_windows", "Windows that went through the model together.", SIZES)
        self.bars = Counter("vaiom_bars_total", "Acknowledged bars since the start.")
        self.waiting = Gauge("vaiom_waiting_forecasts", "Forecasts that wait for the model.")
        self.ready = Gauge("vaiom_ready", "1 where the service can forecast.")
        self.model = Gauge("vaiom_model_info", "The model that is served.")
        self.last_bar = Gauge("vaiom_last_bar_seconds", "Stamp of the last bar on its own clock, since 1970.")
        self.scored = Gauge("vaiom_scored_bars", "Bars in the drift window: each had a forecast when it came.")
        self.model_bits = Gauge("vaiom_model_bits", "Mean loss of the model over the drift window.")
        self.frequency_bits = Gauge("vaiom_frequency_bits", "Mean loss of Frequency over the drift window.")
        self.alert = Gauge("vaiom_drift_alert", "1 where the model lost to Frequency by more than is allowed.")

    def page(self) -> str:
        families: list[Counter | Histogram] = list(vars(self).values())
        blocks = [
            "\n".join([f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *family.lines()])
            for family in families
        ]
        return "\n".join(blocks) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else f"{value:.12g}"
