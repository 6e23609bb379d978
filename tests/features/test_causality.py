"""Changing any bar after t leaves every feature up to t the same, to the bit."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from corpus.full_bars import full_bars
from strategies import frame_of, price_pairs, random_bars
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.features.asset_state import AssetState
from vaiom.features.fields import OWN_FIELDS
from vaiom.features.inputs import continuous_inputs
from vaiom.features.rows import RowColumns, bars_of, rows_of, stored
from vaiom.market.folder import read_bars

TRAIN_END = datetime(2023, 12, 1)
SYMBOLS = ("EURUSD", "USDJPY", "XAUUSD")
CONFIG = CorpusConfig(timeframe="1h", splits=SplitConfig().shifted_to(TRAIN_END))
HOUR = timedelta(hours=1)
VANDALS = ("scale", "shuffle", "delete", "null", "shift")


def all_fields(bars: pl.DataFrame) -> RowColumns:
    return rows_of(bars_of(bars), AssetState.empty(HOUR))[0]


def cont_of_bars(bars: pl.DataFrame) -> np.ndarray:
    return continuous_inputs(stored(rows_of(bars_of(bars), AssetState.empty(None))[0]))


def vandalise(bars: pl.DataFrame, cut: int, how: str, rng: np.random.Generator) -> pl.DataFrame:
    """Do something terrible to every bar after the first `cut`."""
    head, tail = bars[:cut], bars[cut:]
    if not len(tail):
        return bars
    prices = ["Open", "High", "Low", "Close", "Volume"]
    if how == "scale":
        tail = tail.with_columns(pl.col(prices) * rng.lognormal(0, 2))
    elif how == "shuffle":
        tail = tail.with_columns(pl.col(prices).gather(rng.permutation(len(tail))))
    elif how == "delete":
        tail = tail.filter(pl.Series(rng.random(len(tail)) < 0.3))
    elif how == "null":
        tail = tail.with_columns(pl.lit(None, pl.Float64).alias(name) for name in prices)
    else:
        tail = tail.with_columns(pl.col("Datetime") + timedelta(hours=int(rng.integers(1, 1000))))
    return pl.concat([head, tail])


def require_past_kept(bars: pl.DataFrame, data: st.DataObject) -> None:
    """Vandalise the bars after some bar: rows up to it stay."""
    cut = data.draw(st.integers(1, len(bars)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    changed = vandalise(bars, cut, data.draw(st.sampled_from(VANDALS)), rng)
    after = all_fields(changed)
    for name, values in all_fields(bars).items():
        assert_array_equal(values[:cut], after[name][:cut], name)
    assert_array_equal(cont_of_bars(bars)[:cut], cont_of_bars(changed)[:cut])


@given(price_pairs(min_rows=2), st.data())
def test_rows_do_not_see_the_future(
    prices: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    require_past_kept(frame_of(*prices), data)


@given(full_bars(max_rows=150), st.data())
def test_own_extra_fields_do_not_see_the_future(bars: pl.DataFrame, data: st.DataObject) -> None:
    require_past_kept(bars, data)


@given(st.data())
def test_fields_of_closes_alone_do_not_see_the_future(data: st.DataObject) -> None:
    close = pl.col("Close")
    bars = random_bars(150).with_columns(Open=close, High=close, Low=close)
    cut = data.draw(st.integers(1, len(bars)))
    for later in (bars, random_bars(150)):
        changed = pl.concat([bars[:cut], later[cut:].with_columns(close * 1.5)])
        after = all_fields(changed)
        for name, values in all_fields(bars).items():
            assert_array_equal(values[:cut], after[name][:cut], name)


def asset(seed: int) -> pl.DataFrame:
    return random_bars(900 + 50 * seed, seed).with_columns(
        pl.col("High") * 1.001, pl.col("Low") * 0.999
    )


MARKET = {symbol: asset(seed) for seed, symbol in enumerate(SYMBOLS)}


@pytest.fixture(scope="module")
def before() -> Corpus:
    return corpus_in_memory(MARKET, CONFIG)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_field_of_a_corpus_sees_the_future(before: Corpus, data: st.DataObject) -> None:
    """After Train, where nothing is fitted: all three schemas, the scales and every target that was
    known by then.
    """
    cut = data.draw(st.datetimes(TRAIN_END, TRAIN_END + timedelta(days=8)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    how = data.draw(st.sampled_from(VANDALS))
    changed = {
        symbol: vandalise(bars, int((bars["Datetime"] <= cut).sum()), how, rng)
        for symbol, bars in MARKET.items()
    }
    after = corpus_in_memory(changed, CONFIG)
    assert before.tokenizer.sha256 == after.tokenizer.sha256
    for symbol in SYMBOLS:
        known = int((before.timestamps[before.asset_slices[symbol]] <= np.datetime64(cut)).sum())
        a = slice(before.asset_slices[symbol].start, before.asset_slices[symbol].start + known)
        b = slice(after.asset_slices[symbol].start, after.asset_slices[symbol].start + known)
        for name in ("cont", "extra", "disc", "meta", "sigma20", "mask_any", "timestamps"):
            assert_array_equal(getattr(before, name)[a], getattr(after, name)[b], name)
        settled_a, settled_b = slice(a.start, a.stop - 1), slice(b.start, b.stop - 1)
        for name in (
            "target_return",
            "target_gap",
            "target_vol_regime",
            "log_ret_next",
            "valid_base",
            "split_codes",
        ):
            assert_array_equal(
                getattr(before, name)[settled_a], getattr(after, name)[settled_b], name
            )


@pytest.mark.parametrize("how", VANDALS)
def test_what_another_asset_does_later_changes_nothing(before: Corpus, how: str) -> None:
    """One asset is spoiled after the cut; up to it every asset keeps its fields, and the others
    their own for good.
    """
    cut = TRAIN_END + timedelta(days=4)
    rng = np.random.default_rng(29)
    spoiled = MARKET["USDJPY"]
    spoiled = vandalise(spoiled, int((spoiled["Datetime"] <= cut).sum()), how, rng)
    after = corpus_in_memory(MARKET | {"USDJPY": spoiled}, CONFIG)
    for symbol in SYMBOLS:
        a, b = before.asset_slices[symbol], after.asset_slices[symbol]
        known = int((before.timestamps[a] <= np.datetime64(cut)).sum())
        assert_array_equal(before.extra[a][:known], after.extra[b][:known], symbol)
        if symbol != "USDJPY":
            own = len(OWN_FIELDS)
            assert_array_equal(before.extra[a][:, :own], after.extra[b][:, :own], symbol)
            assert (before.extra[a][known:, own:] != after.extra[b][known:, own:]).any()


def test_no_field_of_real_bars_sees_the_future(shared_data: Path) -> None:
    rng = np.random.default_rng(17)
    for symbol, bars in read_bars(shared_data / "bars_1h").items():
        bars = bars.tail(6000)
        whole, own = cont_of_bars(bars), all_fields(bars)
        for how in VANDALS:
            cut = int(rng.integers(100, len(bars)))
            changed = vandalise(bars, cut, how, rng)
            assert_array_equal(whole[:cut], cont_of_bars(changed)[:cut], symbol)
            for name, values in all_fields(changed).items():
                assert_array_equal(own[name][:cut], values[:cut], f"{symbol} {name}")
