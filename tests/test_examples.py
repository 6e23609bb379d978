"""The adapters in examples/ make tables that `vaiom score` takes, and see nothing of the future."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import vaiom
from evaluation.simulated_market import TINY_SPLITS
from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus
from vaiom.market.folder import write_symbol

EXAMPLES = Path(__file__).parents[1] / "examples"
BARS = {symbol: random_bars(2_400, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("examples")
    for symbol, bars in BARS.items():
        write_symbol(folder / "bars", symbol, bars)
    return build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=TINY_SPLITS))


LEVELS = (0.01, *(each / 10 for each in range(1, 10)), 0.99)


class StandIn:
    """For `Chronos2Pipeline`, with its documented interface; its quantiles cross, as those of a
    network may.
    """

    quantiles = LEVELS

    def predict_quantiles(
        self, inputs: Any, prediction_length: int, quantile_levels: list[float]
    ) -> Any:
        assert (inputs.ndim, inputs.dtype, prediction_length) == (
            3,
            np.float32,
            1,
        )  # series, variates, times
        found = [np.nanquantile(each, quantile_levels[::-1], axis=1).T[:, None] for each in inputs]
        return [torch.from_numpy(each) for each in found], [torch.zeros(1, 1)] * len(inputs)


def tiny_chronos() -> Any:
    """A Chronos-2 of random weights and a few hundred parameters, built here and never
    downloaded.
    """
    pytest.importorskip("chronos", reason="chronos-forecasting is not installed")
    from chronos import Chronos2Pipeline
    from chronos.chronos2.config import Chronos2CoreConfig
    from chronos.chronos2.model import Chronos2Model

    patches = {"input_patch_size": 16, "input_patch_stride": 16, "output_patch_size": 16}
    more = {
        "context_length": 64,
        "quantiles": [*LEVELS],
        "use_reg_token": True,
        "use_arcsinh": True,
    }
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(1)
    return Chronos2Pipeline(
        Chronos2Model(Chronos2CoreConfig(**sizes, chronos_config={**patches, **more})).eval()
    )


def models() -> Any:
    return pytest.importorskip("statsforecast.models", reason="statsforecast is not installed")


def example(name: str, **options: Any) -> dict[str, Any]:
    """What a script defines."""
    if "statsforecast" in name:
        models()
    return runpy.run_path(str(EXAMPLES / name), **options)


SOURCES: dict[str, Callable[[], Any]] = {
    "garch_quantiles": lambda: example("garch_quantiles.py")["Garch"](),
    "statsforecast_intervals": lambda: example("statsforecast_intervals.py")["Intervals"](
        models().AutoETS()
    ),
    "chronos_quantiles": lambda: example("chronos_quantiles.py")["Chronos"](tiny_chronos()),
    "stand-in": lambda: example("chronos_quantiles.py")["Chronos"](StandIn()),
}
TRAINED = ("garch_quantiles", "statsforecast_intervals", "stand-in")


@pytest.mark.parametrize("name", SOURCES)
def test_quantiles_are_scored_from_a_file_and_without_one(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = vaiom.score(SOURCES[name](), corpus, name=name)
    assert (found.form, found.num_missing) == ("quantiles", 0)
    # Returns are independent: nothing more is to be known.
    assert (found.bits["model"] < found.bits["frequency"] + 0.1) == (name in TRAINED)
    if name == "stand-in":
        return
    words = [name, str(corpus.path), str(tmp_path / "table.csv")]
    if name == "statsforecast_intervals":
        words += ["--model", "AutoETS"]
    if name == "chronos_quantiles":
        tiny_chronos().save_pretrained(tmp_path / "tiny")
        words += ["--model", str(tmp_path / "tiny")]
    monkeypatch.setattr("sys.argv", words)
    example(f"{name}.py", run_name="__main__")
    written = vaiom.score(tmp_path / "table.csv", corpus)
    assert written.bits["model"] == pytest.approx(found.bits["model"], abs=1e-9)


@pytest.mark.parametrize("source", SOURCES)
def test_quantiles_do_not_change_with_later_bars(corpus: Corpus, source: str) -> None:
    made, bars = SOURCES[source](), corpus.asset_slices["EURUSD"]
    early = corpus.endpoints("validation")[:50]
    shaken = np.array(corpus.columns["log_ret"])
    shaken[early[-1] + 1 : bars.stop] *= 3
    later = replace(corpus, columns={**corpus.columns, "log_ret": shaken})
    shaken = np.array(corpus.columns["log_ret"])
    shaken[early[-1]] *= 3  # the last bar that is known does matter
    other = replace(corpus, columns={**corpus.columns, "log_ret": shaken})
    ours, theirs, moved = (
        made.forecast_asset(each, "EURUSD", early) for each in (corpus, later, other)
    )
    assert ours.equals(theirs)
    assert ours[:-1].equals(moved[:-1])
    assert not ours.equals(moved)


@pytest.mark.parametrize("long", [False, True])
def test_samples_of_paths(corpus: Corpus, tmp_path: Path, long: bool) -> None:
    """A stand-in for Kronos and Chronos: bootstrapped moves of the context."""
    script, rng, seen = example("sampled_paths.py"), np.random.default_rng(1), []

    def sampler(closes: np.ndarray, count: int) -> np.ndarray:
        seen.append(closes[-1])
        return closes[-1] * np.exp(rng.choice(np.diff(np.log(closes)), count))

    rows = corpus.endpoints("validation")[::4]
    tables = []
    for symbol, inside in corpus.asset_slices.items():
        own = rows[(rows >= inside.start) & (rows < inside.stop)]
        times = corpus.timestamps[own].astype("datetime64[us]").tolist()
        tables.append(script["sample_asset"](symbol, BARS[symbol], times, sampler, count=50))
        assert (
            seen[-len(own) :]
            == BARS[symbol].filter(pl.col("Datetime").is_in(times))["Close"].to_list()
        )
    table = pl.concat(tables)
    if long:
        script["write_long"](table, tmp_path / "samples.csv")
    found = vaiom.score(tmp_path / "samples.csv" if long else table, corpus)
    assert (found.form, found.num_events) == ("samples", len(rows))
    assert found.bits["model"] < found.bits["frequency"] + 0.25
