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
from vaiom.serve.app import Service
from vaiom.serve.state import LiveAssets
from vaiom.serve.store import Store

Change = tuple[type, str, dict[str, str]]
"""A class, a method, and code of it with what stands in its place."""

_TRANSACTION = 'with self.transaction("the bars could not be stored, and none was taken"):'
_SNAPSHOT = 'self.store.put_snapshot(after.to_json()["assets"])'
_ANOTHER = "(SELECT state FROM snapshots ORDER BY symbol DESC LIMIT 1)"
_ONE_BY_ONE = """for each in bars:
            self._insert([each])
            self._db.commit()"""
_REPEATED = "if before and bar.datetime <= before.last:"
_SKIPPED = """if before and bar.datetime == before.last:
            first = first or before.columns
            continue
        if before and bar.datetime < before.last:"""

BUGS: dict[str, list[Change]] = {
    "a commit is skipped": [(Store, "append", {_TRANSACTION: "if True:"})],
    "acknowledged before it is flushed": [
        (Store, "__init__", {"synchronous=FULL": "synchronous=OFF"})
    ],
    "a snapshot before the commit": [
        (LiveAssets, "_settle", {"due = []": f"due = []\n    {_SNAPSHOT}"}),
    ],
    "a request is stored bar by bar": [(Store, "append", {"self._insert(bars)": _ONE_BY_ONE})],
    "a repeated bar is acknowledged": [
        (LiveAssets, "_advanced", {_REPEATED: _SKIPPED}),
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
    "another asset's state is restored": [
        (Store, "snapshot", {"symbol, state FROM": f"symbol, {_ANOTHER} FROM"})
    ],
    "the clock is not asked": [(LiveAssets, "_require_past", {"if stamp > latest:": "if False:"})],
    "the grid is not looked at": [
        (LiveAssets, "_require_on_grid", {"if allowed.isdis": "if False and allowed.isdis"})
    ],
    "a cut leaves what is live": [
        (LiveAssets, "cut", {"vars(self).update(vars(reloaded))": "pass"})
    ],
    "a cut leaves the snapshot": [(Store, "cut", {"self.rewind()": "pass"})],
    "a bar before its forecast is on record": [
        (LiveAssets, "push_all", {"self.ledger or len(bars) > 1 or not step or ": ""}),
    ],
    "bars that were learned from are scored": [
        (LiveAssets, "_replay", {"stamp >= self.train_end": "True"})
    ],
    "a bar is replayed twice": [(Store, "bars_since_snapshot", {"arrival > ?": "arrival >= ?"})],
    "readers see what is not stored": [
        (LiveAssets, "push_all", {"computed = time": "self.online = after\n    computed = time"}),
    ],
    "a torn line stays": [
        (ForecastLedger, "_truncate", {"self._stream.truncate(self._size)": "pass"})
    ],
    "the ledger's name is not flushed": [
        (ForecastLedger, "__init__", {"flush(file.parent)": "pass"})
    ],
    "what is open is left open": [(Service, "stop", {"self.store.close()": "pass"})],
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
