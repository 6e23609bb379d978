"""What all baselines promise: distributions from the past alone, fits that survive storage, and
clear refusals.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from small_fits import small, with_columns

from vaiom.baselines.base import BASELINES, FOR_GPUS, Baseline, baseline
from vaiom.corpus.build import build_corpus
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.inference import asset_months, standard_error
from vaiom.evaluation.scores import event_bits
from vaiom.features.fields import ANY_MASK, BAD_RETURN
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.simulation.oracle import Oracle

QUICK = [name for name in BASELINES if name not in FOR_GPUS]  # the networks have tests of their own


@cache
def fitted(name: str, corpus: Corpus) -> Baseline:
    """On all of Train, once for all tests."""
    return small(name).fit(corpus, corpus.endpoints("train"))


@pytest.mark.parametrize("name", QUICK)
def test_probabilities_are_distributions_and_survive_storage(
    corpus: Corpus, name: str, tmp_path: Path
) -> None:
    # Every row of the corpus, masked ones and each asset's first among them.
    rows = np.arange(len(corpus))
    fit = fitted(name, corpus)
    probs = fit.predict_proba(corpus, rows)
    assert probs.shape == (len(rows), 16)
    assert np.isfinite(probs).all()
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-9)
    fit.save(tmp_path)
    np.testing.assert_array_equal(small(name).load(tmp_path).predict_proba(corpus, rows), probs)
    assert fit.name == name


@pytest.mark.parametrize("name", QUICK)
def test_nothing_after_a_row_changes_its_prediction(corpus: Corpus, name: str) -> None:
    rng = np.random.default_rng(5)
    cut = {symbol: inside.start + 12_000 for symbol, inside in corpus.asset_slices.items()}
    columns = {name: np.array(values) for name, values in corpus.columns.items()}
    for symbol, inside in corpus.asset_slices.items():
        later = slice(cut[symbol] + 1, inside.stop)
        count = later.stop - later.start
        for column in ("ret_z", "gap_z", "relative_log_vol", "log_ret", "range_z"):
            columns[column][later] = rng.normal(0, 0.01, count)
        columns["sigma20"][later] *= 7
        columns["timestamp"][later] += 3_600 * 77
        columns["return_bucket"][later] = rng.integers(1, 17, count)
        columns["flags"][later] ^= rng.choice([0, int(ANY_MASK), int(BAD_RETURN)], count).astype(
            np.uint8
        )
    train = corpus.endpoints("train")
    assert train.max() < max(cut.values())
    train = np.concatenate(
        [train[(train >= i.start) & (train < cut[s])] for s, i in corpus.asset_slices.items()]
    )
    rows = np.concatenate(
        [np.arange(i.start + 600, cut[s] + 1) for s, i in corpus.asset_slices.items()]
    )
    other = with_columns(corpus, **columns)
    everywhere = np.arange(len(corpus))
    one = small(name).fit(corpus, train).predict_proba(corpus, everywhere)
    two = small(name).fit(other, train).predict_proba(other, everywhere)
    np.testing.assert_array_equal(one[rows], two[rows])


@pytest.mark.parametrize("name", QUICK)
def test_none_beats_the_true_law(corpus: Corpus, bars: Path, name: str) -> None:
    rows = np.concatenate(
        [corpus.endpoints(split) for split in ("validation", "test-h1", "test-h2")]
    )
    buckets = corpus.target_return[rows]
    truth = event_bits(Oracle.load(bars).predict_proba(corpus, rows), buckets)
    probs = fitted(name, corpus).predict_proba(corpus, rows)
    gains = truth - event_bits(probs, buckets)
    blocks = asset_months(corpus.meta[rows, 0], corpus.target_timestamps[rows])
    assert gains.mean() <= 2 * standard_error(gains, blocks)


@pytest.mark.parametrize("name", QUICK)
def test_predicting_before_fitting_and_fitting_on_nothing_are_refused(
    corpus: Corpus, name: str
) -> None:
    with pytest.raises(DataError, match="only after it was fitted"):
        small(name).predict_proba(corpus, np.arange(3))
    with pytest.raises(DataError, match="no events to fit on"):
        small(name).fit(corpus, np.array([], np.int64))


@pytest.mark.parametrize("name", QUICK)
def test_a_bucket_never_seen_and_an_asset_never_fitted_leave_finite_scores(
    corpus: Corpus, name: str
) -> None:
    first = next(iter(corpus.asset_slices.values()))
    train = corpus.endpoints("train")
    seen = train[(train < first.stop) & (corpus.target_return[train] != 9)]
    rows = corpus.endpoints("validation")
    probs = small(name).fit(corpus, seen).predict_proba(corpus, rows)
    assert np.isfinite(event_bits(probs, corpus.target_return[rows])).all()


@pytest.mark.parametrize("name", QUICK)
def test_one_asset_is_enough(name: str, tmp_path: Path) -> None:
    config = MarketConfig(assets=1, bars=14_500)
    write_market(config, tmp_path / "bars")
    alone = build_corpus(tmp_path / "bars", tmp_path / "corpus")
    rows = alone.endpoints("validation")
    probs = small(name).fit(alone, alone.endpoints("train")).predict_proba(alone, rows)
    assert np.isfinite(event_bits(probs, alone.target_return[rows])).all()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="lightgbm_lags"):
        baseline("catboost")


def test_a_damaged_fit_is_named(corpus: Corpus, tmp_path: Path) -> None:
    for name in ("markov", "garch_t"):
        (tmp_path / "fit.json").write_text("[]")
        with pytest.raises(DataError, match="damaged"):
            small(name).load(tmp_path)
    fitted("lightgbm", corpus).save(tmp_path)
    (tmp_path / "model.txt").write_text("tree\n")
    with pytest.raises(DataError, match="damaged"):
        small("lightgbm").load(tmp_path)
