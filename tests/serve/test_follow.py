"""A service that follows an exchange: a rough week leaves the bars and forecasts of a quiet one."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse
from urllib.request import urlopen

from serve_runs import SYMBOLS, TinyRun, config_of, in_process

from market.feed_server import FeedServer, running
from vaiom.market.feeds import BELIEVED, Exchange
from vaiom.serve.follow import BarRow, Follower
from vaiom.serve.service import OwnService, Service

HOUR, EPOCH = timedelta(hours=1), datetime(1970, 1, 1)
FAULTS = ("drop", "cut", "page", "500", "404", "empty")


class Market:
    """Bars of a week, closed at the weekend; one asset's are often late, by up to half an hour."""

    def __init__(self, tiny: TinyRun) -> None:
        self.start = self.now = tiny.history["EURUSD"]["Datetime"][-1] + HOUR
        self.bars: dict[str, list[tuple[Any, ...]]] = {}
        self.published: dict[tuple[str, datetime], datetime] = {}
        chance = random.Random(5)
        for symbol in SYMBOLS:
            price, self.bars[symbol] = tiny.history[symbol]["Close"][-1], []
            for stamp in (self.start + number * HOUR for number in range(168)):
                if stamp.weekday() == 5 or (stamp.weekday() == 6 and stamp.hour < 22):
                    continue
                prices = [price * (1 + chance.gauss(0, 1e-3)) for _ in range(4)]
                price = prices[-1]
                self.bars[symbol].append(
                    (stamp, prices[0], max(prices), min(prices), price, float(len(self.bars)))
                )
                late = timedelta(
                    seconds=chance.choice([0, 0, 0, 40, 1_800]) if symbol == "XAUUSD" else 0
                )
                self.published[symbol, stamp] = stamp + late

    def clock(self) -> datetime:
        return self.now


class Server(FeedServer):
    """An exchange on loopback: it drops, cuts, repeats, skips and lies now and then, and may not
    answer for hours.

    Its last candle is unfinished, and a lie.
    """

    def __init__(self, market: Market, seed: int, port: int = 0) -> None:
        super().__init__(port)
        self.market, self.clock, self.chance = market, market.clock, random.Random(seed)
        self.files = self  # type: ignore[assignment]
        self.outages: list[tuple[int, int]] = []
        self.counts, self.skips = Counter[str](), Counter[str]()

    def take(self, path: str) -> str:
        super().take(path)
        hours = (self.market.now - self.market.start) / HOUR
        fault = "503" if any(begin <= hours < end for begin, end in self.outages) else ""
        fault = fault or (self.chance.choice(FAULTS) if self.chance.random() < 0.1 else "")
        self.counts[fault or "answered"] += 1
        return fault

    def get(self, path: str) -> bytes:
        market, symbol = self.market, urlparse(path).path[1:]
        since = EPOCH + timedelta(milliseconds=int(parse_qs(urlparse(path).query)["since"][0]))
        there = [
            each
            for each in market.bars[symbol]
            if since <= each[0] and market.published[symbol, each[0]] <= market.now
        ]
        rows = [
            [(stamp - EPOCH) // timedelta(milliseconds=1), *numbers] for stamp, *numbers in there
        ]
        if there and there[-1][0] + HOUR > market.now:
            rows[-1][1:] = [9.0, 9.0, 9.0, 9.0, None]
        # What it skips after an outage would be lost if it were believed.
        trick = (
            "skip"
            if len(rows) > 7
            else self.chance.choice(["", "", "", "repeat", "shuffle", "page", "skip"])
        )
        if trick == "skip" and len(rows) > 2 and self.skips[symbol] < BELIEVED - 1:
            del rows[-3]
            self.skips[symbol] += 1
        else:
            self.skips[symbol] = 0
        self.counts[trick] += 1
        rows += self.chance.choices(rows, k=3) if trick == "repeat" and rows else []
        self.chance.shuffle(rows) if trick == "shuffle" else None
        return json.dumps(rows[:5] if trick == "page" else rows).encode()


class Client:
    """What is used of ccxt."""

    id, timeframes, last_response_headers = "loopback", {"1h": "1h"}, None

    def __init__(self, url: str) -> None:
        self.url = url

    def parse_timeframe(self, _: str) -> int:
        return 3600

    def load_markets(self) -> dict[str, Any]:
        return {
            each: {"symbol": each, "base": each[:3], "quote": each[3:], "spot": True}
            for each in SYMBOLS
        }

    def fetch_ohlcv(self, symbol: str, _: str, since: int) -> Any:
        with urlopen(f"{self.url}/{symbol}?since={since}", timeout=3_600) as answer:
            self.last_response_headers = answer.headers
            return json.load(answer)


async def follow(service: Service, server: Server, hours: int) -> None:
    """Until so many hours of the week are over; whoever asks begins anew."""
    market = server.market
    feed, chance = Exchange(Client(server.url), "1h"), random.Random(2)
    feed.pauses_s = 60.0, 1_800.0
    service.follower = Follower(feed, OwnService(service), clock=market.clock, chance=chance)
    while market.now < market.start + hours * HOUR:
        market.now += timedelta(seconds=await asyncio.to_thread(service.follower.step))


def test_a_rough_week_is_a_quiet_one(tiny: TinyRun, tmp_path: Path) -> None:
    market = Market(tiny)

    async def rough() -> tuple[Any, ...]:
        async with in_process(config_of(tiny, tmp_path / "rough", bars=tiny.bars, backfill=0)) as (
            client,
            service,
        ):
            with running(Server(market, 3)) as server:
                assert isinstance(server, Server)
                server.outages = [(30, 37), (100, 102)]
                await follow(service, server, 34)
                feeds = (await client.get("/readyz")).json()["feeds"]
                assert all(
                    feed["failures"] > 1 and feed["lag_seconds"] > 3 * 3600
                    for feed in feeds.values()
                )
                assert (
                    'vaiom_feed_lag_seconds{asset="EURUSD"}' in (await client.get("/metrics")).text
                )
                await follow(service, server, 110)
            with running(Server(market, 4, server.server_address[1])) as again:
                assert isinstance(again, Server)
                await follow(service, again, 170)
            done = server.counts + again.counts
            assert (
                min(done[each] for each in (*FAULTS, "503", "repeat", "shuffle", "page", "skip"))
                > 1
            )
            return results(service)

    def quiet() -> tuple[Any, ...]:
        service = Service(config_of(tiny, tmp_path / "quiet", bars=tiny.bars, backfill=0))
        for bars in zip(*market.bars.values(), strict=True):
            for symbol, bar in zip(market.bars, bars, strict=True):
                service.live.newest(symbol)
                service.live.push(symbol, [BarRow(*bar)])
        found = results(service)
        service.store.close()
        return found

    (bars, settled, *rest), (expected, every, *others) = asyncio.run(rough()), quiet()
    assert bars == expected == market.bars
    for symbol in SYMBOLS:
        # Of bars that came together after an outage only the first had its forecast before it.
        assert 100 < len(settled[symbol]) < len(every[symbol]) == len(bars[symbol]) == 122
        assert settled[symbol].items() <= every[symbol].items()
    assert rest == others


def results(service: Service) -> tuple[Any, ...]:
    """Stored bars, scored forecasts, where the assets stand, and the next forecasts."""
    live, bars = service.live, {each: service.store.last_bars(each, 122) for each in SYMBOLS}
    return (
        {symbol: [tuple(bar) for bar in own] for symbol, own in bars.items()},
        {symbol: {each.as_of: each for each in live.settled[symbol]} for symbol in SYMBOLS},
        {symbol: stream.recursion.to_json() for symbol, stream in live.online.streams.items()},
        [dist.to_dict() for symbol in SYMBOLS if (dist := live.newest(symbol))],
    )
