"""Tables of the paper's model and of our own on held-out splits and years, ours beside the published figures.

Enters: records. Leaves: tables with a note each.
Paper: Results, RQ1; Appendix "Per-Period and Block-Level Results", Appendix "Statistical Inference Details".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev

from vaiom.evaluation.events_file import MODEL
from vaiom.events.splits import VALIDATION
from vaiom.experiments import published
from vaiom.experiments.findings import gain_verdict
from vaiom.experiments.paper import BEST, JUDGED, MAIN, MAIN_TIMEFRAME
from vaiom.experiments.records import ALL_TESTS, BASELINES, Gain, Record, Records, Scored
from vaiom.report.best_tables import best_tables
from vaiom.report.cells import bits_cell, columns_of, count_cell, period, signed_cell
from vaiom.report.numbers import NOTHING, interval, percent, percents, share_of
from vaiom.report.tables import Cell, Table, number, words
from vaiom.report.walk_forward import walk_forward_table

RIVAL = "lightgbm"
PAPER_RIVALS = tuple(name for name in published.TEST_BITS["test-h1"] if name != MODEL)
SELECTED_STEP = 5_500
"""Of the published figures of the main model."""

Tables = list[tuple[Table, str]]


def _main_test(records: Records) -> Tables:
    return [table for name in JUDGED for table in _test(name, records.runs(name, MAIN_TIMEFRAME))]


def _test(name: str, runs: Mapping[int, Record]) -> Tables:
    if not runs:
        return []
    canonical = next(iter(runs.values()))
    out = []
    for split in (VALIDATION, *published.TEST_BITS, ALL_TESTS):
        scored = canonical.scored.get(split)
        # Published figures are those of the paper's own model.
        theirs = published.TEST_BITS.get(split, {}) if name == MAIN else {}
        if scored is None and not theirs:
            continue
        rivals = dict.fromkeys([*scored.bits, *scored.gains] if scored else theirs)
        columns = columns_of(
            "predictor",
            *(("published",) if theirs else ()),
            "ours",
            *(("published Δ",) if theirs else ()),
            "our Δ",
            "95% interval",
            "block wins",
            "months won",
            "month-clustered",
            "finding",
            words=("predictor", "finding"),
        )
        rows = [_test_row(rival, theirs, scored) for rival in rivals]
        looks = max((run.scored[split].looks or 0 for run in runs.values() if split in run.scored), default=0)
        note = f"Δ is model minus predictor; seed {canonical.seed}, step {canonical.best_step():,}."
        note += f" The split was scored {looks} times by then." if looks else ""
        title = "Main model" if name == MAIN else f"`{name}`"
        out.append((Table(caption=f"{title}, {period(split)}", columns=columns, rows=rows), note))
    return out


def _test_row(name: str, theirs: Mapping[str, float], scored: Scored | None) -> list[Cell]:
    gain = scored.gains.get(name) if scored else None
    published_delta = theirs[MODEL] - theirs[name] if name in theirs and name != MODEL else None
    return [
        words(name),
        *([bits_cell(theirs.get(name))] if theirs else []),
        bits_cell(scored.bits.get(name) if scored else None),
        *([signed_cell(published_delta)] if theirs else []),
        signed_cell(-gain.gain_bits if gain else None),
        words(interval(_negated(gain.interval)) if gain else NOTHING),
        words(share_of(gain.block_wins, gain.num_blocks) if gain else NOTHING),
        words(share_of(gain.months_won, gain.num_months) if gain else NOTHING),
        words(interval(_negated(gain.month_interval)) if gain else NOTHING),
        words(gain_verdict(gain.interval, bool(theirs) and name in PAPER_RIVALS) if gain else NOTHING),
    ]


def _seeds_test(records: Records) -> Tables:
    columns = columns_of(
        "period",
        "seed",
        "published bits",
        "our bits",
        "published gain",
        "our gain",
        "published interval",
        "our interval",
        "published win-rate",
        "our win-rate",
        "finding",
        words=("period", "finding"),
    )
    runs = records.runs(MAIN, MAIN_TIMEFRAME)
    rows = []
    for split, seeds in published.TEST_SEEDS.items():
        for seed, theirs in seeds.items():
            scored = runs[seed].scored.get(split) if seed in runs else None
            gain = scored.gains.get(RIVAL) if scored else None
            rows.append(
                [
                    words(period(split)),
                    number(str(seed), seed),
                    bits_cell(theirs.bits),
                    bits_cell(scored.bits[MODEL] if scored else None),
                    signed_cell(theirs.gain_bits),
                    signed_cell(gain.gain_bits if gain else None),
                    words(interval(theirs.interval)),
                    words(interval(gain.interval) if gain else NOTHING),
                    words(percent(theirs.win_rate)),
                    words(percent(gain.win_rate) if gain else NOTHING),
                    words(gain_verdict(gain.interval, published=True) if gain else NOTHING),
                ]
            )
    note = f"Gain is {RIVAL} minus model: positive favours the model. " + _seeds_verdict(runs)
    return [(Table(caption="Multi-seed robustness on Test", columns=columns, rows=rows), note)]


def _seeds_verdict(runs: dict[int, Record]) -> str:
    said = []
    for split in (VALIDATION, *published.TEST_SEEDS):
        gains = [gain for run in runs.values() if split in run.scored and (gain := run.scored[split].gains.get(RIVAL))]
        if gains:
            ahead = sum(gain.gain_bits > 0 for gain in gains)
            sure = sum(gain.interval is not None and gain.interval[0] > 0 for gain in gains)
            said.append(
                f"On {period(split)}, {ahead} of {len(gains)} seeds beat {RIVAL}, {sure} with an interval above zero."
            )
    return " ".join(said)


def _seeds_validation(records: Records) -> Tables:
    runs = records.runs(MAIN, MAIN_TIMEFRAME)
    rows = []
    for seed, theirs in published.VALIDATION_SEEDS.items():
        record = runs.get(seed)
        gain = record.scored[VALIDATION].gains.get(RIVAL) if record and VALIDATION in record.scored else None
        rows.append(
            [
                words(str(seed)),
                bits_cell(theirs),
                bits_cell(record.best_bits() if record else None),
                count_cell(record.best_step() if record else None),
                bits_cell(record.validation.get(SELECTED_STEP) if record else None),
                signed_cell(published.VALIDATION_LIGHTGBM - theirs),
                signed_cell(gain.gain_bits if gain else None),
                words(interval(gain.interval) if gain else NOTHING),
            ]
        )
    ours = [bits for record in runs.values() if (bits := record.best_bits()) is not None]
    rows.append(_summary("mean", mean, ours))
    rows.append(_summary("sample SD", stdev, ours))
    columns = columns_of(
        "seed",
        "published",
        "ours, best",
        "at step",
        f"ours at {SELECTED_STEP:,}",
        "published gain",
        "our gain",
        "our interval",
        words=("seed",),
    )
    note = f"The published figures are those of {SELECTED_STEP:,} steps; gain is over {RIVAL}."
    return [(Table(caption="Validation stability across training seeds", columns=columns, rows=rows), note)]


def _summary(label: str, of: Callable[[Sequence[float]], float], ours: Sequence[float]) -> list[Cell]:
    theirs = of(list(published.VALIDATION_SEEDS.values()))
    value = of(ours) if len(ours) > 1 else None
    return [words(label), bits_cell(theirs), bits_cell(value), *([words(NOTHING)] * 5)]


def _tails(records: Records) -> Tables:
    columns = columns_of(
        "period",
        "published events",
        "our events",
        *(f"{whose} {tail}" for tail in ("negative", "positive", "both") for whose in ("published", "our")),
        words=("period",),
    )
    rows = []
    for split, theirs in published.TAILS.items():
        gain = _canonical_gain(records, split)
        cells = [
            cell
            for tail in ("negative", "positive", "both")
            for cell in (signed_cell(theirs[tail]), signed_cell(gain.tails[tail] if gain else None))
        ]
        rows.append(
            [
                words(period(split)),
                count_cell(int(theirs["events"])),
                count_cell(gain.tail_events if gain else None),
                *cells,
            ]
        )
    note = f"Gain over {RIVAL} on events that ended in buckets 1 to 4 and 13 to 16."
    return [(Table(caption="Tail-bucket decomposition", columns=columns, rows=rows), note)]


def _bootstrap(records: Records) -> Tables:
    columns = columns_of(
        "period",
        "published events",
        "our events",
        "published blocks",
        "our blocks",
        "published interval",
        "our interval",
        "published win-rate",
        "our win-rate",
        words=("period",),
    )
    rows = []
    for split, theirs in published.BOOTSTRAP.items():
        gain = _canonical_gain(records, split)
        rows.append(
            [
                words(period(split)),
                count_cell(theirs.events),
                count_cell(gain.num_events if gain else None),
                count_cell(theirs.blocks),
                count_cell(gain.num_blocks if gain else None),
                words(interval(theirs.interval)),
                words(interval(gain.interval) if gain else NOTHING),
                words(f"{percent(theirs.win_rate)} {percents(theirs.win_rate_interval)}"),
                words(f"{percent(gain.win_rate)} {percents(gain.win_rate_interval)}" if gain else NOTHING),
            ]
        )
    return [(Table(caption="Block-bootstrap inference", columns=columns, rows=rows), f"Against {RIVAL}.")]


def _canonical_gain(records: Records, split: str) -> Gain | None:
    for record in records.runs(MAIN, MAIN_TIMEFRAME).values():
        return record.scored[split].gains.get(RIVAL) if split in record.scored else None
    return None


def _baselines(records: Records) -> Tables:
    facts = records.facts(BASELINES)
    if not facts:
        return []
    models, best = (_mean_bits(records.runs(name, MAIN_TIMEFRAME), facts) for name in JUDGED)
    names = list(dict.fromkeys(name for split in facts.values() for name in split["bits"]))
    rows = [
        [
            words(name),
            *(
                cell
                for split, entry in facts.items()
                for cell in (
                    bits_cell(entry["bits"].get(name)),
                    signed_cell(
                        entry["bits"][name] - models[split] if split in models and name in entry["bits"] else None
                    ),
                )
            ),
        ]
        for name in names
    ]
    ours = [(name, bits) for name, bits in ((MAIN, models), (BEST, best)) if bits]
    for name, bits in ours:
        rows.append([words(f"{name}, mean of seeds"), *(c for s in facts for c in (bits_cell(bits.get(s)), words("")))])
    columns = columns_of(
        "predictor",
        *(
            name
            for split, entry in facts.items()
            for name in (f"{period(split)}, {entry['events']:,} events", "main's gain")
        ),
        words=("predictor",),
    )
    strong = frozenset(range(len(rows) - len(ours), len(rows)))
    return [(Table(caption="All baselines in one table", columns=columns, rows=rows, strong=strong), "")]


def _mean_bits(runs: Mapping[int, Record], splits: Iterable[str]) -> dict[str, float]:
    """Over the seeds that were scored, by split."""
    bits = {split: [run.scored[split].bits[MODEL] for run in runs.values() if split in run.scored] for split in splits}
    return {split: mean(values) for split, values in bits.items() if values}


def _negated(pair: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if pair is None else (-pair[1], -pair[0])


HELDOUT_TABLES: dict[str, Callable[[Records], Tables]] = {
    "main-test": _main_test,
    "seeds-test": _seeds_test,
    "seeds-validation": _seeds_validation,
    "tails": _tails,
    "bootstrap": _bootstrap,
    "best": best_tables,
    "baselines": _baselines,
    "walk-forward": walk_forward_table,
}
