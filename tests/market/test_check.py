"""The quality report as a whole: facts, order and value findings, JSON, folders,
degenerate frames.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import frame_of, price_pairs, random_bars
from vaiom.errors import DataError
from vaiom.market.check import AssetQuality, QualityReport, check_bars, check_folder
from vaiom.market.findings import Severity
from vaiom.market.folder import BAR_SCHEMA, write_symbol
from vaiom.simulation.market import MarketConfig, simulate


def counts(asset: AssetQuality) -> dict[str, int]:
    return {finding.kind: finding.count for finding in asset.findings}


def test_clean_bars_have_no_finding() -> None:
    asset = check_bars("EURUSD", random_bars(3000))
    assert (asset.rows, asset.timeframe_seconds, asset.findings) == (3000, 3600, ())
    assert asset.first == datetime(2023, 11, 1)
    assert asset.last == asset.first + timedelta(hours=2999)
    assert asset.gaps.missing_bins == 0


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 7])
def test_a_handful_of_rows_is_no_trouble(rows: int) -> None:
    asset = check_bars("EURUSD", random_bars(7).head(rows))
    assert (asset.rows, asset.findings) == (rows, ())
    assert (asset.first is None) == (rows == 0)
    assert (asset.timeframe_seconds is None) == (rows < 2)
    assert (asset.zero_return_share is None) == (rows < 2)
    json.dumps(QualityReport(assets=(asset,)).to_json(), allow_nan=False)


def test_a_frame_of_nulls_is_no_trouble() -> None:
    nulls = pl.DataFrame({name: [None] * 3 for name in BAR_SCHEMA}, schema=BAR_SCHEMA)
    assert counts(check_bars("EURUSD", nulls)) == {"missing_stamp": 3, "missing_price": 3}


def test_a_row_without_a_stamp_does_not_disturb_the_others() -> None:
    bars = random_bars(500)
    asset = check_bars(
        "EURUSD", bars.vstack(bars.head(1).with_columns(Datetime=pl.lit(None, pl.Datetime("us"))))
    )
    assert counts(asset) == {"missing_stamp": 1}
    assert asset.first == bars["Datetime"][0]


def test_the_gravest_findings_come_first() -> None:
    bars = random_bars(50).with_columns(
        Open=pl.when(pl.int_range(pl.len()) == 7).then(None).otherwise("Open"),
        Low=pl.when(pl.int_range(pl.len()) == 9).then(0.0).otherwise("Low"),
    )
    kinds = [(finding.severity, finding.kind) for finding in check_bars("EURUSD", bars).findings]
    assert kinds == [(Severity.ERROR, "non_positive_price"), (Severity.WARNING, "missing_price")]


@given(st.lists(st.integers(0, 40), min_size=2, max_size=60))
def test_order_and_repeats_are_counted_as_a_plain_loop_counts_them(hours: list[int]) -> None:
    bars = random_bars(len(hours)).with_columns(
        pl.Series(
            "Datetime",
            [datetime(2024, 1, 1) + timedelta(hours=hour) for hour in hours],
            pl.Datetime("us"),
        )
    )
    repeated = sum(hour in hours[:at] for at, hour in enumerate(hours))
    back = sum(hour < max(hours[:at]) for at, hour in enumerate(hours) if at)
    found = counts(check_bars("EURUSD", bars))
    assert found.get("duplicate_stamp", 0) == repeated
    assert found.get("unordered_stamp", 0) == back


@given(price_pairs(), st.integers(0, 2**32 - 1))
def test_values_are_judged_as_a_plain_loop_judges_them(
    prices: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    bars = frame_of(*prices)
    rng = np.random.default_rng(seed)
    lifted = pl.Series(rng.choice([0.999, 1.0, 1.001], len(bars)))
    bars = bars.with_columns(pl.col("High") * lifted, pl.col("Low") * lifted)
    missing = non_positive = senseless = 0
    for _, open_, high, low, close, _ in bars.iter_rows():
        known = [price for price in (open_, high, low, close) if price is not None]
        missing += len(known) < 4
        non_positive += any(price <= 0 for price in known)
        senseless += (high is not None and high < max(known)) or (
            low is not None and low > min(known)
        )
    found = counts(check_bars("EURUSD", bars))
    assert found.get("missing_price", 0) == missing
    assert found.get("non_positive_price", 0) == non_positive
    assert found.get("ohlc_sense", 0) == senseless


def test_stamps_between_the_bins_are_found() -> None:
    bars = random_bars(500)
    late = pl.int_range(pl.len()).is_in([40, 300])
    moved = bars.with_columns(
        pl.when(late).then(pl.col("Datetime").dt.offset_by("7m")).otherwise("Datetime")
    )
    (finding,) = check_bars("EURUSD", moved).findings
    assert (finding.kind, finding.count) == ("off_grid_stamp", 2)
    assert finding.examples[0].startswith("2023-11-02 16:07")


@pytest.mark.parametrize(
    ("shift", "moved"), [("1h", 0), ("-1h", 0), ("2h", 83), ("-2h", 83), ("61m", 83)]
)
def test_session_bars_that_move_with_daylight_saving_are_on_the_grid(
    shift: str, moved: int
) -> None:
    usual = random_bars(300, start=datetime(2024, 4, 1, 21), step=timedelta(days=1))
    season = (
        pl.when(pl.col("Datetime") > datetime(2024, 11, 3, 22))
        .then(pl.lit(shift))
        .otherwise(pl.lit("0h"))
    )
    bars = usual.with_columns(pl.col("Datetime").dt.offset_by(season))
    assert counts(check_bars("EURUSD", bars)).get("off_grid_stamp", 0) == moved


@pytest.mark.parametrize(
    ("start", "step", "phase"),
    [
        (datetime(2024, 1, 1), timedelta(weeks=1), 0),
        (datetime(2024, 1, 7, 22), timedelta(weeks=1), (6 * 24 + 22) * 3600),
        (datetime(2024, 1, 1, 5, 17, 3), timedelta(hours=4), 3600 + 17 * 60 + 3),
        (datetime(2024, 1, 1, 5), timedelta(weeks=4), 0),
    ],
)
def test_the_phase_counts_from_midnight_or_monday(
    start: datetime, step: timedelta, phase: int
) -> None:
    asset = check_bars("EURUSD", random_bars(40, start=start, step=step))
    assert (asset.timeframe_seconds, asset.phase_seconds) == (step // timedelta(seconds=1), phase)
    assert "off_grid_stamp" not in counts(asset)


def test_the_faults_of_a_simulated_market_are_found_and_nothing_grave() -> None:
    for asset in simulate(MarketConfig(assets=2, bars=6000, faults_per_bar=2e-3)).values():
        found = counts(check_bars(asset.asset.symbol, asset.bars))
        assert set(found) == {"missing_price", "spike"}
        assert found["missing_price"] == asset.bars["Close"].null_count()


def test_a_folder_is_reported_asset_by_asset(tmp_path: Path) -> None:
    write_symbol(tmp_path, "EURUSD", random_bars(400))
    write_symbol(tmp_path, "AUDUSD", random_bars(400).with_columns(High=pl.col("Low") * 0.9))
    seen: list[tuple[int, int, str]] = []
    report = check_folder(tmp_path, lambda done, total, symbol: seen.append((done, total, symbol)))
    assert seen == [(0, 2, "AUDUSD"), (1, 2, "EURUSD"), (2, 2, "")]
    answer = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert [asset["symbol"] for asset in answer["assets"]] == ["AUDUSD", "EURUSD"]
    (finding,) = answer["findings"]
    assert (finding["symbol"], finding["kind"], finding["count"]) == ("AUDUSD", "ohlc_sense", 400)
    assert len(finding["examples"]) == 5
    assert finding["severity"] == "warning"


def test_assets_on_another_grid_are_named(tmp_path: Path) -> None:
    for symbol, minute in (("BTCUSDT", 0), ("ETHUSDT", 0), ("SPY", 30)):
        write_symbol(tmp_path, symbol, random_bars(400, start=datetime(2024, 1, 1, 0, minute)))
    report = check_folder(tmp_path)
    found = {asset.symbol: [each.kind for each in asset.findings] for asset in report.assets}
    assert found == {"BTCUSDT": [], "ETHUSDT": [], "SPY": ["other_grid"]}
    assert [asset.phase_seconds for asset in report.assets] == [0, 0, 1800]


def test_a_folder_without_bars_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="vaiom data import"):
        check_folder(tmp_path)
