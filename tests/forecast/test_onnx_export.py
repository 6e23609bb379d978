"""An exported file answers as PyTorch does, carries what a forecaster needs, and is refused when it
was changed.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from forecast_runs import CONTEXT, TinyRun, assert_same_forecast, untrained

from strategies import random_bars
from vaiom.errors import CheckpointError, ConfigError, DataError, VaiomError
from vaiom.files import sha256_of
from vaiom.forecast import export
from vaiom.forecast.backend import TOLERANCE, random_windows
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.onnx_backend import OnnxBackend
from vaiom.forecast.torch_backend import TorchBackend
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
    assert (made.file, made.random_windows, made.real_windows) == (file, 8 + 1 + 8, 32)
    assert made.bytes == file.stat().st_size
    return file


def test_it_forecasts_as_the_run_does(
    tiny: TinyRun, forecaster: Forecaster, exported: Path
) -> None:
    other = Forecaster.load(exported.parent, threads=1)
    assert {**other.describe(), "engine": "torch"} == forecaster.describe()
    bars = read_bars(tiny.bars) | {"SHORT": random_bars(30), "NEW": random_bars(400, 5)}
    theirs = other.predict(bars)
    for symbol, dist in forecaster.predict(bars).items():
        assert_same_forecast(theirs[symbol], dist)
        assert theirs[symbol].notes == dist.notes
    ours, theirs = (
        each.predict_all(random_bars(80, 7), "EURUSD").probs for each in (forecaster, other)
    )
    np.testing.assert_allclose(theirs, ours, atol=TOLERANCE)


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
    assert (model.opset_import[0].version, logging.root.manager.disable) == (18, logging.NOTSET)


@pytest.mark.parametrize("branch", ["hybrid", "disc"])
def test_made_up_windows_hold_values_that_a_model_may_meet(tiny: TinyRun, branch: str) -> None:
    card = untrained(tiny.corpus, input=branch, num_layers=1).card
    events, meta = random_windows(card, 40, seed=3)
    sizes = card.tokenizer.vocabulary_sizes
    names = card.config.input_fields
    assert (events.dtype, events.shape) == (np.float32, (40, CONTEXT, len(names)))
    if branch == "disc":
        np.testing.assert_array_equal(events.min(axis=(0, 1)), 0)
        np.testing.assert_array_equal(events.max(axis=(0, 1)) + 1, [sizes[name] for name in names])
    else:
        assert events.std() == pytest.approx(3, abs=0.05)
    assert set(meta[:, 0]) == set(range(sizes["asset_id"]))
    assert not meta[:, 1:].any()
    np.testing.assert_array_equal(random_windows(card, 40, seed=3)[0], events)


def test_threads_are_those_asked_for_and_only_during_a_pass(exported: Path, tiny: TinyRun) -> None:
    asked = [OnnxBackend(exported, threads).session.get_session_options() for threads in (None, 3)]
    assert [options.intra_op_num_threads for options in asked] == [0, 3]
    before, seen = torch.get_num_threads(), []
    forecaster = Forecaster.load(tiny.run, threads=before + 2)
    assert isinstance(forecaster.backend, TorchBackend)
    forecaster.backend.model.heads.register_forward_hook(
        lambda *_: seen.append(torch.get_num_threads())
    )
    forecaster.predict(random_bars(60), "EURUSD")
    assert ({*seen}, torch.get_num_threads()) == ({before + 2}, before)


def test_real_windows_are_those_of_the_corpus_that_is_named_or_found(
    tiny: TinyRun, simulated_world: TinyRun, tmp_path: Path
) -> None:
    """A corpus that has moved is no reason to refuse, one that is named and does not fit is."""
    alone = tmp_path / "run"
    alone.mkdir()
    (alone / "best.safetensors").write_bytes((tiny.run / "best.safetensors").read_bytes())
    file = tiny.run / "best.safetensors"
    for run, corpus, number in ((alone, None, 0), (file, None, 0), (alone, tiny.corpus.path, 32)):
        made = export.export_run(run, tmp_path / "m.onnx", corpus)
        assert made.real_windows == number
    with pytest.raises(DataError, match=r"another tokenizer[\s\S]*leave --corpus out"):
        export.export_run(tiny.run, tmp_path / "m.onnx", simulated_world.corpus.path)


def test_real_windows_are_spread_over_the_events(tiny: TinyRun) -> None:
    checkpoint = checkpoint_of(untrained(tiny.corpus, num_layers=1))
    [(events, meta)] = export.corpus_windows(tiny.corpus, checkpoint)
    rows = tiny.corpus.endpoints("validation", CONTEXT)
    inputs = tiny.corpus.inputs(checkpoint.config)
    for place in (0, -1):
        row = rows[place]
        np.testing.assert_array_equal(events[place], inputs[row - CONTEXT + 1 : row + 1])
        np.testing.assert_array_equal(meta[place], tiny.corpus.meta[row])
    assert (events.shape[:2], events.dtype, meta.dtype) == ((32, CONTEXT), np.float32, np.int64)
    longer = checkpoint_of(untrained(tiny.corpus, num_layers=1, context=1_500))
    with pytest.raises(DataError, match="no window"):
        export.corpus_windows(tiny.corpus, longer)


def checkpoint_of(forecaster: Forecaster) -> Checkpoint:
    assert isinstance(forecaster.backend, TorchBackend)
    return Checkpoint(**vars(forecaster.card), model=forecaster.backend.model)


def test_a_recurrent_model_is_refused(tiny: TinyRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only decoders"):
        export.export_onnx(
            checkpoint_of(untrained(tiny.corpus, backbone="gru")), tmp_path / "m.onnx"
        )


def test_a_discrete_model_exports_too(
    tiny: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forecaster = untrained(tiny.corpus, input="disc", num_layers=1)
    checkpoint = checkpoint_of(forecaster)
    export.export_onnx(
        checkpoint, tmp_path / "m.onnx", export.corpus_windows(tiny.corpus, checkpoint)
    )
    assert capsys.readouterr() == ("", "")
    bars = random_bars(100)
    np.testing.assert_allclose(
        Forecaster.load(tmp_path / "m.onnx").predict(bars, "EURUSD").probs,
        forecaster.predict(bars, "EURUSD").probs,
        atol=TOLERANCE,
    )


def test_a_model_that_answers_otherwise_is_not_written(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OnnxBackend.probs
    monkeypatch.setattr(OnnxBackend, "probs", lambda *a: real(*a) + 1e-5)
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
    elif how == "version":
        props = {each.key: each.value for each in model.metadata_props}
        text = props["vaiom"].replace('"format_version":1', '"format_version":2')
        onnx.helper.set_model_props(
            model, {"vaiom": text, "vaiom_sha256": sha256_of(text.encode())}
        )
    else:
        del model.metadata_props[:]
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("weights", "does not give"),
        ("header", "intact vaiom header"),
        ("version", "vaiom-onnx version 2"),
        ("foreign", "intact vaiom header"),
    ],
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
    with pytest.raises(CheckpointError, match="the run that it was exported from"):
        export.export_run(exported, tmp_path / "c.onnx")


def test_a_missing_library_names_its_extra(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"vaiom\[export\]"):
        Forecaster.load(exported)


def test_a_model_of_windowed_attention_is_exported_too(tiny: TinyRun) -> None:
    windowed = untrained(tiny.corpus, positions="rotary", attention_window=8, num_layers=3)
    contents = export.to_onnx(checkpoint_of(windowed))
    other = Forecaster(OnnxBackend(contents, 1), windowed.card)
    bars = random_bars(120, 7)
    history = windowed.predict_all(bars, "EURUSD")
    theirs = other.predict_all(bars, "EURUSD").probs
    np.testing.assert_allclose(theirs, history.probs, atol=TOLERANCE)
    for forecaster in (windowed, other):
        online = forecaster.online()
        for number, bar in enumerate(bars.iter_rows(named=True), start=1):
            dist = online.push("EURUSD", bar)
            if number >= MIN_BARS:
                assert_same_forecast(dist, history[number - MIN_BARS])
