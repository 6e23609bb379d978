"""A service that follows a source: a rough week leaves the bars and forecasts of a quiet one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from serve_runs import SYMBOLS, TinyRun, config_of, in_process

from market.feed_server import FeedServer, pack_ticks, path_of, running
from vaiom.market.feeds import Dukascopy
from vaiom.serve.app import OwnService, Service
from vaiom.serve.follow import Follower
from vaiom.serve.schemas import BarRow

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
SCALES = {"EURUSD": 1e5, "XAUUSD": 1e3}
FAULTS = ("drop", "cut", "half a record", "page", "500", "429 Retry-After: 0", "empty", "404")

Bar = tuple[datetime, float, float, float, float, float]


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class Market(dict[str, bytes]):
    """The files of a week that are published by the clock, an hour each; closed at the weekend."""

    def __init__(self, tiny: TinyRun, clock: Clock) -> None:
        self.clock, self.bars, self.published = clock, dict[str, list[Bar]](), dict[str, datetime]()
        chance = random.Random(5)
        for symbol, scale in SCALES.items():
            price, self.bars[symbol] = round(tiny.history[symbol]["Close"][-1] * scale), []
            for number in range(168):
                stamp = clock.now + number * HOUR
                if stamp.weekday() == 5 or (stamp.weekday() == 6 and stamp.hour < 22):
                    continue
                prices = [max(1, price + round(chance.gauss(0, 1.5e-3 * scale))) for _ in range(4)]
                price = prices[-1]
                file = path_of(symbol, stamp, f"{stamp.hour:02d}h_ticks")
                self[file] = pack_ticks(dict(zip((0, 1_200_000, 2_400_000, 3_570_000), prices, strict=True)))
                # The one is often late, by up to half an hour.
                late = SECOND * (
                    chance.choice([1, 3, 40, 1, 1, 1, 1, 1, 1_800]) if symbol == "XAUUSD" else chance.random()
                )
                self.published[file] = stamp + HOUR + late
                first, *_, last = whole = [each / scale for each in prices]
                self.bars[symbol].append((stamp, first, max(whole), min(whole), last, 4.0))

    def get(self, path: str, default: Any = None) -> Any:
        return super().get(path) if path in self and self.published[path] <= self.clock() else default


class RoughServer(FeedServer):
    """Drops, cuts, lies and skips now and then; in an outage it has no answer at all."""

    def __init__(self, market: Market, chance: random.Random, port: int = 0) -> None:
        super().__init__(port)
        self.files, self.clock, self.chance = market, market.clock, chance
        self.outages: list[tuple[datetime, datetime]] = []
        self.counts = Counter[str]()

    def take(self, path: str) -> str:
        fault = super().take(path)
        if any(begin <= self.clock() < end for begin, end in self.outages):
            fault = "503"
        elif self.chance.random() < 0.03:
            fault = self.chance.choice(FAULTS)
        self.counts[fault] += 1
        return fault


async def follow(service: Service, server: FeedServer, clock: Clock, until: datetime) -> Follower:
    service.live.clock = clock
    feed = Dukascopy(server.url, per_second=1e6, attempts=1, timeout_s=5.0)
    feed.pauses_s = 60.0, 14400.0
    service.follower = Follower(feed, OwnService(service), clock=clock, chance=random.Random(2))
    while clock.now < until:
        clock.now += timedelta(seconds=await asyncio.to_thread(service.follower.step))
    return service.follower


def test_a_rough_week_is_a_quiet_one(tiny: TinyRun, tmp_path: Path) -> None:
    clock = Clock(tiny.history["EURUSD"]["Datetime"][-1] + HOUR)
    start, market = clock.now, Market(tiny, clock)

    async def rough() -> dict[str, Any]:
        async with in_process(config_of(tiny, tmp_path / "rough", bars=tiny.bars, backfill=0)) as (client, service):
            with running(RoughServer(market, random.Random(3))) as server:
                assert isinstance(server, RoughServer)
                server.outages = [(start + 30 * HOUR, start + 37 * HOUR), (start + 100 * HOUR, start + 102 * HOUR)]
                await follow(service, server, clock, start + 34 * HOUR)
                feeds = (await client.get("/readyz")).json()["feeds"]
                assert all(feed["failures"] > 1 and feed["lag_seconds"] > 3 * 3600 for feed in feeds.values())
                assert "vaiom_feed_failures{asset=" in (await client.get("/metrics")).text
                await follow(service, server, clock, start + 110 * HOUR)
            # It is restarted, and so is what asks.
            with running(RoughServer(market, random.Random(4), server.server_address[1])) as server:
                await follow(service, server, clock, start + 170 * HOUR)
            assert not any(feed["failures"] for feed in (await client.get("/readyz")).json()["feeds"].values())
            return results(service)

    def quiet() -> dict[str, Any]:
        service = Service(config_of(tiny, tmp_path / "quiet", bars=tiny.bars, backfill=0))
        for bars in zip(*market.bars.values(), strict=True):
            for symbol, bar in zip(market.bars, bars, strict=True):
                service.live.newest(symbol)
                service.live.push(symbol, [BarRow(*bar)])
        try:
            return results(service)
        finally:
            service.store.close()

    found, expected = asyncio.run(rough()), quiet()
    for symbol, bars in market.bars.items():
        assert found[symbol]["bars"] == expected[symbol]["bars"] == bars
        assert len(bars) == 122
        # Of bars that came together after an outage only the first had its forecast before it.
        assert 100 < len(found[symbol]["settled"]) < len(expected[symbol]["settled"]) == 122
        assert found[symbol]["settled"].items() <= expected[symbol]["settled"].items()
    assert found["forecasts"] == expected["forecasts"]
    assert found["state"] == expected["state"]


def results(service: Service) -> dict[str, Any]:
    live = service.live
    return {
        symbol: {"bars": bars, "settled": {each.as_of: each for each in live.settled[symbol]}}
        for symbol in SYMBOLS
        if (bars := [tuple(bar) for bar in service.store.last_bars(symbol, 122)])
    } | {"state": live.online.to_json(), "forecasts": [live.newest(symbol).to_dict() for symbol in SYMBOLS]}
