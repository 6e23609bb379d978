"""Follow a feed: push its bars to a service once they are complete, each once and in order.

A source may repeat, skip, lag or correct itself: a hole is accepted after several identical
answers, a correction of a stored bar is reported and never applied, and after an outage everything
since the last stored bars is requested.
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
from typing import Any, NamedTuple, Protocol, cast
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
MOST_DRIFT_S = 60.0
"""Larger clock differences are reported."""

_Doubt = tuple[datetime, datetime]
"""A bar that may have come too early, and the stamp before it."""
_log = logging.getLogger("vaiom.follow")


class BarRow(NamedTuple):
    """One bar, in the column order of a bar folder."""

    datetime: Any
    open: float | None
    high: float | None
    low: float | None
    close: float | None
    volume: float | None


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
    symbol: str
    health: FeedHealth = field(default_factory=FeedHealth)
    last: datetime | None = None
    doubts: dict[_Doubt, int] = field(default_factory=dict)
    """How many consecutive answers agreed on it."""
    corrected: set[BarRow] = field(default_factory=set)


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
        self.feed, self.sink, self.clock, self.utc_offset = feed, sink, clock, utc_offset
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
        for asset in sorted(self.assets.values(), key=lambda each: each.health.failures):
            health, problem = asset.health, None
            try:
                self._catch_up(asset)
            except Exception as error:  # no source may stop the service
                problem = error.problem if isinstance(error, UserError) else type(error).__name__
                if problem != health.problem:
                    _log.warning("%s: %s", asset.symbol, error)
            if health.problem and not problem:
                _log.warning("%s: the source answers again", asset.symbol)
            health.failures, health.problem = health.failures + 1 if problem else 0, problem
            if self.stop.is_set():
                break
        news = any(asset.last != before[symbol] for symbol, asset in self.assets.items())
        self._quiet = 0 if news else min(self._quiet + 1, 16)
        first, most = self.feed.pauses_s
        pause = min(most, first * 2.0**self._quiet) * self.chance.uniform(0.5, 1.0)
        waits = [self._until_next(asset) for asset in self.assets.values()]
        due = [wait for wait in waits if wait > 0]
        soonest = min(due) + first * self.chance.random() if due else pause
        return soonest if len(due) == len(waits) else min(pause, soonest)

    def health(self) -> dict[str, FeedHealth]:
        """Feed health by symbol."""
        for asset in self.assets.values():
            if asset.last:
                asset.health.lag_seconds = (
                    self._now() - asset.last - self.timeframe
                ).total_seconds()
        return {symbol: asset.health for symbol, asset in self.assets.items()}

    def _now(self) -> datetime:
        return self.clock() + self.utc_offset

    def _until_next(self, asset: _Asset) -> float:
        """Seconds until the bar after the last one is complete."""
        over = asset.last + 2 * self.timeframe + FINAL_AFTER if asset.last else datetime.min
        return (over - self._now()).total_seconds()

    def _catch_up(self, asset: _Asset) -> None:
        """Request what may be new, and push it."""
        if asset.last is None:
            asset.last = _newest(self.sink.stored(asset.symbol))
        if self._until_next(asset) > 0:
            return
        bars, doubts = self._request(asset)
        new = [bar for bar in bars if asset.last is None or bar.datetime > asset.last]
        # A hole, until enough answers confirmed it: bars before the first one can be pushed.
        stamps = [asset.last or new[0].datetime, *(bar.datetime for bar in new)] if new else []
        doubts += [
            (after, before) for before, after in pairwise(stamps) if after - before > self.timeframe
        ]
        asset.doubts = {doubt: asset.doubts.get(doubt, 0) + 1 for doubt in doubts}
        first = min(
            (after for (after, _), times in asset.doubts.items() if times < BELIEVED),
            default=datetime.max,
        )
        new = [bar for bar in new if bar.datetime < first]
        if not new:
            return
        stored = self.sink.stored(asset.symbol)
        if (
            _newest(stored) != asset.last
        ):  # another client pushed or removed bars: continue there next time
            asset.last = _newest(stored)
            return
        self._compare(asset, bars, stored)
        for at in range(0, len(new), MAX_BARS_PER_PUSH):
            part = new[at : at + MAX_BARS_PER_PUSH]
            self.sink.push(asset.symbol, part)
            asset.last = part[-1].datetime

    def _request(self, asset: _Asset) -> tuple[list[BarRow], list[_Doubt]]:
        """The source's complete bars since shortly before the last stored one; in doubt if finer
        bars are missing.
        """
        now, step = self._now(), self.timeframe
        start = now - MAX_BARS_PER_PUSH * step
        since = (
            asset.last - LOOK_BACK * step if asset.last else start - (start - datetime.min) % step
        )
        moved = self.utc_offset if self.feed.in_utc else timedelta(0)
        bars, own = self.feed.read(asset.symbol, since - moved, now - moved)
        usual = infer_timeframe(bars["Datetime"], majority=True)
        if usual and usual > step:
            raise wrong_timeframe(f"bars of {asset.symbol}", self.sink.timeframe, usual)
        stamp, own = pl.col("Datetime"), min(own or step, step)
        numbers = pl.col(
            NUMBER_COLUMNS
        )  # what is no number is missing: a service refuses it, again and again
        bars = bars.with_columns(stamp + moved, pl.when(numbers.is_finite()).then(numbers))
        bars = bars.filter(stamp >= since).unique("Datetime", keep="last").sort("Datetime")
        now, newest = self._now(), cast(datetime | None, bars["Datetime"].max())
        source_now = self.feed.date + self.utc_offset if self.feed.date else now
        drift = (max(source_now, newest or source_now) - now).total_seconds()
        if abs(drift) > MOST_DRIFT_S >= abs(asset.health.clock_drift_seconds):
            _log.warning(
                "%s: the source's clock is %+.0f s ahead of that of this machine",
                asset.symbol,
                drift,
            )
        asset.health.clock_drift_seconds = drift
        end = min(now, source_now) - FINAL_AFTER  # a bar must be complete by both clocks
        bars = bars.filter(stamp <= end - own)
        if own == step or bars.is_empty():
            return [*map(BarRow._make, bars.iter_rows())], []
        newest, where = bars["Datetime"][-1], Path(f"bars of {asset.symbol}")
        bars = resample(bars, self.sink.timeframe, where=where, step=own).filter(
            stamp <= end - step
        )
        rows = [*map(BarRow._make, bars.iter_rows())]
        return rows, [
            (bar.datetime, newest) for bar in rows[-1:] if newest + own < bar.datetime + step
        ]

    def _compare(self, asset: _Asset, bars: Sequence[BarRow], stored: Sequence[BarRow]) -> None:
        """Report bars that differ from the stored ones or came too late; nothing is changed."""
        known = {bar.datetime: bar[1:5] for bar in stored}
        for bar in bars:
            stamp, prices, before = bar.datetime, bar[1:5], known.get(bar.datetime, "nothing")
            if stored and stored[0].datetime <= stamp <= stored[-1].datetime and before != prices:
                if bar not in asset.corrected:
                    _log.warning(
                        "%s: of %s the source has %s now, stored is %s",
                        asset.symbol,
                        stamp,
                        prices,
                        before,
                    )
                asset.corrected.add(bar)
        asset.health.corrections = len(asset.corrected)


class HttpService:
    """A service at a URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self.headers = url.rstrip("/"), {"Content-Type": "application/json"}
        self.headers |= {"Authorization": f"Bearer {key}"} if key else {}
        state = self._request("/v1/assets")
        self.timeframe, self.symbols = (
            str(state["timeframe"]),
            [str(each["symbol"]) for each in state["assets"]],
        )

    def stored(self, symbol: str) -> list[BarRow]:
        bars = self._request(f"/v1/assets/{symbol}/history?last={10 * LOOK_BACK}")["bars"]
        names = BarRow._fields[1:]
        return [
            BarRow(datetime.fromisoformat(bar["datetime"]), *(bar[name] for name in names))
            for bar in bars
        ]

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        self._request(f"/v1/assets/{symbol}/bars", as_json(bars))

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        where = self.url + path
        try:
            request = Request(where, json.dumps(body).encode() if body else None, self.headers)
            with urlopen(request, timeout=30) as answer:
                return dict(json.load(answer))
        except HTTPError as error:
            got = error.read(400).decode(errors="replace")
            raise DataError(
                f"the service refuses with HTTP {error.code}", where=where, got=got
            ) from error
        except (OSError, ValueError) as error:
            fix = "start it with `vaiom serve`, or correct --url"
            raise DataError(
                "the service does not answer", where=where, got=str(error), fix=fix
            ) from error


def as_json(bars: Sequence[BarRow]) -> dict[str, Any]:
    """The body of a push request."""
    return {"bars": [bar._asdict() | {"datetime": bar.datetime.isoformat()} for bar in bars]}


def _newest(bars: Sequence[BarRow]) -> datetime | None:
    return bars[-1].datetime if bars else None
