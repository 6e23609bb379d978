"""The simulated market: a proper bar folder, the same for the same seed, and drawn from the law that it states."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from vaiom.errors import DataError
from vaiom.events.build import build_corpus
from vaiom.market.folder import BAR_SCHEMA, read_bars
from vaiom.market.symbols import default_class
from vaiom.simulate.market import (
    MarketConfig,
    SimulatedAsset,
    calendar_profile,
    simulate,
    trading_hours,
    write_market,
)
from vaiom.simulate.oracle import Oracle, observe

SMALL = MarketConfig(assets=3, bars=15_000, faults_per_bar=0.005)


@pytest.fixture(scope="module")
def market() -> dict[str, SimulatedAsset]:
    return simulate(SMALL)


def faulty_rows(one: SimulatedAsset) -> np.ndarray:
    printed = one.bars["Close"].to_numpy() * one.asset.ticks_per_unit
    return ~(np.abs(printed - one.truth.ticks) < 0.5)


def test_same_seed_same_market_and_other_seeds_differ(market: dict[str, SimulatedAsset]) -> None:
    again, other = simulate(SMALL), simulate(MarketConfig(assets=3, bars=15_000, seed=SMALL.seed + 1))
    for symbol, one in market.items():
        assert_frame_equal(one.bars, again[symbol].bars)
        np.testing.assert_array_equal(one.truth.weights, again[symbol].truth.weights)
        assert not one.bars["Close"].equals(other[symbol].bars["Close"])


def test_an_asset_does_not_depend_on_how_many_others_there_are(market: dict[str, SimulatedAsset]) -> None:
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
    classes = {one.asset.symbol: one.asset.metal for one in simulate(MarketConfig(assets=20, bars=2)).values()}
    assert len(classes) == 20
    assert {default_class(symbol) == "SPOT" for symbol, metal in classes.items() if metal} == {True}
    assert {default_class(symbol) == "FX" for symbol, metal in classes.items() if not metal} == {True}


@pytest.mark.parametrize("metal", [False, True])
def test_the_calendar_closes_on_weekends_and_holidays(metal: bool) -> None:
    hours, following = trading_hours(metal, 30_000, datetime(2025, 12, 31, 23))
    stamps = pl.Series(np.append(hours, following).astype("datetime64[us]"))
    assert len(hours) == 30_000
    assert stamps.diff().drop_nulls().min() == np.timedelta64(1, "h").astype(object)
    assert hours[-1] == np.datetime64("2025-12-31T23")
    assert following == np.datetime64("2026-01-02T00")
    weekday, hour = stamps.dt.weekday(), stamps.dt.hour()
    assert not (weekday == 6).any()
    assert hour.filter(weekday == 7).min() == 22
    assert hour.filter(weekday == 5).max() == (20 if metal else 21)
    assert (21 in hour.to_list()) is not metal
    assert not ((stamps.dt.month() == 12) & (stamps.dt.day() == 25)).any()
    assert not ((stamps.dt.month() == 1) & (stamps.dt.day() == 1)).any()


def test_the_truth_follows_from_the_printed_bars_alone(market: dict[str, SimulatedAsset]) -> None:
    for one in market.values():
        hours, following = trading_hours(one.asset.metal, SMALL.bars, SMALL.end)
        profile = calendar_profile(one.asset, np.append(hours, following))
        close = one.bars["Close"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        seen = observe(one.truth.timestamps, close, profile, one.asset.ticks_per_unit, SMALL.dynamics)
        for name in ("ticks", "pull", "scale", "weights"):
            np.testing.assert_array_equal(getattr(seen, name), getattr(one.truth, name))


def test_every_close_is_drawn_from_the_law_of_the_row_before(market: dict[str, SimulatedAsset]) -> None:
    rng = np.random.default_rng(0)
    transforms = []
    for one in market.values():
        rows = np.flatnonzero(~faulty_rows(one)[1:])
        now = one.truth.ticks[rows + 1, None].astype(np.float64)
        below = one.truth.mass(rows, np.full_like(now, -np.inf), now - 1)[:, 0]
        transforms.append(below + rng.random(len(rows)) * one.truth.mass(rows, now - 1, now)[:, 0])
    centred = np.concatenate(transforms) - 0.5
    four_errors = 4 / np.sqrt(len(centred))
    assert abs(centred.mean()) * np.sqrt(12) < four_errors
    assert abs((12 * centred**2).mean() - 1) < 0.9 * four_errors
    for values in (centred, np.abs(centred)):
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < four_errors


def test_the_targets_beside_a_faulty_row_are_invalid(market: dict[str, SimulatedAsset], tmp_path: Path) -> None:
    write_market(market, SMALL, tmp_path / "bars")
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus")
    for symbol, rows in corpus.asset_slices.items():
        faulty = np.flatnonzero(faulty_rows(market[symbol]))
        assert len(faulty) > 30
        assert np.diff(faulty).min() > 1
        assert 0 < market[symbol].bars["Close"][faulty].null_count() < len(faulty)
        target, valid = corpus.target_return[rows], corpus.valid_base[rows]
        for row in (faulty - 1, faulty):
            assert (target[row] == 0).all()
            assert not valid[row].any()


def test_a_written_market_reads_back(market: dict[str, SimulatedAsset], tmp_path: Path) -> None:
    out = tmp_path / "bars"
    manifest = write_market(market, SMALL, out)
    assert set(manifest["symbols"]) == set(market)
    for symbol, frame in read_bars(out).items():
        assert_frame_equal(frame, market[symbol].bars)
    for symbol, truth in Oracle.load(out).truths.items():
        for name in truth.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(truth, name), getattr(market[symbol].truth, name))
    with pytest.raises(DataError, match="exists already"):
        write_market(market, SMALL, out)
    assert [path.name for path in tmp_path.iterdir()] == ["bars"]


@pytest.mark.parametrize(
    "change",
    [
        {"assets": 0},
        {"bars": 1},
        {"seed": -1},
        {"faults_per_bar": 0.5},
        {"end": datetime.fromisoformat("2025-01-01T00:00+00:00")},
    ],
)
def test_a_market_that_cannot_be_made_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        MarketConfig(**change)  # type: ignore[arg-type]
