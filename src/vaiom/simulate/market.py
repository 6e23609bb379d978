"""A simulated market: bars of any number of assets whose true distribution of the next return is known.

Enters: a `MarketConfig`. Leaves: per asset its bars and its `Truth`, or a bar folder with both. On real bars nobody
knows the best reachable bits per event; here everybody does, so the demo and the tests use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.codec import to_json
from vaiom.files import Progress, staged_folder, write_json
from vaiom.market.folder import BAR_SCHEMA, PRICE_COLUMNS, counted, describe, write_manifest, write_symbol
from vaiom.market.timeframes import step_seconds
from vaiom.simulate.oracle import TRUTH_FOLDER, UNIT_VARIANCE, Dynamics, FloatArray, IntArray, Truth, observe, require

Stamps = NDArray[np.datetime64]
BoolArray = NDArray[np.bool_]

MAX_ASSETS = 10_000
MAX_HOURS = 300_000
"""Of trade: more would begin before 1970."""

_FACTOR = 64  # the place of the shared factor among the assets' random numbers

_METALS = (("XAUSIM", 1_500.0, 10), ("XAGSIM", 20.0, 1_000), ("XPTSIM", 900.0, 10), ("XPDSIM", 1_200.0, 10))
_FX_TICKS_PER_UNIT = 100_000
_HOLIDAYS = ((12, 25), (1, 1))
_WEEK_OPENS, _WEEK_CLOSES = 6 * 24 + 22, 4 * 24 + 22  # hours since Monday midnight: Sunday evening, Friday evening
_METALS_PAUSE_HOUR = 21
_SESSION_HOURS = np.array([1.0, 8.0, 14.0])  # Asia, London, New York
_SESSION_FOCUS = 5.0
_FX_SESSIONS, _METAL_SESSIONS = (0.45, 1.15, 1.3), (0.45, 0.9, 1.6)  # how much each session moves a class
_WEEKLY_NEWS = ((2, 18), (4, 12))  # (weekday, hour) at which every asset moves more
_NEWS_FACTOR = 1.35
_OPENING_FACTOR = 2.2
_DAY_LEVEL = np.array([0.90, 0.98, 1.03, 1.03, 1.04, 1.0, 1.0])
_DECIMAL_SLIP = 10.0


@dataclass(frozen=True, kw_only=True)
class MarketConfig:
    """A market in a few numbers; the same numbers give the same bars."""

    assets: int = 6
    bars: int = 64_000
    timeframe: str = "1h"
    """An hour or a part of it; the dynamics are those of a bar, whatever its length."""
    seed: int = 17
    end: datetime = datetime(2025, 12, 31, 23)
    faults_per_bar: float = 2e-4
    dynamics: Dynamics = field(default_factory=Dynamics)
    correlation: float = 0.0
    """Of the noise of any two assets in the same hour, in normal scores."""

    def __post_init__(self) -> None:
        step = step_seconds(self.timeframe)
        most = MAX_HOURS * 3600 // step
        require(
            (1 <= self.assets <= MAX_ASSETS, f"assets must be between 1 and {MAX_ASSETS}, got {self.assets}"),
            (step <= 3600, f"timeframe must be an hour or a part of it, got {self.timeframe}"),
            (2 <= self.bars <= most, f"bars must be between 2 and {most}, got {self.bars}"),
            (self.seed >= 0, f"seed must not be negative, got {self.seed}"),
            (self.end.tzinfo is None, "end must be a naive datetime"),
            (0 <= self.correlation < 1, f"correlation must lie in [0, 1), got {self.correlation}"),
            (0 <= self.faults_per_bar <= 0.1, f"faults_per_bar must be between 0 and 0.1, got {self.faults_per_bar}"),
        )


@dataclass(frozen=True)
class Asset:
    """The public constants of one asset."""

    symbol: str
    metal: bool
    start: float
    ticks_per_unit: int
    hourly_scale: float
    sessions: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class SimulatedAsset:
    asset: Asset
    bars: pl.DataFrame
    truth: Truth


def simulate(config: MarketConfig | None = None) -> dict[str, SimulatedAsset]:
    """All assets of a market, by symbol."""
    return {one.asset.symbol: one for one in simulate_assets(config or MarketConfig())}


def simulate_assets(config: MarketConfig, progress: Progress | None = None) -> Iterator[SimulatedAsset]:
    """The assets of a market one after another; none depends on how many others there are."""
    seeds = np.random.SeedSequence(config.seed).spawn(max(config.assets, _FACTOR) + 1)
    del seeds[_FACTOR]
    generators = map(np.random.default_rng, seeds[: config.assets])
    drawn = [(_draw_asset(number, rng), rng) for number, rng in enumerate(generators)]
    for asset, rng in counted(drawn, progress, lambda pair: pair[0].symbol):
        yield _simulate_asset(asset, config, rng)


def write_market(
    config: MarketConfig, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Write a bar folder with the truth beside the bars, an asset at a time; the manifest is returned."""
    stored, usual = to_json(config), MarketConfig()
    for name in ("correlation", "timeframe"):  # as it always was
        if getattr(config, name) == getattr(usual, name):
            del stored[name]
    symbols, assets = {}, {}
    with staged_folder(out, overwrite=overwrite) as folder:
        for one in simulate_assets(config, progress):
            symbol = one.asset.symbol
            symbols[symbol], assets[symbol] = describe(one.bars), one.asset
            write_symbol(folder, symbol, one.bars)
            one.truth.save(folder / TRUTH_FOLDER / f"{symbol}.npz")
        write_json(folder / TRUTH_FOLDER / "market.json", to_json({"market": stored, "assets": assets}))
        manifest = {"source": "simulated", "timeframe": config.timeframe, "market": stored, "symbols": symbols}
        write_manifest(folder, manifest)
    return manifest


def _draw_asset(number: int, rng: np.random.Generator) -> Asset:
    """Every third asset is a metal while there are metals left; the rest are currency pairs."""
    level, size = rng.uniform(-1, 1), rng.uniform(-1, 1)
    metal = number % 3 == 2 and number // 3 < len(_METALS)
    pair = (f"SIM{number + 1:02}USD", 0.9 * exp(0.3 * level), _FX_TICKS_PER_UNIT)
    symbol, start, ticks_per_unit = _METALS[number // 3] if metal else pair
    sessions, typical = (_METAL_SESSIONS, 0.0022) if metal else (_FX_SESSIONS, 0.0011)
    scale = typical * exp(0.15 * size)
    return Asset(symbol, metal, start, ticks_per_unit, scale, sessions)


def trading_stamps(metal: bool, config: MarketConfig) -> tuple[Stamps, np.datetime64]:
    """The last stamps of bars up to the market's end, and the one that follows them."""
    step = np.timedelta64(step_seconds(config.timeframe), "s")
    last, fortnight = np.datetime64(config.end, "h").astype("datetime64[s]"), np.timedelta64(14, "D")
    open_share = 0.6  # a lower bound of the share of time that trades, holidays and pauses included
    stamps = np.arange(last - int(config.bars / open_share) * step - fortnight, last + fortnight, step)
    days = stamps.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    week_hour = _week_hour(stamps)
    closed = (week_hour >= _WEEK_CLOSES) & (week_hour < _WEEK_OPENS)
    for month, day in _HOLIDAYS:
        closed |= (months.astype(np.int64) % 12 + 1 == month) & ((days - months).astype(np.int64) + 1 == day)
    if metal:
        closed |= week_hour % 24 == _METALS_PAUSE_HOUR
    trading = stamps[~closed]
    stop = int(np.searchsorted(trading, last, side="right"))
    return trading[stop - config.bars : stop], trading[stop]


def calendar_profile(asset: Asset, stamps: Stamps) -> FloatArray:
    """The known scale of an hour at each stamp: sessions of the day, day of the week, weekly news, openings."""
    week_hour = _week_hour(stamps)
    angle = 2 * np.pi * (np.arange(24)[:, None] - _SESSION_HOURS) / 24
    of_day = np.exp(np.exp(_SESSION_FOCUS * (np.cos(angle) - 1)) @ np.array(asset.sessions))
    of_day *= asset.hourly_scale / np.sqrt(np.mean(of_day**2))
    profile: FloatArray = of_day[week_hour % 24] * _DAY_LEVEL[week_hour // 24]
    for weekday, hour in _WEEKLY_NEWS:
        profile[week_hour == 24 * weekday + hour] *= _NEWS_FACTOR
    profile[_follows_closure(stamps)] *= _OPENING_FACTOR
    return profile


def _simulate_asset(asset: Asset, config: MarketConfig, rng: np.random.Generator) -> SimulatedAsset:
    stamps, following = trading_stamps(asset.metal, config)
    profile = calendar_profile(asset, np.append(stamps, following)) * sqrt(step_seconds(config.timeframe) / 3600)
    # Rows at which the feed fails: never the first, never two in a row, which could hide each other.
    faulty = rng.random(config.bars) < config.faults_per_bar
    faulty[0] = False
    for row in np.flatnonzero(faulty):
        faulty[row] = not faulty[row - 1]
    ticks = _walk(asset, profile, faulty, config.dynamics, _draw_noise(config, stamps, rng).tolist(), rng)
    close = ticks / asset.ticks_per_unit
    close[faulty] = np.nan
    truth = observe(stamps.astype("datetime64[us]"), close, profile, asset.ticks_per_unit, config.dynamics)
    bars = _bars_around(truth, asset, _follows_closure(stamps), rng)
    # Faulty rows have no prices at all, or a decimal point that slipped.
    kind = rng.integers(0, 3, len(faulty))
    factor = np.select([~faulty, kind == 1, kind == 2], [1.0, _DECIMAL_SLIP, 1 / _DECIMAL_SLIP], default=np.nan)
    spoiled = (pl.col(PRICE_COLUMNS) * pl.lit(pl.Series(factor))).fill_nan(None)
    return SimulatedAsset(asset, bars.with_columns(spoiled), truth)


def _walk(
    asset: Asset,
    profile: FloatArray,
    faulty: BoolArray,
    dynamics: Dynamics,
    noise: list[float],
    rng: np.random.Generator,
) -> IntArray:
    """The closes in ticks: each hidden move starts from the last rounded price."""
    states = _draw_states(dynamics, len(faulty), rng)
    calendar, fails = profile.tolist(), faulty.tolist()
    ticks = [round(asset.start * asset.ticks_per_unit)]
    variance = 1.0
    for row in range(1, len(faulty)):
        last = ticks[-1]
        if fails[row]:
            ticks.append(last)
            continue
        state = states[row]
        pull = dynamics.pull * log(ticks[0] / last)
        move = pull + calendar[row] * sqrt(variance) * (dynamics.drift[state] + dynamics.spread[state] * noise[row])
        ticks.append(max(1, round(last * exp(move))))
        variance = dynamics.next_variance(variance, log(ticks[-1] / last) / calendar[row])
    return np.array(ticks)


def _draw_noise(config: MarketConfig, stamps: Stamps, rng: np.random.Generator) -> FloatArray:
    """Student-t noise of unit variance; correlated assets share a normal factor of the bar."""
    if not config.correlation:
        return np.asarray(UNIT_VARIANCE * rng.standard_t(4, len(stamps)))
    from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

    ago = (np.datetime64(config.end, "h") - stamps) // np.timedelta64(step_seconds(config.timeframe), "s")
    shared = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(_FACTOR,)))
    factor = shared.standard_normal(int(ago.max()) + 1)[ago]
    own = rng.standard_normal(len(stamps))
    scores = sqrt(config.correlation) * factor + sqrt(1 - config.correlation) * own
    return np.asarray(UNIT_VARIANCE * stdtrit(4, ndtr(scores)))


def _draw_states(dynamics: Dynamics, bars: int, rng: np.random.Generator) -> list[int]:
    """A path of the hidden chain; the state of the first bar is drawn from the long-run shares."""
    reach = np.cumsum(dynamics.transition, axis=1)[:, :-1].tolist()
    first, *uniforms = rng.random(bars).tolist()
    states = [int(np.searchsorted(np.cumsum(dynamics.stationary())[:-1], first, side="right"))]
    for uniform in uniforms:
        states.append(sum(uniform >= bound for bound in reach[states[-1]]))
    return states


def _bars_around(truth: Truth, asset: Asset, opening: BoolArray, rng: np.random.Generator) -> pl.DataFrame:
    """Open, High, Low and Volume given closes and public scales alone, which keeps the filter of `oracle` exact."""
    close = truth.ticks.astype(np.float64)
    before = np.append(close[:1], close[:-1])
    move = np.log(close / before)
    scale = np.append(truth.scale[:1], truth.scale[:-1])
    reopening = 0.6 * move + 0.5 * scale * rng.standard_normal(len(close))
    gap = np.where(opening, reopening, 0.025 * scale * rng.standard_t(3, len(close)))
    start = np.maximum(np.rint(before * np.exp(np.clip(gap, -0.5, 0.5))), 1.0)
    # The extremes of a Brownian path that is tied to the open and the close; they reach at least as far as both.
    path = np.log(close / start)
    wander = -2.0 * (0.8 * scale) ** 2 * np.log(rng.random((2, len(close))))
    high = np.rint(start * np.exp((path + np.sqrt(path**2 + wander[0])) / 2))
    low = np.rint(start * np.exp((path - np.sqrt(path**2 + wander[1])) / 2))
    activity = 0.5 * (scale + np.abs(move)) / asset.hourly_scale
    volume = np.rint(1 + 3_000 * activity * np.exp(0.3 * rng.standard_normal(len(close))))
    prices = np.array([start, high, np.maximum(low, 1.0), close]) / asset.ticks_per_unit
    columns = zip(BAR_SCHEMA, (truth.timestamps, *prices, volume), strict=True)
    return pl.DataFrame(dict(columns)).cast(BAR_SCHEMA)  # type: ignore[arg-type]


def _week_hour(stamps: Stamps) -> IntArray:
    """Hours since Monday midnight; the epoch was a Thursday."""
    return (stamps.astype("datetime64[h]").astype(np.int64) + 3 * 24) % (7 * 24)


def _follows_closure(stamps: Stamps) -> BoolArray:
    """Bars that open after a weekend or a holiday, not after the metals' daily pause."""
    return np.diff(stamps, prepend=stamps[:1]) > np.timedelta64(12, "h")
