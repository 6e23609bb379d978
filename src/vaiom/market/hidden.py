"""Higher-timeframe bars hidden among the rows: a daily bar in an hourly file, at one recurring clock time.

Enters: the bars of one asset, sorted by time. Leaves: which rows are such bars. Their range and volume belong to a
whole day, most of it in the future of the row, so a model that sees them is trained on what nobody could know.

One wide row proves nothing: news makes an hour span its day. But such an hour goes beyond what the others reach, while
a hidden bar ends where they end; and news does not come day after day at one clock time. So a row is certain to be a
hidden bar if its range covers that of the other rows of its period, and if at least half of its neighbours at the same
clock time *equal* theirs. Fewer such neighbours, with volumes as heavy as the period's, make a row suspicious.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from vaiom.market.findings import Finding, Rows, Severity, row_finding
from vaiom.market.grid import DAY, HOUR, WEEK, epoch_seconds

_PERIODS = {HOUR: "hour", 4 * HOUR: "four hours", DAY: "day", WEEK: "week"}
_FEWEST_OTHERS = 4  # one honest row often spans the rest of fewer
_NEIGHBOURS = 20

# Shares of the range, and of the volume, of the other rows of the period. A hidden bar may come from another feed:
# its extremes differ by spreads, its volume by a factor.
_COVERS = 0.9
_COVERS_IF_HEAVY = 0.85
_NO_WIDER = 1.1
_HEAVY = 0.25
_HEAVY_IN_ROWS = 4  # at least as heavy as that many average rows, where a period has few

_CERTAIN_SHARE = 0.5
_CERTAIN_ROWS = 5
_SUSPICIOUS_ROWS = 3


def find_hidden(bars: pl.DataFrame, timeframe: int | None) -> tuple[Rows, list[Finding]]:
    """The rows that are certain, and findings on them and on suspicious ones; `bars` are sorted, stamps may repeat."""
    certain, suspicious, places = _search(bars, timeframe)
    held = f"rows that hold the range of {' and '.join(places)}"
    wide = "rows as wide and heavy as their whole period, a few times close together at one clock time"
    return certain, [
        *row_finding("hidden_higher_timeframe_bar", Severity.ERROR, held, bars, certain),
        *row_finding("suspiciously_wide_row", Severity.WARNING, wide, bars, suspicious),
    ]


def _search(bars: pl.DataFrame, timeframe: int | None) -> tuple[Rows, Rows, list[str]]:
    """Certain rows, suspicious rows, and in words what the certain ones hold."""
    certain, suspicious = np.zeros(len(bars), dtype=bool), np.zeros(len(bars), dtype=bool)
    places: list[str] = []
    if timeframe is None:
        return certain, suspicious, places
    seconds = pl.Series("seconds", epoch_seconds(bars["Datetime"]))
    rows = bars.select("High", "Low", "Volume", pl.int_range(pl.len()).alias("row")).with_columns(seconds)
    rows = rows.filter(pl.col("High") >= pl.col("Low"))
    # Polars looks back over time, so what follows a row is found by running the clock backwards.
    backwards = rows.reverse().with_columns(-pl.col("seconds"))
    for period, name in _PERIODS.items():
        if period <= _FEWEST_OTHERS * timeframe:
            continue
        for side, ordered in (("following", backwards), ("preceding", rows)):
            judged = _judge(_compare(ordered, period))
            found = judged.filter("certain")["row"].to_numpy()
            suspicious[judged.filter("suspicious")["row"].to_numpy()] = True
            certain[found] = True
            if len(found):
                times = bars["Datetime"].gather(found).dt.strftime("%H:%M" if period <= DAY else "%A %H:%M")
                places.append(f"the whole {side} {name}, mostly at {times.mode().sort()[0]}")
    return certain, suspicious & ~certain, places


def _compare(rows: pl.DataFrame, period: int) -> pl.DataFrame:
    """Set each row against the others less than one period before it."""
    window = f"{period}i"
    compared = rows.with_columns(pl.lit(1).alias("one")).with_columns(
        pl.col("High").rolling_max_by("seconds", window, closed="none").alias("top"),
        pl.col("Low").rolling_min_by("seconds", window, closed="none").alias("bottom"),
        pl.col("Volume").rolling_sum_by("seconds", window, closed="none").alias("others_volume"),
        pl.col("one").rolling_sum_by("seconds", window, closed="none").alias("num_others"),
    )
    overlap = pl.min_horizontal("High", "top") - pl.max_horizontal("Low", "bottom")
    others_range = pl.col("top") - pl.col("bottom")
    # Beside a weekend or a holiday too little is left of the period to judge by.
    enough = pl.max_horizontal(pl.lit(_FEWEST_OTHERS), pl.col("num_others").median() / 2)
    heavy = pl.max_horizontal(pl.lit(_HEAVY), _HEAVY_IN_ROWS / pl.col("num_others")) * pl.col("others_volume")
    return compared.filter((pl.col("num_others") >= enough) & (others_range > 0)).select(
        "row",
        (pl.col("seconds") % period).alias("clock_time"),
        (overlap / others_range).alias("coverage"),
        ((pl.col("High") - pl.col("Low")) / others_range).alias("width"),
        ((pl.col("Volume") >= heavy) & (pl.col("Volume") > 0)).fill_null(False).alias("heavy"),
    )


def _judge(rows: pl.DataFrame) -> pl.DataFrame:
    """Which rows are certain, and which suspicious, by what their neighbours at the same clock time are."""
    equal = (pl.col("coverage") >= _COVERS) & (pl.col("width") <= _NO_WIDER)
    covers = (pl.col("coverage") >= _COVERS) | (pl.col("heavy") & (pl.col("coverage") >= _COVERS_IF_HEAVY))
    num_seen = pl.int_range(1, pl.len() + 1).clip(upper_bound=_NEIGHBOURS)
    num_equal, num_both = _recent(equal), _recent(equal & pl.col("heavy"))
    recurs = (num_equal >= _CERTAIN_ROWS) & (num_equal >= _CERTAIN_SHARE * num_seen)
    repeats = num_both >= _SUSPICIOUS_ROWS
    return rows.select(
        "row",
        (covers & _near(recurs)).alias("certain"),
        (equal & pl.col("heavy") & _near(repeats)).alias("suspicious"),
    )


def _recent(flag: pl.Expr) -> pl.Expr:
    """How many of the last neighbours, the row included, have the flag."""
    return flag.cast(pl.Int32).rolling_sum(_NEIGHBOURS, min_samples=1)


def _near(flag: pl.Expr) -> pl.Expr:
    """Whether a stretch of neighbours that contains the row ends in a flagged one."""
    near = flag.cast(pl.Int32).reverse().rolling_max(_NEIGHBOURS, min_samples=1).reverse() > 0
    return near.over("clock_time")
