"""What a hidden state says: logits of every head from one projection, and the distribution of the next return bucket.

Enters: hidden states (..., D). Leaves: named logits in FP32; log-probabilities (..., 16) of return buckets 1..16.
Paper: Methods, "Output Heads: Independent Categorical Head and MoMS" and "Training Objective".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.model.config import ModelConfig, Vocabulary


class Heads(nn.Module):
    """All heads side by side: one product serves them, and each keeps its own rows of it."""

    def __init__(self, config: ModelConfig, vocabulary: Vocabulary) -> None:
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
