"""The tables of our own models: beside the paper's model, beside all baselines, year by year.

Enters: records. Leaves: tables with a note each; what has no record is a dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from reproduction.cells import Noted, columns, is_above_zero, period, plain, wins
from reproduction.findings import Records
from reproduction.paper import BEST, FORMER, JUDGED, MAIN
from reproduction.records import ALL_TESTS, BASELINES, YEAR, Record
from vaiom.evaluation.scores import MODEL
from vaiom.report.tables import Column, Table, bits, count, interval, signed, text


def best_model(records: Records) -> list[Noted]:
    """Our models beside the paper's model and beside every baseline."""
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
                        *wins(gain),
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
    runs = records.runs(BEST)
    ensemble = records.ensemble(BEST)
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


def all_baselines(records: Records) -> list[Noted]:
    """Every baseline on every split, and the gains of our models over it."""
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


def walk_forward(records: Records) -> list[Noted]:
    """A table of test years for each model that was walked."""
    return [_walk(records, name) for name in JUDGED if records.walk_forward(name)]


def _walk(records: Records, model: str) -> Noted:
    """The test years of one model: bits, and gains over its strongest baseline."""
    walked = records.walk_forward(model)
    main = records.walk_forward()
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
            *(gain.gain_bits, interval(gain.asset_months.interval), *wins(gain)),
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
    won = sum(gain.gain_bits > 0 for gain in gains.values())
    sure = sum(map(is_above_zero, gains.values()))
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
