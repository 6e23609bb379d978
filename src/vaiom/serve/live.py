"""The live assets: their recursions, their last bars, the forecast that the next bar will settle.

Enters: a bar folder once, then bars as they come. Leaves: windows for the model, and what the store must keep. A bar
counts when the store has it: what readers see follows the commit. After a restart a snapshot and the bars since it, in
the order of their arrival, give the same state to the bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vaiom.errors import DataError, UserError
from vaiom.events.inputs import MASK_BITS
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster, Window
from vaiom.forecast.online import AssetStream, OnlineForecaster
from vaiom.serve.monitor import WINDOW, AssetMonitor, FrequencyRival, settle
from vaiom.serve.refusal import RefusalError
from vaiom.serve.store import Candle, Scored, Store, moment_of

SNAPSHOT_EVERY = 1_000
"""Bars between two snapshots: a restart replays no more than these."""


@dataclass(frozen=True)
class Pushed:
    scored: Scored | None
    """The forecast that the first of the bars settled, if there was one."""
    seconds: dict[str, float]
    """What the recursion took, and the disk."""


class LiveAssets:
    """Pushes come one at a time; readers see all of one or nothing of it."""

    def __init__(self, forecaster: Forecaster, store: Store, alert_bits: float) -> None:
        self.forecaster, self.store, self.alert_bits = forecaster, store, alert_bits
        self.online = forecaster.online()
        self.candles: dict[str, deque[Candle]] = {}
        self.monitors: dict[str, AssetMonitor] = {}
        self._forecasts: dict[str, tuple[AssetStream, ReturnDistribution]] = {}
        self._restore()
        self.frequency = FrequencyRival(self.num_buckets, store.fact("train_counts"))
        for symbol in self.monitors:
            self.remember(symbol, store.last_scored(symbol, self.model, WINDOW))

    @property
    def model(self) -> str:
        return self.forecaster.card.sha256

    @property
    def num_buckets(self) -> int:
        return self.forecaster.tokenizer.num_buckets["return"]

    @property
    def symbols(self) -> list[str]:
        """Those of the model and those that a bar folder brought."""
        return sorted({*self.forecaster.symbols, *self.online.streams})

    @property
    def train_end(self) -> datetime | None:
        """Bars before this were learned from."""
        end = self.forecaster.card.provenance.splits.get("train_end")
        return datetime.fromisoformat(end) if end else None

    def require(self, symbol: str) -> None:
        if symbol not in self.symbols:
            raise RefusalError(
                404,
                "no such live asset",
                expected=", ".join(self.symbols),
                got=symbol,
                fix="send its bars to POST /v1/forecast, or start the service with a bar folder that has it",
            )

    def last(self, symbol: str) -> datetime | None:
        """The stamp of an asset's last bar."""
        stream = self.online.streams.get(symbol)
        return moment_of(int(stream.columns["timestamp"][-1])) if stream else None

    def window(self, symbol: str) -> Window:
        self.require(symbol)
        return self.online.window(symbol)

    def forecast(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar, if it has been made and nothing that it read has changed since."""
        stream, dist = self._forecasts.get(symbol, (None, None))
        return dist if stream is self.online.streams.get(symbol) else None

    def keep(self, stream: AssetStream, dist: ReturnDistribution) -> None:
        """Remember what was forecast from a stream."""
        self._forecasts[dist.symbol] = (stream, dist)

    def push(self, symbol: str, candles: Sequence[Candle]) -> Pushed:
        """Take the bars that follow, durably."""
        start = time.perf_counter()
        self.require(symbol)
        self._require_order(symbol, candles)
        after, first_row = self._advanced(symbol, candles)
        dist = self.forecast(symbol)
        scored = settle(dist, first_row, self.frequency, self.model) if dist else None
        settled = [scored] if scored else []
        computed = time.perf_counter()
        self.store.append(symbol, candles, settled)
        stored = time.perf_counter()
        self.show(symbol, after, candles)
        self.remember(symbol, settled)
        if self.store.num_since_snapshot >= SNAPSHOT_EVERY:
            self.snapshot()
        return Pushed(scored, {"bar": computed - start, "disk": stored - computed})

    def snapshot(self) -> None:
        """Write down where every asset stands, so that a start from here replays nothing."""
        self.store.put_snapshot({symbol: stream.to_json() for symbol, stream in self.online.streams.items()})

    def show(self, symbol: str, after: OnlineForecaster, candles: Sequence[Candle]) -> None:
        """Let readers see what the store has."""
        self.candles.setdefault(symbol, deque(maxlen=self.forecaster.context)).extend(candles)
        self.monitors.setdefault(symbol, AssetMonitor(self.alert_bits))
        self.online = after

    def remember(self, symbol: str, settled: Sequence[Scored]) -> None:
        self.monitors[symbol].add(settled)
        self.frequency.learn(settled)

    def masks(self, symbol: str) -> list[list[str]]:
        """Names of the masks of each remembered row, oldest first."""
        stream = self.online.streams.get(symbol)
        if stream is None:
            return []
        return [
            [name for name, bit in MASK_BITS.items() if flags & bit]
            for flags in stream.columns["flags"][-self.forecaster.context :]
        ]

    def copied(self) -> OnlineForecaster:
        """A forecaster that stands where the live one does and goes its own way."""
        copy = self.forecaster.online()
        copy.streams = self.online.streams
        return copy

    def _restore(self) -> None:
        identity = {name: value for name, value in self.online.to_json().items() if name != "assets"}
        found = self.store.fact("identity")
        if found is None:
            self.store.set_fact("identity", identity)
        try:
            self.online.restore({**(found or identity), "assets": self.store.snapshot()})
        except DataError as error:
            raise DataError(
                error.problem,
                where=f"{self.store.path}, {error.where}",
                expected=error.expected,
                got=error.got,
                fix="choose another --state for this model",
            ) from error
        for symbol, candle in self.store.bars_since_snapshot():
            self.online.push(symbol, _named(candle), forecast=False)
        for symbol in self.online.streams:
            self.show(symbol, self.online, self.store.last_bars(symbol, self.forecaster.context))

    def _advanced(self, symbol: str, candles: Sequence[Candle]) -> tuple[OnlineForecaster, dict[str, Any]]:
        """Where all assets stand after the bars, and the rows that end with that of the first."""
        after = self.copied()
        first: dict[str, Any] = {}
        for number, candle in enumerate(candles, start=1):
            try:
                after.push(symbol, _named(candle), forecast=False)
            except UserError as error:
                raise DataError(
                    error.problem,
                    where=f"bars of {symbol}, row {number}",
                    expected=error.expected,
                    got=error.got,
                    fix=error.fix,
                ) from error
            first = first or after.streams[symbol].columns
        return after, first

    def _require_order(self, symbol: str, candles: Sequence[Candle]) -> None:
        last = self.last(symbol)
        for number, candle in enumerate(candles, start=1):
            if last is not None and candle.stamp <= last:
                raise RefusalError(
                    409,
                    "a bar is there already" if candle.stamp == last else "a bar goes back in time",
                    where=f"bars of {symbol}, row {number}",
                    expected=f"a bar after {last.isoformat()}",
                    got=candle.stamp.isoformat(),
                    fix="push the bars that follow; GET /v1/assets says where each asset stands",
                )
            last = candle.stamp


def _named(candle: Candle) -> dict[str, Any]:
    return {"datetime": candle.stamp, **{name: getattr(candle, name) for name in Candle._fields[1:]}}
