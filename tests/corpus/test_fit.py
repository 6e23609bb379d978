from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from vaiom.corpus.tokenizer import (
    Tokenizer,
    fit_regime_edges,
    fit_returns,
    fit_shape,
    fit_signed_edges,
)
from vaiom.distribution.shape import PIECES
from vaiom.errors import DataError
from vaiom.features.fields import bucket_of

any_float = st.floats(allow_nan=True, allow_infinity=True)


@given(
    arrays(float, st.integers(30, 200), elements=st.floats(-12, 12)),
    arrays(float, 20, elements=any_float),
)
def test_a_value_lies_in_its_bucket(train: np.ndarray, values: np.ndarray) -> None:
    assume((np.abs(train) < 2).any())
    edges = fit_signed_edges(np.sort(train))
    assert edges[[0, -1]].tolist() == [-math.inf, math.inf]
    assert (np.diff(edges) > 0).all()
    buckets = bucket_of(edges, values)
    finite = np.isfinite(values)
    assert not buckets[~finite].any()
    above = buckets[finite]
    assert (edges[above - 1] < values[finite]).all()
    assert (values[finite] <= edges[above]).all()


def test_edges_are_the_tails_and_the_inner_quantiles() -> None:
    values = np.linspace(-4, 4, 8001)
    inner = np.quantile(values[(values > -2) & (values < 2)], [0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9])
    expected = [-math.inf, -8, -5, -3, -2, *inner, 2, 3, 5, 8, math.inf]
    assert_allclose(fit_signed_edges(values), expected, atol=1e-15)


def test_repeated_quantiles_collapse_as_in_the_papers_gap_map() -> None:
    values = np.concatenate([np.zeros(700), np.linspace(-1.9, 1.9, 300)])
    assert len(fit_signed_edges(np.sort(values))) - 1 < 16


def test_the_cutoffs_themselves_stay_outside_the_quantiles() -> None:
    inside = np.linspace(-1, 1, 101)
    assert_array_equal(
        fit_signed_edges(np.array([-2.0, *inside, 2.0, 2.0])), fit_signed_edges(inside)
    )


def test_regimes_are_plain_quantiles() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    assert_array_equal(fit_regime_edges(values)[1:-1], np.quantile(values, [0.2, 0.4, 0.6, 0.8]))


def test_nothing_to_fit_on_is_an_error_with_a_way_out() -> None:
    with pytest.raises(DataError, match="--train-end"):
        fit_signed_edges(np.array([5.0]))


def test_returns_too_coarse_for_their_buckets_are_refused() -> None:
    with pytest.raises(DataError, match=r"too coarse[\s\S]*EURUSD[\s\S]*16 buckets"):
        fit_returns(np.sort(np.repeat([-1.0, 0.0, 1.0], 100)), "EURUSD")


EDGES = np.array([-np.inf, -8, -5, -3, -2, -1, -0.6, -0.3, 0.01, 0.3, 0.6, 1, 2, 3, 5, 8, np.inf])


def test_knots_are_quantiles_shrunk_to_even_ones() -> None:
    heavy = np.random.default_rng(3).standard_t(2, 500)
    values = np.append(heavy, [2.0, 3.0, 3.0])  # an upper edge is inside
    knots = fit_shape(EDGES, values).knots
    levels = np.arange(PIECES) / PIECES
    for bucket, (low, high) in enumerate(pairwise(EDGES[1:-1])):
        inside = values[(values > low) & (values <= high)]
        own = np.quantile(inside, levels) if len(inside) else np.zeros(PIECES)
        even = low + (high - low) * levels
        expected = (PIECES * even + len(inside) * own) / (PIECES + len(inside))
        found = knots[bucket * PIECES : (bucket + 1) * PIECES]
        assert_allclose(found[1:], expected[1:])
    assert_array_equal(knots[::PIECES], EDGES[1:-1])


@pytest.mark.parametrize("count", [0, 1, 49, 50, 400])
def test_a_tail_has_the_mean_of_its_excesses_and_five_more_of_two_sigmas(count: int) -> None:
    excesses = np.random.default_rng(1).pareto(3, count)
    excesses[:1] = 70.0
    mean = (np.minimum(excesses, 50).sum() + 5 * 2.0) / (count + 5)
    for tail in (fit_shape(EDGES, 8 + excesses).upper, fit_shape(EDGES, -8 - excesses).lower):
        assert tail.scale / (1 - tail.shape) == pytest.approx(mean)
        assert (tail.shape > 0) == (count >= 50)


def test_a_tails_shape_is_that_of_probability_weighted_moments() -> None:
    excesses = np.sort(np.random.default_rng(2).pareto(4, 300))
    above = 1 - (np.arange(1, 301) - 0.35) / 300
    first = excesses.mean()
    expected = 2 - first / (first - 2 * (above * excesses).mean())
    assert 0 < expected < 0.45
    shapes = (excesses, excesses**3, np.linspace(1, 1.1, 300))
    found = [fit_shape(EDGES, 8 + each).upper.shape for each in shapes]
    assert found == pytest.approx([expected, 0.45, 0.0])


TOKENIZER = Tokenizer(
    symbols=("AAPL", "EURUSD", "XAUUSD"),
    classes=("EQUITY", "FX", "SPOT"),
    timeframe="1h",
    edges={
        "return": EDGES,
        "gap": np.array([-np.inf, -1, 1, np.inf]),
        "vol_regime": np.array([-np.inf, 0, np.inf]),
    },
    zero_share=(0.0, 1.0, 0.5),
    return_shape=fit_shape(EDGES, np.empty(0)),
)


def other_edges(**changes: Any) -> dict[str, Any]:
    return {"edges": {**TOKENIZER.edges, **changes}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"symbols": ("EURUSD", "AAPL", "XAUUSD")}, "sorted and unique"),
        ({"symbols": ("AAPL", "AAPL", "XAUUSD")}, "sorted and unique"),
        ({"classes": ("EQUITY", "FX")}, "one class and one zero share"),
        ({"zero_share": (0.0, 1.0)}, "one class and one zero share"),
        ({"zero_share": (0.0, 1.0, 1.1)}, "lie in"),
        ({"zero_share": (0.0, -0.1, 1.0)}, "lie in"),
        ({"timeframe": "7min"}, "divide a day"),
        ({"edges": {"return": EDGES, "gap": EDGES}}, "edges of return, gap and vol_regime"),
        (other_edges(gap=np.array([-np.inf, 1, 1, np.inf])), "edges of gap must increase"),
        (other_edges(gap=np.array([-np.inf, *range(254), np.inf])), "edges of gap must increase"),
        (other_edges(**{"return": np.delete(EDGES, 3)}), "16 return buckets"),
    ],
)
def test_a_tokenizer_without_sense_is_refused(change: dict[str, Any], words: str) -> None:
    replace(TOKENIZER, **other_edges(gap=np.array([-np.inf, *range(253), np.inf])))  # ids up to 254
    with pytest.raises(Exception, match=words):
        replace(TOKENIZER, **change)


def test_ids_of_assets_and_classes() -> None:
    assert TOKENIZER.class_names == ("FX", "SPOT", "EQUITY")
    # A new asset has its default class, and the first if the model has none such.
    metas = {
        "AAPL": [1, 2, 0],
        "EURUSD": [2, 0, 0],
        "XAUUSD": [3, 1, 0],
        "XAGUSD": [0, 1, 0],
        "BTCUSDT": [0, 0, 0],
    }
    assert {symbol: TOKENIZER.meta(symbol).tolist() for symbol in metas} == metas
    assert TOKENIZER.num_buckets == {"return": 16, "gap": 3, "vol_regime": 2}
    expected = {"asset_id": 4, "asset_class_id": 3, "gap_bucket": 4, "vol_regime": 3}
    assert expected.items() <= TOKENIZER.vocabulary_sizes.items()


def test_which_tokenizers_have_the_same_buckets() -> None:
    fewer = {"symbols": ("AAPL",), "classes": ("FX",), "zero_share": (0.3,)}
    assert replace(TOKENIZER, **fewer).has_buckets_of(TOKENIZER)
    shape = replace(TOKENIZER.return_shape, upper=replace(TOKENIZER.return_shape.upper, shape=0.1))
    for change in ({"timeframe": "4h"}, {"return_shape": shape}, other_edges(gap=EDGES)):
        assert not replace(TOKENIZER, **change).has_buckets_of(TOKENIZER)


def test_a_tokenizer_of_another_version_or_of_nothing_is_refused() -> None:
    value = TOKENIZER.to_json()
    assert Tokenizer.from_json(value).sha256 == TOKENIZER.sha256
    with pytest.raises(DataError, match="another version"):
        Tokenizer.from_json({**value, "version": 1}, "there")
    for wrong in (
        [],
        {**value, "symbols": 3},
        {name: each for name, each in value.items() if name != "classes"},
    ):
        with pytest.raises(DataError, match=r"not the state of a tokenizer[\s\S]*there"):
            Tokenizer.from_json(wrong, "there")  # type: ignore[arg-type]
