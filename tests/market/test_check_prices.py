"""Spikes, stale stretches and copied stretches, planted in plain walks."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import random_bars
from vaiom.market.check import check_bars
from vaiom.market.findings import Finding, find_spikes
from vaiom.market.folder import PRICE_COLUMNS

ROWS = 800


def changed(bars: pl.DataFrame, rows: slice, **factors: float) -> pl.DataFrame:
    """Multiply columns on a stretch of rows."""
    here = pl.int_range(pl.len()).is_between(rows.start, rows.stop - 1)
    return bars.with_columns(
        pl.when(here).then(pl.col(name) * factor).otherwise(name).alias(name)
        for name, factor in factors.items()
    )


def findings(bars: pl.DataFrame) -> dict[str, Finding]:
    return {finding.kind: finding for finding in check_bars("WALK", bars).findings}


def spikes_by_loop(bars: pl.DataFrame) -> list[int]:
    """The rule row by row: far from both neighbours and back, by the medians of the hundred rows
    around.
    """
    open_, high, low, close = (np.log(bars[name].to_numpy()) for name in PRICE_COLUMNS)
    move, half = np.abs(np.diff(close, prepend=np.nan)), (high - low) / 2
    rows = len(bars)

    def around(values: np.ndarray, row: int) -> float:
        inside = values[max(0, row - 50) : row + 51]
        inside = inside[~np.isnan(inside)]
        return float(np.median(inside)) if len(inside) >= 20 else 0.0

    found = []
    for row in range(rows):
        reach = [
            high[row]
            - max(open_[row], close[row], *(high[n] for n in (row - 1, row + 1) if 0 <= n < rows)),
            min(open_[row], close[row], *(low[n] for n in (row - 1, row + 1) if 0 <= n < rows))
            - low[row],
        ]
        if 0 < row < rows - 1:
            there, back = close[row] - close[row - 1], close[row + 1] - close[row]
            away = min(abs(there), abs(back))
            reach.append(away if abs(there + back) <= away / 4 else 0.0)
        scale = max(around(move, row), around(half, row))
        if scale > 0 and max(reach) > 15 * scale:
            found.append(row)
    return found


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(15, 160),
    st.sampled_from([0.0, 1e-4, 3e-3]),
    st.booleans(),
)
def test_spikes_are_those_of_a_plain_loop(seed: int, rows: int, width: float, quiet: bool) -> None:
    rng = np.random.default_rng(seed)
    bars = random_bars(rows, seed=seed).with_columns(
        pl.col("High") * (1 + width), pl.col("Low") * (1 - width)
    )
    values = bars.select(PRICE_COLUMNS).to_numpy().copy()
    if quiet:
        values[:, :] = values[0]
    for row in rng.choice(rows, 6):
        values[row, rng.integers(4)] *= np.exp(rng.choice([-1, 1]) * rng.uniform(0.001, 0.06))
    values[:, 1], values[:, 2] = values.max(axis=1), values.min(axis=1)
    bars = bars.with_columns(pl.Series(name, values[:, n]) for n, name in enumerate(PRICE_COLUMNS))
    expected, found = spikes_by_loop(bars), find_spikes(bars)
    assert [each.count for each in found] == [len(expected)] * bool(expected)
    shown = [example[:16] for each in found for example in each.examples]
    assert shown == [f"{bars['Datetime'][row]:%Y-%m-%d %H:%M}" for row in expected[:5]]


def test_one_move_and_then_nothing_is_a_stale_run() -> None:
    close = np.array([1.0, *[2.0] * 8])
    assert findings(flat_bars(close))["stale_run"].count == 8


@given(st.integers(1, ROWS - 40), st.integers(2, 30))
@settings(max_examples=30)
def test_a_stale_run_is_found_if_it_is_long(start: int, length: int) -> None:
    moving = random_bars(ROWS, seed=1)
    close = moving["Close"].to_numpy().copy()
    close += np.arange(ROWS) * 1e-9  # no zero return but those planted
    close[start : start + length] = close[start]
    bars = moving.with_columns(Close=pl.Series(close))
    found = findings(
        bars.with_columns(
            High=pl.max_horizontal("High", "Close"), Low=pl.min_horizontal("Low", "Close")
        )
    )
    assert ("stale_run" in found) == (length >= 8)
    if length >= 8:
        assert found["stale_run"].count == length
        assert f"{length} rows at" in found["stale_run"].examples[0]


def tick_walk(rows: int, seed: int) -> np.ndarray:
    """Closes of which half repeat the one before: runs of eight come every few hundred rows."""
    return 100 + 0.01 * np.cumsum(np.random.default_rng(seed).choice([-1, 0, 0, 1], rows))


def flat_bars(close: np.ndarray) -> pl.DataFrame:
    return random_bars(len(close)).with_columns(pl.Series(name, close) for name in PRICE_COLUMNS)


def test_where_zero_returns_are_common_a_run_must_be_longer() -> None:
    close = tick_walk(20_000, seed=7)
    assert findings(flat_bars(close)).keys() == {"no_ranges"}
    for start in range(
        0, 20_000, 50
    ):  # most rows are stale, which must not make staleness look usual
        close[start : start + 40] = close[start]
    assert findings(flat_bars(close))["stale_run"].count >= 400 * 40


@given(st.integers(0, 300), st.integers(400, 700), st.integers(3, 40))
@settings(max_examples=30)
def test_a_copied_stretch_is_found_if_it_is_long(source: int, target: int, length: int) -> None:
    bars = random_bars(ROWS, seed=2)
    values = bars.select(PRICE_COLUMNS).to_numpy().copy()
    values[target : target + length] = values[source : source + length]
    copied = bars.with_columns(
        pl.Series(name, values[:, i]) for i, name in enumerate(PRICE_COLUMNS)
    )
    found = findings(copied)
    moves = np.count_nonzero(np.diff(values[source : source + length, 3]))
    if length < 6:
        assert "repeated_block" not in found
    elif moves == length - 1:
        finding = found["repeated_block"]
        stamps = bars["Datetime"]
        assert finding.count == length
        assert finding.examples == (
            f"{stamps[target]:%Y-%m-%d %H:%M} to {stamps[target + length - 1]:%Y-%m-%d %H:%M} "
            f"repeats the bars from {stamps[source]:%Y-%m-%d %H:%M}",
        )


def test_coarse_prices_repeat_by_chance_and_a_copy_must_be_longer() -> None:
    close = tick_walk(20_000, seed=8)
    assert findings(flat_bars(close)).keys() == {"no_ranges"}
    close[15_000:15_100] = close[3000:3100]
    assert findings(flat_bars(close))["repeated_block"].count == 100


def test_a_quiet_time_of_few_price_steps_repeats_by_chance() -> None:
    """Half of the days move by whole ticks, in the others hardly two rows are alike: the mean row
    is no measure.
    """
    draw = np.random.default_rng(0)
    quiet = np.repeat(draw.random(400) < 0.5, 50)
    steps = np.where(
        quiet, draw.choice([-1, 0, 1], len(quiet), p=[0.2, 0.6, 0.2]), draw.normal(0, 3, len(quiet))
    )
    close = np.round(np.cumsum(steps))
    close = 1 + (close - close.min()) * 1e-2
    reach = np.where(quiet, 0, draw.integers(0, 4, (2, len(quiet)))) * 1e-2
    prices = {
        "Open": close,
        "High": close + reach[0],
        "Low": np.maximum(close - reach[1], 0.5),
        "Close": close,
    }
    bars = flat_bars(close).with_columns(pl.Series(name, values) for name, values in prices.items())
    assert "repeated_block" not in findings(bars)
    source = 50 * int(np.flatnonzero(~quiet[::50])[0])
    copied = pl.int_range(pl.len()).is_between(10_000, 10_049)
    there = pl.col(*PRICE_COLUMNS)
    again = bars.with_columns(pl.when(copied).then(there.shift(10_000 - source)).otherwise(there))
    assert findings(again)["repeated_block"].count == 50


def test_prices_off_by_a_power_of_ten_are_found() -> None:
    bars = random_bars(ROWS)
    for symbol, factor, power in (
        ("GBPUSD", 1.58611e5, 5),
        ("USDJPY", 1.1, -2),
        ("GBPUSD", 1.5, 0),
        ("AAPL", 1e6, 0),
    ):
        scaled = bars.with_columns(pl.col(PRICE_COLUMNS) * factor)
        found = [each for each in check_bars(symbol, scaled).findings if each.kind == "price_scale"]
        assert [each.summary for each in found] == [
            f"prices about 10^{power} times what {symbol} costs"
        ] * bool(power)
        assert [each.count for each in found] == [ROWS] * bool(power)


def test_examples_carry_the_stamp_and_the_values() -> None:
    bars = changed(random_bars(20), slice(3, 4), Low=-1.0)
    example = findings(bars)["non_positive_price"].examples[0]
    assert example.startswith(f"{datetime(2023, 11, 1, 3):%Y-%m-%d %H:%M}: O ")
    assert f"L {bars['Low'][3]:.10g}" in example
