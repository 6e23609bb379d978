"""Networks as baselines: a GRU over the events, a decoder that sees return tokens alone, TabM on a
row's features.
"""

from __future__ import annotations

import copy
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vaiom.baselines.base import Baseline, Floats, Rows, damaged_fit, rows_by_asset
from vaiom.baselines.lightgbm import FEATURES, TreeConfig, split_holdout
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.errors import CheckpointError, DataError
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.files import Progress, write_bytes
from vaiom.model.checkpoint import (
    Checkpoint,
    arrays_of,
    load_checkpoint,
    read_tensors,
    write_tensors,
)
from vaiom.model.config import class_of
from vaiom.run import Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train
from vaiom.training.windows import predict_probabilities

SELECTION_MONTHS = 6
MODEL_NAME, FORMAT, FORMAT_VERSION = "model.safetensors", "vaiom-tabm", 1
LIMIT = 8.0
"""Standardised features are clipped to this."""
_ASSET_WIDTH = 16
_PREDICT_ROWS = 1 << 13
_HOLDOUT = TreeConfig(chronological=True, holdout_share=0.1)

_SETTINGS: dict[str, dict[str, Any]] = {
    # A recurrent network over the main model's events, of about its size.
    "gru": {
        "backbone": "gru",
        "num_layers": 2,
        "width": 256,
        "learning_rate": 1e-3,
        "steps": 4_000,
        "patience": 4,
    },
    # A decoder over return buckets alone, in the manner of StockGPT.
    "return_tokens": {
        **{
            "input": "disc",
            "fields": ("return_bucket",),
            "return_head": "independent",
            "auxiliaries": (),
        },
        **{"steps": 5_500, "patience": 6},
    },
}
EXPERIMENTS = {
    name: Experiment(name=name).with_changes(validate_every=250, keep_last=1, **settings)
    for name, settings in _SETTINGS.items()
}


class Neural(Baseline):
    """A network that `vaiom.training` trains, as a baseline."""

    checkpoint_: Checkpoint

    def __init__(
        self, name: str, progress: Progress | None = None, *, device: str = "auto", **changes: Any
    ) -> None:
        super().__init__(name, progress)
        self.experiment, self.device = EXPERIMENTS[name].with_changes(**changes), device

    def config(self) -> dict[str, Any]:
        return {**self.experiment.identity(), "selection_months": SELECTION_MONTHS}

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        context, progress = self.experiment.model.context, self.progress
        if not np.array_equal(rows, corpus.endpoints(TRAIN, context)):
            problem = f"{self.name} learns from all Train events with its own context"
            expected, got = (
                f"the endpoints of Train with {context} rows",
                f"{len(rows):,} other events",
            )
            raise DataError(problem, expected=expected, got=got, fix=f"--context {context}")

        def report(entry: dict[str, Any]) -> None:
            if progress:
                progress(entry["step"], entry["steps"], f"steps, {entry['loss_nats']:.4f} nats")

        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(inside_train(corpus), self.experiment, run, device=self.device, report=report)
            self.load(run)

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        device, context = resolve_device(self.device), self.experiment.model.context
        for symbol, part in rows_by_asset(corpus, rows).items():
            short = rows[part] < corpus.asset_slices[symbol].start + context - 1
            if short.any():
                problem = f"{self.name} was not fitted for events with less history"
                where = f"{symbol}, {corpus.timestamps[rows[part][short][0]]}"
                raise DataError(problem, where=where, expected=f"{context} bars of history")
        return predict_probabilities(
            self.checkpoint_.model.to(device), corpus, rows, device, self.progress
        )

    def save(self, folder: Path) -> None:
        write_bytes(Run(folder).best, self._bytes)

    def load(self, folder: Path) -> Self:
        self.checkpoint_ = load_checkpoint(Run(folder).best)
        self._bytes = Run(folder).best.read_bytes()
        return self


def inside_train(corpus: Corpus) -> Corpus:
    """The same rows with Train's last months as the Validation split, and no later target of any
    use.
    """
    splits = corpus.splits
    start = splits.shifted_by(-SELECTION_MONTHS).train_end
    return replace(
        corpus, splits=replace(splits, train_end=start, validation=(start, splits.train_end))
    )


@dataclass(frozen=True, kw_only=True)
class TabConfig:
    """The defaults are its authors'."""

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


class Network(nn.Module):
    """Features (n, F), NaN where unknown, and ids of assets (n,) to logits (n, members, 16)."""

    def __init__(self, num_fields: int, num_assets: int, config: TabConfig) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(num_fields))
        self.register_buffer("spread", torch.ones(num_fields))
        self.asset = nn.Embedding(num_assets, _ASSET_WIDTH)
        widths = [num_fields + _ASSET_WIDTH, *[config.width] * config.num_layers]
        self.scaling = nn.Parameter(torch.randint(0, 2, (config.members, widths[0])) * 2.0 - 1)
        layers = [
            (nn.Linear(*pair), nn.ReLU(), nn.Dropout(config.dropout)) for pair in pairwise(widths)
        ]
        self.layers = nn.Sequential(*(part for layer in layers for part in layer))
        last = torch.rand(config.members, config.width, NUM_RETURN_BUCKETS) * 2 - 1
        self.last = nn.Parameter(0.1 * last * config.width**-0.5)
        self.bias = nn.Parameter(torch.zeros(config.members, NUM_RETURN_BUCKETS))

    def forward(self, x_NF: Tensor, asset_N: Tensor) -> Tensor:
        standardised = (x_NF - self.get_buffer("centre")) / self.get_buffer("spread")
        inputs = torch.cat(
            [standardised.nan_to_num(0.0).clamp(-LIMIT, LIMIT), self.asset(asset_N)], dim=-1
        )
        hidden = self.layers(inputs[:, None] * self.scaling)
        return torch.einsum("nmd,mdk->nmk", hidden, self.last) + self.bias

    def probs(self, x_NF: Tensor, asset_N: Tensor) -> Tensor:
        """(n, 16) mean of the members."""
        with torch.inference_mode():
            batches = zip(x_NF.split(_PREDICT_ROWS), asset_N.split(_PREDICT_ROWS), strict=True)
            return torch.cat([self(*batch).softmax(dim=-1).mean(dim=1) for batch in batches])


class TabM(Baseline):
    """Gorishniy et al. (ICLR 2025), its smallest form: members share their layers and differ at
    both ends.

    The prediction is their mean; the epoch is selected on the latest events of Train.
    """

    network_: Network

    def __init__(
        self, name: str, progress: Progress | None = None, *, device: str = "auto", **changes: Any
    ) -> None:
        super().__init__(name, progress)
        self.settings, self.features, self.device = (
            TabConfig(**changes),
            FEATURES["lightgbm_lags"],
            device,
        )

    def config(self) -> dict[str, Any]:
        return {
            **asdict(self.settings),
            "fields": list(self.features.fields),
            "holdout": asdict(_HOLDOUT),
        }

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        settings, device = self.settings, resolve_device(self.device)
        parts = split_holdout(rows, corpus.target_timestamps[rows], _HOLDOUT)
        (x, assets, classes), held_out = (self._tensors(corpus, part, device) for part in parts)
        torch.manual_seed(settings.seed)
        network = self._network(len(corpus.tokenizer.symbols) + 1).to(device)
        with torch.no_grad():
            network.get_buffer("centre").copy_(x.nanmean(dim=0).nan_to_num(0.0))
            variance = (x - network.get_buffer("centre")).square().nanmean(dim=0).nan_to_num(0.0)
            network.get_buffer("spread").copy_(variance.sqrt().clamp(min=1e-6))
            network.bias.copy_(
                (classes.bincount(minlength=NUM_RETURN_BUCKETS) + 1.0).log()
            )  # from Frequency on
        rate, decay = settings.learning_rate, settings.weight_decay
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
        draw, best, least, stale = (
            torch.Generator().manual_seed(settings.seed),
            network,
            math.inf,
            0,
        )
        for epoch in range(settings.epochs):
            network.train()
            for part in torch.randperm(len(x), generator=draw).to(device).split(settings.batch):
                logits = network(x[part], assets[part])
                loss = cross_entropy(
                    logits.flatten(0, 1), classes[part].repeat_interleave(logits.shape[1])
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            held_out_probs = network.eval().probs(*held_out[:2]).gather(1, held_out[2][:, None])
            bits, stale = float(-held_out_probs.log2().mean()), stale + 1
            if bits < least:
                best, least, stale = copy.deepcopy(network), bits, 0
            if self.progress:
                self.progress(epoch + 1, settings.epochs, f"epochs, held-out {bits:.4f} bits")
            if stale == settings.patience:
                break
        self.network_ = best.eval()

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        device = resolve_device(self.device)
        x, assets, _ = self._tensors(corpus, rows, device)
        return self.network_.to(device).probs(x, assets).double().cpu().numpy()

    def save(self, folder: Path) -> None:
        write_tensors(
            folder / MODEL_NAME, FORMAT, FORMAT_VERSION, {}, arrays_of(self.network_.state_dict())
        )

    def load(self, folder: Path) -> Self:
        try:
            _, arrays = read_tensors(folder / MODEL_NAME, FORMAT, FORMAT_VERSION)
            network = self._network(len(arrays["asset.weight"]))
            network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
        except (CheckpointError, KeyError, RuntimeError) as error:
            raise damaged_fit(folder / MODEL_NAME) from error
        self.network_ = network.eval()
        return self

    def _network(self, num_assets: int) -> Network:
        return Network(
            len(self.features.fields) - self.features.num_categories, num_assets, self.settings
        )

    def _tensors(
        self, corpus: Corpus, rows: Rows, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features without the metadata, ids of assets, classes."""
        features = self.features.of(corpus, rows)[:, : -self.features.num_categories]
        assets, buckets = (
            values.astype(np.int64) for values in (corpus.meta[rows, 0], corpus.target_return[rows])
        )
        arrays = (np.ascontiguousarray(features), assets, class_of(buckets))
        x_NF, asset_N, class_N = (torch.from_numpy(array).to(device) for array in arrays)
        return x_NF, asset_N, class_N
