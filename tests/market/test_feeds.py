"""Sources of the newest bars: what is asked of a server, an exchange and files, and what is made of
the answers.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from market import feed_server
from vaiom.errors import ConfigError, DataError
from vaiom.market.feeds import Dukascopy, Exchange, Feed, Files, open_feed
from vaiom.market.file_server import DUKASCOPY_URL, UnavailableError
from vaiom.market.formats.source import Options

NOW, HOUR, MINUTE = datetime(2024, 5, 15, 12, 0, 30), timedelta(hours=1), timedelta(minutes=1)
LIVE = Options(repair=True, utc=True, whole_lines=True)


def stamps(
    feed: Feed, symbol: str = "EURUSD", since: datetime = NOW - 100 * HOUR
) -> list[datetime]:
    return feed.read(symbol, since, NOW)[0]["Datetime"].to_list()


class FakeExchange:
    """What is used of ccxt: hourly candles of a year, a page at a time, the last one unfinished."""

    id, timeframes, last_response_headers = (
        "fake",
        {"1m": "1", "15m": "15", "1h": "60", "3h": "180"},
        None,
    )
    page = 100

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def parse_timeframe(self, name: str) -> int:
        return int(name[:-1]) * {"m": 60, "h": 3600}[name[-1]]

    def load_markets(self) -> dict[str, Any]:
        swap = {"symbol": "BTC/USDT:USDT", "base": "BTC", "quote": "USDT", "spot": False}
        return {"BTC/USDT:USDT": swap, "BTC/USDT": swap | {"symbol": "BTC/USDT", "spot": True}}

    def fetch_ohlcv(self, symbol: str, timeframe: str, since: int) -> list[list[Any]]:
        self.asked.append((symbol, timeframe))
        step = 1000 * self.parse_timeframe(timeframe)
        last = int((NOW - datetime(1970, 1, 1)).total_seconds() * 1000)
        return [
            [ms, 1.0, 1.2, 0.9, 1.1, None] for ms in range(-(-since // step) * step, last, step)
        ][: self.page]


def test_an_exchange_is_asked_page_by_page_up_to_the_present() -> None:
    fake = FakeExchange()
    bars, step = Exchange(fake, "1h").read("BTCUSDT", NOW - 250 * HOUR, NOW)
    newest = datetime(2024, 5, 15, 12)
    assert bars["Datetime"].to_list() == [newest - number * HOUR for number in range(249, -1, -1)]
    assert bars.row(0)[1:] == (1.0, 1.2, 0.9, 1.1, None)
    assert (step, fake.asked) == (HOUR, 3 * [("BTC/USDT", "1h")])
    # What it does not have is made of finer candles.
    assert Exchange(fake, "30min").name == "15m"
    with pytest.raises(DataError, match="no such market"):
        Exchange(fake, "1h").read("EURUSD", NOW, NOW)
    for timeframes, got in (({"7m": "7", "9m": "9"}, "7m, 9m"), (None, "none")):
        fake.timeframes = timeframes  # type: ignore[assignment]
        with pytest.raises(ConfigError, match="no candles that make 1h") as refused:
            Exchange(fake, "1h")
        assert refused.value.got == got


def test_an_exchange_of_ccxt_on_loopback() -> None:
    ccxt = pytest.importorskip("ccxt")

    class Candles(dict[str, bytes]):
        def get(self, path: str, default: Any = None) -> Any:
            asked = {name: values[0] for name, values in parse_qs(urlparse(path).query).items()}
            assert (urlparse(path).path, asked["step"]) == ("/v2/ohlc/btcusd/", "3600")
            first, last = int(asked["start"]), int(NOW.replace(tzinfo=UTC).timestamp())
            rows = [
                {
                    "timestamp": str(each),
                    "open": "1",
                    "high": "3",
                    "low": "0.5",
                    "close": "2",
                    "volume": "7",
                }
                for each in range(first, min(last, int(asked["end"]) + 1), 3600)
            ]
            return json.dumps({"data": {"pair": "BTC/USD", "ohlc": rows}}).encode()

    with feed_server.running() as server:
        server.files, server.clock = Candles(), lambda: NOW
        exchange = ccxt.bitstamp({"urls": {"api": {"public": server.url, "private": server.url}}})
        exchange.set_markets(
            [
                {
                    "id": "btcusd",
                    "symbol": "BTC/USD",
                    "base": "BTC",
                    "quote": "USD",
                    "spot": True,
                    "type": "spot",
                }
            ]
        )
        feed = Exchange(exchange, "1h")
        bars, _ = feed.read("BTCUSD", datetime(2024, 5, 15, 8), NOW)
        assert bars.rows()[-1] == (datetime(2024, 5, 15, 12), 1.0, 3.0, 0.5, 2.0, 7.0)
        assert len(bars) == 5
        assert feed.date == NOW
        server.silent_from = 0
        exchange.timeout = 50
        with pytest.raises(ccxt.RequestTimeout):
            feed.read("BTCUSD", datetime(2024, 5, 15, 8), NOW)


def test_dukascopy_is_asked_for_days_and_the_last_hours_and_never_again_for_what_is_settled() -> (
    None
):
    day, ticks = (
        NOW.date() - timedelta(days=2),
        feed_server.pack_ticks({0: 110_000, 90_000: 110_010}),
    )
    with feed_server.running() as server:
        server.clock = lambda: NOW - 10 * MINUTE
        server.files[feed_server.path_of("EURUSD", day)] = feed_server.made_up_day(day)
        for hour in (9, 11, 12):
            server.files[feed_server.path_of("EURUSD", NOW.date(), f"{hour:02d}h_ticks")] = ticks
        feed = Dukascopy(server.url + "/", per_second=1e6, attempts=1, timeout_s=5.0)
        bars, step = feed.read("EURUSD", NOW - 48 * HOUR, NOW)
        assert step == MINUTE
        assert bars["Datetime"].to_list()[-4:] == [
            NOW.replace(hour=h, minute=m, second=0) for h in (9, 11) for m in (0, 1)
        ]
        assert bars.row(-1)[1:] == (1.1001, 1.1001, 1.1001, 1.1001, 1.0)
        assert len(bars) == 32 + 4
        assert feed.date == NOW - 10 * MINUTE
        assert len(server.seen) == 1 + 24 + 12
        # A file that was not there may have been missed; that of the hour under way is not asked
        # for.
        server.files[feed_server.path_of("EURUSD", NOW.date(), "10h_ticks")] = ticks
        for _ in range(2):
            assert len(stamps(feed, since=NOW - 48 * HOUR)) == len(bars) + 2
        server.seen.clear()
        assert len(stamps(feed, since=NOW - 48 * HOUR)) == len(bars) + 2
        assert [path[-14:] for path in server.paths_seen] == ["/11h_ticks.bi5"]
        server.faults[feed_server.path_of("EURUSD", NOW.date(), "11h_ticks")] = ["half a record"]
        with pytest.raises(UnavailableError, match="damaged"):
            stamps(feed, since=NOW - 2 * HOUR)
        with pytest.raises(DataError, match="price scale"):
            stamps(feed, "BTCUSD")


LINE = "2024.05.15\t{}:00:00\t1.1\t1.2\t1.0\t1.15\t7\t0\t1\n"


def test_files_are_read_as_another_program_writes_them(tmp_path: Path) -> None:
    feed, file = Files(tmp_path, LIVE), tmp_path / "EURUSD_H1.csv"
    with pytest.raises(DataError, match="nothing to import"):
        stamps(feed)
    names = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\n"
    text = names + LINE.format("08") + LINE.format("09")
    for written, hours in (
        (text[:-20], (8,)),
        (text, (8, 9)),
        (text + LINE.format("10")[:38], (8, 9)),
    ):
        file.write_text(written, encoding="utf-16")
        assert stamps(feed) == [NOW.replace(hour=hour, minute=0, second=0) for hour in hours]
    assert stamps(feed, "GBPUSD") == []
    (tmp_path / "USDJPY_2024_04_15_BID_candles_min_1.bi5").touch()
    assert stamps(feed, "USDJPY") == []
    # The program goes on with another file, and says a bar again.
    (tmp_path / "EURUSD_H1_2.csv").write_text(
        names + LINE.format("09").replace("1.15", "1.16") + LINE.format("10")
    )
    assert feed.read("EURUSD", NOW, NOW)[0]["Close"].to_list() == [1.15, 1.16, 1.15]
    # A file that cannot be read is of no concern to other assets.
    (tmp_path / "GBPUSD.csv").write_text("nothing\n")
    assert len(stamps(feed)) == 3
    for _ in range(2):
        with pytest.raises(DataError, match="not a file of bars"):
            stamps(feed, "GBPUSD")
    # One that does not say whose it is concerns those that have none.
    (tmp_path / "gold.csv").write_text((tmp_path / "EURUSD_H1_2.csv").read_text())
    assert len(stamps(feed)) == 3
    with pytest.raises(DataError, match=r"does not say its symbol(.|\n)*gold\.csv"):
        stamps(feed, "XAUUSD")
    file.unlink()
    assert len(stamps(feed)) == 2
    assert len(stamps(Files(tmp_path / "EURUSD_H1_2.csv", LIVE))) == 2


def test_a_file_that_did_not_change_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prices of gold.csv"
    file.write_text(
        "time,open,high,low,close\n2024-05-15 08:00,1,2,1,2\n2024-05-15 09:00,2,3,1,2\n"
    )
    feed = open_feed(
        str(file), "1h", Options(symbol="XAUUSD", shift=HOUR, repair=True, whole_lines=True)
    )
    assert stamps(feed, "XAUUSD") == [
        NOW.replace(hour=hour, minute=0, second=0) for hour in (9, 10)
    ]
    monkeypatch.setattr("vaiom.market.feeds.read_one", lambda *_: pytest.fail("it was read again"))
    assert len(stamps(feed, "XAUUSD")) == 2


def test_sources_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="ccxt:EXCHANGE"):
        open_feed("nowhere", "1h")
    with pytest.raises(ConfigError, match="no such source"):
        open_feed("", "1h")
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(ConfigError, match=r"vaiom\[feeds\]"):
        open_feed("ccxt:kraken", "1h")
    known = type("ccxt", (), {"exchanges": ["fake"], "fake": FakeExchange, "__spec__": True})
    monkeypatch.setitem(sys.modules, "ccxt", known)
    with pytest.raises(ConfigError, match="knows no such exchange"):
        open_feed("ccxt:krakn", "1h")
    feeds = [
        open_feed(source, "1h")
        for source in ("ccxt:fake", "http://127.0.0.1:9", "dukascopy", str(Path(__file__)))
    ]
    assert [type(feed) for feed in feeds] == [Exchange, Dukascopy, Dukascopy, Files]
    assert [feed.in_utc for feed in feeds] == [True, True, True, False]
    assert [feed.server.base_url for feed in feeds[1:3]] == ["http://127.0.0.1:9", DUKASCOPY_URL]
