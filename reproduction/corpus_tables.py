"""The tables of the corpus: splits, assets and bucket edges, ours beside the published.

Enters: records. Leaves: tables with a note each. Paper: Appendix on the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence

from reproduction import paper
from reproduction.cells import Noted, columns
from reproduction.findings import Records
from reproduction.records import CORPUS
from vaiom.report.tables import Column, Table, count, signed, text


def splits(records: Records) -> list[Noted]:
    """Number of events of each split."""
    events = records.facts(CORPUS).get("events", {})
    rows = [
        [name, paper.SPLIT_EVENTS.get(name), events.get(name)]
        for name in {**paper.SPLIT_EVENTS, **events}
    ]
    heads = [Column("split"), *columns(count, "published events", "our events")]
    return [(Table(caption="Split counts", columns=heads, rows=rows), "")]


def coverage(records: Records) -> list[Noted]:
    """Bars and Train windows of each asset."""
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


def edges(records: Records) -> list[Noted]:
    """Bucket edges between the fixed tails."""

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
