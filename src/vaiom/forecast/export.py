"""A checkpoint as an ONNX file that other runtimes load, checked before it is put in place.

Enters: a checkpoint and windows to check on. Leaves: one file with inputs `events` (batch, time, fields) float32 and
`meta` (batch, 3) int64 and the output `log_probs` (batch, 16); batch is free, time is anything up to the context.
Configuration, tokenizer and provenance travel in its metadata, so that `Forecaster.load` takes it as it is.
"""

from __future__ import annotations

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

from vaiom.errors import ConfigError, DataError, VaiomError
from vaiom.events.boundaries import under_splits
from vaiom.events.corpus import Corpus, open_corpus
from vaiom.events.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.files import write_bytes
from vaiom.forecast.engine import (
    TOLERANCE,
    Card,
    Events,
    Meta,
    OnnxEngine,
    TorchEngine,
    header_of,
    made_up_windows,
    onnx_library,
    probe_window,
)
from vaiom.forecast.forecaster import EXPORTED_SUFFIX
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.model.vaiom import Vaiom
from vaiom.training.loop import BEST_NAME, corpus_of_run
from vaiom.training.windows import model_inputs

_RANDOM_WINDOWS = 8
_REAL_WINDOWS = 32
_OPSET = 18


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and how far it lies from PyTorch."""

    file: Path
    bytes: int
    random_windows: int
    real_windows: int
    largest_difference: float
    """Of any probability on any of the windows."""


class LastPosition(nn.Module):
    """The part of a model that an exported file holds."""

    def __init__(self, model: Vaiom) -> None:
        super().__init__()
        self.model = model

    def forward(self, events: Tensor, meta: Tensor) -> Tensor:
        return self.model.log_probs(events, meta)


def export_run(run: Path, file: Path, corpus: Path | None = None) -> Exported:
    """Export the selected model of a run; real windows come from its corpus where that is still at hand."""
    checkpoint = load_checkpoint(run if run.is_file() else run / BEST_NAME)
    windows: list[tuple[Events, Meta]] = []
    if corpus is not None:
        windows = real_windows(open_corpus(corpus), checkpoint)
    elif not run.is_file():
        # A corpus that has moved on is no reason to refuse: the caller is told how many windows were compared.
        with suppress(DataError):
            windows = real_windows(open_corpus(corpus_of_run(run), verify=False), checkpoint)
    return export_onnx(checkpoint, file, windows)


def export_onnx(checkpoint: Checkpoint, file: Path, real: Sequence[tuple[Events, Meta]] = ()) -> Exported:
    """Write the file once ONNX Runtime gives PyTorch's answers on made-up and on the given windows."""
    if file.suffix != EXPORTED_SUFFIX:
        raise ConfigError("an exported file must be recognisable", expected=f"*{EXPORTED_SUFFIX}", got=file)
    data = exported_bytes(checkpoint)
    engine, reference = OnnxEngine(data), TorchEngine(checkpoint.model)
    made_up = random_windows(Card.of(checkpoint))
    worst = max(float(np.abs(engine.probs(*window) - reference.probs(*window)).max()) for window in [*made_up, *real])
    if not worst <= TOLERANCE:
        raise VaiomError(f"the exported model differs from PyTorch by {worst:.2g}; {TOLERANCE:g} is allowed")
    write_bytes(file, data)
    return Exported(
        file=file,
        bytes=len(data),
        random_windows=sum(len(events) for events, _ in made_up),
        real_windows=sum(len(events) for events, _ in real),
        largest_difference=worst,
    )


def exported_bytes(checkpoint: Checkpoint) -> bytes:
    """The content of the file, not yet checked."""
    if checkpoint.model.config.backbone != "decoder":
        raise ConfigError(
            "only decoders are exported: the exporter fixes the length of a recurrent model's windows",
            got=f"backbone={checkpoint.model.config.backbone}",
            fix="load the run folder itself",
        )
    card = Card.of(checkpoint)
    proto = _convert(checkpoint.model)
    [probe] = TorchEngine(checkpoint.model).probs(*probe_window(card))
    for key, value in header_of(card, probe).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    data: bytes = proto.SerializeToString()
    return data


def random_windows(card: Card) -> list[tuple[Events, Meta]]:
    """Made-up windows, together and one alone, of full and of short context."""
    events, meta = made_up_windows(card, _RANDOM_WINDOWS, seed=1)
    short = max(1, card.config.context // 3)
    return [(events, meta), (events[:1], meta[:1]), (np.ascontiguousarray(events[:, :short]), meta)]


def real_windows(corpus: Corpus, checkpoint: Checkpoint) -> list[tuple[Events, Meta]]:
    """Windows of Validation, or of Train where there are none, spread over the events."""
    config, origin = checkpoint.model.config, checkpoint.provenance
    if origin.purpose == USE:
        corpus = under_splits(corpus, SplitConfig.from_json(origin.splits))
    if corpus.tokenizer.sha256 != checkpoint.tokenizer.sha256:
        raise DataError("the corpus has another tokenizer than the model", where=corpus.path)
    rows = corpus.endpoints(VALIDATION, config.context)
    rows = rows if len(rows) else corpus.endpoints(TRAIN, config.context)
    if not len(rows):
        raise DataError("the corpus has no window of the model's context", where=corpus.path, expected=config.context)
    chosen = rows[np.linspace(0, len(rows) - 1, min(_REAL_WINDOWS, len(rows))).astype(np.int64)]
    inputs = model_inputs(corpus, config)
    events = [inputs[row + 1 - config.context : row + 1].astype(np.float32) for row in chosen]
    return [(np.stack(events), corpus.meta[chosen].astype(np.int64))]


def _convert(model: Vaiom) -> Any:
    onnx_library("onnx")
    onnx_library("onnxscript")
    config = model.config
    events = torch.zeros(2, config.context, len(config.input_fields))
    batch = torch.export.Dim("batch")
    time = torch.export.Dim("time", max=config.context)
    with _quiet_exporter():
        program = torch.onnx.export(
            LastPosition(model).eval(),
            (events, torch.zeros(2, 3, dtype=torch.int64)),
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
def _quiet_exporter() -> Iterator[None]:
    """The exporter talks of its own deprecations and skipped optimisations, which no user can act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
