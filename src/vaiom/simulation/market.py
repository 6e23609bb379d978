"""A simulated market: bars of any number of assets whose true distribution is known.

Enters: a `MarketConfig`. Leaves: per asset its bars and its `Truth`, or a bar folder with both,
written in parts. The best reachable bits per event are known here, unlike on real bars, so the demo
and the tests use it. Not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from math import exp
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl

from vaiom.codec import Interval, Share, check_fields, to_json
from vaiom.files import Progress, atomic_file, staged_folder, staging_folder, write_json
from vaiom.market.folder import MANIFEST_NAME, counted, describe
from vaiom.market.sessions import HOUR
from vaiom.market.timeframes import step_seconds
from vaiom.simulation.hours import FX_SESSIONS, METAL_SESSIONS, Asset, hours_back
from vaiom.simulation.oracle import TRUTH_FOLDER, Dynamics, Truth, save_truth
from vaiom.simulation.prices import SimulatedAsset, simulate_parts

PART_ROWS = 1 << 15
"""Rows of an asset in memory at a time."""
MAX_HOURS = 300_000
"""More trading hours would begin before 1970."""
ROW_GROUP_ROWS = 100_000
"""As in a frame that is written at once."""

_FACTOR = 64  # the place of the shared factor among the assets' random numbers
_METALS = (
    ("XAUSIM", 1_500.0, 10),
    ("XAGSIM", 20.0, 1_000),
    ("XPTSIM", 900.0, 10),
    ("XPDSIM", 1_200.0, 10),
)
"""Symbol, first price and ticks per unit."""
_FX_SCALE = 0.0011
_METAL_SCALE = 0.0022


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
        if self.step > HOUR:
            raise ValueError(f"timeframe must be an hour or a part of it, got {self.timeframe}")
        most = MAX_HOURS * HOUR // self.step
        if not 2 <= self.bars <= most:
            raise ValueError(f"bars must be between 2 and {most}, got {self.bars}")
        if self.end.tzinfo is not None:
            raise ValueError("end must be a naive datetime")

    @property
    def step(self) -> int:
        """Seconds of a bar."""
        return step_seconds(self.timeframe)


def simulate(config: MarketConfig | None = None) -> dict[str, SimulatedAsset]:
    """All assets of a market in memory, by symbol; the default market without a configuration."""
    market = {}
    for asset, parts in simulate_assets(config or MarketConfig()):
        drawn = list(parts)
        bars = pl.concat([part.bars for part in drawn], rechunk=True)
        truth = Truth.joined([part.truth for part in drawn])
        market[asset.symbol] = SimulatedAsset(asset, bars, truth)
    return market


def simulate_assets(
    config: MarketConfig, progress: Progress | None = None, *, part_rows: int = PART_ROWS
) -> Iterator[tuple[Asset, Iterator[SimulatedAsset]]]:
    """The assets of a market one by one, each in parts; none depends on the number of others."""
    num_seeds = max(config.assets, _FACTOR) + 1
    seeds = np.random.SeedSequence(config.seed).spawn(num_seeds)
    factor_seed = seeds.pop(_FACTOR)
    num_shared = 0
    if config.correlation:
        num_hours = hours_back(config.bars, config.step)
        num_shared = num_hours * HOUR // config.step
    factor = np.random.default_rng(factor_seed).standard_normal(num_shared)
    drawn = []
    for number in range(config.assets):
        rng = np.random.default_rng(seeds[number])
        asset = _draw_asset(number, rng)
        drawn.append((asset, rng))
    for asset, rng in counted(drawn, progress, lambda pair: pair[0].symbol):
        yield asset, simulate_parts(asset, config, rng, factor, part_rows)


def _draw_asset(number: int, rng: np.random.Generator) -> Asset:
    """The constants of an asset, drawn from its own random numbers.

    Every third asset is a metal while there are metals left; the rest are currency pairs.
    """
    level = rng.uniform(-1, 1)
    size = exp(0.15 * rng.uniform(-1, 1))
    if number % 3 == 2 and number // 3 < len(_METALS):
        symbol, start, ticks_per_unit = _METALS[number // 3]
        hourly_scale = _METAL_SCALE * size
        return Asset(symbol, True, start, ticks_per_unit, hourly_scale, METAL_SESSIONS)
    symbol = f"SIM{number + 1:02}USD"
    start = 0.9 * exp(0.3 * level)
    hourly_scale = _FX_SCALE * size
    return Asset(symbol, False, start, 100_000, hourly_scale, FX_SESSIONS)


def write_market(
    config: MarketConfig,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    part_rows: int = PART_ROWS,
) -> dict[str, Any]:
    """Write a bar folder with the truth beside the bars, part by part; returns the manifest."""
    stored = to_json(config)
    entries = {}
    assets = {}
    with staged_folder(out, overwrite=overwrite) as folder:
        for asset, parts in simulate_assets(config, progress, part_rows=part_rows):
            entries[asset.symbol] = _write_asset(folder, asset.symbol, parts)
            assets[asset.symbol] = asset
        about = to_json({"market": stored, "assets": assets})
        write_json(folder / TRUTH_FOLDER / "market.json", about)
        manifest = {
            "source": "simulated",
            "timeframe": config.timeframe,
            "market": stored,
            "symbols": entries,
        }
        write_json(folder / MANIFEST_NAME, manifest)
    return manifest


def _write_asset(folder: Path, symbol: str, parts: Iterator[SimulatedAsset]) -> dict[str, Any]:
    """Write bars and truth of an asset; returns its manifest entry.

    Parts are written to temporary files and joined, as Polars cannot append to a file.
    """
    described: dict[Path, dict[str, Any]] = {}
    with staging_folder(folder) as staging:

        def write_bars() -> Iterator[Truth]:
            for number, part in enumerate(parts):
                file = staging / f"{number}.parquet"
                part.bars.write_parquet(file, compression="uncompressed")
                described[file] = describe(part.bars)
                yield part.truth

        save_truth(folder / TRUTH_FOLDER / f"{symbol}.npz", write_bars())
        with atomic_file(folder / f"{symbol}.parquet") as staged:
            joined = pl.scan_parquet([*described], glob=False)
            joined.sink_parquet(staged, row_group_size=ROW_GROUP_ROWS)
    facts = list(described.values())
    num_rows = sum(part["rows"] for part in facts)
    return {**facts[0], "rows": num_rows, "last": facts[-1]["last"]}
