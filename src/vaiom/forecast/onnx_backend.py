"""The backend in ONNX Runtime, on CPUs, for files that `vaiom export` wrote.

The file has inputs `events` (batch, time, fields) float32 and `meta` (batch, 3) int64 and the
output `log_probs` (batch, 16), with any batch size and any time up to the context. Its metadata
hold the header of a checkpoint and the probabilities of one known window.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.errors import CheckpointError, DataError, require_installed
from vaiom.files import canonical_json, sha256_of
from vaiom.forecast.backend import (
    TOLERANCE,
    Backend,
    Events,
    Meta,
    Probabilities,
    normalise,
    random_windows,
)
from vaiom.model.checkpoint import ModelCard, read_card

SUFFIX = ".onnx"
FORMAT = "vaiom-onnx"
FORMAT_VERSION = 1

_PROBE_SEED = 0


class OnnxBackend(Backend):
    """An exported network in ONNX Runtime, on CPUs."""

    name = "onnxruntime"

    def __init__(self, model: Path | bytes, threads: int | None = None) -> None:
        require_installed("onnxruntime")
        import onnxruntime as runtime

        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0  # 0: the runtime's choice
        source = model if isinstance(model, bytes) else str(model)
        self.session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def probs(self, events: Events, meta: Meta, horizon: int = 1) -> Probabilities:
        assert horizon == 1
        [log_probs] = self.session.run(["log_probs"], {"events": events, "meta": meta})
        return normalise(log_probs.astype(np.float64))


def make_metadata(contents: dict[str, Any], probe: Probabilities) -> dict[str, str]:
    """The metadata of an exported file: the header of its checkpoint, with a hash.

    `probe` (16,) are the probabilities after the `probe_window` of the model.
    """
    about = {"format": FORMAT, "format_version": FORMAT_VERSION, "probe": probe.tolist()}
    text = canonical_json({**about, **contents})
    return {"vaiom": text.decode(), "vaiom_sha256": sha256_of(text)}


def probe_window(card: ModelCard) -> tuple[Events, Meta]:
    """The window whose probabilities an exported file holds, (1, context, F) and (1, 3)."""
    return random_windows(card, 1, _PROBE_SEED)


def open_exported(path: Path, threads: int | None = None) -> tuple[OnnxBackend, ModelCard]:
    """Load an exported file; it must give the probabilities that it holds."""
    require_installed("onnxruntime")
    try:
        backend = OnnxBackend(path, threads)
    except Exception as error:  # the runtime's errors share no other base
        raise CheckpointError(
            "not readable as an ONNX model",
            where=path,
            got=str(error).splitlines()[0],
            fix="export it again",
        ) from error
    card, probe = _read_metadata(path, backend.session.get_modelmeta().custom_metadata_map)
    difference = np.abs(backend.probs(*probe_window(card)) - probe).max()
    if not difference <= TOLERANCE:
        raise CheckpointError(
            "the model does not give the probabilities that it gave when it was exported",
            where=path,
            expected=f"probabilities within {TOLERANCE:g}",
            got=f"a difference of {difference:.2g}",
            fix="export it again",
        )
    return backend, card


def _read_metadata(path: Path, metadata: dict[str, str]) -> tuple[ModelCard, Probabilities]:
    """The model card and the probabilities (16,) of the probe window."""
    try:
        text = metadata.get("vaiom", "")
        if not text or sha256_of(text.encode()) != metadata.get("vaiom_sha256"):
            raise ValueError("an ONNX model without an intact vaiom header")
        header = json.loads(text)
        if (header["format"], header["format_version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"{header['format']} version {header['format_version']}")
        return read_card(header, path), np.array(header["probe"], np.float64)
    except (KeyError, TypeError, ValueError, DataError) as error:
        raise CheckpointError(
            "a file of another kind or schema",
            where=path,
            expected=f"{FORMAT} version {FORMAT_VERSION}",
            got=str(error).splitlines()[0],
            fix="export the run again with this version of vaiom",
        ) from error
