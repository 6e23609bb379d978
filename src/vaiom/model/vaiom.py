"""The whole model: an encoder that makes each event a vector of the model's width, backbone, heads.

Enters: windows of events (B, T, F), continuous or discrete, and the metadata of each window (B, 3): windows never cross
assets, so their metadata does not change inside one. Leaves: named logits per position.
Paper: Methods, "Input Representations" and "VAIOM Backbone"; initialisation is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear
from torch.overrides import TorchFunctionMode

from vaiom.events.fields import CROSS_FIELDS, UNKNOWN_ASSET
from vaiom.model.config import INPUT_LIMIT, ModelConfig
from vaiom.model.decoder import Decoder, Gru
from vaiom.model.heads import Heads, return_log_probs

ASSET_TABLE = "encoder.embeddings.asset_id.weight"
CLASS_TABLE = "encoder.embeddings.asset_class_id.weight"
"""The parameters with a row per asset, the unknown one first, and per class."""


class Encoder(nn.Module):
    """DiscIn is an embedding per field; pure ContIn the fields themselves; HybridContIn a projection of them beside
    embeddings of the metadata. An MLP makes the vector."""

    def __init__(self, config: ModelConfig, vocabulary: Mapping[str, int]) -> None:
        super().__init__()
        self.input, width, num_fields = config.input, config.width, len(config.input_fields)
        self.asset_dropout, self.cross_dropout = config.asset_dropout, config.cross_dropout
        if self.cross_dropout:
            own = torch.tensor([name not in CROSS_FIELDS for name in config.input_fields], device="cpu")
            self.register_buffer("_own_F", own, persistent=False)
        if self.input == "hybrid":
            self.continuous = nn.Linear(num_fields, width)
        size, sizes = config.embedding_width, vocabulary
        self.embeddings = nn.ModuleDict({name: nn.Embedding(sizes[name], size) for name in config.embedded})
        entering = {"disc": 0, "cont": num_fields, "hybrid": width}[self.input]
        self.first = nn.Linear(entering + len(config.embedded) * size, width)
        self.second = nn.Linear(width, width)

    def forward(self, x_BTF: Tensor, meta_BM: Tensor) -> Tensor:
        tables = list(self.embeddings.values())
        if self.input == "disc":
            parts = [_looked_up(table, x_BTF[..., field]) for field, table in enumerate(tables)]
            fused = self.first(torch.cat(parts, dim=-1))
        elif self.input == "cont":
            fused = self.first(x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT))
        else:
            x_BTF, meta_BM = self._left_out(x_BTF, meta_BM) if self.training else (x_BTF, meta_BM)
            continuous = gelu(self.continuous(x_BTF.clamp(-INPUT_LIMIT, INPUT_LIMIT)))
            embedded = torch.cat([table(meta_BM[:, field]) for field, table in enumerate(tables)], dim=-1)
            # The concatenation of the paper, with the constant part of the product computed once per window.
            for_events, for_window = self.first.weight.split([continuous.shape[-1], embedded.shape[-1]], dim=1)
            fused = linear(continuous, for_events) + linear(embedded, for_window, self.first.bias)[:, None]
        hidden: Tensor = self.second(gelu(fused))
        return hidden

    def _left_out(self, x_BTF: Tensor, meta_BM: Tensor) -> tuple[Tensor, Tensor]:
        """Some windows without other assets' bars, some as of an unknown asset."""
        if self.cross_dropout:
            # Zero is what these fields are where no other asset has a bar.
            alone_B = torch.rand(len(x_BTF), device=x_BTF.device) < self.cross_dropout
            x_BTF = x_BTF * (self.get_buffer("_own_F") | ~alone_B[:, None, None])
        if self.asset_dropout:
            unknown_B = torch.rand(len(meta_BM), device=meta_BM.device) < self.asset_dropout
            meta_BM = torch.cat([meta_BM[:, :1].masked_fill(unknown_B[:, None], UNKNOWN_ASSET), meta_BM[:, 1:]], dim=1)
        return x_BTF, meta_BM


def _looked_up(table: nn.Module, index_BT: Tensor) -> Tensor:
    """Rows of a table; while learning on a GPU as a product, whose gradient is one too instead of a scatter."""
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


def count_parameters(config: ModelConfig, vocabulary: Mapping[str, int]) -> int:
    """The exact number of trainable parameters; nothing is allocated."""
    return sum(parameter.numel() for parameter in unallocated_model(config, vocabulary).parameters())


def unallocated_model(config: ModelConfig, vocabulary: Mapping[str, int]) -> Vaiom:
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
