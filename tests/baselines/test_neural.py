"""The networks among the baselines: Train alone chooses them, and they keep every promise of the
contract.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from small_fits import with_columns

from vaiom.baselines.base import BASELINES, FOR_GPUS, SHORTENED, usual_baselines
from vaiom.baselines.networks import EXPERIMENTS, TrainedNetwork, inside_train
from vaiom.baselines.stored_losses import fit_or_load
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.evaluation.scores import event_bits

CONTEXT = 16
TINY = {
    "width": 16,
    "num_heads": 2,
    "num_layers": 1,
    "context": CONTEXT,
    "steps": 4,
    "validate_every": 2,
}


def tiny(name: str, **changes: object) -> TrainedNetwork:
    return TrainedNetwork(name, device="cpu", **(TINY | {"num_micro_batches": 1} | changes))


def test_they_are_known_and_left_to_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*EXPERIMENTS, "tabm"} == set(FOR_GPUS) <= set(BASELINES)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    full = [name for name in BASELINES if name not in SHORTENED]
    assert usual_baselines() == [name for name in full if name not in FOR_GPUS]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert usual_baselines() == full


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_probabilities_survive_the_cache(corpus: Corpus, name: str, tmp_path: Path) -> None:
    rows = corpus.endpoints("validation", CONTEXT)[:300]
    one = fit_or_load(tiny(name), corpus, CONTEXT, tmp_path).predict_proba(corpus, rows)
    assert one.shape == (300, 16)
    np.testing.assert_allclose(one.sum(axis=1), 1.0, atol=1e-5)
    again = tiny(name)
    again.fit = None  # type: ignore[assignment]  # a second fit would be an error here
    np.testing.assert_array_equal(
        fit_or_load(again, corpus, CONTEXT, tmp_path).predict_proba(corpus, rows), one
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_after_train_enters_a_fit(corpus: Corpus, name: str) -> None:
    train = corpus.endpoints("train", CONTEXT)
    columns = {name: np.array(values) for name, values in corpus.columns.items()}
    later = corpus.timestamps >= np.datetime64(corpus.splits.train_end)
    rng = np.random.default_rng(3)
    for column in ("ret_z", "gap_z", "relative_log_vol"):
        columns[column][later] = rng.normal(0, 3, later.sum())
    columns["return_bucket"][later] = rng.integers(1, 17, later.sum())
    other = with_columns(corpus, **columns)
    probs = [
        tiny(name).fit(each, train).predict_proba(corpus, train[:50]) for each in (corpus, other)
    ]
    np.testing.assert_array_equal(*probs)


def test_tokens_see_return_buckets_and_nothing_else(corpus: Corpus) -> None:
    fit = tiny("return_tokens").fit(corpus, corpus.endpoints("train", CONTEXT))
    rows = corpus.endpoints("validation", CONTEXT)[:100]
    probs = fit.predict_proba(corpus, rows)
    blind = {
        name: np.zeros_like(corpus.columns[name])
        for name in ("gap_bucket", "vol_regime", "ret_z", "gap_z")
    }
    np.testing.assert_array_equal(fit.predict_proba(with_columns(corpus, **blind), rows), probs)
    shuffled = with_columns(corpus, return_bucket=np.roll(corpus.columns["return_bucket"], 1))
    assert not np.array_equal(fit.predict_proba(shuffled, rows), probs)


def test_a_network_learns(corpus: Corpus) -> None:
    """Even a tiny GRU learns the size of the buckets and something of their order."""
    rows, train = corpus.endpoints("validation", CONTEXT), corpus.endpoints("train", CONTEXT)
    bits = {
        steps: event_bits(
            tiny("gru", steps=steps, validate_every=steps)
            .fit(corpus, train)
            .predict_proba(corpus, rows),
            corpus.target_return[rows],
        ).mean()
        for steps in (1, 150)
    }
    assert bits[150] < bits[1] - 0.3


def test_the_selection_lies_inside_train(corpus: Corpus) -> None:
    inner = inside_train(corpus)
    chosen, train = inner.endpoints("validation", CONTEXT), corpus.endpoints("train", CONTEXT)
    assert len(chosen)
    assert set(chosen) < set(train)
    assert not set(chosen) & set(inner.endpoints("train", CONTEXT))
    assert inner.tokenizer is corpus.tokenizer


def test_events_it_was_not_fitted_for_are_refused(corpus: Corpus) -> None:
    train = corpus.endpoints("train", CONTEXT)
    with pytest.raises(DataError, match="all Train events"):
        tiny("gru").fit(corpus, train[::2])
    fit = tiny("gru").fit(corpus, train)
    with pytest.raises(DataError, match="less history"):
        fit.predict_proba(corpus, np.array([CONTEXT - 2]))
    second = next(iter(list(corpus.asset_slices.values())[1:])).start
    with pytest.raises(DataError, match="less history"):
        fit.predict_proba(corpus, np.array([second + CONTEXT - 2]))
    empty = dataclasses.replace(corpus)
    with pytest.raises(DataError, match="no events to fit on"):
        tiny("gru").fit(empty, np.array([], np.int64))
