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

import polars as pl
from prometheus_client import generate_latest

from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster, Window
from vaiom.market.folder import BAR_SCHEMA
from vaiom.serve.batching import MAX_BATCH, Batcher
from vaiom.serve.errors import RefusalError
from vaiom.serve.model_card import model_card
from vaiom.serve.monitor import Metrics
from vaiom.serve.run import ServeConfig
from vaiom.serve.schemas import Bar, ForecastAnswer, ModelAnswer, PushAnswer
from vaiom.serve.state import LiveAssets
from vaiom.serve.store import Store, seconds_of

_log = logging.getLogger("vaiom.serve")


class Service:
    """Made before the event loop runs, started in it."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.forecaster = Forecaster.load(config.run, config.device)
        self.model_card = ModelAnswer(**model_card(self.forecaster))
        self.store = Store(config.state, self.forecaster.card.sha256)
        self.live = LiveAssets(self.forecaster, self.store, config.alert_bits)
        self.replays = self.live.bring_in(config.bars, config.backfill) if config.bars else []
        """Bars that were brought in and whose forecasts are still to be made again, oldest first."""
        self.metrics = Metrics()
        self.metrics.model.labels(self.model_card.sha256, self.model_card.experiment).set(1)
        self.ready = False
        self._state = ThreadPoolExecutor(1, "state")
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def start(self) -> None:
        """Begin to serve; `ready` when the model is warm and every asset has its forecast."""
        config = self.config
        self.batcher = Batcher(self.forecaster, config.threads, config.max_waiting, self.metrics.batches.observe)
        self._warming_up = asyncio.create_task(self._warm_up())

    async def stop(self) -> None:
        self.ready = False
        self._warming_up.cancel()
        await asyncio.gather(self._warming_up, return_exceptions=True)
        self.batcher.stop()
        self._state.shutdown()
        self.live.snapshot()
        self.store.close()

    async def forecast(
        self, symbol: str, bars: Mapping[str, Sequence[Bar]], now: datetime | None
    ) -> ReturnDistribution:
        """Of bars that the client brought, other assets' among them."""
        self.require_ready()

        def make() -> Window:
            frames = {
                each: pl.DataFrame([bar.as_row() for bar in rows], schema=BAR_SCHEMA, orient="row")
                for each, rows in bars.items()
            }
            return self.forecaster.windows(frames, symbol)[0]

        window, dist = await self.batcher.forecast(make)
        return self._seen_at(dist, window, now)

    async def push(self, symbol: str, bars: Sequence[Bar]) -> tuple[PushAnswer, dict[str, float]]:
        """Take bars of a live asset and forecast; also the seconds that recursion, disk and model took."""
        self.require_ready()
        self.live.require(symbol)
        async with self._locks[symbol]:
            # A bar of another asset may have changed what this one's forecast reads: the next bar settles the newest.
            await self._newest(symbol)
            loop = asyncio.get_running_loop()
            settled, seconds = await loop.run_in_executor(self._state, self.live.push, symbol, bars)
            taken = time.perf_counter()
            self.metrics.bars.labels(symbol).inc(len(bars))
            stream, dist = self.live.online.streams[symbol], await self._newest(symbol)
            seconds["model"] = time.perf_counter() - taken
        answer = PushAnswer(
            symbol=symbol,
            accepted=len(bars),
            num_bars=stream.num_bars,
            as_of=bars[-1].datetime,
            scored=settled,
            forecast=ForecastAnswer.of(dist) if dist else None,
        )
        return answer, seconds

    async def current(self, symbol: str, now: datetime | None = None) -> ReturnDistribution:
        """After the last bar of a live asset."""
        self.require_ready()
        self.live.require(symbol)
        async with self._locks[symbol]:
            window = self.live.online.window(symbol)
            dist = await self._newest(symbol)
        assert dist is not None
        return self._seen_at(dist, window, now)

    def metrics_page(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        self.metrics.ready.set(self.ready)
        self.metrics.waiting.set(len(self.batcher.waiting))
        for symbol, stream in self.live.online.streams.items():
            self.metrics.show(symbol, seconds_of(stream.last), self.live.monitors[symbol].drift())
        return generate_latest(self.metrics.registry)

    def require_ready(self) -> None:
        if not self.ready:
            raise RefusalError(503, "the service is starting", retry_after=1, fix="ask again when GET /readyz says 200")

    async def _newest(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar of a live asset, made if need be; None while it has too few bars."""
        online, known = self.live.online, self.live.forecast(symbol)
        if known is not None or not online.ready(symbol):
            return known
        window = online.window(symbol)
        _, dist = await self.batcher.forecast(lambda: window)
        self.live.keep(online.streams[symbol], dist)
        return dist

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
            loop = asyncio.get_running_loop()
            while self.replays:
                # The newest first: they are what is looked at.
                part = self.replays[-MAX_BATCH:]
                made = await asyncio.gather(*(self.batcher.forecast(partial(getattr, each, "window")) for each in part))
                await loop.run_in_executor(self._state, self.live.settle_replays, part, [dist for _, dist in made])
                del self.replays[-MAX_BATCH:]
        except Exception:
            _log.exception("the first forecasts failed")
            raise
