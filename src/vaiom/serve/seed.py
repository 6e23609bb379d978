"""A bar folder brought in: assets that are live from the start, the Train shares, forecasts made again.

Enters: a bar folder. Leaves: live assets with their whole history behind them, and windows whose forecasts the next bar
has settled already. No bar that the model learned from is scored.
Paper: Methods, "Baselines" (Frequency).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Window
from vaiom.forecast.online import OnlineForecaster
from vaiom.market.folder import read_bars
from vaiom.serve.live import LiveAssets
from vaiom.serve.monitor import FrequencyRival, settle, train_counts
from vaiom.serve.store import Candle

Frames = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, eq=False)
class Replay:
    """What was known before a bar, and the rows that end with its own."""

    window: Window
    row: Mapping[str, Any]


def seed(live: LiveAssets, folder: Path, backfill: int) -> list[Replay]:
    """New assets go through the whole recursion; assets that are live already get the bars that they lack."""
    frames = read_bars(folder)
    _count_train(live, frames)
    known = {symbol: frame for symbol, frame in frames.items() if symbol in live.online.streams}
    for symbol, frame in known.items():
        last = live.candles[symbol][-1].stamp
        newer = _candles(frame.filter(pl.col("Datetime") > last))
        if newer:
            live.push(symbol, newer)
    return _bring_in(live, {symbol: frame for symbol, frame in frames.items() if symbol not in known}, backfill)


def settle_replays(live: LiveAssets, replays: Sequence[Replay], dists: Sequence[ReturnDistribution]) -> None:
    """Keep how forecasts went that were made again."""
    settled = [
        (dist.symbol, settle(dist, each.row, live.frequency, live.model, replayed=True))
        for each, dist in zip(replays, dists, strict=True)
    ]
    live.store.put_scored(settled)
    for symbol, scored in settled:
        live.remember(symbol, [scored])


def _bring_in(live: LiveAssets, frames: Frames, backfill: int) -> list[Replay]:
    if not frames:
        return []
    stamps = pl.concat([frame["Datetime"] for frame in frames.values()]).unique().sort()
    begin = stamps[max(len(stamps) - backfill, 0)] if backfill else None
    after = live.copied()
    history = {
        symbol: frame if begin is None else frame.filter(pl.col("Datetime") < begin) for symbol, frame in frames.items()
    }
    after.extend_many({symbol: frame for symbol, frame in history.items() if len(frame)})
    replays = []
    for stamp, bars in _by_stamp(frames, begin):
        before = _windows(after, bars) if live.train_end is None or stamp >= live.train_end else []
        after.push_many(bars, forecast=False)
        replays += [Replay(window, after.streams[window.symbol].columns) for window in before]
    for symbol, frame in frames.items():
        candles = _candles(frame.tail(live.forecaster.context))
        live.store.append(symbol, candles)
        live.show(symbol, after, candles)
    live.snapshot()
    return replays


def _by_stamp(frames: Frames, begin: datetime | None) -> Iterator[tuple[datetime, dict[str, dict[str, Any]]]]:
    """The bars from a moment on, stamp by stamp."""
    if begin is None:
        return
    bars = [
        (bar["Datetime"], symbol, bar)
        for symbol, frame in frames.items()
        for bar in frame.filter(pl.col("Datetime") >= begin).iter_rows(named=True)
    ]
    bars.sort(key=lambda each: each[:2])
    for stamp, group in groupby(bars, key=lambda each: each[0]):
        yield stamp, {symbol: bar for _, symbol, bar in group}


def _windows(online: OnlineForecaster, symbols: Mapping[str, Any]) -> list[Window]:
    return [online.window(symbol) for symbol in symbols if online.ready(symbol)]


def _count_train(live: LiveAssets, frames: Frames) -> None:
    """Once: the buckets of all Train events of the model's assets."""
    if live.train_end is None or live.store.fact("train_counts") is not None:
        return
    make, counts = live.forecaster.rows, np.zeros(live.num_buckets, np.int64)
    for symbol in live.forecaster.symbols:
        if symbol in frames:
            columns, _ = make(frames[symbol], make.start(), f"bars of {symbol}")
            counts += train_counts(columns, live.train_end, live.forecaster.context, live.num_buckets)
    if counts.any():
        live.store.set_fact("train_counts", counts.tolist())
        live.frequency = FrequencyRival(live.num_buckets, counts.tolist())


def _candles(frame: pl.DataFrame) -> list[Candle]:
    return [Candle(*row) for row in frame.iter_rows()]
