"""The PyTorch backend, and the export of a model to ONNX.

The file has inputs `events` (batch, time, fields) float32 and `meta` (batch, 3) int64 and the
output `log_probs` (batch, 16), with any batch size and any time up to the context; its metadata are
those of a checkpoint.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaiom.codec import to_json
from vaiom.corpus.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus, open_corpus, under_splits
from vaiom.errors import EXTRAS, ConfigError, DataError, UserError, VaiomError, require_installed
from vaiom.files import canonical_json, sha256_of, write_bytes
from vaiom.forecast import backend as backends
from vaiom.forecast.backend import Backend, Events, Meta, Probabilities
from vaiom.model.checkpoint import USE, Checkpoint, load_model
from vaiom.model.decoder import Decoder
from vaiom.model.heads import return_log_probs
from vaiom.model.horizon_heads import HorizonHeads
from vaiom.model.incremental import IncrementalDecoder
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run, find_run
from vaiom.training.devices import resolve_device

_STRETCH = 4_096
"""Rows of a history per pass through a model with windowed attention, beside their run-up."""
_REAL_WINDOWS = 32


class TorchBackend(Backend):
    """A network in PyTorch, on any device."""

    name = "torch"

    def __init__(
        self,
        model: Vaiom,
        device: str = "cpu",
        threads: int | None = None,
        horizons: HorizonHeads | None = None,
    ) -> None:
        self.device = resolve_device(device)
        self.horizons = horizons
        self.model = model.to(self.device).eval()
        self.threads = threads
        self.decoder = IncrementalDecoder.of(model) if model.config.attention_window else None

    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        return np.asarray(self._probs(events, meta, horizon, last_only=True)[:, -1])

    def probs_of_prefixes(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        # The decoder is causal, so one pass covers every prefix.
        return np.asarray(self._probs(events[None], meta[None], horizon, last_only=False)[0])

    def probs_after_each(
        self, events: Events, meta: Meta, context: int, horizon: int = 1
    ) -> Probabilities:
        if not self.model.config.attention_window:
            return super().probs_after_each(events, meta, context, horizon)
        probs, run_up = [], self.model.config.receptive_field - 1
        for start in range(0, len(events), _STRETCH):
            first = max(0, start - run_up)
            probs.append(
                self.probs_of_prefixes(events[first : start + _STRETCH], meta, horizon)[
                    start - first :
                ]
            )
        return np.concatenate(probs)

    def _probs(self, events: Events, meta: Meta, horizon: int, *, last_only: bool) -> Probabilities:
        """(B, T, 16), or (B, 1, 16) of the last position."""
        with torch.inference_mode(), _threads(self.threads):
            x_BTF, meta_BM = (torch.from_numpy(each).to(self.device) for each in (events, meta))
            hidden = self.model.hidden(x_BTF, meta_BM, last_only)
            if horizon == 1:
                return backends.normalise(
                    return_log_probs(self.model.heads(hidden)).double().cpu().numpy()
                )
            assert self.horizons
            return self.horizons.probs(
                hidden.float().cpu().numpy(), events[:, -hidden.shape[1] :], horizon
            )


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The exported file, and the largest difference of any probability from PyTorch's on any
    window.
    """

    file: Path
    bytes: int
    random_windows: int
    real_windows: int
    largest_difference: float


class LastPosition(nn.Module):
    """The exported part of a model."""

    def __init__(self, model: Vaiom) -> None:
        super().__init__()
        self.model = model

    def forward(self, events: Tensor, meta: Tensor) -> Tensor:
        return self.model.log_probs(events, meta)


def export_run(run: str | Path, file: str | Path, corpus: str | Path | None = None) -> Exported:
    """Export a run's selected model, tested on real windows of its corpus if that still exists."""
    run, windows = find_run(Path(run)), []
    checkpoint = load_model(run)
    if corpus is not None:
        windows = real_windows(open_corpus(Path(corpus)), checkpoint)
    elif not run.is_file():
        # A corpus that has moved is no reason to refuse: the caller is told how many windows were
        # compared.
        with suppress(UserError):
            windows = real_windows(open_corpus(Run(run).corpus_path(), verify=False), checkpoint)
    return export_onnx(checkpoint, Path(file), windows)


def export_onnx(
    checkpoint: Checkpoint, file: Path, real: Sequence[tuple[Events, Meta]] = ()
) -> Exported:
    """Write the file once ONNX Runtime reproduces PyTorch on random and given windows."""
    if file.suffix != backends.EXPORTED_SUFFIX:
        raise ConfigError(
            "an exported file must be recognisable",
            expected=f"*{backends.EXPORTED_SUFFIX}",
            got=file,
        )
    data = exported_bytes(checkpoint)
    backend, reference = backends.OnnxBackend(data), TorchBackend(checkpoint.model)
    events, meta = backends.random_windows(checkpoint, 8, backends.PROBE_SEED + 1)
    short = np.ascontiguousarray(events[:, : max(1, events.shape[1] // 3)])
    made_up = [(events, meta), (events[:1], meta[:1]), (short, meta)]
    worst = max(
        float(np.abs(backend.probs(*window) - reference.probs(*window)).max())
        for window in [*made_up, *real]
    )
    if not worst <= backends.TOLERANCE:
        raise VaiomError(
            f"the exported model differs from PyTorch by {worst:.2g}; {backends.TOLERANCE:g} is "
            f"allowed"
        )
    write_bytes(file, data)
    return Exported(
        file=file,
        bytes=len(data),
        random_windows=sum(len(events) for events, _ in made_up),
        real_windows=sum(len(events) for events, _ in real),
        largest_difference=worst,
    )


def exported_bytes(checkpoint: Checkpoint) -> bytes:
    """The file's content, not yet verified."""
    if checkpoint.config.backbone != "decoder":
        problem = (
            "only decoders are exported: the exporter fixes the length of a recurrent "
            "model's windows"
        )
        got = f"backbone={checkpoint.config.backbone}"
        raise ConfigError(problem, got=got, fix="load the run folder itself")
    proto = _convert(checkpoint.model)
    [probe] = TorchBackend(checkpoint.model).probs(
        *backends.random_windows(checkpoint, 1, backends.PROBE_SEED)
    )
    header = {
        "format": backends.FORMAT,
        "format_version": backends.FORMAT_VERSION,
        "model": to_json(checkpoint.config),
        "tokenizer": checkpoint.tokenizer.to_json(),
        "provenance": to_json(checkpoint.provenance),
        "tensors_sha256": checkpoint.sha256,
        "probe": probe.tolist(),
    }
    text = canonical_json(header)
    import onnx

    onnx.helper.set_model_props(proto, {"vaiom": text.decode(), "vaiom_sha256": sha256_of(text)})
    return bytes(proto.SerializeToString())


def real_windows(corpus: Corpus, checkpoint: Checkpoint) -> list[tuple[Events, Meta]]:
    """Windows of Validation, or of Train if it is empty, spread over the events."""
    config, origin = checkpoint.config, checkpoint.provenance
    if origin.purpose == USE:
        corpus = under_splits(corpus, SplitConfig.from_json(origin.splits))
    if corpus.tokenizer.sha256 != checkpoint.tokenizer.sha256:
        fix = "name the corpus that it was trained on, or leave --corpus out"
        raise DataError(
            "the corpus has another tokenizer than the model", where=corpus.path, fix=fix
        )
    rows = corpus.endpoints(VALIDATION, config.context)
    rows = rows if len(rows) else corpus.endpoints(TRAIN, config.context)
    if not len(rows):
        raise DataError(
            "the corpus has no window of the model's context",
            where=corpus.path,
            expected=config.context,
        )
    chosen = rows[np.linspace(0, len(rows) - 1, min(_REAL_WINDOWS, len(rows))).astype(np.int64)]
    inputs = corpus.inputs(config)
    events = [inputs[row + 1 - config.context : row + 1].astype(np.float32) for row in chosen]
    return [(np.stack(events), corpus.meta[chosen].astype(np.int64))]


def _convert(model: Vaiom) -> Any:
    require_installed(*EXTRAS["export"])
    config, model = model.config, copy.deepcopy(model)
    if isinstance(model.backbone, Decoder) and config.attention_window:
        model.backbone.accept_any_length()
    events = torch.zeros(2, config.context, len(config.input_fields))
    batch = torch.export.Dim("batch")
    time = torch.export.Dim("time", max=config.context)
    # The exporter warns of its own deprecations and skipped optimisations, which no user can act
    # on.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                LastPosition(model).eval(),
                (events, torch.zeros(2, 3, dtype=torch.int64)),
                dynamo=True,
                verbose=False,
                opset_version=18,
                input_names=["events", "meta"],
                output_names=["log_probs"],
                dynamic_shapes={"events": {0: batch, 1: time}, "meta": {0: batch}},
            )
    finally:
        logging.disable(before)
    assert program is not None
    return program.model_proto


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Set PyTorch's thread count, which is global to the process, for one pass."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
