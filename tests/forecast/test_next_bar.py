"""Every way to a forecast names the same next bar, from what was known at its time; and knows when
it is too old.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl
import pytest
from forecast_runs import untrained

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
    history, online = forecaster.predict_all(bars, "EURUSD"), forecaster.online()
    named = [history[index].target_time for index in range(len(history))]
    learned = forecaster.context
    assert named[learned - MIN_BARS : -1] == stamps[learned:]  # over weekends too
    assert history[0].target_time == history[0].as_of + timedelta(hours=1)
    fridays = [
        place
        for place in range(1, len(stamps))
        if stamps[place] - stamps[place - 1] > timedelta(days=1)
    ]
    online.extend("EURUSD", bars.head(fridays[-1] - 1))
    for end in (fridays[-1], fridays[-1] + 1):
        known = bars.head(end)
        expected = history[end - MIN_BARS]
        pushed = online.push("EURUSD", known.tail(1).to_dicts()[0])
        for dist in (forecaster.predict(known, "EURUSD"), pushed):
            assert dist is not None
            assert (dist.target_time, dist.stale_since) == (
                expected.target_time,
                expected.stale_since,
            )
    # What comes later changes nothing that was said before.
    gone = bars.filter(
        (pl.col("Datetime") <= stamps[1_000]) | (pl.col("Datetime").dt.hour() % 2 == 0)
    )
    again = forecaster.predict_all(gone, "EURUSD")
    assert [again[index].target_time for index in range(1_000 - MIN_BARS)] == named[
        : 1_000 - MIN_BARS
    ]


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
