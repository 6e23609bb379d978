"""Checks of bars by value, by neighbouring rows, and against the rough price of a currency pair."""

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
from vaiom.market.symbols import usual_price

NUM_EXAMPLES = 5
HOUR = 3_600
DAY = 24 * HOUR
WEEK = 7 * DAY
Rows = NDArray[np.bool_]
"""One flag per row of the frame that was checked, True = reported."""
Numbers = NDArray[np.int64]

_FEWEST_OTHERS = 4  # a correct row often spans the range of fewer
_COVERS = 0.9
"""Share of the range of a period's other rows: the extremes of a bar of another feed differ by
spreads.
"""
_NEIGHBOURS = 20
_FEWEST_TICKS, _TICK_ROWS = 3.5, 501


class Severity(StrEnum):
    """`error`: do not train on it. `warning`: look, then decide. `info`: how the data is, not a
    fault.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A kind of problem, how many rows have it, and a few of them in words."""

    kind: str
    severity: Severity
    count: int
    summary: str
    examples: tuple[str, ...] = ()


def finding(
    kind: str, severity: Severity, count: int, summary: str, examples: Iterable[str] = ()
) -> list[Finding]:
    """A list of one finding, or an empty list if the count is zero."""
    few = tuple(islice(examples, NUM_EXAMPLES)) if count else ()
    return (
        [Finding(kind=kind, severity=severity, count=count, summary=summary, examples=few)]
        if count
        else []
    )


def row_findings(
    bars: pl.DataFrame, *checks: tuple[str, Severity, str, pl.Expr | Rows]
) -> list[Finding]:
    """Findings about single rows, shown with their prices; a check is (kind, severity, summary,
    which rows).
    """
    found = []
    for kind, severity, summary, which in checks:
        rows = (
            pl.Series(which)
            if isinstance(which, np.ndarray)
            else bars.select(which.fill_null(False)).to_series()
        )
        examples = map(_show, bars.filter(rows).head(NUM_EXAMPLES).iter_rows(named=True))
        found += finding(kind, severity, int(rows.sum()), summary, examples)
    return found


def run_findings(
    bars: pl.DataFrame,
    kind: str,
    summary: str,
    first: Numbers,
    last: Numbers,
    detail: Callable[[int, int], str],
) -> list[Finding]:
    """A finding about runs of rows, from `first` through `last`; `detail` describes one."""
    stamps = bars["Datetime"]
    runs = zip(first.tolist(), last.tolist(), strict=True)
    examples = (
        f"{show_stamp(stamps[a])} to {show_stamp(stamps[b])}{detail(a, b)}" for a, b in runs
    )
    return finding(kind, Severity.WARNING, int((last - first + 1).sum()), summary, examples)


def find_runs(flags: Rows) -> tuple[Numbers, Numbers]:
    """First and last index of each run of True."""
    edge = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1


def show_stamp(stamp: datetime) -> str:
    """A stamp in minutes, or in seconds if it has any."""
    return f"{stamp:%Y-%m-%d %H:%M:%S}" if stamp.second else f"{stamp:%Y-%m-%d %H:%M}"


def _show(row: dict[str, Any]) -> str:
    """A bar in one line: stamp, prices, volume."""
    stamp = show_stamp(row["Datetime"]) if row["Datetime"] else "no stamp"
    numbers = {name[0]: row[name] for name in NUMBER_COLUMNS}
    shown = (
        f"{name} {'null' if value is None else format(value, '.10g')}"
        for name, value in numbers.items()
    )
    return f"{stamp}: {' '.join(shown)}"


def check_values(bars: pl.DataFrame) -> list[Finding]:
    """Rows that are wrong by themselves: nulls, prices not above zero, High or Low inside
    the body.
    """
    prices = pl.col(*PRICE_COLUMNS)
    above = pl.max_horizontal("Open", "Close", "Low") - pl.col("High")
    below = pl.col("Low") - pl.min_horizontal("Open", "Close", "High")
    inside = pl.max_horizontal(above, below) > 1e-9 * pl.max_horizontal(prices.abs())
    missing = pl.any_horizontal(~prices.is_finite().fill_null(False))
    too_low = pl.any_horizontal(prices <= 0)
    return row_findings(
        bars,
        ("missing_price", Severity.WARNING, "rows with a price that is null or infinite", missing),
        ("non_positive_price", Severity.ERROR, "rows with a price that is not above zero", too_low),
        (
            "ohlc_sense",
            Severity.WARNING,
            "rows whose High or Low lies inside Open and Close",
            inside,
        ),
        (
            "negative_volume",
            Severity.WARNING,
            "rows with a volume below zero",
            pl.col("Volume") < 0,
        ),
    )


# The checks below take bars that are sorted, with unique stamps and prices above zero.
def find_scale(symbol: str, bars: pl.DataFrame) -> list[Finding]:
    """All prices of a currency pair off by a power of ten."""
    usual = usual_price(symbol)
    if usual is None or bars.is_empty():
        return []
    close = bars["Close"].to_numpy()
    power = round(math.log10(float(np.median(close)) / usual))
    summary, shown = (
        f"prices about 10^{power} times what {symbol} costs",
        f"{close[-1]:.10g}, not roughly {usual:.3g}",
    )
    return finding("price_scale", Severity.WARNING, len(bars) if power else 0, summary, [shown])


def find_spikes(bars: pl.DataFrame) -> list[Finding]:
    """A Close, or a High or Low, many local scales away from both neighbours, with the price back
    one bar later.
    """

    def local_median(value: pl.Expr) -> pl.Expr:
        return value.rolling_median(101, min_samples=20, center=True)

    log = {name: pl.col(name).log() for name in PRICE_COLUMNS}
    ret, ret_next = log["Close"].diff(), log["Close"].diff().shift(-1)
    # Half of the range as well as the return: quantised quiet prices have a median return of zero.
    scale = pl.max_horizontal(local_median(ret.abs()), local_median((log["High"] - log["Low"]) / 2))
    away = pl.min_horizontal(ret.abs(), ret_next.abs())
    excursion = pl.when((ret + ret_next).abs() <= away / 4).then(away).otherwise(0.0)
    body = (log["Open"], log["Close"])
    above = log["High"] - pl.max_horizontal(*body, log["High"].shift(), log["High"].shift(-1))
    below = pl.min_horizontal(*body, log["Low"].shift(), log["Low"].shift(-1)) - log["Low"]
    spike = (scale > 0) & (pl.max_horizontal(excursion, above, below) > 15 * scale)
    return row_findings(bars, ("spike", Severity.WARNING, "one-bar excursions that revert", spike))


def find_stale_runs(bars: pl.DataFrame) -> list[Finding]:
    """Runs of identical closes, longer than the asset's own rate of zero returns makes likely."""
    close, fewest = bars["Close"].to_numpy(), 8
    if len(close) < fewest:
        return []
    zero = np.diff(close) == 0
    # The rate at which runs begin: long runs do not raise it as they raise the share of zeros.
    after_move = zero[1:][~zero[:-1]]
    rate = float(after_move.mean()) if len(after_move) else 0.0
    if 0 < rate < 1:
        fewest = max(fewest, math.ceil(2 * math.log(len(close)) / -math.log(rate)))
    first, last = find_runs(zero)
    last = last + 1  # the row before a zero return belongs to the run
    long = last - first + 1 >= fewest
    first, last, summary = (
        first[long],
        last[long],
        f"rows in runs of {fewest} or more identical closes",
    )
    return run_findings(
        bars,
        "stale_run",
        summary,
        first,
        last,
        lambda a, b: f": {b - a + 1} rows at {close[a]:.10g}",
    )


def find_repeated_blocks(bars: pl.DataFrame) -> list[Finding]:
    """Blocks of moving bars whose four prices are, row for row, those of an earlier block."""
    close = pl.col("Close")
    shape = [(pl.col(name) - close).round(9).alias(name) for name in PRICE_COLUMNS[:-1]]
    num_alike = (
        bars.select(*shape, close.diff().round(9)).select(pl.len().over(PRICE_COLUMNS)).to_series()
    )
    num_bits = np.append(0.0, np.cumsum(-np.log2(num_alike / len(bars))))
    # So many bits do not repeat by chance; neighbouring bars are alike, so a row has less than its
    # share of them.
    fewest_bits = 1.5 * 2 * math.log2(max(len(bars), 2))
    block = max(6, math.ceil(fewest_bits * len(bars) / max(num_bits[-1], 1e-9)))
    num_starts = len(bars) - block + 1
    if num_starts < 2 or block > 60:
        return []
    row_hash = bars.select(PRICE_COLUMNS).hash_rows(seed=1).to_numpy()
    block_hash = np.zeros(num_starts, dtype=np.uint64)
    for offset in range(block):
        block_hash = (
            block_hash * np.uint64(0x9E3779B97F4A7C15) + row_hash[offset : offset + num_starts]
        )
    num_moves = np.concatenate([[0], np.cumsum(np.diff(bars["Close"].to_numpy()) != 0)])
    moving = num_moves[block - 1 :] - num_moves[:num_starts] >= 4
    starts = pl.DataFrame({"hash": block_hash, "start": np.arange(num_starts)}).filter(
        pl.Series(moving)
    )
    copies = starts.with_columns(source=pl.col("start").min().over("hash")).filter(
        pl.col("start") > pl.col("source")
    )
    copied = np.isin(
        np.arange(len(bars)), np.add.outer(copies["start"].to_numpy(), np.arange(block))
    )
    source, summary = (
        dict(copies.select("start", "source").rows()),
        f"rows in copies of {block} or more moving bars",
    )
    first, last = find_runs(copied)
    rare = (
        num_bits[last + 1] - num_bits[first] >= fewest_bits
    )  # a quiet time of few price steps has less than others

    def detail(first: int, _: int) -> str:
        return f" repeats the bars from {show_stamp(bars['Datetime'][source[first]])}"

    return run_findings(bars, "repeated_block", summary, first[rare], last[rare], detail)


def find_higher_timeframe_bars(
    bars: pl.DataFrame, timeframe: int | None
) -> tuple[Rows, list[Finding]]:
    """Which rows are bars of a higher timeframe, such as a daily bar in an hourly file, at a
    recurring clock time.

    Most of such a bar lies in the future of its row, so a model that sees it learns what nobody
    could know. News also makes an hour span its day, but exceeds the range of the other hours, and
    not day after day at one clock time. So a row is certain if its range covers that of the other
    rows of its period and at least half of its neighbours at the same clock time *equal* theirs;
    with fewer, whose volume is that of the period, it is suspicious. `bars` are sorted, stamps may
    repeat.
    """
    certain, suspicious = np.zeros(len(bars), dtype=bool), np.zeros(len(bars), dtype=bool)
    places: list[str] = []
    seconds = pl.col("Datetime").dt.epoch("s")
    rows = bars.select("High", "Low", "Volume", row=pl.int_range(pl.len()), seconds=seconds)
    rows = rows.filter(pl.col("High") >= pl.col("Low"))
    # Polars looks back over time, so what follows a row is found by running the clock backwards.
    backwards = rows.reverse().with_columns(-pl.col("seconds"))
    for period, name in {HOUR: "hour", 4 * HOUR: "four hours", DAY: "day", WEEK: "week"}.items():
        if timeframe is None or period <= _FEWEST_OTHERS * timeframe:
            continue
        for side, ordered in (("following", backwards), ("preceding", rows)):
            judged = _judge(_compare(ordered, period))
            recurring = judged.filter("certain")["row"].to_numpy()
            suspicious[judged.filter("suspicious")["row"].to_numpy()] = True
            certain[recurring] = True
            if len(recurring):
                times = (
                    bars["Datetime"]
                    .gather(recurring)
                    .dt.strftime("%H:%M" if period <= DAY else "%A %H:%M")
                )
                places.append(f"the whole {side} {name}, mostly at {times.mode().sort()[0]}")
    held = f"rows that hold the range of {' and '.join(places)}"
    wide = (
        "rows as wide and heavy as their whole period, a few times close together at one clock time"
    )
    return certain, row_findings(
        bars,
        ("hidden_higher_timeframe_bar", Severity.ERROR, held, certain),
        ("suspiciously_wide_row", Severity.WARNING, wide, suspicious & ~certain),
    )


def _compare(rows: pl.DataFrame, period: int) -> pl.DataFrame:
    """Compare each row with the others less than one period before it."""

    def others(what: pl.Expr, how: str) -> pl.Expr:
        return getattr(what, f"rolling_{how}_by")("seconds", f"{period}i", closed="none")  # type: ignore[no-any-return]

    high, low, volume = pl.col("High"), pl.col("Low"), pl.col("Volume").fill_null(0.0)
    compared = rows.with_columns(one=pl.lit(1)).with_columns(
        top=others(high, "max"),
        bottom=others(low, "min"),
        weight=others(volume, "sum"),
        num=others(pl.col("one"), "sum"),
    )
    overlap = pl.min_horizontal("High", "top") - pl.max_horizontal("Low", "bottom")
    others_range = pl.col("top") - pl.col("bottom")
    # Next to a weekend or a holiday too few rows of the period are left to judge by.
    enough = pl.max_horizontal(pl.lit(_FEWEST_OTHERS), pl.col("num").median() / 2)
    # The range of a few steps of the price, as of cheap shares, is that of many single rows.
    move = high.diff().abs()
    tick = (
        pl.when(move > 1e-9 * high)
        .then(move)
        .rolling_min(_TICK_ROWS, min_samples=1, center=True)
        .fill_null(0.0)
    )
    # Feeds differ in volume: a quarter of the others' sum is heavy, or with few others that of four
    # average rows.
    heavy = pl.max_horizontal(pl.lit(0.25), 4 / pl.col("num")) * pl.col("weight")
    return compared.filter(
        (pl.col("num") >= enough) & (others_range > _FEWEST_TICKS * tick)
    ).select(
        "row",
        clock_time=pl.col("seconds") % period,
        coverage=overlap / others_range,
        width=(high - low) / others_range,
        heavy=(volume >= heavy) & (volume > 0),
    )


def _judge(rows: pl.DataFrame) -> pl.DataFrame:
    """Which rows are certain, and which suspicious, given their neighbours at the same
    clock time.
    """

    def count_recent(flag: pl.Expr) -> pl.Expr:
        """How many of the last neighbours, the row included, have the flag."""
        return flag.cast(pl.Int32).rolling_sum(_NEIGHBOURS, min_samples=1)

    def is_near(flag: pl.Expr) -> pl.Expr:
        """Whether a stretch of neighbours that contains the row ends in a flagged one."""
        ahead = flag.cast(pl.Int32).reverse().rolling_max(_NEIGHBOURS, min_samples=1).reverse()
        return (ahead > 0).over("clock_time")

    coverage, heavy = pl.col("coverage"), pl.col("heavy")
    equal = (coverage >= _COVERS) & (pl.col("width") <= 1.1)
    covers = (coverage >= _COVERS) | (heavy & (coverage >= 0.85))
    num_seen = pl.int_range(1, pl.len() + 1).clip(upper_bound=_NEIGHBOURS)
    num_equal, num_both = count_recent(equal), count_recent(equal & heavy)
    recurs = (num_equal >= 5) & (num_equal >= num_seen / 2)
    return rows.select(
        "row", certain=covers & is_near(recurs), suspicious=equal & heavy & is_near(num_both >= 3)
    )
