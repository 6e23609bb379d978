"""What a model that reads other assets is worth without them: the figure is that of the forecasts
users then get.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated_market import TinyRuns

from training.tiny_runs import TINY
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.scores import event_bits
from vaiom.features.fields import CROSS_FIELDS
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_bars
from vaiom.training.loop import train

STREAMING = TINY.with_changes(
    fields=("ret_z", "sigma_through_t", *CROSS_FIELDS),
    positions="rotary",
    attention_window=4,
    num_layers=1,
    steps=4,
)


def test_bits_without_other_assets_are_those_of_forecasts_from_one_file(
    tiny: TinyRuns, tmp_path: Path
) -> None:
    corpus = open_corpus(tiny.corpus)
    train(corpus, STREAMING, tmp_path, device="cpu")
    found = evaluate_run(tmp_path, corpus, "validation", device="cpu")
    forecaster = Forecaster.load(tmp_path)
    rows = corpus.endpoints("validation", STREAMING.model.history)
    bits = []
    for symbol, bars in read_bars(tiny.bars).items():
        history = forecaster.predict_all(bars, symbol)
        own = rows[corpus.meta[rows, 0] == 1 + corpus.tokenizer.symbols.index(symbol)]
        at = np.searchsorted(history.columns["timestamp"], corpus.columns["timestamp"][own])
        bits.append(event_bits(history.probs[at], corpus.target_return[own]))
    assert found.bits_alone == pytest.approx(float(np.concatenate(bits).mean()), abs=1e-6)
    assert found.bits_alone != found.bits["model"]


def test_a_model_that_reads_no_other_asset_has_no_such_figure(tiny: TinyRuns) -> None:
    assert (
        evaluate_run(tiny.runs[0], open_corpus(tiny.corpus), "validation", device="cpu").bits_alone
        is None
    )
