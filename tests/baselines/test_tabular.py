"""A tabular network over the past of a row: it learns, survives storage, and reads nothing of what comes after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_fits import with_columns

from vaiom.baselines.counts import Frequency
from vaiom.baselines.networks import TabM
from vaiom.errors import DataError
from vaiom.evaluation.scores import event_bits
from vaiom.events.corpus import Corpus

SMALL: dict[str, Any] = {"members": 4, "width": 16, "num_layers": 2, "batch": 256, "epochs": 2}


@pytest.fixture(scope="module")
def fit(corpus: Corpus) -> TabM:
    return TabM("tabm", **SMALL, device="cpu").fit(corpus, corpus.endpoints("train"))


def test_it_learns_and_survives_storage(corpus: Corpus, fit: TabM, tmp_path: Path) -> None:
    rows = corpus.endpoints("validation")
    probs = fit.predict_proba(corpus, rows)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-5)
    buckets, plain = corpus.target_return[rows], Frequency().fit(corpus, corpus.endpoints("train"))
    assert event_bits(probs, buckets).mean() < event_bits(plain.predict_proba(corpus, rows), buckets).mean()
    fit.save(tmp_path)
    np.testing.assert_array_equal(TabM("tabm", **SMALL, device="cpu").load(tmp_path).predict_proba(corpus, rows), probs)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(DataError, match="damaged"):
        TabM("tabm", **SMALL).load(tmp_path)


def test_nothing_after_a_row_changes_its_prediction(corpus: Corpus, fit: TabM) -> None:
    """The whole of Train, its events held out among them, lies before the cut."""
    columns = {name: np.array(values) for name, values in corpus.columns.items()}
    cut = int(corpus.endpoints("validation")[400])
    rng, rows = np.random.default_rng(5), np.arange(cut - 300, cut + 1)
    later = slice(cut + 1, next(inside.stop for inside in corpus.asset_slices.values() if inside.stop > cut))
    for column in ("ret_z", "gap_z", "relative_log_vol", "log_ret"):
        columns[column][later] = rng.normal(0, 0.01, later.stop - later.start)
    columns["sigma20"][later] *= 7
    columns["return_bucket"][later] = rng.integers(1, 17, later.stop - later.start)
    other = with_columns(corpus, **columns)
    np.testing.assert_array_equal(fit.predict_proba(corpus, rows), fit.predict_proba(other, rows))
    assert np.abs(fit.predict_proba(corpus, rows + 1) - fit.predict_proba(other, rows + 1)).max() > 0
