"""Sources of the newest bars: Dukascopy, an exchange, or files that another program writes.

Enters: the name of a source. Leaves: the bars of an asset from a moment on, as fine as the source
has them. Bars may be repeated, out of order, late or still changing: the caller handles that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from vaiom.errors import ConfigError, DataError, require_installed
from vaiom.market.file_server import DUKASCOPY_URL, ONE_DAY, FeedFile, FileServer
from vaiom.market.folder import BAR_SCHEMA, STAMP, infer_timeframe
from vaiom.market.formats.dukascopy import price_scale_of
from vaiom.market.formats.source import FileBars, Options
from vaiom.market.formats.table import drop_flat
from vaiom.market.imports import SYMBOL_FROM, combine, given_symbol, list_files, read_one
from vaiom.market.symbols import find_pair
from vaiom.market.timeframes import timeframe_of

BELIEVED = 3
"""After so many answers without bars a file of the past counts as empty."""
NETWORK_PAUSES_S = (10.0, 600.0)
FILE_PAUSES_S = (2.0, 2.0)

_EPOCH = datetime(1970, 1, 1)
_ONE_HOUR = timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)

FeedBars = tuple[pl.DataFrame, timedelta | None]
"""Bars, and their step if it is known."""


class Feed(Protocol):
    """A source of bars; any error means that it had no answer this time."""

    pauses_s: tuple[float, float]
    """Seconds between requests while there is nothing new: at first, and at most."""
    in_utc: bool
    """Whether its stamps are in UTC; otherwise they have the clock of the user's bars."""

    @property
    def date(self) -> datetime | None:
        """The time of its last answer by its own clock, in UTC, if known."""

    def read(self, symbol: str, since: datetime, now: datetime) -> FeedBars:
        """An asset's bars, at least those from `since` until `now`."""


def open_feed(source: str, timeframe: str, options: Options | None = None) -> Feed:
    """The source with a name, as in `--follow`; `options` are for files."""
    kind, _, name = source.partition(":")
    if source == "dukascopy":
        return Dukascopy(DUKASCOPY_URL)
    if kind in ("http", "https"):
        return Dukascopy(source)
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

    pauses_s = NETWORK_PAUSES_S
    in_utc = True

    def __init__(
        self, base_url: str, *, per_second: float = 8.0, attempts: int = 2, timeout_s: float = 20.0
    ) -> None:
        self.server = FileServer(base_url, per_second, attempts, timeout_s)
        self._settled: dict[FeedFile, tuple[int, pl.DataFrame]] = {}
        """Files that do not change any more: their bars, and how many answers agree on them."""

    @property
    def date(self) -> datetime | None:
        """The time of the server's last answer."""
        return _parse_date(self.server.date)

    def read(self, symbol: str, since: datetime, now: datetime) -> FeedBars:
        """Minute bars of all files whose time is over; what was settled is not requested again."""
        price_scale_of(symbol, "follow it from another source")
        self.server.date = None
        files = dict(_files_between(symbol, since, now))
        for file in list(self._settled):
            if file.symbol == symbol and file not in files:
                del self._settled[file]
        parts = [pl.DataFrame(schema=BAR_SCHEMA)]
        parts += [self._read_file(file, end, now) for file, end in files.items()]
        return pl.concat(parts), timedelta(minutes=1)

    def _read_file(self, file: FeedFile, end: datetime, now: datetime) -> pl.DataFrame:
        """The bars of one file, settled or fetched now."""
        num_answers, bars = self._settled.get(file, (0, pl.DataFrame()))
        if num_answers < BELIEVED:
            bars = drop_flat(self.server.fetch(file).bars)
            if end + _ONE_HOUR <= now:  # until then it may still change
                num_answers = num_answers + 1 if bars.is_empty() else BELIEVED
                self._settled[file] = (num_answers, bars)
        return bars


def _files_between(
    symbol: str, since: datetime, now: datetime
) -> Iterator[tuple[FeedFile, datetime]]:
    """The files of past days and of the last hours that are over, and when each ended."""
    day = datetime.combine(since, time())
    while day < now:
        # The file of a day may be published only some time after its end.
        if day + 2 * ONE_DAY <= now:
            yield FeedFile(symbol, day.date()), day + ONE_DAY
        else:
            for number in range(24):
                end = day + (number + 1) * _ONE_HOUR
                if since < end <= now:
                    yield FeedFile(symbol, day.date(), number), end
        day += ONE_DAY


class Exchange:
    """An exchange of the `ccxt` library, asked for candles without an account."""

    pauses_s = NETWORK_PAUSES_S
    in_utc = True

    def __init__(self, exchange: Any, timeframe: str) -> None:
        self.exchange = exchange
        names = exchange.timeframes or ()
        steps = {timedelta(seconds=exchange.parse_timeframe(name)): name for name in names}
        fitting = [step for step in steps if not timeframe_of(timeframe) % step]
        if not fitting:
            got = ", ".join(names) or "none"
            raise ConfigError(f"{exchange.id} has no candles that make {timeframe} bars", got=got)
        self.step = max(fitting)
        self.name = steps[self.step]

    @property
    def date(self) -> datetime | None:
        """The time of the exchange's last answer."""
        headers = self.exchange.last_response_headers or {}
        return _parse_date(headers.get("Date"))

    def read(self, symbol: str, since: datetime, now: datetime) -> FeedBars:
        """Candles of the coarsest timeframe that divides the model's, page by page."""
        market = self._market_of(symbol)
        start = (since - _EPOCH) // _MILLISECOND
        end = (now - self.step - _EPOCH) // _MILLISECOND
        last = -1
        rows: list[list[Any]] = []
        while last < end:  # a page ends somewhere before the present
            page = self.exchange.fetch_ohlcv(market, self.name, max(start, last))
            newer = [row[:6] for row in page if row[0] > last]
            if not newer:
                break
            rows += newer
            last = max(row[0] for row in newer)
        schema = {**BAR_SCHEMA, "Datetime": pl.Datetime("ms")}
        bars = pl.DataFrame(rows, schema, orient="row")
        return bars.cast({"Datetime": STAMP}), self.step

    def _market_of(self, symbol: str) -> str:
        """The exchange's name of a pair; its spot market before all others."""
        markets = [
            market
            for market in self.exchange.load_markets().values()
            if f"{market['base']}{market['quote']}" == symbol
        ]
        if not markets:
            problem = f"{self.exchange.id} has no such market"
            raise DataError(problem, got=symbol, fix="follow it from another source")
        best = min(markets, key=lambda market: not market.get("spot"))
        return str(best["symbol"])


@dataclass(frozen=True)
class _ReadFile:
    """What was last read of a file, and the state it had then."""

    state: tuple[int, int]
    """Its size and its time of change in nanoseconds."""
    symbol: str | None
    result: FileBars | DataError


class Files:
    """A file or a folder that another program writes, in any format that can be imported."""

    pauses_s = FILE_PAUSES_S
    in_utc = False
    date: datetime | None = None

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self._files: dict[Path, list[_ReadFile]] = {}
        self._combined: dict[str, FeedBars] = {}

    def read(self, symbol: str, since: datetime, now: datetime) -> FeedBars:
        """All bars of an asset; files that did not change are not read again."""
        del since, now
        self._read_changes()
        if symbol not in self._combined:
            bars = self._combine(symbol)
            self._combined[symbol] = (bars, infer_timeframe(bars["Datetime"]))
        return self._combined[symbol]

    def _combine(self, symbol: str) -> pl.DataFrame:
        """The bars of a symbol's files.

        Raises the error of a file of the symbol, or, if it has none, of a file without a symbol.
        """
        results: dict[str | None, list[FileBars | DataError]] = {symbol: [], None: []}
        for file in chain(*self._files.values()):
            results.setdefault(file.symbol, []).append(file.result)
        own = results[symbol]
        for result in own or results[None]:
            if isinstance(result, DataError):
                raise result
        if not own:
            self._require_symbols(symbol)
        sources = [each for each in own if isinstance(each, FileBars) and len(each.bars)]
        if not sources:
            return pl.DataFrame(schema=BAR_SCHEMA)
        return combine(symbol, sources, self.options)[0]

    def _require_symbols(self, symbol: str) -> None:
        """Refuse files that nothing but their name says the symbol of: they may be `symbol`'s."""
        results = [file.result for file in chain(*self._files.values())]
        for result in results:
            if isinstance(result, FileBars) and SYMBOL_FROM in result.record:
                raise result.file.error(
                    "the file does not say its symbol",
                    expected=symbol,
                    fix="name it with --symbol, or by its name: --symbol '*'",
                )

    def _read_changes(self) -> None:
        """Read the files that have changed."""
        states = {}
        # States before contents: a write in between is read the next time.
        for path in list_files([self.path]):
            status = path.stat()
            states[path] = (status.st_size, status.st_mtime_ns)
        before = self._files
        self._files = {}
        is_changed = before.keys() != states.keys()
        for path, state in states.items():
            old = before.get(path)
            if old and old[0].state == state:
                self._files[path] = old
                continue
            is_changed = True
            try:
                found = read_one(path, self.options)
                self._files[path] = [_ReadFile(state, symbol, bars) for symbol, bars in found]
            except DataError as error:
                named = given_symbol(path, self.options) or find_pair(path.name)
                self._files[path] = [_ReadFile(state, named, error)]
        if is_changed:
            self._combined.clear()


def _parse_date(text: str | None) -> datetime | None:
    """The `Date` header of an HTTP response, in UTC."""
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
