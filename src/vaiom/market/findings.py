"""Findings about bars, and the checks of bars by value and against neighbouring rows.

Enters: the bars of one asset. Leaves: findings, each with a kind, how many rows it concerns, and a
few of them in words. Limits are relative to the asset's own scale, so that they hold for
currencies, shares and coins alike.
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
from vaiom.market.sessions import find_runs
from vaiom.market.symbols import usual_price

NUM_EXAMPLES = 5
SPIKE_SCALES = 15
"""A spike is so many local scales away from both neighbours."""
SCALE_ROWS = 101
MIN_SCALE_ROWS = 20
MIN_STALE_ROWS = 8
MIN_SHARE_WITHOUT = 0.95
"""A series has no ranges, or no volume, if so many of its rows have none."""
MIN_BLOCK_ROWS = 6
MAX_BLOCK_ROWS = 60
MIN_BLOCK_MOVES = 4
BLOCK_BITS = 1.5
"""A repeated block holds this many times the bits by which one pair of rows is found among all."""
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # an odd number near 2**64 over the golden ratio

RowFlags = NDArray[np.bool_]
"""One flag per row of the frame that was checked, True = reported."""


class Severity(StrEnum):
    """`error`: do not train on it. `warning`: look, then decide. `info`: a fact, not a fault."""

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
    if not count:
        return []
    few = tuple(islice(examples, NUM_EXAMPLES))
    return [Finding(kind=kind, severity=severity, count=count, summary=summary, examples=few)]


def row_findings(
    bars: pl.DataFrame, *checks: tuple[str, Severity, str, pl.Expr | RowFlags]
) -> list[Finding]:
    """Findings about single rows, shown with their prices.

    A check is (kind, severity, summary, which rows); rows are given as flags or as an expression
    over the bars, in which null means no.
    """
    found = []
    for kind, severity, summary, which in checks:
        if isinstance(which, pl.Expr):
            rows = bars.select(which.fill_null(False)).to_series()
        else:
            rows = pl.Series(which)
        shown = bars.filter(rows).head(NUM_EXAMPLES)
        examples = [_show_bar(bar) for bar in shown.iter_rows(named=True)]
        found += finding(kind, severity, int(rows.sum()), summary, examples)
    return found


def _run_findings(
    bars: pl.DataFrame,
    kind: str,
    summary: str,
    runs: NDArray[np.int64],
    describe_run: Callable[[int, int], str],
) -> list[Finding]:
    """A finding about runs (n, 2) of rows, from the first through the last of each."""
    stamps = bars["Datetime"]
    examples = (
        f"{show_stamp(stamps[first])} to {show_stamp(stamps[last])}{describe_run(first, last)}"
        for first, last in runs.tolist()
    )
    num_rows = int((runs[:, 1] - runs[:, 0] + 1).sum())
    return finding(kind, Severity.WARNING, num_rows, summary, examples)


def show_stamp(stamp: datetime) -> str:
    """A stamp in minutes, or in seconds if it has any."""
    return f"{stamp:%Y-%m-%d %H:%M:%S}" if stamp.second else f"{stamp:%Y-%m-%d %H:%M}"


def _show_bar(row: dict[str, Any]) -> str:
    """A bar in one line: stamp, prices, volume; `null` for what is missing."""
    stamp = show_stamp(row["Datetime"]) if row["Datetime"] else "no stamp"
    shown = []
    for name in NUMBER_COLUMNS:
        value = row[name]
        number = "null" if value is None else format(value, ".10g")
        shown.append(f"{name[0]} {number}")
    numbers = " ".join(shown)
    return f"{stamp}: {numbers}"


def check_values(bars: pl.DataFrame) -> list[Finding]:
    """Rows that are wrong by themselves: no price, a price not above zero, High or Low inside."""
    prices = pl.col(*PRICE_COLUMNS)
    above_high = pl.max_horizontal("Open", "Close", "Low") - pl.col("High")
    below_low = pl.col("Low") - pl.min_horizontal("Open", "Close", "High")
    rounding = 1e-9 * pl.max_horizontal(prices.abs())
    is_inside = pl.max_horizontal(above_high, below_low) > rounding
    is_missing = pl.any_horizontal(~prices.is_finite().fill_null(False))
    is_too_low = pl.any_horizontal(prices <= 0)
    warning = Severity.WARNING
    return row_findings(
        bars,
        ("missing_price", warning, "rows with a price that is null or infinite", is_missing),
        (
            "non_positive_price",
            Severity.ERROR,
            "rows with a price that is not above zero",
            is_too_low,
        ),
        ("ohlc_sense", warning, "rows whose High or Low lies inside Open and Close", is_inside),
        ("negative_volume", warning, "rows with a volume below zero", pl.col("Volume") < 0),
    )


def check_prices(symbol: str, bars: pl.DataFrame) -> list[Finding]:
    """Rows that are unlikely beside others; stamps increase, and prices are above zero."""
    return [
        *find_absences(bars),
        *find_scale(symbol, bars),
        *find_spikes(bars),
        *find_stale_runs(bars),
        *find_repeated_blocks(bars),
    ]


def find_absences(bars: pl.DataFrame) -> list[Finding]:
    """Closes alone, without ranges; volumes that are absent, zero or all the same."""
    has_no_range = pl.col("High") == pl.col("Low")
    volume = pl.col("Volume")
    has_no_volume = ~(volume > 0).fill_null(False) | (volume == volume.shift())
    absences = (
        (
            "no_ranges",
            has_no_range,
            "rows whose High is their Low: a model estimates ranges from returns, at a loss",
        ),
        (
            "no_volume",
            has_no_volume,
            "rows whose volume is absent, zero or that of the row before: it says nothing",
        ),
    )
    found = []
    for kind, is_without, summary in absences:
        num_rows = int(bars.select(is_without.sum()).item())
        if num_rows >= MIN_SHARE_WITHOUT * len(bars):
            found += finding(kind, Severity.WARNING, num_rows, summary)
    return found


def find_scale(symbol: str, bars: pl.DataFrame) -> list[Finding]:
    """All prices of a currency pair off by a power of ten.

    The median Close is compared with the pair's rough price, as an error of units moves it by far
    more than any market has.
    """
    usual = usual_price(symbol)
    if usual is None or bars.is_empty():
        return []
    close = bars["Close"].to_numpy()
    ratio = float(np.median(close)) / usual
    power = round(math.log10(ratio))
    num_rows = len(bars) if power else 0
    summary = f"prices about 10^{power} times what {symbol} costs"
    example = f"{close[-1]:.10g}, not roughly {usual:.3g}"
    return finding("price_scale", Severity.WARNING, num_rows, summary, [example])


def find_spikes(bars: pl.DataFrame) -> list[Finding]:
    """A Close, High or Low far from both neighbours, with the price back one bar later.

    Distances are in log prices, in units of the median move and half range of the 101 rows around.
    A jump that stays is a price and no spike.
    """

    def local_median(value: pl.Expr) -> pl.Expr:
        return value.rolling_median(SCALE_ROWS, min_samples=MIN_SCALE_ROWS, center=True)

    open_, high, low, close = (pl.col(name).log() for name in PRICE_COLUMNS)
    log_ret = close.diff()
    log_ret_next = log_ret.shift(-1)
    move = log_ret.abs()
    # Half of the range as well as the return: quantised quiet prices have a median return of zero.
    half_range = (high - low) / 2
    scale = pl.max_horizontal(local_median(move), local_median(half_range))
    away = pl.min_horizontal(move, log_ret_next.abs())
    rest = (log_ret + log_ret_next).abs()
    excursion = pl.when(rest <= away / 4).then(away).otherwise(0.0)
    top_around = pl.max_horizontal(open_, close, high.shift(), high.shift(-1))
    bottom_around = pl.min_horizontal(open_, close, low.shift(), low.shift(-1))
    distance = pl.max_horizontal(excursion, high - top_around, bottom_around - low)
    is_spike = (scale > 0) & (distance > SPIKE_SCALES * scale)
    check = ("spike", Severity.WARNING, "one-bar excursions that revert", is_spike)
    return row_findings(bars, check)


def find_stale_runs(bars: pl.DataFrame) -> list[Finding]:
    """Runs of identical closes, longer than the asset's own rate of zero returns makes likely.

    If a share p of moves is followed by a zero return, a run of n has the probability p^n. Runs
    are reported from the length at which that is below one over the squared number of rows.
    """
    close = bars["Close"].to_numpy()
    if len(close) < MIN_STALE_ROWS:
        return []
    is_zero = np.diff(close) == 0
    # The rate at which runs begin: long runs do not raise it as they raise the share of zeros.
    after_move = is_zero[1:][~is_zero[:-1]]
    rate = float(after_move.mean()) if len(after_move) else 0.0
    fewest = MIN_STALE_ROWS
    if 0 < rate < 1:
        rare_length = 2 * math.log(len(close)) / -math.log(rate)
        fewest = max(fewest, math.ceil(rare_length))
    first, last = find_runs(is_zero)
    last = last + 1  # the row before a zero return belongs to the run
    is_long = last - first + 1 >= fewest
    runs = np.column_stack([first, last])[is_long]
    summary = f"rows in runs of {fewest} or more identical closes"

    def describe_run(first: int, last: int) -> str:
        return f": {last - first + 1} rows at {close[first]:.10g}"

    return _run_findings(bars, "stale_run", summary, runs, describe_run)


def find_repeated_blocks(bars: pl.DataFrame) -> list[Finding]:
    """Blocks of moving bars whose prices are, row for row, those of an earlier block.

    Rows are weighed in bits, minus the log of the share of rows with the same shape and move. A
    block is as long as chance needs not to repeat it anywhere in the series, so that coarse prices
    need longer ones.
    """
    close = pl.col("Close")
    shape = [(pl.col(name) - close).round(9).alias(name) for name in PRICE_COLUMNS[:-1]]
    shapes = bars.select(*shape, close.diff().round(9))
    num_alike = shapes.select(pl.len().over(PRICE_COLUMNS)).to_series()
    bits = -np.log2(num_alike / len(bars))
    bits_before = np.append(0.0, np.cumsum(bits))
    # Neighbouring bars are alike, so rows carry less than their share of the bits.
    fewest_bits = BLOCK_BITS * 2 * math.log2(max(len(bars), 2))
    all_bits = max(bits_before[-1], 1e-9)
    num_rows = math.ceil(fewest_bits * len(bars) / all_bits)
    block = max(MIN_BLOCK_ROWS, num_rows)
    num_starts = len(bars) - block + 1
    if num_starts < 2 or block > MAX_BLOCK_ROWS:
        return []

    row_hash = bars.select(PRICE_COLUMNS).hash_rows(seed=1).to_numpy()
    block_hash = np.zeros(num_starts, dtype=np.uint64)
    for offset in range(block):
        block_hash = block_hash * _HASH_FACTOR + row_hash[offset : offset + num_starts]
    is_move = np.diff(bars["Close"].to_numpy()) != 0
    num_moves = np.append(0, np.cumsum(is_move))
    moves_inside = num_moves[block - 1 :] - num_moves[:num_starts]
    is_moving = pl.Series(moves_inside >= MIN_BLOCK_MOVES)

    starts = pl.DataFrame({"hash": block_hash, "start": np.arange(num_starts)})
    earliest = pl.col("start").min().over("hash")
    sources = starts.filter(is_moving).with_columns(source=earliest)
    copies = sources.filter(pl.col("start") > pl.col("source"))
    rows_of_copies = np.add.outer(copies["start"].to_numpy(), np.arange(block))
    is_copy = np.zeros(len(bars), dtype=bool)
    is_copy[rows_of_copies] = True
    first, last = find_runs(is_copy)
    # A quiet time of few price steps has fewer bits than others.
    bits_of_run = bits_before[last + 1] - bits_before[first]
    is_rare = bits_of_run >= fewest_bits
    runs = np.column_stack([first, last])[is_rare]
    source_of = dict(copies.select("start", "source").rows())
    summary = f"rows in copies of {block} or more moving bars"

    def describe_run(first: int, last: int) -> str:
        del last
        source = bars["Datetime"][source_of[first]]
        return f" repeats the bars from {show_stamp(source)}"

    return _run_findings(bars, "repeated_block", summary, runs, describe_run)
