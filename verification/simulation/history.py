"""One history: a service lives, is killed and lives again while clients push, repeat, lie, stall
and cut; then checks.

Enters: a seed and a model. Leaves: nothing, or a `ViolationError`. What was acknowledged is stored,
all of a request or nothing; what was refused is not; forecasts are those of the stored bars taken
one by one without a service; the ledger's chain holds, and every bar found its forecast on record;
every request is answered; nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from vaiom.errors import UserError
from vaiom.features.quantities import BarArrays
from vaiom.forecast.bars import moment_of, seconds_of
from vaiom.forecast.ledger import Commitment, ForecastLedger, Removal, read_ledger
from vaiom.serve.answers import describe_history
from vaiom.serve.bar_store import FILE_NAME
from vaiom.serve.server import ServeConfig
from vaiom.serve.service import Service
from vaiom.serve.state import LiveAssets
from verification.simulation.machine import (
    LEDGER_NAME,
    Connection,
    Executor,
    KilledError,
    LedgerPath,
    Machine,
    ViolationError,
)
from verification.simulation.models import (
    CONTEXT,
    HISTORY,
    KEY,
    LEARNED,
    SYMBOLS,
    Bar,
    Model,
    as_tuple,
)

BACKFILL = 6
TOLERANCE = 1e-6
LONGEST_WAIT_S = 3_600.0
MOST_LIVES = 4
MEMORY = Path("/dev/shm")
NAMES = ("datetime", "open", "high", "low", "close", "volume")
STORED = "SELECT symbol, stamp, open, high, low, close, volume FROM bars ORDER BY symbol, stamp"


@dataclass(frozen=True, eq=False)
class Request:
    """Something that changes what is stored of an asset, or must be refused."""

    kind: str
    bars: tuple[Bar, ...] = ()
    after: int = 0

    def applied(self, stored: tuple[Bar, ...]) -> tuple[Bar, ...] | None:
        """What is stored then; None where it must be refused."""
        if self.kind == "cut":
            return tuple(bar for bar in stored if bar[0] <= self.after)
        if self.kind == "bring":
            newer = tuple(bar for bar in self.bars if not stored or bar[0] > stored[-1][0])
            return stored + newer
        follows = all(late[0] > early[0] for early, late in pairwise((*stored[-1:], *self.bars)))
        return stored + self.bars if self.kind == "push" and follows else None


NO_REQUESTS: frozenset[Request] = frozenset()


class Possible:
    """What may be stored of one asset, given what was asked and answered: requests take effect in
    some order.
    """

    def __init__(self) -> None:
        self.worlds = {(tuple[Bar, ...](), NO_REQUESTS, NO_REQUESTS)}
        """What is stored, requests without effect yet, requests with effect and without an answer.
        """

    def ask(self, request: Request) -> None:
        self.worlds = {(bars, asked | {request}, done) for bars, asked, done in self.worlds}

    def answer(self, request: Request, taken: bool) -> None:
        known = {
            (bars, asked - {request}, done - {request})
            for bars, asked, done in self._reachable()
            if (request in done) == taken
        }
        self._require(
            known,
            f"a {request.kind} was {'acknowledged' if taken else 'refused'} against what is stored",
        )

    def see(self, stored: tuple[Bar, ...]) -> None:
        """What is stored when nobody waits: requests have had their effect or never will."""
        found = {
            (bars, NO_REQUESTS, NO_REQUESTS) for bars, _, _ in self._reachable() if bars == stored
        }
        self._require(found, "other bars are stored than were taken")

    def last_stamps(self) -> set[int | None]:
        return {bars[-1][0] if bars else None for bars, _, _ in self._reachable()}

    def _require(self, worlds: set[Any], problem: str) -> None:
        if not worlds:
            raise ViolationError(problem)
        self.worlds = worlds

    def _reachable(self) -> set[Any]:
        found, new = {*self.worlds}, [*self.worlds]
        while new:
            bars, asked, done = new.pop()
            for request in asked:
                after = request.applied(bars)
                world = (after, asked - {request}, done | {request})
                if after is not None and world not in found:
                    found.add(world)
                    new.append(world)
        return found


def run_history(seed: int, models: Sequence[Model]) -> list[str]:
    """What happened, the same for the same seed; an error, with these as its note, where it must
    not happen.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        history = History(random.Random(seed), models[seed % len(models)], Path(name))
        try:
            with history.simulated():
                for _ in range(history.chance.randint(0, MOST_LIVES - 1)):
                    history.live()
                while not history.live(final=True):
                    pass
            history.check_ledger()
        except Exception as error:
            error.add_note("\n".join(history.events))
            raise
        left = {path.name for path in Path(name).iterdir()} - {FILE_NAME, LEDGER_NAME}
        if left:
            raise ViolationError(f"files are left: {', '.join(sorted(left))}")
        return history.events


def _held() -> Counter[str]:
    """What this process has open, and its threads."""
    files = (str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())
    return Counter([*files, *(thread.name for thread in threading.enumerate())])


class History:
    def __init__(self, chance: random.Random, model: Model, folder: Path) -> None:
        self._seeds, self.chance, self.model, self.folder = chance, chance, model, folder
        self.possible = {symbol: Possible() for symbol in SYMBOLS}
        self.folder_bars = {
            symbol: tuple(as_tuple(row) for row in frame.iter_rows())
            for symbol, frame in model.frames.items()
        }
        self.now = moment_of(self.folder_bars["EURUSD"][-1][0]) + timedelta(hours=60)
        self.ledger = folder / LEDGER_NAME if chance.random() < 0.7 else None
        self.cuts = self.forgets = False
        self.shown: list[dict[str, Any]] = []
        """Forecasts that came with acknowledgements."""
        self.events: list[str] = []
        """What happened, in words."""
        self.followed: set[tuple[str, int]] = set()
        self.on_record: set[tuple[str, str]] = set()
        self.forecasts: dict[tuple[str, int], Any] = {}

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Everything that the service asks of clock, threads and disk, it asks of the machine."""

        def ledger(*values: Any) -> ForecastLedger:
            opened = ForecastLedger(*values, clock=LedgerPath.machine.now)
            LedgerPath.machine.closing.append(opened.close)
            return opened

        def live(*values: Any, **options: Any) -> LiveAssets:
            return LiveAssets(*values, **options, clock=LedgerPath.machine.now)

        stand_ins = {
            "os.fsync": lambda descriptor: LedgerPath.machine.fsync(descriptor),
            "sqlite3.connect": partial(sqlite3.connect, factory=Connection),
            "vaiom.serve.service.ThreadPoolExecutor": lambda *_: Executor(self.chance),
            "vaiom.serve.service.ForecastLedger": ledger,
            "vaiom.serve.service.LiveAssets": live,
            "vaiom.serve.service.Forecaster.load": lambda *_: self.model.forecaster,
            "vaiom.serve.service.ModelAnswer.of": lambda *_: self.model.card,
            "vaiom.serve.state.read_bars": lambda *_: self.model.frames,
        }
        with ExitStack() as stack:
            for name, stand_in in stand_ins.items():
                stack.enter_context(patch(name, stand_in))
            yield

    def live(self, *, final: bool = False) -> bool:
        """A life of the service, to its death or to its end; whether it reached that."""
        self.chance = random.Random(self._seeds.random())  # what a dead machine drew is not known
        dies_at = 0 if final else int(self.chance.expovariate(1 / 120)) + 1
        trouble = self.chance.choice([0, 0, 0.02, 0.1])
        self.machine = machine = Machine(self.folder, self.chance, self.now, dies_at, trouble)
        Connection.machine = LedgerPath.machine = machine
        if not self.on_record <= machine.on_record:
            raise ViolationError("forecasts that were on record are gone")
        ended = False
        try:
            ended = machine.loop.run_until_complete(self._live(final))
        except KilledError:
            pass
        finally:
            self.now += timedelta(seconds=machine.loop.time() + self._seeds.expovariate(1 / 3_600))
            self._end_process()
        self.events.append("stopped" if ended else machine.death or "not started")
        self.followed |= machine.followed
        self.on_record = machine.on_record
        if machine.survivors is not None:
            for path in self.folder.iterdir():
                path.unlink()
            for name, data in machine.survivors.items():
                (self.folder / name).write_bytes(data)
        return ended

    def _note(self, words: str) -> None:
        self.events.append(f"{self.machine.now():%d %H:%M:%S} {words}")

    def _end_process(self) -> None:
        loop = self.machine.loop
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()
        self.machine.end()

    async def _live(self, final: bool) -> bool:
        machine, held = self.machine, _held()
        brought = {symbol: Request("bring", self.folder_bars[symbol]) for symbol in SYMBOLS}
        for symbol, request in brought.items():
            self.possible[symbol].ask(request)
        try:
            self.service = service = Service(self._config())
        except (UserError, OSError) as error:
            if machine.troubled:
                return False
            raise ViolationError(f"it does not start again: {error}") from error
        for symbol, request in brought.items():
            self.possible[symbol].answer(request, taken=True)
            self.possible[symbol].see(self._stored()[symbol])
        self.model.front.service = service
        service.start()
        machine.look = self._look
        clients = [asyncio.create_task(self._client()) for _ in range(self.chance.randint(1, 4))]
        patience = self.chance.choice(
            [None, 1.0, 20.0, 4_000.0]
        )  # SIGTERM, and who is not done is cut off
        await asyncio.wait(
            {asyncio.gather(*clients), machine.died},
            timeout=patience,
            return_when="FIRST_COMPLETED",
        )
        if machine.dead:
            raise KilledError
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
        for client in clients:
            if not client.cancelled() and client.exception():
                raise client.exception()  # type: ignore[misc]
        if final:
            machine.heal()
            await self._check()
        await service.stop()
        await asyncio.sleep(1)
        if len(asyncio.all_tasks()) > 1 or any(lock.locked() for lock in service._locks.values()):
            raise ViolationError("a task or a lock is left")
        if left := _held() - held:
            raise ViolationError(f"left open: {', '.join(left)}")
        return True

    def _config(self) -> ServeConfig:
        ledger = LedgerPath(self.ledger) if self.ledger else None
        nowhere = Path("unused")
        return ServeConfig(
            run=nowhere,
            state=self.folder,
            bars=nowhere,
            ledger=ledger,
            backfill=BACKFILL,
            api_keys=(KEY,),
        )

    def _stored(self) -> dict[str, tuple[Bar, ...]]:
        rows = self.service.store._db.plain(STORED)
        return {symbol: tuple(row[1:] for row in rows if row[0] == symbol) for symbol in SYMBOLS}

    # Clients.

    async def _client(self) -> None:
        actions = {self._push: 12, self._lie: 6, self._read: 4, self._cut: 1, self._set_clock: 1}
        for _ in range(self.chance.randint(2, 8)):
            await asyncio.sleep(self.chance.choice([0, 0.01, 0.05, 5, 7_200]))
            [action] = self.chance.choices([*actions], [*actions.values()])
            await action(self.chance.choice(SYMBOLS))

    async def _set_clock(self, _: str) -> None:
        self.machine.clock_error = timedelta(hours=self.chance.choice([0, 0, -80, -10, 10]))

    async def _push(self, symbol: str) -> None:
        """The next bars, or some before; now and then by two at once, or by one who does not wait
        for the answer.
        """
        bars, number = (
            self._following(symbol, self.chance.choice([0, 0, 0, 1, -1, -3])),
            self.chance.randint(1, 3),
        )
        pushes = [
            self._send(symbol, Request("push", bars[:number]))
            for _ in range(self.chance.choice([1, 1, 1, 2]))
        ]
        await asyncio.gather(*(self._impatient(push) for push in pushes))

    async def _impatient(self, push: Coroutine[Any, Any, int]) -> None:
        if self.chance.random() < 0.15:
            task = asyncio.create_task(push)
            await asyncio.wait([task], timeout=self.chance.expovariate(50))
            task.cancel()
            await asyncio.wait([task])
        else:
            await push

    def _following(self, symbol: str, skipped: int = 0) -> tuple[Bar, ...]:
        """What comes after the bars that an asset has, or would have if nothing was lost."""
        bars, _, _ = max(
            self.possible[symbol].worlds, key=lambda world: (len(world[0]), str(world[0][-1:]))
        )
        every = (*self.folder_bars[symbol], *self.model.later[symbol])
        at = next(index for index, bar in enumerate(every) if not bars or bar[0] > bars[-1][0])
        return every[max(at + skipped, HISTORY) :]

    async def _lie(self, symbol: str) -> None:
        first, second, *_ = self._following(symbol)
        future = self.machine.now() + timedelta(days=self.chance.uniform(5, 9_000))
        hour = seconds_of(future.replace(minute=0, second=0, microsecond=0))
        lies = {
            "missing prices": ("push", symbol, [(first[0], None, first[2], None, first[4], None)]),
            "another price": ("push", symbol, [(self._following(symbol, -1)[0][0], *second[1:])]),
            "a spike": (
                "push",
                symbol,
                [(first[0], *(40 * price for price in first[1:5]), first[5])],
            ),
            "a negative price": ("push", symbol, [(first[0], -1.0, *first[2:])]),
            "the future": ("lie", symbol, [(hour, *first[1:])]),
            "the future, later": ("lie", symbol, [first, (hour, *second[1:])]),
            "wrong order": ("lie", symbol, [second, first]),
            "twice": ("lie", symbol, [first, first]),
            "no bar": ("lie", symbol, []),
            "a wrong symbol": ("lie", "GBPUSD", [first]),
            "no symbol": ("lie", "../EURUSD", [first]),
        }
        if not self.forgets:
            lies["between the stamps"] = ("lie", symbol, [(first[0] + 1_800, *first[1:])])
        kind, target, bars = lies[self.chance.choice(sorted(lies))]
        await self._send(target, Request(kind, tuple(bars)))

    async def _send(self, symbol: str, request: Request) -> int:
        bars = [
            dict(zip(NAMES, (moment_of(bar[0]).isoformat(), *bar[1:]), strict=True))
            for bar in request.bars
        ]
        return await self._change(
            symbol, request, "POST", f"/v1/assets/{symbol}/bars", {"bars": bars}
        )

    async def _cut(self, symbol: str) -> None:
        forget = self.chance.random() < 0.2
        self.cuts, self.forgets = True, self.forgets or forget
        last = self._following(symbol)[0][0]
        after = last - 3_600 * self.chance.choice([0, 1, 2, 5, 9, 30, 200])
        if forget:
            after = self.folder_bars[symbol][0][0] - 1
        path = f"/v1/assets/{symbol}/bars?after={moment_of(after).isoformat()}"
        await self._change(symbol, Request("cut", after=after), "DELETE", path)

    async def _change(
        self, symbol: str, request: Request, method: str, path: str, body: Any = None
    ) -> int:
        if self.machine.dead:
            raise KilledError
        possible = self.possible.get(symbol, Possible())
        possible.ask(request)
        words = (
            f"{request.kind} {symbol} "
            f"{[str(moment_of(bar[0])) for bar in request.bars] or moment_of(request.after)}"
        )
        self._note(f"asked: {words}")
        status, answer = await self._ask(method, path, body)
        self._note(f"answered {status}: {words}")
        possible.answer(request, taken=status == 200)
        if status == 200 and answer.get("forecast"):
            self.shown.append(answer["forecast"])
        return status

    def _look(self) -> None:
        """While another thread waits for the disk: all of a request is there or nothing of it."""
        live = self.service.live
        for symbol in live.symbols:
            describe_history(live, symbol, CONTEXT)
            stream = live.online.streams.get(symbol)
            if (stream and stream.seconds) not in self.possible[symbol].last_stamps():
                raise ViolationError(
                    f"{symbol} was seen at {stream and stream.last}, where it never stood"
                )

    async def _read(self, symbol: str) -> None:
        own = f"/v1/assets/{symbol}"
        paths = [f"{own}/forecast", f"{own}/history", "/v1/assets", "/v1/forecast", "/metrics"]
        await self._ask("GET", self.chance.choice(paths))

    async def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A request, whose body may come slowly; the status and the answer."""
        data = b"" if body is None else json.dumps(body).encode()
        stalls, sent = (
            self.machine.trouble and self.chance.random() < 0.1,
            [data[: len(data) // 2], data[len(data) // 2 :]],
        )
        said: dict[str, Any] = {"body": b""}

        async def receive() -> dict[str, Any]:
            if stalls:
                await asyncio.sleep(self.chance.uniform(0, 15))
            return {"type": "http.request", "body": sent.pop(0), "more_body": bool(sent)}

        async def send(message: dict[str, Any]) -> None:
            said.update(message, body=said["body"] + message.get("body", b""))

        route, _, query = path.partition("?")
        headers = [
            (b"host", b"localhost"),
            (b"x-api-key", KEY.encode()),
            (b"content-type", b"application/json"),
        ]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": route,
            "headers": headers,
        }
        scope |= {
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "scheme": "http",
            "root_path": "",
        }
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self.model.app(scope, receive, send)
        except TimeoutError as error:
            raise ViolationError(f"no answer: {method} {path}") from error
        if self.machine.dead:
            raise KilledError
        if said["status"] == 500:
            raise ViolationError(f"an error of the service: {method} {path}")
        return said["status"], json.loads(said["body"]) if route != "/metrics" else None

    # Checks.

    async def _check(self) -> None:
        """With a disk that works: it takes the next bar, has what it should, and forecasts what it
        should.
        """
        await asyncio.sleep(60)  # who went away may still have been heard
        while (await self._ask("GET", "/readyz"))[0] != 200:
            await asyncio.sleep(10)
        for symbol, bars in self._stored().items():
            self.possible[symbol].see(bars)
        for symbol in SYMBOLS:
            request = Request("push", self._following(symbol)[:1])
            if (status := await self._send(symbol, request)) != 200:
                raise ViolationError(f"the next bar of {symbol} is refused: {status}")
        stored = self._stored()
        ready = self._replay()
        _, assets = await self._ask("GET", "/v1/assets")
        for answer in assets["assets"]:
            symbol = answer["symbol"]
            bars = stored[symbol]
            self.possible[symbol].see(bars)
            stands = moment_of(bars[-1][0]).isoformat(), len(bars)
            if (answer["as_of"], answer["num_bars"]) != stands:
                raise ViolationError(f"{symbol} stands elsewhere than what is stored of it")
            _, past = await self._ask("GET", f"/v1/assets/{symbol}/history")
            self._check_settled(past["forecasts"], bars, symbol)
            shown = [(bar["datetime"], bar["close"]) for bar in past["bars"]]
            if shown != [(moment_of(bar[0]).isoformat(), bar[4]) for bar in bars[-CONTEXT:]]:
                raise ViolationError(f"other bars of {symbol} are shown than are stored")
            status, forecast = await self._ask("GET", f"/v1/assets/{symbol}/forecast")
            if (status == 200) != (symbol in ready):
                raise ViolationError(f"the forecast of {symbol}: {status}")
            if symbol in ready:
                self._compare(forecast, ready[symbol])
        for forecast in () if self.cuts else self.shown:
            key = forecast["symbol"], seconds_of(datetime.fromisoformat(forecast["as_of"]))
            if key in self.forecasts:
                self._compare(forecast, self.forecasts[key])

    def _check_settled(
        self, settled: list[dict[str, Any]], bars: tuple[Bar, ...], symbol: str
    ) -> None:
        stamps = {moment_of(bar[0]).isoformat() for bar in bars}
        learned = moment_of(self.folder_bars[symbol][LEARNED][0]).isoformat()
        if any(
            each["target_time"] < learned or each["target_time"] not in stamps for each in settled
        ):
            raise ViolationError(
                f"a forecast of {symbol} was scored by a bar that was learned from or is not stored"
            )

    def _replay(self) -> dict[str, Any]:
        """The stored bars, those after the folder's one by one: the forecasts at the end."""
        online = self.model.forecaster.online()
        for symbol, bars in self._stored().items():
            end = self.folder_bars[symbol][-1][0]
            brought = [bar for bar in bars if bar[0] <= end]
            if brought:
                seconds, *numbers = np.array(brought, np.float64).T
                online.take({symbol: BarArrays(seconds.astype(np.int64), *numbers)})
            for bar in bars[len(brought) :]:
                row = dict(zip(NAMES, (moment_of(bar[0]), *bar[1:]), strict=True))
                # What others had read when it came is not known.
                made = online.push(symbol, row, forecast=not online.forecaster.reads_other_assets)
                if made:
                    self.forecasts[symbol, bar[0]] = made
        return online.forecast_many([symbol for symbol in online.streams if online.ready(symbol)])

    def _compare(self, shown: dict[str, Any], dist: Any) -> None:
        same = shown["as_of"] == dist.as_of.isoformat() and np.allclose(
            shown["probs"], dist.probs, 0, TOLERANCE
        )
        if not (same and np.isclose(shown["sigma"], dist.sigma, TOLERANCE, 0)):
            raise ViolationError(
                f"another forecast of {dist.symbol} at {shown['as_of']} than of an undisturbed "
                f"replay"
            )

    def check_ledger(self) -> None:
        """The chain, and that bars and what became of forecasts come after the forecasts."""
        committed = dict[tuple[str, datetime], Commitment]()
        for number, (_, entry) in enumerate(
            read_ledger(self.ledger) if self.ledger else (), start=1
        ):
            if entry is None:
                raise ViolationError(f"line {number} of the ledger does not follow")
            if isinstance(entry, Removal):
                continue
            key = entry.symbol, entry.as_of
            if isinstance(entry, Commitment):
                committed[key] = entry
                made = (
                    None
                    if self.cuts
                    else self.forecasts.get((entry.symbol, seconds_of(entry.as_of)))
                )
                if made:
                    self._compare({**vars(entry), "as_of": entry.as_of.isoformat()}, made)
            elif key not in committed:
                raise ViolationError(
                    f"line {number} of the ledger settles a forecast that is not on record"
                )
        late = {key for key in self.followed if key in self.forecasts} if self.ledger else ()
        if late:
            raise ViolationError(f"bars came before a forecast was on record: {sorted(late)[:3]}")
