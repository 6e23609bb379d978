"""Follow a feed: push its bars to a service once they are complete, each once and in order.

Enters: a `Feed` and a service, in this process or at a URL. Leaves: pushed bars, and the health of
each asset's feed. A source may repeat, skip, lag or correct itself: a hole is accepted after
several identical answers, a correction of a stored bar is reported and never applied, and after an
outage everything since the last stored bars is requested.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import polars as pl

from vaiom.errors import DataError, UserError
from vaiom.forecast.bars import utc_now, wrong_timeframe
from vaiom.market.feeds import BELIEVED, Feed
from vaiom.market.folder import NUMBER_COLUMNS, infer_timeframe
from vaiom.market.resample import resample
from vaiom.market.timeframes import timeframe_of

FINAL_AFTER = timedelta(seconds=5)
"""A bar may still change for this long after its end."""
LOOK_BACK = 4
"""Stored bars that are requested again, to detect corrections."""
MAX_BARS_PER_PUSH = 1_000
"""Bars of one push; an asset without bars begins with so many."""
MAX_DRIFT_SECONDS = 60.0
"""Larger clock differences are reported."""
MAX_DOUBLINGS = 16
"""How often the pause doubles while nothing new comes."""
TIMEOUT_SECONDS = 30
"""How long a service at a URL may take to answer."""

Hole = tuple[datetime, datetime]
"""The stamps before and after bars that may be missing."""
_log = logging.getLogger("vaiom.follow")


class BarRow(NamedTuple):
    """One bar, in the column order of a bar folder; None where a number is missing."""

    datetime: Any
    open: float | None
    high: float | None
    low: float | None
    close: float | None
    volume: float | None

    @property
    def prices(self) -> tuple[float | None, ...]:
        """Open, high, low, close: what a source may correct."""
        return self[1:5]


class Sink(Protocol):
    """A service that takes bars."""

    timeframe: str
    symbols: list[str]

    def stored(self, symbol: str) -> Sequence[BarRow]:
        """The last bars of an asset, oldest first."""

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        """Append bars, or raise."""


@dataclass(kw_only=True)
class FeedHealth:
    """The state of one asset's feed."""

    lag_seconds: float | None = None
    """Seconds since the end of its last stored bar."""
    failures: int = 0
    """Consecutive failed requests."""
    problem: str | None = None
    """The last failure, until a request succeeds."""
    corrections: int = 0
    """Stored bars that the source has changed, or delivered too late."""
    clock_drift_seconds: float = 0.0
    """How far the source's clock is ahead of ours, if known."""


@dataclass(kw_only=True)
class _Asset:
    """What is known of one asset between requests."""

    symbol: str
    health: FeedHealth = field(default_factory=FeedHealth)
    last: datetime | None = None
    """The stamp of the last stored bar."""
    doubts: dict[Hole, int] = field(default_factory=dict)
    """How many consecutive answers agreed on each hole."""
    corrected: set[BarRow] = field(default_factory=set)
    """Corrections that were reported."""


class Follower:
    """Polls a feed and pushes new bars, in `step`s or in a thread."""

    def __init__(
        self,
        feed: Feed,
        sink: Sink,
        *,
        utc_offset: timedelta = timedelta(0),
        clock: Callable[[], datetime] = utc_now,
        chance: random.Random | None = None,
    ) -> None:
        """`utc_offset` is how far the bars' clock is ahead of UTC."""
        self.feed = feed
        self.sink = sink
        self.clock = clock
        self.utc_offset = utc_offset
        self.chance = chance or random.Random()
        self.timeframe = timeframe_of(sink.timeframe)
        self.assets = {symbol: _Asset(symbol=symbol) for symbol in sink.symbols}
        self.stop = threading.Event()
        self._quiet = 0
        """Consecutive steps without a new bar."""

    def run(self) -> None:
        """Poll until `stop` is set."""
        while not self.stop.is_set():
            self.stop.wait(self.step())

    def step(self) -> float:
        """Push the new bars of every asset; returns the seconds until there may be more."""
        before = {symbol: asset.last for symbol, asset in self.assets.items()}
        # Those that failed lately come last.
        for asset in sorted(self.assets.values(), key=lambda each: each.health.failures):
            self._try(asset)
            if self.stop.is_set():
                break
        is_quiet = all(asset.last == before[symbol] for symbol, asset in self.assets.items())
        self._quiet = min(self._quiet + 1, MAX_DOUBLINGS) if is_quiet else 0
        return self._pause()

    def health(self) -> dict[str, FeedHealth]:
        """Feed health by symbol."""
        for asset in self.assets.values():
            if asset.last:
                lag = self._now() - asset.last - self.timeframe
                asset.health.lag_seconds = lag.total_seconds()
        return {symbol: asset.health for symbol, asset in self.assets.items()}

    def _try(self, asset: _Asset) -> None:
        """Request an asset's bars; no failure of a source may stop the service."""
        health = asset.health
        problem = None
        try:
            self._catch_up(asset)
        except Exception as error:
            problem = error.problem if isinstance(error, UserError) else type(error).__name__
            if problem != health.problem:
                _log.warning("%s: %s", asset.symbol, error)
        if health.problem and not problem:
            _log.warning("%s: the source answers again", asset.symbol)
        health.problem = problem
        health.failures = health.failures + 1 if problem else 0

    def _pause(self) -> float:
        """Seconds until the next bar is due; where one is overdue, a pause that doubles."""
        first, longest = self.feed.pauses_s
        waits = [self._until_next(asset) for asset in self.assets.values()]
        due = [wait for wait in waits if wait > 0]
        # By chance, so that many followers do not ask at once.
        pause = min(longest, first * 2.0**self._quiet) * self.chance.uniform(0.5, 1.0)
        soonest = min(due) + first * self.chance.random() if due else pause
        return soonest if len(due) == len(waits) else min(pause, soonest)

    def _now(self) -> datetime:
        """The present on the clock of the bars."""
        return self.clock() + self.utc_offset

    def _until_next(self, asset: _Asset) -> float:
        """Seconds until the bar after the last one is complete."""
        over = asset.last + 2 * self.timeframe + FINAL_AFTER if asset.last else datetime.min
        return (over - self._now()).total_seconds()

    def _catch_up(self, asset: _Asset) -> None:
        """Request what may be new, and push it up to the first hole that is in doubt."""
        if asset.last is None:
            asset.last = _newest(self.sink.stored(asset.symbol))
        if self._until_next(asset) > 0:
            return
        bars, holes = self._request(asset)
        new = [bar for bar in bars if asset.last is None or bar.datetime > asset.last]
        stamps = [bar.datetime for bar in new]
        if asset.last:
            stamps.insert(0, asset.last)
        holes += [hole for hole in pairwise(stamps) if hole[1] - hole[0] > self.timeframe]
        # A hole, until enough answers confirmed it: bars before the first one can be pushed.
        asset.doubts = {hole: asset.doubts.get(hole, 0) + 1 for hole in holes}
        doubted = [after for (_, after), times in asset.doubts.items() if times < BELIEVED]
        stop = min(doubted, default=datetime.max)
        new = [bar for bar in new if bar.datetime < stop]
        if not new:
            return
        stored = self.sink.stored(asset.symbol)
        if _newest(stored) != asset.last:
            # Another client pushed or removed bars: continue there next time.
            asset.last = _newest(stored)
            return
        self._compare(asset, bars, stored)
        for at in range(0, len(new), MAX_BARS_PER_PUSH):
            part = new[at : at + MAX_BARS_PER_PUSH]
            self.sink.push(asset.symbol, part)
            asset.last = part[-1].datetime

    def _request(self, asset: _Asset) -> tuple[list[BarRow], list[Hole]]:
        """The source's complete bars since shortly before the last stored one, and a hole where
        finer bars are missing at the end.
        """
        step = self.timeframe
        since = self._since(asset)
        moved = self.utc_offset if self.feed.in_utc else timedelta(0)
        bars, own = self.feed.read(asset.symbol, since - moved, self._now() - moved)
        usual = infer_timeframe(bars["Datetime"], majority=True)
        if usual and usual > step:
            raise wrong_timeframe(f"bars of {asset.symbol}", self.sink.timeframe, usual)
        own = min(own or step, step)
        stamp = pl.col("Datetime")
        # What is no number is missing: a service refuses it, again and again.
        numbers = pl.col(NUMBER_COLUMNS)
        bars = bars.with_columns(stamp + moved, pl.when(numbers.is_finite()).then(numbers))
        bars = bars.filter(stamp >= since).unique("Datetime", keep="last").sort("Datetime")
        end = self._end(asset, bars)
        bars = bars.filter(stamp <= end - own)
        if own == step or bars.is_empty():
            return _rows(bars), []
        newest = bars["Datetime"][-1]
        where = Path(f"bars of {asset.symbol}")
        whole = resample(bars, self.sink.timeframe, where=where, step=own)
        rows = _rows(whole.filter(stamp <= end - step))
        is_incomplete = rows and newest + own < rows[-1].datetime + step
        return rows, [(newest, rows[-1].datetime)] if is_incomplete else []

    def _since(self, asset: _Asset) -> datetime:
        """The first stamp to request: a few stored bars again, or the history of a new asset."""
        step = self.timeframe
        if asset.last:
            return asset.last - LOOK_BACK * step
        start = self._now() - MAX_BARS_PER_PUSH * step
        return start - (start - datetime.min) % step

    def _end(self, asset: _Asset, bars: pl.DataFrame) -> datetime:
        """The moment at which a bar must be over, by the source's clock and by ours."""
        now = self._now()
        source_now = self.feed.date + self.utc_offset if self.feed.date else now
        newest: Any = bars["Datetime"].max() or source_now
        drift = (max(source_now, newest) - now).total_seconds()
        health = asset.health
        if abs(drift) > MAX_DRIFT_SECONDS >= abs(health.clock_drift_seconds):
            words = "%s: the source's clock is %+.0f s ahead of that of this machine"
            _log.warning(words, asset.symbol, drift)
        health.clock_drift_seconds = drift
        return min(now, source_now) - FINAL_AFTER

    def _compare(self, asset: _Asset, bars: Sequence[BarRow], stored: Sequence[BarRow]) -> None:
        """Report bars that differ from the stored ones or came too late; nothing is changed."""
        known = {bar.datetime: bar.prices for bar in stored}
        for bar in bars:
            before = known.get(bar.datetime)
            is_inside = stored and stored[0].datetime <= bar.datetime <= stored[-1].datetime
            if is_inside and before != bar.prices and bar not in asset.corrected:
                words = "%s: of %s the source has %s now, stored is %s"
                told = before or "nothing"
                _log.warning(words, asset.symbol, bar.datetime, bar.prices, told)
                asset.corrected.add(bar)
        asset.health.corrections = len(asset.corrected)


class HttpService:
    """A service at a URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """`key` is an API key, where the service asks for one."""
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        state = self._request("/v1/assets")
        self.timeframe = str(state["timeframe"])
        self.symbols = [str(asset["symbol"]) for asset in state["assets"]]

    def stored(self, symbol: str) -> list[BarRow]:
        """The last bars of an asset, oldest first."""
        bars = self._request(f"/v1/assets/{symbol}/history?last={10 * LOOK_BACK}")["bars"]
        names = BarRow._fields[1:]
        return [
            BarRow(datetime.fromisoformat(bar["datetime"]), *(bar[name] for name in names))
            for bar in bars
        ]

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        """Append bars, or raise."""
        self._request(f"/v1/assets/{symbol}/bars", as_json(bars))

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON answer to a POST of a body, or to a GET without one."""
        where = self.url + path
        try:
            request = Request(where, json.dumps(body).encode() if body else None, self.headers)
            with urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return dict(json.load(answer))
        except HTTPError as error:
            problem = f"the service refuses with HTTP {error.code}"
            got = error.read(400).decode(errors="replace")
            raise DataError(problem, where=where, got=got) from error
        except (OSError, ValueError) as error:
            raise DataError(
                "the service does not answer",
                where=where,
                got=str(error),
                fix="start it with `vaiom serve`, or correct --url",
            ) from error


def as_json(bars: Sequence[BarRow]) -> dict[str, Any]:
    """The body of a push request."""
    return {"bars": [bar._asdict() | {"datetime": bar.datetime.isoformat()} for bar in bars]}


def _rows(bars: pl.DataFrame) -> list[BarRow]:
    """The bars of a frame of a feed."""
    return [BarRow(*row) for row in bars.iter_rows()]


def _newest(bars: Sequence[BarRow]) -> datetime | None:
    """The stamp of the last bar, if there is one."""
    return bars[-1].datetime if bars else None
