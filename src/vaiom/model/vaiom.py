"""The whole model: encoder, backbone, heads.

Enters: windows of events (B, T, F) and the metadata of each window (B, 3). Leaves: named logits per position.
Paper: Methods, "VAIOM Backbone"; initialisation is PyTorch's, positions are drawn from N(0, 0.02).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vaiom.events.fields import UNKNOWN_ASSET
from vaiom.model.config import ModelConfig, Vocabulary
from vaiom.model.decoder import Decoder, Gru
from vaiom.model.encoders import Encoder
from vaiom.model.heads import Heads, return_log_probs

ASSET_TABLE = "encoder.embeddings.asset_id.weight"
CLASS_TABLE = "encoder.embeddings.asset_class_id.weight"
"""The parameters with a row per asset, the unknown one first, and per class."""


class Vaiom(nn.Module):
    def __init__(self, config: ModelConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.encoder = Encoder(config, vocabulary)
        self.backbone = Decoder(config) if config.backbone == "decoder" else Gru(config)
        self.heads = Heads(config, vocabulary)

    def compiled(self, function: Callable[..., Any]) -> Any:
        """A function that calls the model, as one compiled graph; recurrent layers bring kernels of their own."""
        return torch.compile(function, fullgraph=True, dynamic=False) if self.config.backbone == "decoder" else function

    def hidden(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> Tensor:
        """(B, T, D): what heads read at every position, or (B, 1, D) at the last one alone."""
        hidden: Tensor = self.backbone(self.encoder(x_BTF, meta_BM), last_only=last_only)
        return hidden

    def forward(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> dict[str, Tensor]:
        """Logits of each head at every position, or at the last one alone."""
        logits: dict[str, Tensor] = self.heads(self.hidden(x_BTF, meta_BM, last_only))
        return logits

    def log_probs(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        """(B, 16) log-probabilities of the return bucket that follows each window."""
        return return_log_probs(self(x_BTF, meta_BM, last_only=True))[:, -1]

    def saved_tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters on the CPU; an unknown asset that was never shown is the mean of the known ones."""
        tensors = {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}
        table = tensors.get(ASSET_TABLE)
        if table is not None and not self.config.asset_dropout:
            table[UNKNOWN_ASSET] = table[UNKNOWN_ASSET + 1 :].mean(dim=0)
        return tensors


def count_parameters(config: ModelConfig, vocabulary: Vocabulary) -> int:
    """The exact number of trainable parameters; nothing is allocated."""
    return sum(parameter.numel() for parameter in unallocated_model(config, vocabulary).parameters())


def unallocated_model(config: ModelConfig, vocabulary: Vocabulary) -> Vaiom:
    """A model whose parameters are on no device yet: it costs no memory, and no random number is drawn."""
    with torch.device("meta"), _Undrawn():
        return Vaiom(config, vocabulary)


class _Undrawn(TorchFunctionMode):
    """Leaves out what fills tensors in place: to fill one that is not there, PyTorch would load its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
