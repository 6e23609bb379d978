"""Forecasts of more bars than the next: batch, history and stream agree, and the next bar's stay
what they were.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from forecast_runs import TinyRun, tiny_run

from strategies import random_bars
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.experiments.refit import fit_horizons
from vaiom.features.inputs import inputs_of
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import PRICE_COLUMNS
from vaiom.model.checkpoint import load_checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import Run
from vaiom.simulation.market import MarketConfig, simulate

HORIZONS = (4, 8)


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run whose layers see a window of rows, with heads for two horizons."""
    bars = {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}
    run = tiny_run(tmp_path_factory.mktemp("further"), bars, positions="rotary", attention_window=8)
    fit_horizons(run.run, run.corpus, HORIZONS, device="cpu")
    return run


@pytest.fixture(scope="module")
def frames(further: TinyRun) -> dict[str, pl.DataFrame]:
    return {
        file.stem: pl.read_parquet(file).tail(200)
        for file in sorted(further.bars.glob("*.parquet"))
    }


def test_the_next_bar_stays_what_it_was(
    further: TinyRun, frames: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    shutil.copy(Run(further.run).best, tmp_path)
    alone, with_heads = Forecaster.load(tmp_path), Forecaster.load(further.run)
    assert alone.horizons == (1,)
    assert with_heads.horizons == (1, *HORIZONS)
    for symbol, dist in alone.predict(frames).items():
        np.testing.assert_array_equal(with_heads.predict(frames)[symbol].probs, dist.probs)
        assert with_heads.predict(frames)[symbol].to_dict() == dist.to_dict()


@pytest.mark.parametrize("horizon", HORIZONS)
def test_batch_history_and_stream_agree(
    further: TinyRun, frames: dict[str, pl.DataFrame], horizon: int
) -> None:
    forecaster = Forecaster.load(further.run)
    dist = forecaster.predict(frames["EURUSD"], "EURUSD", horizon=horizon)
    history = forecaster.predict_all(frames["EURUSD"], "EURUSD", horizon=horizon)
    online = forecaster.online()
    online.extend("EURUSD", frames["EURUSD"].head(150))
    for bar in frames["EURUSD"].tail(50).iter_rows(named=True):
        online.push("EURUSD", bar)
    live = online.forecast("EURUSD", horizon=horizon)
    for other in (history[-1], live):
        np.testing.assert_allclose(other.probs, dist.probs, atol=1e-5)
        assert (other.sigma, other.horizon, other.target_time) == (
            dist.sigma,
            horizon,
            dist.target_time,
        )
    assert dist.target_time - dist.as_of == horizon * forecaster.timeframe
    np.testing.assert_allclose(
        history.distributions.quantile(0.05)[-1], dist.quantile(0.05), rtol=1e-4
    )
    assert f"{horizon} bars" in repr(dist)
    assert "the bar" not in str(dist)


def test_numpy_answers_as_pytorch_does(
    further: TinyRun,
    frames: dict[str, pl.DataFrame],
    tiny: TinyRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no device is named, or PyTorch is not there; and who needs it says so."""
    torch_, numpy = Forecaster.load(further.run), Forecaster.load(further.run, device=None)
    assert (torch_.backend.name, numpy.backend.name) == ("torch", "numpy")
    assert (
        Forecaster.load(tiny.run, device=None).backend.name == "torch"
    )  # a model that does not stream
    for horizon in (1, *HORIZONS):
        ours, theirs = (each.predict(frames, horizon=horizon) for each in (numpy, torch_))
        for symbol, dist in theirs.items():
            np.testing.assert_allclose(ours[symbol].probs, dist.probs, atol=1e-5)
        histories = [
            each.predict_all(frames["XAUUSD"], "XAUUSD", horizon=horizon)
            for each in (numpy, torch_)
        ]
        np.testing.assert_allclose(histories[0].probs, histories[1].probs, atol=1e-5)
    [window] = torch_.windows(frames["EURUSD"], "EURUSD")
    meta = torch_.meta("EURUSD")
    events = inputs_of(torch_.config, window.columns, meta)
    wanted = torch_.backend.probs_of_prefixes(events, meta, 1)
    for engine in (torch_.backend, numpy.backend):
        for each in (
            engine.probs_of_prefixes(events, meta),
            engine.probs_after_each(events, meta, len(events)),
        ):
            np.testing.assert_allclose(each, wanted, atol=1e-5)
        np.testing.assert_allclose(engine.probs(events[None], meta[None]), wanted[-1:], atol=1e-5)
    for place in ("vaiom.forecast.opening", "vaiom.errors"):
        monkeypatch.setattr(
            f"{place}.find_spec", lambda name: None if name == "torch" else find_spec(name)
        )
    assert [Forecaster.load(further.run, device).backend.name for device in ("cpu", "auto")] == [
        "numpy",
        "numpy",
    ]
    for run, device in ((further.run, "cuda"), (tiny.run, None)):
        with pytest.raises(ConfigError, match="torch"):
            Forecaster.load(run, device)


def test_heads_belong_to_the_selected_model_alone(further: TinyRun, tmp_path: Path) -> None:
    shutil.copy(Run(further.run).horizons, tmp_path)
    shutil.copy(Run(further.run).best, tmp_path / "other.safetensors")
    assert Forecaster.load(tmp_path / "other.safetensors").horizons == (1,)


def test_forecasts_are_the_buckets_that_were_learned(further: TinyRun) -> None:
    """Train shares of the buckets are what heads say on average, and Validation is not far."""
    from vaiom.training.horizon_training import HorizonNetwork
    from vaiom.training.windows import hidden_states

    checkpoint = load_checkpoint(Run(further.run).best)
    horizons = load_horizons(Run(further.run).horizons, checkpoint)
    heads = HorizonNetwork(checkpoint.config, len(HORIZONS))
    heads.load_state_dict({name: torch.tensor(array) for name, array in horizons.tensors.items()})
    for fit in horizons.fitted.fits:
        view = further.corpus.with_target(fit)
        rows = view.endpoints("train", checkpoint.config.history)
        hidden = hidden_states(checkpoint.model, further.corpus, rows, torch.device("cpu"))
        inputs = further.corpus.inputs(checkpoint.config)[rows]
        probs = horizons.probs(hidden.numpy(), inputs, fit.bars)
        with torch.inference_mode():
            learned = (
                heads(hidden, torch.from_numpy(inputs))[:, HORIZONS.index(fit.bars)].exp().numpy()
            )
        np.testing.assert_allclose(probs, learned, atol=1e-6)
        shares = np.bincount(view.target_return[rows], minlength=17)[1:] / len(rows)
        np.testing.assert_allclose(probs.mean(axis=0), shares, atol=0.03)
        assert horizons.fitted.validation_bits[str(fit.bars)] < 4


def test_ranges_grow(further: TinyRun, frames: dict[str, pl.DataFrame]) -> None:
    """Of the heads; six steps of training leave the next bar's distribution anywhere."""
    forecaster = Forecaster.load(further.run)
    spans = []
    for horizon in HORIZONS:
        low, high = forecaster.predict_all(
            frames["XAUUSD"], "XAUUSD", horizon=horizon
        ).distributions.interval(0.9)
        spans.append(high - low)
    assert (np.diff(spans, axis=0) > 0).all()


@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("damage", ["no move", "no price"])
def test_a_masked_bar_at_the_end_leaves_a_sane_forecast(damage: str, number: int) -> None:
    """The packaged model after bars that no Train target follows: wider or narrower, never
    absurd.
    """
    config = MarketConfig(assets=1, bars=1_300)
    [market] = simulate(config).values()
    names = list(PRICE_COLUMNS)
    last = market.bars[-number - 1, "Close"] if damage == "no move" else None
    prices = [
        pl.when(pl.int_range(pl.len()) < pl.len() - number).then(name).otherwise(last).alias(name)
        for name in names
    ]
    forecaster, bars = Forecaster.pretrained(), market.bars.with_columns(prices)
    for horizon in forecaster.horizons:
        before, after = (
            forecaster.predict(each, "EURUSD", horizon=horizon) for each in (bars[:-number], bars)
        )
        (low, high), (lowest, highest) = before.interval(0.9), after.interval(0.9)
        assert lowest < 0 < highest
        assert (high - low) / 3 < highest - lowest < 3 * (high - low)


def test_a_horizon_nobody_trained(
    further: TinyRun, frames: dict[str, pl.DataFrame], tiny: TinyRun
) -> None:
    forecaster = Forecaster.load(further.run)
    with pytest.raises(ConfigError, match="no such horizon") as caught:
        forecaster.predict(frames, horizon=24)
    assert caught.value.expected == "1, 4, 8 bars"
    for horizon in (np.int64(4), 4.0):  # of an array
        assert repr(forecaster.predict(frames, "EURUSD", horizon=horizon).horizon) == "4"
    for wrong in (0, -4, 2.5, "4"):
        with pytest.raises(ConfigError, match="no such horizon"):
            forecaster.predict(frames, horizon=wrong)
    with pytest.raises(ConfigError, match="no such horizon"):
        Forecaster.load(tiny.run).predict_all(frames, horizon=4)


def test_heads_of_another_model(further: TinyRun, tiny: TinyRun, tmp_path: Path) -> None:
    shutil.copy(Run(tiny.run).best, tmp_path)
    shutil.copy(Run(further.run).horizons, tmp_path)
    with pytest.raises(CheckpointError, match=r"another checkpoint|not the horizons"):
        Forecaster.load(tmp_path)


def test_the_same_seed_gives_the_same_heads_and_the_model_is_not_touched(
    further: TinyRun, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(further.run, run)
    before = Run(run).best.read_bytes()
    fit_horizons(run, further.corpus, HORIZONS, device="cpu")
    assert Run(run).horizons.read_bytes() == Run(further.run).horizons.read_bytes()
    fit_horizons(run, further.corpus, HORIZONS, seed=18, device="cpu")
    assert Run(run).horizons.read_bytes() != Run(further.run).horizons.read_bytes()
    assert Run(run).best.read_bytes() == before


def test_the_commands(
    further: TinyRun, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(further.run, copy)
    code, _, err = run("horizons", copy, "--horizons", "four")
    assert (code, "numbers of bars" in err) == (2, True)
    code, _, err = run("horizons", copy, "--horizons", "900", "--device", "cpu")
    assert (code, "no event of 900 bars" in err) == (2, True)
    config = Run(copy).config
    config.write_text(config.read_text().replace(str(further.corpus.path), str(tmp_path / "gone")))
    words = (
        "--corpus",
        further.corpus.path,
        "--horizons",
        "6",
        "--seed",
        18,
        "--device",
        "cpu",
        "--json",
    )
    code, out, _ = run("horizons", copy, *words)
    assert code == 0
    answer = json.loads(out)
    assert (answer["horizons"], list(answer["validation_bits"]), answer["seed"]) == ([6], ["6"], 18)
    assert Forecaster.load(copy).horizons == (1, 6)
    with pytest.raises(DataError):
        fit_horizons(copy, further.corpus, (900,), device="cpu")


def test_paths_are_distributed_as_forecast(
    further: TinyRun, frames: dict[str, pl.DataFrame]
) -> None:
    forecaster = Forecaster.load(further.run)
    paths = forecaster.paths(frames, n=20_000, seed=3)["EURUSD"]
    assert (paths.horizons, paths.returns.shape) == ((1, *HORIZONS), (20_000, HORIZONS[-1]))
    for horizon in paths.horizons:
        dist = forecaster.predict(frames, horizon=horizon)["EURUSD"]
        pit = np.sort(np.asarray(dist.cdf(paths.at(horizon))))
        assert np.abs(pit - np.arange(1, 20_001) / 20_000).max() < 1.63 / math.sqrt(
            20_000
        )  # Kolmogorov, 1%
    # A path goes on from where it was.
    scores = [paths.at(bars).argsort().argsort() for bars in (4, 8)]
    assert np.corrcoef(*scores)[0, 1] == pytest.approx(math.sqrt(4 / 8), abs=0.05)
    again = forecaster.paths(frames["EURUSD"], "EURUSD", n=20_000, seed=3)
    np.testing.assert_allclose(again.returns, paths.returns, atol=1e-6)
    assert paths.quantile([0.05, 0.95]).shape == (2, HORIZONS[-1])
    for wrong in (0, 9):
        with pytest.raises(ConfigError, match="paths are shorter"):
            paths.at(wrong)
    with pytest.raises(ConfigError, match="number of paths"):
        forecaster.paths(frames, n=0)
