"""What the tests of this folder share: a tiny experiment, runs of it, and what a run
leaves behind.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.model.checkpoint import read_tensors
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run
from vaiom.training.experiment import Experiment
from vaiom.training.step import FORMAT, FORMAT_VERSION, TrainStep
from vaiom.training.windows import DeviceCorpus

CPU = torch.device("cpu")
CHANGES: dict[str, Any] = {
    "num_layers": 2,
    "num_heads": 2,
    "width": 16,
    "context": 16,
    "dropout": 0.1,
    "steps": 12,
    "micro_batch": 4,
    "num_micro_batches": 4,
    "learning_rate": 3e-3,
    "schedule": "constant",
    "validate_every": 4,
    "log_every": 2,
}
TINY = Experiment(name="tiny").with_changes(**CHANGES)
SPLITS = SplitConfig(
    train_end=datetime(2023, 12, 10),
    validation=(datetime(2023, 12, 20), datetime(2024, 1, 1)),
    tests=((datetime(2024, 1, 1), datetime(2024, 1, 10)),),
    seal=datetime(2024, 1, 10),
)


def make_step(corpus: Corpus, experiment: Experiment) -> TrainStep:
    torch.manual_seed(experiment.train.seed)
    model = Vaiom(experiment.model, corpus.tokenizer.vocabulary_sizes)
    data = DeviceCorpus(corpus, experiment.model, CPU)
    return TrainStep(model, data, experiment.train, torch.float32)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """All lines, without the seconds that no two runs share."""
    lines = [json.loads(line) for line in Run(run).metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def state_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    arrays = read_tensors(Run(run).state(step), FORMAT, FORMAT_VERSION)[1]
    return {name: torch.tensor(array) for name, array in arrays.items()}


def assert_same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
