"""A tabular network over the past of a row: it learns, survives storage, and reads nothing of what
comes after.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_fits import with_columns

from vaiom.baselines.counts import Frequency
from vaiom.baselines.tabm import TabM, TabMConfig, TabMNetwork
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.evaluation.scores import event_bits

SMALL: dict[str, Any] = {"members": 4, "width": 16, "num_layers": 2, "batch": 256, "epochs": 2}


@pytest.fixture(scope="module")
def fit(corpus: Corpus) -> TabM:
    return TabM("tabm", **SMALL, device="cpu").fit(corpus, corpus.endpoints("train"))


def test_it_learns_and_survives_storage(corpus: Corpus, fit: TabM, tmp_path: Path) -> None:
    rows = corpus.endpoints("validation")
    probs = fit.predict_proba(corpus, rows)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-5)
    buckets, plain = corpus.target_return[rows], Frequency().fit(corpus, corpus.endpoints("train"))
    assert (
        event_bits(probs, buckets).mean()
        < event_bits(plain.predict_proba(corpus, rows), buckets).mean()
    )
    fit.save(tmp_path)
    np.testing.assert_array_equal(
        TabM("tabm", **SMALL, device="cpu").load(tmp_path).predict_proba(corpus, rows), probs
    )
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(DataError, match="damaged"):
        TabM("tabm", **SMALL).load(tmp_path)


def test_nothing_after_a_row_changes_its_prediction(corpus: Corpus, fit: TabM) -> None:
    """The whole of Train, its events held out among them, lies before the cut."""
    columns = {name: np.array(values) for name, values in corpus.columns.items()}
    cut = int(corpus.endpoints("validation")[400])
    rng, rows = np.random.default_rng(5), np.arange(cut - 300, cut + 1)
    later = slice(
        cut + 1, next(inside.stop for inside in corpus.asset_slices.values() if inside.stop > cut)
    )
    for column in ("ret_z", "gap_z", "relative_log_vol", "log_ret"):
        columns[column][later] = rng.normal(0, 0.01, later.stop - later.start)
    columns["sigma20"][later] *= 7
    columns["return_bucket"][later] = rng.integers(1, 17, later.stop - later.start)
    other = with_columns(corpus, **columns)
    np.testing.assert_array_equal(fit.predict_proba(corpus, rows), fit.predict_proba(other, rows))
    assert (
        np.abs(fit.predict_proba(corpus, rows + 1) - fit.predict_proba(other, rows + 1)).max() > 0
    )


def test_members_scale_the_inputs_share_their_layers_and_answer_each_for_itself() -> None:
    torch.manual_seed(0)
    network = TabMNetwork(3, 2, TabMConfig(members=2, width=4, num_layers=1)).eval()
    with torch.no_grad():
        network.get_buffer("centre").copy_(torch.tensor([1.0, 2.0, 3.0]))
        network.get_buffer("spread").copy_(torch.tensor([0.5, 1.0, 0.1]))
        network.bias.normal_()
        assert set(network.scaling.flatten().tolist()) == {-1.0, 1.0}
        assert network.last.abs().max() <= 0.1 / 2 < 1.2 * network.last.abs().max()
    x, assets = torch.tensor([[0.5, math.nan, 30.0], [1.5, 0.0, 3.05]]), torch.tensor([1, 0])
    tensors = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    expected = np.empty((2, 2, 16))
    for row, standard in enumerate(([-1.0, 0.0, 8.0], [1.0, -2.0, 0.5])):
        inputs = np.array([*standard, *tensors["asset.weight"][assets[row]]])
        for member in range(2):
            hidden = (
                tensors["layers.0.weight"] @ (inputs * tensors["scaling"][member])
                + tensors["layers.0.bias"]
            )
            expected[row, member] = (
                np.maximum(hidden, 0) @ tensors["last"][member] + tensors["bias"][member]
            )
    np.testing.assert_allclose(network(x, assets).detach(), expected, atol=1e-5)
    shares = np.exp(expected) / np.exp(expected).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(network.probs(x, assets), shares.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize(
    ("rate", "epochs"), [(2e-3, 3), (0.5, 30)], ids=["improves", "runs out of patience"]
)
def test_the_epoch_that_is_best_on_the_latest_tenth_of_train_is_kept(
    corpus: Corpus, rate: float, epochs: int
) -> None:
    told: list[tuple[int, int, str]] = []
    changes = {**SMALL, "epochs": epochs, "learning_rate": rate, "patience": 2}
    rows = corpus.endpoints("train")[::3]
    made = TabM("tabm", lambda *words: told.append(words), device="cpu", **changes)
    made.fit(corpus, rows)
    bits = [float(words.split()[2]) for _, _, words in told]
    assert [done for done, _, _ in told] == list(range(1, len(bits) + 1))
    assert (len(bits) < epochs) == (rate == 0.5)
    assert len(bits) == min(epochs, bits.index(min(bits)) + 3)
    latest = np.sort(corpus.target_timestamps[rows])[-round(0.1 * len(rows)) :]
    held_out = rows[corpus.target_timestamps[rows] >= latest[0]][-len(latest) :]
    found = event_bits(made.predict_proba(corpus, held_out), corpus.target_return[held_out])
    assert found.mean() == pytest.approx(min(bits), abs=0.02)
    again = TabM("tabm", device="cpu", **changes).fit(corpus, rows)
    np.testing.assert_array_equal(
        made.predict_proba(corpus, held_out), again.predict_proba(corpus, held_out)
    )


def test_a_fit_starts_from_the_shares_of_train_and_standardised_features(corpus: Corpus) -> None:
    """Without a step that counts, every member answers as Frequency does."""
    rows = corpus.endpoints("train")
    still = TabM("tabm", device="cpu", **{**SMALL, "epochs": 1, "learning_rate": 1e-12})
    network = still.fit(corpus, rows).network_
    shares = network.bias.softmax(dim=-1).detach().numpy()
    plain = Frequency().fit(corpus, rows).probs_
    np.testing.assert_allclose(shares, np.broadcast_to(plain, shares.shape), atol=0.01)
    features = still.features.of(corpus, rows)[:, :-3]
    centre, spread = network.get_buffer("centre"), network.get_buffer("spread")
    np.testing.assert_allclose(centre, np.nanmean(features, axis=0), rtol=0.2, atol=0.2)
    assert (spread >= 1e-6).all()
