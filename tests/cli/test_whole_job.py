"""`vaiom run`: the whole job on a user's files, without a question asked."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from command_line import Vaiom, require_refusal

from strategies import random_bars
from vaiom.events.corpus import open_corpus
from vaiom.market.folder import read_bars, write_symbol
from vaiom.run import Run

TINY = {"num_layers": 1, "num_heads": 1, "width": 8, "context": 8, "steps": 2, "validate_every": 1, "micro_batch": 4}
SETTINGS = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two baselines and no pictures are enough to see that all of them would be there."""
    monkeypatch.setattr("vaiom.cli.run.BASELINES", ("frequency", "hour_of_week"))
    monkeypatch.setattr("vaiom.report.figures._to_svg", lambda *figure: "<svg></svg>")


def test_a_market_that_never_closes_goes_from_files_to_a_forecast(
    vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = random_bars(1_500, 1, datetime(2026, 1, 1)).rename({"Datetime": "timestamp"})
    wrong = pl.int_range(pl.len()) == 700
    prices = prices.with_columns(High=pl.when(wrong).then(pl.col("Low") * 0.999).otherwise(pl.col("High")))
    prices.write_csv(tmp_path / "BTCUSDT-1h.csv")
    out = tmp_path / "out"
    for wrong in (("--experiment", "nonsense"), ("--set", "nonsense=1")):
        require_refusal(vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, *wrong), "nonsense")
    assert not out.exists()
    ran = vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, "--device", "cpu", *SETTINGS)
    assert ran.code == 0, ran.err
    run, corpus = out / "run", open_corpus(out / "corpus")
    assert Run(run).evaluated_splits() == ["test-h1", "validation"]
    assert {name for name, events in corpus.manifest["events"].items() if events} >= {"train", "validation", "test-h1"}
    assert Run(run).report.is_file()
    assert "BTCUSDT: quality: ohlc_sense 1 " in ran.err
    assert "training `demo` on a CPU" in ran.err
    assert "\nDone in 0:" in ran.err
    assert "the model needs" in ran.out
    assert "proofs, none failed" in ran.out
    assert "BTCUSDT" in ran.out
    assert f"vaiom serve {run} --bars {out / 'bars'}" in ran.err

    # Again: what is finished is kept, and no test is looked at twice.
    monkeypatch.setattr("vaiom.audit.audit.audit_path", lambda *run, **options: [])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    again = vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, "--device", "cpu", *SETTINGS, "--json")
    assert again.json()["passed"]
    assert {path: path.stat().st_mtime_ns for path in before} == before

    prices.head(1_400).write_csv(tmp_path / "BTCUSDT-1h.csv")
    require_refusal(vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, *SETTINGS), "another --out")


@pytest.fixture
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits have tests of their own."""
    monkeypatch.setattr("vaiom.audit.audit.audit_path", lambda *run, **options: [])


@pytest.mark.usefixtures("unaudited")
def test_a_folder_of_bars_is_taken_too(vaiom: Vaiom, market: Path, tmp_path: Path) -> None:
    ran = vaiom("run", market, "--out", tmp_path / "out", "--device", "cpu", *SETTINGS, "--json")
    answer = ran.json()
    assert [each["symbol"] for each in answer["forecasts"]] == ["SIM01USD", "SIM02USD"]
    assert len(answer["verdict"]) > 3


@pytest.mark.usefixtures("unaudited")
def test_real_bars_of_two_assets(vaiom: Vaiom, shared_data: Path, tmp_path: Path) -> None:
    for symbol in ("EURUSD", "XAUUSD"):
        bars = read_bars(shared_data / "bars_1h" / f"{symbol}.parquet")[symbol]
        write_symbol(
            tmp_path / "bars", symbol, bars.filter(bars["Datetime"] > bars["Datetime"][-1] - timedelta(days=150))
        )
    ran = vaiom("run", tmp_path / "bars", "--out", tmp_path / "out", "--device", "cpu", *SETTINGS)
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "run" / "report.html").is_file()


def test_boundaries_that_leave_a_split_empty_are_refused_with_some_that_do_not(vaiom: Vaiom, tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(2_000, 1, datetime(2026, 1, 1)))
    refused = vaiom("corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus")
    require_refusal(refused, "no bar lies in Train", "--train-end 2026-")
    proposed = refused.err.split("try:")[1].split()
    ran = vaiom("corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus", *proposed, "--json")
    assert all(ran.json()["events"][name] for name in ("train", "validation", "test-h1"))
