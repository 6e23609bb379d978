"""Hypothesis strategies of whole bars: prices, ranges, volumes and stamps, kind and unkind."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
from hypothesis import strategies as st

from strategies import START, price_pairs

ABSURD_HIGHS = (np.nan, 0.0, 1e-3, 50.0)


@st.composite
def full_bars(
    draw: st.DrawFn, max_rows: int = 400, step: timedelta = timedelta(hours=1)
) -> pl.DataFrame:
    """Bars over several weeks with weekends, holes, absurd ranges, and volumes that come and go."""
    open_, close = draw(price_pairs(max_rows=max_rows))
    rows = len(close)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    high = np.fmax(open_, close) * np.exp(
        np.abs(rng.normal(0, 1e-3, rows)) * (rng.random(rows) > 0.1)
    )
    low = np.fmin(open_, close) * np.exp(
        -np.abs(rng.normal(0, 1e-3, rows)) * (rng.random(rows) > 0.1)
    )
    volume = np.rint(rng.lognormal(3, 2, rows))
    for series in (high, low, volume):
        at = rng.random(rows) < draw(st.sampled_from([0.0, 0.05, 0.6]))
        series[at] = rng.choice(ABSURD_HIGHS, at.sum())
    # Mostly one step, often a few hours, now and then a weekend or a month.
    steps = rng.choice(
        [1, 1, 1, 1, 2, 7, 49, 700], rows, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.04, 0.01]
    )
    grid = step / draw(st.sampled_from([1, 1, 3]))  # off the grid several rows share a slot
    stamps = [START + grid * int(count) for count in np.cumsum(steps)]
    columns = {
        "Datetime": stamps,
        "Open": open_,
        "High": high,
        "Low": low,
        "Close": close,
        "Volume": volume,
    }
    return pl.DataFrame(columns, schema_overrides={"Datetime": pl.Datetime("us")}, nan_to_null=True)
