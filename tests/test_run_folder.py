"""A run folder: names of its files, its configuration, its training log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vaiom.errors import ConfigError, DataError
from vaiom.run import DEFAULT_MODEL, EVIDENCE_SUFFIX, Run, find_run, packaged_models


def test_files_lie_where_the_contract_says(tmp_path: Path) -> None:
    run = Run(tmp_path)
    files = [run.config, run.metrics, run.best, run.report, run.checkpoint(7), run.state(7)]
    files += [run.evaluation("test-h1"), run.events("test-h1"), run.events("test-h1", ".npz")]
    files += [run.start, run.horizons, run.dependence, run.about, run.forecasts, run.teachers]
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "config.toml",
        "metrics.jsonl",
        "best.safetensors",
        "report.html",
        "checkpoints/step-0000007.safetensors",
        "checkpoints/step-0000007.state.safetensors",
        "evaluation-test-h1.json",
        "events-test-h1.parquet",
        "events-test-h1.npz",
        "start.safetensors",
        "horizons.safetensors",
        "dependence.json",
        "about.json",
        "forecasts",
        "teachers",
    ]


def test_saved_steps_are_found_by_their_states(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.saved_steps() == []
    run.checkpoints.mkdir()
    for step in (200, 100):
        run.state(step).touch()
    run.checkpoint(300).touch()
    (run.checkpoints / "step-best.state.safetensors").touch()
    assert run.saved_steps() == [100, 200]


def test_evaluated_splits_are_found_by_their_files(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for split in ("validation", "test-h1"):
        run.evaluation(split).touch()
    run.events("train").touch()
    assert run.evaluated_splits() == ["test-h1", "validation"]


def test_a_folder_comes_before_a_packaged_model_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = packaged_models()
    assert {DEFAULT_MODEL, DEFAULT_MODEL + EVIDENCE_SUFFIX} <= models.keys()
    assert list(models) == sorted(models)
    assert all(path.name == name and Run(path).best.is_file() for name, path in models.items())
    monkeypatch.chdir(tmp_path)
    assert find_run(Path(DEFAULT_MODEL)) == models[DEFAULT_MODEL]
    assert find_run(Path("nowhere")) == Path("nowhere")
    Path(DEFAULT_MODEL).mkdir()
    assert find_run(Path(DEFAULT_MODEL)) == Path(DEFAULT_MODEL)


def test_the_configuration_says_where_the_corpus_is(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert not run.exists
    with pytest.raises(DataError, match="not a run folder"):
        run.read_config()
    run.teachers.mkdir()
    assert run.exists
    run.teachers.rmdir()
    run.config.write_text('[corpus]\npath = "/data/corpus"\n')
    assert run.exists
    assert run.corpus_path() == Path("/data/corpus")
    for text in ("[corpus]\n", "corpus = 1\n", "[", "[corpus]\npath = 3\n"):
        run.config.write_text(text)
        with pytest.raises(ConfigError, match="where its corpus is"):
            run.corpus_path()


def test_the_log_without_its_torn_last_line(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.read_metrics() == []
    entries = [
        {"step": 1},
        {"step": 2, "validation_bits": 3.5},
        {"step": 3, "validation_bits": 3.25},
    ]
    run.metrics.write_text(
        "".join(json.dumps(entry) + "\n" for entry in entries) + '{"step": 4, "val'
    )
    assert run.read_metrics() == entries
    assert run.validation_bits() == {2: 3.5, 3: 3.25}
    run.trim_metrics(2)
    assert run.metrics.read_text() == '{"step": 1}\n{"step": 2, "validation_bits": 3.5}\n'


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": "1"}', "[" * 100_000])
def test_a_damaged_log_is_refused(tmp_path: Path, line: str) -> None:
    run = Run(tmp_path)
    run.metrics.write_text(line + "\n")
    with pytest.raises(DataError, match="training log is damaged"):
        run.read_metrics()
