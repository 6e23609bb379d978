"""The tables of the paper's model on Validation and Test, ours beside the published figures.

Enters: records. Leaves: tables with a note each; what has no record is a dash.
Paper: Results, RQ1; Appendices on period and block-level results and on inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import mean, stdev
from typing import Any

from reproduction import paper
from reproduction.cells import (
    PAPER_BASELINES,
    STRONG,
    Noted,
    columns,
    first_gain,
    is_above_zero,
    period,
    plain,
    wins,
)
from reproduction.findings import Records, gain_verdict
from reproduction.paper import JUDGED, MAIN, SELECTED_STEP
from reproduction.records import ALL_TESTS, Record
from vaiom.corpus.splits import VALIDATION
from vaiom.evaluation.inference import PairedGain
from vaiom.evaluation.scores import MODEL
from vaiom.report.tables import Column, Table, bits, count, interval, percent, percents, signed

TAILS = ("negative", "positive", "both")


def main_test(records: Records) -> list[Noted]:
    """The judged models on Validation and Test, beside each baseline."""
    return [table for name in JUDGED for table in _tests(name, records.runs(name))]


def _tests(name: str, runs: Mapping[int, Record]) -> list[Noted]:
    """A table for each split that a model was scored on, or has published figures for."""
    if not runs:
        return []
    first = next(iter(runs.values()))
    out = []
    for split in (VALIDATION, *paper.TEST_BITS, ALL_TESTS):
        scored = first.scored.get(split)
        # Published figures are those of the paper's own model.
        theirs = paper.TEST_BITS.get(split, {}) if name == MAIN else {}
        if scored is None and not theirs:
            continue
        gains = scored.gains if scored else {}
        looks = max(
            (run.scored[split].looks or 0 for run in runs.values() if split in run.scored),
            default=0,
        )
        note = f"Δ is model minus predictor; seed {first.seed}, step {first.best_step():,}."
        note += f" The split was scored {looks} times by then." if looks else ""
        title = "Main model" if name == MAIN else f"`{name}`"
        predictors = dict.fromkeys([*scored.bits, *gains] if scored else theirs)
        rows = [
            _test_row(each, theirs, scored.bits if scored else {}, gains.get(each))
            for each in predictors
        ]
        heads = [
            *(
                Column("predictor"),
                *columns(bits, "published", "ours"),
                *columns(signed, "published Δ", "our Δ"),
            ),
            *columns(plain, "95% interval", "block wins", "months won", "month-clustered"),
            Column("finding"),
        ]
        if not theirs:
            kept = [
                index for index, head in enumerate(heads) if not head.name.startswith("published")
            ]
            heads = [heads[index] for index in kept]
            rows = [[row[index] for index in kept] for row in rows]
        out.append((Table(caption=f"{title}, {period(split)}", columns=heads, rows=rows), note))
    return out


def _test_row(
    name: str, theirs: Mapping[str, float], ours: Mapping[str, float], gain: PairedGain | None
) -> list[Any]:
    """A predictor: published and our bits, and the difference with its intervals."""

    def negated(pair: tuple[float, float] | None) -> tuple[float, float] | None:
        return pair and (-pair[1], -pair[0])

    delta = theirs[MODEL] - theirs[name] if name in theirs and name != MODEL else None
    row = [name, theirs.get(name), ours.get(name), delta]
    if gain is None:
        return [*row, *[None] * 6]
    verdict = gain_verdict(gain.asset_months.interval, bool(theirs) and name in PAPER_BASELINES)
    by_block, by_month = (
        interval(negated(blocks.interval)) for blocks in (gain.asset_months, gain.months)
    )
    return [*row, -gain.gain_bits, by_block, *wins(gain), by_month, verdict]


def seeds_test(records: Records) -> list[Noted]:
    """Gains over the strongest baseline on Test, seed by seed."""
    runs = records.runs(MAIN)
    rows = []
    for split, seeds in paper.TEST_SEEDS.items():
        for seed, theirs in seeds.items():
            scored = runs[seed].scored.get(split) if seed in runs else None
            gain = scored.gains.get(STRONG) if scored else None
            rows.append(
                [
                    *(period(split), seed, theirs["bits"], scored and scored.bits[MODEL]),
                    *(theirs["gain_bits"], gain and gain.gain_bits),
                    *(interval(theirs["interval"]), gain and interval(gain.asset_months.interval)),
                    *(percent(theirs["win_rate"]), gain and percent(gain.asset_months.win_rate)),
                    gain and gain_verdict(gain.asset_months.interval, published=True),
                ]
            )
    note = f"Gain is {STRONG} minus model: positive favours the model."
    for split in (VALIDATION, *paper.TEST_SEEDS):
        gains = [
            gain
            for run in runs.values()
            if split in run.scored and (gain := run.scored[split].gains.get(STRONG))
        ]
        if gains:
            ahead = sum(gain.gain_bits > 0 for gain in gains)
            sure = sum(map(is_above_zero, gains))
            note += (
                f" On {period(split)}, {ahead} of {len(gains)} seeds beat {STRONG}, {sure} "
                f"with an interval above zero."
            )
    heads = [
        Column("period"),
        *columns(plain, "seed"),
        *columns(bits, "published bits", "our bits"),
        *columns(signed, "published gain", "our gain"),
        *columns(plain, "published interval", "our interval", "published win-rate", "our win-rate"),
        Column("finding"),
    ]
    return [(Table(caption="Multi-seed robustness on Test", columns=heads, rows=rows), note)]


def seeds_validation(records: Records) -> list[Noted]:
    """Bits and gains on Validation, seed by seed."""
    runs = records.runs(MAIN)
    rows: list[list[Any]] = []
    for seed, theirs in paper.VALIDATION_SEEDS.items():
        record = runs.get(seed)
        gain = (
            record.scored[VALIDATION].gains.get(STRONG)
            if record and VALIDATION in record.scored
            else None
        )
        run = (
            [record.best_bits(), record.best_step(), record.validation.get(SELECTED_STEP)]
            if record
            else [None] * 3
        )
        over = [gain.gain_bits, interval(gain.asset_months.interval)] if gain else [None] * 2
        rows.append([seed, theirs, *run, paper.VALIDATION_LIGHTGBM - theirs, *over])
    ours = [best for record in runs.values() if (best := record.best_bits()) is not None]
    summaries: dict[str, Callable[[Iterable[float]], float]] = {"mean": mean, "sample SD": stdev}
    for label, of in summaries.items():
        value = of(ours) if len(ours) > 1 else None
        rows.append([label, of(paper.VALIDATION_SEEDS.values()), value, *[None] * 5])
    heads = [
        Column("seed"),
        *columns(bits, "published", "ours, best"),
        *columns(count, "at step"),
        *columns(bits, f"ours at {SELECTED_STEP:,}"),
        *columns(signed, "published gain", "our gain"),
        *columns(plain, "our interval"),
    ]
    note = f"The published figures are those of {SELECTED_STEP:,} steps; gain is over {STRONG}."
    return [
        (
            Table(caption="Validation stability across training seeds", columns=heads, rows=rows),
            note,
        )
    ]


def tails(records: Records) -> list[Noted]:
    """Gains on events that ended in the tails."""
    rows = []
    for split, theirs in paper.TAILS.items():
        gain = first_gain(records, split)
        pairs = [
            value for tail in TAILS for value in (theirs[tail], gain and gain.tails[tail].gain_bits)
        ]
        rows.append(
            [period(split), int(theirs["events"]), gain and gain.tails["both"].num_events, *pairs]
        )
    heads = [Column("period"), *columns(count, "published events", "our events")]
    heads += columns(
        signed, *(f"{whose} {tail}" for tail in TAILS for whose in ("published", "our"))
    )
    note = f"Gain over {STRONG} on events that ended in buckets 1 to 4 and 13 to 16."
    return [(Table(caption="Tail-bucket decomposition", columns=heads, rows=rows), note)]


def bootstrap(records: Records) -> list[Noted]:
    """Intervals of the block bootstrap for gains and win rates."""

    def rates(rate: float, pair: tuple[float, float] | None) -> str:
        return f"{percent(rate)} {percents(pair)}"

    rows = []
    for split, theirs in paper.BOOTSTRAP.items():
        gain = first_gain(records, split)
        blocks = gain.asset_months if gain else None
        counts = (
            theirs["events"],
            gain and gain.num_events,
            theirs["blocks"],
            blocks and blocks.num_blocks,
        )
        intervals = (interval(theirs["interval"]), blocks and interval(blocks.interval))
        win_rates = (
            rates(theirs["win_rate"], theirs["win_rate_interval"]),
            blocks and rates(blocks.win_rate, blocks.win_rate_interval),
        )
        rows.append([period(split), *counts, *intervals, *win_rates])
    heads = [Column("period")]
    heads += columns(count, "published events", "our events", "published blocks", "our blocks")
    heads += columns(
        plain, "published interval", "our interval", "published win-rate", "our win-rate"
    )
    return [
        (Table(caption="Block-bootstrap inference", columns=heads, rows=rows), f"Against {STRONG}.")
    ]
