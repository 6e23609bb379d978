"""Tables of our own model: beside the paper's seed by seed, and beside every baseline.

Enters: records. Leaves: tables with a note each. Not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from vaiom.evaluation.events_file import MODEL
from vaiom.experiments.paper import BEST, MAIN, MAIN_TIMEFRAME
from vaiom.experiments.records import ALL_TESTS, Record, Records
from vaiom.report.cells import bits_cell, columns_of, period, signed_cell
from vaiom.report.numbers import NOTHING, interval, share_of
from vaiom.report.tables import Table, words


def best_tables(records: Records) -> list[tuple[Table, str]]:
    """Our own model beside the paper's, seed by seed, and its seeds together beside every rival."""
    tables = [_pairs(records), _over_all(records)]
    return [(table, note) for table, note in tables if table.rows]


def _pairs(records: Records) -> tuple[Table, str]:
    columns = columns_of(
        "period",
        "seed",
        BEST,
        MAIN,
        "gain",
        "95% interval",
        "block wins",
        "months won",
        "month-clustered",
        words=("period", "seed"),
    )
    pairs = records.pairs()
    rows = []
    for split in _splits(pairs.values()):
        found = {seed: record.scored[split] for seed, record in pairs.items() if split in record.scored}
        for seed, scored in found.items():
            gain = scored.gains[MAIN]
            rows.append(
                [
                    words(period(split)),
                    words(str(seed)),
                    bits_cell(scored.bits[MODEL]),
                    bits_cell(scored.bits[MAIN]),
                    signed_cell(gain.gain_bits),
                    words(interval(gain.interval)),
                    words(share_of(gain.block_wins, gain.num_blocks)),
                    words(share_of(gain.months_won, gain.num_months)),
                    words(interval(gain.month_interval)),
                ]
            )
        means = [mean(scored.bits[name] for scored in found.values()) for name in (MODEL, MAIN)]
        rows.append(
            [
                words(period(split)),
                words("mean"),
                *(bits_cell(value) for value in means),
                signed_cell(means[1] - means[0]),
                *([words(NOTHING)] * 4),
            ]
        )
    note = (
        f"Gain is {MAIN} minus {BEST} of the same seed: positive favours {BEST}. Choices were made on Validation alone."
    )
    return Table(caption=f"`{BEST}` beside `{MAIN}`", columns=columns, rows=rows), note


def _over_all(records: Records) -> tuple[Table, str]:
    """The narrowest seed counts: what every seed beats, and by how much at least."""
    runs, ensemble = records.runs(BEST, MAIN_TIMEFRAME), records.ensemble()
    columns = columns_of(
        "period",
        "predictor",
        "bits",
        f"mean gain of {BEST}",
        "least gain of a seed",
        "its interval",
        "gain of the ensemble",
        "its interval",
        words=("period", "predictor"),
    )
    rows = []
    for split in _splits(runs.values()):
        found = [record.scored[split] for record in runs.values() if split in record.scored]
        joint = ensemble.scored.get(split) if ensemble else None
        rivals = [name for name in found[0].gains if all(name in scored.gains for scored in found)]
        for rival in sorted(rivals, key=lambda name: found[0].bits[name]):
            gains = [scored.gains[rival] for scored in found]
            least = min(gains, key=lambda gain: gain.gain_bits)
            of_all = joint.gains.get(rival) if joint else None
            rows.append(
                [
                    words(period(split)),
                    words(rival),
                    bits_cell(found[0].bits[rival]),
                    signed_cell(mean(gain.gain_bits for gain in gains)),
                    signed_cell(least.gain_bits),
                    words(interval(least.interval)),
                    signed_cell(of_all.gain_bits if of_all else None),
                    words(interval(of_all.interval) if of_all else NOTHING),
                ]
            )
    said = [
        f"{period(split)} {scored.bits[MODEL]:.4f}" for split, scored in (ensemble.scored.items() if ensemble else ())
    ]
    note = f"The ensemble is the mean of the {len(runs)} seeds' probabilities: {', '.join(said)} bits." if said else ""
    return Table(caption=f"`{BEST}` beside every baseline", columns=columns, rows=rows), note


def _splits(records: Iterable[Record]) -> list[str]:
    """What was scored, in the order of scoring."""
    return [split for split in dict.fromkeys(name for r in records for name in r.scored) if split != ALL_TESTS]
