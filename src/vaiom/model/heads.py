"""What a hidden state says: logits of every head, the distribution of the next return bucket, the training objective.

Targets are bucket ids with 0 where a position does not count. Each task is one mean over its valid positions of a
micro-batch, not a mean of window means; micro-batches that run together are averaged as if each had run alone.
Paper: Methods, "Output Heads", "Training Objective", "Supervision Scope"; Appendix F, "FullSeq Valid-Position Logic".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.model.config import ModelConfig, class_of

TARGET_OF = {"return": "return", "ordinal": "return", "gap": "gap", "vol_regime": "vol_regime"}
"""Which target each task learns from."""


class Heads(nn.Module):
    """All heads side by side: one product serves them, and each keeps its own rows of it."""

    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        self.sizes = config.outputs(vocabulary)
        self.projection = nn.Linear(config.width, sum(self.sizes.values()))

    def forward(self, h_BTD: Tensor) -> dict[str, Tensor]:
        # Softmax, logsumexp and losses are FP32 whatever the products are.
        parts = self.projection(h_BTD).float().split(list(self.sizes.values()), dim=-1)
        return dict(zip(self.sizes, parts, strict=True))


def state_log_probs(logits: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """MoMS: log mixture weights (..., S) and log component probabilities (..., S, 16)."""
    components = logits["return"].unflatten(-1, (-1, NUM_RETURN_BUCKETS))
    return logits["state"].log_softmax(dim=-1), components.log_softmax(dim=-1)


def return_log_probs(logits: dict[str, Tensor]) -> Tensor:
    """Log-probabilities (..., 16) of the next return bucket, mixture or not."""
    if "state" not in logits:
        return logits["return"].log_softmax(dim=-1)
    weights, components = state_log_probs(logits)
    return torch.logsumexp(weights[..., None] + components, dim=-2)


def class_ids(buckets: Tensor) -> Tensor:
    """Bucket ids 1..K as class ids 0..K-1; invalid ones become class 0 and must be masked."""
    return torch.clamp(class_of(buckets.long()), min=0)


def position_losses(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The loss of every position for each task whose head is there, shape (B, T); invalid positions are not zeroed."""
    losses = {"return": _nll(return_log_probs(dict(logits)), targets["return"])}
    if "ordinal" in logits:
        losses["ordinal"] = _ordinal(logits["ordinal"], targets["return"])
    for task in ("gap", "vol_regime"):
        if task in logits:
            losses[task] = _nll(logits[task].log_softmax(dim=-1), targets[task])
    return losses


def grouped_means(losses: Tensor, valid: Tensor, num_groups: int) -> Tensor:
    """(G,) the mean over valid positions of each micro-batch; 0 where it has none, which leaves its term out."""
    per_group = torch.where(valid, losses, 0.0).view(num_groups, -1).sum(dim=1)
    return per_group / valid.view(num_groups, -1).sum(dim=1).clamp(min=1)


def objective(
    logits: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    weights: Mapping[str, float],
    num_groups: int = 1,
    teacher_BTK: Tensor | None = None,
    teacher_share: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise and the mean of each task; the windows are `num_groups` equal micro-batches in a row.

    With a teacher's probabilities, that share of the return's loss is the cross-entropy to them.
    """
    terms = {
        task: grouped_means(losses, targets[TARGET_OF[task]] > 0, num_groups).mean()
        for task, losses in position_losses(logits, targets).items()
    }
    total = terms["return"]
    if teacher_BTK is not None:
        soft = -(teacher_BTK * return_log_probs(dict(logits))).sum(dim=-1)
        learned = grouped_means(soft, targets["return"] > 0, num_groups).mean()
        total = (1 - teacher_share) * total + teacher_share * learned
    for task, term in terms.items():
        if task != "return":
            total = total + weights[task] * term
    return total, terms


def _nll(log_probs: Tensor, buckets: Tensor) -> Tensor:
    return -log_probs.gather(-1, class_ids(buckets)[..., None])[..., 0]


def _ordinal(logits: Tensor, buckets: Tensor) -> Tensor:
    """Mean binary cross-entropy over the thresholds; threshold j is passed when the bucket is above j."""
    thresholds = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
    passed = (thresholds < buckets[..., None]).to(logits.dtype)
    return binary_cross_entropy_with_logits(logits, passed, reduction="none").mean(dim=-1)
