"""A simulated market: bars of any number of assets whose true distribution of the next return is
known.

Enters: a `MarketConfig`. Leaves: per asset its bars and its `Truth`, or a bar folder with both,
written in parts. The best reachable bits per event are known here, unlike on real bars, so the demo
and the tests use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from math import exp, log, sqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.codec import Interval, Share, check_fields, to_json
from vaiom.files import Progress, atomic_file, staged_folder, staging_folder, write_json
from vaiom.market.folder import BAR_SCHEMA, MANIFEST_NAME, PRICE_COLUMNS, counted, describe
from vaiom.market.sessions import HOUR, slot_of_week
from vaiom.market.timeframes import step_seconds
from vaiom.simulation.oracle import (
    TRUTH_FOLDER,
    UNIT_VARIANCE,
    Dynamics,
    Filter,
    FloatArray,
    IntArray,
    Truth,
    save_truth,
)

Stamps = NDArray[np.datetime64]
BoolArray = NDArray[np.bool_]
Draw = Callable[[int], NDArray[Any]]  # the next random numbers of a sequence, this many

PART_ROWS = 1 << 15
"""Rows of an asset in memory at a time."""

_FACTOR = 64  # the place of the shared factor among the assets' random numbers

_METALS = (
    ("XAUSIM", 1_500.0, 10),
    ("XAGSIM", 20.0, 1_000),
    ("XPTSIM", 900.0, 10),
    ("XPDSIM", 1_200.0, 10),
)
_FORTNIGHT = 14 * 24
_WEEK_OPENS, _WEEK_CLOSES = (
    6 * 24 + 22,
    4 * 24 + 22,
)  # hours since Monday midnight: Sunday evening, Friday evening
_SESSION_HOURS = np.array([1.0, 8.0, 14.0])  # Asia, London, New York
_SESSION_FOCUS = 5.0
_FX_SESSIONS, _METAL_SESSIONS = (
    (0.45, 1.15, 1.3),
    (0.45, 0.9, 1.6),
)  # how much each session moves a class
_WEEKLY_NEWS = ((2, 18), (4, 12))  # (weekday, hour) at which every asset moves more
_NEWS_FACTOR = 1.35
_OPENING_FACTOR = 2.2
_DAY_LEVEL = np.array([0.90, 0.98, 1.03, 1.03, 1.04, 1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class MarketConfig:
    """The settings of a market; equal settings give equal bars."""

    assets: Annotated[int, Interval("[1, 10000]")] = 6
    bars: int = 64_000
    timeframe: str = "1h"
    """An hour or a part of it; the dynamics are per bar, whatever its length."""
    seed: Annotated[int, Interval("[0, inf)")] = 17
    end: datetime = datetime(2025, 12, 31, 23)
    faults_per_bar: Annotated[float, Interval("[0, 0.1]")] = 2e-4
    dynamics: Dynamics = field(default_factory=Dynamics)
    correlation: Share = 0.0
    """Correlation of any two assets' noise in the same bar, in normal scores."""

    def __post_init__(self) -> None:
        check_fields(self)
        step = step_seconds(self.timeframe)
        most = 300_000 * 3600 // step  # more trading hours would begin before 1970
        if step > 3600:
            raise ValueError(f"timeframe must be an hour or a part of it, got {self.timeframe}")
        if not 2 <= self.bars <= most:
            raise ValueError(f"bars must be between 2 and {most}, got {self.bars}")
        if self.end.tzinfo is not None:
            raise ValueError("end must be a naive datetime")


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
    """All rows of an asset, or a part of them."""

    asset: Asset
    bars: pl.DataFrame
    truth: Truth


def simulate(config: MarketConfig | None = None) -> dict[str, SimulatedAsset]:
    """All assets of a market, by symbol."""
    market = {}
    for asset, parts in simulate_assets(config or MarketConfig()):
        frames, truths = zip(*((part.bars, part.truth) for part in parts), strict=True)
        market[asset.symbol] = SimulatedAsset(
            asset, pl.concat(frames, rechunk=True), Truth.joined(truths)
        )
    return market


def simulate_assets(
    config: MarketConfig, progress: Progress | None = None
) -> Iterator[tuple[Asset, Iterator[SimulatedAsset]]]:
    """The assets of a market one by one, each in parts; none depends on the number of others."""
    seeds = np.random.SeedSequence(config.seed).spawn(max(config.assets, _FACTOR) + 1)
    num_shared = (
        _hours_back(config) * 3600 // step_seconds(config.timeframe) if config.correlation else 0
    )
    factor = np.random.default_rng(seeds.pop(_FACTOR)).standard_normal(num_shared)
    generators = map(np.random.default_rng, seeds[: config.assets])
    drawn = [(_draw_asset(number, rng), rng) for number, rng in enumerate(generators)]
    for asset, rng in counted(drawn, progress, lambda pair: pair[0].symbol):
        yield asset, _simulate_parts(asset, config, rng, factor)


def write_market(
    config: MarketConfig, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Write a bar folder with the truth beside the bars, part by part; returns the manifest."""
    stored, usual = to_json(config), MarketConfig()
    for name in ("correlation", "timeframe"):  # manifests of earlier versions lack them
        if getattr(config, name) == getattr(usual, name):
            del stored[name]
    symbols, assets = {}, {}
    with staged_folder(out, overwrite=overwrite) as folder:
        for asset, parts in simulate_assets(config, progress):
            symbols[asset.symbol], assets[asset.symbol] = (
                _write_asset(folder, asset.symbol, parts),
                asset,
            )
        write_json(
            folder / TRUTH_FOLDER / "market.json", to_json({"market": stored, "assets": assets})
        )
        manifest = {
            "source": "simulated",
            "timeframe": config.timeframe,
            "market": stored,
            "symbols": symbols,
        }
        write_json(folder / MANIFEST_NAME, manifest)
    return manifest


def _write_asset(folder: Path, symbol: str, parts: Iterator[SimulatedAsset]) -> dict[str, Any]:
    """Write parts to temporary files and join them, as Polars cannot append to a file; returns the
    manifest entry.
    """
    described: dict[Path, dict[str, Any]] = {}
    with staging_folder(folder) as staging:

        def staged_truths() -> Iterator[Truth]:
            for number, part in enumerate(parts):
                part.bars.write_parquet(
                    file := staging / f"{number}.parquet", compression="uncompressed"
                )
                described[file] = describe(part.bars)
                yield part.truth

        save_truth(folder / TRUTH_FOLDER / f"{symbol}.npz", staged_truths())
        with atomic_file(folder / f"{symbol}.parquet") as staged:
            # Row groups have the size that they have in a frame written at once.
            pl.scan_parquet([*described], glob=False).sink_parquet(staged, row_group_size=100_000)
    facts = [*described.values()]
    return {**facts[0], "rows": sum(part["rows"] for part in facts), "last": facts[-1]["last"]}


def _draw_asset(number: int, rng: np.random.Generator) -> Asset:
    """Every third asset is a metal while there are metals left; the rest are currency pairs."""
    level, size = rng.uniform(-1, 1), rng.uniform(-1, 1)
    metal = number % 3 == 2 and number // 3 < len(_METALS)
    pair = (f"SIM{number + 1:02}USD", 0.9 * exp(0.3 * level), 100_000)
    symbol, start, ticks_per_unit = _METALS[number // 3] if metal else pair
    sessions, typical = (_METAL_SESSIONS, 0.0022) if metal else (_FX_SESSIONS, 0.0011)
    return Asset(symbol, metal, start, ticks_per_unit, typical * exp(0.15 * size), sessions)


def trading_stamps(metal: bool, config: MarketConfig, start: int, stop: int) -> Stamps:
    """Stamps of a range of the last `bars` rows up to the market's end; the row after them has
    number `bars`.
    """
    first, ends, before = _trading_hours(metal, config)
    rows = np.arange(start, stop) + before
    hours = np.searchsorted(ends, rows, side="right")
    since = rows - np.append(0, ends)[hours]
    return np.asarray(first[hours] + since * step_seconds(config.timeframe)).astype("datetime64[s]")


def _hours_back(config: MarketConfig) -> int:
    """An upper bound of the hours that the bars span."""
    open_share = 0.6  # a lower bound, holidays and pauses included
    return int(config.bars / open_share) * step_seconds(config.timeframe) // 3600 + _FORTNIGHT


@lru_cache(maxsize=2)
def _trading_hours(metal: bool, config: MarketConfig) -> tuple[IntArray, IntArray, int]:
    """First stamp of each trading hour, cumulative number of stamps, and number of stamps before
    the market's first.
    """
    step, last = (
        step_seconds(config.timeframe),
        int(np.datetime64(config.end, "h").astype("datetime64[s]").astype(int)),
    )
    hours = last + 3600 * np.arange(-_hours_back(config), _FORTNIGHT)
    stamps = hours.astype("datetime64[s]")
    days = stamps.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    week_hour = _week_hour(stamps)
    closed = (week_hour >= _WEEK_CLOSES) & (week_hour < _WEEK_OPENS)
    for month, day in ((12, 25), (1, 1)):
        closed |= (months.astype(np.int64) % 12 + 1 == month) & (
            (days - months).astype(np.int64) + 1 == day
        )
    if metal:
        closed |= week_hour % 24 == 21  # a daily pause
    hours = hours[~closed]
    late = (last - hours) % step  # stamps are whole steps from the last one, hours need not be
    ends = np.cumsum(-((late - 3600) // step))
    earlier = int(np.searchsorted(hours, last))
    through = int(ends[earlier - 1]) + bool(hours[earlier] == last)
    return hours + late, ends, through - config.bars


def calendar_profile(asset: Asset, stamps: Stamps) -> FloatArray:
    """The known scale at each stamp: sessions, day of the week, weekly news, openings."""
    week_hour = _week_hour(stamps)
    angle = 2 * np.pi * (np.arange(24)[:, None] - _SESSION_HOURS) / 24
    of_day = np.exp(np.exp(_SESSION_FOCUS * (np.cos(angle) - 1)) @ np.array(asset.sessions))
    of_day *= asset.hourly_scale / np.sqrt(np.mean(of_day**2))
    profile: FloatArray = of_day[week_hour % 24] * _DAY_LEVEL[week_hour // 24]
    for weekday, hour in _WEEKLY_NEWS:
        profile[week_hour == 24 * weekday + hour] *= _NEWS_FACTOR
    profile[_follows_closure(stamps)] *= _OPENING_FACTOR
    return profile


def _simulate_parts(
    asset: Asset, config: MarketConfig, rng: np.random.Generator, factor: FloatArray
) -> Iterator[SimulatedAsset]:
    own = ("standard_normal",) if config.correlation else ("standard_t", 4)
    around = (
        ("standard_normal",),
        ("standard_t", 3),
        ("random",),
        ("random",),
        ("standard_normal",),
    )
    kinds = (("random",), own, ("random",), *around, ("integers", 0, 3))
    faults, noise, chances, *around_closes, slips = [
        _draw_in_parts(rng, config.bars, *kind) for kind in kinds
    ]
    walk, state_filter = (
        _Walk(asset, config.dynamics),
        Filter(asset.ticks_per_unit, config.dynamics),
    )
    was_faulty, last = True, None
    for start in range(0, config.bars, PART_ROWS):
        count, lead = min(PART_ROWS, config.bars - start), min(start, 1)
        stamps = trading_stamps(asset.metal, config, start - lead, start + count + 1)
        profile = calendar_profile(asset, stamps)[lead:] * sqrt(
            step_seconds(config.timeframe) / 3600
        )
        opening, stamps = _follows_closure(stamps)[lead:-1], stamps[lead:-1]
        # Rows with feed failures: never the first, never two in a row, which could hide each other.
        faulty = faults(count) < config.faults_per_bar
        for row in np.flatnonzero(faulty):
            faulty[row] = not (faulty[row - 1] if row else was_faulty)
        was_faulty = bool(faulty[-1])
        shocks = noise(count)
        if config.correlation:
            from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

            # Normal noise is mixed with the common factor of the bar, and becomes Student-t noise.
            ago = (np.datetime64(config.end, "h") - stamps) // np.timedelta64(
                step_seconds(config.timeframe), "s"
            )
            scores = sqrt(config.correlation) * factor[ago] + sqrt(1 - config.correlation) * shocks
            shocks = np.asarray(stdtrit(4, ndtr(scores)))
        close = (
            walk.advance(profile, faulty, chances(count), UNIT_VARIANCE * shocks)
            / asset.ticks_per_unit
        )
        close[faulty] = np.nan
        truth = state_filter.observe(stamps.astype("datetime64[us]"), close, profile)
        bars = _bars_around(truth, last or truth.rows(slice(1)), asset, opening, around_closes)
        # Faulty rows have no prices, or a misplaced decimal point.
        slip = slips(count)
        error = np.select([~faulty, slip == 1, slip == 2], [1.0, 10.0, 0.1], default=np.nan)
        printed = (pl.col(PRICE_COLUMNS) * pl.lit(pl.Series(error))).fill_nan(None)
        last = truth.rows(slice(-1, None))
        yield SimulatedAsset(asset, bars.with_columns(printed), truth)


def _draw_in_parts(rng: np.random.Generator, bars: int, kind: str, *values: float) -> Draw:
    """The random numbers of all bars, drawn in parts; the generator is advanced as if they had been
    drawn at once.
    """
    own = deepcopy(rng)
    for start in range(0, bars, PART_ROWS):
        getattr(rng, kind)(*values, size=min(PART_ROWS, bars - start))
    return lambda size: getattr(own, kind)(*values, size=size)


class _Walk:
    """The hidden state of an asset, its variance and its price in ticks."""

    def __init__(self, asset: Asset, dynamics: Dynamics) -> None:
        self.dynamics, self.state, self.variance = dynamics, -1, 1.0
        self.start = self.ticks = round(asset.start * asset.ticks_per_unit)

    def advance(
        self, profile: FloatArray, faulty: BoolArray, chances: FloatArray, noise: FloatArray
    ) -> IntArray:
        """The next closes: each latent move starts from the last rounded price; the first price is
        given.
        """
        dynamics, start, last, variance = self.dynamics, self.start, self.ticks, self.variance
        still = faulty.copy()
        still[0] |= self.state < 0
        states = self._draw_states(chances)
        hidden = np.array(dynamics.drift)[states] + np.array(dynamics.spread)[states] * noise
        ticks = []
        for stays, calendar, move in zip(
            still.tolist(), profile.tolist(), hidden.tolist(), strict=False
        ):
            if not stays:
                pull = dynamics.pull * log(start / last)
                now = max(1, round(last * exp(pull + calendar * sqrt(variance) * move)))
                variance = dynamics.next_variance(variance, log(now / last) / calendar)
                last = now
            ticks.append(last)
        self.ticks, self.variance = last, variance
        return np.array(ticks)

    def _draw_states(self, chances: FloatArray) -> IntArray:
        """A path of the hidden Markov chain; the first state is drawn from the stationary
        distribution.
        """
        reach = np.cumsum(self.dynamics.transition, axis=1)[:, :-1]
        onward = (chances[:, None, None] >= reach).sum(axis=2)  # (N, K) from each state
        if self.state < 0:
            onward[0] = np.searchsorted(
                np.cumsum(self.dynamics.stationary())[:-1], chances[0], side="right"
            )
            self.state = 0
        # Most draws change no state.
        changes = np.flatnonzero((onward != np.arange(len(reach))).any(axis=1))
        path = [self.state]
        for following in onward[changes].tolist():
            path.append(following[path[-1]])
        self.state = path[-1]
        return np.repeat(path, np.diff(changes, prepend=0, append=len(chances)))


def _bars_around(
    truth: Truth, before: Truth, asset: Asset, opening: BoolArray, draws: list[Draw]
) -> pl.DataFrame:
    """Open, High, Low and Volume from closes and public scales alone, which keeps the filter of
    `oracle` exact.
    """
    normal, student, above, below, busy = (draw(len(truth.ticks)) for draw in draws)
    close = truth.ticks.astype(np.float64)
    previous = np.append(before.ticks, close[:-1])
    move = np.log(close / previous)
    scale = np.append(before.scale, truth.scale[:-1])
    reopening = 0.6 * move + 0.5 * scale * normal
    gap = np.where(opening, reopening, 0.025 * scale * student)
    start = np.maximum(np.rint(previous * np.exp(np.clip(gap, -0.5, 0.5))), 1.0)
    # Extremes of a Brownian bridge between open and close; they enclose both.
    path, wander = np.log(close / start), -2.0 * (0.8 * scale) ** 2
    high = np.rint(start * np.exp((path + np.sqrt(path**2 + wander * np.log(above))) / 2))
    low = np.rint(start * np.exp((path - np.sqrt(path**2 + wander * np.log(below))) / 2))
    activity = 0.5 * (scale + np.abs(move)) / asset.hourly_scale
    volume = np.rint(1 + 3_000 * activity * np.exp(0.3 * busy))
    prices = np.array([start, high, np.maximum(low, 1.0), close]) / asset.ticks_per_unit
    columns = zip(BAR_SCHEMA, (truth.timestamps, *prices, volume), strict=True)
    return pl.DataFrame(dict(columns)).cast(BAR_SCHEMA)  # type: ignore[arg-type]


def _week_hour(stamps: Stamps) -> IntArray:
    """Hours since Monday midnight."""
    return slot_of_week(stamps.astype("datetime64[s]").astype(np.int64), HOUR)


def _follows_closure(stamps: Stamps) -> BoolArray:
    """Bars that open after a weekend or a holiday, not after the metals' daily pause."""
    return np.diff(stamps, prepend=stamps[:1]) > np.timedelta64(12, "h")
