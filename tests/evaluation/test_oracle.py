"""The oracle: nothing beats it, it beats the baselines, it is calibrated, and it answers the exact
question.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from simulated_market import Market, randomised_pit

from vaiom.baselines.counts import Frequency, Markov
from vaiom.errors import DataError
from vaiom.evaluation.calibration import kuiper_test
from vaiom.evaluation.inference import standard_error
from vaiom.evaluation.scores import event_bits
from vaiom.features.quantities import MAX_LOG_MOVE
from vaiom.simulation.oracle import FAULT_LIMIT, Dynamics, Oracle, Truth, bucket_probabilities


def powered(probs: np.ndarray, exponent: float) -> np.ndarray:
    raised = probs**exponent
    return raised / raised.sum(axis=1, keepdims=True)


def hour_of_week_shares(market: Market) -> np.ndarray:
    """Train shares of the buckets for each asset and hour of the week of the target."""
    corpus = market.corpus

    def cell(rows: np.ndarray) -> np.ndarray:
        hours = corpus.target_timestamps[rows].astype("datetime64[h]").astype(np.int64) % (7 * 24)
        return corpus.meta[rows, 0].astype(np.int64) * (7 * 24) + hours

    shares = np.tile(
        20 * Frequency().fit(corpus, market.train).probs_,
        (7 * 24 * (len(corpus.asset_slices) + 1), 1),
    )
    np.add.at(
        shares, (cell(market.train), corpus.target_return[market.train].astype(np.int64) - 1), 1.0
    )
    return (shares / shares.sum(axis=1, keepdims=True))[cell(market.rows)]


def altered_oracle(market: Market, **change: Callable[[Truth], np.ndarray]) -> np.ndarray:
    """An oracle that is wrong about one thing."""
    truths = {
        symbol: dataclasses.replace(truth, **{name: alter(truth) for name, alter in change.items()})
        for symbol, truth in Oracle.load(market.bars).truths.items()
    }
    return Oracle(truths).predict_proba(market.corpus, market.rows)


FORECASTS: dict[str, Callable[[Market], np.ndarray]] = {
    "frequency": lambda m: Frequency().fit(m.corpus, m.train).predict_proba(m.corpus, m.rows),
    "markov": lambda m: Markov().fit(m.corpus, m.train).predict_proba(m.corpus, m.rows),
    "hour of week": hour_of_week_shares,
    "tempered": lambda m: powered(m.probs, 0.9),
    "sharpened": lambda m: powered(m.probs, 1.1),
    "shifted": lambda m: 0.9 * m.probs + 0.1 * np.roll(m.probs, 1, axis=1),
    "mixed with markov": lambda m: 0.8 * m.probs + 0.2 * FORECASTS["markov"](m),
    "blind to the hidden state": lambda m: altered_oracle(
        m, weights=lambda t: np.broadcast_to(Dynamics().stationary(), t.weights.shape)
    ),
    "blind to the calendar": lambda m: altered_oracle(
        m, scale=lambda t: np.full_like(t.scale, np.median(t.scale))
    ),
    "one bar late": lambda m: altered_oracle(m, weights=lambda t: np.roll(t.weights, 1, axis=0)),
    "too wide": lambda m: altered_oracle(m, scale=lambda t: 1.05 * t.scale),
}


def gain_over_oracle(market: Market, probs: np.ndarray) -> float:
    """In standard errors."""
    gains = event_bits(market.probs, market.buckets) - event_bits(probs, market.buckets)
    return float(gains.mean() / standard_error(gains, market.clusters))


@pytest.mark.parametrize("name", FORECASTS)
def test_nothing_beats_the_oracle(market: Market, name: str) -> None:
    assert gain_over_oracle(market, FORECASTS[name](market)) <= 2


def test_a_forecast_that_peeks_would_be_seen_to_beat_it(market: Market) -> None:
    outcome = np.eye(market.probs.shape[1])[market.buckets.astype(np.int64) - 1]
    assert gain_over_oracle(market, 0.997 * market.probs + 0.003 * outcome) > 2


@pytest.mark.parametrize(
    "name", ["frequency", "markov", "hour of week", "blind to the hidden state"]
)
def test_the_oracle_beats_what_knows_less(market: Market, name: str) -> None:
    assert gain_over_oracle(market, FORECASTS[name](market)) < -5


def test_the_oracle_is_calibrated_and_a_sharpened_copy_is_not(market: Market) -> None:
    assert kuiper_test(randomised_pit(market.probs, market.buckets, seed=0)).p_value > 0.01
    for exponent in (0.9, 1.1):
        copy = powered(market.probs, exponent)
        assert kuiper_test(randomised_pit(copy, market.buckets, seed=0)).p_value < 1e-4


def test_probabilities_are_a_distribution(market: Market) -> None:
    assert (market.probs >= 0).all()
    np.testing.assert_allclose(market.probs.sum(axis=1), 1.0, atol=1e-12)


def test_bucket_probabilities_add_up_the_ticks_of_each_bucket(market: Market) -> None:
    """A plain sum over every next close that is a valid target, bucketed as the corpus
    buckets it.
    """
    edges = market.corpus.edges["return"]
    truth = Oracle.load(market.bars).truths["XAUSIM"]
    for row, sigma in ((600, 0.002), (5_000, 0.0004), (9_000, 0.02), (20_000, 1e-8), (31_999, 0.3)):
        now = int(truth.ticks[row])
        ticks = np.arange(1.0, 3.0 * now)
        moves = np.log(ticks / now)
        each = truth.mass(np.array([row]), ticks[None] - 1, ticks[None])[0]
        valid = (moves != 0) & (np.abs(moves) <= MAX_LOG_MOVE)
        buckets = np.searchsorted(edges[1:-1], moves[valid] / sigma, side="left")
        expected = np.bincount(buckets, weights=each[valid], minlength=len(edges) - 1)
        got = bucket_probabilities(truth, np.array([row]), edges, np.array([sigma]))[0]
        np.testing.assert_allclose(got, expected / expected.sum(), atol=1e-12)


def test_the_limit_of_a_move_is_that_of_the_corpus() -> None:
    assert FAULT_LIMIT == MAX_LOG_MOVE


def test_a_truth_of_other_bars_is_refused(market: Market) -> None:
    truths = Oracle.load(market.bars).truths
    symbol = next(iter(truths))
    late = dataclasses.replace(
        truths[symbol], timestamps=truths[symbol].timestamps + np.timedelta64(1, "h")
    )
    with pytest.raises(DataError, match="not built from the bars"):
        Oracle({**truths, symbol: late}).predict_proba(market.corpus, market.rows)
    del truths[symbol]
    with pytest.raises(DataError, match=symbol):
        Oracle(truths).predict_proba(market.corpus, market.rows)


def test_the_oracle_works_where_no_dataframe_library_is(market: Market) -> None:
    code = """
import sys
from pathlib import Path
sys.modules.update(polars=None, pandas=None, pyarrow=None, torch=None)
import vaiom.evaluation.calibration, vaiom.baselines.counts
from vaiom.simulation.oracle import Oracle
from vaiom.corpus.store import open_corpus
corpus = open_corpus(sys.argv[1])
rows = corpus.endpoints("validation")[:10]
print(Oracle.load(Path(sys.argv[2])).predict_proba(corpus, rows).shape)
"""
    assert market.corpus.path is not None
    command = [sys.executable, "-c", code, str(market.corpus.path), str(Path(market.bars))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("(10, 16)", "")
