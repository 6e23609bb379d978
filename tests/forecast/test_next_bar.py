"""Every way to a forecast names the same next bar, from what was known at its time; and knows when
it is too old.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl
import pytest
from forecast_runs import assert_same_forecast, untrained

from strategies import random_bars
from training.tiny_runs import SPLITS
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import write_symbol

WEEKS = 5


@pytest.fixture(scope="module")
def bars() -> pl.DataFrame:
    """A market that trades from Sunday 22:00 to Friday 21:00."""
    day, hour = pl.col("Datetime").dt.weekday(), pl.col("Datetime").dt.hour()
    closed = (day == 6) | ((day == 5) & (hour > 21)) | ((day == 7) & (hour < 22))
    return random_bars(1_700).filter(~closed)


@pytest.fixture(scope="module")
def forecaster(bars: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Forecaster:
    folder = tmp_path_factory.mktemp("weeks")
    write_symbol(folder / "bars", "EURUSD", bars)
    corpus = build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=SPLITS))
    return untrained(corpus, context=WEEKS * 24 * 5)


def test_the_next_bar_that_will_exist_is_named_by_batch_history_and_stream(
    forecaster: Forecaster, bars: pl.DataFrame
) -> None:
    stamps = bars["Datetime"].to_list()
    history = forecaster.predict_all(bars, "EURUSD")
    named = [dist.target_time for dist in history]
    learned = forecaster.context
    assert named[learned - MIN_BARS : -1] == stamps[learned:]  # over weekends too
    assert named[0] == history[0].as_of + timedelta(hours=1)
    is_monday = bars["Datetime"].diff() > timedelta(days=1)
    week = int(is_monday.arg_true()[-1])
    online = forecaster.online()
    online.extend("EURUSD", bars.head(week - 1))
    for stop in (week, week + 1):
        pushed = online.push("EURUSD", bars.row(stop - 1, named=True))
        alone = forecaster.predict(bars.head(stop), "EURUSD")
        for dist in (alone, pushed):
            assert_same_forecast(dist, history[stop - MIN_BARS])
            assert dist.stale_since == history[stop - MIN_BARS].stale_since
    # What comes later changes nothing that was said before.
    is_kept = (pl.col("Datetime") <= stamps[1_000]) | (pl.col("Datetime").dt.hour() % 2 == 0)
    again = forecaster.predict_all(bars.filter(is_kept), "EURUSD")
    known = 1_000 - MIN_BARS
    assert [dist.target_time for dist in again[:known]] == named[:known]


def test_a_weekend_makes_no_forecast_stale(forecaster: Forecaster, bars: pl.DataFrame) -> None:
    friday = bars.filter(pl.col("Datetime") <= datetime(2023, 12, 29, 21))
    sunday = datetime(2023, 12, 31, 22)
    for now, stale in (
        (sunday, False),
        (sunday + timedelta(hours=1), False),
        (sunday + timedelta(hours=2), True),
    ):
        dist = forecaster.predict(friday, "EURUSD", now=now)
        assert (dist.target_time, dist.stale) == (sunday, stale)
    assert dist.to_dict()["stale_since"] == "2023-12-31T23:00:00"
    assert (
        dist.notes[-1]
        == "stale since 2023-12-31 23:00:00: no bar of 2023-12-31 22:00:00 has arrived"
    )
