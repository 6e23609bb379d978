"""Tables of the main model on held-out splits and years, ours beside the published figures.

Enters: records. Leaves: tables with a note each.
Paper: Results, RQ1; Appendix "Per-Period and Block-Level Results", Appendix "Statistical Inference Details".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, stdev

from vaiom.experiments import paper
from vaiom.experiments.records import BASELINES, Gain, Record, Records
from vaiom.report.cells import bits_cell, columns_of, count_cell, period, signed_cell
from vaiom.report.numbers import NOTHING, count, interval, percent, percents, share_of
from vaiom.report.tables import Cell, Table, number, words

RIVAL = "lightgbm"

Tables = list[tuple[Table, str]]


def _main_test(records: Records) -> Tables:
    runs = records.runs(paper.MAIN, "1h")
    if not runs:
        return []
    canonical = next(iter(runs.values()))
    out = []
    for split in ("validation", "test-h1", "test-h2"):
        scored = canonical.scored.get(split)
        published = paper.TEST_BITS.get(split, {})
        if scored is None and not published:
            continue
        names = [*(scored.bits if scored else {}), *(name for name in published if not scored)]
        rows = []
        for name in names:
            gain = scored.gains.get(name) if scored else None
            theirs = published.get(name)
            rows.append(
                [
                    words(name),
                    bits_cell(theirs),
                    bits_cell(scored.bits[name] if scored else None),
                    signed_cell(published["model"] - theirs if theirs and name != "model" else None),
                    signed_cell(-gain.gain_bits if gain else None),
                    words(interval(_negated(gain.interval)) if gain else NOTHING),
                    words(share_of(gain.block_wins, gain.num_blocks) if gain else NOTHING),
                    words(share_of(gain.months_won, gain.num_months) if gain else NOTHING),
                    words(interval(_negated(gain.month_interval)) if gain else NOTHING),
                ]
            )
        columns = columns_of(
            "predictor",
            "published",
            "ours",
            "published Δ",
            "our Δ",
            "95% interval",
            "block wins",
            "months won",
            "month-clustered",
            words=("predictor",),
        )
        looked = f" Looked at {scored.looks} times." if scored and scored.looks else ""
        note = f"Δ is model minus predictor; seed {canonical.seed}, step {canonical.best_step:,}." + looked
        out.append((Table(caption=f"Main model, {period(split)}", columns=columns, rows=rows), note))
    return out


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
        words=("period",),
    )
    runs = records.runs(paper.MAIN, "1h")
    rows = []
    for split, seeds in paper.TEST_SEEDS.items():
        for seed, published in seeds.items():
            scored = runs[seed].scored.get(split) if seed in runs else None
            gain = scored.gains.get(RIVAL) if scored else None
            rows.append(
                [
                    words(period(split)),
                    number(str(seed), seed),
                    bits_cell(published.bits),
                    bits_cell(scored.bits["model"] if scored else None),
                    signed_cell(published.gain_bits),
                    signed_cell(gain.gain_bits if gain else None),
                    words(interval(published.interval)),
                    words(interval(gain.interval) if gain else NOTHING),
                    words(percent(published.win_rate)),
                    words(percent(gain.win_rate) if gain else NOTHING),
                ]
            )
    note = f"Gain is {RIVAL} minus model: positive favours the model. " + _seeds_verdict(runs)
    return [(Table(caption="Multi-seed robustness on Test", columns=columns, rows=rows), note)]


def _seeds_verdict(runs: dict[int, Record]) -> str:
    said = []
    for split in ("validation", "test-h1", "test-h2"):
        gains = [gain for run in runs.values() if split in run.scored and (gain := run.scored[split].gains.get(RIVAL))]
        if gains:
            ahead = sum(gain.gain_bits > 0 for gain in gains)
            sure = sum(gain.interval is not None and gain.interval[0] > 0 for gain in gains)
            said.append(
                f"On {period(split)}, {ahead} of {len(gains)} seeds beat {RIVAL}, {sure} with an interval above zero."
            )
    return " ".join(said)


def _seeds_validation(records: Records) -> Tables:
    runs = records.runs(paper.MAIN, "1h")
    rows = []
    for seed, published in paper.VALIDATION_SEEDS.items():
        record = runs.get(seed)
        gain = record.scored["validation"].gains.get(RIVAL) if record and "validation" in record.scored else None
        rows.append(
            [
                words(str(seed)),
                bits_cell(published),
                bits_cell(record.best_bits() if record else None),
                number(count(record.best_step) if record else NOTHING, record.best_step if record else None),
                bits_cell(record.validation.get(5_500) if record else None),
                signed_cell(paper.VALIDATION_LIGHTGBM - published),
                signed_cell(gain.gain_bits if gain else None),
                words(interval(gain.interval) if gain else NOTHING),
            ]
        )
    ours = [record.best_bits() for record in runs.values()]
    rows.append(_summary("mean", mean, ours))
    rows.append(_summary("sample SD", stdev, ours))
    columns = columns_of(
        "seed",
        "published",
        "ours, best",
        "at step",
        "ours at 5,500",
        "published gain",
        "our gain",
        "our interval",
        words=("seed",),
    )
    note = f"The published figures are those of 5,500 steps; gain is over {RIVAL}."
    return [(Table(caption="Validation stability across training seeds", columns=columns, rows=rows), note)]


def _summary(label: str, of: Callable[[Sequence[float]], float], ours: Sequence[float]) -> list[Cell]:
    published = of(list(paper.VALIDATION_SEEDS.values()))
    value = of(ours) if len(ours) > 1 else None
    return [words(label), bits_cell(published), bits_cell(value), *([words(NOTHING)] * 5)]


def _tails(records: Records) -> Tables:
    columns = columns_of(
        "period",
        "published events",
        "our events",
        *(f"{whose} {tail}" for tail in ("negative", "positive", "both") for whose in ("published", "our")),
        words=("period",),
    )
    rows = []
    for split, published in paper.TAILS.items():
        gain = _canonical_gain(records, split)
        cells = [
            cell
            for tail in ("negative", "positive", "both")
            for cell in (signed_cell(published[tail]), signed_cell(gain.tails[tail] if gain else None))
        ]
        rows.append(
            [
                words(period(split)),
                count_cell(int(published["events"])),
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
    for split, published in paper.BOOTSTRAP.items():
        gain = _canonical_gain(records, split)
        rows.append(
            [
                words(period(split)),
                count_cell(published.events),
                count_cell(gain.num_events if gain else None),
                count_cell(published.blocks),
                count_cell(gain.num_blocks if gain else None),
                words(interval(published.interval)),
                words(interval(gain.interval) if gain else NOTHING),
                words(f"{percent(published.win_rate)} {percents(published.win_rate_interval)}"),
                words(f"{percent(gain.win_rate)} {percents(gain.win_rate_interval)}" if gain else NOTHING),
            ]
        )
    return [(Table(caption="Block-bootstrap inference", columns=columns, rows=rows), f"Against {RIVAL}.")]


def _canonical_gain(records: Records, split: str) -> Gain | None:
    for record in records.runs(paper.MAIN, "1h").values():
        return record.scored[split].gains.get(RIVAL) if split in record.scored else None
    return None


def _baselines(records: Records) -> Tables:
    facts = records.facts(BASELINES)
    if not facts:
        return []
    runs = records.runs(paper.MAIN, "1h")
    models = {
        split: mean(run.scored[split].bits["model"] for run in runs.values() if split in run.scored)
        for split in facts
        if any(split in run.scored for run in runs.values())
    }
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
    if models:
        rows.append([words("main, mean of seeds"), *(c for s in facts for c in (bits_cell(models.get(s)), words("")))])
    columns = columns_of(
        "predictor",
        *(
            name
            for split, entry in facts.items()
            for name in (f"{period(split)}, {entry['events']:,} events", "model's gain")
        ),
        words=("predictor",),
    )
    strong = frozenset([len(rows) - 1]) if models else frozenset[int]()
    return [(Table(caption="All baselines in one table", columns=columns, rows=rows, strong=strong), "")]


def _walk_forward(records: Records) -> Tables:
    walked = records.walk_forward()
    if not walked:
        return []
    names = [name for name in next(iter(walked.values())).scored["year"].bits if name != "model"]
    columns = columns_of(
        "year",
        "events",
        "model",
        *names,
        f"gain over {names[-1]}",
        "95% interval",
        "block wins",
        "months won",
        words=("year",),
    )
    rows = []
    for year, record in sorted(walked.items()):
        scored = record.scored["year"]
        gain = scored.gains[names[-1]]
        rows.append(
            [
                words(str(year)),
                count_cell(gain.num_events),
                bits_cell(scored.bits["model"]),
                *(bits_cell(scored.bits[name]) for name in names),
                signed_cell(gain.gain_bits),
                words(interval(gain.interval)),
                words(share_of(gain.block_wins, gain.num_blocks)),
                words(share_of(gain.months_won, gain.num_months)),
            ]
        )
    won = sum(record.scored["year"].gains[names[-1]].gain_bits > 0 for record in walked.values())
    shortened = next(iter(walked.values())).shortened
    note = (
        f"Not in the paper: the protocol shifted year by year, everything fitted anew. The model wins {won} of "
        f"{len(walked)} years against {names[-1]}." + (f" Shortened: {shortened}." if shortened else "")
    )
    return [(Table(caption="Walk-forward", columns=columns, rows=rows), note)]


def _negated(pair: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if pair is None else (-pair[1], -pair[0])


HELDOUT_TABLES: dict[str, Callable[[Records], Tables]] = {
    "main-test": _main_test,
    "seeds-test": _seeds_test,
    "seeds-validation": _seeds_validation,
    "tails": _tails,
    "bootstrap": _bootstrap,
    "baselines": _baselines,
    "walk-forward": _walk_forward,
}
