"""A forecaster gives what evaluation scored, from bars alone, whoever else is in the batch, and
refuses bad bars.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest
from forecast_runs import CONTEXT, TinyRun, untrained
from hypothesis import given, settings
from scipy.special import ndtr

from strategies import frame_of, price_pairs, random_bars
from vaiom import Forecaster, ReturnDistribution, read_bars
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.features.inputs import inputs_of
from vaiom.features.rows import bars_of
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.bars import MIN_BARS, resample_if_finer
from vaiom.forecast.torch_backend import TorchBackend


def changed(bars: pl.DataFrame, row: int, **values: object) -> pl.DataFrame:
    columns = {name: bars[name].to_list() for name in bars.columns}
    for name, value in values.items():
        columns[name][row] = value
    return pl.DataFrame(columns, schema=bars.schema)


def test_forecasts_are_the_ones_that_evaluation_scores(
    tiny: TinyRun, forecaster: Forecaster
) -> None:
    corpus = tiny.corpus
    rows = corpus.endpoints("validation", CONTEXT)[::37]
    expected = ModelPredictor.load(tiny.run / "best.safetensors", "cpu").predict_proba(corpus, rows)
    bars = read_bars(tiny.bars)
    for row, probs in zip(rows, expected, strict=True):
        symbol = corpus.tokenizer.symbols[corpus.meta[row, 0] - 1]
        known = bars[symbol].filter(
            pl.col("Datetime") <= corpus.timestamps[row].astype("datetime64[us]").item()
        )
        dist = forecaster.predict(known, symbol=symbol, now=known["Datetime"][-1])
        np.testing.assert_allclose(dist.probs, probs, atol=TOLERANCE)
        assert dist.sigma == corpus.sigma20[row]
        assert np.datetime64(dist.as_of, "s") == corpus.timestamps[row]
        assert dist.target_time - dist.as_of == timedelta(hours=1)
        assert (dist.context, dist.stale, dist.unknown_asset, dist.missing_assets) == (
            CONTEXT,
            False,
            False,
            (),
        )


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
    bars = read_bars(tiny.bars)
    frames = {
        f"{symbol}{cut}": bars[symbol].head(cut) for symbol in bars for cut in (30, 400, 900, 1700)
    }
    frames |= bars
    together = forecaster.predict(frames)
    assert list(together) == list(frames)
    backwards = forecaster.predict(dict(reversed(frames.items())))
    for symbol, frame in frames.items():
        alone = forecaster.predict(frame, symbol=symbol)
        for other in (together[symbol], backwards[symbol]):
            np.testing.assert_allclose(other.probs, alone.probs, atol=TOLERANCE)
            assert (other.sigma, other.as_of, other.notes) == (
                alone.sigma,
                alone.as_of,
                alone.notes,
            )


def test_every_bar_of_a_history_is_forecast_causally(tiny: TinyRun, forecaster: Forecaster) -> None:
    bars = read_bars(tiny.bars)["XAUUSD"].head(160)
    history = forecaster.predict_all(bars, "XAUUSD")
    assert len(history) == 160 - MIN_BARS + 1
    for index in (
        0,
        1,
        10,
        CONTEXT - MIN_BARS - 1,
        CONTEXT - MIN_BARS,
        CONTEXT - MIN_BARS + 1,
        90,
        -1,
    ):
        known = bars.head(range(len(history))[index] + MIN_BARS)
        alone = forecaster.predict(known, "XAUUSD", now=known["Datetime"][-1])
        np.testing.assert_allclose(history.probs[index], alone.probs, atol=TOLERANCE)
        there = history[index]
        assert (there.sigma, there.as_of, there.context, there.notes) == (
            alone.sigma,
            alone.as_of,
            alone.context,
            alone.notes,
        )
    changed = bars.with_columns(
        Close=pl.when(pl.int_range(pl.len()) < 100).then("Close").otherwise(pl.col("Open") * 2)
    )
    np.testing.assert_array_equal(
        history.probs[: 100 - MIN_BARS],
        forecaster.predict_all(changed, "XAUUSD").probs[: 100 - MIN_BARS],
    )
    frame = history.to_frame()
    assert frame["p16"].to_list() == history.probs[:, 15].tolist()
    assert frame["masked"].to_list() == history.masked.tolist()
    assert frame["as_of"].to_list() == bars["Datetime"].to_list()[MIN_BARS - 1 :]
    assert frame["context"].to_list() == [min(number, CONTEXT) for number in range(MIN_BARS, 161)]
    assert frame["sigma"].to_list() == history.sigma.tolist()
    assert frame["num_missing_assets"].to_list() == [0] * len(history)


def test_a_history_no_longer_than_the_context(forecaster: Forecaster) -> None:
    for length in (MIN_BARS, CONTEXT - 1, CONTEXT, CONTEXT + 1):
        bars = random_bars(length, seed=9)
        history = forecaster.predict_all(bars, "EURUSD")
        assert len(history) == length - MIN_BARS + 1
        np.testing.assert_allclose(
            history.probs[-1], forecaster.predict(bars, "EURUSD").probs, atol=TOLERANCE
        )


@pytest.mark.parametrize("context", [1, 7, 20, 21, 22, 23])
def test_a_history_of_short_windows_is_aligned(tiny: TinyRun, context: int) -> None:
    forecaster = untrained(tiny.corpus, context=context)
    bars = read_bars(tiny.bars)["EURUSD"].head(40)
    history = forecaster.predict_all(bars, "EURUSD")
    assert len(history.probs) == len(history.sigma) == 40 - MIN_BARS + 1
    for index in (0, 1, 5, -1):
        alone = forecaster.predict(bars.head(range(len(history))[index] + MIN_BARS), "EURUSD")
        np.testing.assert_allclose(history.probs[index], alone.probs, atol=TOLERANCE)
        assert (history[index].as_of, history[index].context) == (alone.as_of, alone.context)


def test_all_forecasts_of_a_history_answer_at_once(tiny: TinyRun, forecaster: Forecaster) -> None:
    history = forecaster.predict_all(read_bars(tiny.bars)["EURUSD"].head(60), "EURUSD")
    quantiles = history.distributions.quantile([0.05, 0.95])
    np.testing.assert_array_equal(quantiles, [dist.quantile([0.05, 0.95]) for dist in history])
    assert "39 forecasts" in repr(history)


def test_a_history_is_a_sequence_of_forecasts(tiny: TinyRun, forecaster: Forecaster) -> None:
    history = forecaster.predict_all(read_bars(tiny.bars)["EURUSD"].head(60), "EURUSD")
    every = [dist.as_of for dist in history]
    assert np.array_equal(np.array(every, "datetime64[s]"), history.as_of)
    for part in (slice(-3, None), slice(None, None, 7), slice(5, 2), slice(None)):
        assert [dist.as_of for dist in history[part]] == every[part]
    assert [dist.as_of for dist in reversed(history)] == every[::-1]
    for beyond in (len(history), -len(history) - 1):
        with pytest.raises(IndexError):
            _ = history[beyond]


def test_a_history_has_no_figures_while_no_close_has_moved(
    tiny: TinyRun, forecaster: Forecaster
) -> None:
    bars = read_bars(tiny.bars)["EURUSD"].head(90)
    still = (
        pl.when(pl.int_range(pl.len()) < 40)
        .then(1.1)
        .otherwise(pl.col("Open", "High", "Low", "Close"))
    )
    history = forecaster.predict_all(bars.with_columns(still.name.keep()), "EURUSD")
    unknown = np.arange(len(history)) < 40 - MIN_BARS + 1
    np.testing.assert_array_equal(np.isnan(history.sigma), unknown)
    with warnings.catch_warnings(action="error"):
        for figures in (history.distributions.quantile(0.05), history.distributions.prob_up):
            np.testing.assert_array_equal(np.isnan(figures), unknown)
        assert np.isnan(
            [history[0].value_at_risk(0.99), history[0].prob_up, history[0].mean()]
        ).all()
        assert "masked" in repr(history[0])


def long_frame(**frames: pl.DataFrame) -> pl.DataFrame:
    named = [frame.with_columns(item=pl.lit(symbol)) for symbol, frame in frames.items()]
    return pl.concat(named).sort("Datetime", maintain_order=True).rename({"Datetime": "time"})


def test_a_long_frame_gives_a_frame_of_its_own_kind(forecaster: Forecaster) -> None:
    pandas = pytest.importorskip("pandas")
    parts = {
        "XAUUSD": random_bars(60, 1),
        "EURUSD": random_bars(30, 2),
        "NEWONE": random_bars(40, 3),
    }
    table, asked = (
        long_frame(**parts),
        {"id_column": "item", "timestamp_column": "time", "quantile_levels": [0.1, 0.9]},
    )
    alone = forecaster.predict(parts)
    for bars in (table, table.lazy(), table.rename(str.lower)):
        made = forecaster.predict_df(bars, **asked)
        assert made.columns == ["item", "time", "target_name", "predictions", "0.1", "0.9", "notes"]
        assert made["item"].to_list() == list(parts)
        for line in made.iter_rows(named=True):
            dist = alone[line["item"]]
            assert (line["time"], line["notes"]) == (dist.target_time, "; ".join(dist.notes))
            want = [dist.quantile(level) for level in (0.5, 0.1, 0.9)]
            np.testing.assert_allclose(
                [line["predictions"], line["0.1"], line["0.9"]], want, rtol=1e-4
            )
    panda = pandas.DataFrame({name: table[name].to_numpy() for name in table.columns})
    for bars in (panda, panda.set_index("time")):
        theirs = forecaster.predict_df(bars, **asked)
        assert isinstance(theirs, pandas.DataFrame)
        assert theirs.to_dict("records") == forecaster.predict_df(table, **asked).to_dicts()
    default = forecaster.predict_df(table.rename({"item": "symbol", "time": "Datetime"}))
    assert default.columns[4:-1] == ["0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"]
    several = pandas.Categorical(
        panda["item"], categories=["GBPUSD", *parts]
    )  # one of them without a bar
    for bars in (panda.assign(item=several), panda.set_index("time", drop=False)):
        with warnings.catch_warnings(action="error"):
            assert forecaster.predict_df(bars, **asked).to_dict("records") == theirs.to_dict(
                "records"
            )
    for none, columns in ((table.head(0), made.columns), (panda.head(0), [*theirs.columns])):
        empty = forecaster.predict_df(none, **asked)
        assert (len(empty), [*empty.columns]) == (0, columns)
    for wrong, words in (
        (table.drop("item"), "'item' is missing"),
        (table.with_columns(Datetime="time"), "'Datetime' is there twice"),
        (panda.assign(Datetime=panda["time"]), "'Datetime' is there twice"),
        (pandas.concat([panda, panda[["item"]]], axis=1), "'item' is there twice"),
        (panda.drop(columns="time"), "'time' is missing"),
        (table.with_columns(item=pl.lit("a/b")), "not usable as a symbol"),
        (panda.assign(item=panda["item"].mask(panda.index == 5)), "a symbol is missing"),
        (table.reverse(), "goes back in time"),
        ([1], "not a table"),
    ):
        with pytest.raises(DataError, match=words):
            forecaster.predict_df(wrong, **asked)


def test_pandas_and_polars_in_any_spelling_give_the_same(forecaster: Forecaster) -> None:
    pandas = pytest.importorskip("pandas")
    bars = random_bars(200)
    table = pandas.DataFrame({name: bars[name].to_numpy() for name in bars.columns})
    lower = table.rename(columns=str.lower)
    indexed = table.set_index("Datetime").drop(columns="Volume")
    nullable = table.astype({"Close": "Float64"})
    want = forecaster.predict(bars, "EURUSD").probs
    named = [bars.rename({"Datetime": name}) for name in ("timestamp", "Time", "date")]
    zoned = indexed.tz_localize("UTC")
    short = bars.rename(
        dict(zip(bars.columns, ("open_time", "o", "h", "l", "c", "v"), strict=True))
    )
    prices = table.set_index("Datetime").rename_axis("Date")
    yfinance = pandas.concat(
        {"EURUSD=X": prices, "GBPUSD=X": 2 * prices}, axis=1, names=["Ticker", "Price"]
    )
    tickers = [yfinance, yfinance.swaplevel(axis=1), yfinance[["EURUSD=X"]].tz_localize("GMT")]
    for frame in (
        table,
        lower,
        indexed,
        nullable,
        zoned,
        bars.rename(str.upper),
        bars.lazy(),
        *named,
        short,
        *tickers,
    ):
        np.testing.assert_array_equal(forecaster.predict(frame, "EURUSD").probs, want)
    with pytest.raises(DataError, match=r"several assets[\s\S]*EURUSD, GBPUSD"):
        forecaster.predict(yfinance, "AUDUSD")
    with pytest.raises(DataError, match="naive"):
        forecaster.predict(zoned.tz_convert("Asia/Tokyo"), "EURUSD")
    arrow = zoned.reset_index().convert_dtypes(dtype_backend="pyarrow")
    np.testing.assert_array_equal(forecaster.predict(arrow, "EURUSD").probs, want)
    arrow["Datetime"] = arrow["Datetime"].dt.tz_convert("Asia/Tokyo")
    for frame in (arrow, arrow.set_index("Datetime")):
        with pytest.raises(DataError, match="the zone Asia/Tokyo"):
            forecaster.predict(frame, "EURUSD")
    with pytest.raises(DataError, match="to_datetime"):
        forecaster.predict(table.astype({"Datetime": str}), "EURUSD")
    with pytest.raises(DataError, match="numeric"):
        forecaster.predict(table.astype({"Open": str}), "EURUSD")


def test_an_unknown_asset_says_so_and_takes_the_average_share_of_zeros(
    tiny: TinyRun, forecaster: Forecaster
) -> None:
    dist = forecaster.predict(random_bars(200), "GBPNOK")
    assert dist.unknown_asset
    assert "it knows" not in str(dist.notes)
    other = forecaster.predict(read_bars(tiny.bars)["EURUSD"], "eurusd")
    assert any(
        note.startswith("unknown asset") and note.endswith("it knows EURUSD")
        for note in other.notes
    )
    assert any("unknown asset" in note for note in dist.notes)
    assert dist.prob_zero == pytest.approx(np.mean(tiny.corpus.tokenizer.zero_share))
    known = forecaster.predict(random_bars(200), "EURUSD")
    assert known.prob_zero == tiny.corpus.tokenizer.zero_share[0]
    assert isinstance(known, ReturnDistribution)


def test_old_and_masked_last_bars_are_stale(forecaster: Forecaster) -> None:
    bars = random_bars(100)
    last: datetime = bars["Datetime"][-1]
    assert not forecaster.predict(bars, "EURUSD", now=last + timedelta(hours=2)).stale
    old = forecaster.predict(bars, "EURUSD", now=last + timedelta(hours=2, seconds=1))
    assert forecaster.predict(
        bars, "EURUSD", now=(last + timedelta(hours=2, seconds=1)).replace(tzinfo=UTC)
    ).stale
    for wrong in ("2024-01-01", datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))):
        with pytest.raises(ConfigError, match="in UTC"):
            forecaster.predict(bars, "EURUSD", now=wrong)
    assert old.stale
    assert old.stale_since == last + timedelta(hours=2)
    assert f"stale since {old.stale_since}" in repr(old)
    assert any(note.startswith(f"stale since {old.stale_since}") for note in old.notes)
    assert forecaster.predict(bars, "EURUSD").stale  # by the clock
    early = forecaster.predict(bars, "EURUSD", now=last - timedelta(hours=16))
    assert (
        early.notes[0] == f"ahead of time: the last bar is of {last}, and it is "
        f"{last - timedelta(hours=16):%F %H:%M}"
    )
    assert not any(
        "ahead" in note
        for note in forecaster.predict(bars, "EURUSD", now=last - timedelta(hours=15)).notes
    )
    repeated = changed(bars, -1, Close=bars["Close"][-2])
    masked = forecaster.predict(repeated, "EURUSD")
    assert masked.stale
    assert masked.notes[0] == "masked: the last close repeats the one before"


@pytest.mark.parametrize(
    ("minutes", "says"), [(-1, True), (0, False), (1, True), (59, True), (60, False)]
)
def test_a_bar_that_is_not_over_is_noted(forecaster: Forecaster, minutes: int, says: bool) -> None:
    """Whoever gives the last stamp itself as the moment means the end of its bar."""
    bars = random_bars(100)
    dist = forecaster.predict(bars, "EURUSD", now=bars["Datetime"][-1] + timedelta(minutes=minutes))
    assert (
        any(note.startswith(f"unfinished: the bar of {dist.as_of}") for note in dist.notes) is says
    )
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
    dist = forecaster.predict(random_bars(MIN_BARS, seed=3), "EURUSD")
    assert dist.context == MIN_BARS
    assert any("short context" in note for note in dist.notes)
    assert np.isfinite(dist.quantile(0.01))


BARS = random_bars(60)


@pytest.mark.parametrize(
    ("bars", "words"),
    [
        (BARS.head(21), ["too few bars", "22", "21"]),
        (BARS.head(0), ["too few bars"]),
        (BARS.reverse(), ["goes back in time", "row 2"]),
        (pl.concat([BARS, BARS.tail(1)]), ["repeated", "row 61"]),
        (changed(BARS, 7, Datetime=None), ["stamp is missing", "row 8"]),
        (changed(BARS, 7, Close=float("inf")), ["infinite", "Close, row 8"]),
        (BARS.drop("Close"), ["'Close' is missing"]),
        (BARS.with_columns(pl.col("Open").cast(str)), ["numeric", "Open"]),
        (BARS.with_columns(close=1.0), ["there twice", "Close and close"]),
        (
            BARS.with_columns(pl.col("Datetime").dt.replace_time_zone("Asia/Tokyo")),
            ["naive", "Tokyo"],
        ),
        (random_bars(60, step=timedelta(minutes=10)), ["another timeframe", "1h", "resample"]),
        (random_bars(60, step=timedelta(hours=4)), ["another timeframe", "finer"]),
        (frame_of(np.ones(60), np.ones(60)), ["no scale"]),
        ([1, 2, 3], ["not a table", "DataFrame"]),
        (None, ["not a table"]),
    ],
)
def test_bad_bars_are_refused_with_the_way_out(
    forecaster: Forecaster, bars: object, words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        forecaster.predict(bars, symbol="EURUSD")
    for word in words:
        assert word in str(caught.value)
    if "no scale" not in words:
        with pytest.raises(DataError):
            forecaster.predict_all(bars, "EURUSD")


def test_calls_that_make_no_sense(forecaster: Forecaster, tiny: TinyRun, tmp_path) -> None:
    with pytest.raises(ConfigError, match="whose bars"):
        forecaster.predict(BARS)
    with pytest.raises(ConfigError, match="no bars of this asset"):
        forecaster.predict({"EURUSD": BARS}, symbol="XAUUSD")
    with pytest.raises(DataError, match="symbol"):
        forecaster.predict(BARS, symbol="../EURUSD")
    for unnamed in (None, 7):
        with pytest.raises(DataError, match="symbol"):
            forecaster.predict({unnamed: BARS})
    with pytest.raises(DataError, match="symbol is missing"):
        forecaster.predict_df(BARS.with_columns(symbol=pl.lit(None, pl.String)))
    with pytest.raises(ConfigError, match="no bars"):
        forecaster.joint({})
    with pytest.raises(CheckpointError, match="no model"):
        Forecaster.load(tmp_path)
    with pytest.raises(CheckpointError, match="no model"):
        Forecaster.load(tmp_path / "nowhere")
    assert (
        Forecaster.load(tiny.run / "best.safetensors", threads=1).describe()
        == forecaster.describe()
    )
    assert forecaster.predict({}) == {}
    picked = forecaster.predict(
        {"EURUSD": BARS, "XAUUSD": None}, symbol="EURUSD"
    )  # the others are not even looked at
    np.testing.assert_array_equal(picked.probs, forecaster.predict(BARS, "EURUSD").probs)


def test_pandas_frames_that_make_no_sense(forecaster: Forecaster) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({name: BARS[name].to_numpy() for name in BARS.columns})
    with pytest.raises(DataError, match="there twice"):
        forecaster.predict(pandas.concat([table, table[["Close"]]], axis=1), "EURUSD")
    with pytest.raises(DataError, match="too many levels"):
        forecaster.predict(
            pandas.concat({"a": pandas.concat({"EURUSD": table}, axis=1)}, axis=1), "EURUSD"
        )
    with pytest.raises(DataError, match="symbol is missing"):
        forecaster.predict_df(table.assign(symbol=None))
    with pytest.raises(ConfigError, match="moment"):
        forecaster.predict(BARS, "EURUSD", now=pandas.NaT)
    with pytest.raises(DataError, match="stamp"):
        forecaster.online().push("EURUSD", {**BARS.row(0, named=True), "Datetime": pandas.NaT})


@settings(max_examples=40)
@given(price_pairs(min_rows=MIN_BARS, max_rows=90))
def test_wild_prices_give_a_proper_forecast_or_a_refusal(forecaster: Forecaster, prices) -> None:
    bars = frame_of(*prices)
    window = forecaster.windows({"EURUSD": bars})[0]
    if not window.columns["sigma20"][-1] > 0:
        with pytest.raises(DataError, match="no scale"):
            forecaster.forecast([window])
        return
    dist = forecaster.forecast([window])["EURUSD"]
    assert dist.probs.sum() == pytest.approx(1)
    assert (dist.probs >= 0).all()
    assert dist.sigma > 0
    last = bars.tail(1)
    bad = [last[name][0] is None or last[name][0] <= 0 for name in ("Open", "Close")]
    assert dist.stale or not any(bad)


def test_a_history_in_chunks_is_the_forecast_after_each_bar(tiny: TinyRun) -> None:
    windowed = untrained(tiny.corpus, positions="rotary", attention_window=8, num_layers=3)
    assert isinstance(windowed.backend, TorchBackend)
    windowed.backend.chunk_rows = 50
    bars = random_bars(150, 7)
    history = windowed.predict_all(bars, "EURUSD")
    for number in range(MIN_BARS, len(bars) + 1):
        alone = windowed.predict(bars.head(number), "EURUSD")
        np.testing.assert_allclose(history.probs[number - MIN_BARS], alone.probs, atol=TOLERANCE)
