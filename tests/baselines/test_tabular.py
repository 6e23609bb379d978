"""A tabular network over the past of a row: it learns, survives storage, and reads nothing of what
comes after.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_fits import with_columns

from vaiom.baselines.counts import Frequency
from vaiom.baselines.lightgbm import FEATURES, TreeConfig, split_holdout
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
def test_a_fit_is_what_its_words_say(corpus: Corpus, rate: float, epochs: int) -> None:
    """The same in plain steps: Adam, shuffled batches, the epoch that is best on the latest tenth
    of Train.
    """
    told: list[tuple[int, int, str]] = []
    changes: dict[str, Any] = {
        "members": 2,
        "width": 8,
        "num_layers": 1,
        "batch": 512,
        "epochs": epochs,
        "patience": 2,
    }
    rows = corpus.endpoints("train")[::3]
    made = TabM(
        "tabm", lambda *words: told.append(words), device="cpu", learning_rate=rate, **changes
    )
    made.fit(corpus, rows)
    latest = TreeConfig(chronological=True, holdout_share=0.1)
    learned, held_out = split_holdout(rows, corpus.target_timestamps[rows], latest)

    def tensors(chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = FEATURES["lightgbm_lags"].of(corpus, chosen)[:, :-3]
        assets, buckets = corpus.meta[chosen, 0], corpus.target_return[chosen]
        ids = (torch.from_numpy(each.astype(np.int64)) for each in (assets, buckets))
        return torch.from_numpy(features.copy()), *ids

    (x, assets, buckets), judged = tensors(learned), tensors(held_out)
    torch.manual_seed(17)
    network = TabMNetwork(x.shape[1], 3, made.settings)
    with torch.no_grad():
        network.get_buffer("centre").copy_(x.nanmean(dim=0).nan_to_num(0.0))
        network.get_buffer("spread").copy_(
            torch.from_numpy(np.nan_to_num(np.nanstd(x.double(), axis=0))).clamp(1e-6)
        )
        network.bias.copy_(
            torch.tensor([1.0 + int((buckets == each).sum()) for each in range(1, 17)]).log()
        )
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=3e-4)
    draw, found = torch.Generator().manual_seed(17), []
    for _ in range(epochs):
        network.train()
        for part in torch.randperm(len(x), generator=draw).split(512):
            log_probs = network(x[part], assets[part]).log_softmax(dim=-1)
            loss = -log_probs.gather(2, (buckets[part] - 1)[:, None, None].expand(-1, 2, 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            probs = network.eval()(*judged[:2]).softmax(dim=-1).mean(dim=1)
        found.append(float(-probs.gather(1, judged[2][:, None] - 1).log2().mean()))
        best = found.index(min(found))
        if best == len(found) - 1:
            kept = copy.deepcopy(network)
        if len(found) - 1 - best == 2:
            break
    assert [(done, of) for done, of, _ in told] == [
        (epoch, epochs) for epoch in range(1, len(found) + 1)
    ]
    assert [float(what.split()[2]) for _, _, what in told] == pytest.approx(found, abs=1e-3)
    assert (len(found) < epochs) == (rate == 0.5)
    for name, tensor in kept.state_dict().items():
        torch.testing.assert_close(
            made.network_.state_dict()[name], tensor, atol=1e-3, rtol=1e-3, msg=name
        )
