"""Forecasts that are wanted at the same time share passes through the model.

Enters: windows, one by one, from concurrent requests. Leaves: their forecasts. Whatever waits when the model is free
goes through it together; a window that comes alone goes at once, so that no timer is ever waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vaiom.errors import UserError
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster, Window
from vaiom.serve.refusal import RefusalError

MAX_BATCH = 8
"""Windows of a pass: more do not come out faster on a CPU, and the first of them would wait for the last."""


@dataclass(eq=False)
class _Wanted:
    window: Window
    answer: asyncio.Future[ReturnDistribution]


class Batcher:
    """One model, one thread; used from one event loop."""

    def __init__(self, forecaster: Forecaster, max_waiting: int, report: Callable[[int], None]) -> None:
        self.forecaster, self.max_waiting, self.report = forecaster, max_waiting, report
        self.waiting: list[_Wanted] = []
        self.thread = ThreadPoolExecutor(1, "model")
        self._wake = asyncio.Event()

    async def forecast(self, window: Window) -> ReturnDistribution:
        if len(self.waiting) >= self.max_waiting:
            raise RefusalError(503, "too many forecasts are waiting", retry_after=1, fix="ask again in a moment")
        wanted = _Wanted(window, asyncio.get_running_loop().create_future())
        self.waiting.append(wanted)
        self._wake.set()
        return await wanted.answer

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch, self.waiting = self.waiting[:MAX_BATCH], self.waiting[MAX_BATCH:]
            if not self.waiting:
                self._wake.clear()
            # A client that has gone away wants no answer.
            batch = [wanted for wanted in batch if not wanted.answer.done()]
            if not batch:
                continue
            answers = await loop.run_in_executor(self.thread, self._answers, [wanted.window for wanted in batch])
            self.report(len(batch))
            for wanted, answer in zip(batch, answers, strict=True):
                if wanted.answer.done():
                    continue
                if isinstance(answer, Exception):
                    wanted.answer.set_exception(answer)
                else:
                    wanted.answer.set_result(answer)

    def _answers(self, windows: list[Window]) -> list[ReturnDistribution | Exception]:
        try:
            return list(self.forecaster.forecast(windows))
        except UserError as error:
            if len(windows) == 1:
                return [error]
        except Exception as error:  # answered to those who asked; the model goes on for the others
            return [error] * len(windows)
        # One window that cannot be forecast must not cost the others theirs.
        return [self._answers([window])[0] for window in windows]
