"""Whether prices make sense as prices: missing or impossible values, spikes, stale stretches, copied stretches.

Enters: the bars of one asset. Leaves: findings. Rows are judged by their neighbours alone, never by outside knowledge.
Paper: "Data-quality masks" (what the events room later masks row by row; here the user sees it first).
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from vaiom.market.findings import Finding, Severity, clock_time, finding, row_finding, runs
from vaiom.market.folder import PRICE_COLUMNS

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


def value_findings(bars: pl.DataFrame) -> list[Finding]:
    """Rows that are wrong by themselves: nulls, prices not above zero, High or Low inside the body."""
    prices = pl.col(*PRICE_COLUMNS)
    above = pl.max_horizontal("Open", "Close", "Low") - pl.col("High")
    below = pl.col("Low") - pl.min_horizontal("Open", "Close", "High")
    flags = bars.select(
        pl.any_horizontal(~prices.is_finite().fill_null(False)).alias("missing"),
        pl.any_horizontal(prices <= 0).fill_null(False).alias("non_positive"),
        (pl.max_horizontal(above, below) > _ROUNDING * pl.max_horizontal(prices.abs()))
        .fill_null(False)
        .alias("senseless"),
        (pl.col("Volume") < 0).fill_null(False).alias("negative_volume"),
    )
    missing, non_positive, senseless, negative_volume = (flags[name].to_numpy() for name in flags.columns)
    return [
        *row_finding("missing_price", Severity.WARNING, "rows with a price that is null or infinite", bars, missing),
        *row_finding(
            "non_positive_price", Severity.ERROR, "rows with a price that is not above zero", bars, non_positive
        ),
        *row_finding(
            "ohlc_sense", Severity.WARNING, "rows whose High or Low lies inside Open and Close", bars, senseless
        ),
        *row_finding("negative_volume", Severity.WARNING, "rows with a volume below zero", bars, negative_volume),
    ]


def neighbour_findings(bars: pl.DataFrame) -> list[Finding]:
    """Rows that are wrong beside others; `bars` are sorted, with unique stamps and prices above zero."""
    return [*_spikes(bars), *_stale_runs(bars), *_repeated_blocks(bars)]


def zero_return_share(bars: pl.DataFrame) -> float | None:
    """Share of rows whose Close equals the one before; None where no two rows can be compared."""
    return bars.select((pl.col("Close").diff() == 0).mean()).item()  # type: ignore[no-any-return]


def _spikes(bars: pl.DataFrame) -> list[Finding]:
    """A Close, or a High or Low, many local scales away from both neighbours, with the price back one bar later."""
    log = {name: pl.col(name).log() for name in PRICE_COLUMNS}
    ret, ret_next = log["Close"].diff(), log["Close"].diff().shift(-1)
    # Half of the range beside the return: quiet prices, quantised, have a median return of zero.
    scale = pl.max_horizontal(_local_median(ret.abs()), _local_median((log["High"] - log["Low"]) / 2))
    away = pl.min_horizontal(ret.abs(), ret_next.abs())
    back = (ret + ret_next).abs() <= _SPIKE_REST * away
    excursion = pl.when(back).then(away).otherwise(0.0)
    body = (log["Open"], log["Close"])
    above = log["High"] - pl.max_horizontal(*body, log["High"].shift(), log["High"].shift(-1))
    below = pl.min_horizontal(*body, log["Low"].shift(), log["Low"].shift(-1)) - log["Low"]
    spike = pl.max_horizontal(excursion, above, below) > _SPIKE_SCALES * scale
    rows = bars.select(spike=((scale > 0) & spike).fill_null(False))["spike"].to_numpy()
    return row_finding("spike", Severity.WARNING, "one-bar excursions that revert", bars, rows)


def _local_median(value: pl.Expr) -> pl.Expr:
    return value.rolling_median(_LOCAL_ROWS, min_samples=_FEWEST_LOCAL_ROWS, center=True)


def _stale_runs(bars: pl.DataFrame) -> list[Finding]:
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
    first, last = runs(zero)
    last = last + 1  # the row before a zero return belongs to the run
    long = last - first + 1 >= fewest
    first, last = first[long], last[long]
    stamps = bars["Datetime"]
    return finding(
        "stale_run",
        Severity.WARNING,
        int((last - first + 1).sum()),
        f"rows in runs of {fewest} or more identical closes",
        (
            f"{clock_time(stamps[int(a)])} to {clock_time(stamps[int(b)])}: {b - a + 1} rows at {close[a]:.10g}"
            for a, b in zip(first, last, strict=True)
        ),
    )


def _repeated_blocks(bars: pl.DataFrame) -> list[Finding]:
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
    source_of = dict(zip(copies["start"], copies["source"], strict=True))
    stamps = bars["Datetime"]
    first, last = runs(copied)
    return finding(
        "repeated_block",
        Severity.WARNING,
        int(copied.sum()),
        f"rows in copies of {block} or more moving bars",
        (
            f"{clock_time(stamps[int(a)])} to {clock_time(stamps[int(b)])} repeats the bars from "
            f"{clock_time(stamps[source_of[int(a)]])}"
            for a, b in zip(first, last, strict=True)
        ),
    )


def _telling_block(bars: pl.DataFrame) -> int:
    """How many rows must repeat before chance is ruled out: the more, the fewer shapes the bars of an asset have."""
    close = pl.col("Close")
    shape = [(pl.col(name) - close).round(_DECIMALS).alias(name) for name in PRICE_COLUMNS[:-1]]
    num_like = bars.select(*shape, close.diff().round(_DECIMALS)).group_by(PRICE_COLUMNS).len()["len"]
    bits_per_row = num_like.entropy(base=2, normalize=True) or 0.0
    bits_of_all_pairs = 2 * math.log2(max(len(bars), 2))
    if not bits_per_row:
        return _LONGEST_BLOCK
    # Neighbouring bars are alike, so a row tells less than its share of the entropy.
    return max(_BLOCK, math.ceil(_SAFETY * bits_of_all_pairs / bits_per_row))
