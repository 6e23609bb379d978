"""Sampled closes of the next bar, as Kronos and the first Chronos give them, as a table for `vaiom
score`.

Both models draw paths of prices after a context of bars. What is scored is the first step: the log
return of each sampled close over the last known close. The sampler is any function; with Chronos it
is, for instance,

    pipeline = ChronosPipeline.from_pretrained("amazon/chronos-t5-small")
    def sampler(closes, count):
        return pipeline.predict(torch.tensor(closes), prediction_length=1, num_samples=count)[0, :,
        0].numpy()

and with Kronos `KronosPredictor.predict(..., pred_len=1, sample_count=1)`, called `count` times,
its `close` each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import numpy as np
import numpy.typing as npt
import polars as pl

Closes = npt.NDArray[np.float64]
Sampler = Callable[[Closes, int], Closes]
"""From the closes so far, the last of them known, to so many closes of the next bar."""


def sample_asset(
    symbol: str,
    bars: pl.DataFrame,
    times: Iterable[datetime],
    sampler: Sampler,
    *,
    count: int = 100,
    context: int = 512,
) -> pl.DataFrame:
    """Samples `s1`, `s2`, ... of the return after each of these bars; only bars up to it are shown
    to the sampler.
    """
    closes, place = (
        bars["Close"].to_numpy(),
        {stamp: row for row, stamp in enumerate(bars["Datetime"])},
    )
    lines = []
    for time in times:
        known = closes[max(place[time] + 1 - context, 0) : place[time] + 1]
        sampled = np.log(sampler(known, count) / known[-1])
        lines.append(
            {
                "symbol": symbol,
                "time": time,
                **{f"s{n}": value for n, value in enumerate(sampled, start=1)},
            }
        )
    return pl.DataFrame(lines)


def write_long(table: pl.DataFrame, file: str) -> None:
    """The same with a line for each sample, in a column `sample`, as long tables have it."""
    table.unpivot(index=["symbol", "time"], value_name="sample").drop("variable").write_csv(file)
