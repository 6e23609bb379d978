"""The service without its web clothes: one model, its live assets, its batches.

Enters: a `ServeConfig`; then requests as checked values. Leaves: forecasts and what became of the bars. Bars of one
asset are taken one request after another, so that each is scored by the forecast made before it; forecasts of
different assets run together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any

import polars as pl

from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster, Window
from vaiom.market.folder import BAR_SCHEMA
from vaiom.serve.batching import MAX_BATCH, Batcher
from vaiom.serve.card import model_card
from vaiom.serve.live import LiveAssets
from vaiom.serve.metrics import Metrics
from vaiom.serve.refusal import RefusalError
from vaiom.serve.seed import Replay, seed, settle_replays
from vaiom.serve.settings import ServeConfig
from vaiom.serve.store import Candle, Store
from vaiom.serve.views import forecast_view, scored_view

_log = logging.getLogger("vaiom.serve")


class Service:
    """Made before the event loop runs, started in it."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.forecaster = Forecaster.load(config.run, config.device)
        self.metrics = Metrics()
        self.card = model_card(self.forecaster)
        self.store = Store(config.state)
        self.live = LiveAssets(self.forecaster, self.store, config.alert_bits)
        self._replays = seed(self.live, config.bars, config.backfill) if config.bars else []
        self._state = ThreadPoolExecutor(1, "state")
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: list[asyncio.Task[None]] = []
        self.ready = False
        self.metrics.model.set(1, sha256=self.card["sha256"], experiment=self.card["experiment"])

    def start(self) -> None:
        """Begin to serve; `ready` when the model is warm and every asset has its forecast."""
        config = self.config
        self.batcher = Batcher(self.forecaster, config.threads, config.max_waiting, self.metrics.batches.observe)
        self._tasks = [asyncio.create_task(self._warm_up())]

    async def stop(self) -> None:
        self.ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.batcher.stop()
        self._state.shutdown()
        self.live.snapshot()
        self.store.close()

    async def forecast(
        self, symbol: str, candles: Mapping[str, Sequence[Candle]], now: datetime | None
    ) -> ReturnDistribution:
        """Of bars that the client brought, other assets' among them."""
        self.require_ready()
        window, dist = await self.batcher.forecast(lambda: self._window(symbol, candles))
        return self._seen_at(dist, window, now)

    async def push(self, symbol: str, candles: Sequence[Candle]) -> tuple[dict[str, Any], dict[str, float]]:
        """Take bars of a live asset and forecast; also the seconds that recursion, disk and model took."""
        self.require_ready()
        self.live.require(symbol)
        async with self._locks[symbol]:
            # A bar of another asset may have changed what this one's forecast reads: the next bar settles the newest.
            await self._newest(symbol)
            loop = asyncio.get_running_loop()
            pushed = await loop.run_in_executor(self._state, self.live.push, symbol, candles)
            taken = time.perf_counter()
            self.metrics.bars.add(len(candles), asset=symbol)
            stream, dist = self.live.online.streams[symbol], await self._newest(symbol)
            seconds = {**pushed.seconds, "model": time.perf_counter() - taken}
        answer = {
            "symbol": symbol,
            "accepted": len(candles),
            "num_bars": stream.num_bars,
            "as_of": candles[-1].stamp.isoformat(),
            "scored": scored_view(pushed.scored) if pushed.scored else None,
            "forecast": forecast_view(dist) if dist else None,
        }
        return answer, seconds

    async def current(self, symbol: str, now: datetime | None = None) -> ReturnDistribution:
        """After the last bar of a live asset."""
        self.require_ready()
        async with self._locks[symbol]:
            window = self.live.window(symbol)
            dist = await self._newest(symbol)
        assert dist is not None
        return self._seen_at(dist, window, now)

    def page_of_metrics(self) -> str:
        metrics = self.metrics
        metrics.ready.set(float(self.ready))
        metrics.waiting.set(len(self.batcher.waiting))
        for symbol, stream in self.live.online.streams.items():
            metrics.last_bar.set(int(stream.columns["timestamp"][-1]), asset=symbol)
        for symbol, monitor in self.live.monitors.items():
            drift = monitor.drift()
            metrics.scored.set(drift["scored"], asset=symbol)
            metrics.alert.set(float(drift["alert"]), asset=symbol)
            if drift["scored"]:
                metrics.model_bits.set(drift["model_bits"], asset=symbol)
                metrics.frequency_bits.set(drift["frequency_bits"], asset=symbol)
        return metrics.page()

    @property
    def replaying(self) -> bool:
        """Whether forecasts of the bars that were brought in are still being made again."""
        return bool(self._replays)

    def require_ready(self) -> None:
        if not self.ready:
            raise RefusalError(503, "the service is starting", retry_after=1, fix="ask again when GET /readyz says 200")

    async def _newest(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar of a live asset, made if need be; None while it has too few bars."""
        known = self.live.forecast(symbol)
        if known is not None or not self.live.online.ready(symbol):
            return known
        stream = self.live.online.streams[symbol]
        window = self.live.window(symbol)
        _, dist = await self.batcher.forecast(lambda: window)
        self.live.keep(stream, dist)
        return dist

    def _window(self, symbol: str, candles: Mapping[str, Sequence[Candle]]) -> Window:
        frames = {each: pl.DataFrame(bars, schema=BAR_SCHEMA, orient="row") for each, bars in candles.items()}
        return self.forecaster.windows(frames, symbol)[0]

    def _seen_at(self, dist: ReturnDistribution, window: Window, now: datetime | None) -> ReturnDistribution:
        """The same forecast at a moment of the bars' clock, when its last bar may be stale."""
        if now is None:
            return dist
        return self.forecaster.distribution(
            dist.symbol, window.columns, -1, dist.probs, dist.context, now, missing_assets=dist.missing_assets
        )

    async def _warm_up(self) -> None:
        """Make the first forecasts, which are slow; then, while serving, those of the bars that were brought in."""
        try:
            for symbol in self.live.online.streams:
                await self._newest(symbol)
            self.ready = True
            while self._replays:
                # The newest first: they are what is looked at.
                part = self._replays[-MAX_BATCH:]
                made = await asyncio.gather(*(self.batcher.forecast(partial(_window_of, each)) for each in part))
                dists = [dist for _, dist in made]
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._state, settle_replays, self.live, part, dists)
                del self._replays[-MAX_BATCH:]
        except Exception:
            _log.exception("the first forecasts failed")
            raise


def _window_of(replay: Replay) -> Window:
    return replay.window
