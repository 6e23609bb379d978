"""A recurrent backbone in place of the decoder: what attention over the window must beat.

Enters: event vectors (B, T, D). Leaves: hidden states (B, T, D), or (B, 1, D) where only the last position is wanted.
"""

from __future__ import annotations

from torch import Tensor, nn

from vaiom.model.attention import drop
from vaiom.model.config import ModelConfig


class Gru(nn.Module):
    """Stacked GRU layers; state s has seen the events up to s and nothing later."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.layers = nn.ModuleList(
            nn.GRU(config.width, config.width, batch_first=True) for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, h_BTD: Tensor, last_only: bool = False) -> Tensor:
        rate = self.dropout if self.training else 0.0
        for layer in self.layers:
            h_BTD = drop(layer(h_BTD)[0], rate)
        hidden: Tensor = self.norm(h_BTD[:, -1:] if last_only else h_BTD)
        return hidden
