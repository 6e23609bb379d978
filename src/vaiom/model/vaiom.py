"""The whole model: an encoder of events, the backbone and the heads.

Enters: windows of events (B, T, F), continuous or discrete, and metadata per window (B, 3),
constant because windows never cross assets. Leaves: named logits per position.
Paper: Methods, "Input Representations" and "VAIOM Backbone"; initialisation is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear
from torch.overrides import TorchFunctionMode

from vaiom.features.fields import CROSS_FIELDS, DISC_FIELDS, UNKNOWN_ASSET
from vaiom.model.config import INPUT_LIMIT, ModelConfig
from vaiom.model.decoder import Decoder, Gru
from vaiom.model.heads import Heads, return_log_probs

MIN_EMBEDDING_WIDTH = 8
ASSET_TABLE = "encoder.embeddings.asset_id.weight"
CLASS_TABLE = "encoder.embeddings.asset_class_id.weight"
"""Parameters with a row per asset, the unknown one first, and per class."""


class Encoder(nn.Module):
    """MLP of field embeddings (DiscIn), fields (ContIn), or projected fields and metadata
    embeddings (HybridContIn).
    """

    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        self.input, width, num_fields = config.input, config.width, len(config.input_fields)
        self.asset_dropout, self.cross_dropout = config.asset_dropout, config.cross_dropout
        if self.cross_dropout:
            own = torch.tensor(
                [name not in CROSS_FIELDS for name in config.input_fields], device="cpu"
            )
            self.register_buffer("_own_F", own, persistent=False)
        if self.input == "hybrid":
            self.continuous = nn.Linear(num_fields, width)
        size = max(MIN_EMBEDDING_WIDTH, width // len(DISC_FIELDS) if self.input == "disc" else 0)
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(vocabulary[name], size) for name in config.embedded}
        )
        entering = {"disc": 0, "cont": num_fields, "hybrid": width}[self.input]
        self.first = nn.Linear(entering + len(config.embedded) * size, width)
        self.second = nn.Linear(width, width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        tables = list(self.embeddings.values())
        if self.input == "disc":
            parts = [_look_up(table, x_BTF[..., field]) for field, table in enumerate(tables)]
            fused = self.first(torch.cat(parts, dim=-1))
        elif self.input == "cont":
            fused = self.first(x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT))
        else:
            if self.training and self.cross_dropout:
                # These fields are zero where no other asset has a bar.
                alone_B = torch.rand(len(x_BTF), device=x_BTF.device) < self.cross_dropout
                x_BTF = x_BTF * (self.get_buffer("_own_F") | ~alone_B[:, None, None])
            if self.training and self.asset_dropout:
                hidden_B = torch.rand(len(meta_BM), device=meta_BM.device) < self.asset_dropout
                asset_B1 = meta_BM[:, :1].masked_fill(hidden_B[:, None], UNKNOWN_ASSET)
                meta_BM = torch.cat([asset_B1, meta_BM[:, 1:]], dim=1)
            continuous = gelu(self.continuous(x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT)))
            embedded = torch.cat(
                [table(meta_BM[:, field]) for field, table in enumerate(tables)], dim=-1
            )
            # The paper's concatenation, with the constant part of the product computed once per
            # window.
            for_events, for_window = self.first.weight.split(
                [continuous.shape[-1], embedded.shape[-1]], dim=1
            )
            fused = (
                linear(continuous, for_events)
                + linear(embedded, for_window, self.first.bias)[:, None]
            )
        hidden: Tensor = self.second(gelu(fused))
        return hidden


def _look_up(table: nn.Module, index_BT: Tensor) -> Tensor:
    """Rows of a table; in training on a GPU as a product, whose gradient is one too instead of a
    scatter.
    """
    assert isinstance(table, nn.Embedding)
    if not index_BT.is_cuda or not torch.is_grad_enabled():
        return embedding(index_BT.long(), table.weight)
    one_hot = index_BT[..., None] == torch.arange(table.num_embeddings, device=index_BT.device)
    return one_hot.to(table.weight.dtype) @ table.weight


class Vaiom(nn.Module):
    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, vocabulary)
        self.backbone = Decoder(config) if config.backbone == "decoder" else Gru(config)
        self.heads = Heads(config, vocabulary)

    def compiled(self, function: Callable[..., Any]) -> Any:
        """A function that calls the model, compiled; recurrent layers have their own kernels."""
        return (
            torch.compile(function, fullgraph=True, dynamic=False)
            if self.config.backbone == "decoder"
            else function
        )

    def hidden(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> Tensor:
        """(B, T, D) inputs of the heads at every position, or (B, 1, D) at the last alone."""
        hidden: Tensor = self.backbone(self.encoder(x_BTF, meta_BM), last_only=last_only)
        return hidden

    def forward(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> dict[str, Tensor]:
        """Logits of each head at every position, or at the last alone."""
        logits: dict[str, Tensor] = self.heads(self.hidden(x_BTF, meta_BM, last_only))
        return logits

    def log_probs(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        """(B, 16) log-probabilities of the return bucket that follows each window."""
        return return_log_probs(self(x_BTF, meta_BM, last_only=True))[:, -1]

    def saved_tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters on the CPU; an untrained unknown asset becomes the mean of the
        known ones.
        """
        tensors = {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}
        table = tensors.get(ASSET_TABLE)
        if table is not None and not self.config.asset_dropout:
            table[UNKNOWN_ASSET] = table[UNKNOWN_ASSET + 1 :].mean(dim=0)
        return tensors


def count_parameters(config: ModelConfig, vocabulary: Mapping[str, int]) -> int:
    """The exact number of trainable parameters, without allocating them."""
    return sum(
        parameter.numel() for parameter in unallocated_model(config, vocabulary).parameters()
    )


def unallocated_model(config: ModelConfig, vocabulary: Mapping[str, int]) -> Vaiom:
    """A model without memory for its parameters; no random number is drawn."""
    with torch.device("meta"), _SkipInitialisation():
        return Vaiom(config, vocabulary)


class _SkipInitialisation(TorchFunctionMode):
    """Skips in-place initialisation: on tensors without memory, it would make PyTorch load its
    compiler.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
