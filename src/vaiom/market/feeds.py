"""Where the newest bars come from: Dukascopy, an exchange, or files that another program writes.

Enters: the name of a source. Leaves: the bars of an asset from a moment on, as fine as the source has them. What comes
may be repeated, out of order, late or still changing; whoever asks sorts that out.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from vaiom.errors import ConfigError, DataError, require_installed
from vaiom.market.download import DUKASCOPY_URL, FeedFile, FileServer
from vaiom.market.folder import BAR_COLUMNS, BAR_SCHEMA, infer_timeframe
from vaiom.market.formats.dukascopy import price_scale_of
from vaiom.market.formats.table import FileBars, Options, drop_flat
from vaiom.market.imports import combine, given_symbol, list_files, read_one
from vaiom.market.symbols import find_pair
from vaiom.market.timeframes import timeframe_of

_EPOCH, _ONE_DAY, _ONE_HOUR = datetime(1970, 1, 1), timedelta(days=1), timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)
# A file is asked for again until its time ended so long ago.
_SETTLED = timedelta(hours=1)
BELIEVED = 3
"""Answers that must agree that there are no bars."""


class Feed(Protocol):
    """A source of bars; any error means that it had no answer this time."""

    pauses_s: tuple[float, float]
    """Seconds until it is asked again while it has nothing new: at first, and at most."""
    in_utc: bool
    """Whether its stamps are in UTC; else they are of the clock that the user's bars have."""

    @property
    def date(self) -> datetime | None:
        """The moment of its last answer by its own clock, in UTC, where it says it."""

    def read(self, symbol: str, since: datetime, now: datetime) -> tuple[pl.DataFrame, timedelta | None]:
        """At least an asset's bars from `since` on that it has by `now`, and their step if it is known."""


def open_feed(source: str, timeframe: str, options: Options | None = None) -> Feed:
    """The source that a user names; `options` are for files."""
    kind, _, name = source.partition(":")
    if source == "dukascopy" or kind in ("http", "https"):
        return Dukascopy(DUKASCOPY_URL if source == "dukascopy" else source)
    if kind == "ccxt":
        return Exchange(_exchange(name), timeframe)
    if not source or not Path(source).exists():
        expected = "dukascopy, http://..., ccxt:EXCHANGE, or a file or folder that is there"
        raise ConfigError("no such source of bars", expected=expected, got=repr(source))
    return Files(Path(source), options or Options(repair=True, utc=True, whole_lines=True))


class Dukascopy:
    """Candles of past days and ticks of the last hours."""

    pauses_s, in_utc = (10.0, 600.0), True

    def __init__(self, base_url: str, *, per_second: float = 8.0, attempts: int = 2, timeout_s: float = 20.0) -> None:
        self.server = FileServer(base_url.rstrip("/"), per_second, attempts, timeout_s)
        self._known: dict[FeedFile, tuple[int, pl.DataFrame]] = {}
        """Of files that do not change any more: how many answers agree, as far as that matters."""

    @property
    def date(self) -> datetime | None:
        return _parse_date(self.server.date)

    def read(self, symbol: str, since: datetime, now: datetime) -> tuple[pl.DataFrame, timedelta | None]:
        price_scale_of(symbol, "follow it from another source")
        self.server.date = None
        files: list[tuple[FeedFile, datetime]] = []
        start = datetime.combine(since, time())
        while start < now:
            # The file of a day may be published only some time after its end.
            if start + 2 * _ONE_DAY <= now:
                files.append((FeedFile(symbol, start.date()), start + _ONE_DAY))
            else:
                hours = (start + number * _ONE_HOUR for number in range(24))
                over = [each for each in hours if since < each + _ONE_HOUR <= now]
                files += [(FeedFile(symbol, each.date(), each.hour), each + _ONE_HOUR) for each in over]
            start += _ONE_DAY
        wanted = {file for file, _ in files}
        self._known = {file: known for file, known in self._known.items() if file.symbol != symbol or file in wanted}
        parts = [self._fetch(file, settled=end + _SETTLED <= now) for file, end in files]
        return pl.concat([pl.DataFrame(schema=BAR_SCHEMA), *parts]), timedelta(minutes=1)

    def _fetch(self, file: FeedFile, *, settled: bool) -> pl.DataFrame:
        times, bars = self._known.get(file, (0, pl.DataFrame()))
        if times < BELIEVED:
            bars = drop_flat(self.server.fetch(file)[1])
            if settled:
                self._known[file] = (times + 1 if bars.is_empty() else BELIEVED, bars)
        return bars


class Exchange:
    """An exchange of the `ccxt` library."""

    pauses_s, in_utc = (10.0, 600.0), True

    def __init__(self, exchange: Any, timeframe: str) -> None:
        self.exchange = exchange
        steps = {timedelta(seconds=exchange.parse_timeframe(name)): name for name in exchange.timeframes or ()}
        fitting = [step for step in steps if not timeframe_of(timeframe) % step]
        if not fitting:
            got = ", ".join(steps.values()) or "none"
            raise ConfigError(f"{exchange.id} has no candles that make {timeframe} bars", got=got)
        self.step = max(fitting)
        self.name = steps[self.step]

    @property
    def date(self) -> datetime | None:
        return _parse_date((self.exchange.last_response_headers or {}).get("Date"))

    def read(self, symbol: str, since: datetime, now: datetime) -> tuple[pl.DataFrame, timedelta | None]:
        market, start, last = self._market(symbol), (since - _EPOCH) // _MILLISECOND, -1
        end = (now - self.step - _EPOCH) // _MILLISECOND
        rows: list[list[Any]] = []
        while last < end:  # a page ends somewhere before the present
            page = self.exchange.fetch_ohlcv(market, self.name, max(start, last))
            newer = [row[:6] for row in page if row[0] > last]
            if not newer:
                break
            rows += newer
            last = max(row[0] for row in newer)
        stamps = pl.Series([row[0] for row in rows], dtype=pl.Int64).cast(pl.Datetime("ms"))
        numbers = [pl.Series([row[at] for row in rows], dtype=pl.Float64, strict=True) for at in range(1, 6)]
        columns = dict(zip(BAR_COLUMNS, [stamps, *numbers], strict=True))
        return pl.DataFrame(columns).cast(BAR_SCHEMA), self.step  # type: ignore[arg-type]

    def _market(self, symbol: str) -> str:
        """What the exchange calls an asset; the spot market before all others."""
        found = [each for each in self.exchange.load_markets().values() if f"{each['base']}{each['quote']}" == symbol]
        if not found:
            raise DataError(f"{self.exchange.id} has no such market", got=symbol, fix="follow it from another source")
        return str(min(found, key=lambda each: not each.get("spot"))["symbol"])


class Files:
    """A file or a folder that another program writes to, in any format that can be imported."""

    pauses_s, in_utc = (2.0, 2.0), False
    date: datetime | None = None

    def __init__(self, path: Path, options: Options) -> None:
        self.path, self.options = path, options
        self._read: dict[Path, tuple[tuple[int, int], str | None, FileBars | DataError]] = {}
        """What each file held when it was last read, its size and time then, and whose it is."""
        self._combined: dict[str, tuple[pl.DataFrame, timedelta | None]] = {}

    def read(self, symbol: str, since: datetime, now: datetime) -> tuple[pl.DataFrame, timedelta | None]:
        self._look()
        if symbol not in self._combined:
            of: dict[str | None, list[FileBars | DataError]] = {}
            for _, name, found in self._read.values():
                of.setdefault(name, []).append(found)
            own = of.get(symbol) or of.get(None, [])  # without a file of its own, those that nobody can place
            for problem in (each for each in own if isinstance(each, DataError)):
                raise problem
            held = [each for each in own if isinstance(each, FileBars) and len(each.bars)]
            bars = combine(symbol, held, self.options)[0] if held else pl.DataFrame(schema=BAR_SCHEMA)
            self._combined[symbol] = bars, infer_timeframe(bars["Datetime"])
        return self._combined[symbol]

    def _look(self) -> None:
        """Read the files that have changed."""
        paths = list_files([self.path])
        # First what it is like, then what it holds: what is written in between is seen the next time.
        there = {path: ((status := path.stat()).st_size, status.st_mtime_ns) for path in paths}
        for path, state in there.items():
            if path not in self._read or self._read[path][0] != state:
                self._combined.clear()
                try:
                    self._read[path] = (state, *read_one(path, self.options))
                except DataError as error:
                    self._read[path] = (state, given_symbol(path, self.options) or find_pair(path.name), error)
        if self._read.keys() != there.keys():
            self._combined.clear()
            self._read = {path: self._read[path] for path in there}


def _exchange(name: str) -> Any:
    require_installed("ccxt")
    import ccxt

    if name not in ccxt.exchanges:
        raise ConfigError("ccxt knows no such exchange", expected="one of its names, as in ccxt:kraken", got=repr(name))
    return getattr(ccxt, name)()


def _parse_date(text: str | None) -> datetime | None:
    """The `Date` of an HTTP answer."""
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
