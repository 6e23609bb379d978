"""The whole model: an encoder of events, the backbone and the heads.

Enters: windows of events (B, T, F), continuous or discrete, and metadata per window (B, M),
constant because windows never cross assets. Leaves: logits by head, (B, T, size).
Paper: Methods, "Input Representations" and "VAIOM Backbone"; initialisation is PyTorch's.

Shapes: B windows, T positions, F fields, M = 3 metadata (asset, class, timeframe), D width.
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
"""Least width of an embedding; the discrete branch shares the model's width among its fields."""
ASSET_TABLE = "encoder.embeddings.asset_id.weight"
CLASS_TABLE = "encoder.embeddings.asset_class_id.weight"
"""Parameters with a row per asset, the unknown one first, and per class."""


class Encoder(nn.Module):
    """Events to vectors: W2 GELU(W1 x) with x by branch.

    DiscIn: the embeddings of all fields. ContIn: the fields, clipped. HybridContIn: GELU of a
    projection of the clipped fields, beside the embeddings of the metadata.
    """

    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        width = config.width
        num_fields = len(config.input_fields)
        self.input = config.input
        self.asset_dropout = config.asset_dropout
        self.cross_dropout = config.cross_dropout
        if self.cross_dropout:
            is_own = [name not in CROSS_FIELDS for name in config.input_fields]
            own_F = torch.tensor(is_own, device="cpu")
            self.register_buffer("_own_F", own_F, persistent=False)
        num_inputs = 0
        if self.input == "cont":
            num_inputs = num_fields
        elif self.input == "hybrid":
            self.continuous = nn.Linear(num_fields, width)
            num_inputs = width
        size = MIN_EMBEDDING_WIDTH
        if self.input == "disc":
            size = max(size, width // len(DISC_FIELDS))
        self.embeddings = nn.ModuleDict()
        for name in config.embedded:
            self.embeddings[name] = nn.Embedding(vocabulary[name], size)
            num_inputs += size
        self.first = nn.Linear(num_inputs, width)
        self.second = nn.Linear(width, width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        """(B, T, D) vectors of events; the discrete branch reads bucket ids from the fields."""
        if self.input == "disc":
            parts = []
            for field, table in enumerate(self.embeddings.values()):
                index_BT = x_BTF[..., field]
                parts.append(_look_up(table, index_BT))
            embedded = torch.cat(parts, dim=-1)
            fused_BTD = self.first(embedded)
        elif self.input == "cont":
            clipped_BTF = x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT)
            fused_BTD = self.first(clipped_BTF)
        else:
            x_BTF = self._drop_others(x_BTF)
            meta_BM = self._drop_asset(meta_BM)
            fused_BTD = self._fuse(x_BTF, meta_BM)
        vectors_BTD: Tensor = self.second(gelu(fused_BTD))
        return vectors_BTD

    def _fuse(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        """The paper's concatenation, with the constant part of the product computed once a
        window.
        """
        clipped_BTF = x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT)
        continuous_BTD = gelu(self.continuous(clipped_BTF))
        parts = []
        for field, table in enumerate(self.embeddings.values()):
            index_B = meta_BM[:, field]
            parts.append(table(index_B))
        embedded = torch.cat(parts, dim=-1)
        sizes = [continuous_BTD.shape[-1], embedded.shape[-1]]
        event_weight, window_weight = self.first.weight.split(sizes, dim=1)
        per_window_BD = linear(embedded, window_weight, self.first.bias)
        per_event_BTD = linear(continuous_BTD, event_weight)
        return per_event_BTD + per_window_BD[:, None]

    def _drop_others(self, x_BTF: Tensor) -> Tensor:
        """In training, hide other assets from some windows: their fields are 0 where no other has
        a bar.
        """
        if not self.training or not self.cross_dropout:
            return x_BTF
        drawn_B = torch.rand(len(x_BTF), device=x_BTF.device)
        alone_B = drawn_B < self.cross_dropout
        own_F = self.get_buffer("_own_F")
        return x_BTF * (own_F | ~alone_B[:, None, None])

    def _drop_asset(self, meta_BM: Tensor) -> Tensor:
        """In training, hide the asset of some windows, so that its unknown row is trained."""
        if not self.training or not self.asset_dropout:
            return meta_BM
        drawn_B = torch.rand(len(meta_BM), device=meta_BM.device)
        hidden_B1 = (drawn_B < self.asset_dropout)[:, None]
        asset_B1 = meta_BM[:, :1].masked_fill(hidden_B1, UNKNOWN_ASSET)
        return torch.cat([asset_B1, meta_BM[:, 1:]], dim=1)


def _look_up(table: nn.Module, index_BT: Tensor) -> Tensor:
    """Rows of a table; in training on a GPU as a product, whose gradient is one too instead of a
    scatter.
    """
    assert isinstance(table, nn.Embedding)
    if not index_BT.is_cuda or not torch.is_grad_enabled():
        return embedding(index_BT.long(), table.weight)
    rows = torch.arange(table.num_embeddings, device=index_BT.device)
    one_hot = index_BT[..., None] == rows
    return one_hot.to(table.weight.dtype) @ table.weight


class Vaiom(nn.Module):
    """The network of a configuration, for the vocabulary of a tokenizer."""

    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, vocabulary)
        backbone = Decoder if config.backbone == "decoder" else Gru
        self.backbone = backbone(config)
        self.heads = Heads(config, vocabulary)

    def compiled(self, function: Callable[..., Any]) -> Any:
        """A function that calls the model, compiled; recurrent layers have their own kernels."""
        if self.config.backbone != "decoder":
            return function
        return torch.compile(function, fullgraph=True, dynamic=False)

    def hidden(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> Tensor:
        """(B, T, D) inputs of the heads at every position, or (B, 1, D) at the last alone."""
        vectors_BTD = self.encoder(x_BTF, meta_BM)
        hidden_BTD: Tensor = self.backbone(vectors_BTD, last_only=last_only)
        return hidden_BTD

    def forward(self, x_BTF: Tensor, meta_BM: Tensor, last_only: bool = False) -> dict[str, Tensor]:
        """Logits of each head at every position, or at the last alone."""
        hidden_BTD = self.hidden(x_BTF, meta_BM, last_only)
        logits: dict[str, Tensor] = self.heads(hidden_BTD)
        return logits

    def log_probs(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        """(B, 16) log-probabilities of the return bucket that follows each window."""
        logits = self(x_BTF, meta_BM, last_only=True)
        log_probs_B1K = return_log_probs(logits)
        return log_probs_B1K[:, -1]

    def saved_tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters on the CPU; an unknown asset that was not trained becomes the
        mean of the known ones.
        """
        tensors = {}
        for name, value in self.state_dict().items():
            tensors[name] = value.detach().cpu().clone()
        if ASSET_TABLE in tensors and not self.config.asset_dropout:
            table = tensors[ASSET_TABLE]
            known = table[UNKNOWN_ASSET + 1 :]
            table[UNKNOWN_ASSET] = known.mean(dim=0)
        return tensors


def count_parameters(config: ModelConfig, vocabulary: Mapping[str, int]) -> int:
    """The exact number of trainable parameters, without allocating them."""
    parameters = unallocated_model(config, vocabulary).parameters()
    return sum(parameter.numel() for parameter in parameters)


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
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
