"""A checkpoint tells everything about itself, comes back to the bit, and is refused when anything
about it is wrong.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file
from small_models import TINY, events

from vaiom.codec import to_json
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.tokenizer import Tokenizer, fit_shape
from vaiom.errors import CheckpointError
from vaiom.files import canonical_json, sha256_of
from vaiom.model.checkpoint import Provenance, load_checkpoint, load_model, save_checkpoint
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run

TOKENIZER = Tokenizer(
    symbols=("AUDUSD", "EURUSD", "XAUUSD"),
    classes=("FX", "FX", "SPOT"),
    timeframe="1h",
    edges={
        name: np.array([-np.inf, *np.linspace(-2, 2, buckets - 1), np.inf])
        for name, buckets in (("return", 16), ("gap", 14), ("vol_regime", 5))
    },
    zero_share=(0.01, 0.02, 0.0),
    return_shape=fit_shape(np.array([-np.inf, *np.linspace(-2, 2, 15), np.inf]), np.empty(0)),
)
PROVENANCE = Provenance(
    vaiom_version="0.0",
    corpus_sha256="c0",
    inputs=[{"symbol": "AUDUSD", "sha256": "ab"}],
    splits={"train_end": "2024-01-01T00:00:00"},
    experiment="tiny",
    train={"learning_rate": 1e-3},
    seed=17,
    step=42,
    validation_bits=3.25,
)


def model_of(input_: str) -> Vaiom:
    torch.manual_seed(3)
    return Vaiom(ModelConfig(input=input_, **TINY), TOKENIZER.vocabulary_sizes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "model.safetensors"
    save_checkpoint(path, model_of("hybrid"), TOKENIZER, PROVENANCE)
    return path


def header_of(path: Path) -> dict[str, object]:
    """Read as a stranger would: eight bytes of length, JSON, tensors."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, object] = json.loads(
        json.loads(data[8 : 8 + length])["__metadata__"]["vaiom"]
    )
    return header


@pytest.mark.parametrize("input_", ["disc", "cont", "hybrid"])
def test_a_round_trip_is_exact_and_draws_no_random_number(input_: str, tmp_path: Path) -> None:
    model = model_of(input_).eval()
    digest = save_checkpoint(tmp_path / "model.safetensors", model, TOKENIZER, PROVENANCE)
    torch.manual_seed(8)
    loaded = load_checkpoint(tmp_path / "model.safetensors")
    after = torch.rand(1)
    torch.manual_seed(8)
    assert torch.equal(after, torch.rand(1))
    x, meta = events(model, 2, 9)
    for name, values in model(x, meta).items():
        assert torch.equal(loaded.model(x, meta)[name], values)
    assert loaded.sha256 == digest
    assert loaded.provenance == PROVENANCE
    assert loaded.tokenizer.sha256 == TOKENIZER.sha256
    assert loaded.model.config == model.config
    assert not loaded.model.training
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())


@given(data=st.data())
def test_a_changed_byte_anywhere_is_noticed(
    data: st.DataObject, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    altered = bytearray(saved.read_bytes())
    (header,) = struct.unpack("<Q", altered[:8])
    inside = data.draw(st.sampled_from([(0, 8), (8, 8 + header), (8 + header, len(altered))]))
    altered[data.draw(st.integers(inside[0], inside[1] - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("altered") / "model.safetensors"
    path.write_bytes(altered)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


@pytest.mark.parametrize("size", [0, 7, 8, 500, -1])
def test_a_truncated_file_is_refused(saved: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="truncated"):
        load_checkpoint(path)


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_in_disguise_is_refused_and_never_opened(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "model.safetensors"
    torch.save({"weight": Bomb(tmp_path / "trace")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="not safetensors"):
        load_checkpoint(path)
    assert not (tmp_path / "trace").exists()
    torch.load(path.rename(tmp_path / "model.pt"), weights_only=False)  # the bomb is real
    assert (tmp_path / "trace").exists()


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path)
    for metadata in (None, {"vaiom": "not json"}, {"vaiom": "[1, 2]"}, {"vaiom": "3"}):
        save_file({"weight": torch.zeros(2)}, path, metadata)
        with pytest.raises(CheckpointError, match="without a vaiom header"):
            load_checkpoint(path)


def rewritten(saved: Path, path: Path, **changes: object) -> Path:
    """The same file with another header, hashed again: damage that no checksum can see."""
    header = {**header_of(saved), **changes}
    text = canonical_json(header)
    path.write_bytes(
        save(load_file(saved), {"vaiom": text.decode(), "vaiom_sha256": sha256_of(text)})
    )
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 3}, "version 3"),
        ({"format": "vaiom-training-state"}, "vaiom-training-state"),
        ({"model": {"input": "tokens", "auxiliaries": []}}, "input must be one of"),
        ({"model": {"inputs": "disc", "auxiliaries": []}}, "unknown key inputs"),
        ({"model": to_json(ModelConfig(**(TINY | {"width": 32})))}, "do not describe a model"),
        ({"provenance": {"step": 3}}, "do not describe a model"),
        ({"tokenizer": {"version": 9}}, "tokenizer of another version"),
    ],
)
def test_another_schema_is_refused(
    saved: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(rewritten(saved, tmp_path / "model.safetensors", **changes))
    assert caught.value.fix


def test_a_model_is_loaded_from_its_file_or_its_run(saved: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    best = Run(run).best
    best.write_bytes(saved.read_bytes())
    assert load_model(run).sha256 == load_model(str(saved)).sha256 == load_checkpoint(saved).sha256


def test_a_card_says_how_other_bars_are_prepared_for_the_model(saved: Path, tmp_path: Path) -> None:
    provenance = {**to_json(PROVENANCE), "splits": SplitConfig().to_json()}
    card = load_checkpoint(rewritten(saved, tmp_path / "model.safetensors", provenance=provenance))
    assert card.corpus_options() == {
        "like": card.tokenizer,
        "timeframe": "1h",
        "splits": SplitConfig(),
    }


def test_tensors_begin_at_a_multiple_of_eight_bytes(saved: Path) -> None:
    data = saved.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    described = data[8 : 8 + length].rstrip(b" ")
    assert described == canonical_json(json.loads(described))
    assert length - len(described) < 8


def test_a_rewritten_header_alone_is_not_an_error(saved: Path, tmp_path: Path) -> None:
    load_checkpoint(rewritten(saved, tmp_path / "model.safetensors"))


def test_saving_leaves_a_whole_file_or_none(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path / "model.safetensors", model_of("cont"), TOKENIZER, PROVENANCE)
    assert list(tmp_path.iterdir()) == []
