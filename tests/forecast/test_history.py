"""The forecasts of a history are those that were possible at their time."""

from __future__ import annotations

import warnings

import numpy as np
import polars as pl
import pytest
from forecast_runs import CONTEXT, TinyRun, assert_same_forecast, untrained

from strategies import random_bars
from vaiom import Forecaster, read_bars
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.torch_backend import TorchBackend
from vaiom.forecast.window import History


@pytest.fixture(scope="module")
def history(tiny: TinyRun, forecaster: Forecaster) -> History:
    return forecaster.predict_all(read_bars(tiny.bars)["EURUSD"].head(60), "EURUSD")


@pytest.mark.parametrize("length", [MIN_BARS, CONTEXT - 1, CONTEXT, CONTEXT + 1, 160])
@pytest.mark.parametrize(
    "model",
    [
        *({"context": context} for context in (1, 7, 20, 21, 22, 23, CONTEXT)),
        {"positions": "rotary", "attention_window": 8, "num_layers": 3},
    ],
    ids=str,
)
def test_each_is_the_forecast_after_its_bar(
    tiny: TinyRun, model: dict[str, object], length: int
) -> None:
    forecaster = untrained(tiny.corpus, **model)
    assert isinstance(forecaster.backend, TorchBackend)
    forecaster.backend.chunk_rows = 50
    bars = random_bars(length, seed=9)
    history = forecaster.predict_all(bars, "EURUSD")
    assert len(history) == len(history.probs) == length - MIN_BARS + 1
    asked = {MIN_BARS, MIN_BARS + 1, CONTEXT, CONTEXT + 1, 51, 101, length}
    for number in (each for each in asked if each <= length):
        known = bars.head(number)
        alone = forecaster.predict(known, "EURUSD", now=known["Datetime"][-1])
        made = history[number - MIN_BARS]
        assert_same_forecast(made, alone)
        assert made.notes == alone.notes


def test_later_bars_change_nothing(forecaster: Forecaster) -> None:
    bars = random_bars(160)
    is_early = pl.int_range(pl.len()) < 100
    changed = bars.with_columns(Close=pl.when(is_early).then("Close").otherwise(3.0))
    before, after = (forecaster.predict_all(each, "XAUUSD").probs for each in (bars, changed))
    known = 100 - MIN_BARS
    np.testing.assert_array_equal(before[:known], after[:known])
    assert not np.array_equal(before, after)


def test_it_answers_at_once_and_as_a_frame(history: History) -> None:
    quantiles = history.distributions.quantile([0.05, 0.95])
    np.testing.assert_array_equal(quantiles, [dist.quantile([0.05, 0.95]) for dist in history])
    frame = history.to_frame()
    for name in ("as_of", "sigma", "context", "masked"):
        wanted = [getattr(dist, name) for dist in history]
        assert frame[name].to_list() == getattr(history, name).tolist() == wanted
    assert frame["p16"].to_list() == history.probs[:, 15].tolist()
    assert frame["num_missing_assets"].to_list() == [0] * len(history)
    assert "39 forecasts" in repr(history)


def test_it_is_a_sequence(history: History) -> None:
    every = [dist.as_of for dist in history]
    for part in (slice(-3, None), slice(None, None, 7), slice(5, 2)):
        assert [dist.as_of for dist in history[part]] == every[part]
    assert history[-1].as_of == every[-1]
    for beyond in (len(history), -len(history) - 1):
        with pytest.raises(IndexError):
            _ = history[beyond]


def test_it_has_no_figures_while_no_close_has_moved(forecaster: Forecaster) -> None:
    is_still = pl.int_range(pl.len()) < 40
    prices = pl.when(is_still).then(1.1).otherwise(pl.col("Open", "High", "Low", "Close"))
    history = forecaster.predict_all(random_bars(90).with_columns(prices.name.keep()), "EURUSD")
    unknown = np.arange(len(history)) < 40 - MIN_BARS + 1
    with warnings.catch_warnings(action="error"):
        dists = history.distributions
        for figures in (history.sigma, dists.quantile(0.05), dists.prob_up, dists.mean()):
            np.testing.assert_array_equal(np.isnan(figures), unknown)
        assert np.isnan(history[0].value_at_risk(0.99))
        assert "masked" in repr(history[0])
