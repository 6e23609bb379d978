"""Tables of the corpus, ours beside the published figures.

Enters: records. Leaves: tables with a note each.
Paper: Appendix "Corpus and Tokenizer Audit".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vaiom.experiments import paper
from vaiom.experiments.records import CORPUS, Records
from vaiom.report.cells import columns_of, count_cell, signed_cell
from vaiom.report.numbers import NOTHING
from vaiom.report.tables import Table, words

Tables = list[tuple[Table, str]]


def _splits(records: Records) -> Tables:
    events = records.facts(CORPUS).get("events", {})
    names = list(dict.fromkeys([*paper.SPLIT_EVENTS, *events]))
    rows = [[words(name), count_cell(paper.SPLIT_EVENTS.get(name)), count_cell(events.get(name))] for name in names]
    columns = columns_of("split", "published events", "our events", words=("split",))
    return [(Table(caption="Split counts", columns=columns, rows=rows), "")]


def _coverage(records: Records) -> Tables:
    assets: dict[str, dict[str, Any]] = records.facts(CORPUS).get("assets", {})
    rows = []
    for symbol in sorted({*paper.ASSETS, *assets}):
        published, own = paper.ASSETS.get(symbol), assets.get(symbol)
        rows.append(
            [
                words(symbol),
                count_cell(published[0] if published else None),
                count_cell(own["rows"] if own else None),
                count_cell(published[1] if published else None),
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
    edges = records.facts(CORPUS).get("edges", {}).get("return", [])
    inside = [edge for edge in edges if -2 < edge < 2]
    same = len(inside) == len(paper.RETURN_EDGES)
    rows = [
        [words(f"edge {index + 1}"), signed_cell(published), signed_cell(inside[index] if same else None)]
        for index, published in enumerate(paper.RETURN_EDGES)
    ]
    columns = columns_of("return edge inside (-2, 2)", "published", "ours", words=("return edge inside (-2, 2)",))
    return [(Table(caption="Return buckets fitted on Train", columns=columns, rows=rows), "")]


CORPUS_TABLES: dict[str, Callable[[Records], Tables]] = {
    "splits": _splits,
    "coverage": _coverage,
    "corpus-audit": _edges,
}
