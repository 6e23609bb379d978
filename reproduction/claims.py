"""The paper's claims on one screen: published, ours, the verdict and its reason.

Enters: records, and `[[claim]]` of `paper.toml`: the words, and the row of a table or the baseline
that decides.
Leaves: one table and how many claims hold, fail or stay unresolved. Paper: Abstract, Results and
Appendix A.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from reproduction import paper
from reproduction.cells import Noted, columns
from reproduction.findings import (
    FAILS,
    HOLDS,
    NOT_CLAIMED,
    NOT_RUN,
    STOPPED,
    UNMATCHED,
    UNRESOLVED,
    Measured,
    Records,
    gain_verdict,
    measure,
)
from reproduction.paper import CLAIMS, MAIN, Claim, comparison
from vaiom.evaluation.scores import MODEL
from vaiom.report.tables import Column, Table, bits, signed

_SPLIT = "test-h1"


def claims(records: Records) -> Noted:
    """Every claim of the paper with its verdict."""
    rows = [
        _of_test(claim, records) if claim.baseline else _of_row(claim, records) for claim in CLAIMS
    ]
    heads = [
        Column("claim"),
        *columns(signed, "published Δ", "our Δ"),
        *columns(bits, "±"),
        Column("verdict"),
    ]
    counts = Counter(row[4] for row in rows)
    words = {HOLDS: "hold", FAILS: "fail", UNRESOLVED: "are unresolved"}
    summary = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items())
    table = Table(caption="The paper's claims", columns=[*heads, Column("why")], rows=rows)
    return table, f"Of {len(rows)}: {summary}."


def _of_test(claim: Claim, records: Records) -> list[Any]:
    """Against a baseline, on the first half-year of the test."""
    published = paper.TEST_BITS[_SPLIT][MODEL] - paper.TEST_BITS[_SPLIT][claim.baseline]
    scored = next(
        (run.scored[_SPLIT] for run in records.runs(MAIN).values() if _SPLIT in run.scored), None
    )
    if scored is None or claim.baseline not in scored.gains:
        return [claim.text, published, None, None, UNRESOLVED, "no record of these events"]
    gain = scored.gains[claim.baseline]
    interval = gain.asset_months.interval
    half = None if interval is None else (interval[1] - interval[0]) / 2
    return [
        claim.text,
        published,
        -gain.gain_bits,
        half,
        gain_verdict(interval, True),
        "interval over asset-months",
    ]


def _of_row(claim: Claim, records: Records) -> list[Any]:
    """Against the reference row of a table of Validation bits."""
    measured = next(
        each for each in measure(comparison(claim.table), records) if each.row.label == claim.row
    )
    verdict = measured.verdict if measured.verdict in (HOLDS, FAILS) else UNRESOLVED
    deltas = (measured.published_delta, measured.delta_bits, measured.delta_error)
    return [claim.text, *deltas, verdict, _reason(measured)]


def _reason(measured: Measured) -> str:
    """Why a verdict is what it is, in a few words."""
    seeds = (
        f"{len(measured.seeds)} seeds"
        if len(measured.seeds) > 1
        else "one seed, the main model's spread"
    )
    short = f" ({measured.shortened})" if measured.shortened else ""
    turned = all(record.best_step() < record.last_step for record in measured.records)
    best = ", ".join(f"{step:,}" for step in measured.best_steps)
    curve = f"its curve turned at {best}" if turned else f"its curve had not turned at {best}"
    return {
        NOT_RUN: f"no {measured.row.timeframe} bars here",
        STOPPED: f"{curve}, and its run ended before this step{short}",
        UNRESOLVED: f"smaller than the chance of training: {seeds}{short}",
        NOT_CLAIMED: f"its curve had not turned{short}",
        UNMATCHED: f"the two lengths do not match{short}",
    }.get(measured.verdict, f"beyond the chance of training: {seeds}{short}")
