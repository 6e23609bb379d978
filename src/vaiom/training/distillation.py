"""Teachers: models that are trained first, whose mean distribution a student learns from beside the truth.

Enters: an experiment, then the teachers' checkpoints and a corpus on the device. Leaves: the experiments of the
teachers; the mean of their probabilities at every row of Train.
Paper: none; Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015), without a temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaiom.events.corpus import Corpus
from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.events.splits import TRAIN
from vaiom.model.checkpoint import load_checkpoint
from vaiom.training.config import SEED_LIMIT
from vaiom.training.experiment import Experiment
from vaiom.training.scoring import Scorer
from vaiom.training.windows import DeviceCorpus

_BETWEEN_SEEDS = 1_000


def teachers_of(experiment: Experiment) -> list[Experiment]:
    """What a student's teachers are trained with: its own settings, from other seeds."""
    seeds = [experiment.train.seed + _BETWEEN_SEEDS * number for number in range(1, experiment.train.teachers + 1)]
    alone = replace(experiment, name=f"{experiment.name}-teacher")
    return [alone.with_changes(teachers=0, teacher_share=0.0, seed=seed % SEED_LIMIT) for seed in seeds]


def mean_probs(
    checkpoints: Sequence[Path], corpus: Corpus, data: DeviceCorpus, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """(1 or 2, N, 16) of the corpus as it is and, where windows are mirrored, mirrored; rows outside Train are zero."""
    rows = np.flatnonzero(corpus.valid_base & (corpus.split_codes == corpus.splits.code(TRAIN)))
    index = torch.from_numpy(rows).to(device)
    views = [data, data.mirrored()] if data.mirror else [data]
    table = torch.zeros(len(views), len(data.x), NUM_RETURN_BUCKETS, dtype=torch.float16, device=device)
    teachers = [load_checkpoint(path).model.to(device) for path in checkpoints]
    for view, out in zip(views, table, strict=True):
        answers = [Scorer(teacher, view, device, dtype, record=False).log_probs(rows).exp() for teacher in teachers]
        out[index] = torch.stack(answers).mean(dim=0).half()
    return table
