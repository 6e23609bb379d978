"""Heads for longer horizons: their training against the same written plainly, with its numbers in
place.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tiny_runs import CPU, TINY

from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import Run
from vaiom.training import horizon_training as horizons
from vaiom.training.horizon_training import train_horizons
from vaiom.training.loop import train
from vaiom.training.windows import hidden_states

BARS = (3, 2, 3)


@pytest.fixture(scope="module")
def checkpoint(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    run = tmp_path_factory.mktemp("runs") / "run"
    train(corpus, TINY.with_changes(steps=1, validate_every=1), run, device="cpu")
    return load_checkpoint(Run(run).best)


class Plain:
    """Inputs, hidden states and classes of a split, and a network of two layers over them."""

    def __init__(self, checkpoint: Checkpoint, corpus: Corpus, split: str) -> None:
        views = [corpus.with_target(bars) for bars in (2, 3)]
        history = checkpoint.config.history
        own = [set(view.endpoints(split, history).tolist()) for view in views]
        rows = np.array(sorted(own[0] | own[1]))
        self.hidden = hidden_states(checkpoint.model, corpus, rows, CPU)
        self.x = torch.from_numpy(corpus.cont[rows]).clamp(-32.0, 32.0)
        self.classes = torch.tensor(
            [
                [
                    int(view.target_return[row]) - 1 if row in each else -1
                    for view, each in zip(views, own, strict=True)
                ]
                for row in rows.tolist()
            ]
        )

    def nats(
        self,
        net: torch.nn.Sequential,
        rows: torch.Tensor,
        centre: torch.Tensor,
        spread: torch.Tensor,
    ) -> list:
        """Negative log-probabilities of the events of each horizon among the rows."""
        x = (self.x[rows] - centre) / spread
        x[:, spread <= 1.01e-3] = 0
        log_probs = (
            net(torch.cat([self.hidden[rows], x], dim=1)).view(len(rows), 2, 16).log_softmax(-1)
        )
        classes = self.classes[rows]
        return [
            -log_probs[:, at].gather(1, classes[:, at, None].clamp(min=0))[classes[:, at] >= 0, 0]
            for at in range(2)
        ]


@pytest.mark.parametrize(("batches", "batch"), [((256, 4_096), 256), ((2, 4_096), None)])
def test_heads_are_trained_as_it_is_written(
    checkpoint: Checkpoint,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    batches: tuple[int, int],
    batch: int | None,
) -> None:
    monkeypatch.setattr(horizons, "BATCHES", batches)
    made = train_horizons(checkpoint, corpus, BARS, seed=5)
    learned, judged = (Plain(checkpoint, corpus, split) for split in (TRAIN, VALIDATION))
    size = len(learned.hidden)
    batch = batch or 3 * size // 800
    every = max(1, size // batch // 8)
    centre = learned.x.mean(dim=0)
    spread = learned.x.std(dim=0) + 1e-3
    draw = torch.Generator().manual_seed(5)
    width = 16 + learned.x.shape[1]
    net = torch.nn.Sequential(
        torch.nn.Linear(width, 256),
        torch.nn.GELU(),
        torch.nn.Dropout(0.4),
        torch.nn.Linear(256, 32),
    )
    with torch.no_grad():
        net[0].weight.copy_(torch.randn(256, width, generator=draw) / width**0.5)
        net[3].weight.copy_(torch.randn(32, 256, generator=draw) / 16 / 10)
        net[0].bias.zero_()
        for at in range(2):
            counts = torch.tensor(
                [1.0 + int((learned.classes[:, at] == each).sum()) for each in range(16)]
            )
            net[3].bias[16 * at : 16 * at + 16] = (counts / counts.sum()).log()
    mean = copy.deepcopy(net).eval()
    found = []
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    steps = every * 8 * 3
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2e-3, total_steps=steps, pct_start=0.05
    )
    torch.manual_seed(5)
    for step in range(1, steps + 1):
        rows = torch.randint(size, (batch,), generator=draw)
        optimizer.zero_grad()
        torch.cat(learned.nats(net, rows, centre, spread)).mean().backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, new in zip(mean.parameters(), net.parameters(), strict=True):
                kept += 0.01 * (new - kept)
            if step % every == 0:
                nats = judged.nats(mean, torch.arange(len(judged.hidden)), centre, spread)
                found.append(
                    ([float(each.mean()) / np.log(2) for each in nats], copy.deepcopy(mean))
                )
    assert len(found) == 24
    bits, best = min(found, key=lambda each: sum(each[0]))
    names = ("first.weight", "first.bias", "second.weight", "second.bias")
    for name, expected in zip(names, best.parameters(), strict=True):
        np.testing.assert_allclose(made.tensors[name], expected.detach(), atol=2e-5, err_msg=name)
    np.testing.assert_allclose(made.tensors["centre"], centre, atol=1e-6)
    np.testing.assert_allclose(made.tensors["spread"], spread, rtol=1e-5)
    assert made.fitted.validation_bits == pytest.approx(
        dict(zip(("2", "3"), bits, strict=True)), abs=1e-5
    )
    assert [each.bars for each in made.fitted.fits] == [2, 3]
    assert (made.fitted.seed, made.fitted.corpus_sha256) == (5, corpus.sha256)
    assert made.fitted.checkpoint_sha256 == checkpoint.sha256


def test_a_horizon_without_events_is_refused(checkpoint: Checkpoint, corpus: Corpus) -> None:
    with pytest.raises(DataError, match="holds no event of 900 bars") as refused:
        train_horizons(checkpoint, corpus, (2, 900))
    assert refused.value.fix == "a shorter horizon"


def test_states_are_computed_in_view_of_the_user(checkpoint: Checkpoint, corpus: Corpus) -> None:
    told: list[tuple[int, int, str]] = []
    rows = corpus.endpoints(TRAIN, checkpoint.config.history)[:150]
    hidden_states(checkpoint.model, corpus, rows, CPU, lambda *words: told.append(words))
    assert told == [(64, 150, "events"), (128, 150, "events"), (150, 150, "events")]
