"""Tables for people: what commands print when nobody asked for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from vaiom.events.corpus import Corpus
    from vaiom.events.quality import SplitQuality
    from vaiom.market.check import Finding, QualityReport


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1, prose: bool = False
) -> Group:
    """A plain table; the first `left` columns are words, the others numbers, the last one a sentence where `prose`."""
    out = Table(header_style="bold", pad_edge=False, box=None)
    for index, name in enumerate(columns):
        if prose and index == len(columns) - 1:
            out.add_column(name)
        elif index < left:
            out.add_column(name, no_wrap=True)
        else:
            out.add_column(name.replace("_", " ").replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        out.add_row(*(str(cell) for cell in row))
    if not prose:
        # Numbers are never cut: a terminal that is too narrow breaks the lines.
        out.width = Console(width=10_000, markup=False, emoji=False).measure(out).maximum
    # As the table's own title it would be broken to the width of the columns.
    return Group(Text(title, style="bold"), out)


def show(*tables: Group) -> None:
    # Cells are paths and symbols: nothing in them is markup.
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 200
    for item in tables:
        console.print()
        console.print(item, crop=False)


def percent(share: float) -> str:
    return f"{100 * share:.2f}%" if share else "-"


def print_manifest(manifest: dict[str, Any], out: Path) -> None:
    """The bars of a folder, and what was left out or put right on the way there."""
    entries = manifest["symbols"]
    rows = [[symbol, f"{e['rows']:,}", _moment(e["first"]), _moment(e["last"])] for symbol, e in entries.items()]
    changed = [
        [symbol, name.replace("_", " "), f"{count:,}"]
        for symbol, e in entries.items()
        for name, count in {"flat_dropped": e.get("flat_dropped", 0), **e.get("repairs", {})}.items()
        if count
    ]
    show(table(f"Bars in {out}", ["asset", "rows", "first", "last"], rows))
    if changed:
        show(table("Changed on the way", ["asset", "what", "rows"], changed, left=2))


def print_corpus(corpus: Corpus) -> None:
    from vaiom.events.corpus import count_events

    manifest = corpus.manifest
    counts = count_events(corpus)
    rows = [
        [
            symbol,
            asset["class"],
            _moment(asset["first"]),
            _moment(asset["last"]),
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
        ["Train ends", _moment(manifest["splits"]["train_end"])],
        ["sealed from", _moment(manifest["splits"]["seal"])],
        ["inputs", f"{len(manifest['inputs'])} files, SHA-256 of each in the manifest"],
    ]
    show(
        table(title, ["asset", "class", "first bar", "last bar", "rows", *corpus.splits.names], rows, left=4),
        table("Bucket edges, fitted on Train", ["map", "buckets", "inner edges"], edges, prose=True),
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
    names = ["asset", "split", "rows", "valid events", "zero next", "target dropped", *masks, "low tail", "high tail"]
    show(table("What was masked and dropped, by asset and split of the target", names, body, left=2))


def print_price_quality(report: QualityReport) -> None:
    from vaiom.market.stamps import format_span

    facts = [
        [
            asset.symbol,
            f"{asset.rows:,}",
            _moment(str(asset.first or "-")),
            _moment(str(asset.last or "-")),
            format_span(timedelta(seconds=asset.timeframe_seconds)) if asset.timeframe_seconds else "-",
            f"{asset.gaps.num_missing:,}",
            percent(asset.zero_return_share or 0.0),
        ]
        for asset in report.assets
    ]
    columns = ["asset", "rows", "first bar", "last bar", "timeframe", "missing bars", "unmoved closes"]
    findings = [
        [asset.symbol, finding.severity, finding.kind, f"{finding.count:,}", _with_example(finding)]
        for asset in report.assets
        for finding in asset.findings
    ]
    clocks = [[asset.symbol, asset.clock.statement] for asset in report.assets]
    show(
        table("Bars", columns, facts),
        table("Clock, as the weekly opening and close show it", ["asset", "statement"], clocks, prose=True),
        table("Findings", ["asset", "severity", "kind", "rows", "what, and the first of them"], findings, 3, prose=True)
        if findings
        else table("Findings: none", [], []),
    )


def print_comparison(rows: Sequence[dict[str, Any]], real: Path) -> None:
    def cell(value: object) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)

    verdict = {None: "", True: "yes", False: "NO"}
    body = [
        [row["measure"], cell(row["simulated"]), cell(row["real"]), row["demand"] or "", verdict[row["met"]]]
        for row in rows
    ]
    show(table("The simulated market beside real bars", ["measure", "simulated", str(real), "demanded", "met"], body))


def print_scores(title: str, bits: Mapping[str, float]) -> None:
    """Bits per event and the gain over Frequency."""
    body = [[name, f"{value:.4f}", f"{bits['frequency'] - value:+.4f}"] for name, value in bits.items()]
    show(table(title, ["predictor", "bits/event", "gain over Frequency"], body))


def _moment(iso: str) -> str:
    """A stamp as people write it: seconds only where there are any."""
    return iso.replace("T", " ").removesuffix(":00")


def _with_example(finding: Finding) -> str:
    return "\n".join([finding.summary, *finding.examples[:1]])
