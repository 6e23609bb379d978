"""Proof (a): whatever happens after a cut changes nothing up to it.

Enters: a pipeline and bars. Leaves: a `Proof`. All bars after random moments are scrambled, deleted or shifted in time,
of every asset at once, and the pipeline runs again with what it had fitted. Every row up to the cut must know the same,
every target up to it must be the same, and so must be what a model is shown and what it answers, to the bit.
Paper: Methods, "Continuous dynamic features" (information time).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import polars as pl

from vaiom.audit.pipeline import Array, Bars, Events, Fitted, Pipeline, Rows
from vaiom.audit.proof import Proof, proving
from vaiom.market.folder import PRICE_COLUMNS

NAME = "a. future"
ABOUT = (
    "bars after random cuts scrambled, deleted, shifted: features, masks, targets, windows, probabilities up to there"
)

ROWS_SHOWN = 8
"""Rows of each asset whose windows and answers are compared: those next to the cut, and as many anywhere before."""
MAX_SHIFT_HOURS = 1_000

Vandal = Callable[[pl.DataFrame, np.random.Generator], pl.DataFrame]


def prove_future(pipeline: Pipeline, bars: Bars, fitted: Fitted, *, cuts: int, seed: int) -> Proof:
    rng = np.random.default_rng(seed)
    with proving(NAME, ABOUT) as proof:
        before = pipeline.transform(bars, fitted)
        moments = _moments(before, pipeline, cuts, rng)
        for cut in moments:
            for how in VANDALS:
                after = pipeline.transform(vandalise(bars, cut, how, rng), fitted)
                _compare(proof, before, after, cut, f"{how} after {cut}", rng)
        proof.notes.append(f"{len(moments)} cuts, {len(VANDALS)} kinds of damage")
    return proof


def vandalise(bars: Bars, cut: np.datetime64, how: str, rng: np.random.Generator) -> dict[str, pl.DataFrame]:
    """The same bars up to the cut, and damaged ones after it."""
    out = {}
    for symbol, frame in bars.items():
        later = frame["Datetime"].to_numpy() > cut
        out[symbol] = pl.concat([frame.filter(~later), VANDALS[how](frame.filter(later), rng)])
    return out


def _scramble(tail: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Other prices and volumes in another order; the noise matters where a single bar is left to reorder."""
    columns = [*PRICE_COLUMNS, "Volume"]
    noise = pl.Series(rng.lognormal(0, 0.1, len(tail)))
    return tail.with_columns(pl.col(columns).gather(rng.permutation(len(tail))) * noise)


def _delete(tail: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    return tail.clear()


def _shift(tail: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    return tail.with_columns(pl.col("Datetime") + timedelta(hours=int(rng.integers(1, MAX_SHIFT_HOURS))))


VANDALS: dict[str, Vandal] = {"scrambled": _scramble, "deleted": _delete, "shifted": _shift}


def _moments(events: Events, pipeline: Pipeline, cuts: int, rng: np.random.Generator) -> list[np.datetime64]:
    """Stamps of bars, half of them in Train and half after it, where there are any."""
    # Every asset must have begun, or there would be nothing of it to compare.
    begun = max(events.timestamps[rows.start] for rows in events.asset_slices.values())
    stamps = np.unique(events.timestamps)
    stamps = stamps[(stamps >= begun) & (stamps < stamps[-1])]
    in_train = stamps < np.datetime64(pipeline.train_end)
    groups = [part for part in (stamps[in_train], stamps[~in_train]) if len(part)]
    return [rng.choice(groups[number % len(groups)]) for number in range(cuts)] if groups else []


def _compare(
    proof: Proof, before: Events, after: Events, cut: np.datetime64, what: str, rng: np.random.Generator
) -> None:
    ours, theirs = [], []
    for symbol, rows in before.asset_slices.items():
        known = int((before.timestamps[rows] <= cut).sum())
        other = after.asset_slices.get(symbol, slice(0, 0))
        now_known = int((after.timestamps[other] <= cut).sum())
        where = f"{symbol}, {what}"
        if not proof.check(known == now_known, f"{where}: {now_known} rows up to the cut instead of {known}"):
            continue
        a, b = slice(rows.start, rows.start + known), slice(other.start, other.start + known)
        _same_rows(proof, {"timestamp": before.timestamps, **before.known}, _known(after), a, b, where)
        _same_settled(proof, before, after, a, b, cut, where)
        _same_splits(proof, before, after, a, b, cut, where)
        shown = _positions_shown(known, before.context, rng)
        ours.append(rows.start + shown)
        theirs.append(other.start + shown)
    mine, yours = np.concatenate([*ours, _NONE]), np.concatenate([*theirs, _NONE])
    if not len(mine):
        return
    answers = {"window": (before.windows, after.windows)}
    if before.predict and after.predict:
        answers["probabilities"] = (before.predict, after.predict)
    for name, (old, new) in answers.items():
        bad = _first_difference(old(mine), new(yours))
        at = "" if bad is None else before.timestamps[mine[bad]]
        proof.check(bad is None, f"{what}: {name} of the row at {at} changed", len(mine))


_NONE: Rows = np.empty(0, np.int64)


def _known(events: Events) -> dict[str, Array]:
    return {"timestamp": events.timestamps, **events.known}


def _same_rows(proof: Proof, old: dict[str, Array], new: dict[str, Array], a: slice, b: slice, where: str) -> None:
    for name, values in old.items():
        bad = _first_difference(values[a], new[name][b])
        at = "" if bad is None else old["timestamp"][a][bad]
        proof.check(bad is None, f"{where}: {name} of the row at {at} changed", a.stop - a.start)


def _same_settled(
    proof: Proof, before: Events, after: Events, a: slice, b: slice, cut: np.datetime64, where: str
) -> None:
    """Targets up to the cut; rows are in the order of time, so these are the first ones."""
    settled = int((before.target_timestamps[a] <= cut).sum())
    for name, values in before.targets.items():
        bad = _first_difference(values[a][:settled], after.targets[name][b][:settled])
        at = "" if bad is None else before.target_timestamps[a][bad]
        proof.check(bad is None, f"{where}: target {name} at {at} changed", settled)


def _same_splits(
    proof: Proof, before: Events, after: Events, a: slice, b: slice, cut: np.datetime64, where: str
) -> None:
    for name in before.splits:
        ours, theirs = (_settled_events(events, name, rows, cut) for events, rows in ((before, a), (after, b)))
        same = np.array_equal(ours, theirs)
        proof.check(same, f"{where}: {name} holds other events up to the cut", len(ours))


def _settled_events(events: Events, split: str, rows: slice, cut: np.datetime64) -> Rows:
    """Positions inside the asset of the split's events whose target is not after the cut."""
    chosen = np.sort(events.splits[split])
    chosen = chosen[(chosen >= rows.start) & (chosen < rows.stop)]
    positions: Rows = chosen[events.target_timestamps[chosen] <= cut] - rows.start
    return positions


def _positions_shown(known: int, context: int, rng: np.random.Generator) -> Rows:
    if known < context:
        return _NONE
    last = np.arange(max(context - 1, known - ROWS_SHOWN), known)
    return np.unique(np.concatenate([last, rng.integers(context - 1, known, ROWS_SHOWN)]))


def _first_difference(old: Array, new: Array) -> int | None:
    """The first position along the first axis where two arrays differ; NaN equals NaN."""
    if old.shape != new.shape:
        return 0
    differs = (old != new) & ~((old != old) & (new != new))
    rows = differs.reshape(len(old), -1).any(axis=1) if len(old) else np.zeros(0, bool)
    return int(rows.argmax()) if rows.any() else None
