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
from forecast_runs import TinyRun, assert_same_forecast, tiny_run

from strategies import random_bars
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.experiments.refit import fit_horizons
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import PRICE_COLUMNS
from vaiom.model.checkpoint import load_checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import Run
from vaiom.simulation.market import MarketConfig, simulate

HORIZONS = (4, 8)
ROUNDING = 1e-5
"""Of products of single precision, from one backend to another."""
Frames = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run whose layers see a window of rows, with heads for two horizons."""
    bars = {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}
    run = tiny_run(tmp_path_factory.mktemp("further"), bars, positions="rotary", attention_window=8)
    fit_horizons(run.run, run.corpus, HORIZONS, device="cpu")
    return run


@pytest.fixture(scope="module")
def frames(further: TinyRun) -> Frames:
    return {
        file.stem: pl.read_parquet(file).tail(200)
        for file in sorted(further.bars.glob("*.parquet"))
    }


@pytest.fixture(scope="module")
def forecaster(further: TinyRun) -> Forecaster:
    return Forecaster.load(further.run)


def test_the_next_bar_stays_what_it_was(
    further: TinyRun, forecaster: Forecaster, frames: Frames, tmp_path: Path
) -> None:
    shutil.copy(Run(further.run).best, tmp_path)
    alone = Forecaster.load(tmp_path)
    assert (alone.horizons, forecaster.horizons) == ((1,), (1, *HORIZONS))
    with_heads = forecaster.predict(frames)
    for symbol, dist in alone.predict(frames).items():
        assert with_heads[symbol].to_dict() == dist.to_dict()


@pytest.mark.parametrize("horizon", HORIZONS)
def test_batch_history_and_stream_agree(
    forecaster: Forecaster, frames: Frames, horizon: int
) -> None:
    bars = frames["EURUSD"]
    dist = forecaster.predict(bars, "EURUSD", horizon=horizon)
    history = forecaster.predict_all(bars, "EURUSD", horizon=horizon)
    online = forecaster.online()
    online.extend("EURUSD", bars.head(150))
    for bar in bars.tail(50).iter_rows(named=True):
        online.push("EURUSD", bar)
    for other in (history[-1], online.forecast("EURUSD", horizon=horizon)):
        assert_same_forecast(other, dist, ROUNDING)
    assert dist.horizon == horizon
    assert dist.target_time - dist.as_of == horizon * forecaster.timeframe
    last = history.distributions.quantile(0.05)[-1]
    assert last == pytest.approx(dist.quantile(0.05), rel=1e-4)
    assert f"{horizon} bars" in repr(dist)
    assert "the bar" not in str(dist)


@pytest.mark.parametrize("horizon", [1, *HORIZONS])
def test_numpy_gives_the_probabilities_of_pytorch(
    further: TinyRun, forecaster: Forecaster, frames: Frames, horizon: int
) -> None:
    numpy = Forecaster.load(further.run, device=None)
    assert (forecaster.backend.name, numpy.backend.name) == ("torch", "numpy")
    theirs = numpy.predict(frames, horizon=horizon)
    for symbol, dist in forecaster.predict(frames, horizon=horizon).items():
        assert_same_forecast(theirs[symbol], dist, ROUNDING)
    meta = forecaster.meta("XAUUSD")
    [window] = forecaster.windows(frames["XAUUSD"], "XAUUSD")
    inputs = forecaster.inputs("XAUUSD", window.columns)
    wanted = forecaster.backend.probs_of_prefixes(inputs, meta, horizon)
    for backend in (forecaster.backend, numpy.backend):
        for made in (
            backend.probs_of_prefixes(inputs, meta, horizon),
            backend.probs_after_each(inputs, meta, len(inputs), horizon),
        ):
            np.testing.assert_allclose(made, wanted, atol=ROUNDING)
        last = backend.probs(inputs[None], meta[None], horizon)
        np.testing.assert_allclose(last, wanted[-1:], atol=ROUNDING)


def test_without_pytorch_numpy_is_used_where_it_can_be(
    further: TinyRun, tiny: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Forecaster.load(tiny.run, device=None).backend.name == "torch"
    for place in ("vaiom.forecast.opening", "vaiom.errors"):
        monkeypatch.setattr(
            f"{place}.find_spec", lambda name: None if name == "torch" else find_spec(name)
        )
    for device in ("cpu", "auto"):
        assert Forecaster.load(further.run, device).backend.name == "numpy"
    for run, wrong in ((further.run, "cuda"), (tiny.run, None)):
        with pytest.raises(ConfigError, match="torch"):
            Forecaster.load(run, wrong)


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


def test_ranges_grow(forecaster: Forecaster, frames: Frames) -> None:
    """Of the heads; six steps of training leave the next bar's distribution anywhere."""
    spans = []
    for horizon in HORIZONS:
        history = forecaster.predict_all(frames["XAUUSD"], "XAUUSD", horizon=horizon)
        low, high = history.distributions.interval(0.9)
        spans.append(high - low)
    assert (np.diff(spans, axis=0) > 0).all()


@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("damage", ["no move", "no price"])
def test_a_masked_bar_at_the_end_leaves_a_sane_forecast(damage: str, number: int) -> None:
    """The packaged model after bars that no Train target follows: wider or narrower, never
    absurd.
    """
    [market] = simulate(MarketConfig(assets=1, bars=1_300)).values()
    good = market.bars[:-number]
    price = good["Close"][-1] if damage == "no move" else None
    bad = market.bars[-number:].with_columns(
        pl.lit(price, pl.Float64).alias(name) for name in PRICE_COLUMNS
    )
    forecaster = Forecaster.pretrained()
    for horizon in forecaster.horizons:
        before = forecaster.predict(good, "EURUSD", horizon=horizon)
        after = forecaster.predict(pl.concat([good, bad]), "EURUSD", horizon=horizon)
        low, high = before.interval(0.9)
        lowest, highest = after.interval(0.9)
        assert lowest < 0 < highest
        assert (high - low) / 3 < highest - lowest < 3 * (high - low)


def test_a_horizon_nobody_trained(forecaster: Forecaster, frames: Frames) -> None:
    for wrong in (24, 0, -4, 2.5, "4"):
        for ask in (forecaster.predict, forecaster.predict_all):
            with pytest.raises(ConfigError, match="no such horizon") as caught:
                ask(frames, horizon=wrong)
            assert caught.value.expected == "1, 4, 8 bars"
    for horizon in (np.int64(4), 4.0):  # as an array gives it
        assert repr(forecaster.predict(frames, "EURUSD", horizon=horizon).horizon) == "4"


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


def test_paths_are_distributed_as_forecast(forecaster: Forecaster, frames: Frames) -> None:
    draws = 20_000
    paths = forecaster.paths(frames, n=draws, seed=3)["EURUSD"]
    assert (paths.horizons, paths.returns.shape) == ((1, *HORIZONS), (draws, HORIZONS[-1]))
    for horizon in paths.horizons:
        dist = forecaster.predict(frames, horizon=horizon)["EURUSD"]
        pit = np.sort(dist.cdf(paths.at(horizon)))
        distance = np.abs(pit - np.arange(1, draws + 1) / draws).max()
        assert distance < 1.63 / math.sqrt(draws)  # Kolmogorov, 1%
    # A path goes on from where it was.
    ranks = [paths.at(bars).argsort().argsort() for bars in (4, 8)]
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(math.sqrt(4 / 8), abs=0.05)
    again = forecaster.paths(frames["EURUSD"], "EURUSD", n=draws, seed=3)
    np.testing.assert_allclose(again.returns, paths.returns, atol=1e-6)
    wanted = np.quantile(paths.returns, [0.05, 0.95], axis=0)
    np.testing.assert_array_equal(paths.quantile([0.05, 0.95]), wanted)
    # Between two horizons the range is between theirs.
    assert (np.diff(paths.quantile([0.95])[0, HORIZONS[0] - 1 :]) > 0).all()
    for wrong in (0, 9):
        with pytest.raises(ConfigError, match="paths are shorter"):
            paths.at(wrong)
    with pytest.raises(ConfigError, match="number of paths"):
        forecaster.paths(frames, n=0)
