"""TabM (Gorishniy et al., ICLR 2025) over the features of one row.

An ensemble of networks that share their layers, as a baseline that is stronger than trees on many
tables. Enters: the features of `lightgbm_lags`. Leaves: bucket probabilities. Not in the paper.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vaiom.baselines.base import Baseline, Floats, Rows, damaged_fit
from vaiom.baselines.lightgbm import FEATURES, TreeConfig, split_holdout
from vaiom.corpus.store import Corpus
from vaiom.errors import CheckpointError
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.files import Progress
from vaiom.model.checkpoint import arrays_of, read_tensors, write_tensors
from vaiom.model.config import class_of
from vaiom.training.devices import resolve_device

MODEL_NAME = "model.safetensors"
FORMAT = "vaiom-tabm"
FORMAT_VERSION = 1
LIMIT = 8.0
"""Standardised features are clipped to this."""
ASSET_WIDTH = 16
_LEAST_SPREAD = 1e-6
_ROWS_AT_ONCE = 1 << 13
_HOLDOUT = TreeConfig(chronological=True, holdout_share=0.1)
"""The latest events of Train select the epoch."""


@dataclass(frozen=True, kw_only=True)
class TabMConfig:
    """Hyperparameters; the defaults are the authors'."""

    members: int = 32
    width: int = 512
    num_layers: int = 3
    dropout: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 3e-4
    batch: int = 1_024
    epochs: int = 20
    patience: int = 3
    seed: int = 17


class TabMNetwork(nn.Module):
    """Features (N, F), NaN where unknown, and asset ids (N,) to logits (N, members, 16).

    Members share the layers; each scales the inputs and reads the last layer in its own way.
    """

    def __init__(self, num_fields: int, num_assets: int, config: TabMConfig) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(num_fields))
        self.register_buffer("spread", torch.ones(num_fields))
        self.asset = nn.Embedding(num_assets, ASSET_WIDTH)
        widths = [num_fields + ASSET_WIDTH, *[config.width] * config.num_layers]
        signs = torch.randint(0, 2, (config.members, widths[0])) * 2.0 - 1
        self.scaling = nn.Parameter(signs)
        layers: list[nn.Module] = []
        for entering, leaving in pairwise(widths):
            layers += [nn.Linear(entering, leaving), nn.ReLU(), nn.Dropout(config.dropout)]
        self.layers = nn.Sequential(*layers)
        last = torch.rand(config.members, config.width, NUM_RETURN_BUCKETS) * 2 - 1
        self.last = nn.Parameter(0.1 * last * config.width**-0.5)
        self.bias = nn.Parameter(torch.zeros(config.members, NUM_RETURN_BUCKETS))

    def forward(self, x_NF: Tensor, asset_N: Tensor) -> Tensor:
        standardised = (x_NF - self.get_buffer("centre")) / self.get_buffer("spread")
        known = standardised.nan_to_num(0.0).clamp(-LIMIT, LIMIT)
        inputs = torch.cat([known, self.asset(asset_N)], dim=-1)
        hidden = self.layers(inputs[:, None] * self.scaling)
        return torch.einsum("nmd,mdk->nmk", hidden, self.last) + self.bias

    def probs(self, x_NF: Tensor, asset_N: Tensor) -> Tensor:
        """(N, 16) mean of the members."""
        parts = []
        with torch.inference_mode():
            batches = zip(x_NF.split(_ROWS_AT_ONCE), asset_N.split(_ROWS_AT_ONCE), strict=True)
            for x_BF, asset_B in batches:
                logits = self(x_BF, asset_B)
                parts.append(logits.softmax(dim=-1).mean(dim=1))
        return torch.cat(parts)

    @torch.no_grad()
    def start_from(self, events: TabMEvents) -> None:
        """Standardise by these features, and start from the shares of these classes."""
        centre = events.x_NF.nanmean(dim=0).nan_to_num(0.0)
        variance = (events.x_NF - centre).square().nanmean(dim=0).nan_to_num(0.0)
        self.get_buffer("centre").copy_(centre)
        self.get_buffer("spread").copy_(variance.sqrt().clamp(min=_LEAST_SPREAD))
        counts = events.class_N.bincount(minlength=NUM_RETURN_BUCKETS)
        self.bias.copy_((counts + 1.0).log())


class TabMEvents(NamedTuple):
    """Events on a device."""

    x_NF: Tensor
    """Features without the metadata."""
    asset_N: Tensor
    class_N: Tensor


class TabM(Baseline):
    """The smallest form of TabM on the features of `lightgbm_lags`; it predicts the mean of its
    members.

    Attributes:
        network_: of the epoch that was best on the latest events of Train.
    """

    network_: TabMNetwork

    def __init__(
        self, name: str, progress: Progress | None = None, *, device: str = "auto", **changes: Any
    ) -> None:
        super().__init__(name, progress)
        self.settings = TabMConfig(**changes)
        self.features = FEATURES["lightgbm_lags"]
        self.device = device

    def config(self) -> dict[str, Any]:
        return {
            **asdict(self.settings),
            "fields": list(self.features.fields),
            "holdout": asdict(_HOLDOUT),
        }

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        settings = self.settings
        device = resolve_device(self.device)
        fitted, holdout = split_holdout(rows, corpus.target_timestamps[rows], _HOLDOUT)
        train = self._events(corpus, fitted, device)
        held_out = self._events(corpus, holdout, device)
        torch.manual_seed(settings.seed)
        network = self._network(len(corpus.tokenizer.symbols) + 1).to(device)
        network.start_from(train)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        draw = torch.Generator().manual_seed(settings.seed)
        best = network
        least = math.inf
        stale = 0
        for epoch in range(settings.epochs):
            network.train()
            order = torch.randperm(len(train.x_NF), generator=draw).to(device)
            for part in order.split(settings.batch):
                logits = network(train.x_NF[part], train.asset_N[part])
                classes = train.class_N[part].repeat_interleave(settings.members)
                loss = cross_entropy(logits.flatten(0, 1), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            probs = network.eval().probs(held_out.x_NF, held_out.asset_N)
            bits = float(-probs.gather(1, held_out.class_N[:, None]).log2().mean())
            stale += 1
            if bits < least:
                best = copy.deepcopy(network)
                least = bits
                stale = 0
            if self.progress:
                self.progress(epoch + 1, settings.epochs, f"epochs, held-out {bits:.4f} bits")
            if stale == settings.patience:
                break
        self.network_ = best.eval()

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        device = resolve_device(self.device)
        events = self._events(corpus, rows, device)
        probs = self.network_.to(device).probs(events.x_NF, events.asset_N)
        return probs.double().cpu().numpy()

    def save(self, folder: Path) -> None:
        tensors = arrays_of(self.network_.state_dict())
        write_tensors(folder / MODEL_NAME, FORMAT, FORMAT_VERSION, {}, tensors)

    def load(self, folder: Path) -> Self:
        file = folder / MODEL_NAME
        try:
            _, arrays = read_tensors(file, FORMAT, FORMAT_VERSION)
            network = self._network(len(arrays["asset.weight"]))
            network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
        except (CheckpointError, KeyError, RuntimeError) as error:
            raise damaged_fit(file) from error
        self.network_ = network.eval()
        return self

    def _network(self, num_assets: int) -> TabMNetwork:
        """An untrained network; asset 0 is an unknown one."""
        num_fields = len(self.features.fields) - self.features.num_categories
        return TabMNetwork(num_fields, num_assets, self.settings)

    def _events(self, corpus: Corpus, rows: Rows, device: torch.device) -> TabMEvents:
        """The features of these rows without their metadata, on a device."""
        features = self.features.of(corpus, rows)[:, : -self.features.num_categories]
        classes = class_of(corpus.target_return[rows].astype(np.int64))
        return TabMEvents(
            torch.from_numpy(np.ascontiguousarray(features)).to(device),
            torch.from_numpy(corpus.meta[rows, 0].astype(np.int64)).to(device),
            torch.from_numpy(classes).to(device),
        )
