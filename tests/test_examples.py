"""The adapters in examples/ make tables that `vaiom score` takes, and see nothing of the future."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import vaiom
from evaluation.simulated_market import TINY_SPLITS
from strategies import random_bars
from vaiom.events.build import CorpusConfig, build_corpus
from vaiom.events.corpus import Corpus
from vaiom.market.folder import write_symbol

EXAMPLES = Path(__file__).parents[1] / "examples"
BARS = {symbol: random_bars(2_400, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("examples")
    for symbol, bars in BARS.items():
        write_symbol(folder / "bars", symbol, bars)
    return build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=TINY_SPLITS))


def test_garch_quantiles(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["garch_quantiles.py", str(corpus.path), str(tmp_path / "garch.csv")])
    example = runpy.run_path(str(EXAMPLES / "garch_quantiles.py"), run_name="__main__")
    found = vaiom.score(tmp_path / "garch.csv", corpus, name="garch")
    assert (found.form, found.num_missing) == ("quantiles", 0)
    assert found.bits["model"] < found.bits["frequency"] + 0.05  # returns are independent: nothing more is to be known
    assert vaiom.score(example["Garch"](), corpus).bits["model"] == pytest.approx(found.bits["model"], abs=1e-9)


def test_garch_quantiles_do_not_change_with_later_bars(corpus: Corpus) -> None:
    garch = runpy.run_path(str(EXAMPLES / "garch_quantiles.py"))["Garch"]()
    rows = corpus.endpoints("validation")
    early = rows[rows < corpus.asset_slices["EURUSD"].stop][:50]
    shaken = np.array(corpus.columns["log_ret"])
    shaken[early[-1] + 1 : corpus.asset_slices["EURUSD"].stop] *= 3
    later = replace(corpus, columns={**corpus.columns, "log_ret": shaken})
    ours, theirs = (garch.forecast_asset(each, "EURUSD", early) for each in (corpus, later))
    assert ours.equals(theirs)


@pytest.mark.parametrize("long", [False, True])
def test_samples_of_paths(corpus: Corpus, tmp_path: Path, long: bool) -> None:
    """A stand-in for Kronos and Chronos: bootstrapped moves of the context."""
    example, rng, seen = runpy.run_path(str(EXAMPLES / "sampled_paths.py")), np.random.default_rng(1), []

    def sampler(closes: np.ndarray, count: int) -> np.ndarray:
        seen.append(closes[-1])
        return closes[-1] * np.exp(rng.choice(np.diff(np.log(closes)), count))

    rows = corpus.endpoints("validation")[::4]
    tables = []
    for symbol, inside in corpus.asset_slices.items():
        own = rows[(rows >= inside.start) & (rows < inside.stop)]
        times = corpus.timestamps[own].astype("datetime64[us]").tolist()
        tables.append(example["sample_asset"](symbol, BARS[symbol], times, sampler, count=50))
        assert seen[-len(own) :] == BARS[symbol].filter(pl.col("Datetime").is_in(times))["Close"].to_list()
    table = pl.concat(tables)
    if long:
        example["write_long"](table, tmp_path / "samples.csv")
    found = vaiom.score(tmp_path / "samples.csv" if long else table, corpus)
    assert (found.form, found.num_events) == ("samples", len(rows))
    assert found.bits["model"] < found.bits["frequency"] + 0.25
