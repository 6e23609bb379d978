"""Forecasts that are wanted at the same time share the processors.

Enters: ways to make windows, one by one from concurrent requests. Leaves: the windows and their forecasts. One that
comes alone has every thread to itself and goes at once: no timer is ever waited for. Under load each worker takes its
share of what waits through the model together, on one thread: passes beside each other then never stop at a barrier for
a thread that has no processor, which costs more than several threads gain. Windows are made one after another in a
thread of their own, so that the next ones are ready when a worker is.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from vaiom.errors import UserError
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.rows import Window
from vaiom.serve.schemas import RefusalError

MAX_BATCH = 8
"""Windows of a pass: more do not come out faster on a CPU, and the first of them would wait for the last."""

Forecast = ReturnDistribution | Exception
Made = TypeVar("Made")
Waiting = tuple[Window, asyncio.Future[ReturnDistribution]]


class Batcher:
    """One model, a worker for each thread it may use; called from one event loop."""

    def __init__(
        self, forecaster: Forecaster, threads: int | None, max_waiting: int, report: Callable[[int], None]
    ) -> None:
        self.forecaster, self.max_waiting, self.report = forecaster, max_waiting, report
        self.num_workers = threads or os.cpu_count() or 1
        self.waiting: deque[Waiting] = deque()
        self._free = [ThreadPoolExecutor(1, f"model-{number}") for number in range(self.num_workers)]
        self._maker = ThreadPoolExecutor(1, "windows")
        self._num_making = 0
        self._all = [*self._free, self._maker]

    async def run(self, make: Callable[[], Made]) -> Made:
        """What `make` makes, one after another in a thread, unless too many wait."""
        if len(self.waiting) + self._num_making >= self.max_waiting:
            raise RefusalError(503, "too many forecasts are waiting", retry_after=1, fix="ask again in a moment")
        self._num_making += 1
        threads = self.num_workers if self._num_making == 1 else 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._maker, _made, make, threads)
        finally:
            self._num_making -= 1

    async def forecast(self, make: Callable[[], Window]) -> tuple[Window, ReturnDistribution]:
        """The window that `make` makes, and its forecast."""
        window = await self.run(make)
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((window, answer))
        self._start()
        return window, await answer

    def stop(self) -> None:
        for worker in self._all:
            worker.shutdown()

    def _start(self) -> None:
        """Give what waits to the workers that are free."""
        while self.waiting and self._free:
            alone = len(self.waiting) == 1 and len(self._free) == self.num_workers
            share = min(MAX_BATCH, math.ceil(len(self.waiting) / len(self._free)))
            # A client that has gone away wants no answer.
            batch = [each for each in (self.waiting.popleft() for _ in range(share)) if not each[1].done()]
            if batch:
                worker, threads = self._free.pop(), self.num_workers if alone else 1
                windows = [window for window, _ in batch]
                running = asyncio.get_running_loop().run_in_executor(worker, self._forecasts, windows, threads)
                running.add_done_callback(partial(self._hand_out, batch, worker))

    def _hand_out(self, batch: list[Waiting], worker: ThreadPoolExecutor, done: asyncio.Future[list[Forecast]]) -> None:
        self._free.append(worker)
        self.report(len(batch))
        for (_, answer), forecast in zip(batch, done.result() if not done.cancelled() else (), strict=False):
            if not answer.done():
                if isinstance(forecast, Exception):
                    answer.set_exception(forecast)
                else:
                    answer.set_result(forecast)
        self._start()

    def _forecasts(self, windows: list[Window], threads: int) -> list[Forecast]:
        """Of every request its own: one that cannot be forecast costs the others nothing."""
        torch.set_num_threads(threads)
        try:
            return list(self.forecaster.forecast(windows))
        except UserError as error:
            if len(windows) == 1:
                return [error]
        except Exception as error:  # answered to those who asked; the model goes on for the others
            return [error] * len(windows)
        return [self._forecasts([window], threads)[0] for window in windows]


def _made(make: Callable[[], Made], threads: int) -> Made:
    torch.set_num_threads(threads)
    return make()
