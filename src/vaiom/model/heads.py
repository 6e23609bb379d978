"""Output heads: logits of every task, the distribution of the next return bucket, and the training
objective.

A task's loss is the mean over the valid positions of a micro-batch, not a mean of window means.
Paper: Methods, "Output Heads", "Training Objective", "Supervision Scope"; Appendix F, "FullSeq
Valid-Position Logic".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.model.config import ModelConfig, class_of


class Heads(nn.Module):
    """All heads in one matrix product; each has its own rows."""

    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        self.sizes = config.outputs(vocabulary)
        self.projection = nn.Linear(config.width, sum(self.sizes.values()))

    def forward(self, h_BTD: Tensor) -> dict[str, Tensor]:
        # Softmax, logsumexp and losses are FP32 whatever the precision of the products.
        parts = self.projection(h_BTD).float().split(list(self.sizes.values()), dim=-1)
        return dict(zip(self.sizes, parts, strict=True))


def state_log_probs(logits: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """MoMS: log mixture weights (..., S) and log component probabilities (..., S, 16)."""
    components = logits["return"].unflatten(-1, (-1, NUM_RETURN_BUCKETS))
    return logits["state"].log_softmax(dim=-1), components.log_softmax(dim=-1)


def return_log_probs(logits: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities (..., 16) of the next return bucket, with or without a mixture."""
    if "state" not in logits:
        return logits["return"].log_softmax(dim=-1)
    weights, components = state_log_probs(logits)
    return torch.logsumexp(weights[..., None] + components, dim=-2)


def class_ids(buckets: Tensor) -> Tensor:
    """Bucket ids 1..K as class ids 0..K-1; invalid ones become class 0 and must be masked."""
    return torch.clamp(class_of(buckets.long()), min=0)


def position_losses(
    logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Losses (B, T) of each task that has a head; invalid positions are not zeroed."""
    losses = {"return": _nll(return_log_probs(logits), targets["return"])}
    if "ordinal" in logits:
        # The mean over thresholds; threshold j is passed if the bucket is above j.
        ordinal = logits["ordinal"]
        thresholds = torch.arange(1, ordinal.shape[-1] + 1, device=ordinal.device)
        passed = (thresholds < targets["return"][..., None]).to(ordinal.dtype)
        losses["ordinal"] = binary_cross_entropy_with_logits(
            ordinal, passed, reduction="none"
        ).mean(dim=-1)
    for task in ("gap", "vol_regime"):
        if task in logits:
            losses[task] = _nll(logits[task].log_softmax(dim=-1), targets[task])
    return losses


def grouped_mean(losses: Tensor, valid: Tensor, num_groups: int) -> Tensor:
    """Mean over micro-batches of the mean over the valid positions of each, 0 if it has none."""
    sums = torch.where(valid, losses, 0.0).view(num_groups, -1).sum(dim=1)
    return (sums / valid.view(num_groups, -1).sum(dim=1).clamp(min=1)).mean()


def objective(
    logits: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    weights: Mapping[str, float],
    num_groups: int = 1,
    teacher_BTK: Tensor | None = None,
    teacher_share: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise and the mean of each task; windows are `num_groups` equal, consecutive
    micro-batches.

    With a teacher's probabilities, that share of the return loss is the cross-entropy to them.
    """
    terms = {
        task: grouped_mean(losses, targets["return" if task == "ordinal" else task] > 0, num_groups)
        for task, losses in position_losses(logits, targets).items()
    }
    total = terms["return"]
    if teacher_BTK is not None:
        soft = -(teacher_BTK * return_log_probs(logits)).sum(dim=-1)
        total = (1 - teacher_share) * total + teacher_share * grouped_mean(
            soft, targets["return"] > 0, num_groups
        )
    for task, term in terms.items():
        if task != "return":
            total = total + weights[task] * term
    return total, terms


def _nll(log_probs: Tensor, buckets: Tensor) -> Tensor:
    return -log_probs.gather(-1, class_ids(buckets)[..., None])[..., 0]
