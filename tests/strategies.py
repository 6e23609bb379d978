"""Hypothesis strategies and quick generators of bars, kind and unkind."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import polars as pl
from hypothesis import strategies as st

START = datetime(2023, 11, 1)


def frame_of(
    open_: np.ndarray,
    close: np.ndarray,
    start: datetime = START,
    step: timedelta = timedelta(hours=1),
):
    """Bars with the given opens and closes on consecutive stamps; NaN becomes null."""
    stamps = [start + step * i for i in range(len(close))]
    high, low = np.fmax(open_, close), np.fmin(open_, close)
    return pl.DataFrame(
        {
            "Datetime": stamps,
            "Open": open_,
            "High": high,
            "Low": low,
            "Close": close,
            "Volume": 1.0 + np.arange(len(close)) % 2,
        },
        schema_overrides={"Datetime": pl.Datetime("us")},
        nan_to_null=True,
    )


def random_bars(
    rows: int, seed: int = 0, start: datetime = START, step: timedelta = timedelta(hours=1)
) -> pl.DataFrame:
    """A plain random walk with a few repeated closes."""
    rng = np.random.default_rng(seed)
    moves = rng.standard_t(4, rows) * 1e-3 * (rng.random(rows) > 0.02)
    close = np.exp(np.cumsum(moves))
    open_ = np.concatenate([[1.0], close[:-1]]) * np.exp(
        rng.normal(0, 1e-4, rows) * (rng.random(rows) > 0.3)
    )
    return frame_of(open_, close, start, step)


@st.composite
def price_pairs(
    draw: st.DrawFn, min_rows: int = 1, max_rows: int = 120
) -> tuple[np.ndarray, np.ndarray]:
    """(open, close) with runs of NaN, exact zeros, repeated closes, spikes, zero and negative
    prices.
    """
    rows = draw(st.integers(min_rows, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    moves = rng.normal(0, 1e-3, rows)
    moves[rng.random(rows) < draw(st.sampled_from([0.0, 0.1, 0.7]))] = 0.0
    close = 1.2 * np.exp(np.cumsum(moves))
    open_ = np.concatenate([[1.2], close[:-1]]) * np.exp(rng.normal(0, 1e-4, rows))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, rows - 1))
        length = draw(st.integers(1, 12))
        column = draw(st.sampled_from(["open", "close", "both"]))
        value = draw(st.sampled_from([np.nan, 0.0, -1.0, 10.0, 1e-3, "flat"]))
        for name, series in (("open", open_), ("close", close)):
            if column in (name, "both"):
                series[at : at + length] = series[at] if value == "flat" else value
    return open_, close
