"""Rows that are bars of a higher timeframe, such as a daily bar in an hourly file.

Most of such a bar lies in the future of its row, so a model that sees it learns what nobody could
know.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from vaiom.market.findings import Finding, RowFlags, Severity, row_findings
from vaiom.market.sessions import DAY, HOUR, WEEK

PERIODS = {HOUR: "hour", 4 * HOUR: "four hours", DAY: "day", WEEK: "week"}
MIN_OTHERS = 4
"""A correct row often spans the range of fewer other rows of its period."""
COVERED_SHARE = 0.9
"""Share of the range of a period's other rows: the extremes of a bar of another feed differ by
spreads.
"""
COVERED_SHARE_IF_HEAVY = 0.85
MAX_WIDTH = 1.1
"""A row equals its period if it is no wider, in ranges of the period's other rows."""
NEIGHBOURS = 20
"""Rows at the same clock time, among which an equal one must recur."""
MIN_EQUAL = 5
MIN_HEAVY = 3
MIN_TICKS = 3.5
"""Ranges of fewer price steps are those of many single rows, as of cheap shares."""
TICK_ROWS = 501
"""The price step is the smallest move of so many rows."""


def find_higher_timeframe_bars(
    bars: pl.DataFrame, timeframe: int | None
) -> tuple[RowFlags, list[Finding]]:
    """Which rows certainly are bars of a higher timeframe, at a recurring clock time.

    News also makes an hour span its day, but exceeds the range of the other hours, and not day
    after day at one clock time. So a row is certain if its range covers that of the other rows of
    its period and at least half of its neighbours at the same clock time *equal* theirs. With
    fewer, whose volume is that of the period, it is suspicious.

    Parameters
    ----------
    bars : sorted; stamps may repeat
    timeframe : seconds, or None if unknown
    """
    certain = np.zeros(len(bars), dtype=bool)
    suspicious = np.zeros(len(bars), dtype=bool)
    places: list[str] = []
    seconds = pl.col("Datetime").dt.epoch("s")
    rows = bars.select("High", "Low", "Volume", row=pl.int_range(pl.len()), seconds=seconds)
    rows = rows.filter(pl.col("High") >= pl.col("Low"))
    # Polars looks back over time, so what follows a row is found by running the clock backwards.
    backwards = rows.reverse().with_columns(-pl.col("seconds"))
    for period, name in PERIODS.items():
        if timeframe is None or period <= MIN_OTHERS * timeframe:
            continue
        for side, ordered in (("following", backwards), ("preceding", rows)):
            compared = _compare(ordered, period)
            judged = _judge(compared)
            single = judged.filter("suspicious")["row"].to_numpy()
            suspicious[single] = True
            recurring = judged.filter("certain")["row"].to_numpy()
            certain[recurring] = True
            if len(recurring):
                style = "%H:%M" if period <= DAY else "%A %H:%M"
                times = bars["Datetime"].gather(recurring).dt.strftime(style)
                usual = times.mode().sort()[0]
                places.append(f"the whole {side} {name}, mostly at {usual}")
    ranges = " and ".join(places)
    held = f"rows that hold the range of {ranges}"
    wide = (
        "rows as wide and heavy as their whole period, a few times close together at one clock time"
    )
    findings = row_findings(
        bars,
        ("hidden_higher_timeframe_bar", Severity.ERROR, held, certain),
        ("suspiciously_wide_row", Severity.WARNING, wide, suspicious & ~certain),
    )
    return certain, findings


def _compare(rows: pl.DataFrame, period: int) -> pl.DataFrame:
    """Compare each row with the others less than one period before it.

    `coverage` is the share of the others' range inside the row's, `width` the row's range in units
    of theirs, and `heavy` whether the row has much of their volume.
    """
    window = f"{period}i"
    high = pl.col("High")
    low = pl.col("Low")
    volume = pl.col("Volume").fill_null(0.0)
    counted = rows.with_columns(one=pl.lit(1))
    compared = counted.with_columns(
        top=high.rolling_max_by("seconds", window, closed="none"),
        bottom=low.rolling_min_by("seconds", window, closed="none"),
        weight=volume.rolling_sum_by("seconds", window, closed="none"),
        num=pl.col("one").rolling_sum_by("seconds", window, closed="none"),
    )
    num_others = pl.col("num")
    lower_top = pl.min_horizontal("High", "top")
    higher_bottom = pl.max_horizontal("Low", "bottom")
    overlap = lower_top - higher_bottom
    others_range = pl.col("top") - pl.col("bottom")
    # Next to a weekend or a holiday too few rows of the period are left to judge by.
    half_of_usual = num_others.median() / 2
    has_others = (num_others >= MIN_OTHERS) & (num_others >= half_of_usual)
    move = high.diff().abs()
    price_step = pl.when(move > 1e-9 * high).then(move)
    tick = price_step.rolling_min(TICK_ROWS, min_samples=1, center=True).fill_null(0.0)
    is_wide = others_range > MIN_TICKS * tick
    # Feeds differ in volume: a quarter of the others' sum is heavy, or with few others that of four
    # average rows.
    heavy_share = pl.max_horizontal(pl.lit(0.25), 4 / num_others)
    is_heavy = (volume >= heavy_share * pl.col("weight")) & (volume > 0)
    return compared.filter(has_others & is_wide).select(
        "row",
        clock_time=pl.col("seconds") % period,
        coverage=overlap / others_range,
        width=(high - low) / others_range,
        heavy=is_heavy,
    )


def _judge(rows: pl.DataFrame) -> pl.DataFrame:
    """Which rows are certain and which suspicious, given neighbours at the same clock time."""

    def count_recent(flag: pl.Expr) -> pl.Expr:
        """How many of the last neighbours, the row included, have the flag."""
        return flag.cast(pl.Int32).rolling_sum(NEIGHBOURS, min_samples=1)

    def is_near(flag: pl.Expr) -> pl.Expr:
        """Whether one of the next neighbours, the row included, has the flag."""
        backwards = flag.cast(pl.Int32).reverse()
        ahead = backwards.rolling_max(NEIGHBOURS, min_samples=1).reverse()
        return (ahead > 0).over("clock_time")

    coverage = pl.col("coverage")
    heavy = pl.col("heavy")
    has_range = coverage >= COVERED_SHARE
    equal = has_range & (pl.col("width") <= MAX_WIDTH)
    equal_and_heavy = equal & heavy
    covers = has_range | (heavy & (coverage >= COVERED_SHARE_IF_HEAVY))
    num_seen = pl.int_range(1, pl.len() + 1).clip(upper_bound=NEIGHBOURS)
    num_equal = count_recent(equal)
    recurs = (num_equal >= MIN_EQUAL) & (num_equal >= num_seen / 2)
    recurs_heavy = count_recent(equal_and_heavy) >= MIN_HEAVY
    return rows.select(
        "row",
        certain=covers & is_near(recurs),
        suspicious=equal_and_heavy & is_near(recurs_heavy),
    )
