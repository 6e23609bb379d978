"""Sources of the newest bars: Dukascopy, an exchange, or files that another program writes.

Enters: the name of a source. Leaves: the bars of an asset from a moment on, as fine as the source
has them. Bars may be repeated, out of order, late or still changing: the caller handles that.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from vaiom.errors import ConfigError, DataError, require_installed
from vaiom.market.file_server import DUKASCOPY_URL, FeedFile, FileServer
from vaiom.market.folder import BAR_SCHEMA, STAMP, infer_timeframe
from vaiom.market.formats.dukascopy import price_scale_of
from vaiom.market.formats.source import FileBars, Options
from vaiom.market.formats.table import drop_flat
from vaiom.market.imports import combine, given_symbol, list_files, read_one
from vaiom.market.symbols import find_pair
from vaiom.market.timeframes import timeframe_of

_EPOCH, _ONE_DAY, _ONE_HOUR = datetime(1970, 1, 1), timedelta(days=1), timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)
BELIEVED = 3
"""Answers that must agree that there are no bars."""


class Feed(Protocol):
    """A source of bars; any error means that it had no answer this time."""

    pauses_s: tuple[float, float]
    """Seconds between requests while there is nothing new: at first, and at most."""
    in_utc: bool
    """Whether its stamps are in UTC; otherwise they have the clock of the user's bars."""

    @property
    def date(self) -> datetime | None:
        """The time of its last answer by its own clock, in UTC, if known."""

    def read(
        self, symbol: str, since: datetime, now: datetime
    ) -> tuple[pl.DataFrame, timedelta | None]:
        """An asset's bars, at least those from `since` until `now`, and their step if known."""


def open_feed(source: str, timeframe: str, options: Options | None = None) -> Feed:
    """The source with a name, as in `--follow`; `options` are for files."""
    kind, _, name = source.partition(":")
    if source == "dukascopy" or kind in ("http", "https"):
        return Dukascopy(DUKASCOPY_URL if source == "dukascopy" else source)
    if kind == "ccxt":
        require_installed("ccxt")
        import ccxt

        if name not in ccxt.exchanges:
            expected = "one of its names, as in ccxt:kraken"
            raise ConfigError("ccxt knows no such exchange", expected=expected, got=repr(name))
        return Exchange(getattr(ccxt, name)(), timeframe)
    if not source or not Path(source).exists():
        expected = "dukascopy, http://..., ccxt:EXCHANGE, or a file or folder that is there"
        raise ConfigError("no such source of bars", expected=expected, got=repr(source))
    return Files(Path(source), options or Options(repair=True, utc=True, whole_lines=True))


class Dukascopy:
    """Candles of past days and ticks of the last hours."""

    pauses_s, in_utc = (10.0, 600.0), True

    def __init__(
        self, base_url: str, *, per_second: float = 8.0, attempts: int = 2, timeout_s: float = 20.0
    ) -> None:
        self.server = FileServer(base_url, per_second, attempts, timeout_s)
        self._settled: dict[FeedFile, tuple[int, pl.DataFrame]] = {}
        """Files that do not change any more: their bars, and how many answers agree on them."""

    @property
    def date(self) -> datetime | None:
        return _parse_date(self.server.date)

    def read(
        self, symbol: str, since: datetime, now: datetime
    ) -> tuple[pl.DataFrame, timedelta | None]:
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
                over = [hour for hour in hours if since < hour + _ONE_HOUR <= now]
                files += [
                    (FeedFile(symbol, hour.date(), hour.hour), hour + _ONE_HOUR) for hour in over
                ]
            start += _ONE_DAY
        requested = {file for file, _ in files}
        self._settled = {
            file: old
            for file, old in self._settled.items()
            if file.symbol != symbol or file in requested
        }
        parts = [pl.DataFrame(schema=BAR_SCHEMA)]
        for file, end in files:
            num_answers, bars = self._settled.get(file, (0, parts[0]))
            if num_answers < BELIEVED:
                bars = drop_flat(self.server.fetch(file).bars)
                if end + _ONE_HOUR <= now:  # until then it may still change
                    self._settled[file] = (num_answers + 1 if bars.is_empty() else BELIEVED, bars)
            parts.append(bars)
        return pl.concat(parts), timedelta(minutes=1)


class Exchange:
    """An exchange of the `ccxt` library."""

    pauses_s, in_utc = (10.0, 600.0), True

    def __init__(self, exchange: Any, timeframe: str) -> None:
        self.exchange = exchange
        steps = {
            timedelta(seconds=exchange.parse_timeframe(name)): name
            for name in exchange.timeframes or ()
        }
        fitting = [step for step in steps if not timeframe_of(timeframe) % step]
        if not fitting:
            got = ", ".join(steps.values()) or "none"
            raise ConfigError(f"{exchange.id} has no candles that make {timeframe} bars", got=got)
        self.step = max(fitting)
        self.name = steps[self.step]

    @property
    def date(self) -> datetime | None:
        return _parse_date((self.exchange.last_response_headers or {}).get("Date"))

    def read(
        self, symbol: str, since: datetime, now: datetime
    ) -> tuple[pl.DataFrame, timedelta | None]:
        markets = [
            m for m in self.exchange.load_markets().values() if f"{m['base']}{m['quote']}" == symbol
        ]
        if not markets:
            raise DataError(
                f"{self.exchange.id} has no such market",
                got=symbol,
                fix="follow it from another source",
            )
        market = str(
            min(markets, key=lambda m: not m.get("spot"))["symbol"]
        )  # spot before all others
        start, end = (since - _EPOCH) // _MILLISECOND, (now - self.step - _EPOCH) // _MILLISECOND
        last = -1
        rows: list[list[Any]] = []
        while last < end:  # a page ends somewhere before the present
            page = self.exchange.fetch_ohlcv(market, self.name, max(start, last))
            newer = [row[:6] for row in page if row[0] > last]
            if not newer:
                break
            rows += newer
            last = max(row[0] for row in newer)
        bars = pl.DataFrame(rows, {**BAR_SCHEMA, "Datetime": pl.Datetime("ms")}, orient="row")
        return bars.cast({"Datetime": STAMP}), self.step


class Files:
    """A file or a folder that another program writes, in any format that can be imported."""

    pauses_s, in_utc = (2.0, 2.0), False
    date: datetime | None = None

    def __init__(self, path: Path, options: Options) -> None:
        self.path, self.options = path, options
        self._read: dict[Path, tuple[tuple[int, int], str | None, FileBars | DataError]] = {}
        """Size and time of each file when it was last read, its symbol, and its bars or its error.
        """
        self._combined: dict[str, tuple[pl.DataFrame, timedelta | None]] = {}

    def read(
        self, symbol: str, since: datetime, now: datetime
    ) -> tuple[pl.DataFrame, timedelta | None]:
        self._read_changes()
        if symbol not in self._combined:
            own, unknown = (
                [each[2] for each in self._read.values() if each[1] == name]
                for name in (symbol, None)
            )
            for error in (result for result in own or unknown if isinstance(result, DataError)):
                raise error
            sources = [
                result for result in own if isinstance(result, FileBars) and len(result.bars)
            ]
            bars = (
                combine(symbol, sources, self.options)[0]
                if sources
                else pl.DataFrame(schema=BAR_SCHEMA)
            )
            self._combined[symbol] = bars, infer_timeframe(bars["Datetime"])
        return self._combined[symbol]

    def _read_changes(self) -> None:
        """Read the files that have changed."""
        paths = list_files([self.path])
        # States before contents: a write in between is read the next time.
        states = {path: ((status := path.stat()).st_size, status.st_mtime_ns) for path in paths}
        for path, state in states.items():
            if path not in self._read or self._read[path][0] != state:
                self._combined.clear()
                try:
                    self._read[path] = (state, *read_one(path, self.options))
                except DataError as error:
                    self._read[path] = (
                        state,
                        given_symbol(path, self.options) or find_pair(path.name),
                        error,
                    )
        if self._read.keys() != states.keys():
            self._combined.clear()
            self._read = {path: self._read[path] for path in states}


def _parse_date(text: str | None) -> datetime | None:
    """The `Date` header of an HTTP response."""
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
