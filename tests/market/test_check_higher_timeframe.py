"""Higher-timeframe bars among the rows: found where they are, at any clock time, and
nowhere else.
"""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import random_bars
from vaiom.market.check import check_bars
from vaiom.market.folder import BAR_SCHEMA, infer_timeframe
from vaiom.market.hidden_bars import find_higher_timeframe_bars
from vaiom.simulation.market import MarketConfig, simulate


def hidden_rows(bars: pl.DataFrame) -> np.ndarray:
    return find_higher_timeframe_bars(
        bars, infer_timeframe(bars["Datetime"]) // timedelta(seconds=1)
    )[0]


def with_hidden_bars(
    bars: pl.DataFrame,
    every: str,
    offset: str = "0h",
    keep_close: bool = True,
    at_the_end: bool = False,
) -> tuple[pl.DataFrame, np.ndarray]:
    """Give one row of each whole period the High, Low and Volume (and Close) of the period; say
    which rows.
    """
    period = pl.col("Datetime").dt.offset_by(f"-{offset}").dt.truncate(every)
    bars = bars.with_columns(period.alias("period"), pl.int_range(pl.len()).alias("row"))
    row = pl.col("row").max() if at_the_end else pl.col("row").min()
    length = pl.len().over("period")
    planted = (pl.col("row") == row.over("period")) & (length == length.median())
    whole = [pl.col("High").max(), pl.col("Low").min(), pl.col("Volume").sum()]
    if not keep_close:
        whole.append(pl.col("Close").last())
    mixed = [
        pl.when(planted).then(value.over("period")).otherwise(pl.col(value.meta.root_names()))
        for value in whole
    ]
    changed = bars.with_columns(
        expr.alias(value.meta.root_names()[0]) for expr, value in zip(mixed, whole, strict=True)
    )
    return changed.select(*BAR_SCHEMA), bars.select(planted.alias("planted"))["planted"].to_numpy()


def in_ticks(bars: pl.DataFrame, tick: float) -> pl.DataFrame:
    """The bars with prices in whole ticks, if there are any."""
    return (
        bars.with_columns((pl.col("Open", "High", "Low", "Close") / tick).round() * tick)
        if tick
        else bars
    )


@pytest.fixture(scope="module")
def hourly() -> pl.DataFrame:
    (asset,) = simulate(MarketConfig(assets=1, bars=4000, faults_per_bar=0.0)).values()
    return asset.bars


@pytest.fixture(scope="module")
def metatrader(shared_data: Path) -> pl.DataFrame:
    raw = pl.read_csv(shared_data / "raw" / "mt5_export_EURUSD_H1_head8000.csv", separator="\t")
    stamp = pl.concat_str("DATE", "TIME", separator=" ").str.to_datetime("%Y.%m.%d %H:%M:%S")
    prices = {"Open": "OPEN", "High": "HIGH", "Low": "LOW", "Close": "CLOSE", "Volume": "TICKVOL"}
    return raw.select(stamp.alias("Datetime"), **prices).cast(BAR_SCHEMA)


@pytest.mark.parametrize("volume", ["ticks", "none"])
def test_the_daily_bars_of_the_metatrader_file_are_found(
    metatrader: pl.DataFrame, volume: str
) -> None:
    if volume == "none":
        metatrader = metatrader.with_columns(Volume=pl.lit(None, pl.Float64))
    rows = hidden_rows(metatrader)
    assert set(metatrader.filter(rows)["Datetime"].dt.hour()) == {0}
    assert rows.sum() >= 330
    finding = check_bars("EURUSD", metatrader).findings[0]
    assert (finding.kind, finding.count) == ("hidden_higher_timeframe_bar", rows.sum())
    assert "following day, mostly at 00:00" in finding.summary


def test_a_row_reported_as_hidden_is_not_reported_as_a_spike_too(metatrader: pl.DataFrame) -> None:
    assert "spike" not in {finding.kind for finding in check_bars("EURUSD", metatrader).findings}


@pytest.mark.parametrize(("offset", "keep_close"), [("0h", True), ("9h", False), ("22h", True)])
def test_daily_bars_are_found_at_any_hour(
    hourly: pl.DataFrame, offset: str, keep_close: bool
) -> None:
    bars, planted = with_hidden_bars(hourly, "1d", offset, keep_close)
    rows = hidden_rows(bars)
    assert not (rows & ~planted).any()
    assert rows.sum() >= 0.95 * planted.sum()


def test_bars_stamped_at_the_end_of_their_day_are_found(hourly: pl.DataFrame) -> None:
    bars, planted = with_hidden_bars(hourly, "1d", at_the_end=True)
    rows, (finding,) = find_higher_timeframe_bars(bars, 3600)
    assert not (rows & ~planted).any()
    assert rows.sum() >= 0.95 * planted.sum()
    assert "preceding day, mostly at 23:00" in finding.summary


def test_a_few_such_rows_are_suspicious_not_certain(hourly: pl.DataFrame) -> None:
    corrupt, planted = with_hidden_bars(hourly, "1d", "17h")
    few = np.zeros_like(planted)
    few[np.flatnonzero(planted)[[60, 63, 66, 69]]] = True
    bars = pl.concat([corrupt.filter(few), hourly.filter(~few)]).sort("Datetime")
    certain, (finding,) = find_higher_timeframe_bars(bars, 3600)
    assert not certain.any()
    assert finding.kind == "suspiciously_wide_row"
    assert finding.count in (
        3,
        4,
    )  # where the row's own hour made the day's extreme, it is wider than the others


def test_news_at_one_hour_is_not_a_hidden_bar(hourly: pl.DataFrame) -> None:
    """Every day at 13:00 the range is many times the usual and the volume with it; the price goes
    beyond the day's.
    """
    news = pl.col("Datetime").dt.hour() == 13
    reach = (
        pl.when(news)
        .then(pl.lit(np.random.default_rng(3).exponential(0.006, len(hourly))))
        .otherwise(0.0)
    )
    bars = hourly.with_columns(
        pl.col("High") * (1 + reach),
        pl.col("Low") * (1 - reach.shuffle(seed=1)),
        pl.when(news).then(pl.col("Volume") * 12).otherwise("Volume").alias("Volume"),
    )
    assert not hidden_rows(bars).any()


def rows_by_loop(bars: pl.DataFrame, step: int) -> tuple[set[int], set[int]]:
    """The rule row by row: which are certain, and which suspicious alone."""
    seconds = bars["Datetime"].dt.epoch("s").to_list()
    high, low, volume = (bars[name].to_list() for name in ("High", "Low", "Volume"))
    certain, suspicious = set[int](), set[int]()
    for period, direction in itertools.product((3600, 14_400, 86_400, 604_800), (1, -1)):
        if period <= 4 * step:
            continue
        order = [*range(len(seconds))][::-direction]
        others = {
            row: [n for n in order if 0 < direction * (seconds[n] - seconds[row]) < period]
            for row in order
        }
        enough = max(4, float(np.median([len(each) for each in others.values() if each])) / 2)
        by_clock_time = dict[int, list[tuple[int, bool, bool, bool]]]()
        moves = [0.0, *(abs(high[now] - high[before]) for before, now in itertools.pairwise(order))]
        ticks = {
            row: min(
                (each for each in moves[max(0, at - 250) : at + 251] if each > 1e-9), default=0.0
            )
            for at, row in enumerate(order)
        }
        for row in order:
            num, top = len(others[row]), max((high[n] for n in others[row]), default=0.0)
            bottom = min((low[n] for n in others[row]), default=0.0)
            if num < enough or top - bottom <= 3.5 * ticks[row]:
                continue
            coverage = (min(high[row], top) - max(low[row], bottom)) / (top - bottom)
            heavy = volume[row] > 0 and volume[row] >= max(0.25, 4 / num) * sum(
                volume[n] for n in others[row]
            )
            equal = coverage >= 0.9 and (high[row] - low[row]) / (top - bottom) <= 1.1
            covers = coverage >= 0.9 or (heavy and coverage >= 0.85)
            by_clock_time.setdefault(seconds[row] % period, []).append(
                (row, covers, equal, equal and heavy)
            )
        for neighbours in by_clock_time.values():
            recur, both = [], []
            for at in range(len(neighbours)):
                recent = neighbours[max(0, at - 19) : at + 1]
                num_equal = sum(equal for _, _, equal, _ in recent)
                recur.append(num_equal >= 5 and 2 * num_equal >= len(recent))
                both.append(sum(heavy for *_, heavy in recent) >= 3)
            for at, (row, covers, _, equal_and_heavy) in enumerate(neighbours):
                certain |= {row} if covers and any(recur[at : at + 20]) else set()
                suspicious |= {row} if equal_and_heavy and any(both[at : at + 20]) else set()
    return certain, suspicious - certain


@settings(max_examples=20)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1200, "2h"), (14_400, "1d"), (14_400, "1w"), (86_400, "1w")]),
    st.sampled_from([0.1, 0.25, 0.5, 0.6]),
    st.booleans(),
    st.sampled_from([0.0, 2e-3, 5e-3]),
)
def test_rows_are_judged_as_a_plain_loop_judges_them(
    seed: int, kind: tuple[int, str], share: float, at_the_end: bool, tick: float
) -> None:
    """Some bars of a higher timeframe, some a little off it, and some light ones, in a week with a
    weekend.
    """
    rng = np.random.default_rng(seed)
    step, every = kind
    honest = in_ticks(
        random_bars(330, seed=seed, start=datetime(2018, 1, 1), step=timedelta(seconds=step)), tick
    )
    honest = honest.filter(pl.col("Datetime").dt.weekday() < 7)
    mixed, planted = with_hidden_bars(honest, every, at_the_end=at_the_end)
    light, off, kept = (rng.random(len(planted)) for _ in range(3))
    factor = pl.Series(1 + np.where(planted, (off - 0.5) * 1e-3, 0.0))
    weight = pl.Series(np.where(light < 0.5, 1.0, 0.3))
    mixed = mixed.with_columns(pl.col("High") * factor, pl.col("Volume") * weight)
    planted &= kept < share
    bars = pl.concat([mixed.filter(planted), honest.filter(~planted)]).sort("Datetime")
    rows, found = find_higher_timeframe_bars(bars, step)
    certain, suspicious = rows_by_loop(bars, step)
    assert set(np.flatnonzero(rows)) == certain
    assert {each.kind: each.count for each in found} == {
        kind: len(which)
        for kind, which in (
            ("hidden_higher_timeframe_bar", certain),
            ("suspiciously_wide_row", suspicious),
        )
        if which
    }


@settings(max_examples=15)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([600, 3600, 14_400, 86_400]),
    st.sampled_from([0.0, 2e-3, 0.01]),
)
def test_an_honest_walk_is_never_flagged(seed: int, step: int, tick: float) -> None:
    """Also where prices are coarse, as those of cheap shares: many rows hold the few levels of
    their day.
    """
    assert not hidden_rows(
        in_ticks(random_bars(2500, seed=seed, step=timedelta(seconds=step)), tick)
    ).any()


@pytest.mark.parametrize("every", ["1h", "4h", "1d"])
def test_no_real_bar_is_flagged(shared_data: Path, every: str) -> None:
    ohlcv = [pl.first("Open"), pl.max("High"), pl.min("Low"), pl.last("Close"), pl.sum("Volume")]
    for path in sorted((shared_data / "bars_1h").glob("*.parquet")):
        bars = pl.read_parquet(path).group_by_dynamic("Datetime", every=every).agg(ohlcv)
        assert not hidden_rows(bars).any(), path.stem
