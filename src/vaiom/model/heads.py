"""Output heads: logits of every task, the distribution of the next return bucket, and the training
objective.

Enters: hidden states (B, T, D). Leaves: logits by head, log-probabilities, losses in nats.
Paper: Methods, "Output Heads", "Training Objective", "Supervision Scope"; Appendix F, "FullSeq
Valid-Position Logic".

Shapes: B windows, T positions, S latent states, K = 16 return buckets.
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
        """Logits (B, T, size) by head, in FP32 whatever the precision of the product."""
        logits = self.projection(h_BTD).float()
        sizes = list(self.sizes.values())
        parts = logits.split(sizes, dim=-1)
        return dict(zip(self.sizes, parts, strict=True))


def state_log_probs(logits: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Mixture of multinomial states: log-weights log w_s (..., S) and log-probabilities
    log p(k | s) (..., S, K) of each state.
    """
    components = logits["return"].unflatten(-1, (-1, NUM_RETURN_BUCKETS))
    log_weights = logits["state"].log_softmax(dim=-1)
    return log_weights, components.log_softmax(dim=-1)


def return_log_probs(logits: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities (..., K) of the next return bucket: log sum_s w_s p(k | s) of a mixture, or
    one softmax.
    """
    if "state" not in logits:
        return logits["return"].log_softmax(dim=-1)
    log_weights, components = state_log_probs(logits)
    joint = log_weights[..., None] + components
    return joint.logsumexp(dim=-2)


def class_ids(buckets: Tensor) -> Tensor:
    """Bucket ids 1..K as class ids 0..K-1; invalid ones become class 0 and must be masked."""
    classes: Tensor = class_of(buckets.long())
    return classes.clamp(min=0)


def position_losses(
    logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Losses (B, T) in nats of each task that has a head.

    Return, gap and volatility regime: -log p of the bucket that came. Ordinal: the mean over
    thresholds j of the binary cross-entropy of "the bucket is above j". Positions without a valid
    target have a number too, which the caller leaves out.
    """
    buckets = targets["return"]
    losses = {"return": _nll(return_log_probs(logits), buckets)}
    if "ordinal" in logits:
        ordinal = logits["ordinal"]
        num_thresholds = ordinal.shape[-1]
        thresholds = torch.arange(1, num_thresholds + 1, device=ordinal.device)
        is_above = thresholds < buckets[..., None]
        passed = is_above.to(ordinal.dtype)
        errors = binary_cross_entropy_with_logits(ordinal, passed, reduction="none")
        losses["ordinal"] = errors.mean(dim=-1)
    for task in ("gap", "vol_regime"):
        if task in logits:
            log_probs = logits[task].log_softmax(dim=-1)
            losses[task] = _nll(log_probs, targets[task])
    return losses


def grouped_mean(losses: Tensor, valid: Tensor, num_groups: int) -> Tensor:
    """Mean over micro-batches of the mean over the valid positions of each, 0 if it has none.

    Not a mean of window means: a window with few valid positions counts for as much as they do.
    """
    counted = torch.where(valid, losses, 0.0)
    sums = counted.view(num_groups, -1).sum(dim=1)
    counts = valid.view(num_groups, -1).sum(dim=1)
    means = sums / counts.clamp(min=1)
    return means.mean()


def objective(
    logits: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    weights: Mapping[str, float],
    num_groups: int = 1,
    teacher_BTK: Tensor | None = None,
    teacher_share: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to minimise, L_return + sum of weight * L_task over the other tasks.

    Args:
        logits: Of the heads.
        targets: Bucket ids (B, T) by task, 0 where invalid; the ordinal head has the return's.
        weights: Of the tasks but the return.
        num_groups: Windows are that many consecutive micro-batches of one size.
        teacher_BTK: Probabilities of a teacher.
        teacher_share: The share a of the return loss that is the cross-entropy to the teacher:
            (1 - a) L_return - a sum_k q_k log p_k.

    Returns the loss, and the mean of each task without its weight and without the teacher.
    """
    terms = {}
    for task, losses in position_losses(logits, targets).items():
        target = "return" if task == "ordinal" else task
        valid = targets[target] > 0
        terms[task] = grouped_mean(losses, valid, num_groups)
    total = terms["return"]
    if teacher_BTK is not None:
        weighted_BTK = teacher_BTK * return_log_probs(logits)
        cross_entropy_BT = -weighted_BTK.sum(dim=-1)
        soft = grouped_mean(cross_entropy_BT, targets["return"] > 0, num_groups)
        total = (1 - teacher_share) * total + teacher_share * soft
    for task, term in terms.items():
        if task != "return":
            total = total + weights[task] * term
    return total, terms


def _nll(log_probs: Tensor, buckets: Tensor) -> Tensor:
    """-log p of each bucket."""
    classes = class_ids(buckets)
    log_prob = log_probs.gather(-1, classes[..., None])
    return -log_prob[..., 0]
