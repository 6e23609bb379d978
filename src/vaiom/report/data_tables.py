"""Tables of data and provenance: bars, corpora, masked events, looks at Test, hashes and
commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaiom import __version__
from vaiom.report.tables import NOTHING, Column, Table, count, facts, moment, percent2, prose, text

if TYPE_CHECKING:
    from vaiom.corpus.store import Corpus, SplitQuality
    from vaiom.evaluation.ledger import Look
    from vaiom.market.check import QualityReport
    from vaiom.report.contents import RunContents

BASELINES_FOLDER = "baselines"
_QUALITY = (
    Column("asset", text, "symbol"),
    Column("split", text, "split"),
    Column("rows", count, "rows"),
    Column(
        "valid events",
        count,
        "events",
        "Rows that may be trained on or scored, before any demand on context",
    ),
    Column("zero next", percent2, "zero_share", "Next returns that are exactly zero"),
    Column("target dropped", percent2, "dropped_share", "For any reason, exact zeros included"),
)
_TAILS = (
    Column(
        "low tail",
        percent2,
        lambda each: sum(each.occupancy[:4]),
        "Events that ended in buckets 1 to 4",
    ),
    Column(
        "high tail",
        percent2,
        lambda each: sum(each.occupancy[-4:]),
        "Events that ended in buckets 13 to 16",
    ),
)


def bar_folder(manifest: Mapping[str, Any], folder: Path) -> list[Table]:
    """The bars of a folder, and what its import dropped or repaired."""
    entries = manifest["symbols"].items()
    changed = [
        [symbol, name.replace("_", " "), number]
        for symbol, entry in entries
        for name, number in {
            "flat_dropped": entry.get("flat_dropped"),
            **entry.get("repairs", {}),
        }.items()
        if number
    ]
    columns = [Column("asset"), Column("rows", count), Column("first"), Column("last")]
    rows = [
        [symbol, entry["rows"], moment(entry["first"]), moment(entry["last"])]
        for symbol, entry in entries
    ]
    changes = [Column("asset"), Column("what"), Column("rows", count)]
    return [
        Table(f"Bars in {folder}", columns, rows),
        *([Table("Changed on the way", changes, changed)] if changed else []),
    ]


def price_quality(report: QualityReport) -> list[Table]:
    """The result of a check of prices: bars, clock, findings."""
    from vaiom.market.timeframes import format_span

    def span(seconds: int | None) -> str:
        return format_span(timedelta(seconds=seconds)) if seconds else NOTHING

    def stamp(value: object) -> str:
        return moment(text(value))

    bars = [
        Column("asset", text, "symbol"),
        Column("rows", count, "rows"),
        Column("first bar", stamp, "first"),
        Column("last bar", stamp, "last"),
        Column("timeframe", span, "timeframe_seconds"),
        Column("missing bars", count, "gaps.missing_bins"),
        Column("unmoved closes", percent2, "zero_return_share"),
    ]
    clock = [Column("asset", text, "symbol"), Column("statement", prose, "clock.statement")]
    columns = [*map(Column, ("asset", "severity", "kind")), Column("rows", count)]
    columns.append(Column("what, and the first of them", prose))
    findings = [
        [
            asset.symbol,
            each.severity,
            each.kind,
            each.count,
            "\n".join([each.summary, *each.examples[:1]]),
        ]
        for asset in report.assets
        for each in asset.findings
    ]
    return [
        Table.of("Bars", bars, report.assets),
        Table.of("Clock, as the weekly opening and close show it", clock, report.assets),
        Table("Findings", columns, findings) if findings else Table("Findings: none", [], []),
    ]


def corpus_tables(corpus: Corpus) -> list[Table]:
    """The assets of a corpus with their events, the bucket edges, and where it comes from."""
    from vaiom.corpus.store import count_events

    manifest, splits = corpus.manifest, corpus.splits.names
    counts = count_events(corpus)
    rows = [
        [symbol, asset["class"], moment(asset["first"]), moment(asset["last"]), asset["rows"]]
        + [counts[split][symbol] for split in splits]
        for symbol, asset in manifest["assets"].items()
    ]
    rows.append(
        ["all", "", "", "", manifest["rows"], *(sum(counts[split].values()) for split in splits)]
    )
    columns = [*map(Column, ("asset", "class", "first bar", "last bar"))]
    columns += [Column(name, count) for name in ("rows", *splits)]
    maps = [Column("map"), Column("buckets", count), Column("inner edges", prose)]
    edges = [
        [name, len(values) - 1, "  ".join(f"{edge:.4f}" for edge in values[1:-1])]
        for name, values in corpus.edges.items()
    ]
    return [
        Table(
            f"Corpus {corpus.path}: {manifest['timeframe']} bars, events with 512 bars of context",
            columns,
            rows,
        ),
        Table(f"Bucket edges, {'of a model' if corpus.like else 'fitted on Train'}", maps, edges),
        facts(
            "Provenance",
            {
                "data": corpus.sha256,
                "tokenizer": manifest["tokenizer_sha256"],
                "Train ends": moment(manifest["splits"]["train_end"]),
                "sealed from": moment(manifest["splits"]["seal"]),
                "inputs": f"{len(manifest['inputs'])} files, SHA-256 of each in the manifest",
            },
        ),
    ]


def split_quality(quality: Sequence[SplitQuality]) -> Table:
    """Shares of masked rows and dropped targets, by asset and split."""

    def masked(mask: str) -> Column:
        name = mask.removeprefix("mask_").replace("_", " ")
        return Column(name, percent2, lambda each: each.mask_share[mask], "Share of rows masked")

    columns = [*_QUALITY, *map(masked, quality[0].mask_share if quality else ()), *_TAILS]
    return Table.of(
        "What was masked and dropped, by asset and split of the target", columns, quality
    )


def looks_at_test(looks: Sequence[Look], own: str) -> Table:
    """The ledger: when a test split was scored, and by what; `own` is the checkpoint of
    the report.
    """

    def checkpoint(look: Look) -> str:
        return look.checkpoint_sha256[:12] + (
            " (this one)" if look.checkpoint_sha256 == own else ""
        )

    columns = [
        Column("when (UTC)", text, lambda look: look.when.replace("T", " ").removesuffix("+00:00")),
        Column("split", text, "split"),
        Column("run", text, "run"),
        Column("checkpoint", text, checkpoint),
        Column("events", count, "num_events"),
    ]
    return Table.of("Looks at test splits of this corpus", columns, looks)


def provenance(contents: RunContents) -> Table:
    """The hashes and versions of everything that the figures depend on."""
    origin, tokenizer, now = (
        contents.checkpoint.provenance,
        contents.checkpoint.tokenizer,
        contents.corpus,
    )
    problem, head = contents.inputs.corpus_problem, contents.inputs.ledger_sha256
    grown = (
        " (the corpus has grown or changed since)"
        if now is not None and now.sha256 != origin.corpus_sha256
        else ""
    )
    return facts(
        "Hashes and versions",
        {
            "experiment, seed, step": f"{origin.experiment}, {origin.seed}, {count(origin.step)}",
            "checkpoint": contents.checkpoint.sha256,
            "corpus at training": origin.corpus_sha256,
            "corpus now": f"{now.sha256}{grown}"
            if now is not None
            else f"not reachable: {problem}",
            "tokenizer": tokenizer.sha256,
            "ledger of looks": head or NOTHING,
            "assets": ", ".join(tokenizer.symbols),
            "timeframe": now.tokenizer.timeframe if now is not None else NOTHING,
            "Train ends before": str(origin.splits["train_end"]).replace("T", " "),
            "input files": f"{len(origin.inputs)}, each with its hash in the checkpoint",
            "trained with": f"vaiom {origin.vaiom_version}",
            "reported with": f"vaiom {__version__}",
        },
    )


def commands(contents: RunContents) -> list[str]:
    """The command lines that lead from the corpus to the report: train, then each split's, then
    report.
    """
    from vaiom.baselines.base import BASELINES, PLAIN
    from vaiom.corpus.splits import SEALED
    from vaiom.experiments.registry import EXPERIMENTS
    from vaiom.training.experiment import changed, experiment_of_checkpoint

    run, corpus = contents.inputs.run, contents.inputs.corpus or "CORPUS"
    origin, context = contents.checkpoint.provenance, str(contents.checkpoint.model.config.history)
    train = [
        "vaiom",
        "train",
        corpus,
        "--experiment",
        origin.experiment,
        "--seed",
        str(origin.seed),
    ]
    if named := EXPERIMENTS.get(
        origin.experiment
    ):  # and each setting in which the run differs from it
        for key, (value, _) in changed(
            named, experiment_of_checkpoint(contents.checkpoint)
        ).items():
            if key != "seed":
                train += ["--set", f"{key}={','.join(value) if isinstance(value, list) else value}"]
    out = [[*train, "--out", run]]
    for split in contents.splits:
        # Losses that somebody stored under a name of their own cannot be repeated so.
        names = [name for name in split.evaluation.bits if name in BASELINES]
        stored = ["--baselines", BASELINES_FOLDER] if {*names} - {*PLAIN} else []
        if stored:
            options = ["--out", BASELINES_FOLDER, "--only", ",".join(names), "--context", context]
            out.append(["vaiom", "baselines", corpus, *options, "--split", split.name])
        unseal = ["--unseal", SEALED] if split.name == SEALED else []
        out.append(
            ["vaiom", "evaluate", run, "--corpus", corpus, "--split", split.name, *unseal, *stored]
        )
    return [shlex.join(words) for words in (*out, ["vaiom", "report", run, "--corpus", corpus])]
