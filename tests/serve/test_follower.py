"""What is taken of a source's answers and when: finished bars, once, in order; what is odd is
reported.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market import feed_server
from vaiom.errors import DataError
from vaiom.market.feeds import BELIEVED
from vaiom.market.folder import BAR_SCHEMA
from vaiom.serve.follow import BarRow, Follower, HttpService

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
START = datetime(2024, 5, 15)


def bar(number: float, close: float = 1.5) -> BarRow:
    return BarRow(START + number * HOUR, 1.0, 2.0, 0.5, close, None)


class Source:
    """Answers what it was told to, as far as it is the past by its clock."""

    pauses_s, in_utc = (10.0, 600.0), True
    date: datetime | None = None
    step: timedelta | None = HOUR
    lies = False

    def __init__(self, *bars: BarRow) -> None:
        self.bars, self.asked = list(bars), list[str]()
        self.failing, self.spans = set[str](), list[tuple[datetime, datetime]]()

    def read(
        self, symbol: str, since: datetime, now: datetime
    ) -> tuple[pl.DataFrame, timedelta | None]:
        self.asked.append(symbol)
        self.spans.append((since, now))
        if symbol in self.failing:
            raise OSError("no route to host")
        bars = [each for each in self.bars if self.lies or each[0] <= (self.date or now)]
        return pl.DataFrame(bars, BAR_SCHEMA, orient="row"), self.step


class Memory:
    """A service that refuses what is not next."""

    timeframe = "1h"

    def __init__(self, *symbols: str) -> None:
        self.symbols = list(symbols or ["EURUSD"])
        self.bars: dict[str, list[BarRow]] = {symbol: [bar(0)] for symbol in self.symbols}

    def stored(self, symbol: str) -> Sequence[BarRow]:
        return self.bars[symbol][-32:]

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        stamps = [each[0] for each in (*self.bars[symbol][-1:], *bars)]
        assert stamps == sorted(set(stamps))
        self.bars[symbol] += bars

    def numbers(self, symbol: str = "EURUSD") -> list[float]:
        return [(each[0] - START) / HOUR for each in self.bars[symbol][1:]]


class Clock:
    def __init__(self, hours: float) -> None:
        self.now = START + hours * HOUR

    def __call__(self) -> datetime:
        return self.now


def follower(source: Any, sink: Any, clock: Clock, **options: Any) -> Follower:
    return Follower(source, sink, clock=clock, chance=random.Random(0), **options)


def test_a_bar_is_taken_once_it_is_over_by_both_clocks(caplog: pytest.LogCaptureFixture) -> None:
    source, sink, clock = Source(*map(bar, range(5))), Memory(), Clock(3)
    ours = follower(source, sink, clock)
    ours.step()
    assert sink.numbers() == [1]  # that of two o'clock may still change
    clock.now += 5 * SECOND
    ours.step()
    assert sink.numbers() == [1, 2]
    clock.now += HOUR
    source.date = clock.now - 20 * MINUTE
    ours.step()
    ours.step()
    assert sink.numbers() == [1, 2]
    assert ours.health()["EURUSD"].clock_drift_seconds == -1200
    assert [each.message for each in caplog.records] == [
        "EURUSD: the source's clock is -1200 s ahead of that of this machine"
    ]
    source.date = clock.now
    ours.step()
    assert sink.numbers() == [1, 2, 3]
    source.date, source.lies = None, True
    source.bars.append(bar(7))
    clock.now += HOUR
    ours.step()
    assert ours.health()["EURUSD"].clock_drift_seconds == 2 * 3600 - 5
    assert sink.numbers() == [1, 2, 3, 4]


def test_answers_may_repeat_and_be_out_of_order() -> None:
    sink = Memory()
    follower(Source(bar(2), bar(0), bar(1), bar(2), bar(1)), sink, Clock(3.1)).step()
    assert sink.bars["EURUSD"] == [bar(0), bar(1), bar(2)]


def test_what_is_no_number_is_missing() -> None:
    """A service refuses it: no later bar would be taken."""
    sink, wrong = Memory(), [bar(1)._replace(high=math.nan, volume=math.inf), bar(2, -math.inf)]
    follower(Source(bar(0), *wrong), sink, Clock(3.1)).step()
    assert sink.bars["EURUSD"][1:] == [bar(1)._replace(high=None), bar(2)._replace(close=None)]


def test_a_hole_is_believed_when_several_answers_have_it() -> None:
    source, sink, clock = Source(bar(0), bar(1), bar(3), bar(4)), Memory(), Clock(5.1)
    ours = follower(source, sink, clock)
    for _ in range(BELIEVED - 1):
        ours.step()
        assert sink.numbers() == [1]
    source.bars.append(bar(2))
    ours.step()
    assert sink.numbers() == [1, 2, 3, 4]
    clock.now += 48 * HOUR
    source.bars += [bar(50), bar(51)]
    for _ in range(BELIEVED):
        assert sink.numbers()[-1] == 4
        ours.step()
    assert sink.numbers()[-2:] == [50, 51]


def test_a_correction_is_reported_and_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    source, sink, clock = Source(bar(0), bar(1), bar(2)), Memory(), Clock(3.1)
    ours = follower(source, sink, clock)
    ours.step()
    source.bars = [bar(0), bar(0.5), bar(1, close=1.75), bar(2), bar(3)]
    clock.now += HOUR
    ours.step()
    source.bars.append(bar(4))
    clock.now += HOUR
    ours.step()
    assert sink.bars["EURUSD"] == [bar(number) for number in range(5)]
    assert ours.health()["EURUSD"].corrections == 2
    assert len(caplog.records) == 2
    assert "1.75" in caplog.records[1].message


def test_finer_bars_make_one_when_its_end_is_there() -> None:
    minutes = [bar(1 + minute / 60, close=1 + minute / 100) for minute in range(0, 58)]
    source, sink, clock = Source(), Memory(), Clock(2.01)
    source.step = MINUTE
    ours = follower(source, sink, clock)
    ours.step()
    assert (sink.numbers(), ours.health()["EURUSD"].problem) == ([], None)
    source.bars = minutes
    ours.step()
    assert sink.numbers() == []
    source.bars += [bar(1 + 58 / 60), bar(1 + 59 / 60, close=1.25), bar(2)]
    ours.step()
    assert sink.bars["EURUSD"][1:] == [(START + HOUR, 1.0, 2.0, 0.5, 1.25, None)]
    # Nothing was traded in the last minutes, and several answers say so.
    source.bars = [bar(2), bar(2 + 50 / 60, close=1.125)]
    clock.now += HOUR
    for _ in range(BELIEVED):
        assert sink.numbers() == [1]
        ours.step()
    assert sink.bars["EURUSD"][-1][4] == 1.125


def test_an_asset_without_bars_begins_with_the_last_ones_and_coarser_bars_are_refused() -> None:
    source, sink, clock = Source(*map(bar, range(3_000))), Memory(), Clock(3_000.5)
    sink.bars["EURUSD"] = []
    ours = follower(source, sink, clock)
    ours.step()
    assert [each[0] for each in sink.bars["EURUSD"]] == [
        START + number * HOUR for number in range(2_000, 3_000)
    ]
    clock.now += 100 * HOUR
    source.bars = [
        bar(number) for number in range(2_998, 3_100, 12)
    ]  # too few to say of what length they are
    ours.step()
    assert ours.health()["EURUSD"].problem is None
    source.bars = [bar(number) for number in range(2_900, 3_100, 4)]
    ours.step()
    assert ours.health()["EURUSD"].problem == "the bars are of another timeframe than the model's"


def test_a_failing_asset_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    source, sink, clock = Source(*map(bar, range(200))), Memory("EURUSD", "XAUUSD"), Clock(3.1)
    ours = follower(source, sink, clock)
    source.failing = {"EURUSD"}
    waits = [ours.step()]
    assert sink.numbers("XAUUSD") == [1, 2]
    for _ in range(7):
        waits.append(ours.step())
    # Each pause is longer than the last, until the next bar of the other is over.
    assert waits[1] > 10
    assert all(5 * 2**number <= wait <= 10 * 2**number for number, wait in enumerate(waits[:6]))
    assert max(waits) <= 600
    assert source.asked == ["EURUSD", "XAUUSD", *(7 * ["EURUSD"])]
    health = ours.health()
    assert (health["EURUSD"].failures, health["EURUSD"].problem) == (8, "OSError")
    assert health["EURUSD"].lag_seconds == pytest.approx(2.1 * 3600)
    assert (health["XAUUSD"].failures, health["XAUUSD"].lag_seconds) == (0, pytest.approx(360))
    source.failing = set()
    wait = ours.step()
    assert sink.numbers() == sink.numbers("XAUUSD") == [1, 2]
    assert (
        3600 - 360 + 5 <= wait <= 3600 - 360 + 15
    )  # for the next bar, and not all at the same second
    assert [each.message for each in caplog.records] == [
        "EURUSD: no route to host",
        "EURUSD: the source answers again",
    ]
    source.failing = {"EURUSD"}
    for _ in range(2):
        clock.now += HOUR
        ours.step()
    assert source.asked[-4:] == [
        "EURUSD",
        "XAUUSD",
        "XAUUSD",
        "EURUSD",
    ]  # who has failed waits for the others


@pytest.mark.parametrize(("ahead", "is_told"), [(60, False), (61, True), (-60, False), (-61, True)])
def test_a_clock_that_is_more_than_a_minute_off_is_told(
    ahead: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source, clock = Source(bar(0), bar(1)), Clock(3.1)
    source.date = clock.now + ahead * SECOND
    ours = follower(source, Memory(), clock)
    ours.step()
    assert ours.health()["EURUSD"].clock_drift_seconds == ahead
    assert bool(caplog.records) is is_told


def test_it_is_asked_again_and_again_until_it_is_to_stop() -> None:
    source, sink = Source(), Memory()
    sink.bars["EURUSD"] = []
    ours = Follower(source, sink, clock=Clock(3.1))
    assert 10 <= ours.step() <= 20  # nothing new: half to all of twice the first pause
    steps, real = 0, ours.step

    def step() -> float:
        nonlocal steps
        steps += 1
        if steps == 3:
            ours.stop.set()
        real()
        return 0.0

    ours.step = step  # type: ignore[method-assign]
    ours.run()
    assert (steps, len(source.asked)) == (3, 4)


def test_what_others_push_or_remove_is_seen() -> None:
    source, sink, clock = Source(*map(bar, range(9))), Memory(), Clock(3.1)
    ours = follower(source, sink, clock)
    ours.step()
    sink.push("EURUSD", [bar(3)])
    clock.now += 2 * HOUR
    for _ in range(2):
        ours.step()
    assert sink.numbers() == [1, 2, 3, 4]
    del sink.bars["EURUSD"][2:]
    clock.now += HOUR
    for _ in range(2):
        ours.step()
    assert sink.numbers() == [1, 2, 3, 4, 5]


def test_bars_of_another_clock() -> None:
    source, sink, clock = Source(*map(bar, range(9))), Memory(), Clock(3.1)
    ours = follower(source, sink, clock, utc_offset=2 * HOUR)
    ours.step()
    assert sink.numbers() == []  # two hours after the one that is stored: is there a hole?
    for _ in range(BELIEVED - 1):
        ours.step()
    assert sink.numbers() == [2, 3, 4]
    assert (
        source.spans == [(START - 6 * HOUR, clock.now)] * BELIEVED
    )  # in UTC, from four bars before the last
    source.date = clock.now - 20 * MINUTE  # the source's own clock is in UTC too
    ours.step()
    assert ours.health()["EURUSD"].clock_drift_seconds == 0  # nothing was due, nobody was asked
    clock.now += HOUR
    source.date = clock.now - 20 * MINUTE
    ours.step()
    assert ours.health()["EURUSD"].clock_drift_seconds == -1200
    source.date = None
    source.in_utc, sink = False, Memory()
    follower(source, sink, clock, utc_offset=-HOUR).step()
    assert sink.numbers() == [1, 2]


def test_a_service_elsewhere_that_refuses_or_is_not_there() -> None:
    with feed_server.running() as server:
        server.faults["/v1/assets"] = ["401"]
        server.files["/v1/assets"] = b'{"timeframe": "1h", "assets": [{"symbol": "EURUSD"}]}'
        with pytest.raises(DataError, match="refuses with HTTP 401"):
            HttpService(server.url + "/", "secret")
        service = HttpService(server.url)
        source, clock = Source(*map(bar, range(3))), Clock(3.1)
        ours = follower(source, service, clock)
        ours.step()
        assert ours.health()["EURUSD"].problem == "the service refuses with HTTP 404"
        assert source.asked == []
        server.files["/v1/assets/EURUSD/history?last=40"] = b'{"bars": []}'
        ours.step()
        assert ours.health()["EURUSD"].problem == "the service refuses with HTTP 501"
    ours.step()
    assert ours.health()["EURUSD"].problem == "the service does not answer"
    with pytest.raises(DataError, match="does not answer"):
        HttpService("nowhere")


def test_a_service_elsewhere_is_waited_for_and_its_words_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def refuse(request: Request, timeout: float) -> Any:
        asked.append((request.full_url, request.headers, timeout))
        raise HTTPError(request.full_url, 503, "busy", request.headers, io.BytesIO(b"x" * 1_000))  # type: ignore[arg-type]

    monkeypatch.setattr("vaiom.serve.follow.urlopen", refuse)
    with pytest.raises(DataError, match="refuses with HTTP 503") as refused:
        HttpService("http://there/", "secret")
    assert refused.value.got == "x" * 400
    headers = {"Content-type": "application/json", "Authorization": "Bearer secret"}
    assert asked == [("http://there/v1/assets", headers, 30)]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_whatever_comes_every_bar_is_taken_once(data: st.DataObject) -> None:
    """Answers lack bars twice in a row at most, repeat others, end anywhere, or do not come."""
    truth = [bar(number) for number in range(8) if number != 5]
    sink, clock, source = Memory(), Clock(1.1), Source()
    ours = follower(source, sink, clock)
    for number in range(60):
        published = [each for each in truth if each[0] <= clock.now]
        source.failing, source.bars = set(), published
        if number % (2 * BELIEVED) < BELIEVED - 1:
            drawn = data.draw(st.lists(st.sampled_from(published), max_size=len(published)))
            source.bars = data.draw(
                st.sampled_from([drawn, published[: len(drawn)], published + drawn])
            )
            source.failing = data.draw(st.sampled_from([set(), {"EURUSD"}]))
        clock.now += timedelta(seconds=ours.step())
        assert sink.bars["EURUSD"] == truth[: len(sink.bars["EURUSD"])]
        if sink.bars["EURUSD"] == truth:
            return
    pytest.fail("bars are missing")
