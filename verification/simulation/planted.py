"""Bugs that the simulation must find: lines of the real code, changed as somebody might have
written them.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from vaiom.forecast.ledger import ForecastLedger
from vaiom.forecast.stream import OnlineForecaster
from vaiom.serve import incoming, state
from vaiom.serve.bar_store import Store
from vaiom.serve.service import Service
from vaiom.serve.state import LiveAssets

Change = tuple[type | ModuleType, str, dict[str, str]]
"""A class or module, a function of it, and code of it with what stands in its place."""

_TRANSACTION = 'with self.transaction("the bars could not be stored, and none was taken"):'
_INSERT = "self._insert((symbol, seconds_of(bar.datetime), *bar[1:]) for symbol, bar in bars)"
_ONE_BY_ONE = """for symbol, bar in bars:
            self._insert([(symbol, seconds_of(bar.datetime), *bar[1:])])
            self._db.commit()"""

_LATER = "last < stamp and stamp - last"
_FORECAST_FIRST = "if self.ledger or len(bars) > 1 or not self.forecaster.backend.decoder:"

BUGS: dict[str, list[Change]] = {
    "a commit is skipped": [(Store, "append", {_TRANSACTION: "if True:"})],
    "acknowledged before it is flushed": [
        (Store, "_open", {"synchronous=FULL": "synchronous=OFF"})
    ],
    "a request is stored bar by bar": [(Store, "append", {_INSERT: _ONE_BY_ONE})],
    "a repeated bar is acknowledged": [
        (state, "require_next", {"stamp <= last:": "stamp < last:"}),
        (incoming, "_require_on_grid", {"if stamp - last < length": f"if {_LATER} < length"}),
        (
            OnlineForecaster,
            "_require_next",
            {"stamp <= last:": "stamp < last:", "if stamp - last < self": f"if {_LATER} < self"},
        ),
        (Store, "_insert", {"_INSERT_BAR,": '_INSERT_BAR.replace("INSERT", "INSERT OR IGNORE"),'}),
    ],
    "a lock is leaked": [
        (
            Service,
            "push",
            {
                "async with self._locks[symbol]:": "await self._locks[symbol].acquire()\n    if "
                "True:",
                "self.metrics.bars": "self._locks[symbol].release()\n    self.metrics.bars",
            },
        ),
    ],
    "another asset's bars are restored": [
        (LiveAssets, "__init__", {"store.bars(symbol)": "store.bars(store.symbols()[-1])"})
    ],
    "the first bars alone are restored": [
        (Store, "bars", {"ORDER BY stamp": "ORDER BY stamp LIMIT 125"})
    ],
    "the clock is not asked": [(incoming, "require_past", {"if stamp > latest:": "if False:"})],
    "the grid is not looked at": [
        (incoming, "_require_on_grid", {"if allowed.isdis": "if False and allowed.isdis"})
    ],
    "a cut leaves what is live": [(LiveAssets, "cut", {"self.online = online": "pass"})],
    "a cut leaves what others read": [
        (LiveAssets, "cut", {"if self.forecaster.reads_other_assets": "if False"})
    ],
    "a cut leaves a bar": [
        (
            Store,
            "cut",
            {"bars WHERE symbol = ? AND stamp > ?": "bars WHERE symbol = ? AND stamp > 3600 + ?"},
        )
    ],
    "a bar before its forecast is on record": [
        (LiveAssets, "push_all", {_FORECAST_FIRST: "if False:"}),
    ],
    "bars that were learned from are scored": [
        (LiveAssets, "settle_past", {'& (rows["timestamp"][1:] >= self.train_end)': ""})
    ],
    "readers see what is not stored": [
        (LiveAssets, "push_all", {"shown = dict": "self.online = after\n    shown = dict"}),
    ],
    "a torn line stays": [
        (ForecastLedger, "_truncate", {"self._stream.truncate(self._size)": "pass"})
    ],
    "the ledger's name is not flushed": [
        (ForecastLedger, "__init__", {"flush(file.parent)": "pass"})
    ],
    "what is open is left open": [(Service, "stop", {"self._files_open.close()": "pass"})],
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The service with a bug."""
    with ExitStack() as stack:
        for owner, method, changes in BUGS[name]:
            real = inspect.unwrap(getattr(owner, method))
            source = textwrap.dedent(inspect.getsource(real))
            for old, new in changes.items():
                assert source.count(old) == 1, (
                    f"{owner.__name__}.{method} has no {old!r} any more, or several"
                )
                source = source.replace(old, new)
            made: dict[str, Any] = {}
            exec(source, real.__globals__, made)
            stack.enter_context(patch.object(owner, method, made[method]))
        yield
