"""A model that reads other assets, served: a forecast follows when the others' bars arrive, also
after a restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from serve_runs import TinyRun, bar_row, config_of, in_process, live_assets, reading_others

from forecast.streams import assert_same_streams
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.model.incremental import IncrementalDecoder
from vaiom.serve.schemas import PushAnswer
from vaiom.serve.service import Service
from vaiom.serve.state import LiveAssets


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "rotary", "attention_window": 8}], ids=["learned", "windowed"]
)
def test_a_forecast_follows_the_bars_of_other_assets(
    tiny: TinyRun, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = reading_others(tiny, tmp_path, changes)

    def after(name: str, *pushes: tuple[str, int]) -> tuple[Any, LiveAssets]:
        """The last answer to these pushes, and what stands then."""
        live = live_assets(tiny, tmp_path / name, run=run, folder=tiny.bars)
        answer = None
        for symbol, number in pushes:
            [answer] = live.push_all([(symbol, [bar_row(**tiny.later[symbol][number])])])
        live.store.close()
        return answer, live

    first, _ = after("state", ("EURUSD", 0))
    assert first.forecast.missing_assets == ["XAUUSD"]
    _, live = after("state", ("XAUUSD", 0))
    dist = live.online.forecast("EURUSD")
    assert dist.missing_assets == ()
    _, again = after("state")
    assert_same_streams(again.online, live.online)
    # What a model of windowed attention remembers is computed again after a restart.
    probs = again.online.forecast("EURUSD").probs
    assert np.abs(probs - dist.probs).max() <= (TOLERANCE if changes else 0)
    every = {
        symbol: bars.vstack(_frame(tiny.later[symbol][:1]).select(bars.columns).cast(bars.schema))
        for symbol, bars in tiny.history.items()
    }
    plain = Forecaster.load(run).predict(every, "EURUSD")
    assert np.abs(plain.probs - dist.probs).max() <= TOLERANCE
    # The second bar settles the forecast that has read both first bars, though nobody asked for it.
    settled, _ = after("another", ("EURUSD", 0), ("XAUUSD", 0), ("EURUSD", 1))
    assert settled.scored.quantiles["0.5"] == pytest.approx(plain.quantile(0.5), rel=1e-3)


def test_every_asset_has_its_chance_of_a_rise_while_bars_come(
    tiny: TinyRun, tmp_path: Path
) -> None:
    """A bar of another asset, after whatever the service did for the answer, makes forecasts old
    and no null.
    """
    options: dict[str, Any] = {
        "run": reading_others(tiny, tmp_path, {}),
        "bars": tiny.bars,
        "backfill": 0,
    }

    async def run() -> None:
        async with in_process(config_of(tiny, tmp_path / "state", **options)) as (client, service):
            late, real = iter(tiny.later["XAUUSD"][:9]), service._in_state_thread

            async def push(symbol: str, *bars: dict[str, Any]) -> None:
                answer = await client.post(f"/v1/assets/{symbol}/bars", json={"bars": bars})
                assert answer.status_code == 200

            async def then_a_bar(function: Any, *inputs: Any) -> Any:
                answer = await real(function, *inputs)
                if function != service.live.push_all:
                    await push("XAUUSD", next(late))
                return answer

            await push("EURUSD", *tiny.later["EURUSD"][:9])
            await push("XAUUSD", next(late))
            service._in_state_thread = then_a_bar  # type: ignore[method-assign]
            for _ in range(3):
                answer = (await client.get("/v1/assets")).json()
                assert None not in [asset["prob_up"] for asset in answer["assets"]]

    asyncio.run(run())


def test_a_live_bar_is_one_step_of_a_windowed_model(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the forecast before it again where bars of other assets have come since, on record
    or not.
    """
    run = reading_others(tiny, tmp_path, {"positions": "rotary", "attention_window": 8})
    taken, real = 0, IncrementalDecoder.decode_batch

    def count(self: IncrementalDecoder, *inputs: Any) -> Any:
        nonlocal taken
        taken += 1
        return real(self, *inputs)

    monkeypatch.setattr(IncrementalDecoder, "decode_batch", count)
    service = Service(config_of(tiny, tmp_path / "state", run=run, bars=tiny.bars, backfill=0))
    service.live.newest("EURUSD")
    for symbol, numbers, steps in (
        ("XAUUSD", [0], 2),  # nothing was asked of it yet
        *(("EURUSD", [0], 1), ("XAUUSD", [1], 1), ("EURUSD", [1], 1)),
        ("XAUUSD", [2, 3], 2),  # of several bars, the forecast before them must be made before them
    ):
        taken = 0
        [pushed] = service.live.push_all(
            [(symbol, [bar_row(**tiny.later[symbol][number]) for number in numbers])]
        )
        assert isinstance(pushed, PushAnswer)
        assert pushed.scored
        assert taken == steps, symbol
    service.store.close()


def _frame(bars: list[dict[str, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame(bars).rename({name: name.capitalize() for name in bars[0]})
    return frame.with_columns(pl.col("Datetime").str.to_datetime(time_unit="us"))
