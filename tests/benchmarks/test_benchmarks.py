"""The benchmarks run, and what they call equal can be unequal. Nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks import __main__ as command
from benchmarks import bars, events, startup
from benchmarks.race import race, reference_library
from vaiom.errors import ConfigError, VaiomError
from vaiom.market.folder import write_symbol
from vaiom.market.resample import resample
from vaiom.simulation.market import MarketConfig, simulate


def test_events_of_a_folder_run_from_the_registry(tmp_path: Path) -> None:
    for symbol, asset in simulate(MarketConfig(assets=2, bars=600)).items():
        write_symbol(tmp_path, symbol, asset.bars)
    [result] = command.run(["events"], tmp_path)
    assert json.loads(json.dumps(result)) == result
    assert result["name"] == "events"
    assert result["input"].startswith("1,200 rows of 2 assets")
    assert result["ratio"] == result["reference_seconds"] / result["ours_seconds"]
    assert result["equal"] == "all 30,000 float32 values, exactly"


def test_events_that_differ_in_one_value_are_named() -> None:
    [asset] = simulate(MarketConfig(assets=1, bars=60)).values()
    made = events.cont_of_bars(asset.bars)
    changed = made.copy()
    changed[50, 1] = np.nextafter(changed[50, 1], np.float32(1e9))
    with pytest.raises(VaiomError, match="1 values, first gap_z of row 50"):
        events.require_equal(made, changed)
    with pytest.raises(VaiomError, match="differ"):
        events.require_equal(made, made[:-1])
    with pytest.raises(VaiomError, match="float64"):
        events.require_equal(made, made.astype(np.float64))  # type: ignore[arg-type]


def test_bars_run_and_peak_memory_is_measured() -> None:
    measured = bars.measure(bars.minutes(0, 20_000), "made-up minutes", repeats=1)
    assert measured.equal == "all 334 bars, exactly"
    folder = bars.measure_folder(30_000)
    assert folder["folder_rows"] == 30_000
    assert folder["folder_seconds"] > 0
    assert 20 < folder["peak_mib"] < 3072


def test_bars_that_differ_in_one_value_are_named() -> None:
    made = resample(bars.minutes(0, 300), "1h")
    above = made.with_columns(Low=pl.Series(np.nextafter(made["Low"].to_numpy(), np.inf)))
    with pytest.raises(VaiomError, match="Low of row 0"):
        bars.require_equal(made, above)
    with pytest.raises(VaiomError, match="5 against 4"):
        bars.require_equal(made, made[:-1])


def test_made_up_minutes_go_on_from_block_to_block_and_rest_at_weekends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "BLOCK_ROWS", 7_000)
    bars.write_minutes(tmp_path / "minutes", 15_000)
    stamps = pl.read_parquet(tmp_path / "minutes" / "MADEUP.parquet")["Datetime"]
    assert stamps.equals(bars.minutes(0, 15_000)["Datetime"])
    assert sorted(stamps.dt.weekday().unique()) == [1, 2, 3, 4, 5]
    assert sorted(stamps.diff().drop_nulls().dt.total_minutes().unique()) == [1, 2 * 24 * 60 + 1]


def test_a_folder_of_hours_does_not_stand_in_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "RACE_ROWS", 600)
    hours = resample(bars.minutes(0, 6_000), "1h")
    write_symbol(tmp_path, "HOURS", hours)
    assert bars.race_input(tmp_path)[1] == "made-up minutes"
    write_symbol(tmp_path, "MINUTES", bars.minutes(0, 100))
    frame, source = bars.race_input(tmp_path)
    assert source == f"MINUTES of {tmp_path}"
    assert len(frame) == 100


def test_startup_runs_and_an_empty_help_is_an_error() -> None:
    measured = startup.run(repeats=1)
    assert (
        measured.extra["difference_seconds"] == measured.ours_seconds - measured.reference_seconds
    )
    with pytest.raises(VaiomError, match="printed no help"):
        startup.require_help("")


def test_both_sides_are_run_in_turns() -> None:
    turns: list[str] = []
    race(lambda: turns.append("ours"), lambda: turns.append("reference"), repeats=3)
    assert turns == ["ours", "reference"] * 3


def test_unknown_benchmarks_list_the_known() -> None:
    with pytest.raises(ConfigError, match="events, bars, startup"):
        command.run(["speed"])


def test_a_reference_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'vaiom\[dev\]'"):
        reference_library("a_library_nobody_has")
