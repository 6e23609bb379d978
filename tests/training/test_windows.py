"""Windows against plain slices, and a sampler that is uniform, seeded, and blind to everything but
Train.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tiny_runs import CPU, SPLITS

from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import TRAIN, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS, bucket_of
from vaiom.market.folder import read_bars, write_symbol
from vaiom.model.config import ModelConfig
from vaiom.training.experiment import Experiment
from vaiom.training.windows import DeviceCorpus, Sampler, train_sampler

CONTEXT = 16


def test_a_model_reads_its_fields_in_its_order(corpus: Corpus) -> None:
    chosen = ModelConfig(input="disc", fields=("hour", "return_bucket"))
    np.testing.assert_array_equal(
        corpus.inputs(chosen), np.stack([corpus.disc[:, 11], corpus.disc[:, 0]], axis=1)
    )
    chosen = ModelConfig(fields=("mask_any", "ret_z"))
    np.testing.assert_array_equal(
        corpus.inputs(chosen), np.stack([corpus.cont[:, -1], corpus.cont[:, 0]], axis=1)
    )
    with pytest.raises(ValueError, match="fields must be among"):
        ModelConfig(fields=("return_bucket",))
    with pytest.raises(ValueError, match="must not repeat"):
        ModelConfig(fields=("ret_z", "ret_z"))


@pytest.mark.parametrize("branch", ["disc", "cont", "hybrid"])
def test_windows_are_the_rows_up_to_their_ends(corpus: Corpus, branch: str) -> None:
    ends = corpus.endpoints(TRAIN, CONTEXT)[[0, 5, -1]]
    data = DeviceCorpus(corpus, ModelConfig(input=branch, context=CONTEXT), CPU)
    windows = data.windows(torch.from_numpy(ends))
    for number, end in enumerate(ends):
        rows = slice(end - CONTEXT + 1, end + 1)
        inputs = corpus.disc if branch == "disc" else corpus.cont
        np.testing.assert_array_equal(windows.x_BTF[number].numpy(), inputs[rows])
        np.testing.assert_array_equal(windows.meta_BM[number].numpy(), corpus.meta[end])
        for name in ("return", "gap", "vol_regime"):
            target = getattr(corpus, f"target_{name}")
            expected = [
                int(target[row]) if corpus.valid_base[row] else 0
                for row in range(rows.start, rows.stop)
            ]
            assert windows.targets[name][number].tolist() == expected
    x, meta = data.inputs(torch.from_numpy(ends))
    assert torch.equal(x, windows.x_BTF)
    assert torch.equal(meta, windows.meta_BM)


def test_a_mirrored_window_is_that_of_the_inverted_prices(
    bars: Path, corpus: Corpus, tmp_path: Path
) -> None:
    """One over every price: an exchange rate read the other way round."""
    for symbol, frame in read_bars(bars).items():
        inverted = frame.with_columns(
            Open=1 / pl.col("Open"),
            High=1 / pl.col("Low"),
            Low=1 / pl.col("High"),
            Close=1 / pl.col("Close"),
        )
        write_symbol(tmp_path / "bars", symbol, inverted)
    other = build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=SPLITS))
    model = ModelConfig(fields=(*CONT_FIELDS, *EXTRA_FIELDS), context=CONTEXT)
    ends = corpus.endpoints(TRAIN, CONTEXT)[:400:50]
    windows = _always_mirrored(corpus, model).windows(torch.from_numpy(ends))
    expected = DeviceCorpus(other, model, CPU).windows(torch.from_numpy(ends))
    for field, name in enumerate(model.input_fields):
        # Where in its range a bar closed is linear in prices; over a bar that is nearly linear in
        # their logs.
        tolerance = 0.02 if name == "close_location" else 2e-3
        np.testing.assert_allclose(
            windows.x_BTF[..., field],
            expected.x_BTF[..., field],
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )
    # The targets keep the edges that the model is trained for.
    for name, column in (("return", "ret_z"), ("gap", "gap_z")):
        for row, end in enumerate(ends):
            rows = np.arange(end - CONTEXT + 2, end + 2)
            buckets = bucket_of(
                corpus.edges[name], -corpus.columns[column][rows].astype(np.float64)
            )
            target = getattr(corpus, f"target_{name}")[rows - 1]
            assert (
                windows.targets[name][row].tolist()
                == np.where(corpus.valid_base[rows - 1] & (target > 0), buckets, 0).tolist()
            )
    assert torch.equal(windows.targets["vol_regime"], expected.targets["vol_regime"])


def _always_mirrored(corpus: Corpus, model: ModelConfig) -> DeviceCorpus:
    return DeviceCorpus(corpus, model, CPU, mirror=1.0)


def test_half_of_the_windows_are_mirrored_whole(corpus: Corpus) -> None:
    model = ModelConfig(context=CONTEXT)
    ends = torch.from_numpy(corpus.endpoints(TRAIN, CONTEXT)[:600])
    plain, turned = (
        data.windows(ends).x_BTF
        for data in (DeviceCorpus(corpus, model, CPU), _always_mirrored(corpus, model))
    )
    torch.manual_seed(0)
    mixed = DeviceCorpus(corpus, model, CPU, mirror=0.5).windows(ends).x_BTF
    is_plain = (mixed == plain).flatten(1).all(dim=1)
    is_turned = (mixed == turned).flatten(1).all(dim=1)
    assert bool((is_plain | is_turned).all())
    assert 0.4 < float(is_turned.float().mean()) < 0.6


def test_nothing_is_mirrored_when_events_are_scored(corpus: Corpus) -> None:
    ends = torch.from_numpy(corpus.endpoints(TRAIN, CONTEXT)[:5])
    model = ModelConfig(context=CONTEXT)
    assert torch.equal(
        _always_mirrored(corpus, model).inputs(ends)[0],
        DeviceCorpus(corpus, model, CPU).inputs(ends)[0],
    )


def test_buckets_cannot_be_mirrored() -> None:
    with pytest.raises(ConfigError, match="no sign to turn"):
        Experiment(name="x").with_changes(input="disc", mirror=0.5)


def test_masked_rows_teach_nothing(corpus: Corpus) -> None:
    data = DeviceCorpus(corpus, ModelConfig(input="cont", context=CONTEXT), CPU)
    invalid = torch.from_numpy(~corpus.valid_base)
    assert invalid.any()
    assert corpus.target_gap[
        ~corpus.valid_base
    ].any()  # the corpus knows gaps there; the model is not told
    for target in data.targets.values():
        assert not target[invalid].any()


def test_the_sampler_knows_exactly_the_train_endpoints_with_full_context(corpus: Corpus) -> None:
    sampler = train_sampler(corpus, CONTEXT, 17, 8)
    slow = [
        row
        for rows in corpus.asset_slices.values()
        for row in range(rows.start, rows.stop)
        if row - CONTEXT + 1 >= rows.start
        and corpus.valid_base[row]
        and corpus.target_timestamps[row] < np.datetime64(SPLITS.train_end)
    ]
    assert sampler.endpoints.tolist() == slow


def test_draws_are_uniform_with_replacement() -> None:
    sampler = Sampler(np.arange(100, 140), seed=3, windows_per_step=500)
    drawn = np.concatenate([sampler.draw(step) for step in range(1, 81)])
    counts = np.bincount(drawn - 100, minlength=40)
    assert len(counts) == 40
    expected = len(drawn) / 40
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 39 + 5 * np.sqrt(2 * 39)


def test_a_draw_depends_on_the_seed_and_the_step_alone(corpus: Corpus) -> None:
    sampler = train_sampler(corpus, CONTEXT, 17, 64)
    again = train_sampler(corpus, CONTEXT, 17, 64)
    assert not np.array_equal(sampler.draw(1), sampler.draw(2))
    np.testing.assert_array_equal(again.draw(2), sampler.draw(2))
    assert not np.array_equal(train_sampler(corpus, CONTEXT, 29, 64).draw(2), sampler.draw(2))


@dataclass(frozen=True, kw_only=True)
class _Careless(SplitConfig):
    """Puts the bar of one row in the middle of Train into another split."""

    row: int

    def codes(self, target_timestamps: np.ndarray) -> np.ndarray:
        codes = super().codes(target_timestamps)
        codes[self.row] = self.code("validation")
        return codes


def test_a_train_window_that_touches_another_split_is_refused(corpus: Corpus) -> None:
    endpoints = corpus.endpoints(TRAIN, CONTEXT)
    careless = _Careless(**vars(SPLITS), row=int(endpoints[50]) + 1)
    with pytest.raises(DataError, match="target outside Train") as caught:
        train_sampler(replace(corpus, splits=careless), CONTEXT, 17, 8)
    assert str(corpus.timestamps[endpoints[51]]) in str(caught.value)


def test_too_short_a_history_is_refused(corpus: Corpus) -> None:
    with pytest.raises(DataError, match="no window to learn from"):
        train_sampler(corpus, 5_000, 17, 8)
