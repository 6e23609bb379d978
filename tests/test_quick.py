"""Every room once, in seconds, with the tiny model that lies in the repository."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from cli.command_line import Vaiom
from serve.serve_runs import as_json, in_process
from tiny import Tiny, set_up
from training.tiny_runs import TINY
from vaiom import Forecaster, evaluate, fit_baselines, open_corpus, read_bars, simulate, train
from vaiom.model.checkpoint import load_model
from vaiom.serve.server import ServeConfig
from vaiom.simulation.oracle import Oracle

pytestmark = pytest.mark.quick
LATER = 3
"""Bars that are kept back and come one by one."""


@pytest.fixture(scope="module")
def tiny(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return set_up(tmp_path_factory.mktemp("tiny"))


def test_bars_are_simulated_checked_and_resampled(vaiom: Vaiom, tmp_path: Path) -> None:
    hours = simulate(tmp_path / "1h", assets=1, bars=1_000, faults_per_bar=0.0)
    assert vaiom("data", "check", tmp_path / "1h", "--json").json()["findings"] == []
    assert (
        vaiom("data", "resample", tmp_path / "1h", "--to", "1d", "--out", tmp_path / "1d").code == 0
    )
    [(symbol, days)] = read_bars(tmp_path / "1d").items()
    assert days["Volume"].sum() == pytest.approx(hours[symbol]["Volume"].sum())
    assert days["High"].max() == hours[symbol]["High"].max()


def test_the_stored_model_scores_as_it_did_when_it_was_trained(tiny: Tiny) -> None:
    """Simulation, features, corpus, model and evaluation together."""
    bits = evaluate(tiny.run, device="cpu").bits["model"]
    assert bits == pytest.approx(load_model(tiny.run).provenance.validation_bits, abs=1e-5)
    truth = Oracle.load(tiny.bars)
    corpus = open_corpus(tiny.corpus)
    rows = corpus.endpoints("validation", 16)
    probs = truth.predict_proba(corpus, rows)
    oracle = -np.log2(probs[np.arange(len(rows)), corpus.target_return[rows] - 1]).mean()
    frequency = fit_baselines(
        tiny.corpus, tiny.run.parent / "baselines", only=["frequency"], context=16
    )
    assert oracle < bits < frequency["frequency"]


def test_training_learns(tiny: Tiny, tmp_path: Path) -> None:
    experiment = TINY.with_changes(num_layers=1, steps=60, validate_every=60, log_every=20)
    losses = []
    train(tiny.corpus, tmp_path / "run", experiment=experiment, device="cpu", report=losses.append)
    assert losses[-1]["loss_nats"] < losses[0]["loss_nats"] - 0.1


def test_every_way_to_a_forecast_gives_the_same(vaiom: Vaiom, tiny: Tiny, tmp_path: Path) -> None:
    bars = read_bars(tiny.bars)
    symbol, frame = next(iter(bars.items()))
    forecaster = Forecaster.load(tiny.run)
    dist = forecaster.predict(frame, symbol)
    assert dist.cdf(dist.ppf(0.05)) == pytest.approx(0.05)
    np.testing.assert_allclose(
        forecaster.predict_all(frame, symbol).probs[-1], dist.probs, atol=1e-6
    )
    said = vaiom("predict", tiny.run, "--bars", tiny.bars, "--symbol", symbol, "--json").json()
    np.testing.assert_allclose(said["forecasts"][0]["probs"], dist.probs, atol=1e-6)


def test_an_honest_run_is_reported_and_passes_its_audit(vaiom: Vaiom, tiny: Tiny) -> None:
    assert vaiom("evaluate", tiny.run, "--json").code == 0
    assert vaiom("report", tiny.run).code == 0
    page = (tiny.run / "report.html").read_text()
    assert "bits" in page
    few = ("--cuts", 1, "--rare-cuts", 0, "--seed", 1)
    proofs = vaiom("audit", tiny.run, "--bars", tiny.bars, *few, "--json")
    assert proofs.code == 0, proofs.err


def test_pushed_bars_are_forecast_as_bars_in_a_folder_are(tiny: Tiny, tmp_path: Path) -> None:
    symbol, bars = next(iter(read_bars(tiny.bars).items()))
    bars = bars[-600:]
    config = ServeConfig(run=tiny.run, state=tmp_path / "state", threads=1)

    async def push() -> dict[str, object]:
        async with in_process(config) as (client, _):
            for some in (as_json(bars[:-LATER]), *([bar] for bar in as_json(bars[-LATER:]))):
                answer = await client.post(f"/v1/assets/{symbol}/bars", json={"bars": some})
                assert answer.status_code == 200, answer.text
            return (await client.get(f"/v1/assets/{symbol}/forecast")).json()

    said = asyncio.run(push())
    dist = Forecaster.load(tiny.run).predict(bars, symbol)
    np.testing.assert_allclose(said["probs"], dist.probs, atol=1e-6)


def test_packaged_models_have_cards(vaiom: Vaiom) -> None:
    names = [each["name"] for each in json.loads(vaiom("models", "--json").out)["models"]]
    assert names
    assert all(vaiom("card", name).code == 0 for name in names)
