"""One optimizer step against a hand-written accumulation loop, and a batch learned by heart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny_runs import TINY, make_step

from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError
from vaiom.model.heads import objective
from vaiom.training.devices import ProcessGroup, resolve_device, resolve_type
from vaiom.training.experiment import Experiment
from vaiom.training.step import TrainStep
from vaiom.training.windows import Rows, train_sampler


def by_hand(
    step: TrainStep, optimizer: torch.optim.Optimizer, rows: Rows, experiment: Experiment
) -> float:
    """Four micro-batches, each reduced alone, averaged, clipped, one AdamW step: as the paper says
    it.
    """
    optimizer.zero_grad()
    reported = 0.0
    batches = np.split(rows, experiment.train.num_micro_batches)
    for batch in batches:
        windows = step.data.windows(torch.from_numpy(batch))
        last = experiment.train.scope == "last"
        logits = step.model(windows.x_BTF, windows.meta_BM, last_only=last)
        targets = {
            name: values[:, -1:] if last else values for name, values in windows.targets.items()
        }
        loss, terms = objective(logits, targets, experiment.train.task_weights)
        (loss / len(batches)).backward()
        reported += terms["return"].item() / len(batches)
    torch.nn.utils.clip_grad_norm_(step.model.parameters(), experiment.train.clip_norm)
    optimizer.step()
    return reported


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"input": "disc", "dropout": 0.0, "return_head": "independent"},
        {"input": "cont", "auxiliaries": (), "num_micro_batches": 1},
        {"scope": "last", "dropout": 0.0},
        {"clip_norm": 0.01, "weight_decay": 0.5},
    ],
    ids=str,
)
def test_a_step_equals_the_accumulation_written_by_hand(
    corpus: Corpus, changes: dict[str, object]
) -> None:
    experiment = TINY.with_changes(**changes)
    ours = make_step(corpus, experiment)
    plain = make_step(corpus, experiment)
    optimizer = torch.optim.AdamW(
        plain.model.parameters(),
        lr=experiment.train.learning_rate,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=experiment.train.weight_decay,
    )
    sampler = train_sampler(corpus, experiment.model.context, 17, experiment.train.windows_per_step)
    for number in range(1, 5):
        rows = sampler.draw(number)
        torch.manual_seed(number)
        got = ours(rows).item()
        torch.manual_seed(number)
        assert got == pytest.approx(by_hand(plain, optimizer, rows, experiment), rel=1e-5)
    for (name, mine), theirs in zip(
        ours.model.named_parameters(), plain.model.parameters(), strict=True
    ):
        # Adam divides by tiny moments: parameters agree to a small share of what one step moves
        # them.
        torch.testing.assert_close(
            mine, theirs, atol=1e-2 * experiment.train.learning_rate, rtol=0, msg=name
        )


def test_rates_rise_and_fall() -> None:
    config = TINY.with_changes(
        learning_rate=1e-3, schedule="cosine", warmup_steps=9, steps=1_000
    ).train
    rates = [config.rate_at(step) for step in range(1, 1_001)]
    assert rates[0] == pytest.approx(1e-4, rel=1e-4)
    assert rates[9] == pytest.approx(1e-3, rel=1e-3)
    assert all(later < earlier for earlier, later in pairwise(rates[9:]))
    assert rates[499] == pytest.approx(1e-3 * 0.55, rel=1e-2)
    assert rates[-1] == pytest.approx(1e-4, rel=1e-2)
    assert {TINY.train.rate_at(step) for step in (1, 5, 500)} == {TINY.train.learning_rate}


def test_the_moving_average_is_of_the_steps_and_not_of_the_random_start(corpus: Corpus) -> None:
    """The mean of the weights after each step, each step counting 0.9 of the next one; nothing
    else.
    """
    step = make_step(corpus, TINY.with_changes(ema_decay=0.9))
    sampler = train_sampler(corpus, 16, 17, 16)
    visited = []
    for number in range(1, 5):
        step.set_step(number)
        step(sampler.draw(number))
        visited.append([parameter.detach().clone() for parameter in step.model.parameters()])
    shares = torch.tensor([0.9**age for age in (3, 2, 1, 0)])
    shares /= shares.sum()
    for ours, *theirs in zip(step.ema_model.parameters(), *visited, strict=True):
        expected = sum(share * each for share, each in zip(shares, theirs, strict=True))
        torch.testing.assert_close(ours.detach(), expected)
        assert not torch.equal(ours, theirs[-1])
    plain = make_step(corpus, TINY)
    assert plain.ema_model is plain.model


def test_a_step_takes_its_own_rate(corpus: Corpus) -> None:
    rate = TINY.train.learning_rate
    rows = train_sampler(corpus, 16, 17, 16).draw(1)
    warming, slow = (
        make_step(corpus, TINY.with_changes(dropout=0.0, **changes))
        for changes in (
            {"warmup_steps": 9},
            {"learning_rate": rate / 10},
        )
    )
    slow.model.load_state_dict(warming.model.state_dict())
    for step in (warming, slow):
        step.set_step(1)
        step(rows)
    for ours, theirs in zip(warming.model.parameters(), slow.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_teams_share_whole_micro_batches() -> None:
    assert [list(ProcessGroup(rank, 2).share(4)) for rank in (0, 1)] == [[0, 1], [2, 3]]
    with pytest.raises(ConfigError, match="shared evenly"):
        ProcessGroup(0, 3).share(4)


def test_devices_and_number_formats() -> None:
    assert resolve_device("cpu").type == "cpu"
    for name in ("tpu", "mps", "cuda:99", "nonsense"):
        with pytest.raises(ConfigError, match=r"cuda|CUDA"):
            resolve_device(name)
    cpu = torch.device("cpu")
    assert resolve_type("auto", cpu) == torch.float32
    assert resolve_type("auto", torch.device("cuda")) == torch.float16
    with pytest.raises(ConfigError, match="FP32"):
        resolve_type("fp16", cpu)
