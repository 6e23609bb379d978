"""Proofs of duplicates and lead-lag: what returns alone tell of copied bars and of wrong clocks.

The returns of each asset enter, proofs leave. Held-out bars that lie in Train under another symbol
or time would be learned by heart; an asset whose clock runs early tells the others' future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vaiom.auditing.cuts import EPOCH_WEEKDAY, WEEKDAYS
from vaiom.auditing.proof import Proof, claim
from vaiom.baselines.base import Rows
from vaiom.corpus.store import Corpus

SAME_SIGNS = 32
"""Successive moves with the same signs make a candidate; as many more are compared by size."""
SAME_MOVES = 0.9
"""Correlation of sizes from which a candidate is a copy; prices that move by single ticks have
none.
"""
LARGEST_MOVE = 4.0
"""Where sizes are cut off, in median absolute moves."""
LAGS = 2 * SAME_SIGNS
"""Bars by which an asset may run ahead; copies that are further apart are duplicates."""
BLOCK = 500
"""Bars in which a lag may hide: a clock can be wrong for a summer."""
STANDARD_ERRORS = 6.0
"""Of a correlation that is zero, beyond which a lag is no chance."""
MIN_SHARED = 200
"""Bars in which both assets moved, below which a correlation is not judged."""
DAY_SECONDS = 86_400
WEEK = np.timedelta64(7, "D")
FIRST_YEAR_OF_EARLY_MARCH = np.datetime64("2007", "Y")
"""America's summer time begins in March and ends in November from then on."""
LEAST_SQUARES = 1e-12
"""In place of a product of variances that is zero."""

Span = tuple[np.int64, np.int64]
"""First and last target of a split, in seconds."""
Sizes = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint64]


class Returns(NamedTuple):
    """The log returns of one asset, in the order of time; arrays of (bars,)."""

    seconds: npt.NDArray[np.int64]
    log_ret: npt.NDArray[np.float64]

    def moves(self) -> Returns:
        """The bars that moved, with sizes in median absolute moves, cut off at the largest."""
        moved = np.isfinite(self.log_ret) & (self.log_ret != 0)
        sizes = self.log_ret[moved]
        if len(sizes):
            sizes = sizes / np.median(np.abs(sizes))
        sizes = np.clip(sizes, -LARGEST_MOVE, LARGEST_MOVE)
        return Returns(self.seconds[moved], sizes)


def returns_of_corpus(corpus: Corpus) -> dict[str, Returns]:
    """The stored returns of each asset."""
    seconds = corpus.columns["timestamp"]
    log_ret = corpus.columns["log_ret"]
    slices = corpus.asset_slices.items()
    return {symbol: Returns(seconds[rows], log_ret[rows]) for symbol, rows in slices}


def spans_of(corpus: Corpus, splits: Mapping[str, Rows]) -> dict[str, Span]:
    """First and last target, in seconds, of each split that has any."""
    stamps = corpus.target_timestamps.astype("datetime64[s]").astype(np.int64)
    spans = {}
    for name, rows in splits.items():
        if len(rows):
            spans[name] = (stamps[rows].min(), stamps[rows].max())
    return spans


class ReturnWindow(NamedTuple):
    """Successive moves of one asset, at a place in its moves."""

    symbol: str
    moves: Returns
    place: int

    @property
    def second(self) -> int:
        """When it begins."""
        return int(self.moves.seconds[self.place])

    def sizes(self) -> npt.NDArray[np.float64]:
        """Absolute sizes of its moves less their mean, as a correlation needs them."""
        own = slice(self.place, self.place + 2 * SAME_SIGNS)
        sizes = np.abs(self.moves.log_ret[own])
        return np.asarray(sizes - sizes.mean())

    def split(self, spans: Mapping[str, Span]) -> str:
        """The split in which it begins."""
        for name, (first, last) in spans.items():
            if first <= self.second <= last:
                return name
        return "no split"

    def describe(self, split: str) -> str:
        """Its asset, start and split, in words."""
        return f"{self.symbol} from {np.datetime64(self.second, 's')} ({split})"


def _are_copies(one: ReturnWindow, other: ReturnWindow) -> bool:
    """Whether the sizes of moves agree; assets that move together at one time are no copies."""
    if one.second == other.second:
        return False
    x = one.sizes()
    y = other.sizes()
    spread = np.sqrt((x @ x) * (y @ y))
    return bool(x @ y >= SAME_MOVES * spread > 0)


@claim("duplicates", "no stretch of returns comes again at another time, in another split or asset")
def prove_duplicates(
    proof: Proof, returns: Mapping[str, Returns], spans: Mapping[str, Span]
) -> None:
    """Find copies under another symbol or stamp, scaled, turned upside down or with a little noise.

    Windows whose signs agree, or are all opposite, are candidates; those whose sizes agree too are
    copies. A copy inside one split is only noted: it teaches nothing about what is held out. Of
    each pair of assets and splits the first copy is told.
    """
    codes = {symbol: _sign_codes(each.moves()) for symbol, each in returns.items()}
    seen = set()
    for one, other in _twins(returns, codes):
        if not _are_copies(one, other):
            continue
        split = one.split(spans)
        other_split = other.split(spans)
        key = (one.symbol, other.symbol, split, other_split)
        if key not in seen:
            seen.add(key)
            copy = f"{one.describe(split)} comes again as {other.describe(other_split)}"
            if split == other_split:
                proof.note(f"inside one split, {copy}")
            else:
                proof.check(False, copy)
    proof.count += sum(map(len, codes.values()))
    proof.note(f"stretches of {2 * SAME_SIGNS} moves")


def _twins(
    returns: Mapping[str, Returns], codes: Mapping[str, Codes]
) -> Iterator[tuple[ReturnWindow, ReturnWindow]]:
    """Pairs of windows whose signs agree or are all opposite, by the codes of their signs."""
    symbols = list(returns)
    sizes = [len(each) for each in codes.values()]
    ends = np.cumsum(sizes)
    moves = [each.moves() for each in returns.values()]

    def window(index: np.intp) -> ReturnWindow:
        asset = int(np.searchsorted(ends, index, side="right"))
        place = int(index - ends[asset]) + sizes[asset]
        return ReturnWindow(symbols[asset], moves[asset], place)

    code = np.concatenate(list(codes.values()))
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    # Every window that has a twin is beside one of them.
    for first in np.flatnonzero(ordered[1:] == ordered[:-1]):
        yield window(order[first]), window(order[first + 1])


def _sign_codes(moves: Returns) -> Codes:
    """One number for the signs of each run of moves, the same for a run and its mirror image."""
    up = moves.log_ret > 0
    size = max(0, len(up) - 2 * SAME_SIGNS + 1)
    first = up[:size]
    codes = np.zeros(size, np.uint64)
    for lag in range(SAME_SIGNS):
        differs = up[lag : lag + size] != first
        codes |= differs.astype(np.uint64) << np.uint64(lag)
    return codes


@claim("lead-lag", "assets that move together do so at the same stamp, not hours apart")
def prove_lead_lag(proof: Proof, returns: Mapping[str, Returns]) -> None:
    """Find an asset that moves with another one at a lag, and not at once.

    Stamped hours early, it tells the other's future. The correlation at a lag must be beyond chance
    and twice that at one stamp, over all bars or in a part of them: a clock may be wrong for a
    summer only, on one weekday, or while Europe and America have other clocks. Markets that open in
    turn follow each other, so days are not examined.
    """
    symbols = list(returns)
    moves = [each.moves() for each in returns.values()]
    if len(moves) < 2 or _median_step(moves) >= DAY_SECONDS:
        proof.note(
            "not run: needs several assets, and bars under a day: markets of one day close in turn"
        )
        return
    stamps = np.unique(np.concatenate([each.seconds for each in moves]))
    sizes = np.zeros((len(moves), len(stamps)), np.float32)
    for row, each in zip(sizes, moves, strict=True):
        places = np.searchsorted(stamps, each.seconds)
        row[places] = each.log_ret
    last = max(0, len(stamps) - BLOCK)
    blocks = [slice(None)]
    for start in (*range(0, last, BLOCK), last):  # the newest bars are a whole block too
        blocks.append(slice(start, start + BLOCK))
    largest = 0.0
    for block in blocks:
        since = np.datetime64(int(stamps[block][0]), "s")
        found = _find_leaders(proof, symbols, sizes[:, block], f"from {since} on")
        largest = max(largest, found)
    for when, own in _parts_of_the_calendar(stamps).items():
        found = _find_leaders(proof, symbols, sizes, when, own)
        largest = max(largest, found)
    proof.note(
        f"largest correlation {largest:.2f} at lags of 1 to {LAGS} bars, in blocks of {BLOCK}, on "
        f"each weekday and between the changes of European and American clocks"
    )


def _parts_of_the_calendar(stamps: npt.NDArray[np.int64]) -> dict[str, Rows]:
    """Places of stamps, in seconds, where a clock may be wrong in every year or week.

    On each day of the week; and in the weeks of spring and autumn in which America has changed its
    clocks and Europe has not, or the other way round.
    """
    times = stamps.astype("datetime64[s]")
    days = times.astype("datetime64[D]")
    weekdays = (days.astype(np.int64) + EPOCH_WEEKDAY) % len(WEEKDAYS)
    parts = {}
    for number, name in enumerate(WEEKDAYS):
        parts[f"on {name}s"] = np.flatnonzero(weekdays == number)
    between = {"spring": np.zeros(len(times), bool), "autumn": np.zeros(len(times), bool)}
    for year in np.unique(days.astype("datetime64[Y]")):
        for season, (first, last) in _weeks_of_two_clocks(year).items():
            between[season] |= (days >= first) & (days < last)
    for season, own in between.items():
        name = f"in the weeks of {season} with summer time on one side of the Atlantic alone"
        parts[name] = np.flatnonzero(own)
    return {name: own for name, own in parts.items() if len(own) >= MIN_SHARED}


def _weeks_of_two_clocks(year: np.datetime64) -> dict[str, tuple[np.datetime64, np.datetime64]]:
    """The days from the first change of clocks to the second, by season.

    Europe changes on the last Sundays of March and October, America since 2007 on the second Sunday
    of March and the first of November, and before on the first of April and with Europe.
    """
    january = year.astype("datetime64[M]")
    march = _first_sunday(january + 2)
    april = _first_sunday(january + 3)
    november = _first_sunday(january + 10)
    europe = april - WEEK
    october = november - WEEK
    if year < FIRST_YEAR_OF_EARLY_MARCH:
        return {"spring": (europe, april)}
    return {"spring": (march + WEEK, europe), "autumn": (october, november)}


def _first_sunday(month: np.datetime64) -> np.datetime64:
    return np.busday_offset(month.astype("datetime64[D]"), 0, roll="forward", weekmask="Sun")


def _find_leaders(
    proof: Proof, symbols: Sequence[str], sizes: Sizes, when: str, own: Rows | None = None
) -> float:
    """Record who runs ahead of whom in moves (assets, bars); returns the largest correlation.

    `own` are the places of the bars that are asked about, all of them by default, and `when` says
    in findings which these are.
    """
    num_bars = sizes.shape[1]
    now = np.arange(num_bars) if own is None else own
    together, met = _correlation(sizes, now, 0)
    largest = 0.0
    for lag in range(1, min(LAGS, num_bars - 1) + 1):
        apart, shared = _correlation(sizes, now[now < num_bars - lag], lag)
        np.fill_diagonal(apart, 0)
        enough = np.minimum(shared, met) >= MIN_SHARED
        strength = np.abs(apart)
        largest = max(largest, float(strength.max()))
        chance = STANDARD_ERRORS / np.sqrt(np.maximum(shared, 1))
        at_once = 2 * np.abs(together)
        beyond = strength > np.maximum(chance, at_once)
        proof.count += apart.size
        for leader, follower in np.argwhere(beyond & enough):
            ahead = f"{symbols[leader]} runs {lag} bars ahead of {symbols[follower]}"
            values = (
                f"correlation {apart[leader, follower]:+.2f}, "
                f"at one stamp {together[leader, follower]:+.2f}"
            )
            proof.check(False, f"{ahead} {when}: {values}", count=0)
    return largest


def _median_step(moves: Sequence[Returns]) -> int:
    """Seconds between successive moves of an asset."""
    steps = np.concatenate([np.diff(each.seconds) for each in moves])
    return int(np.median(steps)) if len(steps) else 1


def _correlation(sizes: Sizes, now: Rows, lag: int) -> tuple[Sizes, Sizes]:
    """Correlations (assets, assets) between each at some bars and each `lag` bars later.

    Bars count in which both moved; the second matrix is how many there are.
    """
    one = sizes[:, now]
    other = sizes[:, now + lag]
    one_moved = (one != 0).astype(np.float32)
    other_moved = (other != 0).astype(np.float32)
    shared = one_moved @ other_moved.T
    products = one @ other.T
    variance_now = (one * one) @ other_moved.T
    variance_later = one_moved @ (other * other).T
    spread = np.sqrt(np.maximum(variance_now * variance_later, LEAST_SQUARES))
    return products / spread, shared
