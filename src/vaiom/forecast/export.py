"""Export a model to ONNX, for runtimes other than PyTorch.

Enters: a run. Leaves: the file that `vaiom.forecast.onnx_backend` describes, once ONNX Runtime
gives PyTorch's probabilities with it on random windows and on windows of the run's corpus.
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
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import EXTRAS, ConfigError, DataError, UserError, VaiomError, require_installed
from vaiom.files import write_bytes
from vaiom.forecast.backend import TOLERANCE, Events, Meta, random_windows
from vaiom.forecast.onnx_backend import SUFFIX, OnnxBackend, make_metadata, probe_window
from vaiom.forecast.torch_backend import TorchBackend
from vaiom.model.checkpoint import USE, Checkpoint, load_model
from vaiom.model.decoder import Decoder
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run, find_run

_NUM_RANDOM = 8
_NUM_REAL = 32
_OPSET = 18


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """An exported file, and how it was compared with PyTorch."""

    file: Path
    bytes: int
    random_windows: int
    """Number of windows with made-up values."""
    real_windows: int
    """Number of windows of a corpus."""
    largest_difference: float
    """From PyTorch's, of any probability on any window."""


class LastRowNetwork(nn.Module):
    """The part of a model that is exported: log probabilities (B, 16) after the last row."""

    def __init__(self, model: Vaiom) -> None:
        super().__init__()
        self.model = model

    def forward(self, events: Tensor, meta: Tensor) -> Tensor:
        return self.model.log_probs(events, meta)


def export_run(
    run: str | Path, file: str | Path, corpus: str | Path | None = None
) -> ExportedModel:
    """Export a run's selected model, compared on windows of `corpus` or of the run's own.

    A run's own corpus may have moved: then it is compared on random windows alone, and the result
    says so.
    """
    run = find_run(Path(run))
    checkpoint = load_model(run)
    windows = []
    if corpus is not None:
        windows = corpus_windows(open_corpus(Path(corpus)), checkpoint)
    elif not run.is_file():
        with suppress(UserError):
            own = open_corpus(Run(run).corpus_path(), verify=False)
            windows = corpus_windows(own, checkpoint)
    return export_onnx(checkpoint, Path(file), windows)


def export_onnx(
    checkpoint: Checkpoint, file: Path, real: Sequence[tuple[Events, Meta]] = ()
) -> ExportedModel:
    """Write the file once ONNX Runtime agrees with PyTorch on random and on `real` windows."""
    if file.suffix != SUFFIX:
        expected = f"*{SUFFIX}"
        raise ConfigError("an exported file must be recognisable", expected=expected, got=file)
    contents = to_onnx(checkpoint)
    exported = OnnxBackend(contents)
    reference = TorchBackend(checkpoint.model)
    events, meta = random_windows(checkpoint, _NUM_RANDOM, seed=1)
    short = np.ascontiguousarray(events[:, : max(1, events.shape[1] // 3)])
    made_up = [(events, meta), (events[:1], meta[:1]), (short, meta)]
    largest = 0.0
    for window in [*made_up, *real]:
        difference = np.abs(exported.probs(*window) - reference.probs(*window)).max()
        largest = np.maximum(largest, difference)  # NaN stays NaN
    if not largest <= TOLERANCE:
        allowed = f"{TOLERANCE:g} is allowed"
        raise VaiomError(f"the exported model differs from PyTorch by {largest:.2g}; {allowed}")
    write_bytes(file, contents)
    return ExportedModel(
        file=file,
        bytes=len(contents),
        random_windows=sum(len(events) for events, _ in made_up),
        real_windows=sum(len(events) for events, _ in real),
        largest_difference=float(largest),
    )


def to_onnx(checkpoint: Checkpoint) -> bytes:
    """The contents of the exported file, not yet compared with PyTorch."""
    config = checkpoint.config
    if config.backbone != "decoder":
        raise ConfigError(
            "only decoders are exported: the exporter fixes the length of a recurrent model's "
            "windows",
            got=f"backbone={config.backbone}",
            fix="load the run folder itself",
        )
    require_installed(*EXTRAS["export"])
    import onnx

    with _silent_exporter():
        proto = _convert(checkpoint.model)
    [probe] = TorchBackend(checkpoint.model).probs(*probe_window(checkpoint))
    header = {
        "model": to_json(config),
        "tokenizer": checkpoint.tokenizer.to_json(),
        "provenance": to_json(checkpoint.provenance),
        "tensors_sha256": checkpoint.sha256,
    }
    onnx.helper.set_model_props(proto, make_metadata(header, probe))
    return bytes(proto.SerializeToString())


def corpus_windows(corpus: Corpus, checkpoint: Checkpoint) -> list[tuple[Events, Meta]]:
    """Windows spread over the events of Validation, or of Train if Validation is empty."""
    config = checkpoint.config
    origin = checkpoint.provenance
    if origin.purpose == USE:
        corpus = corpus.with_splits(SplitConfig.from_json(origin.splits))
    if corpus.tokenizer.sha256 != checkpoint.tokenizer.sha256:
        fix = "name the corpus that it was trained on, or leave --corpus out"
        problem = "the corpus has another tokenizer than the model"
        raise DataError(problem, where=corpus.path, fix=fix)
    rows = corpus.endpoints(VALIDATION, config.context)
    if not len(rows):
        rows = corpus.endpoints(TRAIN, config.context)
    if not len(rows):
        problem = "the corpus has no window of the model's context"
        raise DataError(problem, where=corpus.path, expected=config.context)
    places = np.linspace(0, len(rows) - 1, min(_NUM_REAL, len(rows))).astype(np.int64)
    chosen = rows[places]
    inputs = corpus.inputs(config)
    events = [inputs[row + 1 - config.context : row + 1] for row in chosen]
    return [(np.stack(events).astype(np.float32), corpus.meta[chosen].astype(np.int64))]


def _convert(model: Vaiom) -> Any:
    """The model as an ONNX graph, for any batch and any time up to the context."""
    config = model.config
    model = copy.deepcopy(model)
    if isinstance(model.backbone, Decoder) and config.attention_window:
        model.backbone.accept_any_length()
    events = torch.zeros(2, config.context, len(config.input_fields))
    meta = torch.zeros(2, 3, dtype=torch.int64)
    batch = torch.export.Dim("batch")
    time = torch.export.Dim("time", max=config.context)
    program = torch.onnx.export(
        LastRowNetwork(model).eval(),
        (events, meta),
        dynamo=True,
        verbose=False,
        opset_version=_OPSET,
        input_names=["events", "meta"],
        output_names=["log_probs"],
        dynamic_shapes={"events": {0: batch, 1: time}, "meta": {0: batch}},
    )
    assert program is not None
    return program.model_proto


@contextmanager
def _silent_exporter() -> Iterator[None]:
    """Without the exporter's warnings of its own deprecations and skipped optimisations, about
    which no user can do anything.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
