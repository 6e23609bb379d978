"""What users and models read of an opened corpus."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from corpus.corpora import CONFIG, LATER, ROWS, TRAIN_END
from vaiom.corpus.build import CorpusConfig, build_corpus, corpus_in_memory
from vaiom.corpus.split_quality import count_events, few_train_events, split_quality
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError
from vaiom.features.fields import COLUMN_TYPES, CONT_FIELDS, DISC_FIELDS, EXTRA_FIELDS, MASK_BITS
from vaiom.model.config import ModelConfig


def test_what_users_rely_on(corpus: Corpus) -> None:
    rows = sum(ROWS.values())
    assert (corpus.cont.shape, corpus.cont.dtype) == ((rows, 25), np.float32)
    assert (corpus.extra.shape, corpus.extra.dtype) == ((rows, len(EXTRA_FIELDS)), np.float32)
    assert np.isfinite(corpus.extra).all()
    assert (corpus.disc.shape, corpus.meta.shape) == ((rows, 15), (rows, 3))
    assert list(corpus.asset_slices) == sorted(ROWS)
    assert corpus.meta[corpus.asset_slices["XAUUSD"].start].tolist() == [3, 1, 0]
    assert [len(corpus.edges[name]) for name in ("return", "gap", "vol_regime")] == [17, 15, 6]
    assert (corpus.target_timestamps - corpus.timestamps)[0] == np.timedelta64(1, "h")
    last = [own.stop - 1 for own in corpus.asset_slices.values()]
    assert np.isnat(corpus.target_timestamps[last]).all()
    assert not corpus.valid_base[last].any()
    sizes = np.array([*corpus.tokenizer.vocabulary_sizes.values()])
    assert ((corpus.disc >= 0) & (corpus.disc < sizes)).all()
    assert sum(column.itemsize for column in corpus.columns.values()) < 64


def test_a_target_is_the_bucket_of_the_next_return_over_todays_scale(corpus: Corpus) -> None:
    rows = np.flatnonzero(corpus.valid_base)
    z = corpus.log_ret_next[rows] / corpus.sigma20[rows]
    edges = corpus.edges["return"]
    target = corpus.target_return[rows]
    assert ((edges[target - 1] < z) & (z <= edges[target]) & (z != 0)).all()


@pytest.mark.parametrize("split", ["train", "validation", "test-h1"])
@pytest.mark.parametrize("context", [1, 64, 512])
def test_endpoints_have_their_context_inside_one_asset(
    corpus: Corpus, split: str, context: int
) -> None:
    rows = corpus.endpoints(split, context)
    starts = np.array([own.start for own in corpus.asset_slices.values()])
    assert (rows - context + 1 >= starts[corpus.meta[rows, 0] - 1]).all()
    assert corpus.valid_base[rows].all()


def test_endpoints_lie_in_their_split(corpus: Corpus) -> None:
    train = corpus.endpoints("train", 64)
    assert (corpus.target_timestamps[train] < np.datetime64(TRAIN_END)).all()
    assert len(train) > len(corpus.endpoints("train", 10_000)) == 0
    assert_array_equal(corpus.endpoints("train"), corpus.endpoints("train", 512))
    for context in (0, -1):
        with pytest.raises(ConfigError, match="at least one row"):
            corpus.endpoints("train", context)
    with pytest.raises(ConfigError, match="test-h1"):
        corpus.endpoints("test-h9")


def test_the_sealed_interval_stays_shut(bars: Path) -> None:
    splits = SplitConfig(
        train_end=TRAIN_END,
        validation=(datetime(2024, 1, 1), datetime(2024, 2, 1)),
        tests=((datetime(2024, 2, 1), datetime(2024, 3, 1)),),
        seal=datetime(2024, 3, 1),
    )
    sealed = corpus_in_memory(bars, CorpusConfig(splits=splits))
    with pytest.raises(ConfigError, match="--unseal"):
        sealed.endpoints("sealed")
    assert len(sealed.endpoints("sealed", unseal=True)) > 0


def test_an_extra_field_per_stored_column_and_the_wait_from_the_stamps(corpus: Corpus) -> None:
    for index, name in enumerate(EXTRA_FIELDS):
        if name in COLUMN_TYPES:
            assert_array_equal(corpus.extra[:, index], corpus.columns[name], name)
    waits = corpus.extra[:, EXTRA_FIELDS.index("log_wait")]
    for rows in corpus.asset_slices.values():
        hours = np.diff(corpus.timestamps[rows]) / np.timedelta64(1, "h")
        assert_allclose(waits[rows], [0, *np.log(hours)], rtol=1e-6)


def test_a_model_reads_its_fields_in_its_order(corpus: Corpus) -> None:
    names = ("range_z", "ret_z", "log_wait", "hour_sin", "mask_any", "usd_factor")
    read = corpus.inputs(ModelConfig(input="cont", fields=names))
    for index, name in enumerate(names):
        if name in CONT_FIELDS:
            expected = corpus.cont[:, CONT_FIELDS.index(name)]
        else:
            expected = corpus.extra[:, EXTRA_FIELDS.index(name)]
        assert_array_equal(read[:, index], expected, name)
    assert_array_equal(corpus.inputs(ModelConfig(input="cont")), corpus.cont)
    names = ("hour", "return_bucket")
    read = corpus.inputs(ModelConfig(input="disc", fields=names))
    assert_array_equal(read, corpus.disc[:, [DISC_FIELDS.index(name) for name in names]])
    assert read.dtype == np.float32


def test_zero_shares_are_of_the_events_of_train_and_the_zeros_among_their_targets(
    corpus: Corpus,
) -> None:
    for share, (_, asset) in zip(corpus.tokenizer.zero_share, corpus.by_asset(), strict=True):
        train = ~asset.mask_any & (asset.split_codes == 0)
        zero = train & (asset.log_ret_next == 0)
        known = zero | (train & ~asset.target_bad)
        assert share == pytest.approx(zero.sum() / max(1, known.sum()))


def test_assets_with_few_train_events_are_named(corpus: Corpus) -> None:
    train = {
        symbol: int((asset.valid_base & (asset.split_codes == 0)).sum())
        for symbol, asset in corpus.by_asset()
    }
    assert few_train_events(corpus) == train
    assert max(train.values()) < 1000
    assert len(corpus.endpoints("train", 1)) == sum(train.values())
    assert list(few_train_events(corpus.with_splits(LATER))) == ["XAUUSD"]


@pytest.mark.parametrize("context", [1, 64, 512])
def test_counts_by_asset_are_those_of_the_whole(corpus: Corpus, context: int) -> None:
    for split, counts in count_events(corpus, context).items():
        ids = corpus.meta[corpus.endpoints(split, context, unseal=True), 0]
        assert list(counts.values()) == np.bincount(ids, minlength=4)[1:].tolist()


def test_other_splits_with_a_given_tokenizer(corpus: Corpus) -> None:
    refitted = corpus.with_splits(LATER)
    kept = corpus.with_splits(LATER, corpus.tokenizer)
    assert kept.tokenizer is corpus.tokenizer
    assert refitted.tokenizer.sha256 != kept.tokenizer.sha256
    assert_array_equal(kept.target_return, corpus.target_return)
    assert len({corpus.sha256, kept.sha256, refitted.sha256}) == 3
    assert kept.manifest["splits"] == LATER.to_json()


def test_edges_of_another_tokenizer_are_taken_over(
    corpus: Corpus, bars: Path, tmp_path: Path
) -> None:
    like = corpus.tokenizer
    made = build_corpus(bars, tmp_path / "like", CorpusConfig(like=like, splits=LATER))
    assert made.tokenizer.has_buckets_of(like)
    assert made.tokenizer.zero_share != like.zero_share
    assert made.manifest["like"] == like.sha256
    assert made.like is made.tokenizer
    assert_array_equal(made.target_return, corpus.target_return)
    assert made.with_splits(CONFIG.splits).tokenizer.has_buckets_of(like)
    assert corpus_in_memory(bars, CONFIG, tokenizer=like).tokenizer is like


def test_quality_counts_add_up(corpus: Corpus) -> None:
    table = split_quality(corpus)
    assert sum(row.rows for row in table) == len(corpus) - len(ROWS)
    assert sum(row.events for row in table) == corpus.valid_base.sum()
    assert [row.symbol for row in table] == sorted(row.symbol for row in table)
    assets = dict(corpus.by_asset())
    for row in table:
        asset = assets[row.symbol]
        rows = np.flatnonzero(asset.split_codes == corpus.splits.code(row.split))
        assert row.rows == len(rows)
        assert [row.first, row.last] == asset.timestamps[rows[[0, -1]]].astype(str).tolist()
        assert row.zero_share == pytest.approx((asset.log_ret_next[rows] == 0).mean())
        assert row.dropped_share == pytest.approx(asset.target_bad[rows].mean())
        buckets = asset.target_return[rows[asset.valid_base[rows]]]
        assert row.events == len(buckets)
        counts = np.bincount(buckets, minlength=17)[1:]
        assert_allclose(row.occupancy, counts / max(1, len(buckets)))
        flags = asset.columns["flags"][rows]
        shares = {name: float(((flags & bit) > 0).mean()) for name, bit in MASK_BITS.items()}
        assert row.mask_share == pytest.approx(shares)
