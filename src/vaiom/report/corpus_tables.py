"""Tables of the corpus, ours beside the published figures.

Enters: records. Leaves: tables with a note each.
Paper: Appendix "Corpus and Tokenizer Audit".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vaiom.experiments import published
from vaiom.experiments.records import CORPUS, Records
from vaiom.report.cells import columns_of, count_cell
from vaiom.report.numbers import NOTHING, signed
from vaiom.report.tables import Table, words

Tables = list[tuple[Table, str]]


def _splits(records: Records) -> Tables:
    events = records.facts(CORPUS).get("events", {})
    names = list(dict.fromkeys([*published.SPLIT_EVENTS, *events]))
    rows = [[words(name), count_cell(published.SPLIT_EVENTS.get(name)), count_cell(events.get(name))] for name in names]
    columns = columns_of("split", "published events", "our events", words=("split",))
    return [(Table(caption="Split counts", columns=columns, rows=rows), "")]


def _coverage(records: Records) -> Tables:
    assets: dict[str, dict[str, Any]] = records.facts(CORPUS).get("assets", {})
    rows = []
    for symbol in sorted({*published.ASSETS, *assets}):
        theirs, own = published.ASSETS.get(symbol), assets.get(symbol)
        rows.append(
            [
                words(symbol),
                count_cell(theirs[0] if theirs else None),
                count_cell(own["rows"] if own else None),
                count_cell(theirs[1] if theirs else None),
                count_cell(own["train_windows"] if own else None),
                words(str(own["first"]) if own else NOTHING),
                words(str(own["last"]) if own else NOTHING),
            ]
        )
    columns = columns_of(
        "asset",
        "published bars",
        "our bars",
        "published Train windows",
        "our Train windows",
        "first",
        "last",
        words=("asset", "first", "last"),
    )
    return [(Table(caption="Asset coverage", columns=columns, rows=rows), "")]


def _edges(records: Records) -> Tables:
    edges = records.facts(CORPUS).get("edges", {})
    rows = [
        [words(name), words(_spelled(theirs)), words(_spelled([edge for edge in edges.get(name, []) if -2 < edge < 2]))]
        for name, theirs in published.EDGES.items()
    ]
    columns = columns_of("map", "published", "ours", words=("map", "published", "ours"))
    note = "Edges between the fixed tails, fitted on Train."
    return [(Table(caption="Bucket edges", columns=columns, rows=rows), note)]


def _spelled(edges: Sequence[float]) -> str:
    return "  ".join(signed(edge) for edge in edges) or NOTHING


CORPUS_TABLES: dict[str, Callable[[Records], Tables]] = {
    "splits": _splits,
    "coverage": _coverage,
    "corpus-audit": _edges,
}
