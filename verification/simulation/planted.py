"""Bugs that the simulation must find: lines of the real code, changed as somebody might have
written them.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from vaiom.forecast.ledger import ForecastLedger
from vaiom.forecast.stream import OnlineForecaster
from vaiom.serve.app import Service
from vaiom.serve.state import LiveAssets
from vaiom.serve.store import Store

Change = tuple[type, str, dict[str, str]]
"""A class, a method, and code of it with what stands in its place."""

_TRANSACTION = 'with self.transaction("the bars could not be stored, and none was taken"):'
_INSERT = "self._insert((symbol, seconds_of(bar.datetime), *bar[1:]) for symbol, bar in bars)"
_ONE_BY_ONE = """for symbol, bar in bars:
            self._insert([(symbol, seconds_of(bar.datetime), *bar[1:])])
            self._db.commit()"""

_TOO_SOON = "if stamp - last < self"
_NOT_TWICE = "if last < stamp and stamp - last < self"

BUGS: dict[str, list[Change]] = {
    "a commit is skipped": [(Store, "append", {_TRANSACTION: "if True:"})],
    "acknowledged before it is flushed": [
        (Store, "_open", {"synchronous=FULL": "synchronous=OFF"})
    ],
    "a request is stored bar by bar": [(Store, "append", {_INSERT: _ONE_BY_ONE})],
    "a repeated bar is acknowledged": [
        (LiveAssets, "_require_next", {"stamp <= last:": "stamp < last:", _TOO_SOON: _NOT_TWICE}),
        (
            OnlineForecaster,
            "_require_next",
            {"stamp <= last:": "stamp < last:", _TOO_SOON: _NOT_TWICE},
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
    "the clock is not asked": [(LiveAssets, "_require_past", {"if stamp > latest:": "if False:"})],
    "the grid is not looked at": [
        (LiveAssets, "_require_on_grid", {"if allowed.isdis": "if False and allowed.isdis"})
    ],
    "a cut leaves what is live": [(LiveAssets, "cut", {"self.online = online": "pass"})],
    "a cut leaves what others read": [
        (LiveAssets, "cut", {"= self.forecaster.reads_other_assets": "= False"})
    ],
    "a cut leaves a bar": [
        (
            Store,
            "cut",
            {"bars WHERE symbol = ? AND stamp > ?": "bars WHERE symbol = ? AND stamp > 3600 + ?"},
        )
    ],
    "a bar before its forecast is on record": [
        (
            LiveAssets,
            "_forecast_before",
            {"self.ledger or num_bars > 1 or not is_cached": "symbol not in self._forecasts"},
        ),
    ],
    "bars that were learned from are scored": [
        (LiveAssets, "settle_past", {"if self.train_end:": "if False:"})
    ],
    "readers see what is not stored": [
        (LiveAssets, "push_all", {"computed = time": "self.online = after\n    computed = time"}),
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
            source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
            for old, new in changes.items():
                assert source.count(old) == 1, (
                    f"{owner.__name__}.{method} has no {old!r} any more, or several"
                )
                source = source.replace(old, new)
            made: dict[str, Any] = {}
            exec(source, vars(sys.modules[owner.__module__]), made)
            stack.enter_context(patch.object(owner, method, made[method]))
        yield
