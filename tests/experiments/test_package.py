"""A packaged model is its run in one small folder: the same forecasts, evaluations and card."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.command_line import Vaiom, listing, require_refusal
from forecast.forecast_runs import TinyRun, tiny_run
from strategies import random_bars
from vaiom.corpus.splits import VALIDATION
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.record import Evaluation
from vaiom.experiments.package import package
from vaiom.experiments.refit import fit_horizons
from vaiom.files import sha256_file
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_bars
from vaiom.run import Run, packaged_models


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run with everything that a package can hold but a dependence."""
    bars = {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}
    made = tiny_run(tmp_path_factory.mktemp("trained"), bars)
    fit_horizons(made.run, made.corpus, [4], device="cpu")
    evaluate_run(made.run, made.corpus, VALIDATION, device="cpu")
    return made


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packaged models in place of the package's own."""
    monkeypatch.setattr("vaiom.run.MODELS", tmp_path / "models")
    return tmp_path / "models"


def test_a_packaged_run_is_taken_by_name_and_forecasts_to_the_bit(
    trained: TinyRun, models: Path, vaiom: Vaiom
) -> None:
    words = ("--out", models, "--clock", "UTC", "--source", "a random walk")
    answer = vaiom("package", trained.run, "walk", *words, "--json").json()
    assert answer["path"] == str(models / "walk")
    assert packaged_models() == {"walk": models / "walk"}
    bars = read_bars(trained.bars)
    for horizon in (1, 4):
        before, after = (
            Forecaster.load(run).predict(bars, horizon=horizon) for run in (trained.run, "walk")
        )
        for symbol in bars:
            np.testing.assert_array_equal(before[symbol].probs, after[symbol].probs)
    (listed,) = vaiom("models", "--json").json()["models"]
    assert (listed["name"], listed["symbols"]) == ("walk", ["EURUSD", "XAUUSD"])
    card = vaiom("card", "walk").out
    assert "1h, UTC; a random walk" in card
    assert str(trained.run.parent) not in card


def test_a_package_holds_the_hash_of_each_file_and_no_path_of_the_machine(
    trained: TinyRun, tmp_path: Path
) -> None:
    folder = package(trained.run, "walk", tmp_path)
    about = json.loads(Run(folder).about.read_text())
    names = ["best.safetensors", "evaluation-validation.json", "horizons.safetensors"]
    assert list(about["files"]) == names
    assert all(sha256_file(folder / name) == about["files"][name] for name in names)
    assert about["bars"].keys() == {"EURUSD", "XAUUSD"}
    assert sorted(listing(folder)) == sorted([*names, "about.json"])
    evaluation = Evaluation.read(folder, VALIDATION)
    assert (evaluation.run, evaluation.corpus) == ("walk", "corpus")
    assert str(tmp_path.parent) not in (folder / "evaluation-validation.json").read_text()


@pytest.mark.parametrize("name", packaged_models())
def test_a_shipped_model_packages_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    assert listing(package(Path(name), name, tmp_path)) == listing(packaged_models()[name])


def test_what_cannot_be_packaged_says_why_and_leaves_nothing(
    trained: TinyRun, tmp_path: Path, vaiom: Vaiom
) -> None:
    out = tmp_path / "models"
    require_refusal(vaiom("package", trained.run, "../walk", "--out", out), "not a name")
    package(trained.run, "walk", out)
    require_refusal(vaiom("package", trained.run, "walk", "--out", out), "exists already")
    # Heads of another checkpoint.
    other = package(Path("fx-1h"), "other", tmp_path / "mixed")
    Run(other).horizons.write_bytes(Run(trained.run).horizons.read_bytes())
    require_refusal(vaiom("package", other, "mixed", "--out", out), "horizons")
    assert [path.name for path in out.iterdir()] == ["walk"]
