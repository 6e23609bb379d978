"""The shape inside buckets and tails: what it is fitted to, and that it describes returns it never
saw.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaiom.codec import from_json, to_json
from vaiom.corpus.build import build_corpus, corpus_in_memory
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer, fit_shape
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.shape import PIECES, ReturnShape, Tail
from vaiom.market.folder import read_file, write_symbol
from vaiom.simulation.market import MarketConfig, simulate, write_market
from vaiom.simulation.oracle import Oracle

EDGES = np.array([-np.inf, -8, -5, -3, -2, -1, -0.6, -0.3, 0.01, 0.3, 0.6, 1, 2, 3, 5, 8, np.inf])
EQUAL = np.full(16, 1 / 16)


@given(st.integers(0, 2**32 - 1), st.integers(0, 3_000), st.booleans())
def test_knots_rise_and_hold_the_edges_whatever_train_had(
    seed: int, count: int, coarse: bool
) -> None:
    values = np.random.default_rng(seed).standard_t(2, count)
    shape = fit_shape(EDGES, values.round(1) if coarse else values)
    assert (np.diff(shape.knots) > 0).all()
    np.testing.assert_array_equal(shape.knots[::PIECES], EDGES[1:-1])
    for tail in (shape.lower, shape.upper):
        assert tail.scale > 0
        assert 0 <= tail.shape < 0.5
        assert np.isfinite(tail.moment_beyond(0))
    assert to_json(from_json(ReturnShape, to_json(shape))) == to_json(shape)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_knots_that_do_not_increase_are_refused(wrong: float) -> None:
    value = to_json(fit_shape(EDGES, np.empty(0)))
    value["knots"][5] = value["knots"][4] + wrong
    with pytest.raises(ValueError, match="knots must increase"):
        from_json(ReturnShape, value)


def test_a_bucket_with_much_data_has_its_quantiles() -> None:
    values = (
        np.random.default_rng(1).beta(0.5, 3, 200_000) + 2
    )  # all in one bucket, crowded at its lower edge
    shape = fit_shape(EDGES, values)
    at = int(np.searchsorted(EDGES[1:-1], 2.5)) - 1
    own = shape.knots[at * PIECES : (at + 1) * PIECES + 1]
    np.testing.assert_allclose(
        own[1:-1], np.quantile(values, np.arange(1, PIECES) / PIECES), atol=1e-3
    )


@pytest.mark.parametrize(("scale", "shape"), [(2.5, 0.2), (1.0, 0.0), (0.7, 0.35)])
def test_a_pareto_tail_is_found_again(scale: float, shape: float) -> None:
    true = Tail(scale=scale, shape=shape)
    excesses = true.excess(np.random.default_rng(5).random(50_000))
    fitted = fit_shape(EDGES, 8 + excesses).upper
    assert fitted.shape == pytest.approx(shape, abs=0.04)
    assert fitted.scale == pytest.approx(scale, rel=0.06)
    assert true.moment_beyond(3.0) == pytest.approx(excesses[excesses > 3].mean(), rel=0.06)
    np.testing.assert_allclose(
        true.survival(true.excess(np.array([0.9, 0.1, 1e-6]))), [0.9, 0.1, 1e-6]
    )


def test_one_wrong_tick_does_not_make_the_tail() -> None:
    excesses = np.random.default_rng(3).exponential(2.0, 600)
    clean, spoiled = fit_shape(EDGES, 8 + excesses), fit_shape(EDGES, 8 + np.append(excesses, 1e7))
    assert spoiled.upper.moment_beyond(0) < 1.1 * clean.upper.moment_beyond(0)


def log2_density(shape: ReturnShape, z: np.ndarray) -> np.ndarray:
    """log2 of the density of each return; all buckets alike, so that only the shape makes a
    difference.
    """
    return np.log2(in_sigmas(np.tile(EQUAL, (len(z), 1)), shape).pdf(z))


def in_sigmas(probs: np.ndarray, shape: ReturnShape) -> BucketDistribution:
    return BucketDistribution(probs=probs, sigma=np.ones(len(probs)), shape=shape)


def heldout_z(corpus: Corpus) -> np.ndarray:
    rows = corpus.endpoints("validation", 22)
    return corpus.log_ret_next[rows] / corpus.sigma20[rows]


def test_on_real_bars_the_shape_beats_even_spreading_and_covers(
    shared_data: Path, tmp_path: Path
) -> None:
    for symbol in ("EURUSD", "XAUUSD"):
        write_symbol(
            tmp_path / "bars", symbol, read_file(shared_data / "bars_1h" / f"{symbol}.parquet")
        )
    corpus = corpus_in_memory(tmp_path / "bars")
    tokenizer, edges = corpus.tokenizer, corpus.edges["return"]
    z = heldout_z(corpus)
    gain = log2_density(tokenizer.return_shape, z) - log2_density(fit_shape(edges, np.empty(0)), z)
    assert gain.mean() > 0.02
    # Where returns lie in their bucket's mass is uniform, if the shape is right.
    u = in_sigmas(np.tile(EQUAL, (len(z), 1)), tokenizer.return_shape).cdf(z)
    inside = u * 16 - np.searchsorted(edges[1:-1], z, side="left")
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert (inside <= level).mean() == pytest.approx(level, abs=0.015)


def test_on_a_simulated_market_the_true_probabilities_give_true_quantiles(tmp_path: Path) -> None:
    config = MarketConfig(assets=2, bars=64_000)
    write_market(config, tmp_path / "bars")
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus")
    rows = corpus.endpoints("validation", 22)
    z = heldout_z(corpus)
    probs = Oracle.load(tmp_path / "bars").predict_proba(corpus, rows)
    u = in_sigmas(probs, corpus.tokenizer.return_shape).cdf(z)
    for level in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99):
        error = 4 * np.sqrt(level * (1 - level) / len(u)) + 0.004
        assert (u <= level).mean() == pytest.approx(level, abs=error)


def test_the_tokenizer_carries_the_shape_and_its_hash_knows_it(tmp_path: Path) -> None:
    [(symbol, asset)] = simulate(MarketConfig(assets=1, bars=20_000)).items()
    write_symbol(tmp_path, symbol, asset.bars)
    tokenizer = corpus_in_memory(tmp_path).tokenizer
    again = Tokenizer.from_json(tokenizer.to_json())
    np.testing.assert_array_equal(again.return_shape.knots, tokenizer.return_shape.knots)
    other = tokenizer.to_json()
    other["return_shape"]["upper"]["scale"] *= 1.001
    assert again.sha256 == tokenizer.sha256 != Tokenizer.from_json(other).sha256
