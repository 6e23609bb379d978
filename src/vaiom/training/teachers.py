"""Distillation: a student learns from the mean distribution of its teachers.

Enters: an experiment with `teachers`. Leaves: the experiments of its teachers, and their
probabilities for a corpus. Not in the paper: Hinton, Vinyals and Dean (2015), "Distilling the
Knowledge in a Neural Network".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.training.experiment import SEED_LIMIT, Experiment, changed, experiment_of_run
from vaiom.training.windows import DeviceCorpus, Scorer

SEED_DISTANCE = 1_000
"""Between the seeds of teachers: far from those that people choose for students."""


def teachers_of(experiment: Experiment) -> list[Experiment]:
    """The experiments of a student's teachers: its own settings with other seeds."""
    alone = replace(experiment, name=f"{experiment.name}-teacher")
    alone = alone.with_changes(teachers=0, teacher_share=0.0)
    seeds = (
        experiment.train.seed + SEED_DISTANCE * number
        for number in range(1, experiment.train.teachers + 1)
    )
    return [alone.with_changes(seed=seed % SEED_LIMIT) for seed in seeds]


def require_length(run: Run, teacher: Experiment) -> None:
    """Refuse to train a teacher longer or shorter than it began: its student may have learned from
    it already.
    """
    if not run.config.exists():
        return
    settings = changed(experiment_of_run(run.path), teacher)
    for name in settings.keys() & {"steps", "patience"}:
        new, old = settings[name]
        raise ConfigError(
            f"a student's teachers keep their {name}",
            where=run.path,
            expected=old,
            got=new,
            fix=f"resume with {name}={old}, or start a new run",
        )


def mean_probs(
    teachers: Sequence[Path], corpus: Corpus, data: DeviceCorpus, dtype: torch.dtype
) -> Tensor:
    """(1 or 2, N, 16) mean probabilities of the teachers, whose checkpoints are named.

    The second table, if windows are mirrored, is of mirrored rows. Rows outside Train are 0.
    """
    rows = np.flatnonzero(corpus.valid_base & (corpus.split_codes == corpus.splits.code(TRAIN)))
    views = [data, data.mirrored()] if data.mirror else [data]
    shape = (len(views), len(data.x), NUM_RETURN_BUCKETS)
    table = torch.zeros(shape, dtype=torch.float16, device=data.device)
    index = torch.from_numpy(rows).to(data.device)
    models = [load_checkpoint(path).model.to(data.device) for path in teachers]
    for view, out in zip(views, table, strict=True):
        probs = [Scorer(model, view, dtype, record=False).predict(rows).exp() for model in models]
        out[index] = torch.stack(probs).mean(dim=0).half()
    return table
