"""`vaiom predict` and `vaiom export` as a user runs them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import polars as pl
import pytest
from forecast_runs import TinyRun

from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_bars


def test_json_is_what_python_says(run, tiny: TinyRun, forecaster: Forecaster) -> None:
    code, out, err = run("predict", tiny.run, "--bars", tiny.bars, "--json")
    assert code == 0, err
    answer = json.loads(out)
    wanted = [dist.to_dict() for dist in forecaster.predict(read_bars(tiny.bars)).values()]
    assert answer == {"model": forecaster.describe(), "forecasts": wanted}


def test_csv_has_a_line_per_asset_and_the_same_numbers(
    run, tiny: TinyRun, forecaster: Forecaster
) -> None:
    code, out, err = run("predict", tiny.run, "--bars", tiny.bars, "--csv")
    assert code == 0, err
    lines = {line["symbol"]: line for line in csv.DictReader(io.StringIO(out))}
    for symbol, dist in forecaster.predict(read_bars(tiny.bars)).items():
        assert float(lines[symbol]["q0.05"]) == dist.quantile(0.05)
        assert float(lines[symbol]["es0.99_short"]) == dist.expected_shortfall(0.99, "short")
        assert float(lines[symbol]["p16"]) == dist.probs[15]


def test_the_table_shows_bars_and_cautions(run, tiny: TinyRun, forecaster: Forecaster) -> None:
    code, out, err = run(
        "predict", tiny.run, "--bars", tiny.bars / "EURUSD.parquet", "--now", "2026-01-01"
    )
    assert code == 0, err
    first, second = [line for line in out.splitlines() if line.startswith("EURUSD")]
    line = first + second
    assert all(len(each) <= 80 for each in out.splitlines())
    dist = forecaster.predict(read_bars(tiny.bars)["EURUSD"], "EURUSD")
    assert "█" in line
    assert "stale" in line
    assert f"{dist.prob_up:.1%}" in line
    assert f"{1e4 * dist.value_at_risk(0.99, 'long'):.1f}" in line
    assert f"stale since {dist.stale_since}" in err
    code, out, err = run(
        "predict", tiny.run, "--bars", tiny.bars / "EURUSD.parquet", "--symbol", "ABCDEF"
    )
    assert code == 0, err
    assert "unknown" in out


def test_bars_may_be_files_of_any_format(run, tiny: TinyRun, tmp_path: Path) -> None:
    folder, file = tmp_path / "downloads", tmp_path / "long.csv"
    folder.mkdir()
    long = []
    for symbol, bars in read_bars(tiny.bars).items():
        bars.write_csv(folder / f"{symbol}.csv")
        long.append(bars.with_columns(symbol=pl.lit(symbol)))
    pl.concat(long).write_csv(file)
    wanted = json.loads(run("predict", tiny.run, "--bars", tiny.bars, "--json")[1])["forecasts"]
    for bars in (folder, file):
        code, out, err = run("predict", tiny.run, "--bars", bars, "--json")
        assert code == 0, err
        assert json.loads(out)["forecasts"] == wanted
        _, out, _ = run("predict", tiny.run, "--bars", bars, "--symbol", "eurusd", "--json")
        [one] = json.loads(out)["forecasts"]
        assert one["symbol"] == "EURUSD"
        assert one["probs"] == pytest.approx(wanted[0]["probs"], abs=TOLERANCE)


def test_other_assets_that_are_not_there_are_named(run, simulated_world: TinyRun) -> None:
    alone = ("predict", simulated_world.run, "--bars", simulated_world.bars / "USDJPY.parquet")
    code, out, err = run(*alone)
    assert code == 0, err
    assert "without others" in out
    assert "of EURUSD, GBPJPY" in err
    _, out, _ = run(*alone, "--csv")
    assert next(csv.DictReader(io.StringIO(out)))["missing_assets"] == "EURUSD GBPJPY"
    folder = ("predict", simulated_world.run, "--bars", simulated_world.bars, "--json")
    every = json.loads(run(*folder)[1])["forecasts"]
    assert [each["missing_assets"] for each in every] == [["GBPJPY"], [], ["GBPJPY"]]
    # One asset of a folder still reads the others.
    [one] = json.loads(run(*folder, "--symbol", "USDJPY")[1])["forecasts"]
    assert one["missing_assets"] == ["GBPJPY"]
    assert one["probs"] == pytest.approx(every[-1]["probs"], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--symbol", "GBPUSD"], "EURUSD, XAUUSD"),
        (["--now", "today"], "not a date"),
        (["--json", "--csv"], "one form of output"),
    ],
)
def test_refusals(run, tiny: TinyRun, words: list[str], says: str) -> None:
    code, out, err = run("predict", tiny.run, "--bars", tiny.bars, *words)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_export_then_predict_with_the_file(run, tiny: TinyRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    file = tmp_path / "model.onnx"
    code, out, err = run("export", tiny.run, "--onnx", file, "--json")
    assert code == 0, err
    assert json.loads(out)["real_windows"] == 32
    code, out, err = run("predict", file, "--bars", tiny.bars, "--json")
    assert code == 0, err
    assert json.loads(out)["model"]["engine"] == "onnxruntime"
    code, out, err = run("export", tmp_path, "--onnx", file)
    assert (code, out) == (2, "")
    assert "no such checkpoint" in err
