"""The whole model: encoder, learned positions, decoder, heads.

Enters: windows of events (B, T, F) and the metadata of each window (B, 3). Leaves: named logits per position.
Paper: Methods, "VAIOM Backbone"; initialisation is PyTorch's, positions are drawn from N(0, 0.02).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vaiom.events.schema import UNKNOWN_ASSET
from vaiom.model.config import ModelConfig, Vocabulary
from vaiom.model.decoder import Block
from vaiom.model.encoders import make_encoder
from vaiom.model.heads import Heads, return_log_probs

POSITION_SCALE = 0.02


class Vaiom(nn.Module):
    def __init__(self, config: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.encoder = make_encoder(config, vocabulary)
        self.positions = nn.Parameter(torch.empty(config.context, config.width).normal_(0, POSITION_SCALE))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)
        self.heads = Heads(config, vocabulary)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> dict[str, Tensor]:
        """Logits of each head at every position, or at the last one alone."""
        hidden = self.encoder(x_BTF, meta_BM)
        hidden = hidden + self.positions[: x_BTF.shape[1]].to(hidden.dtype)
        for number, block in enumerate(self.blocks, start=1):
            hidden = block(hidden, last_only=last_only and number == len(self.blocks))
        logits: dict[str, Tensor] = self.heads(self.norm(hidden))
        return logits

    def log_probs(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        """(B, 16) log-probabilities of the return bucket that follows each window."""
        return return_log_probs(self(x_BTF, meta_BM, last_only=True))[:, -1]

    def saved_tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters on the CPU; the never-trained unknown asset is the mean of the trained ones."""
        tensors = {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}
        table = tensors.get("encoder.embeddings.asset_id.weight")
        if table is not None:
            table[UNKNOWN_ASSET] = table[UNKNOWN_ASSET + 1 :].mean(dim=0)
        return tensors


def count_parameters(config: ModelConfig, vocabulary: Vocabulary) -> int:
    """The exact number of trainable parameters; nothing is allocated."""
    with torch.device("meta"):
        model = Vaiom(config, vocabulary)
    return sum(parameter.numel() for parameter in model.parameters())
