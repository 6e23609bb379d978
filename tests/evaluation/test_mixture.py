"""Diagnostics of latent states on mixtures whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from simulated_market import tiny_corpus

from vaiom.evaluation.mixture import (
    EVENTS_PER_RUN,
    NUM_RUNS,
    diagnose_mixture,
    mixture_report,
    successive_events,
)
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import Vaiom


def one_hot(*positions: int) -> np.ndarray:
    return np.eye(16)[list(positions)]


def test_disjoint_states_that_are_used_alike_are_one_bit_apart() -> None:
    weights = np.full((6, 2), 0.5)
    got = mixture_report(weights, np.tile(one_hot(2, 9), (6, 1, 1)), np.zeros(6))
    assert got.separation_bits == pytest.approx(1.0)
    assert got.effective_states == pytest.approx(2.0)
    np.testing.assert_allclose(got.pair_separation_bits, [[0, 1], [1, 0]], atol=1e-12)


def test_equal_states_are_not_apart_and_one_state_alone_is_one() -> None:
    weights = np.tile([1.0, 0.0], (4, 1))
    got = mixture_report(weights, np.full((4, 2, 16), 1 / 16), np.zeros(4))
    assert got.separation_bits == 0
    assert got.effective_states == pytest.approx(1.0)
    assert got.heaviest_share == [1.0, 0.0]
    assert (got.persistence, got.persistence_if_independent) == (1.0, 1.0)


def test_persistence_counts_successive_events_of_one_asset() -> None:
    heaviest = np.array([0, 0, 1, 1, 0, 1])
    weights = np.where(np.arange(2) == heaviest[:, None], 0.8, 0.2)
    components = np.tile(one_hot(1, 5), (6, 1, 1))
    got = mixture_report(weights, components, np.array([1, 1, 1, 2, 2, 2]))
    assert got.persistence == pytest.approx(1 / 4)
    assert got.persistence_if_independent == pytest.approx(0.5)
    assert got.mean_weight == pytest.approx([0.5, 0.5])
    assert mixture_report(weights, components, np.arange(6)).persistence is None


def test_diagnosed_events_are_successive_over_the_whole_split() -> None:
    rows = np.arange(100_000) * 3
    chosen = successive_events(rows).reshape(NUM_RUNS, EVENTS_PER_RUN)
    assert (np.diff(chosen, axis=1) == 3).all()
    assert (chosen[0, 0], chosen[-1, -1]) == (rows[0], rows[-1])
    assert chosen.shape == (16, 128)
    full = NUM_RUNS * EVENTS_PER_RUN
    np.testing.assert_array_equal(successive_events(rows[:full]), rows[:full])
    assert len(successive_events(rows[: full + 1])) == full
    np.testing.assert_array_equal(successive_events(rows[:50]), rows[:50])


def test_states_at_the_start_of_an_asset_do_not_see_other_assets(tmp_path: Path) -> None:
    """A model of windowed attention is scored on rows with less history than its context."""
    corpus = tiny_corpus(tmp_path, rows=600)
    config = ModelConfig(
        context=64, attention_window=16, num_layers=4, positions="rotary", width=16, num_heads=2
    )
    torch.manual_seed(0)
    network = Vaiom(config, corpus.tokenizer.vocabulary_sizes)
    checkpoint: Any = SimpleNamespace(model=network, config=config, tokenizer=corpus.tokenizer)
    model = ModelPredictor(checkpoint, "cpu")
    first, second = corpus.asset_slices.values()
    changed = {name: np.array(column) for name, column in corpus.columns.items()}
    changed["ret_z"][first] = 5.0
    rows = np.arange(second.start + 20, second.start + 60)
    found, other = (
        diagnose_mixture(model, each, rows) for each in (corpus, replace(corpus, columns=changed))
    )
    assert found is not None
    assert found == other
