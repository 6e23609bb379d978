"""Tiny trained runs, made once: of two assets by themselves, of three that are read together,
simulated and real.

One thread, because everything here is small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from forecast_runs import WORLDLY_FIELDS, TinyRun, tiny_run

from strategies import random_bars
from vaiom.cli.main import main
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_file

# The dollar's first, its second, none.
WORLD = ("EURUSD", "GBPJPY", "USDJPY")


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("forecast")
    return tiny_run(
        folder,
        {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))},
    )


@pytest.fixture(scope="package")
def simulated_world(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """Three assets, one of which trades fewer hours and one of which begins later."""
    bars = {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(WORLD)}
    bars["GBPJPY"] = bars["GBPJPY"].filter(pl.col("Datetime").dt.hour() < 15)
    bars["USDJPY"] = bars["USDJPY"].tail(-300)
    return tiny_run(tmp_path_factory.mktemp("simulated"), bars, fields=WORLDLY_FIELDS)


@pytest.fixture(scope="package")
def real_world(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> TinyRun:
    span = pl.col("Datetime").is_between(datetime(2023, 1, 2), datetime(2024, 1, 15))
    bars = {
        symbol: read_file(shared_data / "bars_1h" / f"{symbol}.parquet").filter(span)
        for symbol in WORLD
    }
    return tiny_run(tmp_path_factory.mktemp("real"), bars, fields=WORLDLY_FIELDS)


@pytest.fixture(params=["simulated", "real"])
def world(request: pytest.FixtureRequest) -> TinyRun:
    run: TinyRun = request.getfixturevalue(f"{request.param}_world")
    return run


@pytest.fixture(scope="package")
def forecaster(tiny: TinyRun) -> Forecaster:
    return Forecaster.load(tiny.run)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def vaiom(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vaiom", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return vaiom
