"""The sum of the next bars: exactly those bars, inside one split, at a scale that is known before
them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from strategies import random_bars
from vaiom.codec import from_json, to_json
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import NO_TARGET_CODE, TRAIN, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import (
    TargetFit,
    fit_target,
    slots_of_week,
    sum_of_next,
    usual_sizes,
)
from vaiom.corpus.tokenizer import INTERIOR_QUANTILES
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import bucket_of

SPLITS = SplitConfig(
    train_end=datetime(2023, 12, 10),
    validation=(datetime(2023, 12, 20), datetime(2024, 1, 1)),
    tests=((datetime(2024, 1, 1), datetime(2024, 1, 5)),),
    seal=datetime(2024, 1, 5),
)
BARS = 5


@cache
def corpus() -> Corpus:
    bars = {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}
    close = bars["EURUSD"]["Close"].to_numpy().copy()
    close[[300, 900]] = np.nan
    close[600] *= 20
    bars["EURUSD"] = bars["EURUSD"].with_columns(Close=close).fill_nan(None)
    return corpus_in_memory(bars, CorpusConfig(splits=SPLITS))


@cache
def view() -> Corpus:
    return corpus().with_target(BARS)


def changed(row: int, **columns: float) -> Corpus:
    """The corpus with other values in one row, seen with the same fit."""
    new = {name: np.array(corpus().columns[name]) for name in columns}
    for name, value in columns.items():
        new[name][row] = value
    return replace(view(), columns={**corpus().columns, **new})


@given(st.integers(0, 3_399), st.sampled_from([0.5, np.nan]))
def test_a_target_is_made_of_exactly_the_next_bars(row: int, value: float) -> None:
    other = changed(row, log_ret=value)
    sums = view().log_ret_next
    differs = ~np.isclose(other.log_ret_next, sums, equal_nan=True)
    first_of_asset = 0 if row < 1_700 else 1_700
    inside = set(range(max(row - BARS, first_of_asset), row))
    assert set(np.flatnonzero(differs)) <= inside
    assert inside <= set(np.flatnonzero(differs | np.isnan(sums)))
    assert_array_equal(other.target_scale, view().target_scale)


def test_it_is_the_log_of_the_prices_ratio_and_needs_every_price() -> None:
    closes = np.log(random_bars(1_700, 1)["Close"].to_numpy())
    own, sums = corpus().asset_slices["XAUUSD"], view().log_ret_next
    assert_allclose(sums[own][:-BARS], closes[BARS:] - closes[:-BARS], atol=1e-12)
    assert np.isnan(sums[own][-BARS:]).all()
    # A missing close takes its own bar and the next one; an absurd one leaves two absurd returns.
    for lost in (300, 900, 600):
        assert not view().target().known[lost - BARS : lost + 1].any()
        assert view().target().known[lost + 1]
        assert not view().valid_base[lost - BARS : lost + 1].any()


def test_a_zero_inside_counts_and_a_whole_that_is_zero_is_no_event() -> None:
    flat = changed(2_000, log_ret=0.0)
    assert flat.valid_base[1_998] == view().valid_base[1_998]
    back = -np.delete(corpus().columns["log_ret"][2_001 : 2_001 + BARS], 2).sum()
    closed = changed(2_003, log_ret=back)
    assert closed.log_ret_next[2_000] == 0
    assert not closed.valid_base[2_000]


def test_the_whole_target_lies_in_the_split_of_its_last_bar() -> None:
    one = corpus().split_codes
    ends = [rows.stop for rows in corpus().asset_slices.values()]
    across = 0
    for row, code in enumerate(view().split_codes.tolist()):
        bars = set(one[row : row + BARS].tolist())
        end = next(end for end in ends if row < end)
        if row + BARS >= end or len(bars) > 1:
            assert code == NO_TARGET_CODE
            across += row + BARS < end
        else:
            assert bars == {code}
            assert view().target_timestamps[row] == corpus().timestamps[row + BARS]
    assert across == 2 * (BARS - 1) * 4  # of two assets, around four boundaries


def test_nothing_outside_train_is_fitted_on() -> None:
    later = corpus().timestamps >= np.datetime64(SPLITS.train_end)
    columns = {name: np.array(corpus().columns[name]) for name in ("log_ret", "sigma20")}
    for column in columns.values():
        column[later] *= 7
    again = fit_target(replace(corpus(), columns={**corpus().columns, **columns}), BARS)
    assert to_json(again) == to_json(view().target().fit)


def test_a_fit_is_stored_and_read_back_to_the_bit() -> None:
    fit = view().target().fit
    again = from_json(TargetFit, to_json(fit))
    assert to_json(again) == to_json(fit)
    assert_array_equal(again.scale(corpus().columns, corpus().meta[:, 0]), view().target_scale)


@pytest.mark.parametrize("bars", [-1, 0, 1_001])
def test_what_is_no_horizon(bars: int) -> None:
    with pytest.raises(ConfigError, match="not a horizon"):
        fit_target(corpus(), bars)


def test_a_horizon_longer_than_train() -> None:
    with pytest.raises(DataError, match="Train holds no event of 1000 bars"):
        fit_target(corpus(), 1_000)


def test_usual_sizes_are_means_shrunk_twice() -> None:
    """A slot's mean to its asset's, and that to the mean of all; the unknown asset is all of
    them.
    """
    rng = np.random.default_rng(0)
    size = rng.exponential(1, 900)
    assets = rng.integers(1, 3, 900)
    slots = rng.integers(0, 4, 900)

    def shrunk(values: np.ndarray, towards: float) -> float:
        return float((values.sum() + 100 * towards) / (len(values) + 100))

    found = usual_sizes(size, assets, slots, (3, 4))
    for asset, slot in product(range(3), range(4)):
        own = (assets == asset) | (asset == 0)
        of_asset = shrunk(size[own], size.mean())
        of_slot = shrunk(size[own & (slots == slot)], of_asset)
        assert found[asset, slot] == pytest.approx(of_slot / size.mean(), abs=5.1e-5)
    assert_array_equal(found, found.round(4))


def test_a_fit_is_that_of_the_train_sums() -> None:
    log_ret = np.array(corpus().columns["log_ret"])
    log_ret[100:140] = 0.0
    flat = replace(corpus(), columns={**corpus().columns, "log_ret": log_ret})
    target = flat.target(BARS)
    fit = target.fit
    assert (fit.bars, fit.timeframe, slots_of_week(flat)) == (BARS, "1h", 168)
    in_train = target.split_codes == flat.splits.code(TRAIN)
    train = in_train & ~flat.mask_any & (flat.sigma20 > 0) & target.known
    zero = target.log_ret_next == 0
    shares = [zero[train & (flat.meta[:, 0] == asset)].mean() for asset in (1, 2)]
    assert shares[0] > 0.02
    assert fit.zero_share == pytest.approx((np.mean(shares), *shares))
    events = np.flatnonzero(train & ~zero)
    assets = flat.meta[events, 0].astype(int)
    hours = flat.columns["timestamp"][events].astype(int) // 3_600
    slots = (hours + 72) % 168  # the first hour of 1970 was a Thursday's
    z = target.log_ret_next[events] / (flat.sigma20[events] * np.sqrt(BARS))
    assert_array_equal(fit.slot_scale, usual_sizes(np.abs(z), assets, slots, (3, 168)))
    z /= fit.slot_scale[assets, slots]
    inner = np.quantile(z[np.abs(z) < 2], INTERIOR_QUANTILES)
    assert_allclose(fit.edges[5:12], inner)
    assert_array_equal(target.bucket[events], bucket_of(fit.edges, z))
    assert_allclose(target.scale[events] * z, target.log_ret_next[events])


def test_slots_are_those_of_the_timeframe() -> None:
    bars = {"EURUSD": random_bars(900, step=timedelta(hours=4), start=datetime(2023, 8, 1))}
    coarse = corpus_in_memory(bars, CorpusConfig(splits=SPLITS))
    assert slots_of_week(coarse) == 42
    assert fit_target(coarse, 2).slot_scale.shape == (2, 42)


def test_the_next_bar_is_a_target_like_the_others() -> None:
    tokenizer = corpus().tokenizer
    target = corpus().target(1)
    fit = target.fit
    assert (target.horizon, fit.timeframe) == (1, "1h")
    assert fit.zero_share == pytest.approx((np.mean(tokenizer.zero_share), *tokenizer.zero_share))
    assert_array_equal(target.edges, tokenizer.edges["return"])
    assert target.shape is tokenizer.return_shape
    assert_array_equal(fit.scale(corpus().columns, corpus().meta[:, 0]), target.scale)
    # Its stored buckets are those that its edges and scale give.
    with np.errstate(divide="ignore", invalid="ignore"):
        buckets = bucket_of(target.edges, target.log_ret_next / target.scale)
    assert_array_equal(target.bucket, np.where(target.bad, 0, buckets))


def test_a_corpus_with_another_target_speaks_of_it_alone() -> None:
    seen = view()
    assert (seen.horizon, corpus().horizon, seen.with_target(1).horizon) == (BARS, 1, 1)
    assert seen.return_shape is seen.target().shape
    assert_array_equal(seen.edges["return"], seen.target().edges)
    assert_array_equal(seen.edges["gap"], corpus().edges["gap"])
    assert not seen.target_return[seen.target_bad].any()
    assert np.isnat(seen.target_timestamps[1_700 - BARS : 1_700]).all()
    assert seen.target_timestamps[0] == corpus().timestamps[BARS]


def test_a_sum_that_is_all_but_nothing_is_a_price_that_came_back() -> None:
    tiny = replace(corpus(), columns={**corpus().columns, "log_ret": np.full(3_400, 1e-11)})
    for bars, moved in ((BARS, False), (30, True)):
        sums = sum_of_next(tiny.columns, tiny.asset_slices, bars)
        assert np.nan_to_num(sums).any() == moved


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("16 return buckets", {"edges": np.arange(16.0)}),
        ("16 return buckets", {"edges": np.arange(17.0)[::-1]}),
        ("each asset and slot", {"slot_scale": np.ones((3, 167))}),
        ("each asset and slot", {"zero_share": (0.0, 0.0)}),
        ("one bar or more", {"bars": 0}),
        ("positive and finite", {"slot_scale": np.zeros((3, 168))}),
        ("positive and finite", {"slot_scale": np.full((3, 168), np.inf)}),
    ],
)
def test_a_fit_that_no_train_gives_is_refused(words: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=words):
        replace(view().target().fit, **change)


def test_the_hash_knows_the_target() -> None:
    manifest = {"arrays": {}, "tokenizer_sha256": "x", "splits": {}, "series": {}}
    named = replace(corpus(), manifest=manifest)
    targets = (1, 4, BARS, view().target().fit)
    one, four, five, again = (named.with_target(each).sha256 for each in targets)
    assert len({one, four, five}) == 3
    assert five == again
