"""The training objective written as the paper does: loops over windows, positions, tasks and
thresholds, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    raised = [math.exp(value - top) for value in logits]
    return [value / sum(raised) for value in raised]


def mixture(
    state_logits: Sequence[float], component_logits: Sequence[Sequence[float]]
) -> list[float]:
    """P(y = j) = sum over states of weight times component probability."""
    weights = softmax(state_logits)
    components = [softmax(row) for row in component_logits]
    buckets = range(len(components[0]))
    return [sum(w * c[j] for w, c in zip(weights, components, strict=True)) for j in buckets]


def ordinal_labels(bucket: int, num_thresholds: int) -> list[int]:
    return [1 if j < bucket else 0 for j in range(1, num_thresholds + 1)]


def ordinal_loss(logits: Sequence[float], bucket: int) -> float:
    total = 0.0
    for logit, label in zip(logits, ordinal_labels(bucket, len(logits)), strict=True):
        passed = 1 / (1 + math.exp(-logit))
        total -= math.log(passed) if label else math.log(1 - passed)
    return total / len(logits)


def position_loss(task: str, logits: Mapping[str, np.ndarray], bucket: int) -> float:
    """The loss of one position; `logits` hold that position's values of each head."""
    if task == "ordinal":
        return ordinal_loss(logits["ordinal"].tolist(), bucket)
    if task == "return" and "state" in logits:
        components = logits["return"].reshape(len(logits["state"]), -1).tolist()
        return -math.log(mixture(logits["state"].tolist(), components)[bucket - 1])
    return -math.log(softmax(logits[task].tolist())[bucket - 1])


def micro_batch_loss(
    logits: Mapping[str, np.ndarray],
    targets: Mapping[str, np.ndarray],
    weights: Mapping[str, float],
) -> tuple[float, dict[str, float]]:
    """(loss, means of the tasks) of one micro-batch; a task without a valid position is
    left out.
    """
    means = {}
    for task in ("return", "gap", "vol_regime", "ordinal"):
        if task not in logits:
            continue
        target = targets["return" if task == "ordinal" else task]
        losses = [
            position_loss(
                task, {name: values[b, s] for name, values in logits.items()}, int(target[b, s])
            )
            for b in range(target.shape[0])
            for s in range(target.shape[1])
            if target[b, s] > 0
        ]
        if losses:
            means[task] = sum(losses) / len(losses)
    total = means["return"] + sum(
        weights[task] * mean for task, mean in means.items() if task != "return"
    )
    return total, means


def mean_of_window_means(logits: Mapping[str, np.ndarray], target: np.ndarray) -> float:
    """What the return loss is not: each window averaged first."""
    means = []
    for b in range(target.shape[0]):
        window = {
            name: values[b : b + 1]
            for name, values in logits.items()
            if name in ("state", "return")
        }
        means.append(micro_batch_loss(window, {"return": target[b : b + 1]}, {})[0])
    return sum(means) / len(means)
