"""The simulated market: a proper bar folder, the same for the same seed, and drawn from the law
that it states.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.special import ndtri

from vaiom.codec import from_json
from vaiom.corpus.build import corpus_in_memory
from vaiom.errors import DataError
from vaiom.market.folder import BAR_SCHEMA, read_bars
from vaiom.market.symbols import default_class
from vaiom.simulation.hours import Asset, calendar_profile, trading_stamps
from vaiom.simulation.market import MarketConfig, simulate, simulate_assets, write_market
from vaiom.simulation.oracle import Dynamics, Filter, Oracle
from vaiom.simulation.prices import SimulatedAsset

SMALL = MarketConfig(assets=3, bars=15_000, faults_per_bar=0.005)
STORED = Path(__file__).parent / "stored_market"


@pytest.fixture(scope="module")
def market() -> dict[str, SimulatedAsset]:
    return simulate(SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("market") / "bars"
    manifest = write_market(SMALL, out)
    assert list(manifest["symbols"]) == ["SIM01USD", "SIM02USD", "XAUSIM"]
    assert json.loads((out / "manifest.json").read_text()) == manifest
    known = json.loads((out / "truth" / "market.json").read_text())
    assert (known["market"], list(known["assets"])) == (
        manifest["market"],
        list(manifest["symbols"]),
    )
    assert {entry["rows"] for entry in manifest["symbols"].values()} == {SMALL.bars}
    return out


def faulty_rows(one: SimulatedAsset) -> np.ndarray:
    printed = one.bars["Close"].to_numpy() * one.asset.ticks_per_unit
    return ~(np.abs(printed - one.truth.ticks) < 0.5)


def test_same_seed_same_market_and_other_seeds_differ(market: dict[str, SimulatedAsset]) -> None:
    again, other = (
        simulate(SMALL),
        simulate(MarketConfig(assets=3, bars=15_000, seed=SMALL.seed + 1)),
    )
    for symbol, one in market.items():
        assert_frame_equal(one.bars, again[symbol].bars)
        np.testing.assert_array_equal(one.truth.weights, again[symbol].truth.weights)
        assert not one.bars["Close"].equals(other[symbol].bars["Close"])


def test_settings_that_an_earlier_version_stored_give_its_bars() -> None:
    stored = json.loads((STORED / "manifest.json").read_text())
    config, usual = from_json(MarketConfig, stored["market"]), MarketConfig()
    assert (usual.assets, usual.bars, usual.seed, usual.timeframe) == (6, 64_000, 17, "1h")
    assert replace(usual, assets=3, bars=2_400, seed=5) == config
    market, bars = simulate(config), read_bars(STORED)
    assert list(market) == list(bars) == list(stored["symbols"])
    for symbol, one in market.items():
        assert_frame_equal(one.bars, bars[symbol], check_exact=True)


def test_an_asset_does_not_depend_on_how_many_others_there_are(
    market: dict[str, SimulatedAsset],
) -> None:
    alone = simulate(MarketConfig(assets=1, bars=SMALL.bars, faults_per_bar=SMALL.faults_per_bar))
    (symbol,) = alone
    assert_frame_equal(alone[symbol].bars, market[symbol].bars)


def test_bars_are_sensible(market: dict[str, SimulatedAsset]) -> None:
    for one in market.values():
        assert dict(one.bars.schema) == BAR_SCHEMA
        assert one.bars.height == SMALL.bars
        priced = one.bars.drop_nulls()
        assert priced.select(
            (
                (pl.col("High") >= pl.max_horizontal("Open", "Close"))
                & (pl.col("Low") <= pl.min_horizontal("Open", "Close"))
                & (pl.col("Low") > 0)
                & (pl.col("Volume") > 0)
            ).all()
        ).item()


def test_there_are_two_classes_as_the_corpus_sees_them() -> None:
    market = simulate(MarketConfig(assets=20, bars=2))
    classes = {one.asset.symbol: one.asset.metal for one in market.values()}
    first = {symbol: one.bars["Close"][0] for symbol, one in market.items() if one.asset.metal}
    assert first == {"XAUSIM": 1_500.0, "XAGSIM": 20.0, "XPTSIM": 900.0, "XPDSIM": 1_200.0}
    assert len(classes) == 20
    assert {default_class(symbol) == "SPOT" for symbol, metal in classes.items() if metal} == {True}
    assert {default_class(symbol) == "FX" for symbol, metal in classes.items() if not metal} == {
        True
    }


SOME_PAIR = Asset("PAIR", False, 1.0, 100_000, 0.001, (1.0, 1.0, 1.0))
SOME_METAL = replace(SOME_PAIR, metal=True)


def stamps_of(asset: Asset, config: MarketConfig) -> np.ndarray:
    """Of all rows, and of the one after them."""
    stamps = trading_stamps(asset, config.bars, config.step, config.end, 0, config.bars + 1)
    return stamps.astype("datetime64[us]")


@pytest.mark.parametrize(("timeframe", "minutes"), [("1h", 60), ("45min", 45), ("10min", 10)])
@pytest.mark.parametrize("metal", [False, True])
def test_the_calendar_closes_on_weekends_and_holidays(
    metal: bool, timeframe: str, minutes: int
) -> None:
    config = MarketConfig(bars=30_000 * minutes // 60, timeframe=timeframe)
    stamps = pl.Series(stamps_of(SOME_METAL if metal else SOME_PAIR, config))
    assert len(stamps) == config.bars + 1
    assert stamps[-2] == datetime(2025, 12, 31, 23)
    every = pl.datetime_range(stamps[0], stamps[-1], timedelta(minutes=minutes), eager=True)
    weekday, hour = every.dt.weekday(), every.dt.hour()
    closed = (weekday == 6) | ((weekday == 5) & (hour >= 22)) | ((weekday == 7) & (hour < 22))
    closed |= (every.dt.month() == 12) & (every.dt.day() == 25) | (every.dt.month() == 1) & (
        every.dt.day() == 1
    )
    assert stamps.to_list() == every.filter(~(closed | (hour == 21) & metal)).to_list()


def test_the_truth_follows_from_the_printed_bars_alone(market: dict[str, SimulatedAsset]) -> None:
    for one in market.values():
        profile = calendar_profile(one.asset, stamps_of(one.asset, SMALL))
        close = one.bars["Close"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        seen = Filter(one.asset.ticks_per_unit, SMALL.dynamics).observe(
            one.truth.timestamps, close, profile
        )
        for name in ("ticks", "pull", "scale", "weights"):
            np.testing.assert_array_equal(getattr(seen, name), getattr(one.truth, name))


def ranks(one: SimulatedAsset) -> pl.DataFrame:
    """Where each close lies in the law of the row before, uniform in (0, 1), by stamp."""
    rows = np.flatnonzero(~faulty_rows(one)[1:])
    now = one.truth.ticks[rows + 1, None].astype(np.float64)
    below = one.truth.mass(rows, np.full_like(now, -np.inf), now - 1)[:, 0]
    inside = np.random.default_rng(0).random(len(rows))
    rank = below + inside * one.truth.mass(rows, now - 1, now)[:, 0]
    return pl.DataFrame({"stamp": one.truth.timestamps[rows + 1], "rank": rank})


ALTERNATING = Dynamics(spread=(0.2, 1.4), drift=(0.0, 0.1), transition=((0.0, 1.0), (1.0, 0.0)))


@pytest.mark.parametrize(
    "changes", [{}, {"correlation": 0.6}, {"dynamics": ALTERNATING}], ids=["", "factor", "states"]
)
def test_every_close_is_drawn_from_the_law_of_the_row_before(
    market: dict[str, SimulatedAsset], changes: dict[str, Any]
) -> None:
    config, correlation = (
        MarketConfig(assets=3, bars=6_000, faults_per_bar=0.005, **changes),
        changes.get("correlation", 0),
    )
    ranked = [ranks(one) for one in (simulate(config) if changes else market).values()]
    centred = np.concatenate([each["rank"] for each in ranked]) - 0.5
    four_errors = 4 / np.sqrt(len(centred) * (1 - correlation))
    assert abs(centred.mean()) * np.sqrt(12) < four_errors
    assert abs((12 * centred**2).mean() - 1) < 0.9 * four_errors
    for values in (centred, np.abs(centred)):
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < four_errors
    for other in ranked[1:]:  # in the same bar, whatever hours each of them trades
        both = ranked[0].join(other, on="stamp")
        scores = np.corrcoef(ndtri(both["rank"]), ndtri(both["rank_right"]))[0, 1]
        assert scores == pytest.approx(correlation, abs=4 / np.sqrt(len(both)))


def test_faulty_rows_have_no_prices_or_a_misplaced_point(market: dict[str, SimulatedAsset]) -> None:
    kinds: list[float] = []
    for one in market.values():
        rows = np.flatnonzero(faulty_rows(one))
        assert len(rows) / SMALL.bars == pytest.approx(SMALL.faults_per_bar, rel=0.5)
        close = one.truth.ticks[rows] / one.asset.ticks_per_unit
        kinds += (one.bars["Close"][rows].to_numpy() / close).round(9).tolist()
        empty = one.bars["Close"].is_null()
        assert (empty == one.bars["Open"].is_null()).all()
        assert one.bars["Volume"].null_count() == 0
    for kind in (10.0, 0.1):
        assert 0.2 < kinds.count(kind) / len(kinds) < 0.5
    assert 0.2 < np.isnan(kinds).mean() < 0.5


def test_the_targets_beside_a_faulty_row_are_invalid(
    market: dict[str, SimulatedAsset], folder: Path
) -> None:
    corpus = corpus_in_memory(folder)
    for symbol, rows in corpus.asset_slices.items():
        faulty = np.flatnonzero(faulty_rows(market[symbol]))
        assert len(faulty) > 30
        assert np.diff(faulty).min() > 1
        assert 0 < market[symbol].bars["Close"][faulty].null_count() < len(faulty)
        target, valid = corpus.target_return[rows], corpus.valid_base[rows]
        for row in (faulty - 1, faulty):
            assert (target[row] == 0).all()
            assert not valid[row].any()


def test_a_written_market_reads_back(market: dict[str, SimulatedAsset], folder: Path) -> None:
    for symbol, frame in read_bars(folder).items():
        assert_frame_equal(frame, market[symbol].bars)
    for symbol, truth in Oracle.load(folder).truths.items():
        for name in truth.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(truth, name), getattr(market[symbol].truth, name))
    with pytest.raises(DataError, match="exists already"):
        write_market(SMALL, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["bars"]


@pytest.mark.parametrize(
    "changes", [{}, {"correlation": 0.4}, {"timeframe": "45min"}], ids=["hours", "factor", "odd"]
)
def test_parts_of_any_size_give_the_same_files(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = MarketConfig(assets=3, bars=120, faults_per_bar=0.1, **changes)
    write_market(config, tmp_path / "whole")
    for size in (1, 7, 64):
        write_market(config, tmp_path / str(size), part_rows=size)
        assert files_in(tmp_path / str(size)) == files_in(tmp_path / "whole")


def files_in(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_market_is_written_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, num_held = weakref.WeakSet[SimulatedAsset](), []

    def watch(parts: Iterator[SimulatedAsset]) -> Iterator[SimulatedAsset]:
        for part in parts:
            held.add(part)
            num_held.append(len(held))
            yield part
            del part

    def watched(*values: Any, **options: Any) -> Iterator[tuple[Asset, Iterator[SimulatedAsset]]]:
        for asset, parts in simulate_assets(*values, **options):
            yield asset, watch(parts)

    monkeypatch.setattr("vaiom.simulation.market.simulate_assets", watched)
    write_market(MarketConfig(assets=5, bars=20), tmp_path / "bars", part_rows=8)
    assert len(num_held) == 5 * 3
    assert max(num_held) == 2  # the one before is let go when the next is there


def test_no_asset_has_the_random_numbers_of_the_factor_that_all_share() -> None:
    config = MarketConfig(assets=66, bars=2)
    drawn = {one.asset.symbol: one.asset.hourly_scale for one in simulate(config).values()}
    assert len({*drawn.values()}) == 66
    _, size = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(64,))).uniform(
        -1, 1, 2
    )
    assert not np.isclose([*drawn.values()], 0.0011 * np.exp(0.15 * size), rtol=1e-9).any()


def test_bars_may_be_parts_of_an_hour() -> None:
    hours, parts = (
        simulate(MarketConfig(assets=1, bars=6000, timeframe=timeframe))["SIM01USD"]
        for timeframe in ("1h", "5min")
    )
    assert parts.bars["Datetime"].diff().drop_nulls().mode().to_list() == [timedelta(minutes=5)]
    assert np.median(hours.truth.scale) / np.median(parts.truth.scale) == pytest.approx(
        12**0.5, rel=0.2
    )
    with pytest.raises(ValueError, match="timeframe"):
        MarketConfig(timeframe="4h")


@pytest.mark.parametrize(
    "change",
    [
        {"assets": 0},
        {"assets": 10_001},
        {"bars": 300_001},
        {"bars": 1},
        {"seed": -1},
        {"faults_per_bar": 0.5},
        {"end": datetime.fromisoformat("2025-01-01T00:00+00:00")},
    ],
)
def test_a_market_that_cannot_be_made_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        MarketConfig(**change)  # type: ignore[arg-type]
