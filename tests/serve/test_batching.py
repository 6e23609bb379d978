"""Forecasts that wait: how many may, and that one which cannot be made costs the others nothing."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from serve_runs import TinyRun

from vaiom.errors import DataError
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.rows import Window
from vaiom.serve.batching import Batcher
from vaiom.serve.schemas import RefusalError


def test_more_than_may_wait_are_turned_away_and_the_others_answered(tiny: TinyRun) -> None:
    forecaster = Forecaster.load(tiny.run)
    window = forecaster.window(tiny.history["EURUSD"], "EURUSD")
    go_on = threading.Event()

    def slowly() -> Window:
        go_on.wait()
        return window

    async def ask() -> tuple[list[object], float]:
        batcher = Batcher(forecaster, threads=1, max_waiting=3, report=lambda _: None)
        try:
            waiting = [asyncio.create_task(batcher.forecast(slowly)) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(RefusalError, match="too many forecasts") as refused:
                await batcher.forecast(lambda: window)
            assert refused.value.headers == {"Retry-After": "1"}
            go_on.set()
            answers = [dist.probs for _, dist in await asyncio.gather(*waiting)]
            # There is room again.
            return answers, float(np.sum((await batcher.forecast(lambda: window))[1].probs))
        finally:
            go_on.set()
            batcher.stop()

    answers, total = asyncio.run(ask())
    expected = forecaster.forecast([window])[0].probs
    for probs in answers:
        np.testing.assert_allclose(probs, expected, atol=1e-6)
    assert total == pytest.approx(1)


def test_a_window_that_cannot_be_made_is_its_own_affair(tiny: TinyRun) -> None:
    forecaster = Forecaster.load(tiny.run)
    window = forecaster.window(tiny.history["EURUSD"], "EURUSD")

    def fails() -> Window:
        raise DataError("no window")

    async def ask() -> list[object]:
        batcher = Batcher(forecaster, threads=2, max_waiting=9, report=lambda _: None)
        try:
            asked = [batcher.forecast(make) for make in (lambda: window, fails, lambda: window)]
            return list(await asyncio.gather(*asked, return_exceptions=True))
        finally:
            batcher.stop()

    first, failed, last = asyncio.run(ask())
    assert isinstance(failed, DataError)
    assert isinstance(first, tuple)
    assert isinstance(last, tuple)
