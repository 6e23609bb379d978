"""Proofs of prices, (a) the future and (b) refit: nothing known at a time comes from later bars.

Bars and a pipeline enter, proofs leave. The bars are damaged after a moment and everything is
computed again; whatever was known before that moment must be the same to the bit. Paper: Methods,
"Continuous dynamic features" (information time) and "Corpus Construction and Split Protocol"
(fitted on Train, never refitted).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from vaiom.auditing.cuts import (
    DAMAGES,
    MIRRORED,
    bars_around,
    calendar_moments,
    damage_after,
    rare_moments,
)
from vaiom.auditing.pipeline import Array, Bars, Pipeline
from vaiom.auditing.proof import AuditConfig, Proof, claim
from vaiom.baselines.base import Rows
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer

if TYPE_CHECKING:
    pass

KNOWN = ("cont", "extra", "disc", "meta", "sigma20", "mask_any")
"""What is known of a row itself."""
TARGETS = ("target_return", "target_gap", "target_vol_regime", "log_ret_next", "valid_base")
"""What is known of a row once the row after it has come."""
ROWS_SHOWN = 8
"""Rows of each asset whose windows and forecasts are compared: next to a cut, and before it."""


@claim("prices", "no bar holds the range of the hours, days or weeks that follow it")
def prove_prices(proof: Proof, bars: Bars) -> None:
    """Some sources stamp a daily bar among the hours, so that its range tells of the day to come.

    Its high and low are then those of hours that follow it. This leak is inside one bar of the
    source, where no cut can show it: only a comparison with the bars that follow does.
    """
    from vaiom.market.check import check_bars

    for symbol, frame in bars.items():
        told = []
        for finding in check_bars(symbol, frame).findings:
            if finding.kind == "hidden_higher_timeframe_bar":
                first = finding.examples[0]
                told.append(f"{finding.count} {finding.summary}, first {first}")
        problem = "; ".join(told)
        proof.check(not told, f"{symbol}: {problem}", len(frame))


@claim(
    "a. future",
    "bars after cuts, random and where rare leaks live, scrambled, deleted, shifted, mirrored: "
    "everything known up to there",
)
def prove_future(
    proof: Proof, pipeline: Pipeline, bars: Bars, before: Corpus, config: AuditConfig
) -> None:
    """Damage all bars after a cut: features, targets, splits, windows and forecasts stay the same.

    `before` is the corpus of the undamaged bars. Whatever was known up to the cut is compared to
    the bit: a window normalised by its own mean, a centred average, a volume of the bar to be
    predicted or a forward join all change. Random cuts see the whole history and the model's
    forecasts. Rare cuts see only the bars around them, and there is one at every kind of moment at
    which a leak of few rows could hide.
    """
    rng = np.random.default_rng(config.seed)
    cuts = _draw_cuts(before, config.cuts, rng)
    for cut in cuts:
        for how in DAMAGES:
            after = pipeline.corpus(damage_after(bars, cut, how, rng), before.tokenizer)
            _compare(proof, pipeline, before, after, cut, f"{how} after {cut}", rng)
    proof.note(f"{len(cuts)} cuts, {len(DAMAGES)} kinds of damage")
    if config.rare_cuts:
        _prove_short_cuts(proof, pipeline, bars, before.tokenizer, config.rare_cuts, rng)


def _prove_short_cuts(
    proof: Proof,
    pipeline: Pipeline,
    bars: Bars,
    tokenizer: Tokenizer,
    number: int,
    rng: Generator,
) -> None:
    """Cut at some moments of every kind, with the bars around them alone.

    Each cut is followed by mirrored bars, which no sign of a later move survives. Rare moments have
    a second damage, which may be to the clock, and whole windows; moments of the calendar, of which
    there are a thousand, have columns alone.
    """
    without_model = replace(pipeline, predictor=None)
    rare = rare_moments(bars)
    calendar = calendar_moments(bars)
    num_short = 0
    for kind, places in (rare | calendar).items():
        for cut in rng.choice(places, min(number, len(places)), replace=False):
            near = bars_around(bars, cut, pipeline.model.context if kind in rare else 0)
            old = pipeline.corpus(near, tokenizer)
            for how in (rng.choice(DAMAGES), MIRRORED) if kind in rare else (MIRRORED,):
                new = pipeline.corpus(damage_after(near, cut, how, rng), tokenizer)
                _compare(proof, without_model, old, new, cut, f"{how} after {cut} ({kind})", rng)
            num_short += 1
    proof.note(
        f"{num_short} short cuts: hours of the week and of each week of a month, days of the year, "
        f"months, missing bars, week ends, holidays, ends of assets"
    )


def _draw_cuts(corpus: Corpus, number: int, rng: Generator) -> list[np.datetime64]:
    """Moments dealt in turn to Train and to what follows it."""
    # Before an asset has begun there is nothing of it to compare.
    first_rows = [rows.start for rows in corpus.asset_slices.values()]
    begun = corpus.timestamps[first_rows].max()
    stamps = np.unique(corpus.timestamps)
    stamps = stamps[stamps >= begun][:-1]
    in_train = stamps < np.datetime64(corpus.splits.train_end)
    parts = [stamps[in_train], stamps[~in_train]]
    parts = [part for part in parts if len(part)]
    cuts = []
    for part, _ in zip(cycle(parts), range(number), strict=False):
        cuts.append(rng.choice(part))
    return cuts


def _compare(
    proof: Proof,
    pipeline: Pipeline,
    before: Corpus,
    after: Corpus,
    cut: np.datetime64,
    what: str,
    rng: Generator,
) -> None:
    """Compare what two corpora know at a cut: columns, targets, splits, windows and forecasts.

    `what` says in findings how the bars of the second corpus were damaged.
    """
    old_shown: list[Rows] = []
    new_shown: list[Rows] = []
    context = pipeline.model.context
    old_splits = pipeline.splits(before)
    new_splits = pipeline.splits(after)
    for symbol, rows in before.asset_slices.items():
        new_rows = after.asset_slices.get(symbol, slice(0, 0))
        old = _known_at(before, old_splits, rows, cut)
        new = _known_at(after, new_splits, new_rows, cut)
        num_old = len(old["timestamp"][1])
        num_new = len(new["timestamp"][1])
        where = f"{symbol}, {what}"
        counted = f"{where}: {num_new} rows up to the cut instead of {num_old}"
        if not proof.check(num_old == num_new, counted):
            continue
        for name, (times, values) in old.items():
            _check_same(proof, values, new[name][1], times, f"{where}: {name}")
        if num_old >= context:
            last = np.arange(max(context - 1, num_old - ROWS_SHOWN), num_old)
            places = np.union1d(last, rng.integers(context - 1, num_old, ROWS_SHOWN))
            old_shown.append(rows.start + places)
            new_shown.append(new_rows.start + places)
    if not old_shown:
        return
    old_rows = np.concatenate(old_shown)
    new_rows_shown = np.concatenate(new_shown)
    outputs = {"window": pipeline.windows}
    if pipeline.predictor:
        outputs["probabilities"] = pipeline.predictor.predict_proba
    times = before.timestamps[old_rows]
    for name, output in outputs.items():
        ours = output(before, old_rows)
        theirs = output(after, new_rows_shown)
        _check_same(proof, ours, theirs, times, f"{what}: {name} of the row")


def _known_at(
    corpus: Corpus, splits: Mapping[str, Rows], asset: slice, cut: np.datetime64
) -> dict[str, tuple[Array, Array]]:
    """By name, the times and values of everything about an asset that is known at a cut.

    That is each row up to the cut, the target of each row whose target bar has come by then, and
    the events of each split among these.
    """
    # Rows are in the order of time, so those that are known, and those whose target is, come first.
    first = asset.start
    num_known = int(np.sum(corpus.timestamps[asset] <= cut))
    rows = slice(first, first + num_known)
    times = corpus.timestamps[rows]
    target_times = corpus.target_timestamps[rows]
    num_settled = int(np.sum(target_times <= cut))
    settled = slice(first, first + num_settled)
    known = {"timestamp": (times, times)}
    for name in KNOWN:
        known[name] = (times, getattr(corpus, name)[rows])
    for name in TARGETS:
        values = getattr(corpus, name)[settled]
        known[f"target: {name.removeprefix('target_')}"] = (target_times, values)
    for name, split in splits.items():
        inside = (split >= first) & (split < rows.stop)
        own = np.sort(split[inside])
        own_times = corpus.target_timestamps[own]
        come = own_times <= cut
        known[f"an event of {name}"] = (own_times[come], own[come] - first)
    return known


def _check_same(proof: Proof, old: Array, new: Array, times: Array, what: str) -> None:
    """Compare along the first axis, NaN being equal to NaN; names the time of the first change."""
    size = len(old)
    problem = f"{what}: {len(new)} instead of {size}"
    if not proof.check(old.shape == new.shape, problem, size) or size == 0:
        return
    both_missing = (old != old) & (new != new)
    changed = (old != new) & ~both_missing
    rows = changed.reshape(size, -1).any(axis=1)
    first = times[rows.argmax()]
    proof.check(not rows.any(), f"{what} at {first} changed", count=0)


@claim(
    "b. refit",
    "everything fitted again with the bars after Train removed or scrambled: the same hashes",
)
def prove_refit(proof: Proof, pipeline: Pipeline, bars: Bars, corpus: Corpus, seed: int) -> None:
    """Buckets, vocabularies and baselines are fitted on Train: later bars must not move them.

    Everything is fitted twice more, once without any later bar and once with later bars scrambled;
    what is stored must have the same SHA-256. A fit that fails without later bars had used them.
    """
    rng = np.random.default_rng(seed)
    hashes = pipeline.hashes(corpus)
    last = np.datetime64(corpus.splits.train_end - timedelta(microseconds=1))
    for how in ("deleted", "scrambled"):
        damaged = damage_after(bars, last, how, rng)
        for symbol, frame in damaged.items():
            # An asset that begins after Train keeps its first bar: Train knows its name, and a bar
            # alone has no return.
            if not len(frame):
                damaged[symbol] = bars[symbol][:1]
        try:
            again = pipeline.hashes(pipeline.corpus(damaged))
        except Exception as error:  # a pipeline that fails without later bars had used them
            why = str(error).splitlines()[0]
            proof.check(False, f"later bars {how}: nothing could be fitted: {why}")
            continue
        for name, digest in hashes.items():
            proof.check(again.get(name) == digest, f"later bars {how}: {name} was fitted otherwise")
    proof.note(", ".join(hashes))
