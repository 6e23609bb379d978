"""What can be wrong with prices as prices: rows are judged by their neighbours alone, never by outside knowledge.

Paper: "Data-quality masks" (what the events room later masks row by row; here the user sees it first).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vaiom.market.folder import NUMBER_COLUMNS, PRICE_COLUMNS

NUM_EXAMPLES = 5
HOUR = 3_600
DAY = 24 * HOUR
WEEK = 7 * DAY
Rows = NDArray[np.bool_]
"""One flag per row of the frame that was checked, True = points at it."""
Numbers = NDArray[np.int64]

_ROUNDING = 1e-9
_LOCAL_ROWS = 101
_FEWEST_LOCAL_ROWS = 20
_SPIKE_SCALES = 15
_SPIKE_REST = 0.25
_BLOCK = 6
_BLOCK_MOVES = 4
_LONGEST_BLOCK = 60
_SAFETY = 1.5
_DECIMALS = 9
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_STALE_ROWS = 8

_PERIODS = {HOUR: "hour", 4 * HOUR: "four hours", DAY: "day", WEEK: "week"}
_FEWEST_OTHERS = 4  # one honest row often spans the rest of fewer
_NEIGHBOURS = 20
# Shares of the range, and of the volume, of the other rows of the period. A higher-timeframe bar may come from another
# feed: its extremes differ by spreads, its volume by a factor.
_COVERS = 0.9
_COVERS_IF_HEAVY = 0.85
_NO_WIDER = 1.1
_HEAVY = 0.25
_HEAVY_IN_ROWS = 4  # at least as heavy as that many average rows, where a period has few
_CERTAIN_SHARE = 0.5
_CERTAIN_ROWS = 5
_SUSPICIOUS_ROWS = 3


class Severity(StrEnum):
    """`error`: do not train on it. `warning`: look, then decide. `info`: how the data is, not a fault."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A kind of trouble, how many rows have it, and a few of them in words."""

    kind: str
    severity: Severity
    count: int
    summary: str
    examples: tuple[str, ...] = ()


def finding(kind: str, severity: Severity, count: int, summary: str, examples: Iterable[str]) -> list[Finding]:
    """One finding, or none where no row is concerned: checks return lists, so that they add up."""
    few = tuple(islice(examples, NUM_EXAMPLES)) if count else ()
    return [Finding(kind=kind, severity=severity, count=count, summary=summary, examples=few)] if count else []


def row_findings(bars: pl.DataFrame, *checks: tuple[str, Severity, str, pl.Expr | Rows]) -> list[Finding]:
    """Findings on single rows, each check (kind, severity, summary, which rows), shown with their prices."""
    found = []
    for kind, severity, summary, which in checks:
        rows = pl.Series(which) if isinstance(which, np.ndarray) else bars.select(which.fill_null(False)).to_series()
        examples = map(_show, bars.filter(rows).head(NUM_EXAMPLES).iter_rows(named=True))
        found += finding(kind, severity, int(rows.sum()), summary, examples)
    return found


def run_findings(
    bars: pl.DataFrame, kind: str, summary: str, first: Numbers, last: Numbers, detail: Callable[[int, int], str]
) -> list[Finding]:
    """A finding on stretches of rows, each from its first through its last; `detail` says what they are."""
    stamps = bars["Datetime"]
    examples = (
        f"{show_stamp(stamps[a])} to {show_stamp(stamps[b])}{detail(a, b)}"
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    )
    return finding(kind, Severity.WARNING, int((last - first + 1).sum()), summary, examples)


def find_runs(flags: Rows) -> tuple[Numbers, Numbers]:
    """First and last index of each run of True."""
    edge = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1


def epoch_seconds(stamps: pl.Series) -> NDArray[np.int64]:
    return stamps.dt.epoch("us").to_numpy().astype(np.int64) // 1_000_000


def show_stamp(stamp: datetime) -> str:
    """A stamp as people write it: seconds only where there are any."""
    return f"{stamp:%Y-%m-%d %H:%M:%S}" if stamp.second else f"{stamp:%Y-%m-%d %H:%M}"


def _show(row: dict[str, Any]) -> str:
    """A bar in one line: stamp, prices, volume."""
    stamp = show_stamp(row["Datetime"]) if row["Datetime"] else "no stamp"
    numbers = {name[0]: row[name] for name in NUMBER_COLUMNS}
    shown = (f"{name} {'null' if value is None else format(value, '.10g')}" for name, value in numbers.items())
    return f"{stamp}: {' '.join(shown)}"


def value_findings(bars: pl.DataFrame) -> list[Finding]:
    """Rows that are wrong by themselves: nulls, prices not above zero, High or Low inside the body."""
    prices = pl.col(*PRICE_COLUMNS)
    above = pl.max_horizontal("Open", "Close", "Low") - pl.col("High")
    below = pl.col("Low") - pl.min_horizontal("Open", "Close", "High")
    senseless = pl.max_horizontal(above, below) > _ROUNDING * pl.max_horizontal(prices.abs())
    missing = pl.any_horizontal(~prices.is_finite().fill_null(False))
    too_low = pl.any_horizontal(prices <= 0)
    return row_findings(
        bars,
        ("missing_price", Severity.WARNING, "rows with a price that is null or infinite", missing),
        ("non_positive_price", Severity.ERROR, "rows with a price that is not above zero", too_low),
        ("ohlc_sense", Severity.WARNING, "rows whose High or Low lies inside Open and Close", senseless),
        ("negative_volume", Severity.WARNING, "rows with a volume below zero", pl.col("Volume") < 0),
    )


def neighbour_findings(bars: pl.DataFrame) -> list[Finding]:
    """Rows that are wrong beside others; `bars` are sorted, with unique stamps and prices above zero."""
    return [*_find_spikes(bars), *_find_stale_runs(bars), *_find_repeated_blocks(bars)]


def _find_spikes(bars: pl.DataFrame) -> list[Finding]:
    """A Close, or a High or Low, many local scales away from both neighbours, with the price back one bar later."""

    def local_median(value: pl.Expr) -> pl.Expr:
        return value.rolling_median(_LOCAL_ROWS, min_samples=_FEWEST_LOCAL_ROWS, center=True)

    log = {name: pl.col(name).log() for name in PRICE_COLUMNS}
    ret, ret_next = log["Close"].diff(), log["Close"].diff().shift(-1)
    # Half of the range beside the return: quiet prices, quantised, have a median return of zero.
    scale = pl.max_horizontal(local_median(ret.abs()), local_median((log["High"] - log["Low"]) / 2))
    away = pl.min_horizontal(ret.abs(), ret_next.abs())
    back = (ret + ret_next).abs() <= _SPIKE_REST * away
    excursion = pl.when(back).then(away).otherwise(0.0)
    body = (log["Open"], log["Close"])
    above = log["High"] - pl.max_horizontal(*body, log["High"].shift(), log["High"].shift(-1))
    below = pl.min_horizontal(*body, log["Low"].shift(), log["Low"].shift(-1)) - log["Low"]
    spike = (scale > 0) & (pl.max_horizontal(excursion, above, below) > _SPIKE_SCALES * scale)
    return row_findings(bars, ("spike", Severity.WARNING, "one-bar excursions that revert", spike))


def _find_stale_runs(bars: pl.DataFrame) -> list[Finding]:
    """Runs of identical closes, longer than the asset's own rate of zero returns makes likely."""
    close = bars["Close"].to_numpy()
    if len(close) < _STALE_ROWS:
        return []
    zero = np.diff(close) == 0
    # The rate at which runs begin, which long runs do not raise as they raise the plain share of zeros.
    after_move = zero[1:][~zero[:-1]]
    rate = float(after_move.mean()) if len(after_move) else 0.0
    likely = 2 * math.log(len(close)) / -math.log(rate) if 0 < rate < 1 else 0.0
    fewest = max(_STALE_ROWS, math.ceil(likely))
    first, last = find_runs(zero)
    last = last + 1  # the row before a zero return belongs to the run
    long = last - first + 1 >= fewest
    summary = f"rows in runs of {fewest} or more identical closes"
    return run_findings(
        bars, "stale_run", summary, first[long], last[long], lambda a, b: f": {b - a + 1} rows at {close[a]:.10g}"
    )


def _find_repeated_blocks(bars: pl.DataFrame) -> list[Finding]:
    """Stretches of moving bars whose four prices are, row for row, those of an earlier stretch."""
    block = _telling_block(bars)
    num_starts = len(bars) - block + 1
    if num_starts < 2 or block > _LONGEST_BLOCK:
        return []
    row_hash = bars.select(PRICE_COLUMNS).hash_rows(seed=1).to_numpy()
    block_hash = np.zeros(num_starts, dtype=np.uint64)
    for offset in range(block):
        block_hash = block_hash * _HASH_FACTOR + row_hash[offset : offset + num_starts]
    num_moves = np.concatenate([[0], np.cumsum(np.diff(bars["Close"].to_numpy()) != 0)])
    moving = num_moves[block - 1 :] - num_moves[:num_starts] >= _BLOCK_MOVES
    starts = pl.DataFrame({"hash": block_hash, "start": np.arange(num_starts)}).filter(pl.Series(moving))
    copies = starts.with_columns(source=pl.col("start").min().over("hash")).filter(pl.col("start") > pl.col("source"))
    copied = np.zeros(len(bars), dtype=bool)
    for offset in range(block):
        copied[copies["start"].to_numpy() + offset] = True
    source = dict(zip(copies["start"], copies["source"], strict=True))
    return run_findings(
        bars,
        "repeated_block",
        f"rows in copies of {block} or more moving bars",
        *find_runs(copied),
        lambda a, _: f" repeats the bars from {show_stamp(bars['Datetime'][source[a]])}",
    )


def _telling_block(bars: pl.DataFrame) -> int:
    """How many rows must repeat before chance is ruled out: the more, the fewer shapes the bars of an asset have."""
    close = pl.col("Close")
    shape = [(pl.col(name) - close).round(_DECIMALS).alias(name) for name in PRICE_COLUMNS[:-1]]
    num_like = bars.select(*shape, close.diff().round(_DECIMALS)).group_by(PRICE_COLUMNS).len()["len"]
    bits_per_row = num_like.entropy(base=2, normalize=True) or 0.0
    bits_of_all_pairs = 2 * math.log2(max(len(bars), 2))
    # Neighbouring bars are alike, so a row tells less than its share of the entropy.
    return max(_BLOCK, math.ceil(_SAFETY * bits_of_all_pairs / bits_per_row)) if bits_per_row else _LONGEST_BLOCK


def find_higher_timeframe_bars(bars: pl.DataFrame, timeframe: int | None) -> tuple[Rows, list[Finding]]:
    """Which rows are bars of a higher timeframe, as a daily bar in an hourly file, at one recurring clock time.

    Most of such a bar lies in the future of its row, so a model that sees it learns what nobody could know. News makes
    an hour span its day too, but goes beyond what the others reach, and not day after day at one clock time. So a row
    is certain if its range covers that of the other rows of its period and at least half of its neighbours at the same
    clock time *equal* theirs; fewer, as heavy as the period, make it suspicious. `bars` are sorted, stamps may repeat.
    """
    certain, suspicious = np.zeros(len(bars), dtype=bool), np.zeros(len(bars), dtype=bool)
    places: list[str] = []
    seconds = pl.Series("seconds", epoch_seconds(bars["Datetime"]))
    rows = bars.select("High", "Low", "Volume", pl.int_range(pl.len()).alias("row")).with_columns(seconds)
    rows = rows.filter(pl.col("High") >= pl.col("Low"))
    # Polars looks back over time, so what follows a row is found by running the clock backwards.
    backwards = rows.reverse().with_columns(-pl.col("seconds"))
    for period, name in _PERIODS.items():
        if timeframe is None or period <= _FEWEST_OTHERS * timeframe:
            continue
        for side, ordered in (("following", backwards), ("preceding", rows)):
            judged = _judge(_compare(ordered, period))
            found = judged.filter("certain")["row"].to_numpy()
            suspicious[judged.filter("suspicious")["row"].to_numpy()] = True
            certain[found] = True
            if len(found):
                times = bars["Datetime"].gather(found).dt.strftime("%H:%M" if period <= DAY else "%A %H:%M")
                places.append(f"the whole {side} {name}, mostly at {times.mode().sort()[0]}")
    held = f"rows that hold the range of {' and '.join(places)}"
    wide = "rows as wide and heavy as their whole period, a few times close together at one clock time"
    return certain, row_findings(
        bars,
        ("hidden_higher_timeframe_bar", Severity.ERROR, held, certain),
        ("suspiciously_wide_row", Severity.WARNING, wide, suspicious & ~certain),
    )


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

    def count_recent(flag: pl.Expr) -> pl.Expr:
        """How many of the last neighbours, the row included, have the flag."""
        return flag.cast(pl.Int32).rolling_sum(_NEIGHBOURS, min_samples=1)

    def is_near(flag: pl.Expr) -> pl.Expr:
        """Whether a stretch of neighbours that contains the row ends in a flagged one."""
        ahead = flag.cast(pl.Int32).reverse().rolling_max(_NEIGHBOURS, min_samples=1).reverse()
        return (ahead > 0).over("clock_time")

    equal = (pl.col("coverage") >= _COVERS) & (pl.col("width") <= _NO_WIDER)
    covers = (pl.col("coverage") >= _COVERS) | (pl.col("heavy") & (pl.col("coverage") >= _COVERS_IF_HEAVY))
    num_seen = pl.int_range(1, pl.len() + 1).clip(upper_bound=_NEIGHBOURS)
    num_equal, num_both = count_recent(equal), count_recent(equal & pl.col("heavy"))
    recurs = (num_equal >= _CERTAIN_ROWS) & (num_equal >= _CERTAIN_SHARE * num_seen)
    return rows.select(
        "row",
        (covers & is_near(recurs)).alias("certain"),
        (equal & pl.col("heavy") & is_near(num_both >= _SUSPICIOUS_ROWS)).alias("suspicious"),
    )
