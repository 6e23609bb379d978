"""`vaiom run`: the whole job on a user's files, without a question asked."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch
from command_line import Vaiom, require_refusal

from strategies import random_bars
from vaiom.auditing.proof import AuditConfig, Proof
from vaiom.baselines.base import QUICK
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.record import Evaluation
from vaiom.experiments import whole_job
from vaiom.market.folder import read_bars, write_symbol
from vaiom.market.imports import gather_files
from vaiom.run import Run

TINY = {
    "num_layers": 1,
    "num_heads": 1,
    "width": 8,
    "context": 8,
    "steps": 2,
    "validate_every": 1,
    "micro_batch": 4,
}
SETTINGS = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


ALL_OF_IT = whole_job.whole_job


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two baselines and no pictures are enough to see that all of them would be there."""
    few = partial(whole_job.whole_job, baselines=("frequency", "hour_of_week"))
    monkeypatch.setattr(whole_job, "whole_job", few)
    monkeypatch.setattr("vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>")


def test_a_market_that_never_closes_goes_from_files_to_a_forecast(
    vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = random_bars(1_500, 1, datetime(2026, 1, 1)).rename({"Datetime": "timestamp"})
    wrong = pl.int_range(pl.len()) == 700
    prices = prices.with_columns(
        High=pl.when(wrong).then(pl.col("Low") * 0.999).otherwise(pl.col("High"))
    )
    zoned = pl.col("timestamp").dt.strftime("%Y-%m-%dT%H:%M:%S+00:00")
    pl.concat([prices, prices[-1:]]).with_columns(zoned).write_csv(tmp_path / "BTCUSDT-1h.csv")
    out = tmp_path / "out"
    for wrong in (("--experiment", "nonsense"), ("--set", "nonsense=1")):
        require_refusal(vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, *wrong), "nonsense")
    assert not out.exists()
    write_symbol(out / "bars", "BTCUSDT", random_bars(40))  # of a run that was killed
    ran = vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, "--device", "cpu", *SETTINGS)
    assert ran.code == 0, ran.err
    run, corpus = out / "run", open_corpus(out / "corpus")
    assert Run(run).evaluated_splits() == ["test-h1", "validation"]
    assert {name for name, events in corpus.manifest["events"].items() if events} >= {
        "train",
        "validation",
        "test-h1",
    }
    assert Run(run).report.is_file()
    assert "BTCUSDT: quality: ohlc_sense 1 " in ran.err
    assert "training `demo` on a CPU" in ran.err
    assert f"{out / 'corpus'}: 1,500 bars of 1h; BTCUSDT\n" in ran.err
    assert f"\nTrain before {corpus.splits.train_end:%Y-%m-%d}, Validation " in ran.err
    assert "\nDone in 0:" in ran.err
    assert "the model needs" in ran.out
    assert "proofs, none failed" in ran.out
    assert "BTCUSDT" in ran.out
    assert f"vaiom serve {run} --bars {out / 'bars'}" in ran.err

    # Again: what is finished is kept, and no test is looked at twice.
    asked: list[AuditConfig] = []

    def find_something(*_: object, config: AuditConfig, **__: object) -> list[Proof]:
        asked.append(config)
        every = [Proof(name=name, count=2) for name in ("a. future", "b. refit")]
        every[0].findings = ["one", "two"]
        return every

    monkeypatch.setattr("vaiom.auditing.audit.audit_path", find_something)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    again = vaiom(
        "run", tmp_path / "BTCUSDT-1h.csv", "--out", out, "--device", "cpu", *SETTINGS, "--json"
    )
    assert (again.code, [(config.cuts, config.rare_cuts) for config in asked]) == (1, [(2, 0)])
    answer = json.loads(again.out)
    assert (answer["passed"], answer["verdict"][-1]) == (False, "Audit: a. future FAILED: one; two")
    assert {path: path.stat().st_mtime_ns for path in before} == before

    prices.head(1_400).write_csv(tmp_path / "BTCUSDT-1h.csv")
    require_refusal(
        vaiom("run", tmp_path / "BTCUSDT-1h.csv", "--out", out, *SETTINGS), "another --out"
    )


def test_all_quick_baselines_are_fitted_and_shortened_trees_are_named_so(tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "BTCUSDT", random_bars(3_000, 1, datetime(2026, 1, 1)))
    settings = [f"{key}={value}" for key, value in TINY.items()]
    run = ALL_OF_IT(tmp_path / "bars", tmp_path / "out", settings=settings, device="cpu")
    bits = Evaluation.read(run, "validation").bits
    assert {*QUICK, "har_t", "garch_t_seasonal", "lightgbm_quick", "model"} == set(bits)


@pytest.mark.parametrize("command", ["run", "demo"])
def test_what_is_not_installed_is_said_before_the_work(
    vaiom: Vaiom, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.errors.find_spec", lambda library: None if library == "jinja2" else True
    )
    files = [tmp_path / "none.csv"] if command == "run" else []
    require_refusal(
        vaiom(command, *files, "--out", tmp_path / "out"), "this needs jinja2", "vaiom[report]"
    )


def test_a_gpu_trains_the_large_model_where_the_bars_have_windows_for_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(400, 1, datetime(2026, 1, 1)))
    splits = SplitConfig.covered_by(datetime(2026, 1, 1), datetime(2026, 1, 17))
    few = build_corpus(tmp_path / "bars", tmp_path / "few", CorpusConfig(splits=splits))
    monkeypatch.setattr("vaiom.training.devices.resolve_device", torch.device)
    for bars, device, name in (
        (open_corpus(corpus), "cuda", "best"),
        (few, "cuda", "demo"),
        (few, "cpu", "demo"),
    ):
        assert whole_job.choose_experiment(bars, None, (), device).name == name
    assert whole_job.choose_experiment(few, "main", (), "cuda").name == "main"


@pytest.fixture
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits have tests of their own."""
    monkeypatch.setattr("vaiom.auditing.audit.audit_path", lambda *run, **options: [])


@pytest.mark.usefixtures("unaudited")
def test_a_folder_of_bars_is_taken_too(vaiom: Vaiom, market: Path, tmp_path: Path) -> None:
    ran = vaiom("run", market, "--out", tmp_path / "out", "--device", "cpu", *SETTINGS, "--json")
    answer = ran.json()
    assert [each["symbol"] for each in answer["forecasts"]] == ["SIM01USD", "SIM02USD"]
    assert len(answer["verdict"]) > 3


@pytest.mark.parametrize("other", ["csv", "named otherwise", "zoned"])
def test_a_folder_with_other_files_than_bars_is_imported_whole(tmp_path: Path, other: str) -> None:
    """Nothing in it is passed over."""
    files, bars = tmp_path / "files", random_bars(60, 1)
    write_symbol(files, "EURUSD", bars)
    assert gather_files([files], tmp_path / "none") == files
    if other == "csv":
        bars.write_csv(files / "GBPUSD.csv")
    elif other == "zoned":
        bars.with_columns(pl.col("Datetime").dt.replace_time_zone("UTC")).write_parquet(
            files / "GBPUSD.parquet"
        )
    else:
        bars.rename({"Datetime": "Date"}).write_parquet(files / "GBPUSD.parquet")
    imported = read_bars(gather_files([files], tmp_path / "out"))
    assert [*imported] == ["EURUSD", "GBPUSD"]
    assert imported["GBPUSD"]["Close"].equals(bars["Close"])


@pytest.mark.usefixtures("unaudited")
def test_real_bars_of_two_assets(vaiom: Vaiom, shared_data: Path, tmp_path: Path) -> None:
    for symbol in ("EURUSD", "XAUUSD"):
        bars = read_bars(shared_data / "bars_1h" / f"{symbol}.parquet")[symbol]
        write_symbol(
            tmp_path / "bars",
            symbol,
            bars.filter(bars["Datetime"] > bars["Datetime"][-1] - timedelta(days=150)),
        )
    ran = vaiom("run", tmp_path / "bars", "--out", tmp_path / "out", "--device", "cpu", *SETTINGS)
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "run" / "report.html").is_file()


def test_boundaries_that_leave_a_split_empty_are_refused_with_some_that_do_not(
    vaiom: Vaiom, tmp_path: Path
) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(2_000, 1, datetime(2026, 1, 1)))
    refused = vaiom("corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus")
    require_refusal(refused, "no bar lies in Train", "--train-end 2026-")
    proposed = refused.err.split("try:")[1].split()
    ran = vaiom(
        "corpus", "build", tmp_path / "bars", "--out", tmp_path / "corpus", *proposed, "--json"
    )
    assert all(ran.json()["events"][name] for name in ("train", "validation", "test-h1"))
