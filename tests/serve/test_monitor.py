"""Scores, drift and calibration of settled forecasts, against plain loops."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.corpus.tokenizer import fit_shape
from vaiom.distribution.returns import ReturnDistribution
from vaiom.features.fields import ANY_MASK, BAD_RETURN
from vaiom.forecast.bars import seconds_of
from vaiom.serve.follow import FeedHealth
from vaiom.serve.monitor import (
    FrequencyBaseline,
    Metrics,
    measure_calibration,
    measure_drift,
    settle,
)
from vaiom.serve.schemas import Drift, SettledForecast

NOW = datetime(2025, 3, 3, 10)
EDGES = np.array([-np.inf, *np.linspace(-3, 3, 15), np.inf])
ANY_FLAG, BAD_FLAG = (int(bits) & -int(bits) for bits in (ANY_MASK, BAD_RETURN))


def forecast(probs: np.ndarray, sigma: float = 1e-3) -> ReturnDistribution:
    return ReturnDistribution(
        symbol="EURUSD",
        probs=probs / probs.sum(),
        edges=EDGES,
        sigma=sigma,
        shape=fit_shape(EDGES, np.empty(0)),
        prob_zero=0.0,
        as_of=NOW,
        target_time=NOW + timedelta(hours=1),
        stale_since=NOW + timedelta(hours=2),
        context=9,
    )


def rows(flags: int = 0, log_ret: float = 0.0, bucket: int = 0) -> dict[str, Any]:
    """The last row matters alone."""
    stamps = [seconds_of(NOW), seconds_of(NOW + timedelta(hours=3))]
    columns = {
        "timestamp": stamps,
        "flags": [0, flags],
        "log_ret": [9.0, log_ret],
        "return_bucket": [1, bucket],
    }
    return {name: np.array(column) for name, column in columns.items()}


def scored(
    model: float | None, frequency: float | None, pit: float | None = None, bucket: int = 1
) -> SettledForecast:
    return SettledForecast(
        as_of=NOW,
        target_time=NOW,
        replayed=False,
        quantiles={},
        log_return=0.0,
        bucket=bucket,
        model_bits=model,
        frequency_bits=frequency,
        pit=pit,
    )


def test_a_bar_scores_the_forecast_before_it() -> None:
    probs = np.arange(1.0, 17)
    probs[3] = 0.0
    dist, wide = forecast(probs), forecast(probs[::-1], sigma=2e-3)
    frequency = FrequencyBaseline(16, [*range(16)])
    assert (frequency.name, settle([], frequency)) == ("Train shares", [])
    due = [
        (dist, rows(), rows(log_ret=1e-3, bucket=11)),
        (wide, rows(), rows(log_ret=-2e-3, bucket=4)),
        (dist, rows(), rows(log_ret=0.0, bucket=4)),
        (dist, rows(flags=ANY_FLAG), rows(log_ret=1e-3, bucket=11)),
        (dist, rows(), rows(flags=BAD_FLAG, log_ret=math.nan)),
    ]
    made = settle(due, frequency, replayed=True)
    for (own, _, after), each in zip(due, made, strict=True):
        assert (each.as_of, each.target_time, each.replayed) == (
            NOW,
            NOW + timedelta(hours=3),
            True,
        )
        assert each.quantiles == {str(q): own.quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)}
        move = float(after["log_ret"][-1])
        assert each.log_return == (None if math.isnan(move) else move)
    for (own, _, after), each, bucket in zip(due, made, (11, 4, 4), strict=False):
        assert (each.bucket, each.pit) == (bucket, own.cdf(float(after["log_ret"][-1])))
        assert each.model_bits == -math.log2(max(own.probs[bucket - 1], 1e-12))
        assert each.frequency_bits == pytest.approx(
            -math.log2((bucket - 1 + 1) / (sum(range(16)) + 16))
        )
    for each in made[3:]:
        assert (each.bucket, each.pit, each.model_bits, each.frequency_bits) == (
            0,
            None,
            None,
            None,
        )
    assert not settle(due, frequency)[0].replayed


def test_frequency_learns_from_scored_bars_unless_train_was_counted() -> None:
    bars = [scored(1.0, 1.0, bucket=2), scored(None, None, bucket=0), scored(1.0, 1.0, bucket=2)]
    for counts, share in ((None, 3 / 18), ([4] * 16, 5 / 80)):
        frequency = FrequencyBaseline(16, counts)
        frequency.learn(bars)
        assert frequency.bits(2) == pytest.approx(-math.log2(share))
    assert FrequencyBaseline(16, None).name == "shares of the scored bars"


@given(st.lists(st.one_of(st.none(), st.tuples(st.floats(0, 9), st.floats(0, 9))), max_size=30))
def test_drift_is_the_mean_of_what_was_scored(bits: list[tuple[float, float] | None]) -> None:
    settled = [scored(*(each or (None, None))) for each in bits]
    drift, known = measure_drift(settled, 0.0), [each for each in bits if each]
    if not known:
        assert drift == Drift(
            scored=0, model_bits=None, frequency_bits=None, gain_bits=None, alert=False
        )
        return
    model, frequency = (sum(each) / len(known) for each in zip(*known, strict=True))
    assert (drift.scored, drift.model_bits, drift.frequency_bits) == (len(known), model, frequency)
    assert drift.gain_bits == frequency - model
    gains = [theirs - ours for ours, theirs in known]
    variance = sum((gain - sum(gains) / len(gains)) ** 2 for gain in gains) / len(gains)
    if len(known) > 1:
        assert drift.gain_error == pytest.approx(math.sqrt(variance / len(gains)), abs=1e-9)
    else:
        assert drift.gain_error is None
    assert not drift.alert  # too few


@pytest.mark.parametrize(
    ("number", "loss", "allowed", "alert"),
    [
        (50, 0.21, 0.0, True),
        (49, 0.3, 0.0, False),
        (100, 0.19, 0.0, False),
        (100, 0.21, 0.0, True),
        (100, 0.25, 0.06, False),
        (100, 0.25, 0.04, True),
        (100, -0.5, 0.0, False),
    ],
)
def test_an_alert_needs_enough_bars_and_two_standard_errors(
    number: int, loss: float, allowed: float, alert: bool
) -> None:
    """Losses alternate by a spread whose standard error is a tenth of a bit."""
    spread = 0.1 * math.sqrt(number)
    settled = [
        scored(3.0 + loss + (spread if each % 2 else -spread), 3.0) for each in range(number)
    ]
    if number % 2:
        settled[-1] = scored(3.0 + loss, 3.0)
    assert measure_drift(settled, allowed).alert is alert


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=40))
def test_calibration_counts_pits(pits: list[float | None]) -> None:
    found, known = (
        measure_calibration([scored(1.0, 1.0, pit) for pit in pits]),
        [p for p in pits if p is not None],
    )
    assert (found.scored, sum(found.pit_counts), len(found.pit_counts)) == (
        len(known),
        len(known),
        10,
    )
    assert list(found.coverage) == ["0.5", "0.8", "0.9", "0.98"]
    for level, share in found.coverage.items():
        inside = [abs(pit - 0.5) <= float(level) / 2 for pit in known]
        assert share == (pytest.approx(sum(inside) / len(known)) if known else None)
    assert (
        measure_calibration([scored(1.0, 1.0, 0.05 + ten / 10) for ten in range(10)]).pit_counts
        == [1] * 10
    )


def test_gauges_show_what_is_known_of_an_asset() -> None:
    metrics = Metrics()
    drift = Drift(scored=3, model_bits=2.5, frequency_bits=None, gain_bits=None, alert=True)
    metrics.show("EURUSD", drift)
    metrics.show("EURUSD", FeedHealth(failures=2))
    shown = {
        (sample.name, sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels == {"asset": "EURUSD"}
    }
    assert shown == {
        ("vaiom_scored_bars", 3),
        ("vaiom_model_bits", 2.5),
        ("vaiom_drift_alert", 1),
        ("vaiom_feed_failures", 2),
        ("vaiom_feed_corrections", 0),
        ("vaiom_feed_clock_drift_seconds", 0),
    }
    metrics.batches.observe(3)
    buckets = {
        s.labels["le"]: s.value for s in metrics.batches.collect()[0].samples if "le" in s.labels
    }
    assert buckets == {"1.0": 0, "2.0": 0, "4.0": 1, "8.0": 1, "16.0": 1, "32.0": 1, "+Inf": 1}
    metrics.seconds.labels("/").observe(0.02)
    times = {
        s.labels["le"]: s.value for s in metrics.seconds.collect()[0].samples if "le" in s.labels
    }
    assert [*times] == [
        "0.001",
        "0.0025",
        "0.005",
        "0.01",
        "0.015",
        "0.025",
        "0.04",
        "0.1",
        "0.25",
        "1.0",
        "5.0",
        "+Inf",
    ]
    assert [*times.values()] == [0] * 5 + [1] * 7
