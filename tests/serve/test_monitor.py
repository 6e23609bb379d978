"""Scores, drift and calibration of settled forecasts, against plain loops."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.corpus.tokenizer import fit_shape
from vaiom.distribution.buckets import BucketDistribution
from vaiom.features.fields import ANY_MASK, BAD_RETURN
from vaiom.forecast.bars import seconds_of
from vaiom.serve.follow import FeedHealth
from vaiom.serve.metrics import Metrics
from vaiom.serve.monitor import (
    FrequencyBaseline,
    measure_calibration,
    measure_drift,
    settle,
)
from vaiom.serve.schemas import Drift, SettledForecast

NOW = datetime(2025, 3, 3, 10)
EDGES = np.array([-np.inf, *np.linspace(-3, 3, 15), np.inf])
ANY_FLAG, BAD_FLAG = (int(bits) & -int(bits) for bits in (ANY_MASK, BAD_RETURN))


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
    probs = np.tile(np.arange(1.0, 17), (5, 1))
    probs[:, 3] = 0.0
    probs[1] = probs[1, ::-1]
    probs /= probs.sum(axis=1, keepdims=True)
    sigma = np.array([1e-3, 2e-3, 1e-3, 1e-3, 1e-3])
    dists = BucketDistribution(probs=probs, sigma=sigma, shape=fit_shape(EDGES, np.empty(0)))
    hour = np.uint32(seconds_of(NOW))
    before = {"timestamp": np.full(5, hour), "flags": np.array([0, 0, 0, ANY_FLAG, 0], np.uint8)}
    after = {
        "timestamp": np.full(5, hour + 3 * 3_600),
        "flags": np.array([0, 0, 0, 0, BAD_FLAG], np.uint8),
        "log_ret": np.array([1e-3, -2e-3, 0.0, 1e-3, np.nan]),
        "return_bucket": np.array([11, 4, 4, 11, 0], np.uint8),
    }
    frequency = FrequencyBaseline(16, {})
    frequency.count_train("EURUSD", np.repeat(np.arange(1, 17), range(16)))
    made = settle(dists, before, after, frequency, replayed=True)
    quantiles = dists.quantile((0.05, 0.25, 0.5, 0.75, 0.95))
    for each, fan, move in zip(made, quantiles, after["log_ret"], strict=True):
        assert (each.as_of, each.target_time) == (NOW, NOW + timedelta(hours=3))
        assert [*each.quantiles.items()] == [
            *zip(("0.05", "0.25", "0.5", "0.75", "0.95"), fan, strict=True)
        ]
        assert each.replayed
        assert each.log_return == (None if math.isnan(move) else move)
    pits = dists.cdf(np.nan_to_num(after["log_ret"]))
    for number, bucket in enumerate((11, 4, 4)):
        each = made[number]
        assert (each.bucket, each.pit) == (bucket, pits[number])
        share = max(probs[number, bucket - 1], 1e-12)
        assert each.model_bits == pytest.approx(-math.log2(share))
        assert each.frequency_bits == pytest.approx(-math.log2(bucket / (sum(range(16)) + 16)))
    for each in made[3:]:
        assert each.bucket == 0
        assert each.pit is each.model_bits is each.frequency_bits is None
    assert not settle(dists, before, after, frequency)[0].replayed


def test_frequency_learns_from_scored_bars_unless_train_was_counted() -> None:
    bars = [scored(1.0, 1.0, bucket=2), scored(None, None, bucket=0), scored(1.0, 1.0, bucket=2)]
    buckets = np.array([2, 5])
    frequency = FrequencyBaseline(16, {5: 1})
    frequency.learn(bars)
    assert frequency.name == "shares of the scored bars"
    np.testing.assert_allclose(frequency.bits(buckets), -np.log2([3 / 19, 2 / 19]))
    frequency.count_train("EURUSD", np.empty(0, np.uint8))
    assert frequency.name == "shares of the scored bars"
    for symbol in ("EURUSD", "XAUUSD"):
        frequency.count_train(symbol, np.repeat(np.arange(1, 17), 2))
    assert frequency.name == "Train shares"
    frequency.count_train("XAUUSD", np.array([2]))
    np.testing.assert_allclose(frequency.bits(buckets), -np.log2([6 / 81, 5 / 81]))
    for symbol in ("EURUSD", "XAUUSD"):
        frequency.reset(symbol, {2: 1})
    np.testing.assert_allclose(frequency.bits(buckets), -np.log2([2 / 17, 1 / 17]))


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
