"""Tables for people: what commands print when nobody asked for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from vaiom.events.corpus import Corpus
    from vaiom.events.quality import SplitQuality


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> Table:
    """A plain table; the first `left` columns are words, the others numbers."""
    out = Table(title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False, box=None)
    for index, name in enumerate(columns):
        out.add_column(name, justify="left" if index < left else "right", no_wrap=index < left)
    for row in rows:
        out.add_row(*(str(cell) for cell in row))
    return out


def show(*tables: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for item in tables:
        console.print()
        console.print(item)


def percent(share: float) -> str:
    return f"{100 * share:.2f}%" if share else "-"


def print_corpus(corpus: Corpus) -> None:
    from vaiom.events.corpus import count_events

    manifest = corpus.manifest
    counts = count_events(corpus)
    rows = [
        [
            symbol,
            asset["class"],
            asset["first"].replace("T", " "),
            asset["last"].replace("T", " "),
            f"{asset['rows']:,}",
        ]
        + [f"{counts[split][symbol]:,}" for split in corpus.splits.names]
        for symbol, asset in manifest["assets"].items()
    ]
    totals = [f"{sum(counts[split].values()):,}" for split in corpus.splits.names]
    rows.append(["all", "", "", "", f"{manifest['rows']:,}", *totals])
    title = f"Corpus {corpus.path}: {manifest['timeframe']} bars, events with 512 bars of context"
    edges = [
        [name, len(values) - 1, "  ".join(f"{edge:.4f}" for edge in values[1:-1])]
        for name, values in corpus.edges.items()
    ]
    facts = [
        ["data", corpus.sha256],
        ["tokenizer", manifest["tokenizer_sha256"]],
        ["Train ends", manifest["splits"]["train_end"]],
        ["sealed from", manifest["splits"]["seal"]],
        ["inputs", f"{len(manifest['inputs'])} files, SHA-256 of each in the manifest"],
    ]
    show(
        table(title, ["asset", "class", "first bar", "last bar", "rows", *corpus.splits.names], rows, left=4),
        table("Bucket edges, fitted on Train", ["map", "buckets", "inner edges"], edges),
        table("Provenance", ["what", "value"], facts, left=2),
    )


def print_split_quality(rows: Sequence[SplitQuality]) -> None:
    masks = list(rows[0].mask_share) if rows else []
    body = [
        [row.symbol, row.split, f"{row.rows:,}", f"{row.events:,}", percent(row.zero_share), percent(row.dropped_share)]
        + [percent(row.mask_share[name]) for name in masks]
        + [percent(sum(row.occupancy[:4])), percent(sum(row.occupancy[-4:]))]
        for row in rows
    ]
    names = ["asset", "split", "rows", "events", "zero next", "target dropped", *masks, "low tail", "high tail"]
    show(table("What was masked and dropped, by asset and split of the target", names, body, left=2))
