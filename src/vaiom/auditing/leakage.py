"""Proofs (a) to (d), of prices and returns: nothing that a row knows, learns from or answers comes
from its future.

Paper: Methods, "Continuous dynamic features" (information time), "Corpus Construction and Split
Protocol" (fitted on Train, never refitted) and "Supervision Scope".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from vaiom.auditing.pipeline import Array, Bars, Pipeline
from vaiom.auditing.proof import AuditConfig, Proof, claim
from vaiom.baselines.base import Rows
from vaiom.corpus.splits import SEALED, TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.features.fields import ANY_MASK, MASK_BITS
from vaiom.features.quantities import MAX_LOG_MOVE

if TYPE_CHECKING:
    import polars as pl

KNOWN = ("cont", "extra", "disc", "meta", "sigma20", "mask_any")  # of a row itself
TARGETS = (
    "target_return",
    "target_gap",
    "target_vol_regime",
    "log_ret_next",
    "valid_base",
)  # of the row after it
# Rows of each asset whose windows and answers are compared: next to the cut and before it.
ROWS_SHOWN = 8
DAMAGES = (
    "scrambled",
    "deleted",
    "shifted",
)  # of the bars after a cut: prices and volumes, all of it, the clock
MAX_SHIFT_HOURS = 1_000
LEARNING_ROWS, FUTURE_ROWS = (
    64,
    48,
)  # around a short cut: before the first whole window, and after the cut
DAY, LONG_WEEKEND = np.timedelta64(1, "D"), np.timedelta64(84, "h")
HOURS_OF_WEEK = 168
PROBABILITY_TOLERANCE = 1e-5  # matrix products of other shapes may round FP32 sums otherwise
ASKED_ALONE, ASKED_TOGETHER = 12, 192
# Successive moves with the same signs make a candidate; as many more are then compared by size.
SAME_SIGNS = 32
# Correlation of sizes from which a candidate is a copy; prices that move by single ticks have none.
SAME_MOVES = 0.9
LARGEST_MOVE = 4.0  # where sizes are cut off, in median absolute moves
LAGS = 2 * SAME_SIGNS  # bars; copies that are further apart are duplicates
BLOCK = 500  # bars in which a lag may hide: a clock can be wrong for a summer
STANDARD_ERRORS, MIN_SHARED = 6.0, 200

Span = tuple[np.int64, np.int64]


@claim("prices", "no bar holds the range of the hours, days or weeks that follow it")
def prove_prices(proof: Proof, bars: Bars) -> None:
    from vaiom.market.check import check_bars

    for symbol, frame in bars.items():
        # This leak is inside one bar, so that no cut shows it.
        findings = check_bars(symbol, frame).findings
        leaks = [finding for finding in findings if finding.kind == "hidden_higher_timeframe_bar"]
        what = "; ".join(f"{leak.count} {leak.summary}, first {leak.examples[0]}" for leak in leaks)
        proof.check(not leaks, f"{symbol}: {what}", len(frame))


def damage_after(
    bars: Bars, cut: np.datetime64, how: str, rng: Generator
) -> dict[str, pl.DataFrame]:
    """The same bars up to the cut, and damaged bars after it."""
    import polars as pl

    from vaiom.market.folder import NUMBER_COLUMNS

    out = {}
    for symbol, frame in bars.items():
        later = frame["Datetime"].to_numpy() > cut
        tail = frame.filter(later)
        if how == "scrambled":  # the noise matters where a single bar is left to reorder
            noise = pl.Series(rng.lognormal(0, 0.1, len(tail)))
            tail = tail.with_columns(
                pl.col(NUMBER_COLUMNS).gather(rng.permutation(len(tail))) * noise
            )
        elif how == "shifted":
            tail = tail.with_columns(
                tail["Datetime"] + timedelta(hours=int(rng.integers(1, MAX_SHIFT_HOURS)))
            )
        else:
            tail = tail.clear()
        out[symbol] = frame.filter(~later).vstack(tail)
    return out


@claim(
    "a. future",
    "bars after cuts, random and where rare leaks live, scrambled, deleted, shifted: everything "
    "known up to there",
)
def prove_future(
    proof: Proof, pipeline: Pipeline, bars: Bars, before: Corpus, config: AuditConfig
) -> None:
    rng, tokenizer = np.random.default_rng(config.seed), before.tokenizer
    # Cuts lie where every asset has begun, or there would be nothing of it to compare.
    begun = max(before.timestamps[rows.start] for rows in before.asset_slices.values())
    stamps = np.unique(before.timestamps)
    stamps = stamps[(stamps >= begun) & (stamps < stamps[-1])]
    in_train = stamps < np.datetime64(before.splits.train_end)
    parts = [part for part in (stamps[in_train], stamps[~in_train]) if len(part)]
    cuts = (
        [rng.choice(parts[number % len(parts)]) for number in range(config.cuts)] if parts else []
    )
    for cut in cuts:
        for how in DAMAGES:
            after = pipeline.corpus(damage_after(bars, cut, how, rng), tokenizer)
            _compare(proof, pipeline, before, after, cut, f"{how} after {cut}", rng)
    proof.notes.append(f"{len(cuts)} cuts, {len(DAMAGES)} kinds of damage")
    num_short, without_model = 0, replace(pipeline, predictor=None)
    for kind, places in rare_moments(bars).items() if config.rare_cuts else ():
        for cut in rng.choice(places, min(config.rare_cuts, len(places)), replace=False):
            near = {}  # the bars around the cut of each asset that has begun
            for symbol, frame in bars.items():
                if known := int(np.searchsorted(frame["Datetime"].to_numpy(), cut, side="right")):
                    near[symbol] = frame[
                        max(0, known - pipeline.model.context - LEARNING_ROWS) : known + FUTURE_ROWS
                    ]
            how = rng.choice(DAMAGES)
            old, new = (
                pipeline.corpus(each, tokenizer)
                for each in (near, damage_after(near, cut, how, rng))
            )
            _compare(proof, without_model, old, new, cut, f"{how} after {cut} ({kind})", rng)
            num_short += 1
    proof.notes.append(
        f"{num_short} short cuts: hours of the week, months, missing bars, week ends, holidays, "
        f"ends of assets"
    )


def rare_moments(bars: Bars) -> dict[str, Array]:
    """Moments where a leak of few rows would be, by what is there."""
    from vaiom.market.folder import PRICE_COLUMNS

    moments: dict[str, list[Array]] = {}
    for symbol, frame in bars.items():
        stamps = frame["Datetime"].to_numpy()
        if len(stamps) < FUTURE_ROWS:
            continue
        waits = np.diff(stamps)
        step, last, first = np.median(waits), stamps[:-1], stamps[1:]
        missing = ~np.isfinite(frame.select(PRICE_COLUMNS).to_numpy()).all(axis=1)
        gap, closed = (waits > step) & (waits <= DAY), waits > DAY
        weekend = closed & (waits <= LONG_WEEKEND)
        places = {
            "a bar without prices": stamps[missing],
            "before a missing bar": last[gap],
            "at a missing bar": last[gap] + step,
            "a week's last bar": last[weekend],
            "a week's first bar": first[weekend],
            "before a holiday": last[closed & ~weekend],
            "after a holiday": first[closed & ~weekend],
            "the asset's start": stamps[FUTURE_ROWS // 2 : FUTURE_ROWS // 2 + 1],
            "the asset's end": stamps[-2:-1],
        }
        moments |= {f"{symbol}, {kind}": [each] for kind, each in places.items()}
        hours = stamps.astype("datetime64[h]").astype(np.int64) % HOURS_OF_WEEK
        for hour in np.unique(hours):
            moments.setdefault(f"hour {hour} of the week", []).append(stamps[hours == hour])
        months = stamps.astype("datetime64[M]")
        for month in np.unique(months):
            moments.setdefault(f"in {month}", []).append(stamps[months == month])
    end = max(frame["Datetime"].to_numpy()[-1] for frame in bars.values())
    unique = {kind: np.unique(np.concatenate(each)) for kind, each in moments.items()}
    return {kind: each[each < end] for kind, each in unique.items() if (each < end).any()}


def _compare(
    proof: Proof,
    pipeline: Pipeline,
    before: Corpus,
    after: Corpus,
    cut: np.datetime64,
    what: str,
    rng: Generator,
) -> None:
    """Compare what two corpora know at a cut: columns, targets, splits, windows and a model's
    answers.
    """
    shown: list[tuple[Rows, Rows]] = []
    context, old_splits, new_splits = (
        pipeline.model.context,
        pipeline.splits(before),
        pipeline.splits(after),
    )
    for symbol, rows in before.asset_slices.items():
        new_rows = after.asset_slices.get(symbol, slice(0, 0))
        old, new = (
            _known_at(before, old_splits, rows, cut),
            _known_at(after, new_splits, new_rows, cut),
        )
        num_old, num_new = (len(each["timestamp"][1]) for each in (old, new))
        where = f"{symbol}, {what}"
        if not proof.check(
            num_old == num_new, f"{where}: {num_new} rows up to the cut instead of {num_old}"
        ):
            continue
        for name, (times, values) in old.items():
            _check_same(proof, values, new[name][1], times, f"{where}: {name}")
        if num_old >= context:
            last = np.arange(max(context - 1, num_old - ROWS_SHOWN), num_old)
            places = np.union1d(last, rng.integers(context - 1, num_old, ROWS_SHOWN))
            shown.append((rows.start + places, new_rows.start + places))
    if shown:
        old_shown, new_shown = (np.concatenate(part) for part in zip(*shown, strict=True))
        outputs = {"window": pipeline.windows}
        if pipeline.predictor:
            outputs["probabilities"] = pipeline.predictor.predict_proba
        for name, output in outputs.items():
            times = before.timestamps[old_shown]
            _check_same(
                proof,
                output(before, old_shown),
                output(after, new_shown),
                times,
                f"{what}: {name} of the row",
            )


def _known_at(
    corpus: Corpus, splits: Mapping[str, Rows], asset: slice, cut: np.datetime64
) -> dict[str, tuple[Array, Array]]:
    """By name, the times and values of everything about an asset that is known at a cut."""
    # Rows are in the order of time, so those that are known, and those whose target is, come first.
    rows = slice(asset.start, asset.start + int((corpus.timestamps[asset] <= cut).sum()))
    times, target_times = corpus.timestamps[rows], corpus.target_timestamps[rows]
    settled = slice(rows.start, rows.start + int((target_times <= cut).sum()))
    known = {
        "timestamp": (times, times),
        **{name: (times, getattr(corpus, name)[rows]) for name in KNOWN},
    }
    for name in TARGETS:
        known[f"target: {name.removeprefix('target_')}"] = (
            target_times,
            getattr(corpus, name)[settled],
        )
    for name, split in splits.items():
        own = np.sort(split[(split >= rows.start) & (split < rows.stop)])
        own = own[corpus.target_timestamps[own] <= cut]
        known[f"an event of {name}"] = corpus.target_timestamps[own], own - rows.start
    return known


def _check_same(proof: Proof, old: Array, new: Array, times: Array, what: str) -> None:
    """Compare along the first axis, NaN being equal to NaN; the first difference is named with its
    time.
    """
    if not proof.check(
        old.shape == new.shape, f"{what}: {len(new)} instead of {len(old)}", len(old)
    ) or not len(old):
        return
    differs = ((old != new) & ~((old != old) & (new != new))).any(axis=tuple(range(1, old.ndim)))
    proof.check(not differs.any(), f"{what} at {times[differs.argmax()]} changed", 0)


@claim(
    "b. refit",
    "everything fitted again with the bars after Train removed or scrambled: the same hashes",
)
def prove_refit(proof: Proof, pipeline: Pipeline, bars: Bars, corpus: Corpus, seed: int) -> None:
    rng, hashes = np.random.default_rng(seed), pipeline.hashes(corpus)
    last = np.datetime64(corpus.splits.train_end - timedelta(microseconds=1))
    for how in ("deleted", "scrambled"):
        damaged = damage_after(bars, last, how, rng).items()
        # The first bar of an asset that begins later stays: Train knows its name, and a bar alone
        # has no return.
        changed = {symbol: frame if len(frame) else bars[symbol][:1] for symbol, frame in damaged}
        try:
            again = pipeline.hashes(pipeline.corpus(changed))
        except Exception as error:  # a pipeline that fails without later bars had used them
            proof.check(
                False, f"later bars {how}: nothing could be fitted: {str(error).splitlines()[0]}"
            )
            continue
        for name, digest in hashes.items():
            proof.check(again.get(name) == digest, f"later bars {how}: {name} was fitted otherwise")
    proof.notes.append(", ".join(hashes))


@claim(
    "c. chronology",
    "splits follow each other and hold every valid target once; no sampled window holds a target "
    "outside Train",
)
def prove_chronology(proof: Proof, pipeline: Pipeline, corpus: Corpus) -> None:
    train_end, context, splits = (
        corpus.splits.train_end,
        pipeline.model.context,
        pipeline.splits(corpus),
    )
    end, times = np.datetime64(train_end), corpus.target_timestamps
    present = {name: times[rows] for name, rows in splits.items() if len(rows)}
    for (name, own), (later, later_times) in pairwise(present.items()):
        late = int((own >= later_times.min()).sum())
        proof.check(
            not late,
            f"{late} {name} events have a target at or after the first of {later}",
            len(own),
        )
    # An event is an asset and a target time, whatever its row number.
    starts = np.array([part.start for part in corpus.asset_slices.values()])
    chosen = np.concatenate(list(splits.values()))
    asset = np.searchsorted(starts, chosen, side="right")
    seconds = times[chosen].astype("datetime64[s]").astype(np.int64)
    _, counts = np.unique(np.stack([asset, seconds]), axis=1, return_counts=True)
    repeated = int((counts > 1).sum())
    proof.check(
        not repeated,
        f"{repeated} events of an asset and a target time are there more than once",
        len(chosen),
    )
    outside = times[splits[TRAIN]] >= end
    proof.check(
        not outside.any(),
        f"{outside.sum()} Train events have a target at or after {train_end}",
        len(outside),
    )
    for name, rows in splits.items():
        lacking = np.setdiff1d(valid_targets(corpus, name, pipeline.model.history), rows)
        at = times[lacking[0]] if len(lacking) else ""
        proof.check(
            not len(lacking),
            f"{name} lacks {len(lacking)} valid targets, the first at {at}",
            len(rows),
        )
    sampler = pipeline.sampler(corpus)
    for step in range(1, pipeline.train.steps + 1):
        ends = sampler.draw(step)
        crosses = ends - context + 1 < starts[np.searchsorted(starts, ends, side="right") - 1]
        proof.check(
            not crosses.any(),
            f"step {step}: {crosses.sum()} windows begin before their asset",
            len(ends),
        )
        targets = times[ends]  # the last ones of their windows
        late_targets = targets[~(targets < end)]  # a target that is not there yet is outside too
        problem = (
            f"step {step}: a window holds the target at "
            f"{', '.join(map(str, late_targets[:1]))}, after Train"
        )
        proof.check(not len(late_targets), problem, len(ends))
    proof.notes.append(f"{pipeline.train.steps} steps of the sampler")


def valid_targets(corpus: Corpus, split: str, history: int) -> Rows:
    """Row numbers of the events that a split must hold, from the stored columns and not by the code
    that evaluates.
    """
    columns, bounds = corpus.columns, corpus.splits
    spans = {TRAIN: (datetime.min, bounds.train_end), SEALED: (bounds.seal, datetime.max)}
    spans |= dict(
        zip((VALIDATION, *bounds.test_names), (bounds.validation, *bounds.tests), strict=True)
    )
    begin, end = spans[split]
    valid = []
    for rows in corpus.asset_slices.values():
        row = np.arange(rows.start + history - 1, rows.stop - 1)
        ret, stamps = columns["log_ret"][row + 1], corpus.timestamps[row + 1]
        with np.errstate(invalid="ignore"):
            moved = np.isfinite(ret) & (ret != 0) & (np.abs(ret) <= MAX_LOG_MOVE)
        clean = (columns["flags"][row] & ANY_MASK == 0) & (
            columns["flags"][row + 1] & MASK_BITS["missing"] == 0
        )
        inside = (stamps >= np.datetime64(begin)) & (stamps < np.datetime64(end))
        valid.append(row[moved & clean & inside])
    return np.concatenate(valid)


@claim("d. neighbours", "probabilities of an event alone, in order and among shuffled strangers")
def prove_neighbours(proof: Proof, pipeline: Pipeline, corpus: Corpus, seed: int) -> None:
    assert pipeline.predictor is not None
    predict, rng = partial(pipeline.predictor.predict_proba, corpus), np.random.default_rng(seed)
    rows = np.concatenate(list(pipeline.splits(corpus).values()))
    rows = np.sort(rng.choice(rows, min(ASKED_TOGETHER, len(rows)), replace=False))
    together = predict(rows)
    order, half = rng.permutation(len(rows)), len(rows) // 2
    few = rng.choice(len(rows), min(ASKED_ALONE, len(rows)), replace=False)
    pairs = {
        "in another order": (together[order], predict(rows[order])),
        "with half of its neighbours": (together[:half], predict(rows[:half])),
        "with the other half": (together[half:], predict(rows[half:])),
        "alone": (together[few], np.concatenate([predict(rows[[index]]) for index in few])),
    }
    largest = 0.0
    for how, (one, other) in pairs.items():
        difference = np.abs(one - other).max(axis=1, initial=0)
        bad = ~(difference <= PROBABILITY_TOLERANCE)  # NaN is bad too
        proof.check(
            not bad.any(),
            f"{bad.sum()} of {len(bad)} events have other probabilities {how}",
            len(bad),
        )
        largest = max(largest, float(difference.max(initial=0)))
    proof.notes.append(
        f"largest difference of a probability {largest:.1e}, tolerance {PROBABILITY_TOLERANCE:.0e}"
    )


class Returns(NamedTuple):
    """Of one asset, in the order of time."""

    seconds: npt.NDArray[np.int64]
    log_ret: npt.NDArray[np.float64]

    def moves(self) -> Returns:
        """The bars that moved, with sizes in median absolute moves, cut off at the largest."""
        moved = np.isfinite(self.log_ret) & (self.log_ret != 0)
        sizes = self.log_ret[moved]
        scale = np.median(np.abs(sizes)) if len(sizes) else 1.0
        return Returns(self.seconds[moved], np.clip(sizes / scale, -LARGEST_MOVE, LARGEST_MOVE))


def returns_of_corpus(corpus: Corpus) -> dict[str, Returns]:
    seconds, log_ret = corpus.columns["timestamp"], corpus.columns["log_ret"]
    return {
        symbol: Returns(seconds[rows], log_ret[rows])
        for symbol, rows in corpus.asset_slices.items()
    }


def spans_of(corpus: Corpus, splits: Mapping[str, Rows]) -> dict[str, Span]:
    """First and last target of each split that has any."""
    stamps = corpus.target_timestamps.astype("datetime64[s]").astype(np.int64)
    return {
        name: (stamps[rows].min(), stamps[rows].max()) for name, rows in splits.items() if len(rows)
    }


@claim("duplicates", "no stretch of returns comes again at another time, in another split or asset")
def prove_duplicates(
    proof: Proof, returns: Mapping[str, Returns], spans: Mapping[str, Span]
) -> None:
    """Copies under another symbol or stamp; scaled, turned upside down or with a little noise they
    are copies still.
    """
    symbols, moves = list(returns), [each.moves() for each in returns.values()]
    codes = [_sign_codes(each.log_ret > 0) for each in moves]
    code = np.concatenate(codes)
    asset = np.repeat(np.arange(len(codes)), [len(each) for each in codes])
    place = np.concatenate([np.arange(len(each)) for each in codes])
    order = np.argsort(code, kind="stable")
    # Every window that has a twin is beside one of them.
    twins = np.flatnonzero(code[order][1:] == code[order][:-1])
    seen = set()
    for pair in zip(order[twins], order[twins + 1], strict=True):
        sizes = [
            np.abs(moves[asset[each]].log_ret[place[each] :][: 2 * SAME_SIGNS]) for each in pair
        ]
        when = [int(moves[asset[each]].seconds[place[each]]) for each in pair]
        x, y = (each - each.mean() for each in sizes)
        same = x @ y >= SAME_MOVES * np.sqrt((x @ x) * (y @ y)) > 0
        # Assets that move together at one time are no copies.
        if not same or when[0] == when[1]:
            continue
        splits = [
            next((name for name, span in spans.items() if span[0] <= t <= span[1]), "no split")
            for t in when
        ]
        names = [symbols[asset[each]] for each in pair]
        if (key := (*names, *splits)) not in seen:
            seen.add(key)
            both = zip(names, when, splits, strict=True)
            copy = " comes again as ".join(
                f"{s} from {np.datetime64(t, 's')} ({split})" for s, t, split in both
            )
            if splits[0] == splits[1]:
                proof.notes.append(f"inside one split, {copy}")
            else:
                proof.check(False, copy)
    proof.count += len(code)
    proof.notes.append(f"stretches of {2 * SAME_SIGNS} moves")


def _sign_codes(up: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """One number for the signs of each run of moves, the same for a run and its mirror image."""
    size = max(0, len(up) - 2 * SAME_SIGNS + 1)
    codes = np.zeros(size, np.uint64)
    for lag in range(SAME_SIGNS):
        codes |= (up[lag : lag + size] != up[:size]).astype(np.uint64) << np.uint64(lag)
    return codes


def _median_step(moves: list[Returns]) -> int:
    steps = np.concatenate([np.diff(each.seconds) for each in moves])
    return int(np.median(steps)) if len(steps) else 1


@claim("lead-lag", "assets that move together do so at the same stamp, not hours apart")
def prove_lead_lag(proof: Proof, returns: Mapping[str, Returns]) -> None:
    """An asset stamped hours early tells the others' future: it then moves with them at a lag and
    not at once.
    """
    symbols, moves = list(returns), [each.moves() for each in returns.values()]
    if len(moves) < 2 or _median_step(moves) >= 86_400:
        proof.notes.append(
            "not run: needs several assets, and bars under a day: markets of one day close in turn"
        )
        return
    stamps = np.unique(np.concatenate([each.seconds for each in moves]))
    sizes = np.zeros((len(moves), len(stamps)), np.float32)
    for row, each in zip(sizes, moves, strict=True):
        row[np.searchsorted(stamps, each.seconds)] = each.log_ret
    last = max(0, len(stamps) - BLOCK)  # the newest bars are a whole block too
    starts = (*range(0, last, BLOCK), last)
    largest = 0.0
    for part in (slice(None), *(slice(start, start + BLOCK) for start in starts)):
        block = sizes[:, part]
        together, met = _correlation(block, 0)
        for lag in range(1, min(LAGS, block.shape[1] - 1) + 1):
            apart, shared = _correlation(block, lag)
            np.fill_diagonal(apart, 0)
            largest = max(largest, float(np.abs(apart).max()))
            allowed = np.maximum(
                STANDARD_ERRORS / np.sqrt(np.maximum(shared, 1)), 2 * np.abs(together)
            )
            proof.count += apart.size
            for leader, follower in np.argwhere(
                (np.abs(apart) > allowed) & (np.minimum(shared, met) >= MIN_SHARED)
            ):
                since = np.datetime64(int(stamps[part][0]), "s")
                ahead = (
                    f"{symbols[leader]} runs {lag} bars ahead of {symbols[follower]} from "
                    f"{since} on"
                )
                values = (
                    f"{apart[leader, follower]:+.2f}, at one stamp "
                    f"{together[leader, follower]:+.2f}"
                )
                proof.check(False, f"{ahead}: correlation {values}")
    proof.notes.append(
        f"largest correlation {largest:.2f} at lags of 1 to {LAGS} bars, in blocks of {BLOCK}"
    )


def _correlation(
    sizes: npt.NDArray[np.float32], lag: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(assets, assets) between each now and each `lag` bars later, where both moved, and how often
    that was.
    """
    now, later = sizes[:, : sizes.shape[1] - lag], sizes[:, lag:]
    moved_now, moved_later = (now != 0).astype(np.float32), (later != 0).astype(np.float32)
    squares = ((now * now) @ moved_later.T) * (moved_now @ (later * later).T)
    return (now @ later.T) / np.sqrt(np.maximum(squares, 1e-12)), moved_now @ moved_later.T
