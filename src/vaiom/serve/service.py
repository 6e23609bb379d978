"""The service: live assets, posted forecasts and a feed behind the routes of `app`.

Enters: a `ServeConfig`, then validated requests. Leaves: answers, or errors that the middleware
turns into responses. Bars of one asset are processed in order, so that each is scored by the
forecast made before it; those of different assets that wait for the disk share a batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Query
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest

from vaiom.forecast.bars import seconds_of
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import ForecastLedger
from vaiom.market.feeds import open_feed
from vaiom.serve import schemas
from vaiom.serve.answers import describe_assets, describe_history
from vaiom.serve.bar_store import Store
from vaiom.serve.card import ModelAnswer
from vaiom.serve.follow import BarRow, Follower, as_json
from vaiom.serve.metrics import Metrics
from vaiom.serve.posted import PostedHistories
from vaiom.serve.refusals import RefusalError
from vaiom.serve.server import ServeConfig
from vaiom.serve.state import LiveAssets

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
"""The media type that Prometheus reads."""
_log = logging.getLogger("vaiom.serve")

Result = TypeVar("Result")


class _Push(NamedTuple):
    """Bars that wait for the disk, and the answer that their client waits for."""

    symbol: str
    bars: Sequence[BarRow]
    answer: asyncio.Future[schemas.PushAnswer]


class Service:
    """Created before the event loop runs, started in it."""

    def __init__(self, config: ServeConfig) -> None:
        """Load the model, open the stored state and compute what follows from it, bring in the bars
        of a folder; errors of the configuration are raised here, before any request.
        """
        self.config = config
        if config.threads and find_spec("torch"):
            import torch

            torch.set_num_threads(config.threads)
        self.forecaster = Forecaster.load(config.run, config.device, config.threads)
        self.model_card = ModelAnswer.of(self.forecaster)
        sha256 = self.forecaster.card.sha256
        with ExitStack() as files_open:
            self.store = files_open.enter_context(closing(Store(config.state, sha256)))
            self.ledger: ForecastLedger | None = None
            if config.ledger:
                ledger = ForecastLedger(config.ledger, sha256)
                self.ledger = files_open.enter_context(closing(ledger))
            self.live = LiveAssets(
                self.forecaster,
                self.store,
                config.alert_bits,
                self.ledger,
                config.utc_offset,
                folder=config.bars,
                backfill=config.backfill,
            )
            self._files_open = files_open.pop_all()
        self.posted = PostedHistories(self.forecaster)
        self.metrics = Metrics()
        self.metrics.model.labels(self.model_card.sha256, self.model_card.experiment).set(1)
        self.follower: Follower | None = None
        """Polls a feed for new bars."""
        if config.follow is not None:
            feed = open_feed(config.follow, self.model_card.timeframe)
            self.follower = Follower(feed, OwnService(self), utc_offset=config.utc_offset)
        self.is_ready = False
        self.failure: Exception | None = None
        """Why no forecast is possible."""
        self.give_up: Callable[[], None] = lambda: None
        """Stops the service."""
        self._state = ThreadPoolExecutor(1, "state")
        """The thread of the live assets."""
        self._model = ThreadPoolExecutor(1, "model")
        """The thread of posted and past forecasts."""
        self._num_waiting = 0
        """Number of posted forecasts waiting for the model."""
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._drawing = asyncio.Lock()
        """Held by the portfolio that is drawn: each may take half a gigabyte."""
        self._pushes: list[_Push] = []
        """Bars waiting for the disk."""
        self._taking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start serving; `ready` once the model is warm and every asset has its forecast."""
        self.loop = asyncio.get_running_loop()
        self._warming_up = asyncio.create_task(self._warm_up())

    async def stop(self) -> None:
        """Stop the feed, finish what runs, and close the files. Bars that wait are not taken."""
        if self.follower:
            self.follower.stop.set()
        self.is_ready = False
        self._warming_up.cancel()
        await asyncio.gather(self._warming_up, return_exceptions=True)
        self._model.shutdown()
        self._state.shutdown()
        self._files_open.close()

    async def forecast(
        self, body: schemas.ForecastRequest, horizon: schemas.Horizon = 1
    ) -> schemas.ForecastAnswer:
        """Forecast the bar after the last of the posted bars, or a horizon of bars."""
        self._require_ready()
        self.forecaster.at(horizon)
        bars = {**body.others, body.symbol: body.bars}
        now = body.now or self.live.now()
        dist = await self._in_model_thread(
            partial(self.posted.forecast, bars, body.symbol, now, horizon)
        )
        return schemas.ForecastAnswer.of(dist, body.beyond)

    async def every(
        self, horizon: schemas.Horizon = 1, now: schemas.Now = None
    ) -> schemas.ForecastsAnswer:
        """The forecasts after the last bars of all live assets, for the next bar or a horizon of
        bars.
        """
        ready = [symbol for symbol in self.live.symbols if self.live.online.ready(symbol)]
        return schemas.ForecastsAnswer(
            forecasts=[await self.current(each, now, horizon=horizon) for each in ready]
        )

    async def assets(self) -> schemas.AssetsAnswer:
        """The state of every live asset, and the model's drift on it."""
        # Between bars, which make forecasts old.
        return await self._in_state_thread(describe_assets, self.live)

    async def push(self, symbol: schemas.Symbol, body: schemas.PushRequest) -> schemas.PushAnswer:
        """Take the next bars of a live asset; they are on disk before the response, which has the
        new forecast.
        """
        self._require_ready()
        self.live.require(symbol)
        async with self._locks[symbol]:
            # Batched with the bars of other assets that arrived while the disk was busy.
            answer = asyncio.get_running_loop().create_future()
            self._pushes.append(_Push(symbol, body.bars, answer))
            if self._taking is None or self._taking.done():
                self._taking = asyncio.create_task(self._take_all())
            taken: schemas.PushAnswer = await answer
        self.metrics.bars.labels(symbol).inc(len(body.bars))
        return taken

    async def _take_all(self) -> None:
        """Take the waiting bars, a batch at a time."""
        while self._pushes:
            # A client that disconnects before its turn holds no lock: another may push the same
            # asset.
            waiting = [push for push in self._pushes if not push.answer.done()]
            self._pushes = []
            self.metrics.batches.observe(len(waiting))
            results: Sequence[schemas.PushAnswer | Exception]
            try:
                batch = [(push.symbol, push.bars) for push in waiting]
                results = await self._in_state_thread(self.live.push_all, batch)
            except Exception as error:
                results = [error] * len(waiting)
            for push, result in zip(waiting, results, strict=True):
                if push.answer.done():
                    continue
                if isinstance(result, Exception):
                    push.answer.set_exception(result)
                else:
                    push.answer.set_result(result)

    async def cut(self, symbol: schemas.Symbol, after: schemas.Stamp) -> schemas.CutAnswer:
        """Remove the bars of a live asset after a moment, and the scores they settled. Always needs
        an API key.
        """
        if not self.config.api_keys:
            raise RefusalError(
                401,
                "bars are removed where API keys are in use",
                expected="a service that was started with --api-key-file",
                fix="stop the service and run `vaiom state`",
            )
        self._require_ready()
        self.live.require(symbol)
        async with self._locks[symbol]:
            removed = await self._in_state_thread(self.live.cut, symbol, after)
            stream = self.live.online.streams.get(symbol)
        await self._in_state_thread(describe_assets, self.live)
        return schemas.CutAnswer(
            symbol=symbol,
            removed=removed,
            num_bars=stream.num_bars if stream else 0,
            as_of=stream.last if stream else None,
        )

    async def current(
        self,
        symbol: schemas.Symbol,
        now: schemas.Now = None,
        beyond: schemas.Beyond = None,
        law: Annotated[bool, Query(description="Also the whole distribution function.")] = False,
        horizon: schemas.Horizon = 1,
    ) -> schemas.ForecastAnswer:
        """The forecast after the last bar of a live asset."""
        self._require_ready()
        self.live.require(symbol)
        async with self._locks[symbol]:
            dist = await self._in_state_thread(self.live.forecast_at, symbol, now, horizon)
        return schemas.ForecastAnswer.of(dist, beyond, whole=law)

    async def history(
        self, symbol: schemas.Symbol, last: Annotated[int, Query(ge=1, le=schemas.MAX_BARS)] = 96
    ) -> schemas.HistoryAnswer:
        """The last bars with their masks, the forecasts they settled, calibration and data
        quality.
        """
        return describe_history(self.live, symbol, last)

    async def portfolio(self, body: schemas.PortfolioRequest) -> schemas.PortfolioAnswer:
        """Profit and loss of positions in live assets: risk, and the contribution of each
        position.
        """
        self._require_ready()
        symbols = list(dict.fromkeys((*body.positions, *body.given)))
        for symbol in symbols:
            self.live.require(symbol)
        joint = await self._in_state_thread(self.live.joint, symbols, body.horizon)
        rest = joint.given(body.given) if body.given else joint
        positions = {
            symbol: amount for symbol, amount in body.positions.items() if symbol not in body.given
        }
        async with self._drawing:
            risk = await asyncio.to_thread(
                lambda: rest.portfolio(positions, seed=body.seed, level=body.level).to_dict(
                    body.level
                )
            )
        assert joint.as_of is not None
        return schemas.PortfolioAnswer(as_of=joint.as_of, horizon=body.horizon, **risk)

    async def model(self) -> ModelAnswer:
        """The model card: provenance, versions and limits."""
        return self.model_card

    async def health(self) -> schemas.HealthAnswer:
        """Liveness check."""
        return schemas.HealthAnswer(status="alive")

    async def ready(self) -> schemas.ReadyAnswer:
        """Readiness, and the state of each asset's feed."""
        self._require_ready()
        return schemas.ReadyAnswer(
            status="ready", feeds=self.follower.health() if self.follower else {}
        )

    async def page(self) -> PlainTextResponse:
        """Counters, timings and drift for Prometheus."""
        self.metrics.ready.set(self.is_ready)
        self.metrics.waiting.set(self._num_waiting)
        if self.ledger:
            self.metrics.e_value.labels("frequency").set(self.ledger.e_value or 1)
        for gauge in (self.metrics.last_bar, *self.metrics.of_asset.values()):
            gauge.clear()  # the bars of an asset may be gone
        for symbol, stream in self.live.online.streams.items():
            self.metrics.last_bar.labels(symbol).set(seconds_of(stream.last))
            self.metrics.show(symbol, self.live.drift(symbol))
        for symbol, health in self.follower.health().items() if self.follower else ():
            self.metrics.show(symbol, health)
        return PlainTextResponse(generate_latest(self.metrics.registry), media_type=PROMETHEUS)

    def _require_ready(self) -> None:
        """Refuse a request that comes before the first forecasts are made."""
        if not self.is_ready:
            raise RefusalError(
                503,
                "the service is starting",
                retry_after=1,
                fix="ask again when GET /readyz says 200",
            )

    async def _in_state_thread(self, function: Callable[..., Result], *inputs: Any) -> Result:
        """Run a function of the live assets in the worker thread, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._state, function, *inputs)

    async def _in_model_thread(self, make: Callable[[], Result]) -> Result:
        """Run `make` in the model's thread, one at a time, unless too many are waiting."""
        if self._num_waiting >= self.config.max_waiting:
            raise RefusalError(
                503, "too many forecasts are waiting", retry_after=1, fix="ask again in a moment"
            )
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._model, make)
        finally:
            self._num_waiting -= 1

    async def _warm_up(self) -> None:
        """Make the first, slow forecasts; then replay those of bars from a folder while serving."""
        try:
            await self._in_state_thread(describe_assets, self.live)
        except Exception as error:
            _log.exception("the first forecasts failed")
            self.failure = error
            self.give_up()
            return
        self.is_ready = True
        if self.follower:  # a daemon: shutdown must not wait for a silent source
            threading.Thread(target=self.follower.run, name="follow", daemon=True).start()
        await self._replay()

    async def _replay(self) -> None:
        """Score the forecasts before the last bars of a folder, an asset in one pass."""
        while self.live.replays:
            symbol = min(self.live.replays)
            try:
                past = await self._in_model_thread(partial(self.live.past_forecasts, symbol))
                await self._in_state_thread(self.live.settle_past, symbol, *past)
            except RefusalError as busy:  # clients come first, and a full disk may recover
                await asyncio.sleep(busy.retry_after or 0)
            except Exception:
                _log.exception("forecasts of past bars failed; the others go on")
                self.live.replays.pop(symbol, None)


class OwnService:
    """Pushes bars from the feed's thread as requests do."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.timeframe = service.model_card.timeframe
        self.symbols = service.live.symbols

    def stored(self, symbol: str) -> Sequence[BarRow]:
        """The last bars of an asset, oldest first."""
        return list(self.service.live.bars.get(symbol, ()))

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        """Take bars like those of a request, checked by the same schema, and wait until they are
        stored.
        """
        body = schemas.PushRequest.model_validate(as_json(bars))
        asyncio.run_coroutine_threadsafe(
            self.service.push(symbol, body), self.service.loop
        ).result()
