"""An exported file answers as PyTorch does, carries what a forecaster needs, and is refused when it was changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forecast_runs import TinyRun, untrained

from strategies import random_bars
from vaiom.errors import CheckpointError, ConfigError, VaiomError
from vaiom.forecast import torch_engine as export
from vaiom.forecast.engine import TOLERANCE, OnnxEngine
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.torch_engine import TorchEngine
from vaiom.market.folder import read_bars
from vaiom.model.checkpoint import Checkpoint

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def exported(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "model.onnx"
    made = export.export_run(tiny.run, file)
    assert made.largest_difference <= TOLERANCE
    assert made.real_windows == 32
    assert made.bytes == file.stat().st_size
    return file


def test_it_forecasts_as_the_run_does(tiny: TinyRun, forecaster: Forecaster, exported: Path) -> None:
    other = Forecaster.load(exported.parent, threads=1)
    assert {**other.describe(), "engine": "torch"} == forecaster.describe()
    bars = read_bars(tiny.bars) | {"SHORT": random_bars(30), "NEW": random_bars(400, 5)}
    theirs = other.predict(bars)
    for symbol, dist in forecaster.predict(bars).items():
        np.testing.assert_allclose(theirs[symbol].probs, dist.probs, atol=TOLERANCE)
        assert theirs[symbol].to_dict()["notes"] == dist.to_dict()["notes"]
    history = random_bars(80, 7)
    np.testing.assert_allclose(
        other.predict_all(history, "EURUSD").probs, forecaster.predict_all(history, "EURUSD").probs, atol=TOLERANCE
    )


def test_the_file_is_what_other_runtimes_expect(exported: Path) -> None:
    model = onnx.load(exported)
    onnx.checker.check_model(model)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes["events"][2] == 25
    assert isinstance(shapes["events"][0], str)
    assert shapes["meta"][1] == 3
    assert shapes["log_probs"][1] == 16


def checkpoint_of(forecaster: Forecaster) -> Checkpoint:
    assert isinstance(forecaster.engine, TorchEngine)
    return Checkpoint(**vars(forecaster.card), model=forecaster.engine.model)


def test_a_recurrent_model_is_refused(tiny: TinyRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only decoders"):
        export.export_onnx(checkpoint_of(untrained(tiny.corpus, backbone="gru")), tmp_path / "m.onnx")


def test_a_discrete_model_exports_too(tiny: TinyRun, tmp_path: Path) -> None:
    forecaster = untrained(tiny.corpus, input="disc", num_layers=1)
    checkpoint = checkpoint_of(forecaster)
    export.export_onnx(checkpoint, tmp_path / "m.onnx", export.real_windows(tiny.corpus, checkpoint))
    bars = random_bars(100)
    np.testing.assert_allclose(
        Forecaster.load(tmp_path / "m.onnx").predict(bars, "EURUSD").probs,
        forecaster.predict(bars, "EURUSD").probs,
        atol=TOLERANCE,
    )


def test_a_model_that_answers_otherwise_is_not_written(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OnnxEngine.probs
    monkeypatch.setattr(OnnxEngine, "probs", lambda *a: real(*a) + 1e-5)
    with pytest.raises(VaiomError, match="differs from PyTorch"):
        export.export_run(tiny.run, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def damaged(exported: Path, how: str) -> bytes:
    model = onnx.load(exported)
    if how == "weights":
        tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        values = onnx.numpy_helper.to_array(tensor).copy()
        values *= 1.2
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    elif how == "header":
        model.metadata_props[0].value = model.metadata_props[0].value.replace("EURUSD", "EURGBP")
    else:
        del model.metadata_props[:]
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("how", "words"),
    [("weights", "does not answer"), ("header", "intact vaiom header"), ("foreign", "intact vaiom header")],
)
def test_a_changed_file_is_refused(exported: Path, tmp_path: Path, how: str, words: str) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(damaged(exported, how))
    with pytest.raises(CheckpointError, match=words):
        Forecaster.load(file)


def test_what_is_no_model_at_all_is_refused(exported: Path, tiny: TinyRun, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="not readable"):
        Forecaster.load(tmp_path)
    (tmp_path / "b.onnx").write_bytes(exported.read_bytes())
    with pytest.raises(CheckpointError, match="2 exported files"):
        Forecaster.load(tmp_path)
    with pytest.raises(ConfigError, match="run on CPUs"):
        Forecaster.load(exported, device="cuda")
    with pytest.raises(ConfigError, match="recognisable"):
        export.export_run(tiny.run, tmp_path / "model.bin")


def test_a_missing_library_names_its_extra(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"vaiom\[export\]"):
        Forecaster.load(exported)


def test_a_model_of_windowed_attention_is_exported_too(tiny: TinyRun) -> None:
    windowed = untrained(tiny.corpus, positions="rotary", attention_window=8, num_layers=3)
    assert isinstance(windowed.engine, TorchEngine)
    other = Forecaster(OnnxEngine(export._convert(windowed.engine.model).SerializeToString(), 1), windowed.card)
    bars = random_bars(120, 7)
    ours, theirs = (each.predict_all(bars, "EURUSD").probs for each in (windowed, other))
    np.testing.assert_allclose(theirs, ours, atol=TOLERANCE)
    live, slow = windowed.online(), other.online()
    for bar in bars.iter_rows(named=True):
        one, two = live.push("EURUSD", bar), slow.push("EURUSD", bar)
        assert one is two is None or np.abs(one.probs - two.probs).max() <= TOLERANCE
