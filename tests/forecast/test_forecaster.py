"""A forecaster gives what evaluation scored, from bars alone, whoever else is in the batch, and
refuses bad bars.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forecast_runs import CONTEXT, TinyRun, assert_same_forecast, untrained
from hypothesis import given, settings
from scipy.special import ndtr

from strategies import frame_of, price_pairs, random_bars
from vaiom import Forecaster, read_bars
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.features.inputs import inputs_of
from vaiom.features.rows import bars_of
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.bars import MIN_BARS, resample_if_finer


def test_forecasts_are_the_ones_that_evaluation_scores(
    tiny: TinyRun, forecaster: Forecaster
) -> None:
    corpus = tiny.corpus
    rows = corpus.endpoints("validation", CONTEXT)[::37]
    expected = ModelPredictor.load(tiny.run / "best.safetensors", "cpu").predict_proba(corpus, rows)
    bars = read_bars(tiny.bars)
    for row, probs in zip(rows, expected, strict=True):
        symbol = corpus.tokenizer.symbols[corpus.meta[row, 0] - 1]
        as_of = corpus.timestamps[row].astype("datetime64[us]").item()
        known = bars[symbol].filter(pl.col("Datetime") <= as_of)
        dist = forecaster.predict(known, symbol=symbol, now=as_of)
        np.testing.assert_allclose(dist.probs, probs, atol=TOLERANCE)
        assert (dist.sigma, dist.as_of) == (corpus.sigma20[row], as_of)
        assert dist.target_time == as_of + timedelta(hours=1)
        assert dist.context == CONTEXT
        assert not (dist.stale)
        assert not (dist.unknown_asset)
        assert not (dist.missing_assets)
        assert not (dist.notes)


OWN = ("ret_z", "range_z", "mask_any", "next_slot_vol")


@pytest.mark.parametrize(
    ("branch", "fields"),
    [
        ("hybrid", ()),
        ("cont", ()),
        ("disc", ()),
        ("hybrid", OWN),
        ("cont", OWN),
        ("disc", ("hour",)),
    ],
)
def test_inputs_from_bars_are_the_corpus_to_the_bit(
    tiny: TinyRun, branch: str, fields: tuple[str, ...]
) -> None:
    forecaster = untrained(tiny.corpus, input=branch, fields=fields)
    wanted = tiny.corpus.inputs(forecaster.config)
    bars = read_bars(tiny.bars)
    for symbol, rows in tiny.corpus.asset_slices.items():
        columns, _ = forecaster.rows(bars_of(bars[symbol]))
        made = inputs_of(forecaster.config, columns, tiny.corpus.meta[rows.start].astype(np.int64))
        np.testing.assert_array_equal(made, wanted[rows])
    assert forecaster.predict(bars).keys() == bars.keys()


def test_one_or_many_in_any_order_and_company(tiny: TinyRun, forecaster: Forecaster) -> None:
    frames = dict(read_bars(tiny.bars))
    for symbol, bars in read_bars(tiny.bars).items():
        frames |= {f"{symbol}{cut}": bars.head(cut) for cut in (30, 400, 900)}
    together = forecaster.predict(frames)
    assert list(together) == list(frames)
    backwards = forecaster.predict(dict(reversed(frames.items())))
    for symbol, frame in frames.items():
        alone = forecaster.predict(frame, symbol=symbol)
        for other in (together[symbol], backwards[symbol]):
            assert_same_forecast(other, alone)
            assert other.notes == alone.notes


def test_an_unknown_asset_says_so_and_takes_the_average_share_of_zeros(
    tiny: TinyRun, forecaster: Forecaster
) -> None:
    bars = random_bars(200)
    zero_share = tiny.corpus.tokenizer.zero_share
    unknown = forecaster.predict(bars, "GBPNOK", now=bars["Datetime"][-1])
    assert unknown.unknown_asset
    assert unknown.prob_zero == pytest.approx(np.mean(zero_share))
    [note] = unknown.notes
    assert note.startswith("unknown asset")
    assert "it knows" not in note
    [note] = forecaster.predict(bars, "EURUSDm1", now=bars["Datetime"][-1]).notes
    assert note.startswith("unknown asset")
    assert "did you mean EURUSD" in note
    assert forecaster.predict(bars, "EURUSD").prob_zero == zero_share[0]


@pytest.mark.parametrize("spelled", ["eurusd", "EUR/USD", "eur_usd", "EURUSD=X"])
def test_an_asset_is_known_however_it_is_spelled(forecaster: Forecaster, spelled: str) -> None:
    bars = random_bars(200)
    known = forecaster.predict(bars, "EURUSD")
    dist = forecaster.predict(bars, spelled)
    assert (dist.symbol, dist.unknown_asset) == ("EURUSD", False)
    assert_same_forecast(dist, known)
    assert list(forecaster.predict({spelled: bars, "new": bars})) == ["EURUSD", "new"]
    assert forecaster.predict({spelled: bars}, spelled).symbol == "EURUSD"
    assert forecaster.predict_all(bars, spelled).symbol == "EURUSD"
    long = bars.with_columns(symbol=pl.lit(spelled))
    assert forecaster.predict_df(long)["symbol"].to_list() == ["EURUSD"]
    with pytest.raises(DataError, match="one asset"):
        forecaster.predict({spelled: bars, "EURUSD": bars})


def test_old_and_masked_last_bars_are_stale(forecaster: Forecaster) -> None:
    bars = random_bars(100)
    last: datetime = bars["Datetime"][-1]
    closed = last + timedelta(hours=2)
    assert not forecaster.predict(bars, "EURUSD", now=closed).stale
    late = closed + timedelta(seconds=1)
    for now in (late, late.replace(tzinfo=UTC), None):  # None is the present
        old = forecaster.predict(bars, "EURUSD", now=now)
        assert (old.stale, old.masked, old.stale_since) == (True, False, closed)
        assert (
            old.notes[0]
            == f"stale since {closed}: no bar of {last + timedelta(hours=1)} has arrived"
        )
        assert old.notes[0] in repr(old)
    for wrong in ("2024-01-01", datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))):
        with pytest.raises(ConfigError, match="in UTC"):
            forecaster.predict(bars, "EURUSD", now=wrong)
    is_last = pl.int_range(pl.len()) == 99
    repeated = bars.with_columns(
        Close=pl.when(is_last).then(pl.col("Close").shift()).otherwise("Close")
    )
    masked = forecaster.predict(repeated, "EURUSD", now=last)
    assert masked.stale
    assert masked.masked
    assert masked.notes == ("masked: the last close repeats the one before",)


def test_bars_of_the_future_are_noted(forecaster: Forecaster) -> None:
    bars = random_bars(100)
    last: datetime = bars["Datetime"][-1]
    early = last - timedelta(hours=16)
    [note] = forecaster.predict(bars, "EURUSD", now=early).notes
    assert note == f"ahead of time: the last bar is of {last}, and it is {early:%F %H:%M}"
    [note] = forecaster.predict(bars, "EURUSD", now=early + timedelta(hours=1)).notes
    assert "unfinished" in note


@pytest.mark.parametrize(
    ("minutes", "says"), [(-1, True), (0, False), (1, True), (59, True), (60, False)]
)
def test_a_bar_that_is_not_over_is_noted(forecaster: Forecaster, minutes: int, says: bool) -> None:
    """The last stamp itself as the moment means the end of its bar."""
    bars = random_bars(100)
    last: datetime = bars["Datetime"][-1]
    dist = forecaster.predict(bars, "EURUSD", now=last + timedelta(minutes=minutes))
    notes = [note for note in dist.notes if note.startswith(f"unfinished: the bar of {last}")]
    assert bool(notes) is says
    assert not dist.stale


@pytest.mark.parametrize(("minutes", "cut"), [(60, False), (55, False), (54, True), (1, True)])
def test_finer_bars_make_coarser_ones_and_say_where_the_last_is_cut(
    minutes: int, cut: bool
) -> None:
    fine = random_bars(120 + minutes, start=datetime(2024, 1, 2), step=timedelta(minutes=1))
    coarse, end = resample_if_finer(fine, "EURUSD", "1h")
    assert coarse["Datetime"].to_list() == [datetime(2024, 1, 2, hour) for hour in range(3)]
    assert coarse["Close"][-1] == fine["Close"][-1]
    assert end == (datetime(2024, 1, 2, 2, minutes) if cut else None)
    for same in (coarse, fine.head(1)):
        assert resample_if_finer(same, "EURUSD", "1h") == (same, None)


def test_paths_of_a_model_without_further_horizons_have_one_bar(forecaster: Forecaster) -> None:
    paths = forecaster.paths(random_bars(100), "EURUSD", seed=5)
    dist = forecaster.predict(random_bars(100), "EURUSD")
    assert (paths.symbol, paths.as_of, paths.horizons) == ("EURUSD", dist.as_of, (1,))
    assert paths.returns.shape == (1_000, 1)
    draws = np.random.default_rng(5).standard_normal(1_000)
    np.testing.assert_allclose(paths.at(1), dist.quantile(ndtr(draws)), rtol=1e-6)
    np.testing.assert_array_equal(
        paths.quantile([0.1, 0.9]), np.quantile(paths.returns, [0.1, 0.9], axis=0)
    )


def test_a_short_history_is_used_and_noted(forecaster: Forecaster) -> None:
    bars = random_bars(MIN_BARS, seed=3)
    dist = forecaster.predict(bars, "EURUSD", now=bars["Datetime"][-1])
    assert dist.context == MIN_BARS
    assert dist.notes == (f"short context: {MIN_BARS} bars where the model can use {CONTEXT}",)
    assert np.isfinite(dist.quantile(0.01))


BARS = random_bars(60)
ROW = pl.int_range(pl.len())


@pytest.mark.parametrize(
    ("bars", "words"),
    [
        (BARS.head(21), ["too few bars", "22", "21"]),
        (BARS.head(0), ["too few bars"]),
        (BARS.reverse(), ["goes back in time", "row 2"]),
        (pl.concat([BARS, BARS.tail(1)]), ["repeated", "row 61"]),
        (BARS.with_columns(Datetime=pl.when(ROW != 7).then("Datetime")), ["is missing", "row 8"]),
        (
            BARS.with_columns(Close=pl.when(ROW != 7).then("Close").otherwise(math.inf)),
            ["infinite", "Close, row 8"],
        ),
        (BARS.drop("Close"), ["'Close' is missing"]),
        (BARS.with_columns(pl.col("Open").cast(str)), ["numeric", "Open"]),
        (BARS.with_columns(close=1.0), ["there twice", "Close and close"]),
        (
            BARS.with_columns(pl.col("Datetime").dt.replace_time_zone("Asia/Tokyo")),
            ["naive", "Tokyo"],
        ),
        (random_bars(60, step=timedelta(minutes=10)), ["another timeframe", "1h", "resample"]),
        (random_bars(60, step=timedelta(hours=4)), ["another timeframe", "finer"]),
        ([1, 2, 3], ["not a table", "DataFrame"]),
        (None, ["not a table"]),
    ],
)
def test_bad_bars_are_refused_with_the_way_out(
    forecaster: Forecaster, bars: object, words: list[str]
) -> None:
    for ask in (forecaster.predict, forecaster.predict_all):
        with pytest.raises(DataError) as caught:
            ask(bars, "EURUSD")
        for word in words:
            assert word in str(caught.value)


def test_calls_that_make_no_sense(forecaster: Forecaster, tiny: TinyRun, tmp_path: Path) -> None:
    for error, words, call in (
        (ConfigError, "whose bars", lambda: forecaster.predict(BARS)),
        (ConfigError, "no bars of this", lambda: forecaster.predict({"EURUSD": BARS}, "XAUUSD")),
        (DataError, "symbol", lambda: forecaster.predict(BARS, symbol="../EURUSD")),
        (DataError, "symbol", lambda: forecaster.predict({None: BARS})),
        (ConfigError, "no bars", lambda: forecaster.joint({})),
        (ConfigError, "packaged model", lambda: Forecaster.pretrained("fx-7h")),
        (CheckpointError, "no model", lambda: Forecaster.load(tmp_path)),
        (CheckpointError, "no model", lambda: Forecaster.load(tmp_path / "nowhere")),
    ):
        with pytest.raises(error, match=words):
            call()
    assert forecaster.predict({}) == {}
    # Without a model that reads them, the other assets are not even looked at.
    picked = forecaster.predict({"EURUSD": BARS, "XAUUSD": None}, symbol="EURUSD")
    np.testing.assert_array_equal(picked.probs, forecaster.predict(BARS, "EURUSD").probs)
    again = Forecaster.load(tiny.run / "best.safetensors", threads=1)
    assert again.describe() == forecaster.describe()


@settings(max_examples=40)
@given(price_pairs(min_rows=MIN_BARS, max_rows=90))
def test_wild_prices_give_a_proper_forecast_or_a_refusal(
    forecaster: Forecaster, prices: tuple[np.ndarray, np.ndarray]
) -> None:
    bars = frame_of(*prices)
    [window] = forecaster.windows({"EURUSD": bars})
    if not window.columns["sigma20"][-1] > 0:
        with pytest.raises(DataError, match="no scale"):
            forecaster.forecast([window])
        return
    dist = forecaster.forecast([window])["EURUSD"]
    assert dist.probs.sum() == pytest.approx(1)
    assert (dist.probs >= 0).all()
    assert dist.sigma > 0
    last = bars.row(-1, named=True)
    has_prices = all((last[name] or 0) > 0 for name in ("Open", "Close"))
    assert dist.stale or has_prices
