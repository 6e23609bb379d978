"""Two proofs about the returns themselves: no held-out stretch comes a second time, and no asset runs ahead of others.

A pipeline cannot be blamed for either, and no cut shows them: the future lies under another symbol or stamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vaiom.audit.pipeline import Events
from vaiom.audit.proof import Proof, claim
from vaiom.events.corpus import Corpus

SAME_SIGNS = 32
"""Successive moves whose signs agree make a candidate; so many more are then compared by size."""
SAME_MOVES = 0.9
"""Correlation of sizes, cut off at `LARGEST_MOVE`, from which a candidate is a copy; single ticks have none."""
LARGEST_MOVE = 4.0
"""In median absolute moves."""
LAGS = 2 * SAME_SIGNS
"""Bars: copies that are further apart than these are duplicates."""
BLOCK = 500
"""Bars in which a lag may hide: a clock can be wrong for a summer."""
STANDARD_ERRORS = 6.0
MIN_SHARED = 200
NO_SPLIT = "no split"

Span = tuple[np.int64, np.int64]


class Returns(NamedTuple):
    """Of one asset, in the order of time."""

    seconds: npt.NDArray[np.int64]
    log_ret: npt.NDArray[np.float64]


def returns_of_corpus(corpus: Corpus) -> dict[str, Returns]:
    columns = corpus.columns
    return {s: Returns(columns["timestamp"][rows], columns["log_ret"][rows]) for s, rows in corpus.asset_slices.items()}


def _moves(returns: Returns) -> Returns:
    """The bars that moved, in median absolute moves."""
    moved = np.isfinite(returns.log_ret) & (returns.log_ret != 0)
    sizes = returns.log_ret[moved]
    scale = np.median(np.abs(sizes)) if len(sizes) else 1.0
    return Returns(returns.seconds[moved], np.clip(sizes / scale, -LARGEST_MOVE, LARGEST_MOVE))


def spans_of(events: Events) -> dict[str, Span]:
    """First and last target of each split that has any."""
    stamps = events.target_timestamps.astype("datetime64[s]").astype(np.int64)
    return {name: (stamps[rows].min(), stamps[rows].max()) for name, rows in events.splits.items() if len(rows)}


@claim("duplicates", "no stretch of returns comes again at another time, in another split or asset")
def prove_duplicates(proof: Proof, returns: Mapping[str, Returns], spans: Mapping[str, Span]) -> None:
    """Copies under another symbol or stamp; scaled, turned upside down or with a little noise they are copies still."""
    symbols, moves = list(returns), [_moves(each) for each in returns.values()]
    codes = [_sign_codes(each.log_ret > 0) for each in moves]
    code = np.concatenate(codes)
    asset = np.repeat(np.arange(len(codes)), [len(each) for each in codes])
    place = np.concatenate([np.arange(len(each)) for each in codes])
    order = np.argsort(code, kind="stable")
    # Every window that has a twin is beside one of them.
    twins = np.flatnonzero(code[order][1:] == code[order][:-1])
    step, seen = _usual_step(moves), set()
    for pair in zip(order[twins], order[twins + 1], strict=True):
        sizes = [np.abs(moves[asset[each]].log_ret[place[each] :][: 2 * SAME_SIGNS]) for each in pair]
        when = [int(moves[asset[each]].seconds[place[each]]) for each in pair]
        x, y = (each - each.mean() for each in sizes)
        same = x @ y >= SAME_MOVES * np.sqrt((x @ x) * (y @ y)) > 0
        # Assets that move together at one time are no copies.
        if not same or abs(when[0] - when[1]) < 2 * SAME_SIGNS * step:
            continue
        splits = [next((name for name, span in spans.items() if span[0] <= t <= span[1]), NO_SPLIT) for t in when]
        names = [symbols[asset[each]] for each in pair]
        if (key := (*names, *splits)) not in seen:
            seen.add(key)
            both = zip(names, when, splits, strict=True)
            said = " comes again as ".join(f"{s} from {np.datetime64(t, 's')} ({split})" for s, t, split in both)
            if splits[0] == splits[1]:
                proof.notes.append(f"inside one split, {said}")
            else:
                proof.check(False, said)
    proof.count += len(code)
    proof.notes.append(f"stretches of {2 * SAME_SIGNS} moves")


def _sign_codes(up: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """One number for the signs of each run of moves, the same for a run and its mirror image."""
    size = max(0, len(up) - 2 * SAME_SIGNS + 1)
    codes = np.zeros(size, np.uint64)
    for lag in range(SAME_SIGNS):
        codes |= (up[lag : lag + size] != up[:size]).astype(np.uint64) << np.uint64(lag)
    return codes


def _usual_step(moves: list[Returns]) -> int:
    steps = np.concatenate([np.diff(each.seconds) for each in moves])
    return int(np.median(steps)) if len(steps) else 1


@claim("lead-lag", "assets that move together do so at the same stamp, not hours apart")
def prove_lead_lag(proof: Proof, returns: Mapping[str, Returns]) -> None:
    """An asset stamped hours early tells the others' future: it then moves with them at a lag and not at once."""
    symbols, moves = list(returns), [_moves(each) for each in returns.values()]
    if len(moves) < 2 or _usual_step(moves) >= 86_400:
        why = "needs several assets, and bars shorter than a day: markets of one day close in turn"
        proof.notes.append(f"not run: {why}")
        return
    stamps = np.unique(np.concatenate([each.seconds for each in moves]))
    sizes = np.zeros((len(moves), len(stamps)), np.float32)
    for row, each in zip(sizes, moves, strict=True):
        row[np.searchsorted(stamps, each.seconds)] = each.log_ret
    starts = range(0, max(1, len(stamps) - BLOCK), BLOCK)
    largest = 0.0
    for part in (slice(None), *(slice(start, start + BLOCK) for start in starts)):
        block = sizes[:, part]
        together, _ = _correlation(block, 0)
        for lag in range(1, min(LAGS, block.shape[1] - 1) + 1):
            apart, shared = _correlation(block, lag)
            np.fill_diagonal(apart, 0)
            largest = max(largest, float(np.abs(apart).max()))
            allowed = np.maximum(STANDARD_ERRORS / np.sqrt(np.maximum(shared, 1)), 2 * np.abs(together))
            proof.count += apart.size
            for leader, follower in np.argwhere((np.abs(apart) > allowed) & (shared >= MIN_SHARED)):
                since = np.datetime64(int(stamps[part][0]), "s")
                ahead = f"{symbols[leader]} runs {lag} bars ahead of {symbols[follower]} from {since} on"
                found = f"{apart[leader, follower]:+.2f}, at one stamp {together[leader, follower]:+.2f}"
                proof.check(False, f"{ahead}: correlation {found}")
    proof.notes.append(f"largest correlation {largest:.2f} at lags of 1 to {LAGS} bars, in blocks of {BLOCK}")


def _correlation(sizes: npt.NDArray[np.float32], lag: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(assets, assets) between each now and each `lag` bars later, where both moved, and how often that was."""
    now, later = sizes[:, : sizes.shape[1] - lag], sizes[:, lag:]
    moved_now, moved_later = (now != 0).astype(np.float32), (later != 0).astype(np.float32)
    squares = ((now * now) @ moved_later.T) * (moved_now @ (later * later).T)
    return (now @ later.T) / np.sqrt(np.maximum(squares, 1e-12)), moved_now @ moved_later.T
