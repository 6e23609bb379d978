"""The tables of the paper's model, of our own and of the corpus, ours beside the published figures.

Enters: records. Leaves: tables with a note each; what has no record is a dash.
Paper: Results, RQ1; Appendices on the corpus, on period and block-level results and on inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from reproduction import paper
from reproduction.findings import Records, gain_verdict
from reproduction.paper import BEST, FORMER, JUDGED, MAIN, SELECTED_STEP
from reproduction.records import ALL_TESTS, BASELINES, CORPUS, YEAR, Record
from vaiom.corpus.splits import VALIDATION
from vaiom.evaluation.inference import PairedGain
from vaiom.evaluation.scores import MODEL
from vaiom.report.tables import (
    Column,
    Table,
    bits,
    count,
    interval,
    percent,
    percents,
    ratio,
    signed,
    text,
)

STRONG = "lightgbm"  # the paper's strongest baseline
PAPER_BASELINES = tuple(name for name in paper.TEST_BITS["test-h1"] if name != MODEL)
PERIODS = {
    "test-h1": "2025H1",
    "test-h2": "2025H2",
    ALL_TESTS: "both halves",
}  # as the paper names them
TAILS = ("negative", "positive", "both")

Noted = tuple[Table, str]


def plain(value: object) -> str:
    """Text that stands to the right, as numbers do."""
    return text(value)


def columns(show: Callable[[Any], str], *names: str) -> list[Column]:
    """Columns whose values are spelled alike."""
    return [Column(name, show) for name in names]


def period(split: str) -> str:
    return PERIODS.get(split, split)


def _main_test(records: Records) -> list[Noted]:
    return [table for name in JUDGED for table in _tests(name, records.runs(name))]


def _tests(name: str, runs: Mapping[int, Record]) -> list[Noted]:
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
            heads, rows = (
                [heads[index] for index in kept],
                [[row[index] for index in kept] for row in rows],
            )
        out.append((Table(caption=f"{title}, {period(split)}", columns=heads, rows=rows), note))
    return out


def _test_row(
    name: str, theirs: Mapping[str, float], ours: Mapping[str, float], gain: PairedGain | None
) -> list[Any]:
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
    return [*row, -gain.gain_bits, by_block, *_wins(gain), by_month, verdict]


def _wins(gain: PairedGain | None) -> list[Any]:
    blocks = [gain.asset_months, gain.months] if gain else []
    return [ratio((each.block_wins, each.num_blocks)) for each in blocks] or [None, None]


def _seeds_test(records: Records) -> list[Noted]:
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
            ahead, sure = sum(gain.gain_bits > 0 for gain in gains), sum(map(_is_above_zero, gains))
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


def _is_above_zero(gain: PairedGain) -> bool:
    return gain.asset_months.interval is not None and gain.asset_months.interval[0] > 0


def _seeds_validation(records: Records) -> list[Noted]:
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


def _first_gain(records: Records, split: str) -> PairedGain | None:
    """Of the paper's model over its strongest baseline, for the first seed."""
    record = next(iter(records.runs(MAIN).values()), None)
    return record.scored[split].gains.get(STRONG) if record and split in record.scored else None


def _tails(records: Records) -> list[Noted]:
    rows = []
    for split, theirs in paper.TAILS.items():
        gain = _first_gain(records, split)
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


def _bootstrap(records: Records) -> list[Noted]:
    def rates(rate: float, pair: tuple[float, float] | None) -> str:
        return f"{percent(rate)} {percents(pair)}"

    rows = []
    for split, theirs in paper.BOOTSTRAP.items():
        gain = _first_gain(records, split)
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


def _best(records: Records) -> list[Noted]:
    tables = [
        _our_models(records),
        *(_pairs(records, name) for name in (FORMER, BEST)),
        _over_baselines(records),
    ]
    return [(table, note) for table, note in tables if table.rows]


def _our_models(records: Records) -> Noted:
    """The paper's model and our own, each by its seeds."""
    runs = {name: records.runs(name) for name in (MAIN, FORMER, BEST)}
    rows: list[list[Any]] = []
    for split in _splits_of(runs[BEST].values()):
        found = {
            name: {
                seed: record.scored[split].bits[MODEL]
                for seed, record in of.items()
                if split in record.scored
            }
            for name, of in runs.items()
        }
        for seed in found[BEST]:
            rows.append([period(split), seed, *(found[name].get(seed) for name in runs)])
        rows.append(
            [period(split), "mean", *(mean(of.values()) if of else None for of in found.values())]
        )
    heads = [*columns(text, "period", "seed"), *columns(bits, *runs)]
    sizes = {name: next(iter(of.values())).num_params for name, of in runs.items() if of}
    note = (
        f"Parameters: {', '.join(f'{name} {size:,}' for name, size in sizes.items())}. Chosen "
        f"on Validation alone."
    )
    return Table(caption="Our own models beside `main`", columns=heads, rows=rows), note


def _pairs(records: Records, name: str) -> Noted:
    """A model of our own beside the paper's, on the same events, seed by seed."""
    pairs = records.pairs(name)
    rows: list[list[Any]] = []
    for split in _splits_of(pairs.values()):
        found = {
            seed: record.scored[split] for seed, record in pairs.items() if split in record.scored
        }
        for seed, scored in found.items():
            gain = scored.gains[MAIN]
            rows.append(
                [
                    *(period(split), seed, scored.bits[MODEL], scored.bits[MAIN], gain.gain_bits),
                    *(
                        interval(gain.asset_months.interval),
                        *_wins(gain),
                        interval(gain.months.interval),
                    ),
                ]
            )
        best, main = (
            mean(scored.bits[name] for scored in found.values()) for name in (MODEL, MAIN)
        )
        rows.append([period(split), "mean", best, main, main - best, *[None] * 4])
    heads = [
        *columns(text, "period", "seed"),
        *columns(bits, name, MAIN),
        *columns(signed, "gain"),
        *columns(plain, "95% interval", "block wins", "months won", "month-clustered"),
    ]
    note = f"Gain is {MAIN} minus {name} of the same seed: positive favours {name}."
    return Table(
        caption=f"`{name}` beside `{MAIN}`, event by event", columns=heads, rows=rows
    ), note


def _over_baselines(records: Records) -> Noted:
    """The narrowest seed counts: what every seed beats, and by how much at least."""
    runs, ensemble = records.runs(BEST), records.ensemble(BEST)
    rows = []
    for split in _splits_of(runs.values()):
        found = [record.scored[split] for record in runs.values() if split in record.scored]
        joint = ensemble.scored.get(split) if ensemble else None
        common = [name for name in found[0].gains if all(name in scored.gains for scored in found)]
        for name in sorted(common, key=lambda name: found[0].bits[name]):
            gains = [scored.gains[name] for scored in found]
            least = min(gains, key=lambda gain: gain.gain_bits)
            of_all = joint.gains.get(name) if joint else None
            rows.append(
                [
                    *(
                        period(split),
                        name,
                        found[0].bits[name],
                        mean(gain.gain_bits for gain in gains),
                    ),
                    *(least.gain_bits, interval(least.asset_months.interval)),
                    *(
                        of_all and of_all.gain_bits,
                        of_all and interval(of_all.asset_months.interval),
                    ),
                ]
            )
    heads = [
        *columns(text, "period", "predictor"),
        *columns(bits, "bits"),
        *columns(signed, f"mean gain of {BEST}", "least gain of a seed"),
        *columns(plain, "its interval"),
        *columns(signed, "gain of the ensemble"),
        *columns(plain, "its interval"),
    ]
    scores = ensemble.scored.items() if ensemble else ()
    scores_text = ", ".join(f"{period(split)} {scored.bits[MODEL]:.4f}" for split, scored in scores)
    note = f"The ensemble is the mean of the {len(runs)} seeds' probabilities: {scores_text} bits."
    note = note if scores else ""
    return Table(caption=f"`{BEST}` beside every baseline", columns=heads, rows=rows), note


def _splits_of(records: Iterable[Record]) -> list[str]:
    """What was scored, in the order of scoring."""
    return [
        split
        for split in dict.fromkeys(name for r in records for name in r.scored)
        if split != ALL_TESTS
    ]


def _baselines(records: Records) -> list[Noted]:
    facts = records.facts(BASELINES)
    if not facts:
        return []

    def mean_bits(name: str, split: str) -> float | None:
        bits = [
            run.scored[split].bits[MODEL]
            for run in records.runs(name).values()
            if split in run.scored
        ]
        return mean(bits) if bits else None

    means = {
        name: {split: mean_bits(name, split) for split in facts} for name in (MAIN, FORMER, BEST)
    }
    rows: list[list[Any]] = []
    for name in dict.fromkeys(name for entry in facts.values() for name in entry["bits"]):
        row: list[Any] = [name]
        for split, entry in facts.items():
            own = entry["bits"].get(name)
            row += [
                own,
                *(
                    None if None in (own, means[of][split]) else own - means[of][split]
                    for of in JUDGED
                ),
            ]
        rows.append(row)
    ours = [
        name for name, bits in means.items() if any(value is not None for value in bits.values())
    ]
    for name in ours:
        rows.append(
            [
                f"{name}, mean of seeds",
                *(cell for split in facts for cell in (means[name][split], "", "")),
            ]
        )
    heads = [Column("predictor")]
    for split, entry in facts.items():
        heads.append(Column(f"{period(split)}, {entry['events']:,} events", bits))
        heads += [
            Column(f"{name}'s gain", lambda gain: gain if isinstance(gain, str) else signed(gain))
            for name in JUDGED
        ]
    strong = frozenset(range(len(rows) - len(ours), len(rows)))
    return [
        (Table(caption="All baselines in one table", columns=heads, rows=rows, strong=strong), "")
    ]


def walked_baselines(walked: Mapping[int, Record]) -> list[str]:
    """The baselines that every year has, in their order."""
    years = [record.scored[YEAR].gains for record in walked.values()]
    return [name for name in years[0] if all(name in gains for gains in years)] if years else []


def _walk_forward(records: Records) -> list[Noted]:
    return [_walk(records, name) for name in JUDGED if records.walk_forward(name)]


def _walk(records: Records, model: str) -> Noted:
    walked, main = records.walk_forward(model), records.walk_forward()
    names = walked_baselines(walked)
    strongest = min(
        names, key=lambda name: mean(record.scored[YEAR].bits[name] for record in walked.values())
    )
    gains = {year: record.scored[YEAR].gains[strongest] for year, record in walked.items()}
    # Baselines that only the paper's model was compared with are scored on the same events.
    others: dict[str, str] = {}
    if model != MAIN:
        others = {MAIN: MODEL} | {
            name: name for name in walked_baselines(main) if name not in names
        }
    rows = [
        [
            *(
                year,
                gain.num_events,
                *(walked[year].scored[YEAR].bits[name] for name in (MODEL, *names)),
            ),
            *(
                main[year].scored[YEAR].bits[name] if year in main else None
                for name in others.values()
            ),
            *(gain.gain_bits, interval(gain.asset_months.interval), *_wins(gain)),
        ]
        for year, gain in gains.items()
    ]
    heads = [
        Column("year"),
        *columns(count, "events"),
        *columns(bits, model, *names, *others),
        *columns(signed, f"gain over {strongest}"),
        *columns(plain, "95% interval", "block wins", "months won"),
    ]
    won, sure = (
        sum(gain.gain_bits > 0 for gain in gains.values()),
        sum(map(_is_above_zero, gains.values())),
    )
    shortened = "; ".join(
        dict.fromkeys(record.shortened for record in walked.values() if record.shortened)
    )
    note = (
        f"Not in the paper: the protocol shifted year by year, everything fitted anew. `{model}` "
        f"is ahead of "
        f"{strongest} in {won} of {len(walked)} years, in {sure} with an interval above zero."
        + (f" Shortened: {shortened}." if shortened else "")
    )
    return Table(caption=f"Walk-forward of `{model}`", columns=heads, rows=rows), note


def _splits(records: Records) -> list[Noted]:
    events = records.facts(CORPUS).get("events", {})
    rows = [
        [name, paper.SPLIT_EVENTS.get(name), events.get(name)]
        for name in {**paper.SPLIT_EVENTS, **events}
    ]
    heads = [Column("split"), *columns(count, "published events", "our events")]
    return [(Table(caption="Split counts", columns=heads, rows=rows), "")]


def _coverage(records: Records) -> list[Noted]:
    assets = records.facts(CORPUS).get("assets", {})
    rows = []
    for symbol in sorted({*paper.ASSETS, *assets}):
        bars, windows = paper.ASSETS.get(symbol, (None, None))
        own = [
            assets.get(symbol, {}).get(name) for name in ("rows", "train_windows", "first", "last")
        ]
        rows.append([symbol, bars, own[0], windows, *own[1:]])
    heads = [
        Column("asset"),
        *columns(
            count, "published bars", "our bars", "published Train windows", "our Train windows"
        ),
        *columns(text, "first", "last"),
    ]
    return [(Table(caption="Asset coverage", columns=heads, rows=rows), "")]


def _edges(records: Records) -> list[Noted]:
    def spelled(edges: Sequence[float]) -> str | None:
        return "  ".join(map(signed, edges)) or None

    own = records.facts(CORPUS).get("edges", {})
    rows = [
        [name, spelled(theirs), spelled([edge for edge in own.get(name, []) if -2 < edge < 2])]
        for name, theirs in paper.EDGES.items()
    ]
    heads = columns(text, "map", "published", "ours")
    note = "Edges between the fixed tails, fitted on Train."
    return [(Table(caption="Bucket edges", columns=heads, rows=rows), note)]


SPECIAL: dict[str, Callable[[Records], list[Noted]]] = {
    "main-test": _main_test,
    "seeds-test": _seeds_test,
    "seeds-validation": _seeds_validation,
    "tails": _tails,
    "bootstrap": _bootstrap,
    "best": _best,
    "baselines": _baselines,
    "walk-forward": _walk_forward,
    "splits": _splits,
    "coverage": _coverage,
    "corpus-audit": _edges,
}
"""Every table that is no comparison of runs on Validation."""
